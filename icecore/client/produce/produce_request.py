"""One produce request under way, without a task of its own: it ends in the callback that has news.

It ends once: with the answer, with an error, or because the node hangs and others lead all of its
partitions by now. That is looked at every second (``WATCH_S``), and costs a task only then.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, cast

from icecore.client.cluster.connection import Connection, moved
from icecore.client.cluster.metadata import Metadata
from icecore.client.produce.batches import Batch
from icecore.client.produce.partition_queue import PartitionQueue
from icecore.errors import IcecoreError, InternalError, LeaderLostError, NotLeaderError
from icecore.model import Acks
from icecore.process.log import event
from icecore.rpc import framing
from icecore.rpc.methods import DATA
from icecore.rpc.ports import Body, Received
from icecore.v1 import data_pb2

WATCH_S: Final = 1.0
ANSWER_GRACE_S: Final = 5.0
"""A leader answers within the timeout that it is given; this is for the way there and back."""

Entry: TypeAlias = tuple[PartitionQueue, list[Batch]]
"""Encoded batches of one partition, oldest first."""

Outcome: TypeAlias = data_pb2.ProducePartitionResult | IcecoreError
"""Outcome of one batch of a request."""

OnEnd: TypeAlias = Callable[["ProduceRequest", Sequence[Outcome], int], None]
"""Gets one outcome per batch, and for how many milliseconds to hold back."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestParts:
    """Values that all requests of one sender share."""

    connection: Connection
    metadata: Metadata
    acks: Acks
    timeout_ms: int
    """How long leaders wait for replicas."""
    answer_s: float
    """How long we wait for leaders."""
    start: Callable[[Coroutine[Any, Any, None]], None]
    """Runs what has to wait."""


class ProduceRequest:
    """One request.

    Args:
        parts: See there.
        node_id: Who leads the partitions.
        entries: What is sent.
        on_end: Called once, from the loop, and never before ``start`` returns.
    """

    def __init__(
        self,
        parts: RequestParts,
        node_id: int,
        entries: list[Entry],
        on_end: OnEnd,
    ) -> None:
        self.node_id, self.entries = node_id, entries
        self._parts = parts
        self._on_end = on_end
        self._is_over = False
        self._give_up: Callable[[], object] | None = None
        self._watching: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Send it."""
        parts, loop = self._parts, asyncio.get_running_loop()
        try:
            address = parts.metadata.view.address(self.node_id)
            if address is None:
                raise NotLeaderError(f"the address of node {self.node_id} is unknown")
            self._give_up = parts.connection.net.start_call(
                address,
                DATA["Produce"],
                self._body(),
                timeout_s=parts.answer_s,
                done=self._answered,
            )
        except IcecoreError as error:
            loop.call_soon(self._fail, error)
            return
        self._watching = loop.call_later(WATCH_S, self._watch)

    def cancel(self) -> None:
        """Nobody waits any more: ``on_end`` is not called."""
        self._is_over = True
        if self._give_up is not None:
            self._give_up()
        if self._watching is not None:
            self._watching.cancel()

    def _body(self) -> Body:
        parts = self._parts
        header = data_pb2.ProduceHeader(
            cluster_id=parts.metadata.view.cluster_id,
            acks=cast(Any, int(parts.acks)),
            timeout_ms=parts.timeout_ms,
        )
        buffers: list[bytes] = []
        for queue, batches in self.entries:
            for batch in batches:
                assert batch.encoded is not None
                buffers.append(batch.encoded)
                header.partitions.add(
                    topic_id=queue.topic_id,
                    partition=queue.partition,
                    batch_length=len(batch.encoded),
                )
        return framing.bulk_request(header.SerializeToString(), buffers)

    def _count(self) -> int:
        return sum(len(batches) for _, batches in self.entries)

    # --- news -----------------------------------------------------------------------------------

    def _answered(self, outcome: Received | IcecoreError) -> None:
        if isinstance(outcome, IcecoreError):
            self._fail(moved(outcome, f"the address of node {self.node_id}"))
            return
        try:
            answer = framing.parse(data_pb2.ProduceResponse, outcome)
            if len(answer.partitions) != self._count():
                count = len(answer.partitions)
                raise InternalError(f"node {self.node_id} answered {count} entries")
        except IcecoreError as error:
            self._fail(error)
        except Exception as error:
            event(
                _log,
                logging.ERROR,
                "produce_failed",
                node_id=self.node_id,
                error=error,
                exc_info=error,
            )
            what = "the request failed unexpectedly; the log has the details"
            self._fail(InternalError(what))
        else:
            self._end(answer.partitions, answer.throttle_ms)

    def _watch(self) -> None:
        self._watching = None
        if not self._is_over:
            self._parts.start(self._look_for_others())

    async def _look_for_others(self) -> None:
        """Ask for the leaders; fail the request when its node leads none of its partitions any
        more. Without a coordinator only the deadline ends the request."""
        parts = self._parts
        try:
            await parts.metadata.refresh()
        except IcecoreError:
            pass
        else:
            if all(self._is_led_elsewhere(queue) for queue, _ in self.entries):
                what = f"node {self.node_id} does not answer and leads no more"
                self._fail(LeaderLostError(what))
        if not self._is_over:
            loop = asyncio.get_running_loop()
            self._watching = loop.call_later(WATCH_S, self._watch)

    def _is_led_elsewhere(self, queue: PartitionQueue) -> bool:
        metadata = self._parts.metadata
        found = metadata.view.partition(queue.topic, queue.partition)
        has_other = found is not None and found.leader not in (0, self.node_id)
        return has_other or metadata.recreated(queue.topic, queue.topic_id) is not None

    def _fail(self, error: IcecoreError) -> None:
        self._end([error] * self._count(), throttle_ms=0)

    def _end(self, outcomes: Sequence[Outcome], throttle_ms: int) -> None:
        if not self._is_over:
            self.cancel()
            self._on_end(self, outcomes, throttle_ms)
