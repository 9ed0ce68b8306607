"""Neighbouring small batches decoded together: each check of ``decoding.py`` once for all of them.

A batch of a few dozen records has a dozen arrays of a few hundred bytes, and to make and compare
one costs numpy as much as a thousand numbers do. So the same column of all batches of a run is
gathered into one array and checked there. Only what most batches look like is taken: no tags, no
headers, no nulls. Whatever else there is, and whatever is wrong, is for ``decoding.decode`` to look
at, batch by batch: it knows what to say.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from icecore.codec.batch import (
    HEADER_LENGTH,
    KNOWN_PRODUCER_FLAGS,
    BatchHeader,
    Codec,
    ProducerFlag,
)
from icecore.codec.columns import BatchColumns, BinaryColumn, IndexColumns, Int64s, all_valid
from icecore.codec.decoding import payload_of
from icecore.errors import BatchTooLargeError, CorruptBatchError

PLAIN: Final = ProducerFlag.NO_TAGS | ProducerFlag.NO_HEADERS | ProducerFlag.NO_HEADER_HASHES
"""Flags of batches that have neither tags nor headers."""
_ALL_ONES: Final = np.uint64((1 << 64) - 1)


class _DiffersError(Exception):
    """Some batch is wrong, or not like most."""


class _Rows:
    """The rows of a run, spread over its batches."""

    def __init__(self, counts: Int64s) -> None:
        self.counts = counts
        self.firsts = _starts(counts)
        """Row of the run with which each batch begins."""
        self.total = int(counts.sum())
        self._within = np.arange(self.total) - np.repeat(self.firsts, counts)

    def places(self, starts: Int64s) -> Int64s:
        """Return the place of each row's item; the items of a batch follow each other from its
        start."""
        return self.spread(starts) + self._within

    def spread(self, by_batch: Int64s) -> Int64s:
        """Repeat the value of each batch for each of its rows."""
        return np.repeat(by_batch, self.counts)


class _Sections:
    """Cursors over one section of each batch, as ``decoding.py`` has one over that of a batch: no
    step leaves a section, and padding must be zero.

    Args:
        data: Holds them all, at multiples of 8 bytes. Its memory may begin anywhere: numpy reads
            words across such bounds, and to copy a large run takes longer.
        starts, ends: Of each, in bytes.
        rows: Of the run.
    """

    def __init__(self, data: memoryview, starts: Int64s, ends: Int64s, rows: _Rows) -> None:
        _expect(not ((starts | ends) & 7).any() and int(ends.max()) <= len(data))
        self._data, self._at, self._ends, self._rows = data, starts, ends, rows
        self._words = np.frombuffer(data, "<u8", len(data) >> 3)
        self._halves = np.frombuffer(data, "<i4", len(data) >> 2)

    def _take(self, lengths: Int64s) -> Int64s:
        """Return where these bytes of each section begin; move the cursors behind them."""
        starts = self._at
        self._at = (starts + lengths + 7) & ~7
        _expect(not (self._at > self._ends).any())
        return starts

    def _take_padded(self, lengths: Int64s) -> Int64s:
        """The same where padding follows that nothing else looks at."""
        starts = self._take(lengths)
        stops = starts + lengths
        (cut,) = (stops & 7).nonzero()
        if len(cut):
            last = stops[cut]
            behind = self._words[last >> 3] >> ((last & 7) << 3).astype("<u8")
            _expect(not behind.any())
        return starts

    def longs(self) -> Int64s:
        """An i64 of each row."""
        starts = self._take(self._rows.counts << 3)
        return self._words[self._rows.places(starts >> 3)].view("<i8")

    def skip_longs(self) -> None:
        """Pass over them."""
        self._take(self._rows.counts << 3)

    def all_valid(self) -> None:
        """Validity bits, whole words of them with their padding: there must be no null."""
        counts = self._rows.counts
        words = self._take((counts + 7) >> 3) >> 3
        full, rest = counts >> 6, counts & 63
        (cut,) = rest.nonzero()
        wanted = (np.uint64(1) << rest[cut].astype("<u8")) - np.uint64(1)
        _expect((self._words[words[cut] + full[cut]] == wanted).all())
        if full.any():
            _expect((self._words[_Rows(full).places(words)] == _ALL_ONES).all())

    def binary(self) -> BinaryColumn:
        """Byte strings of all rows, none of them null; their bytes are copied."""
        self.all_valid()
        rows = self._rows
        firsts = self._take_padded((rows.counts + 1) << 2) >> 2
        places = rows.places(firsts)
        begins, ends = self._halves[places], self._halves[places + 1]
        _expect(not (self._halves[firsts].any() or (ends < begins).any()))
        lengths = self._halves[firsts + rows.counts].astype("<i8")
        starts = self._take_padded(lengths)
        offsets = np.zeros(rows.total + 1, "<i4")
        offsets[1:] = ends + rows.spread(_starts(lengths))
        parts = zip(starts.tolist(), (starts + lengths).tolist(), strict=True)
        joined = b"".join([self._data[start:end] for start, end in parts])
        return BinaryColumn(all_valid(rows.total), offsets, memoryview(joined))

    def finish(self) -> None:
        """Nothing may be left."""
        _expect(np.array_equal(self._at, self._ends))


def decode_together(
    data: memoryview, places: Sequence[tuple[int, BatchHeader]]
) -> BatchColumns | None:
    """The columns of neighbouring batches as those of one, copied; None when some batch is wrong,
    or holds tags, headers or a null.

    There are no hashes of keys: who looks at these looks at each batch.

    Args:
        data: Holds the batches.
        places: Position and checked header of each; they have the same producer flags.
    """
    try:
        return _decode(data, places)
    except (_DiffersError, CorruptBatchError, BatchTooLargeError):
        return None


def _decode(data: memoryview, places: Sequence[tuple[int, BatchHeader]]) -> BatchColumns:
    positions, headers = zip(*places, strict=True)
    flags = headers[0].producer_flags
    fields: Any = BatchHeader._make(zip(*headers, strict=True))  # of each field, all batches'
    _expect(not flags & ~KNOWN_PRODUCER_FLAGS and flags & PLAIN == PLAIN)
    _expect(not any(fields.leader_flags) and all(fields.record_count))
    begins = _longs(positions)
    _expect(int((begins + _longs(fields.batch_length)).max()) <= len(data))
    _expect(sum(fields.record_count) << 3 <= len(data))
    rows = _Rows(_longs(fields.record_count))
    starts = begins + HEADER_LENGTH
    ends = starts + _longs(fields.index_length)
    index = _Sections(data, starts, ends, rows)
    timestamps = index.longs()
    _expect(np.array_equal(np.minimum.reduceat(timestamps, rows.firsts), fields.min_timestamp_ms))
    _expect(np.array_equal(np.maximum.reduceat(timestamps, rows.firsts), fields.max_timestamp_ms))
    has_keys = not flags & ProducerFlag.NO_KEYS
    if has_keys:
        index.all_valid()
        index.skip_longs()
    index.finish()
    payload = _payloads(data, ends, places, rows)
    keys = payload.binary() if has_keys else None
    values = payload.binary()
    payload.finish()
    return BatchColumns(
        headers[0].base_offset,
        headers[-1].append_timestamp_ms,
        IndexColumns(timestamps),
        keys,
        values,
        None,
        rows.spread(_longs(fields.append_timestamp_ms)),
    )


def _payloads(
    data: memoryview, starts: Int64s, places: Sequence[tuple[int, BatchHeader]], rows: _Rows
) -> _Sections:
    """Return the payloads where they lie, or one behind the other once they are inflated."""
    if all(header.codec is Codec.NONE for _, header in places):
        lengths = _longs([header.payload_length for _, header in places])
        return _Sections(data, starts, starts + lengths, rows)
    payloads = [payload_of(data, position, header) for position, header in places]
    lengths = _longs([len(each) for each in payloads])
    inflated = memoryview(b"".join(payloads))
    return _Sections(inflated, _starts(lengths), np.cumsum(lengths), rows)


def _starts(lengths: Int64s) -> Int64s:
    """Return where each item begins when they lie one behind the other."""
    starts: Int64s = np.cumsum(lengths) - lengths
    return starts


def _longs(numbers: Any) -> Int64s:
    return np.array(numbers, "<i8")


def _expect(holds: Any) -> None:
    if not holds:
        raise _DiffersError
