"""Batches on their way out: records in columns, and who waits for them.

A batch is open while records may be appended, until it is full or sent: one that is due and has to
wait for its turn goes on growing, so that batches are as large as the cluster is busy. It gets its
bytes when it is first sent, because only then its sequence number is certain. One result serves all
its records: a handle is a batch and an index.

A batch that is refused for its size is divided (``divide``). Its halves then have outcomes of their
own, and it is done when both are.
"""

import asyncio
from array import array
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from icecore.client.retries import call_back
from icecore.client.types import BatchMetadata, RecordMetadata
from icecore.codec import record
from icecore.codec.batch import parse_header
from icecore.codec.columns import Headers
from icecore.codec.hashes import header_hashes
from icecore.codec.record import Codec
from icecore.errors import IcecoreError, RequestTimeoutError

if TYPE_CHECKING:
    import pyarrow as pa

RECORD_OVERHEAD_BYTES = 24
"""Timestamp, key hash and offsets: what a record takes in a batch beside its own bytes."""

OnDelivery: TypeAlias = Callable[[RecordMetadata | IcecoreError], object]
"""A function of the program that is told what became of a record."""


@dataclass(frozen=True, slots=True)
class ProducerIdentity:
    """Under which idempotent producer a partition's batches are numbered; id 0 is none."""

    producer_id: int
    producer_epoch: int


