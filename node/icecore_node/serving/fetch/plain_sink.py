"""Sink of a search that keeps records found as plain records, up to a maximum count and size."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from icecore.codec.columns import Record
from icecore.codec.picking import MANY, Picks
from icecore.codec.record_columns import RecordColumns, joined
from icecore.errors import BatchTooLargeError, CorruptBatchError
from icecore.rpc.record_columns import to_proto
from icecore.v1 import data_pb2
from icecore_node.serving.fetch.plain_records import (
    PlainPart,
    append_record,
    corrupt_batch,
    record_size,
    record_sizes,
    size_of,
)
from icecore_node.serving.query.search_ports import StoredBatch

_AT_ONCE: Final = 256


@dataclass(slots=True)
class PlainSink:
    """Plain records for one piece of an answer. See ``Sink``."""

    part: PlainPart
    """Only its records are set, and columns of them."""
    max_count: int
    max_bytes: int
    is_first: bool
    """The first record of an answer comes whatever its size."""
    ends_at_undecodable: bool = False
    """Whether a batch that can't be decoded ends the answer; else it is only noted."""
    takes_columns: bool = False
    """Many records of a batch stay columns; ``part`` is of a query."""
    columns: list[RecordColumns] = field(default_factory=list)
    """Records of the answer that stay columns."""
    size_bytes: int = 0
    is_full: bool = False
    undecodable: CorruptBatchError | None = None
    """Error of a batch that was left out, though its CRCs are right."""

    @property
    def count(self) -> int:
        """Number of records."""
        return len(self.part.records) + sum(map(len, self.columns))

    def rest(self) -> "PlainSink":
        """Return a sink for the next piece of the same answer, with the room that is left."""
        return PlainSink(
            type(self.part)(),
            self.max_count - self.count,
            self.max_bytes - self.size_bytes,
            is_first=self.is_first and not self.count,
            ends_at_undecodable=self.ends_at_undecodable,
            takes_columns=self.takes_columns,
        )

    def encoded(self) -> bytes:
        """``part``, to be taken over as it is: that spares the loop most of the work."""
        if self.columns and isinstance(self.part, data_pb2.QueryPartitionResult):
            del self.part.columns[:]
            self.part.columns.append(to_proto(joined(self.columns)))
        return self.part.SerializeToString()

    def take(self, found: StoredBatch, picks: Picks, places: Sequence[int]) -> int:
        """See ``Sink.take``."""
        if self.takes_columns and len(places) >= MANY:
            return self._take_columns(picks, places)
        part, count, taken = self.part, self.count, 0
        for each in _records(picks, places[: max(1, self.max_count - count)]):
            size = record_size(each)
            has_room = self.size_bytes + size <= self.max_bytes and count < self.max_count
            if not has_room and (count or not self.is_first):
                self.is_full = True
                return taken
            append_record(part, each)
            count, taken = count + 1, taken + 1
            self.size_bytes += size
        self.is_full = count >= self.max_count
        return taken

    def _take_columns(self, picks: Picks, places: Sequence[int]) -> int:
        is_first = self.is_first and not self.count
        places = places[: max(int(is_first), self.max_count - self.count)]
        if not places:
            self.is_full = True
            return 0
        found = picks.columns_at(places)
        size_bytes, taken = self.size_bytes + size_of(found), len(places)
        if size_bytes > self.max_bytes:
            ends = self.size_bytes + record_sizes(found).cumsum()
            taken = int(ends.searchsorted(self.max_bytes, "right")) or int(is_first)
            size_bytes = int(ends[taken - 1]) if taken else self.size_bytes
        if taken:
            self.columns.append(found.first(taken))
            self.size_bytes = size_bytes
        self.is_full = taken < len(places) or self.count >= self.max_count
        return taken

    def refuse(self, found: StoredBatch, error: CorruptBatchError | BatchTooLargeError) -> bool:
        """See ``Sink.refuse``. One that ends the answer is named when it comes first (R71)."""
        if not self.ends_at_undecodable or (self.is_first and not self.count):
            self.undecodable = corrupt_batch(found.header, error)
        self.is_full = self.is_full or self.ends_at_undecodable
        return not self.ends_at_undecodable


def _records(picks: Picks, places: Sequence[int]) -> Iterator[Record]:
    """Yield the records at some places, a group at a time: only then is it known how many still
    fit."""
    for start in range(0, len(places), _AT_ONCE):
        yield from picks.records_at(places[start : start + _AT_ONCE])
