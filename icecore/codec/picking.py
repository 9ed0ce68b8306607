"""One record out of a batch, without those beside it.

Whoever looks something up wants a few records of thousands. ``BatchPicks`` finds where the columns
of a batch begin and looks at nothing else of them; each record is bounds-checked when it is taken.
``ColumnPicks`` is for who has decoded the batch already. Both give what ``BatchColumns.to_records``
gives, which is for whoever wants all.
"""

import struct
from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final, Protocol

import numpy as np

from icecore.codec.batch import (
    HEADER_LENGTH,
    BatchHeader,
    Buffer,
    LeaderFlag,
    ProducerFlag,
    pad8,
)
from icecore.codec.columns import BatchColumns, BinaryColumn, Int64s, ListColumn, Record
from icecore.codec.decoding import payload_of
from icecore.codec.record_columns import ByteStrings, RecordColumns, columns_of
from icecore.errors import CorruptBatchError

_U32: Final = struct.Struct("<I")
_TWO_U32: Final = struct.Struct("<II")
_TWO_I32: Final = struct.Struct("<ii")
_I64: Final = struct.Struct("<q")
_U64: Final = struct.Struct("<Q")
MANY: Final = 8
"""From so many records on, arrays are faster than one after the other."""
_FEW_TAGS: Final = 64
_FEW_TAG_BYTES: Final = 1 << 10
"""Tags that nobody uses go along, and are not counted as a part of any record."""
# The methods of arrays reach these by way of Python code.
_least, _greatest = np.minimum.reduce, np.maximum.reduce


class Picks(Protocol):
    """Records of one batch, by their place in it."""

    def __len__(self) -> int: ...

    def offset_at(self, at: int) -> int:
        """Absolute."""
        ...

    def records_at(self, places: Sequence[int]) -> list[Record]:
        """Raises CorruptBatchError."""
        ...

    def columns_at(self, places: Sequence[int]) -> RecordColumns:
        """The same records, at least one, as columns. Raises CorruptBatchError."""
        ...

    def header_hashes_at(self, at: int) -> list[int]:
        """Those of its indexed headers."""
        ...


class ColumnPicks:
    """See ``Picks``: out of a decoded batch."""

    def __init__(self, columns: BatchColumns) -> None:
        self._columns = columns

    def __len__(self) -> int:
        return len(self._columns)

    def offset_at(self, at: int) -> int:
        """See ``Picks.offset_at``."""
        deltas = self._columns.index.offset_deltas
        return self._columns.base_offset + (at if deltas is None else int(deltas[at]))

    def records_at(self, places: Sequence[int]) -> list[Record]:
        """See ``Picks.records_at``."""
        return [self._record(at) for at in places]

    def columns_at(self, places: Sequence[int]) -> RecordColumns:
        """See ``Picks.columns_at``."""
        return columns_of(self.records_at(places))

    def _record(self, at: int) -> Record:
        columns = self._columns
        return Record(
            value=_value(columns.values, at),
            key=None if columns.keys is None else _value(columns.keys, at),
            timestamp_ms=int(columns.timestamps[at]),
            tags=_tags(columns.tags, at),
            headers=_headers(columns.headers, at),
            offset=self.offset_at(at),
            append_timestamp_ms=columns.append_timestamp_ms,
        )

    def header_hashes_at(self, at: int) -> list[int]:
        """See ``Picks.header_hashes_at``."""
        column = self._columns.index.header_hashes
        if column is None:
            return []
        return list(column.items[column.lists[at] : column.lists[at + 1]].tolist())


def _value(column: BinaryColumn, at: int) -> bytes | None:
    if not column.bits[at >> 3] >> (at & 7) & 1:
        return None
    return bytes(column.data[column.offsets[at] : column.offsets[at + 1]])


def _text(column: BinaryColumn, at: int) -> str:
    return str(column.data[column.offsets[at] : column.offsets[at + 1]], "utf-8")


def _tags(tags: ListColumn | None, at: int) -> tuple[str, ...]:
    if tags is None or tags.values is None:
        return ()
    names = tags.values
    ids = tags.items[tags.lists[at] : tags.lists[at + 1]].tolist()
    return tuple([_text(names, each) for each in ids])


def _headers(headers: ListColumn | None, at: int) -> tuple[tuple[str, bytes | None], ...]:
    if headers is None or headers.values is None:
        return ()
    names, values = headers.items, headers.values
    places = range(int(headers.lists[at]), int(headers.lists[at + 1]))
    return tuple([(_text(names, each), _value(values, each)) for each in places])


# --- without decoding -----------------------------------------------------------------------------


