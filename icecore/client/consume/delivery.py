"""Hands out what was fetched: record by record, or as Arrow batches; decoded when its turn comes.

Whoever gives up waiting loses nothing, and any number may wait at a time: what is taken out of the
store is handed out, or kept as the current batch, without an await in between, and nothing is taken
while there is a current batch.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from icecore.client.consume.decoder import Decoder
from icecore.client.consume.fetcher import Fetcher
from icecore.client.consume.position_saver import Hand
from icecore.client.consume.reader import Chunk, Reader
from icecore.codec.record import Record
from icecore.codec.selection import Selection
from icecore.errors import IcecoreError

if TYPE_CHECKING:
    import pyarrow as pa

    from icecore.codec.row_group import RowGroupRows

_ROWS_AT_ONCE: Final = 4096
"""So many rows become records at a time, which takes some milliseconds of the loop."""


class _Rows(NamedTuple):
    """Position of Arrow rows that were handed out."""

    topic: str
    partition: int
    offset: int


@dataclass(slots=True)
class Decoded:
    """A batch whose turn it is: what is left of its records, at least one."""

    chunk: Chunk
    reader: Reader
    generation: int
    records: deque[Record]
    rows: "RowGroupRows | None" = None
    """Those behind ``records``: of a row group only some become records at a time."""

    def refill(self) -> bool:
        """Once there are no records: make some of the rows. Whether there are any now."""
        rows, self.rows = self.rows, None
        if rows is not None and len(rows):
            self.records.extend(
                rows.part(0, _ROWS_AT_ONCE).to_records(self.reader.topic, self.reader.partition)
            )
            self.rows = rows.part(_ROWS_AT_ONCE, len(rows))
        return bool(self.records)

    @property
    def is_void(self) -> bool:
        """Somebody sought another position meanwhile."""
        return self.reader.generation != self.generation


class Delivery:
    """Hands out the batches of one consumer.

    Args:
        fetcher: Fetches ahead.
        decoder: For its batches.
        selection: Which records are wanted.
        check: Raises why nothing may be handed out any more, if so.
        on_failed: Deals with a topic that can't be read on, or raises the error.
    """

    def __init__(
        self,
        fetcher: Fetcher,
        decoder: Decoder,
        selection: Selection,
        check: Callable[[], None],
        on_failed: Callable[[str, IcecoreError], Awaitable[None]],
    ) -> None:
        self._fetcher = fetcher
        self._decoder = decoder
        self._selection = selection
        self._check = check
        self._on_failed = on_failed
        self.hand = Hand()
        self.current: Decoded | None = None

    def delivered(self) -> Iterator[tuple[Reader, int]]:
        """Each reader, and from which offset on its records are still to be handed out."""
        current = None if self.current is None else self.current.reader
        for reader in self._fetcher.readers.values():
            yield reader, reader.delivered if reader is current else reader.drained_through

    def pop(self, current: Decoded) -> Record:
        """The next record of the batch whose turn it is."""
        record = current.records.popleft()
        if not current.records and not current.refill():
            self.current = None
        current.reader.delivered = record.offset + 1
        self.hand.held = record
        return record

    async def load(self) -> Decoded | None:
        """The batch whose turn it is, also in ``current``; None at the end."""
        while True:
            if (current := self._left()) is not None:
                return current
            chunk = self._take_chunk()
            if chunk is None:
                if not await self._may_go_on():
                    return None
                continue
            decoded = self._decoded_rows(chunk) if chunk.is_row_group else self._decoded(chunk)
            if decoded is not None:
                self.current = decoded

    def _decoded(self, chunk: Chunk) -> Decoded | None:
        """A batch, if any record of it is wanted."""
        columns, reader = self._decoder.decode(chunk), chunk.reader
        if columns is None:
            return None
        records = columns.to_records(
            chunk.from_offset, topic=reader.topic, partition=reader.partition
        )
        if not self._selection.is_empty:  # a node may pass on batches as they are
            mask = self._selection.matches(columns)[len(columns) - len(records) :]
            records = [each for each, is_wanted in zip(records, mask, strict=True) if is_wanted]
        if reader.end_offset is not None and chunk.header.end_offset > reader.end_offset:
            records = [record for record in records if record.offset < reader.end_offset]
        if records:
            return Decoded(chunk, reader, chunk.generation, deque(records))
        reader.pass_by(chunk.header.end_offset)
        return None

    def _decoded_rows(self, chunk: Chunk) -> Decoded | None:
        """The same of a row group: nobody who has a filter is given one."""
        rows, reader = self._decoder.decode_rows(chunk), chunk.reader
        if rows is None:
            return None
        rows = rows.within(chunk.from_offset, reader.end_offset)
        decoded = Decoded(chunk, reader, chunk.generation, deque(), rows)
        if decoded.refill():
            return decoded
        reader.pass_by(chunk.header.end_offset)
        return None

    def take(self, current: Decoded, count: int) -> list[Record]:
        """The next records of the batch whose turn it is, at most so many."""
        if count < len(current.records):
            records = [current.records.popleft() for _ in range(count)]
        else:
            records = list(current.records)
            current.records.clear()
            if not current.refill():
                self.current = None
        current.reader.delivered = records[-1].offset + 1
        self.hand.held = records[0]
        return records

    async def next_rows(self, names: tuple[str, ...]) -> "pa.RecordBatch | None":
        """The next Arrow batch; None at the end."""
        while True:
            current, self.current = self._left(), None
            if current is not None:
                chunk, first_offset = current.chunk, current.records[0].offset
            elif (found := self._take_chunk()) is not None:
                chunk, first_offset = found, found.from_offset
            elif await self._may_go_on():
                continue
            else:
                return None
            rows, end_offset = self._rows(chunk, first_offset, names)
            reader = chunk.reader
            reader.pass_by(end_offset)
            if rows is not None:
                self.hand.held = _Rows(reader.topic, reader.partition, first_offset)
                return rows

    def _rows(
        self, chunk: Chunk, first_offset: int, names: tuple[str, ...]
    ) -> "tuple[pa.RecordBatch | None, int]":
        """Return the rows of a batch and of small ones behind it, and where the last of them
        ends."""
        import pyarrow as pa

        from icecore.codec.arrow import record_batch

        if chunk.is_row_group:
            return self._rows_of_group(chunk, first_offset, names), chunk.header.end_offset
        reader, run = chunk.reader, [chunk]
        if self._selection.is_empty:  # else it looks at hashes of keys
            run = self._fetcher.run(chunk)
        columns, count = self._decoder.decode_run(run)
        self._fetcher.take_run(run[1:count])
        end_offset = run[count - 1].header.end_offset
        if columns is None:
            return None, end_offset
        start, end = 0, len(columns)
        if first_offset > chunk.header.base_offset:
            start = int(columns.offsets.searchsorted(first_offset))
        if reader.end_offset is not None:
            end = int(columns.offsets.searchsorted(reader.end_offset))
        if end <= start:
            return None, end_offset
        rows = record_batch(columns, reader.topic, reader.partition, names, chunk.header.schema_id)
        rows = rows if end - start == len(columns) else rows.slice(start, end - start)
        if not self._selection.is_empty:
            rows = rows.filter(pa.array(self._selection.matches(columns)[start:end]))
        return (rows if rows.num_rows else None), end_offset

    def _rows_of_group(
        self, chunk: Chunk, first_offset: int, names: tuple[str, ...]
    ) -> "pa.RecordBatch | None":
        rows, reader = self._decoder.decode_rows(chunk, names), chunk.reader
        if rows is None:
            return None
        rows = rows.within(first_offset, reader.end_offset)
        return rows.record_batch(reader.topic, reader.partition, names) if len(rows) else None

    def _left(self) -> Decoded | None:
        """The batch whose turn it is, unless somebody sought another position."""
        if self.current is not None and self.current.is_void:
            self.current = None
        return self.current

    def _take_chunk(self) -> Chunk | None:
        """The next fetched batch, if there is one and the loop need not have a turn before.

        Raises:
            IcecoreError: Nothing may be handed out.
        """
        self.hand.held = None  # who asks for more is done with what there was
        self._check()
        self._decoder.check()
        return None if self._fetcher.is_turn_due else self._fetcher.take()

    async def _may_go_on(self) -> bool:
        """Wait until there may be a batch, or the current one of somebody else; False at the
        end."""
        fetcher = self._fetcher
        if fetcher.is_turn_due:
            await fetcher.give_turn()
        elif fetcher.is_exhausted:
            return False
        elif (failed := fetcher.failed) is not None:
            await self._on_failed(*failed)
        else:
            fetcher.news.clear()
            await fetcher.news.wait()
        return True
