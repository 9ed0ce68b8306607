"""Records without the batch they lay in, column by column: what a search finds of many batches.

Ten thousand records cost an object each where objects are made of them, and a few calls of numpy
where they stay columns. As a message: ``icecore/rpc/record_columns.py``.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise, repeat
from typing import Any, Final

import numpy as np

from icecore.codec.columns import Headers, Int64s, Record

NAMES_UNUSED_MAX: Final = 64
"""So many names of tags stay where no record has them: to look for them takes longer."""


@dataclass(frozen=True, slots=True)
class ByteStrings:
    """Keys or values, one behind the other."""

    lengths: Int64s
    """In bytes; -1 where there is none."""
    data: bytes

    def to_list(self) -> list[bytes | None]:
        """Python bytes."""
        lengths, data = self.lengths, self.data
        longest = int(lengths.max(initial=0))
        if longest and (lengths == longest).all():
            return [data[at : at + longest] for at in range(0, len(data), longest)]
        ends = [0, *np.cumsum(np.maximum(lengths, 0)).tolist()]
        values: list[bytes | None] = [data[low:high] for low, high in pairwise(ends)]
        if lengths.min(initial=0) < 0:
            is_null = (lengths < 0).tolist()
            return [None if no else each for each, no in zip(values, is_null, strict=True)]
        return values


@dataclass(frozen=True, slots=True)
class RecordColumns:
    """Records of one partition as columns, in any order; all columns have the same length, at least
    1."""

    offsets: Int64s
    timestamps_ms: Int64s
    append_timestamps_ms: Int64s
    values: ByteStrings
    keys: ByteStrings | None = None
    tag_counts: Int64s | None = None
    """How many tags each record has; their places in ``tag_names`` follow each other."""
    tag_ids: Int64s | None = None
    tag_names: Sequence[str] = ()
    headers: Sequence[Headers] | None = None

    def __len__(self) -> int:
        return len(self.offsets)

    def first(self, count: int) -> "RecordColumns":
        """At most so many of them."""
        if count >= len(self):
            return self
        counts, ids = self.tag_counts, self.tag_ids
        if counts is not None and ids is not None:
            counts = counts[:count]
            ids = ids[: int(counts.sum())]
        return RecordColumns(
            self.offsets[:count],
            self.timestamps_ms[:count],
            self.append_timestamps_ms[:count],
            _first(self.values, count),
            None if self.keys is None else _first(self.keys, count),
            counts,
            ids,
            self.tag_names,
            None if self.headers is None else self.headers[:count],
        )

    def tag_tuples(self) -> Iterable[tuple[str, ...]]:
        """The tags of each record."""
        if self.tag_counts is None or self.tag_ids is None:
            return repeat((), len(self))
        names = self.tag_names
        if (self.tag_counts == 1).all():  # as of most records
            alone = [(name,) for name in names]
            return [alone[each] for each in self.tag_ids.tolist()]
        flat = [names[each] for each in self.tag_ids.tolist()]
        ends = [0, *np.cumsum(self.tag_counts).tolist()]
        return [tuple(flat[low:high]) for low, high in pairwise(ends)]

    def to_records(self, *, topic: str = "", partition: int = -1) -> list[Record]:
        """All of them, as objects."""
        return list(
            map(
                Record,
                self.values.to_list(),
                repeat(None) if self.keys is None else self.keys.to_list(),
                self.timestamps_ms.tolist(),
                self.tag_tuples(),
                repeat(()) if self.headers is None else self.headers,
                self.offsets.tolist(),
                self.append_timestamps_ms.tolist(),
                repeat(partition),
                repeat(topic),
            )
        )


def _first(strings: ByteStrings, count: int) -> ByteStrings:
    lengths = strings.lengths[:count]
    return ByteStrings(lengths, strings.data[: int(np.maximum(lengths, 0).sum())])


def columns_of(records: Sequence[Record]) -> RecordColumns:
    """Return the columns of records that were read, at least one."""
    names: dict[str, int] = {}
    ids = [names.setdefault(tag, len(names)) for each in records for tag in each.tags]
    has_keys = any(each.key is not None for each in records)
    has_headers = any(each.headers for each in records)
    return RecordColumns(
        np.array([each.offset for each in records], np.int64),
        np.array([each.timestamp_ms for each in records], np.int64),
        np.array([each.append_timestamp_ms for each in records], np.int64),
        _strings([each.value for each in records]),
        _strings([each.key for each in records]) if has_keys else None,
        np.array([len(each.tags) for each in records], np.int64) if ids else None,
        np.array(ids, np.int64) if ids else None,
        list(names),
        [each.headers for each in records] if has_headers else None,
    )


def _strings(values: Sequence[bytes | None]) -> ByteStrings:
    lengths = [-1 if each is None else len(each) for each in values]
    return ByteStrings(np.array(lengths, np.int64), b"".join([each or b"" for each in values]))


def joined(parts: Sequence[RecordColumns]) -> RecordColumns:
    """All of several, at least one, in their order."""
    if len(parts) == 1:
        return parts[0]
    has_keys = any(part.keys is not None for part in parts)
    has_headers = any(part.headers is not None for part in parts)
    counts, ids, names = _joined_tags(parts)
    return RecordColumns(
        np.concatenate([part.offsets for part in parts]),
        np.concatenate([part.timestamps_ms for part in parts]),
        np.concatenate([part.append_timestamps_ms for part in parts]),
        _joined_strings([part.values for part in parts]),
        _joined_strings([part.keys or _none(len(part)) for part in parts]) if has_keys else None,
        counts,
        ids,
        names,
        [*chain.from_iterable(part.headers or [()] * len(part) for part in parts)]
        if has_headers
        else None,
    )


def _joined_strings(parts: Sequence[ByteStrings]) -> ByteStrings:
    lengths = np.concatenate([part.lengths for part in parts])
    return ByteStrings(lengths, b"".join([part.data for part in parts]))


def _none(count: int) -> ByteStrings:
    return ByteStrings(np.full(count, -1, np.int64), b"")


def _joined_tags(
    parts: Sequence[RecordColumns],
) -> tuple[Int64s | None, Int64s | None, Sequence[str]]:
    """Counts, ids and names; each name once."""
    if all(part.tag_ids is None for part in parts):
        return None, None, ()
    names: dict[str, int] = {}
    last: Sequence[str] = ()
    places = np.empty(0, np.int64)
    counts: list[Any] = []
    ids: list[Any] = []
    for part in parts:
        if part.tag_counts is None or part.tag_ids is None:
            counts.append(np.zeros(len(part), np.int64))
            continue
        if part.tag_names is not last:
            last = part.tag_names
            places = np.array([names.setdefault(name, len(names)) for name in last], np.int64)
        counts.append(part.tag_counts)
        ids.append(places[part.tag_ids])
    return np.concatenate(counts), *_used(np.concatenate(ids), list(names))


def _used(ids: Int64s, names: Sequence[str]) -> tuple[Int64s, Sequence[str]]:
    """Without the names of no record, of which each batch may have brought some."""
    if len(names) <= NAMES_UNUSED_MAX:
        return ids, names
    used, ids = np.unique(ids, return_inverse=True)
    return ids, [names[each] for each in used.tolist()]