class _Column:
    """Byte strings or lists: where their offsets and items begin. ``bits_at`` is -1 where none is
    null."""

    __slots__ = ("bits_at", "count", "data", "ends_at", "items_at", "length", "where")

    def __init__(self, section: "_Section", count: int, item_bytes: int, *, has_bits: bool) -> None:
        self.data, self.count, self.where = section.data, count, section.where
        self.bits_at = section.take((count + 7) // 8) if has_bits else -1
        self.ends_at = section.take(4 * (count + 1))
        (self.length,) = _U32.unpack_from(section.data, self.ends_at + 4 * count)
        self.items_at = section.take(item_bytes * self.length)

    def bounds(self, at: int) -> tuple[int, int]:
        """Return the first item of one entry and the end of its items."""
        if not 0 <= at < self.count:
            raise CorruptBatchError(f"{self.where}: entry {at} of {self.count}")
        low, high = _TWO_I32.unpack_from(self.data, self.ends_at + 4 * at)
        if not 0 <= low <= high <= self.length:
            raise CorruptBatchError(f"{self.where}: entry {at} has items {low} to {high}")
        return low, high

    def value(self, at: int) -> bytes | None:
        if self.bits_at >= 0 and not self.data[self.bits_at + (at >> 3)] >> (at & 7) & 1:
            return None
        low, high = self.bounds(at)
        return bytes(self.data[self.items_at + low : self.items_at + high])

    def text(self, at: int) -> str:
        low, high = self.bounds(at)
        try:
            return str(self.data[self.items_at + low : self.items_at + high], "utf-8")
        except UnicodeDecodeError as error:
            raise CorruptBatchError(f"{self.where}: entry {at} is not UTF-8") from error

    def few_texts(self) -> Sequence[str]:
        """All entries. Batches of one topic mostly have the same few."""
        ends = bytes(self.data[self.ends_at : self.ends_at + 4 * (self.count + 1)])
        data = bytes(self.data[self.items_at : self.items_at + self.length])
        try:
            return _texts(ends, data)
        except UnicodeDecodeError as error:
            raise CorruptBatchError(f"{self.where}: an entry is not UTF-8") from error

    def numbers(self, at: int, kind: struct.Struct) -> list[int]:
        """The items of an entry, as numbers of this kind."""
        low, high = self.bounds(at)
        start = self.items_at + kind.size * low
        if high - low == 1:  # as of most records
            return list(kind.unpack_from(self.data, start))
        stop = self.items_at + kind.size * high
        return [number for (number,) in kind.iter_unpack(self.data[start:stop])]

    def all_bounds(self, places: Int64s) -> tuple[Int64s, Int64s]:
        """As ``bounds`` of each, which are within the batch: where they begin, and where they
        end."""
        ends = np.frombuffer(self.data, "<u4", self.count + 1, self.ends_at)
        lows, highs = ends[places].astype(np.int64), ends[places + 1].astype(np.int64)
        if _greatest(highs) > self.length or _least(highs - lows) < 0:
            raise CorruptBatchError(f"{self.where}: an entry has items beyond {self.length}")
        return lows, highs

    def all_values(self, places: Int64s) -> ByteStrings:
        """As ``value`` of each."""
        lows, highs = self.all_bounds(places)
        lengths = highs - lows
        if self.bits_at >= 0:
            bits = np.frombuffer(self.data, np.uint8, (self.count + 7) // 8, self.bits_at)
            is_valid = bits[places >> 3] >> (places & 7) & 1
            if not _least(is_valid):
                highs = np.where(is_valid, highs, lows)
                return ByteStrings(np.where(is_valid, lengths, -1), self._gather(lows, highs))
        longest = int(lengths[0])
        if longest and (lengths == longest).all():
            return ByteStrings(lengths, self._gather_rows(lows, longest))
        return ByteStrings(lengths, self._gather(lows, highs))

    def _gather(self, lows: Int64s, highs: Int64s) -> bytes:
        """Items of one byte, from each begin to its end."""
        data = self.data[self.items_at : self.items_at + self.length]
        spans = zip(lows.tolist(), highs.tolist(), strict=True)
        return b"".join([data[low:high] for low, high in spans])

    def _gather_rows(self, lows: Int64s, length: int) -> bytes:
        """The same of equal lengths: rows of a view, each a byte behind the one before."""
        shape = self.length - length + 1, length
        return np.ndarray(shape, np.uint8, self.data, self.items_at, (1, 1))[lows].tobytes()

    def all_numbers(self, places: Int64s, kind: str) -> tuple[Int64s, Any]:
        """Return how many items each has, and all of them; ``kind`` is that of numpy."""
        items = np.frombuffer(self.data, kind, self.length, self.items_at)
        lows, highs = self.all_bounds(places)
        counts = highs - lows
        firsts = lows - (np.cumsum(counts) - counts)
        return counts, items[np.repeat(firsts, counts) + np.arange(int(counts.sum()))]


@lru_cache(256)
def _texts(ends: bytes, data: bytes) -> tuple[str, ...]:
    bounds = struct.unpack(f"<{len(ends) // 4}I", ends)
    if any(not low <= high <= len(data) for low, high in pairwise(bounds)):
        raise CorruptBatchError(f"an entry has items beyond {len(data)}")
    return tuple(str(data[low:high], "utf-8") for low, high in pairwise(bounds))


class _Section:
    """Takes one column after the other; no step leaves the section."""

    __slots__ = ("data", "end", "position", "where")

    def __init__(self, data: memoryview, position: int, end: int, where: str) -> None:
        self.data, self.position, self.end, self.where = data, position, end, where

    def take(self, length: int) -> int:
        start = self.position
        self.position = position = start + ((length + 7) & ~7)
        if position > self.end:
            raise CorruptBatchError(f"{self.where}: {length} bytes, {self.end - start} are left")
        return start

    def finish(self) -> None:
        if self.position != self.end:
            raise CorruptBatchError(f"{self.where}: {self.end - self.position} bytes are left over")


def key_hashes_of(buffer: Buffer, position: int, header: BatchHeader) -> tuple[int, ...]:
    """Read the key hashes of a batch with keys from their place in the layout; 0 for a null key.

    Raises:
        CorruptBatchError: The index section is too short.
    """
    count = header.record_count
    per_delta = 4 if header.leader_flags & LeaderFlag.COMPACTED else 0
    before = pad8(per_delta * count) + 8 * count + pad8((count + 7) // 8)
    if before + 8 * count > header.index_length:
        raise CorruptBatchError("the index section has no room for key hashes", position=position)
    return struct.unpack_from(f"<{count}Q", buffer, position + HEADER_LENGTH + before)


class BatchPicks:
    """See ``Picks``: out of a batch as it is stored, whose CRCs were checked.

    The layout is in ``icecore/codec/decoding.py``. What that module refuses, this one refuses, or
    it gives bytes of the same batch: what leaders append they have decoded before.

    Args:
        buffer: Holds the batch.
        position: Of its header, in bytes.
        header: Checked.

    Raises:
        CorruptBatchError: A column leaves its section.
        BatchTooLargeError: The payload exceeds what any reader takes.
    """

    def __init__(self, buffer: Buffer, position: int, header: BatchHeader) -> None:
        self._header = header
        self._made: dict[int, Record] = {}
        """Records made so far, by place: a filter may make a record that is then also returned."""
        self._gathered: tuple[Sequence[int], RecordColumns | None] = ((), None)
        self._tag_texts: dict[int, str] = {}
        data = memoryview(buffer)
        if header.batch_length > len(data) - position:
            raise CorruptBatchError("the batch is cut short", position=position)
        self._data = data
        self._find_index(position + HEADER_LENGTH)
        self._find_payload(payload_of(buffer, position, header))

    def _find_index(self, start: int) -> None:
        header, data = self._header, self._data
        count, flags = header.record_count, header.producer_flags
        section = _Section(data, start, start + header.index_length, "index section")
        is_compacted = header.leader_flags & LeaderFlag.COMPACTED
        self._deltas_at = section.take(4 * count) if is_compacted else -1
        self._times_at = section.take(8 * count)
        if not flags & ProducerFlag.NO_KEYS:
            section.take((count + 7) // 8)
            section.take(8 * count)
        self._tag_names = self._tags = self._header_hashes = None
        if not flags & ProducerFlag.NO_TAGS:
            tag_count, _ = _TWO_U32.unpack_from(data, section.take(8))
            self._tag_names = _Column(section, tag_count, 1, has_bits=False)
            self._tags = _Column(section, count, 4, has_bits=False)
        if not flags & ProducerFlag.NO_HEADER_HASHES:
            self._header_hashes = _Column(section, count, 8, has_bits=False)
        section.finish()

    def _find_payload(self, payload: memoryview) -> None:
        count, flags = self._header.record_count, self._header.producer_flags
        section = _Section(payload, 0, len(payload), "payload")
        has_keys = not flags & ProducerFlag.NO_KEYS
        self._keys = _Column(section, count, 1, has_bits=True) if has_keys else None
        self._values = _Column(section, count, 1, has_bits=True)
        self._headers: _Column | None = None
        if not flags & ProducerFlag.NO_HEADERS:
            self._headers = lists = _Column(section, count, 0, has_bits=False)
            self._header_names = _Column(section, lists.length, 1, has_bits=False)
            self._header_values = _Column(section, lists.length, 1, has_bits=True)
        section.finish()

    def __len__(self) -> int:
        return self._header.record_count

    def places_of(self, offsets: Any) -> list[int]:
        """Return the places of ascending absolute offsets; an offset that compaction dropped has
        none."""
        wanted: list[int] = (offsets - self._header.base_offset).tolist()
        if self._deltas_at < 0:
            count = len(self)
            if wanted and wanted[0] >= 0 and wanted[-1] < count:
                return wanted
            return [at for at in wanted if 0 <= at < count]
        deltas = np.frombuffer(self._data, "<i4", len(self), self._deltas_at).tolist()
        places = [(bisect_left(deltas, delta), delta) for delta in wanted]
        return [at for at, delta in places if at < len(deltas) and deltas[at] == delta]

    def offset_at(self, at: int) -> int:
        """See ``Picks.offset_at``."""
        if self._deltas_at >= 0:
            (delta,) = struct.unpack_from("<i", self._data, self._deltas_at + 4 * at)
            return self._header.base_offset + int(delta)
        return self._header.base_offset + at

    def records_at(self, places: Sequence[int]) -> list[Record]:
        """See ``Picks.records_at``. Each is made once."""
        made = self._made
        missing = [at for at in places if at not in made]
        if len(missing) >= MANY:
            made.update(zip(missing, self.columns_at(missing).to_records(), strict=True))
        else:
            made.update((at, self._record(at)) for at in missing)
        return [made[at] for at in places]

    def columns_at(self, places: Sequence[int]) -> RecordColumns:
        """See ``Picks.columns_at``. Those of the same places are made once."""
        asked, found = self._gathered
        if found is None or asked != places:
            found = self._columns_at(np.array(places))
            self._gathered = places, found
        return found

    def _columns_at(self, places: Int64s) -> RecordColumns:
        if _least(places) < 0 or _greatest(places) >= len(self):
            raise CorruptBatchError(f"a place beyond the {len(self)} records of the batch")
        times = np.frombuffer(self._data, "<i8", len(self), self._times_at)
        counts = ids = None
        names: Sequence[str] = ()
        if self._tags is not None:
            counts, items = self._tags.all_numbers(places, "<u4")
            names, ids = self._numbered_tags(items)
        return RecordColumns(
            self._offsets(places),
            times[places],
            np.full(len(places), self._header.append_timestamp_ms),
            self._values.all_values(places),
            None if self._keys is None else self._keys.all_values(places),
            counts,
            ids,
            names,
            None if self._headers is None else [self._headers_at(at) for at in places.tolist()],
        )

    def _record(self, at: int) -> Record:
        (timestamp_ms,) = _I64.unpack_from(self._data, self._times_at + 8 * at)
        tags: tuple[str, ...] = ()
        if self._tags is not None:
            tags = tuple([self._tag(each) for each in self._tags.numbers(at, _U32)])
        return Record(
            self._values.value(at),
            None if self._keys is None else self._keys.value(at),
            timestamp_ms,
            tags,
            self._headers_at(at),
            self.offset_at(at),
            self._header.append_timestamp_ms,
        )

    def _numbered_tags(self, items: Any) -> tuple[Sequence[str], Int64s]:
        """The texts of these tags, each once, and for each of them its place among the texts."""
        assert self._tag_names is not None
        count = self._tag_names.count
        if len(items) and _greatest(items) >= count:
            raise CorruptBatchError(f"a tag beyond the {count} of the batch")
        if count <= _FEW_TAGS and self._tag_names.length <= _FEW_TAG_BYTES:
            # Those that are not used do no harm.
            return self._tag_names.few_texts(), items.astype(np.int64)
        is_used = np.zeros(count, np.bool_)
        is_used[items] = True
        used = is_used.nonzero()[0]
        numbers = np.empty(count, np.int64)
        numbers[used] = np.arange(len(used))
        return [self._tag(each) for each in used.tolist()], numbers[items]

    def _offsets(self, places: Int64s) -> Int64s:
        if self._deltas_at < 0:
            return places + self._header.base_offset
        deltas = np.frombuffer(self._data, "<i4", len(self), self._deltas_at)
        return deltas[places].astype(np.int64) + self._header.base_offset

    def _tag(self, number: int) -> str:
        found = self._tag_texts.get(number)
        if found is None:
            assert self._tag_names is not None
            found = self._tag_texts[number] = self._tag_names.text(number)
        return found

    def _headers_at(self, at: int) -> tuple[tuple[str, bytes | None], ...]:
        if self._headers is None:
            return ()
        names, values = self._header_names, self._header_values
        places = range(*self._headers.bounds(at))
        return tuple([(names.text(each), values.value(each)) for each in places])

    def header_hashes_at(self, at: int) -> list[int]:
        """See ``Picks.header_hashes_at``."""
        return [] if self._header_hashes is None else self._header_hashes.numbers(at, _U64)
