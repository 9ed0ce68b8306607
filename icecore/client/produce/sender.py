"""Sends batches that are due: which of them go into which request, and when.

A request carries batches of many partitions that one node leads. This is the life of a batch:

    due ──> ready ─────────────> taken ────────────> under way ──────> acknowledged (new, duplicate)
              ^ │ no leader        encoded, numbered      │
              │ │ or id yet        (``batches_kept``)     │ failed; then wait for all others
              │ v                                         v of the partition that are under way
              waiting <────────────── in front of its queue, in order, numbers kept
              (backoff, or a new leader is seen)

What an error costs is in ``settling.py``.

**Rules.** Replicas keep producer state as a function of the log (R20) and hand it on (R24). Here is
what R21-R23 ask of clients: sequences without holes, from 0 under each identity, and no more
unresolved batches than the leader recognises, which each answer says (R21, R72); the same number in
each retry (R22); a gap shows as OUT_OF_ORDER_SEQUENCE, also after expiry (R23). Without
``idempotent`` a retry may append twice.

**What may run at the same time.** All of it is on one event loop. A node has up to five requests
under way; an answer that asks to hold back keeps its slot that long. Of them a partition has one,
or up to four where the transport keeps their order and the last one was answered well: the first
request to a leader, and the first after a failure, goes alone (``partition_queue.py``). A small
batch waits for the answer to the one before it, and grows, as long as many batches are under way.
Waiting partitions share one search for an identity and one question for leaders.
``produce_request.py`` has the life of one request.

**Tried** (docs/adr/tried.md). Two requests of one partition overtake each other on HTTP/2, and
the second is refused as out of order: there a partition has one. One stream per node keeps the
order and halves the CPU of a bare call, but single records gained little: too little for a second
way of producing. Small requests beside others now wait for 256 KiB or 20 ms, and small batches for
the answer of their partition: fewer and larger ones under load. Looking for a new leader up to 1 s
apart made a killed leader cost twice as long as looking every 200 ms.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from icecore.client.cluster.connection import Connection
from icecore.client.cluster.metadata import Metadata
from icecore.client.produce.batches import Batch
from icecore.client.produce.identity import Identities
from icecore.client.produce.partition_queue import PartitionQueue
from icecore.client.produce.produce_request import (
    ANSWER_GRACE_S,
    Entry,
    Outcome,
    ProduceRequest,
    RequestParts,
)
from icecore.client.produce.settling import Settling
from icecore.codec.record import Codec
from icecore.errors import IcecoreError, InvalidRequestError, NotLeaderError
from icecore.model import Acks
from icecore.process.log import event

_BATCHES_PER_REQUEST = 2_048
"""Or a few more; a node takes 4,096 entries."""
REQUESTS_PER_NODE_MAX = 5
REQUESTS_PER_PARTITION_MAX = 4
"""Maximum requests of a partition under way, where the transport keeps their order. Each has its
share of the batches that a leader recognises. So the next request goes out before the first is
answered."""
OVERLAP_BYTES_MIN = 64 << 10
"""Smallest batch that may go out unfilled before the last request of its partition is answered."""
OVERLAP_BATCHES_MAX = 16
"""Batches under way to a node below which smaller batches go out as well. Many small batches cost
more than the wait."""
REQUEST_BYTES_MIN = 256 << 10
"""Smallest request that goes out beside others to the same node. A smaller one waits for the next
answer, at most ``_HOLD_S``, and grows meanwhile. The cost of a batch hardly depends on its size."""

_HOLD_S = 0.02
_HOLD_LEAST_S = 0.0005
"""Shortest rest of a hold that is waited for: a shorter one may round to no time, again and
again."""

_THROTTLE_MAX_MS = 60_000
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Load:
    """Requests and batches under way to a node."""

    requests: int = 0
    batches: int = 0
    requested_ms: float = 0.0
    """When the last one went out."""


class Sender:
    """Owns the requests of one producer. All times are milliseconds.

    Args:
        connection: The way to the cluster.
        metadata: Who leads what.
        acks: When leaders answer.
        codec: Of the payloads.
        idempotent: Number batches, so that retries leave no duplicates.
        identities: Under which they are numbered.
        request_bytes_max: Batches of one request together, a single batch may exceed it.
        request_timeout_ms: How long leaders wait for replicas.
        delivery_timeout_ms: From the creation of a batch until it is given up.
        on_done: Called with each batch that has its outcome, or was divided.
        on_broken: Called when what works here can't go on, as when somebody else cancels it
            (``asyncio.run`` does before it ends): nothing that is not acknowledged by then ever
            will be.
    """

    def __init__(
        self,
        connection: Connection,
        metadata: Metadata,
        *,
        acks: Acks,
        codec: Codec,
        idempotent: bool,
        identities: Identities,
        request_bytes_max: int,
        request_timeout_ms: int,
        delivery_timeout_ms: int,
        on_done: Callable[[Batch], None],
        on_broken: Callable[[], None],
    ) -> None:
        self._connection = connection
        self._clock = connection.clock
        self._metadata = metadata
        self._codec = codec
        self._idempotent = idempotent
        self._request_bytes_max = request_bytes_max
        self._on_broken = on_broken
        self._is_closing = False
        self._identities = identities
        self._sendable: dict[int, dict[PartitionQueue, None]] = {}
        self._loads: defaultdict[int, _Load] = defaultdict(_Load)
        self._held: dict[int, asyncio.TimerHandle] = {}
        self._tasks: dict[asyncio.Task[object], None] = {}  # ordered: the same run each time
        self._under_way: dict[ProduceRequest, None] = {}
        self._request_parts = RequestParts(
            connection=connection,
            metadata=metadata,
            acks=acks,
            timeout_ms=request_timeout_ms,
            answer_s=min(request_timeout_ms / 1000 + ANSWER_GRACE_S, delivery_timeout_ms / 1000),
            start=self.start,
        )
        self._has_sentinel = False
        """A task waits for nothing: when somebody cancels it, requests end without an answer."""
        self._is_pump_due = False
        self.settling = Settling(
            connection,
            metadata,
            acks=acks,
            idempotent=idempotent,
            identities=identities,
            delivery_timeout_ms=delivery_timeout_ms,
            start=self.start,
            offer=self.offer,
            on_done=on_done,
        )

    def start(self, coroutine: Coroutine[Any, Any, object]) -> None:
        """Run a coroutine until it ends or the sender closes."""
        task = asyncio.ensure_future(coroutine)
        self._tasks[task] = None
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[object]") -> None:
        del self._tasks[task]
        error = None if task.cancelled() else task.exception()
        if error is not None:
            event(_log, logging.ERROR, "producer_broken", error=error, exc_info=error)
        if not self._is_closing and (error is not None or task.cancelled()):
            self._on_broken()

    async def close(self) -> None:
        """Give up everything under way."""
        self._is_closing = True
        for timer in self._held.values():
            timer.cancel()
        for request in self._under_way:
            request.cancel()
        self._under_way.clear()
        tasks: list[asyncio.Future[Any]] = list(self._tasks)
        for task in tasks:
            task.cancel()
        if (finding := self._identities.cancel()) is not None:
            tasks.append(finding)
        if tasks:
            await asyncio.wait(tasks)

    @property
    def requests_under_way(self) -> int:
        """Number of requests that no node has answered yet."""
        return len(self._under_way)

    def offer(self, queue: PartitionQueue) -> None:
        """The queue has batches that are due; they go out in this turn of the loop, together."""
        if not queue.ready or queue.is_waiting or queue.under_way.is_draining:
            return
        error = self._identities.lost or self._metadata.recreated(queue.topic, queue.topic_id)
        if error is not None:
            self.settling.fail_all(queue, error)
            return
        if queue.identity is None and self._identities.current is not None:
            queue.identity, queue.next_sequence = self._identities.current, 0
        leader = self._metadata.view.leader(queue.topic, queue.partition)
        if queue.identity is None or not leader:
            if queue.under_way:
                return  # the last answer offers it again
            queue.is_waiting = True
            away = NotLeaderError(f"{queue.topic}/{queue.partition} has no leader at the moment")
            self.start(self.settling.retry(queue, None if leader else away))
            return
        self._sendable.setdefault(leader, {})[queue] = None
        if not self._is_pump_due:
            self._is_pump_due = True
            asyncio.get_running_loop().call_soon(self._pump)

    def together(self, offer_all: Callable[[], None]) -> None:
        """Send what this offers in one go and at once, and not in the next turn of the loop."""
        self._is_pump_due = True
        try:
            offer_all()
        finally:
            self._pump()

    def _pump(self) -> None:
        self._is_pump_due = False
        for node_id in list(self._sendable):
            self._pump_node(node_id)

    def _pump_node(self, node_id: int) -> None:
        queues = self._sendable.get(node_id, {})
        while queues and self._may_request(node_id, queues):
            entries, size_bytes, more = list[Entry](), 0, dict[PartitionQueue, None]()
            count = 0
            while queues and size_bytes < self._request_bytes_max and count < _BATCHES_PER_REQUEST:
                queue = next(iter(queues))
                del queues[queue]
                if not self._may_send(queue, node_id):
                    continue
                if not queue.under_way and not self._is_in_time(queue):
                    continue
                batches = self._take(queue, node_id, self._request_bytes_max - size_bytes)
                if batches:
                    queue.under_way.begin(node_id, batches)
                    entries.append((queue, batches))
                    count += len(batches)
                    size_bytes += sum(len(batch.encoded or b"") for batch in batches)
                    if queue.ready and self._may_send(queue, node_id):
                        more[queue] = None
            queues.update(more)
            if entries:
                load = self._loads[node_id]
                load.requests += 1
                load.batches += count
                load.requested_ms = self._clock.monotonic_ms()
                self._send(node_id, entries)
        if not queues:
            self._sendable.pop(node_id, None)

    def _may_request(self, node_id: int, queues: dict[PartitionQueue, None]) -> bool:
        """Return whether a request may go out now: the first at once, more of them when it pays."""
        load = self._loads[node_id]
        if load.requests in (0, REQUESTS_PER_NODE_MAX):
            return load.requests == 0
        waiting_bytes = 0
        for queue in queues:
            waiting_bytes += sum(batch.size_bytes for batch in queue.ready)
            if waiting_bytes >= REQUEST_BYTES_MIN:
                return True
        held_ms = self._clock.monotonic_ms() - load.requested_ms
        left_s = _HOLD_S - held_ms / 1000
        if left_s < _HOLD_LEAST_S:
            return True
        if node_id not in self._held:
            loop = asyncio.get_running_loop()
            self._held[node_id] = loop.call_later(left_s, self._release, node_id)
        return False

    def _release(self, node_id: int) -> None:
        del self._held[node_id]
        self._pump_node(node_id)

    def _may_send(self, queue: PartitionQueue, node_id: int) -> bool:
        """Return whether a request of the partition may go out to the node now. It may have been
        offered to two nodes, its leader having changed, and what it had may have failed
        meanwhile."""
        if not queue.ready or queue.is_waiting or queue.under_way.is_draining:
            return False
        under_way = queue.under_way
        if not under_way:
            return True
        return (
            queue.may_overlap
            and under_way.node_id == node_id
            and len(under_way) < REQUESTS_PER_PARTITION_MAX
            and self._is_worth_it(queue, node_id)
            and self._keeps_order(node_id)
        )

    def _is_in_time(self, queue: PartitionQueue) -> bool:
        """Return whether its turn is now: a node that hangs takes few requests, and each for long.
        What is left once old batches are given up may need another identity; then it is offered
        again."""
        self.settling.expire(queue)
        if queue.identity is None:
            self.offer(queue)
            return False
        return True

    def _is_worth_it(self, queue: PartitionQueue, node_id: int) -> bool:
        """Return whether the next batch may go out as it is, beside others of its partition. Else
        it grows until they are answered: the cost of a batch hardly depends on its size."""
        batch = queue.ready[0]
        may_grow = batch is queue.open and batch.size_bytes < OVERLAP_BYTES_MIN
        return not may_grow or self._loads[node_id].batches < OVERLAP_BATCHES_MAX

    def _keeps_order(self, node_id: int) -> bool:
        """Return whether requests to the node may follow each other: numbered ones, in their
        order."""
        address = self._metadata.view.address(node_id)
        net = self._connection.net
        return self._idempotent and address is not None and net.keeps_order(address)

    def _take(self, queue: PartitionQueue, node_id: int, room_bytes: int) -> list[Batch]:
        """Encode and remove the next batches of a queue; what cannot be encoded fails.

        From the oldest unacknowledged batch to the newest one sent there are no more than leaders
        recognise: an older one would not be known as a duplicate.
        """
        taken: list[Batch] = []
        under_way, count_max = queue.under_way, queue.batches_kept
        if self._keeps_order(node_id):
            count_max = max(1, count_max // REQUESTS_PER_PARTITION_MAX)
        while queue.ready and queue.identity is not None:
            batch = queue.ready[0]
            number = queue.next_number if batch.sequence is None else batch.number
            oldest = taken[0].number if taken else number
            if under_way:
                oldest = under_way.oldest_number
            if number - oldest >= queue.batches_kept or len(taken) == count_max:
                break
            if taken and (batch.size_bytes > room_bytes or not self._is_worth_it(queue, node_id)):
                break
            sequence = 0
            if queue.identity.producer_id:
                sequence = queue.next_sequence if batch.sequence is None else batch.sequence
            queue.pop()
            try:
                names = self._indexed_headers(queue)
                encoded = batch.encode(queue.identity, sequence, self._codec, names)
            except IcecoreError as error:
                self.settling.fail(batch, error)
                continue
            except Exception as error:  # it was not sent: definite, and nobody else's fault
                failure = InvalidRequestError(f"the records cannot be encoded: {error!r}")
                self.settling.fail(batch, failure)
                continue
            batch.number = number
            queue.next_number = max(queue.next_number, number + 1)
            queue.next_sequence = max(queue.next_sequence, sequence + batch.count)
            room_bytes -= len(encoded)
            taken.append(batch)
        return taken

    def _indexed_headers(self, queue: PartitionQueue) -> tuple[str, ...]:
        """Return the headers whose hashes the partition's batches hold."""
        if queue.indexed_headers is not None:
            return queue.indexed_headers
        known = self._metadata.known(queue.topic)
        return () if known is None else known.indexed_headers

    # --- one request ----------------------------------------------------------------------------

    def _send(self, node_id: int, entries: list[Entry]) -> None:
        if not self._has_sentinel:
            self._has_sentinel = True
            self.start(asyncio.Event().wait())
        request = ProduceRequest(self._request_parts, node_id, entries, self._ended_request)
        self._under_way[request] = None
        request.start()

    def _ended_request(
        self, request: ProduceRequest, results: Sequence[Outcome], throttle_ms: int
    ) -> None:
        del self._under_way[request]
        self._loads[request.node_id].batches -= sum(len(batches) for _, batches in request.entries)
        try:
            at = 0
            for queue, batches in request.entries:
                self.settling.settle(queue, batches, results[at : at + len(batches)])
                at += len(batches)
        except Exception as error:  # records without an outcome would be waited for for ever
            event(_log, logging.ERROR, "producer_broken", error=error, exc_info=error)
            self._on_broken()
            return
        if throttle_ms:
            wait_s = min(throttle_ms, _THROTTLE_MAX_MS) / 1000
            self.start(self._free_later(request.node_id, wait_s))
        else:
            self._free(request.node_id)

    async def _free_later(self, node_id: int, wait_s: float) -> None:
        await asyncio.sleep(wait_s)
        self._free(node_id)

    def _free(self, node_id: int) -> None:
        """One request fewer is under way to a node."""
        self._loads[node_id].requests -= 1
        self._pump_node(node_id)
