"""One tiered segment as a search sees it: what was read of it so far, and what must be read first.

Searches run on a thread, in steps that may be repeated; object stores belong to the loop. So a step
that needs what is not here answers ``Unread``, the loop reads that, and the step goes on: no thread
waits for a network. What it holds of the segment is bounded, leased from the cache, and its own:
whatever else the cache lets go of meanwhile, a step finds what was read for it. Whoever opened it
closes it.
"""

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, TypeAlias

from icecore.codec.batch import iter_batches
from icecore.codec.columns import UInt64s
from icecore.codec.selection import Selection
from icecore.errors import OffsetOutOfRangeError
from icecore.model import SegmentId
from icecore_node.remote.format.manifest import Manifest
from icecore_node.remote.format.row_batches import RowBatches
from icecore_node.remote.read.cache import ValueLease
from icecore_node.remote.read.unread import Part, Unread
from icecore_node.remote.store.object_store import ByteRange
from icecore_node.storage.engine import (
    NO_INDEX,
    NO_TAIL,
    SEALED_INDEX,
    Candidates,
    IndexSummary,
    LogTail,
    OffsetRange,
)
from icecore_node.storage.index.entries import Entries, UInt32s, wanted_hashes
from icecore_node.storage.index.index_search import IndexSearch
from icecore_node.storage.index.posting_blocks import DamagedIndexError
from icecore_node.storage.segment_engine.sealed_index import FIRST_READ_BYTES, SealedIndex

PARTS_MAX: Final = 3
"""Row groups that a search holds; one read never needs more than one."""
WHOLE_INDEX_BYTES: Final = 256 << 10
"""An index object up to this size is read at once, and proved as a whole: to ask for its blocks one
by one, for each key again, takes longer."""

Held: TypeAlias = "RowBatches | RawPart"
"""A part that was read."""


