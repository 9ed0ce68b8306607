"""The buffer of a producer: open batches that linger, and all batches without an outcome.

Memory is counted per record when it is added and given back per batch when it is done.
"""

import asyncio
from collections import deque
from collections.abc import Callable

from icecore.client.produce.batches import Batch, Piece
from icecore.client.produce.bulk import Columns
from icecore.client.produce.partition_queue import PartitionQueue
from icecore.errors import (
    IcecoreError,
    InvalidRequestError,
    ThrottledError,
)
from icecore.rpc.ports import Clock


class BatchTally:
    """Counts of the outcomes of one producer's batches."""

    __slots__ = (
        "batches_acknowledged",
        "bytes_acknowledged",
        "latency_max_ms",
        "latency_sum_ms",
        "records_acknowledged",
        "records_failed",
    )

    def __init__(self) -> None:
        self.records_acknowledged = self.records_failed = 0
        self.batches_acknowledged = self.bytes_acknowledged = 0
        self.latency_sum_ms = self.latency_max_ms = 0.0
        """From the first record of a batch to its acknowledgement."""

    def acknowledge(self, records: int, size_bytes: int, took_ms: float) -> None:
        """Count one acknowledged batch."""
        self.records_acknowledged += records
        self.batches_acknowledged += 1
        self.bytes_acknowledged += size_bytes
        self.latency_sum_ms += took_ms
        self.latency_max_ms = max(self.latency_max_ms, took_ms)


class Buffer:
    """Opens and closes batches of all partitions.

    Args:
        clock: For lingering.
        linger_ms: How long an open batch waits for more records.
        limit_bytes: When the buffer counts as full.
        on_due: Called with a queue whose newest batch may be sent.
        together: Calls a function that hands on queues, and sends what they have in one go.
    """

    def __init__(
        self,
        clock: Clock,
        linger_ms: float,
        limit_bytes: int,
        on_due: Callable[[PartitionQueue], None],
        together: Callable[[Callable[[], None]], None],
    ) -> None:
        self._clock = clock
        self._linger_ms = linger_ms
        self.limit_bytes = limit_bytes
        self._on_due = on_due
        self._together = together
        self._lingering: deque[tuple[PartitionQueue, Batch]] = deque()
        self.pending: dict[Batch, None] = {}
        """Batches without an outcome."""
        self._failed: Batch | None = None
        self._room = asyncio.Event()
        self._opened = asyncio.Event()
        self.used_bytes = 0
        self.batches_closed = 0
        self.tally = BatchTally()

    @property
    def is_full(self) -> bool:
        """Return whether nothing may be added now."""
        return self.used_bytes >= self.limit_bytes

    def reserve(self, size_bytes: int) -> None:
        """Count bytes that are added (negative: that turned out not to be)."""
        self.used_bytes += size_bytes

    def open(self, queue: PartitionQueue) -> Batch:
        """A new open batch; the queue must have none."""
        assert queue.open is None
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise InvalidRequestError(
                "a producer is used on its event loop only: icecore.blocking is for threads"
            ) from None
        batch = Batch(self._clock.monotonic_ms(), loop)
        queue.open = batch
        self.pending[batch] = None
        self._lingering.append((queue, batch))
        if len(self._lingering) == 1:
            if self._linger_ms:
                self._opened.set()
            else:  # with what else the program sends in this turn of the loop
                loop.call_soon(self._together, self.hand_on_all)
        return batch

    def add(self, queue: PartitionQueue, piece: Columns, batch_bytes: int) -> Piece:
        """Put records into the open batch if it has room, else into a new one; where they are.
        ``batch_bytes``: when a batch of the topic is full."""
        batch = queue.open
        size_bytes = piece.size_bytes
        if batch is not None:
            is_small = batch.size_bytes + size_bytes <= batch_bytes
            if not (is_small and piece.fits(batch)):
                self.close(queue)
                batch = None
        if batch is None:
            batch = self.open(queue)
        self.used_bytes += size_bytes
        start, end = piece.append_to(batch)
        if batch.size_bytes + size_bytes > batch_bytes:  # as much again would not fit
            self.close(queue)
        return batch, start, end

    def close(self, queue: PartitionQueue) -> None:
        """The queue's open batch, if it has one, is full: hand it on."""
        batch, queue.open = queue.open, None
        if batch is not None:
            self.batches_closed += 1
            self._hand_on(queue, batch)

    def _hand_on(self, queue: PartitionQueue, batch: Batch) -> None:
        """Let the batch be sent; if it is still open it takes records until then."""
        if not queue.ready or queue.ready[-1] is not batch:
            queue.ready.append(batch)
        self._on_due(queue)

    def hand_on_all(self) -> None:
        """Let nothing linger."""
        while self._lingering:
            queue, batch = self._lingering.popleft()
            if queue.open is batch:
                self._hand_on(queue, batch)

    async def linger(self) -> None:
        """Hand on batches whose time is up, for ever; they were opened in that order."""
        while True:
            while self._lingering:
                if (left_ms := self._left_ms()) > 0:
                    await asyncio.sleep(left_ms / 1000)
                else:
                    self._together(self._hand_on_due)
            self._opened.clear()
            await self._opened.wait()

    def _hand_on_due(self) -> None:
        while self._lingering and self._left_ms() <= 0:
            queue, batch = self._lingering.popleft()
            if queue.open is batch:
                self._hand_on(queue, batch)

    def _left_ms(self) -> float:
        """Return how long the oldest batch waits for more records; it may have been closed."""
        queue, batch = self._lingering[0]
        if queue.open is not batch:
            return 0
        return batch.created_ms + self._linger_ms - self._clock.monotonic_ms()

    def release(self, batch: Batch) -> None:
        """The batch has its outcome, or its records are in other batches from now on."""
        if batch not in self.pending:
            return  # abandoned
        del self.pending[batch]
        if batch.parts:
            self.pending.update(dict.fromkeys(batch.parts))
            return
        self.used_bytes -= batch.size_bytes
        if not self.is_full:
            self._room.set()
        if batch.error is not None:
            self.note(batch)
        else:
            took_ms = self._clock.monotonic_ms() - batch.created_ms
            self.tally.acknowledge(batch.count, batch.size_bytes, took_ms)

    def note(self, batch: Batch) -> None:
        """The batch has failed: somebody must be told."""
        self.tally.records_failed += batch.count or len(batch.values)
        if self._failed is None or self._failed.is_observed:
            self._failed = batch
        if not self.is_full:
            self._room.set()

    async def wait_for_room(self) -> None:
        """Return when the buffer is not full."""
        while self.is_full:
            self.hand_on_all()  # what lingers would only make everyone wait longer
            self._room.clear()
            await self._room.wait()

    async def drain(self) -> None:
        """Close all batches and wait for the outcome of all.

        Raises:
            IcecoreError: The first failure, since the last call, that nobody was told of.
        """
        self.hand_on_all()
        waiting = {batch.done for batch in self.pending}
        if waiting:
            await asyncio.wait(waiting)
        failed, self._failed = self._failed, None
        if failed is not None and not failed.is_observed and failed.error is not None:
            failed.is_observed = True
            raise failed.error

    def abandon(self, error: IcecoreError) -> None:
        """Fail whatever is left: nobody sends it any more."""
        for batch in list(self.pending):
            batch.fail(error)
            self.release(batch)


def no_room() -> IcecoreError:
    """Return the error for a record that the buffer does not take now."""
    return ThrottledError("the producer's buffer is full", retry_after_ms=5)