class Batch:
    """One batch and its fate. ``done`` is set once; then either ``metadata`` or ``error`` is."""

    __slots__ = (
        "count",
        "created_ms",
        "done",
        "encoded",
        "error",
        "hashes",
        "headers",
        "indeterminate",
        "indexed_headers",
        "is_observed",
        "keys",
        "metadata",
        "number",
        "parts",
        "rows",
        "sequence",
        "size_bytes",
        "tags",
        "times",
        "values",
        "waiters",
    )

    def __init__(self, created_ms: float, loop: asyncio.AbstractEventLoop) -> None:
        self.values: list[bytes | None] = []
        self.keys: list[bytes | None] = []
        self.hashes = array("Q")
        self.times = array("q")
        self.tags: list[Sequence[str]] | None = None
        self.headers: list[Headers] | None = None
        self.rows: list[pa.RecordBatch] = []
        """Instead of the columns above; all of one schema."""
        self.count = 0
        """Number of records; single records and lists count only once the batch leaves its
        queue."""
        self.size_bytes = 0
        self.created_ms = created_ms
        self.sequence: int | None = None
        """Sequence of its first record under the queue's identity; None until it is first sent."""
        self.number = 0
        """Counts the batches of the queue in the order in which they were first sent."""
        self.encoded: bytes | None = None
        self.indexed_headers: tuple[str, ...] = ()
        """Headers whose hashes are in the encoded batch."""
        self.indeterminate = False
        """Some attempt may have been appended without our knowing."""
        self.metadata: BatchMetadata | None = None
        self.error: IcecoreError | None = None
        self.is_observed = False
        """The program was told of the error."""
        self.done: asyncio.Future[None] = loop.create_future()
        self.parts: tuple[Batch, ...] = ()
        """The batches that have its records now, in order; none while it has them itself."""
        self.waiters: dict[asyncio.Future[None], None] = {}
        """One waiter for each awaited record: cancelling one does not cancel the others."""

    def encode(
        self,
        identity: ProducerIdentity,
        sequence: int,
        codec: Codec,
        indexed_headers: tuple[str, ...] = (),
    ) -> bytes:
        """The batch's bytes under ``sequence``, made once and renumbered when it changes; made anew
        when other headers are to be hashed."""
        if self.encoded is not None and self.indexed_headers != indexed_headers:
            self.encoded = record.with_header_hashes(self.encoded, indexed_headers)
        self.indexed_headers = indexed_headers
        if self.encoded is None:
            if self.rows:
                from icecore.codec import arrow

                self.encoded = arrow.encode(
                    _joined(self.rows),
                    key_hashes=self.hashes or None,
                    codec=codec,
                    producer_id=identity.producer_id,
                    producer_epoch=identity.producer_epoch,
                    base_sequence=sequence,
                    indexed_headers=indexed_headers,
                )
            else:
                hashes = None
                if indexed_headers and self.headers is not None:
                    hashes = header_hashes(self.headers, indexed_headers)
                self.encoded = record.encode_columns(
                    values=self.values,
                    timestamps_ms=self.times,
                    keys=self.keys or None,
                    key_hashes=self.hashes if self.keys else None,
                    tags=self.tags,
                    headers=self.headers,
                    header_hashes=hashes,
                    codec=codec,
                    producer_id=identity.producer_id,
                    producer_epoch=identity.producer_epoch,
                    base_sequence=sequence,
                )
            # What is encoded is not needed as objects any more.
            self.values, self.keys, self.hashes, self.rows = [], [], array("Q"), []
            self.tags, self.headers = None, None
        elif self.sequence != sequence:
            self.encoded = record.set_producer(
                self.encoded, identity.producer_id, identity.producer_epoch, sequence
            )
        self.sequence = sequence
        return self.encoded

    def divide(self) -> "tuple[Batch, Batch]":
        """Two batches with the records of this one, which was encoded and has several: the first
        half of them and the rest. Each has the sequence that its first record had."""
        assert self.encoded is not None and self.sequence is not None and self.count > 1
        columns = record.decode(self.encoded, 0, parse_header(self.encoded))
        keys, hashes = columns.keys, columns.index.key_hashes
        tags, headers = columns.tag_tuples(), columns.header_tuples()
        lists = columns.values.to_list(), [] if keys is None else keys.to_list()
        half, loop = self.count // 2, self.done.get_loop()
        parts = []
        for start, end in ((0, half), (half, self.count)):
            part = Batch(self.created_ms, loop)
            part.values, part.keys = (each[start:end] for each in lists)
            part.times.frombytes(columns.timestamps[start:end].tobytes())
            if keys is not None and hashes is not None:
                part.hashes.frombytes(hashes[start:end].tobytes())
            part.tags, part.headers = [*tags[start:end]], [*headers[start:end]]
            part.count, part.sequence = end - start, self.sequence + start
            part.size_bytes = self.size_bytes * part.count // self.count
            part.done.add_done_callback(self._part_ended)
            parts.append(part)
        parts[1].size_bytes = self.size_bytes - parts[0].size_bytes
        self.parts, self.encoded = (parts[0], parts[1]), None
        return parts[0], parts[1]

    def _part_ended(self, _: object) -> None:
        if all(part.done.done() for part in self.parts) and not self.done.done():
            self._end()

    def runs(self, start: int, end: int) -> "Iterator[Piece]":
        """The batches that have these records by now, and where in them."""
        if not self.parts:
            yield self, start, end
            return
        before = 0
        for part in self.parts:
            first, last = max(start - before, 0), min(end - before, part.count)
            if first < last:
                yield from part.runs(first, last)
            before += part.count

    def set_extras(self, tags: Sequence[str], headers: Headers) -> None:
        """Tags and headers of the record appended last; columns exist from the first one on."""
        before = len(self.values) - 1
        if tags and self.tags is None:
            self.tags = [()] * before
        if headers and self.headers is None:
            self.headers = [()] * before
        if self.tags is not None:
            self.tags.append(tags)
        if self.headers is not None:
            self.headers.append(headers)

    def succeed(self, metadata: BatchMetadata) -> None:
        """The batch was acknowledged. Its first outcome stays."""
        if self.done.done():
            return
        self.metadata = metadata
        self._end()

    def fail(self, error: IcecoreError) -> None:
        """The batch is given up; an outcome that is unknown is reported as unknown. Its first
        outcome stays."""
        if self.done.done():
            return
        if self.indeterminate and not error.indeterminate:
            error = RequestTimeoutError(f"the outcome is unknown; last answer: {error.message}")
        self.error = error
        self._end()

    def _end(self) -> None:
        self.encoded = None
        self.done.set_result(None)
        waiters, self.waiters = self.waiters, {}
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait(self) -> BatchMetadata:
        """The outcome. A waiter that is cancelled does not cancel the batch."""
        await self.wait_until_done()
        assert not self.parts
        if self.error is not None:
            self.is_observed = True
            raise self.error
        assert self.metadata is not None
        return self.metadata

    async def wait_until_done(self) -> None:
        """Wait until there is an outcome, or one of each part."""
        if not self.done.done():  # a future of its own: a shield takes one more turn of the loop
            waiter = self.done.get_loop().create_future()
            self.waiters[waiter] = None
            try:
                await waiter
            finally:
                self.waiters.pop(waiter, None)