class RawPart:
    """Batches as they were stored, with the same methods as ``RowBatches``."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._batches = [(at, header) for at, header in iter_batches(data)]
        ends = [header.end_offset for _, header in self._batches]
        self.edges = [self._batches[0][1].base_offset, *ends]
        self.size_bytes = len(data)

    def __len__(self) -> int:
        return len(self._batches)

    def appended_ms(self, at: int) -> int:
        """Return the append timestamp of a batch."""
        return self._batches[at][1].append_timestamp_ms

    def batch(self, at: int) -> bytes:
        """Return the bytes of one batch."""
        start, header = self._batches[at]
        return self._data[start : start + header.batch_length]


class RemoteLog:
    """Log and index of one tiered segment, as searches read them (``serving/query/log_search.py``).
    Used by the steps of a search on a thread, and by the loop between two steps.

    Args:
        manifest: Manifest of the copy that is read.
    """

    def __init__(self, manifest: Manifest) -> None:
        self._held: OrderedDict[int, ValueLease[Held]] = OrderedDict()
        """Parts read so far, by base offset; the last used comes last."""
        self._index_parts: dict[ByteRange, ValueLease[bytes]] = {}
        self._refused_spans: list[ByteRange] = []
        self._index_refused = ""
        self._index: SealedIndex | None = None
        self._parts: list[Part] = []
        self.reopen(manifest)

    def reopen(self, manifest: Manifest) -> None:
        """Go on with another copy of the same segment."""
        self.release()
        self.manifest = manifest
        self._index_refused = ""
        self._parts = [*manifest.row_groups, *manifest.raw_batches]
        self._parts.sort(key=_base)

    def release(self) -> None:
        """Let go of all that was read. A step that needs some of it again has it read again.

        A thread may still be in a step whose caller has left. Both tables are replaced first, so
        that no lease is passed over; that step finds nothing, or fails, and nobody waits for it.
        """
        held, self._held = self._held, OrderedDict()
        index_parts, self._index_parts = self._index_parts, {}
        self._index = None
        leases: list[ValueLease[Any]] = [*held.values(), *index_parts.values()]
        for lease in leases:
            lease.close()

    # --- what the loop brings -------------------------------------------------------------------

    def take(self, wanted: "Part | ByteRange", lease: ValueLease[Any]) -> None:
        """Keep a part, or bytes of the index object, that were read; of parts the longest unused
        goes beyond ``PARTS_MAX``."""
        before: ValueLease[Any] | None
        if isinstance(wanted, tuple):
            before = self._index_parts.pop(wanted, None)
            self._index_parts[wanted] = lease
        else:
            before = self._held.pop(wanted.base_offset, None)
            self._held[wanted.base_offset] = lease
        if before is not None:
            before.close()
        while len(self._held) > PARTS_MAX:
            self._held.popitem(last=False)[1].close()

    def refuse_index(self, why: str) -> None:
        """The index object can't be used: records are found by reading them. What was read of it is
        held until the loop takes the ranges."""
        self._refused_spans += self._index_parts
        self._index_refused, self._index = why, None

    def take_refused(self) -> list[ByteRange]:
        """Return the ranges of the index object found damaged since the last call."""
        refused, self._refused_spans = self._refused_spans, []
        for span in refused:
            if (lease := self._index_parts.pop(span, None)) is not None:
                lease.close()
        return refused

    def quiet(self, selection: Selection) -> tuple[OffsetRange, ...]:
        """Ranges whose event times are none of those wanted, ascending."""
        return tuple(
            (each.base_offset, each.end_offset)
            for each in self.manifest.row_groups
            if not selection.may_be_within(each.min_timestamp_ms, each.max_timestamp_ms)
        )

    # --- of a log -------------------------------------------------------------------------------

    def tail(self, _: SegmentId) -> LogTail:
        """Its end, and about its length: that of its objects."""
        manifest = self.manifest
        side = manifest.side.size_bytes if manifest.side else 0
        return _tail(manifest.facts.end_offset, manifest.parquet.size_bytes + side)

    def read(
        self, _: SegmentId, offset: int, max_bytes: int, end_offset: int
    ) -> tuple[bytes, int] | Unread:
        """See ``SearchedLog.read``; of one part at a time."""
        if offset >= end_offset:
            return b"", offset
        part = self._part_at(offset)
        held = self._held.get(part.base_offset)
        if held is None:
            return Unread(part)
        self._held.move_to_end(part.base_offset)
        return gathered(held.value, offset, max_bytes, end_offset)

    def floor(self, offset: int) -> int:
        """Return the base offset of the last part that begins before this offset. A read that ends
        at the offset never needs an earlier part."""
        return self._parts[bisect_left(self._parts, offset, key=_base) - 1].base_offset

    def _part_at(self, offset: int) -> Part:
        """Return the part that holds an offset.

        Raises:
            OffsetOutOfRangeError: The offset is outside this segment.
        """
        facts = self.manifest.facts
        if not facts.base_offset <= offset < facts.end_offset:
            edges = f"{facts.base_offset}..{facts.end_offset}"
            raise OffsetOutOfRangeError(f"offset {offset} is not in {edges}")
        return self._parts[bisect_right(self._parts, offset, key=_base) - 1]

    # --- of an index ----------------------------------------------------------------------------

    @property
    def index_start(self) -> ByteRange | None:
        """Range of the index object that every search reads first; None when the copy has no
        index."""
        index = self.manifest.index
        return None if index is None else self._index_span(FIRST_READ_BYTES, 0)

    def _index_span(self, length: int, position: int) -> ByteRange:
        """Return the range of the index object to read for these bytes: all of it when it is small.
        The range is shorter at the object's end."""
        index = self.manifest.index
        assert index is not None, "only asked with an index"
        if index.size_bytes <= WHOLE_INDEX_BYTES:
            return 0, index.size_bytes
        return position, min(position + length, index.size_bytes)

    def summary(self, _: SegmentId) -> IndexSummary:
        """Summarise the index from the manifest alone, without a read."""
        groups, index = self.manifest.row_groups, self.manifest.index
        times: OffsetRange | None = None
        if groups and not self.manifest.raw_batches:
            low = min(each.min_timestamp_ms for each in groups)
            times = low, max(each.max_timestamp_ms for each in groups)
        if index is None or self._index_refused:
            return IndexSummary(NO_INDEX, timestamps_ms=times)
        return IndexSummary(SEALED_INDEX, index.size_bytes, 0, 1, times)

    def candidates(
        self,
        _: SegmentId,
        hashes: Sequence[int],
        asked: OffsetRange,
        *,
        limit: int,
        newest_first: bool = False,
    ) -> Candidates | Unread:
        """See ``SearchedIndex.candidates``. An index that is damaged is a gap."""
        search = IndexSearch(self.manifest.facts.base_offset, hashes, asked)
        covers: list[_ObjectCover] = []
        if self.manifest.index is not None and not self._index_refused:
            try:
                unread = self._unread_for(hashes)
                if unread is not None:
                    return unread
                covers.append(_ObjectCover(self._opened(), self.manifest))
            except DamagedIndexError as error:
                self.refuse_index(str(error))
        found = search.run(covers, max(limit, 1), newest_first=newest_first)
        if search.damaged:
            self.refuse_index("a part of it is damaged")
        return found

    def _opened(self) -> SealedIndex:
        if self._index is None:
            self._index = self._checked()
        return self._index

    def _checked(self) -> SealedIndex:
        index, facts = SealedIndex(self._index_bytes), self.manifest.facts
        of = index.facts
        found = of.cluster_id, of.topic_id, of.segment_id, of.generation, of.seal_digest
        wanted = facts.cluster_id, facts.topic_id, facts.segment_id, facts.generation
        is_ours = found == (*wanted, facts.seal_digest)
        if not is_ours or (of.base_offset, of.end_offset) != (facts.base_offset, facts.end_offset):
            raise DamagedIndexError(f"the index object is that of {of}")
        return index

    def _unread_for(self, hashes: Sequence[int]) -> Unread | None:
        """Return the first part of the index that a look-up needs and that is not here.

        Raises:
            DamagedIndexError: What was read of it makes no sense.
        """
        start = self.index_start
        assert start is not None, "only asked with an index"
        if start not in self._index_parts:
            return Unread(start)
        for length, position in self._opened().reads(wanted_hashes(hashes)):
            span = self._index_span(length, position)
            if span not in self._index_parts:
                return Unread(span)
        return None

    def _index_bytes(self, length: int, position: int) -> bytes:
        """Return bytes of the index object; fewer at its end."""
        span = self._index_span(length, position)
        data = self._index_parts[span].value  # ``_unread_for`` has seen that it is here
        start = position - span[0]
        return data[start : start + length]


