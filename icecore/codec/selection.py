"""Choose records: the conditions of a query or a filtered fetch, and the records that meet them.

The same value decides on the node, which looks and sends less, and in the client, which trusts
nobody. Keys, tags and headers are compared byte by byte: hashes only say where to look.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import filterfalse
from operator import attrgetter
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from icecore.codec.batch import BatchHeader, ProducerFlag
from icecore.codec.columns import (
    BatchColumns,
    BinaryColumn,
    IndexColumns,
    ListColumn,
    Record,
    UInt64s,
)
from icecore.codec.hashes import header_hash, key_hash, tag_hash
from icecore.codec.record_columns import RecordColumns

_FEW_HASHES: Final = 8
_KEY: Final = attrgetter("key")
Mask: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Selection:
    """Conditions; a record must fulfil all that are set. Without any, every record does."""

    keys: frozenset[bytes] = frozenset()
    """One of these."""
    tags_any: frozenset[str] = frozenset()
    tags_all: frozenset[str] = frozenset()
    tags_none: frozenset[str] = frozenset()
    headers: frozenset[tuple[str, bytes]] = field(default=frozenset())
    """At least one of these names with this value."""
    from_timestamp_ms: int | None = None
    """Event time, as the producer gave it."""
    to_timestamp_ms: int | None = None
    """Exclusive."""

    @cached_property
    def is_empty(self) -> bool:
        """Return whether every record is wanted."""
        return self == Selection()

    @cached_property
    def key_hashes(self) -> frozenset[int]:
        """Hashes of the wanted keys."""
        return frozenset(map(key_hash, self.keys))

    def conditions(self, indexed_headers: frozenset[str]) -> tuple[tuple[int, ...], ...]:
        """As hashes: of each inner tuple a wanted record has at least one. What has no hash (times,
        absent tags, headers that are not all indexed) is left out; empty when hashes tell nothing.

        Args:
            indexed_headers: Names of those whose hashes are with every record.
        """
        found = self._conditions.get(indexed_headers)
        if found is None:
            found = self._conditions[indexed_headers] = self._hashed(indexed_headers)
        return found

    @cached_property
    def _conditions(self) -> dict[frozenset[str], tuple[tuple[int, ...], ...]]:
        """They are asked for once for each log that is searched."""
        return {}

    def _hashed(self, indexed_headers: frozenset[str]) -> tuple[tuple[int, ...], ...]:
        are_indexed = all(name in indexed_headers for name, _ in self.headers)
        groups = [
            sorted(self.key_hashes),
            sorted({header_hash(*each) for each in self.headers} if are_indexed else ()),
            sorted({tag_hash(tag.encode()) for tag in self.tags_any}),
            *([tag_hash(tag.encode())] for tag in sorted(self.tags_all)),
        ]
        return tuple(tuple(group) for group in groups if group)

    def may_be_within(self, min_timestamp_ms: int, max_timestamp_ms: int) -> bool:
        """Return whether event times from one to the other, inclusive, leave a chance."""
        low, high = self.from_timestamp_ms, self.to_timestamp_ms
        return (low is None or max_timestamp_ms >= low) and (
            high is None or min_timestamp_ms < high
        )

    def may_be_in(self, header: BatchHeader) -> bool:
        """Return whether the header of a batch leaves a chance."""
        flags = header.producer_flags
        if self.keys and flags & ProducerFlag.NO_KEYS:
            return False
        if (self.tags_any or self.tags_all) and flags & ProducerFlag.NO_TAGS:
            return False
        if self.headers and flags & ProducerFlag.NO_HEADERS:
            return False
        return self.may_be_within(header.min_timestamp_ms, header.max_timestamp_ms)

    def wants(self, record: Record) -> bool:
        """Return whether one record is wanted, exactly: as ``matches`` says of a batch."""
        low, high = self.from_timestamp_ms, self.to_timestamp_ms
        if (low is not None and record.timestamp_ms < low) or (
            high is not None and record.timestamp_ms >= high
        ):
            return False
        if self.keys and (record.key is None or record.key not in self.keys):
            return False
        if self.headers and self.headers.isdisjoint(record.headers):
            return False
        if self.tags_any and self.tags_any.isdisjoint(record.tags):
            return False
        if not self.tags_all and not self.tags_none:
            return True
        return self.tags_all.issubset(record.tags) and self.tags_none.isdisjoint(record.tags)

    def places_in(self, columns: RecordColumns) -> Sequence[int]:
        """Return the places of wanted records, ascending: exactly as ``wants`` says of each."""
        places: Sequence[int] = range(len(columns))
        if self.keys:
            keys = [None] if columns.keys is None else columns.keys.to_list()
            if not self.keys.issuperset(keys):
                places = [at for at, key in enumerate(keys) if key in self.keys]
        if self._has_keys_only or not places:
            return places
        records = columns.to_records()
        return [at for at in places if self.wants(records[at])]

    def unwanted(self, records: Sequence[Record]) -> Iterator[Record]:
        """Those of them that are not wanted."""
        has_keys_only = self.keys and self._has_keys_only
        if not has_keys_only or not self.keys.issuperset(map(_KEY, records)):
            yield from filterfalse(self.wants, records)

    @cached_property
    def _has_keys_only(self) -> bool:
        return self == Selection(keys=self.keys)

    def may_match(self, index: IndexColumns) -> Mask:
        """Return the records that may be wanted, judged by an index section: all wanted ones, and a
        few more."""
        mask = self._by_time(index.timestamps)
        if self.keys:
            if index.key_hashes is None:
                return np.zeros(len(mask), np.bool_)
            mask &= _is_one_of(index.key_hashes, self.key_hashes)
            if not mask.any():
                return mask
        return mask & self._by_tags(index.tags, len(mask))

    def matches(self, columns: BatchColumns) -> Mask:
        """Return exactly the records that are wanted."""
        mask = self.may_match(columns.index)
        if self.keys and mask.any():
            mask = self._by_keys(columns.keys, mask)
        if self.headers and mask.any():
            mask &= self._by_headers(columns.headers, len(mask))
        return mask

    def _by_time(self, timestamps: npt.NDArray[np.int64]) -> Mask:
        mask = np.ones(len(timestamps), np.bool_)
        if self.from_timestamp_ms is not None:
            mask &= timestamps >= self.from_timestamp_ms
        if self.to_timestamp_ms is not None:
            mask &= timestamps < self.to_timestamp_ms
        return mask

    def _by_tags(self, tags: ListColumn | None, count: int) -> Mask:
        mask = np.ones(count, np.bool_)
        if not (self.tags_any or self.tags_all or self.tags_none):
            return mask
        if tags is None or tags.values is None:
            return mask if not (self.tags_any or self.tags_all) else ~mask
        names = tags.values.to_strings()
        owners = np.repeat(np.arange(count), np.diff(tags.lists))
        if self.tags_any:
            mask &= _has(names, self.tags_any, tags.items, owners, count)
        for tag in self.tags_all:
            mask &= _has(names, {tag}, tags.items, owners, count)
        if self.tags_none:
            mask &= ~_has(names, self.tags_none, tags.items, owners, count)
        return mask

    def _by_keys(self, keys: BinaryColumn | None, mask: Mask) -> Mask:
        found = np.zeros(len(mask), np.bool_)
        if keys is None:
            return found
        valid = keys.mask()
        for at in np.flatnonzero(mask & valid).tolist():
            found[at] = bytes(keys.data[keys.offsets[at] : keys.offsets[at + 1]]) in self.keys
        return found

    def _by_headers(self, headers: ListColumn | None, count: int) -> Mask:
        if headers is None or headers.values is None:
            return np.zeros(count, np.bool_)
        pairs = zip(headers.items.to_strings(), headers.values.to_list(), strict=True)
        wanted = np.fromiter((pair in self.headers for pair in pairs), np.bool_)
        owners = np.repeat(np.arange(count), np.diff(headers.lists))
        return _owned(wanted, owners, count)


def _is_one_of(hashes: UInt64s, wanted: frozenset[int]) -> Mask:
    """Comparing with a few takes a tenth of the time that a set of numpy's takes."""
    if len(wanted) > _FEW_HASHES:
        return np.isin(hashes, np.array(sorted(wanted), np.uint64))
    mask = np.zeros(len(hashes), np.bool_)
    for each in wanted:
        mask |= hashes == np.uint64(each)
    return mask


def _has(
    names: list[str], wanted: frozenset[str] | set[str], items: Any, owners: Any, count: int
) -> Mask:
    """Return which of ``count`` records have one of these tags."""
    is_wanted = np.fromiter((name in wanted for name in names), np.bool_, len(names))
    return _owned(is_wanted[items], owners, count)


def _owned(wanted: Mask, owners: Any, count: int) -> Mask:
    mask = np.zeros(count, np.bool_)
    mask[owners[wanted]] = True
    return mask