Piece: TypeAlias = tuple[Batch, int, int]
"""Some records of a batch: ``(batch, start, end)``."""


def _joined(rows: "list[pa.RecordBatch]") -> "pa.RecordBatch":
    if len(rows) == 1:
        return rows[0]
    import pyarrow as pa

    return pa.concat_batches(rows)


class SendHandle:
    """The pending acknowledgement of one record: ``metadata = await handle``.

    Awaiting raises the IcecoreError with which the record's batch failed. Dropping the handle is
    fine; ``Producer.flush`` reports failures that nobody looked at.
    """

    __slots__ = ("_batch", "_index", "_routing")

    def __init__(self, batch: Batch | None, index: int) -> None:
        self._batch = batch
        self._index = index
        self._routing: asyncio.Future[None] | None = None

    def __await__(self) -> Generator[Any, None, RecordMetadata]:
        return self._wait().__await__()

    @property
    def is_done(self) -> bool:
        """Return whether awaiting would return or raise at once."""
        return self._batch is not None and self._found()[0].done.done()

    def _found(self) -> tuple[Batch, int]:
        """The batch that has the record by now, and its index there."""
        assert self._batch is not None
        if not self._batch.parts:
            return self._batch, self._index
        batch, index, _ = next(self._batch.runs(self._index, self._index + 1))
        return batch, index

    async def _wait(self) -> RecordMetadata:
        if self._batch is None:
            assert self._routing is not None
            await asyncio.wait({self._routing})
        batch, index = self._found()
        await batch.wait_until_done()
        batch, index = self._found()  # it may have been divided meanwhile
        return self._place(await batch.wait(), index)

    def _place(self, found: BatchMetadata, index: int) -> RecordMetadata:
        return RecordMetadata(
            found.topic,
            found.partition,
            found.base_offset + index,
            found.append_timestamp_ms,
            found.durable_copies,
        )

    def on_delivery(self, function: OnDelivery) -> None:
        """Call this once, on the loop, with where the record landed or with the IcecoreError of its
        batch, which then counts as told. The function must not wait; what it raises is logged."""
        self._awaited().add_done_callback(lambda _: self._tell(function))

    def _awaited(self) -> "asyncio.Future[None]":
        if self._batch is not None:
            return self._batch.done
        assert self._routing is not None
        return self._routing

    def _tell(self, function: OnDelivery) -> None:
        if self._batch is None or not self._batch.done.done():  # its topic was found: it is sent
            self.on_delivery(function)
            return
        batch, index = self._found()
        if batch.error is not None:
            batch.is_observed = True
            call_back(function, batch.error)
        elif batch.metadata is not None:
            call_back(function, self._place(batch.metadata, index))

    def route_later(self, routing: "asyncio.Future[None]") -> None:
        """The batch is known when ``routing`` is done: the topic's partitions are not known yet."""
        self._routing = routing

    def route(self, batch: Batch, index: int) -> None:
        """The record is the batch's record number ``index``."""
        self._batch, self._index = batch, index


class BatchHandle:
    """The pending acknowledgements of many records: ``list_of_batch_metadata = await handle``.

    One entry per run of records that landed together. Awaiting raises the first error, after all
    have their outcome.
    """

    __slots__ = ("_pieces", "_routing")

    def __init__(
        self,
        pieces: list[Piece],
        routing: "asyncio.Future[None] | None" = None,
    ) -> None:
        self._pieces = pieces
        self._routing = routing

    def __await__(self) -> Generator[Any, None, list[BatchMetadata]]:
        return self._wait().__await__()

    async def _wait(self) -> list[BatchMetadata]:
        if self._routing is not None:
            await asyncio.wait({self._routing})
        pending = {batch.done for batch, _, _ in self._pieces if not batch.done.done()}
        if pending:
            await asyncio.wait(pending)
        pieces = [each for batch, start, end in self._pieces for each in batch.runs(start, end)]
        for batch, _, _ in pieces:
            batch.is_observed = True
        return [_part(await batch.wait(), start, end) for batch, start, end in pieces]


def _part(found: BatchMetadata, start: int, end: int) -> BatchMetadata:
    base = found.base_offset
    return replace(found, base_offset=base + start, end_offset=base + end)
