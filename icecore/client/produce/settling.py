"""Settles batches whose request has ended: acknowledged, sent again, renumbered or failed.

Nothing is settled before all requests of a partition have ended: only then is it known what can
still land late. What is sent again goes back to the front of its queue, in order.

    what happened                      what it costs
    the records can't be encoded       this batch alone: its number was not used yet
    an error that is retriable, or of  a wait: the numbers stay, and a leader that has the batch
    one leader's storage               answers with its offset (``duplicate``)
    the segment indexes other headers  a wait, and this batch is encoded anew
    the segment takes no such record,  nothing, if it has several records and certainly was not
    or no batch that large             appended: its halves keep its numbers, and go in its place
    any other error, or the delivery   the head. If it had a number, those behind it that certainly
    timeout                            were not appended get new ones under a fresh identity; the
                                       others fail as well, because only they might land late
    the leader sees a gap or an old    as before; a head that certainly was not appended stays, and
    epoch                              is renumbered too
    it sees a gap before a request     a wait, as above: the batches before it were refused, or it
    that was sent behind another one   overtook them. Sent again alone, it shows a real gap
    the name is lost, or the topic is  all batches of the partition
    another one, or deleted

Which rules ask for this, and the life of a batch before, is in ``sender.py``.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from icecore.client.cluster.connection import Backoff, Connection
from icecore.client.cluster.metadata import Metadata, topic_deleted
from icecore.client.produce.batches import Batch
from icecore.client.produce.identity import Identities
from icecore.client.produce.partition_queue import BATCHES_KEPT_FIRST, PartitionQueue, Refused
from icecore.client.produce.produce_request import Outcome
from icecore.client.types import BatchMetadata
from icecore.errors import (
    BatchTooLargeError,
    FencedError,
    HeaderHashesError,
    IcecoreError,
    LeaderLostError,
    NotLeaderError,
    OutOfOrderSequenceError,
    ProducerFencedError,
    RecordTooLargeError,
    RequestTimeoutError,
    RollingError,
    StorageError,
    UnavailableError,
    UnknownTopicError,
)
from icecore.model import Acks
from icecore.rpc import convert
from icecore.v1 import data_pb2

_MOVED = (NotLeaderError, FencedError, UnavailableError, UnknownTopicError, LeaderLostError)
_TOO_LARGE = (RecordTooLargeError, BatchTooLargeError)
_LEADERLESS_S = 1.0
"""While a partition has no leader, log and check the deadline this often."""


class Settling:
    """Gives batches of one producer their outcomes. All times are milliseconds.

    Args:
        connection: The way to the cluster.
        metadata: Who leads what.
        acks: When leaders answer.
        idempotent: Batches are numbered.
        identities: Under which they are.
        delivery_timeout_ms: From the creation of a batch until it is given up.
        start: Runs a coroutine until it ends or the sender closes.
        offer: Told of a queue that may go on.
        on_done: Called with each batch that has its outcome, or was divided.
    """

    def __init__(
        self,
        connection: Connection,
        metadata: Metadata,
        *,
        acks: Acks,
        idempotent: bool,
        identities: Identities,
        delivery_timeout_ms: int,
        start: Callable[[Coroutine[Any, Any, object]], None],
        offer: Callable[[PartitionQueue], None],
        on_done: Callable[[Batch], None],
    ) -> None:
        self._connection = connection
        self._clock = connection.clock
        self._metadata = metadata
        self._acks = acks
        self._idempotent = idempotent
        self._identities = identities
        self._delivery_timeout_ms = delivery_timeout_ms
        self._start = start
        self._offer = offer
        self._on_done = on_done
        self.lost_acks_leader = 0
        """Gaps that lost batches left which had been acknowledged by their leader only."""

    def settle(
        self, queue: PartitionQueue, batches: list[Batch], results: Sequence[Outcome]
    ) -> None:
        """A request has ended: one result for each of its batches."""
        failed: list[tuple[Batch, IcecoreError]] = []
        for batch, result in zip(batches, results, strict=True):
            if isinstance(result, IcecoreError):
                error = result
            elif (found := convert.error_from_proto(result.error)) is not None:
                error = found
            else:
                self._succeed(queue, batch, result)
                continue
            batch.indeterminate = batch.indeterminate or error.indeterminate
            failed.append((batch, error))
        queue.may_overlap = not failed
        if len(failed) < len(batches):
            queue.attempts = 0
        refused = queue.under_way.end(batches, failed)
        if refused:
            self._send_again(queue, refused)
        else:
            self._offer(queue)

    def _send_again(self, queue: PartitionQueue, refused: list[Refused]) -> None:
        """All of this came back, and nothing is under way: wait, then send it in its order."""
        queue.may_overlap, queue.is_waiting = False, True
        queue.batches_kept = BATCHES_KEPT_FIRST  # the next leader may be of another version
        queue.ready.extendleft(each.batch for each in reversed(refused))
        head, error = refused[0].batch, refused[0].error
        if isinstance(queue.error, RollingError) and isinstance(error, _MOVED):
            queue.attempts = 0  # the roll is over and the next leader is known
        queue.error = error
        if isinstance(error, OutOfOrderSequenceError) and not refused[0].was_first:
            pass  # it overtook what was acknowledged meanwhile: its number is right by now
        elif isinstance(error, OutOfOrderSequenceError | ProducerFencedError) and self._idempotent:
            self._close_gap(queue, head, error)
        elif isinstance(error, HeaderHashesError) and queue.learn_headers(head, error):
            pass  # it is encoded anew
        elif isinstance(error, _TOO_LARGE) and head.count > 1 and not head.indeterminate:
            self._divide(queue)
            self._start(self.retry(queue, None))  # at once
            return
        elif not error.retriable and not isinstance(error, StorageError):
            self._drop_head(queue, error)
        self._start(self.retry(queue, error))

    def _close_gap(self, queue: PartitionQueue, head: Batch, error: IcecoreError) -> None:
        """The leader misses batches before ``head``, and we know of none that is unresolved; or
        the epoch is an old one, because another partition's gap made us take the next."""
        if self._acks is Acks.LEADER and isinstance(error, OutOfOrderSequenceError):
            self.lost_acks_leader += 1
        if head.indeterminate:
            self._drop_head(queue, error)
        else:
            self._renumber(queue, error)

    def _divide(self, queue: PartitionQueue) -> None:
        """Put the halves of the head in its place. Each record keeps its sequence (R22), so what is
        behind them stays as it is; only batches are counted anew."""
        head = queue.pop()
        queue.ready.extendleft(reversed(head.divide()))
        self._on_done(head)
        number = head.number
        for batch in queue.ready:
            if batch.sequence is not None:
                batch.number, number = number, number + 1
        queue.next_number = max(queue.next_number, number)
        queue.attempts, queue.error = 0, None

    def _drop_head(self, queue: PartitionQueue, error: IcecoreError) -> None:
        head = queue.pop()
        self.fail(head, error)
        queue.attempts = 0  # those behind it have not had their turn
        if head.sequence is not None:
            self._renumber(queue, error)

    def _drop_all(self, queue: PartitionQueue, error: IcecoreError) -> None:
        """As if each had its turn as the head. The queue stays: whoever brings the topic back finds
        on its leaders what this producer has sent before."""
        while queue.ready:
            self._drop_head(queue, error)

    def _renumber(self, queue: PartitionQueue, error: IcecoreError) -> None:
        """Start over under a fresh producer id with all that certainly was not appended."""
        kept = []
        for batch in queue.ready:
            if batch.indeterminate:
                self.fail(batch, error)
            else:
                batch.sequence = None
                kept.append(batch)
        queue.ready.clear()
        queue.ready.extend(kept)
        if self._idempotent:
            self._identities.give_up(queue.identity)
            queue.identity = None

    def _succeed(
        self, queue: PartitionQueue, batch: Batch, result: data_pb2.ProducePartitionResult
    ) -> None:
        queue.batches_kept = result.batches_kept or BATCHES_KEPT_FIRST
        batch.succeed(
            BatchMetadata(
                topic=queue.topic,
                partition=queue.partition,
                base_offset=result.base_offset,
                end_offset=result.base_offset + batch.count,
                append_timestamp_ms=result.append_timestamp_ms,
                durable_copies=result.durable_copies,
                segment_id=result.segment_id,
                duplicate=result.duplicate,
            )
        )
        self._on_done(batch)

    def fail(self, batch: Batch, error: IcecoreError) -> None:
        """This batch alone."""
        batch.fail(error)
        self._on_done(batch)

    def fail_all(self, queue: PartitionQueue, error: IcecoreError) -> None:
        """All that waits in a queue."""
        while queue.ready:
            self.fail(queue.pop(), error)

    async def retry(self, queue: PartitionQueue, error: IcecoreError | None) -> None:
        """Wait as the error asks for, look for the leader, and offer the queue again."""
        # A new leader is there within moments, and looking for it is one question for everyone.
        is_moving = isinstance(error, (RollingError, *_MOVED))
        first_ms = 15 if isinstance(error, RollingError) else 30
        backoff = Backoff(self._connection.rng, first_ms, 150 if is_moving else 1000)
        backoff.attempts = queue.attempts
        queue.attempts += 1
        failure, has_moved, began_ms = error, False, self._clock.monotonic_ms()
        if error is not None and queue.ready:
            since_ms = queue.ready[0].created_ms
            self._connection.retries.note(
                error,
                topic=queue.topic,
                partition=queue.partition,
                since_ms=since_ms,
                until_ms=since_ms + self._delivery_timeout_ms,
            )
        is_led = bool(self._metadata.view.leader(queue.topic, queue.partition))
        if error is not None or backoff.attempts:
            wait_s = min(backoff.next_s(error), self._left_s(queue))
            if is_moving and not is_led:
                wait_s = min(_LEADERLESS_S, self._left_s(queue))
                has_moved = await self._metadata.until_led(queue.topic, queue.partition, wait_s)
            elif is_moving:
                has_moved = await self._metadata.until_moved(queue.topic, queue.partition, wait_s)
            else:
                await asyncio.sleep(wait_s)
        try:
            if has_moved:
                queue.attempts = 0  # the next leader may need a moment to hear of it
            elif isinstance(error, _MOVED) or queue.attempts > 2:
                await self._metadata.refresh(timeout_s=self._left_s(queue))
                deleted = topic_deleted(self._metadata, queue.topic, began_ms)
                if deleted is not None:
                    self._drop_all(queue, deleted)
                failure = self._metadata.error(queue.topic) or failure
            if queue.identity is None:
                queue.identity, queue.next_sequence = await self._identities.find(), 0
        except IcecoreError as caught:
            is_late = isinstance(caught, RequestTimeoutError)  # which explains less
            failure = failure if failure is not None and is_late else caught
        queue.error = failure or queue.error
        self.expire(queue)
        queue.is_waiting = False
        self._offer(queue)

    def _left_s(self, queue: PartitionQueue) -> float:
        """Until the oldest batch is given up."""
        left_ms = float(self._delivery_timeout_ms)
        if queue.ready:
            left_ms += queue.ready[0].created_ms - self._clock.monotonic_ms()
        return max(0.001, left_ms / 1000)

    def expire(self, queue: PartitionQueue) -> None:
        """Give up what has waited too long; nothing of the queue is under way."""
        oldest_ms = self._clock.monotonic_ms() - self._delivery_timeout_ms
        while queue.ready and queue.ready[0].created_ms <= oldest_ms:
            self._drop_head(queue, queue.error or RequestTimeoutError("not sent in time"))
