"""Many records in columns, on their way into batches: split by key hash, cut by size.

Python lists and Arrow record batches go through the same few steps; only hashing touches each
record, everything else is numpy or Arrow.
"""

from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from icecore.client.checks import LABEL_BYTES, HeadersLike, record_labels
from icecore.client.produce.batches import RECORD_OVERHEAD_BYTES, Batch
from icecore.client.produce.given_columns import (
    ArrowLike,
    ByteColumn,
    TimeColumn,
    arrow_rows,
    byte_column,
    label_column,
    time_column,
)
from icecore.client.produce.limits import RecordParts, row_of, why_row_too_large
from icecore.codec.batch import BatchLimits
from icecore.codec.columns import hash_keys
from icecore.errors import InvalidRequestError, RecordTooLargeError

if TYPE_CHECKING:
    import pyarrow as pa

_Int64s: TypeAlias = npt.NDArray[np.int64]
_UInt64s: TypeAlias = npt.NDArray[np.uint64]

_TAKEN_BYTES = 1 << 20
"""Records are put into the order of their partitions by so much at a time: that memory is there
from the time before, while memory for all of them would come from the system each time."""


class Columns:
    """Records as columns of one length; ``rows`` holds them all when they come from Arrow."""

    def __init__(
        self,
        lengths: _Int64s,
        hashes: _UInt64s | None,
        lists: "dict[str, Sequence[Any]]",
        times: _Int64s | None,
        rows: "pa.RecordBatch | None",
    ) -> None:
        self._lengths = lengths
        self.hashes = hashes
        self._lists = lists
        self._times = times
        self._rows = rows

    def __len__(self) -> int:
        return len(self._lengths)

    @property
    def size_bytes(self) -> int:
        """As the producer counts its buffer."""
        return int(np.add.reduce(self._lengths))

    def why_too_large(self, limits: BatchLimits) -> RecordTooLargeError | None:
        """Return why the topic takes them not, by the first row that is too large; None when it
        does.
        """
        return why_row_too_large(limits, self._lengths, self._record)

    def _record(self, row: int) -> RecordParts:
        if self._rows is not None:
            return row_of(self._rows, row)
        none: Sequence[Any] = (None,) * len(self)
        names, lists = ("values", "keys", "tags", "headers"), self._lists
        value, key, tags, headers = (lists.get(name, none)[row] for name in names)
        return value, key, tags or (), headers or ()

    def copy(self) -> Self:
        """The same, whatever happens to the caller's lists."""
        lists: dict[str, Sequence[Any]] = {n: [*column] for n, column in self._lists.items()}
        return type(self)(self._lengths, self.hashes, lists, self._times, self._rows)

    def by_partition(self, count: int, keyless: int) -> Iterator[tuple[int, Self]]:
        """``(partition, columns)`` with the records whose keys belong there, in order.

        Args:
            count: Of partitions.
            keyless: The partition for records without a key (whose hash is 0).
        """
        assert self.hashes is not None
        partitions = ((self.hashes >> np.uint64(32)) % np.uint64(count)).astype(np.int64)
        partitions[self.hashes == 0] = keyless
        order = np.argsort(partitions, kind="stable")
        counts = np.bincount(partitions)
        found = np.flatnonzero(counts)
        if len(found) == 1:
            yield int(found[0]), self
            return
        runs = [found]
        if self.size_bytes > _TAKEN_BYTES:
            size_bytes = np.bincount(partitions, self._lengths)[found]
            runs = np.split(found, np.flatnonzero(np.diff(size_bytes.cumsum() // _TAKEN_BYTES)) + 1)
        end = 0
        for run in runs:
            lengths, before = counts[run].tolist(), end
            taken = self._take(order[before : before + sum(lengths)])
            for partition, length in zip(run.tolist(), lengths, strict=True):
                start, end = end, end + length
                yield partition, taken._slice(start - before, end - before)

    def pieces(self, batch_bytes: int) -> Iterator[Self]:
        """Consecutive parts of about ``batch_bytes``, at least one record each."""
        if self.size_bytes <= batch_bytes:
            yield self
            return
        ends = np.cumsum(self._lengths)
        start, before = 0, 0
        while start < len(self):
            end = int(np.searchsorted(ends, before + batch_bytes, side="right"))
            end = max(start + 1, end)
            yield self._slice(start, end)
            start, before = end, int(ends[end - 1])

    def fits(self, batch: Batch) -> bool:
        """Return whether a batch that holds records already has the same columns."""
        if (self.hashes is None) == bool(batch.hashes):
            return False
        if self._rows is not None:
            return bool(batch.rows) and batch.rows[0].schema.equals(self._rows.schema)
        has_tags, has_headers = batch.tags is not None, batch.headers is not None
        lists = self._lists
        return not batch.rows and ("tags" in lists, "headers" in lists) == (has_tags, has_headers)

    def append_to(self, batch: Batch) -> tuple[int, int]:
        """Add the records to an open batch that is empty or fits; where they are in it."""
        start = batch.count if batch.rows else len(batch.values)
        batch.size_bytes += self.size_bytes
        if self.hashes is not None:
            batch.hashes.frombytes(self.hashes.tobytes())
        if self._rows is not None:
            batch.rows.append(self._rows)
            batch.count += len(self)
            return start, batch.count
        assert self._times is not None
        lists = self._lists
        batch.values.extend(lists["values"])
        batch.times.frombytes(self._times.tobytes())
        batch.keys.extend(lists.get("keys", ()))
        if "tags" in lists:
            batch.tags = batch.tags if batch.tags is not None else []
            batch.tags.extend(lists["tags"])
        if "headers" in lists:
            batch.headers = batch.headers if batch.headers is not None else []
            batch.headers.extend(lists["headers"])
        return start, len(batch.values)

    def _slice(self, start: int, end: int) -> Self:
        if start == 0 and end >= len(self):
            return self
        return type(self)(
            self._lengths[start:end],
            None if self.hashes is None else self.hashes[start:end],
            {name: column[start:end] for name, column in self._lists.items()},
            None if self._times is None else self._times[start:end],
            None if self._rows is None else self._rows.slice(start, end - start),
        )

    def _take(self, order: Any) -> Self:
        """The records with these numbers, in this order."""
        if len(order) == 1:
            return self._slice(int(order[0]), int(order[0]) + 1)
        pick: Any = itemgetter(*order.tolist())
        return type(self)(
            self._lengths[order],
            None if self.hashes is None else self.hashes[order],
            {name: pick(column) for name, column in self._lists.items()},
            None if self._times is None else self._times[order],
            None if self._rows is None else _taken(self._rows, order),
        )


def columns_of(
    values: ByteColumn | ArrowLike,
    keys: ByteColumn | None,
    tags: Sequence[Iterable[str]] | None,
    headers: Sequence[HeadersLike] | None,
    timestamps_ms: TimeColumn | None,
    now_ms: int,
) -> Columns:
    """Checked columns.

    Raises:
        InvalidRequestError: No records, columns of different lengths, a value out of range, or no
            column ``value`` in what Arrow can read.
        TypeError: Something has a wrong type.
    """
    rows = arrow_rows(values)
    if rows is not None:
        if keys is not None or tags is not None or headers is not None or timestamps_ms is not None:
            raise InvalidRequestError("the other columns belong into the record batch")
        return _columns_of_arrow(rows, now_ms)
    values = byte_column("values", values)
    count = len(values)
    others = {
        "keys": None if keys is None else byte_column("keys", keys),
        "tags": None if tags is None else label_column("tags", tags),
        "headers": None if headers is None else label_column("headers", headers),
    }
    times = np.full(count, now_ms) if timestamps_ms is None else time_column(timestamps_ms)
    for name, column in (*others.items(), ("timestamps_ms", times)):
        if column is not None and len(column) != count:
            raise InvalidRequestError(f"{name} has {len(column)} entries, values {count}")
    if not count:
        raise InvalidRequestError("there are no records")
    lists: dict[str, Sequence[Any]] = {"values": values}
    lengths = _lengths(values) + RECORD_OVERHEAD_BYTES
    hashes = None
    if (key_column := others["keys"]) is not None:
        lists["keys"] = key_column
        lengths += _lengths(key_column)
        hashes = hash_keys(key_column)
    if tags is not None or headers is not None:
        none: Sequence[Any] = [()] * count
        pairs = zip(others["tags"] or none, others["headers"] or none, strict=True)
        labels = _labels(pairs)
        lengths += np.fromiter((size for _, _, size in labels), np.int64, count)
        if tags is not None:
            lists["tags"] = [row for row, _, _ in labels]
        if headers is not None:
            lists["headers"] = [row for _, row, _ in labels]
    return Columns(lengths, hashes, lists, times, None)


def _labels(pairs: Iterable[tuple[Any, Any]]) -> list[Any]:
    """Checked tags and headers of each row, and their size. Raises as ``columns_of``, by row."""
    found: list[Any] = []
    try:
        for each in pairs:
            found.append(record_labels(*each))  # noqa: PERF401  # their number is that of the row
    except InvalidRequestError as error:
        raise InvalidRequestError(f"row {len(found)}: {error.message}") from error
    except TypeError as error:
        raise TypeError(f"row {len(found)}: {error}") from error
    return found


def _taken(rows: "pa.RecordBatch", order: Any) -> "pa.RecordBatch":
    """In memory of the C library, which keeps it longer than that of Arrow does."""
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.take(rows, order, boundscheck=False, memory_pool=pa.system_memory_pool())


def _columns_of_arrow(rows: "pa.RecordBatch", now_ms: int) -> Columns:
    from icecore.codec.arrow import hash_of_keys
    from icecore.codec.arrow_rows import checked, row_sizes

    rows = checked(rows, now_ms)
    names = rows.schema.names
    lengths = row_sizes(rows, LABEL_BYTES) + RECORD_OVERHEAD_BYTES
    hashes = None
    if "key" in names and rows.column("key").null_count < rows.num_rows:
        hashes = hash_of_keys(rows.column("key"))
    return Columns(lengths, hashes, {}, None, rows)


def _lengths(column: Sequence[bytes | None]) -> _Int64s:
    try:
        return np.fromiter(map(len, column), np.int64, len(column))  # type: ignore[arg-type]
    except TypeError:
        return np.fromiter((0 if b is None else len(b) for b in column), np.int64, len(column))