class _ObjectCover:
    """A ``Cover``: an index object, whose parts are read as they are needed."""

    def __init__(self, index: SealedIndex, manifest: Manifest) -> None:
        self._index = index
        self.from_offset = manifest.facts.base_offset
        self.end_offset = manifest.facts.end_offset

    @property
    def entries(self) -> int:
        """See ``Cover``."""
        return self._index.run.directory.entries

    def find(self, wanted: UInt64s) -> tuple[list[UInt32s], int]:
        """See ``Cover.find``."""
        return self._index.run.find(wanted)

    def walk(self) -> Iterator[Entries]:
        """See ``Cover.walk``."""
        return self._index.run.walk()

    def release(self) -> None:
        """See ``Cover.release``: nothing is open."""


def gathered(held: Held, offset: int, max_bytes: int, end_offset: int) -> tuple[bytes, int]:
    """Batches from the one that holds an offset: one at least, and until there are enough bytes or
    the next one passes the end; and the offset after them. Blocking."""
    at = bisect_right(held.edges, offset) - 1
    found: list[bytes] = []
    length = 0
    while at < len(held) and held.edges[at + 1] <= end_offset and (not found or length < max_bytes):
        found.append(held.batch(at))
        length += len(found[-1])
        at += 1
    return b"".join(found), held.edges[at] if found else offset


def _base(part: Part) -> int:
    return part.base_offset


def _tail(end_offset: int, length_bytes: int) -> LogTail:
    return replace(NO_TAIL, end_offset=end_offset, length_bytes=length_bytes)
