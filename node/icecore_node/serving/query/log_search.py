"""Finding records in one log: by its index where that covers the offsets, else by reading the log.

Runs on reader threads, in bounded steps. An index only says where to look: every record is read
from the log, whose bytes are CRC-checked, and compared with what is wanted. What matches goes to a
*sink*, which says when it has enough; the search then goes on from exactly there, if at all.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from icecore.codec import batch, record
from icecore.codec.columns import Int64s
from icecore.codec.decoding import decode_index
from icecore.codec.picking import MANY, BatchPicks, ColumnPicks, Picks, key_hashes_of
from icecore.codec.selection import Selection
from icecore.errors import BatchTooLargeError, CorruptBatchError, NotReplicaError
from icecore.model import SegmentId
from icecore_node.remote.read.unread import Unread
from icecore_node.serving.query.search_plan import (
    Groups,
    Look,
    Read,
    Scan,
    hashes_of,
    knows_all,
    outside_of,
    reads_of,
)
from icecore_node.serving.query.search_ports import SearchedIndex, SearchedLog, Sink, StoredBatch
from icecore_node.storage.engine import (
    SEALED_INDEX,
    IndexSummary,
    OffsetRange,
)

STEP_BYTES: Final = 512 << 10
"""Bytes scanned in one step, up to a batch more. With the smallest batches a step takes some 50
ms."""
_LOOK_PART: Final = 8
"""Divisor: a look counts as its bytes divided by this, since it uses one record of them. Inflated
bytes count likewise."""
_LOOK_BYTES: Final = 8 << 10
"""Least effort that a look counts as, in bytes scanned."""
_SCAN_BYTES: Final = 256 << 10
_WINDOW_OFFSETS_MAX: Final = 1 << 20
_FEW: Final = 8
_CANDIDATES: Final = 4096
"""Maximum number of candidates to ask an index for at once, for each hash."""


SinkT = TypeVar("SinkT", bound=Sink)


@dataclass(slots=True)
class SearchWork:
    """Costs of a search so far."""

    index_bytes: int = 0
    data_bytes: int = 0
    effort_bytes: int = 0
    """Effort so far, as the number of bytes that could have been scanned in about the same time."""
    candidates: int = 0
    scanned: bool = False
    """Something was read because no index covers it."""
    has_hashes: bool = False
    """The index knows a hash of each group."""
    outside: bool = False
    """No event time that is wanted is in the log."""

    def copy(self) -> "SearchWork":
        """Return a copy. One is made for each step; ``dataclasses.replace`` takes five times as
        long."""
        return SearchWork(
            self.index_bytes,
            self.data_bytes,
            self.effort_bytes,
            self.candidates,
            self.scanned,
            self.has_hashes,
            self.outside,
        )


@dataclass(slots=True)
class _State:
    left: OffsetRange
    """Offsets not looked at yet."""
    reads: list[Read]
    """Remaining reads within ``planned``, in order, made from the index's candidates."""
    planned: OffsetRange
    window: int
    work: SearchWork = field(default_factory=SearchWork)

    def copy(self) -> "_State":
        return _State(self.left, self.reads[:], self.planned, self.window, self.work.copy())


@dataclass(frozen=True, slots=True)
class LogView:
    """A log as one searcher may see it."""

    reader: SearchedLog
    index: SearchedIndex
    segment_id: SegmentId
    visible_end_offset: int
    """The high watermark: between batches, and nothing from it on is read."""
    indexed_headers: frozenset[str] = frozenset()
    """Names of the headers whose hashes the index has; none while the record is not known."""
    quiet: tuple[OffsetRange, ...] = ()
    """Ranges, ascending, in which no record is wanted: that is known without reading them."""
    floor: Callable[[int], int] = field(default=lambda _: 0, compare=False)
    """Returns, for an exclusive end, the first offset from which all up to that end may be read at
    once."""


class LogSearch:
    """One search through a part of a log.

    Args:
        log: The log to search.
        selection: The records wanted.
        asked: The offsets to search; may begin and end within batches.
        newest_first: Whether to search from the end down.
    """

    def __init__(
        self,
        log: LogView,
        selection: Selection,
        asked: OffsetRange,
        *,
        newest_first: bool = False,
    ) -> None:
        self._log, self._newest_first = log, newest_first
        self.selection = selection
        self._groups: Groups = selection.conditions(log.indexed_headers)
        self._state = _State(asked, [], (0, 0), 0)
        self._record_bytes = 0.0
        """Average bytes of a record, estimated by the first look with several offsets; 0 = not
        known yet."""
        self.summary: IndexSummary | None = None
        """Summary of the log's index; None before the first step."""

    @property
    def left(self) -> OffsetRange:
        """Offsets not looked at yet; empty at the end."""
        return self._state.left

    @property
    def is_done(self) -> bool:
        """Return whether all offsets were looked at."""
        return self.left[0] >= self.left[1]

    @property
    def by_hash(self) -> bool:
        """Return whether the selection has a condition that an index can answer."""
        return bool(self._groups)

    @property
    def hash_count(self) -> int:
        """Number of hashes that the search asks an index for."""
        return len(hashes_of(self._groups))

    @property
    def work(self) -> SearchWork:
        """Costs of the search so far."""
        return self._state.work

    def step(self, make_sink: Callable[[], SinkT]) -> SinkT:
        """Look at some more of a log on a disk, until the sink is full. See ``try_step``."""
        sink = self.try_step(make_sink)
        assert not isinstance(sink, Unread), "all of a log on a disk is here"
        return sink

    def try_step(self, make_sink: Callable[[], SinkT]) -> SinkT | Unread:
        """Look at some more, until the sink is full.

        Returns:
            A new sink with the records found; or what must be read of object storage before the
            step can be made. A step that does not come to an end may be repeated: it leaves the
            search as it was.

        Raises:
            StorageError: The log is damaged.
            NotReplicaError: The log is gone, or was cut.
        """
        before, sink = self._state.copy(), make_sink()
        stop_bytes = self.work.effort_bytes + STEP_BYTES
        try:
            if self.summary is None:
                self.summary = self._log.index.summary(self._log.segment_id)
                if skips_by_time(self.summary, self.selection):
                    self._state.work.outside = True
                    self._reach(self.left)
            unread = self._go_far(sink, stop_bytes)
        except BaseException:
            self._state = before
            raise
        if unread is not None:
            self._state = before
            return unread
        return sink

    def _go_far(self, sink: Sink, stop_bytes: int) -> Unread | None:
        """Search until the step's limit, or until something must first be read from object storage.
        Return that when nothing could be done before it."""
        has_moved = False
        while not (self.is_done or sink.is_full or self.work.effort_bytes >= stop_bytes):
            unread = self._go_on(sink)
            if unread is not None:
                return None if has_moved else unread
            has_moved = True
        return None

    # --- what to read ---------------------------------------------------------------------------

    def _go_on(self, sink: Sink) -> Unread | None:
        state = self._state
        if not state.reads:
            unread = self._plan()
            if unread is not None or not state.reads:
                return unread
        match state.reads[0]:
            case Scan(low, high):
                rest: Read | Unread | None = self._scan(low, high, sink)
            case Look(offsets):
                rest = self._look(offsets, sink)
        if isinstance(rest, Unread):
            return rest
        if rest is not None:
            state.reads[0] = rest
            return None
        del state.reads[0]
        if not state.reads:
            self._reach(state.planned)
        return None

    def _plan(self) -> Unread | None:
        """Ask the index for candidates. There are no reads when the range that it covered has
        nothing to read."""
        state = self._state
        if not self._groups:
            reads: list[Read] = [Scan(*state.left)]
            self._keep_plan(reads, state.left)
            return None
        found = self._log.index.candidates(
            self._log.segment_id,
            hashes_of(self._groups),
            state.left,
            limit=_CANDIDATES,
            newest_first=self._newest_first,
        )
        if isinstance(found, Unread):
            return found
        low, high = found.searched
        is_within = state.left[0] <= low < high <= state.left[1]
        assert is_within and (low, high)[self._newest_first] == state.left[self._newest_first]
        state.work.index_bytes += found.bytes_read
        state.work.has_hashes |= knows_all(found, self._groups)
        planned = reads_of(found, self._groups, newest_first=self._newest_first)
        state.work.candidates += sum(len(r.offsets) for r in planned if isinstance(r, Look))
        self._keep_plan(planned, found.searched)
        return None

    def _keep_plan(self, reads: list[Read], searched: OffsetRange) -> None:
        """Keep the reads outside quiet ranges; without any, the range was looked at."""
        state, quiet = self._state, self._log.quiet
        state.reads = outside_of(reads, quiet, newest_first=self._newest_first) if quiet else reads
        state.planned = searched
        if not state.reads:
            self._reach(searched)

    def _reach(self, done: OffsetRange) -> None:
        """Note that this range, and all before it in the order of the search, was looked at."""
        low, high = self._state.left
        if self._newest_first:
            self._state.left = low, max(low, min(high, done[0]))
        else:
            self._state.left = min(high, max(low, done[1])), high

    # --- reading --------------------------------------------------------------------------------

    def _scan(self, low: int, high: int, sink: Sink) -> Scan | Unread | None:
        """Scan some of a range; return the rest."""
        self._state.work.scanned = True
        if self._newest_first:
            found = self._read_before(max(low, self._log.floor(high)), high)
        else:
            found = self._read(low, _SCAN_BYTES, high)
        if isinstance(found, Unread):
            return found
        data, edge = found
        done = (edge, high) if self._newest_first else (low, min(edge, high))
        self._state.work.effort_bytes += len(data)
        if not self._offer(data, done, None, sink):
            left = self.left
            return Scan(low, left[1]) if self._newest_first else Scan(left[0], high)
        self._reach(done)
        rest = (low, done[0]) if self._newest_first else (done[1], high)
        return Scan(*rest) if rest[0] < rest[1] else None

    def _look(self, offsets: Int64s, sink: Sink) -> Look | Unread | None:
        """Look at the first candidates, and at others in the same bytes; return the rest."""
        at = int(offsets[-1 if self._newest_first else 0])
        length = 1 if self._newest_first else self._look_bytes(offsets)
        read = self._read(at, length, self._log.visible_end_offset)
        if isinstance(read, Unread):
            return read
        data, next_offset = read
        self._state.work.effort_bytes += max(_LOOK_BYTES, len(data) // _LOOK_PART)
        if self._newest_first:
            _, first_offset, _ = batch.peek(data)
            stop = int(offsets.searchsorted(first_offset))
            chosen, rest = offsets[stop:], offsets[:stop]
        else:
            stop = int(offsets.searchsorted(next_offset))
            chosen, rest = offsets[:stop], offsets[stop:]
        done = int(chosen[0]), int(chosen[-1]) + 1  # no further: a gap may come before the next
        if not self._offer(data, done, chosen, sink):
            low, high = self.left
            return Look(offsets[slice(*offsets.searchsorted([low, high]).tolist())])
        self._reach(done)
        return Look(rest) if len(rest) else None

    def _look_bytes(self, offsets: Int64s) -> int:
        """Return the bytes to read for a look: 1 for a single batch, more when the next candidates
        are near."""
        if len(offsets) < 8:
            return 1
        if not self._record_bytes:
            tail = self._log.reader.tail(self._log.segment_id)
            records = max(1, tail.end_offset - int(offsets[0]))
            self._record_bytes = max(1.0, tail.length_bytes / records)
        near = int(offsets[7]) - int(offsets[0])
        return _SCAN_BYTES if near * self._record_bytes < _SCAN_BYTES else 1

    def _read(self, offset: int, max_bytes: int, end_offset: int) -> tuple[bytes, int] | Unread:
        """Batches from the one that holds ``offset`` to the one that holds the last before the
        end."""
        log = self._log
        found = log.reader.read(log.segment_id, offset, max_bytes, end_offset)
        visible = log.visible_end_offset
        if not isinstance(found, Unread) and not found[0] and end_offset < visible:
            found = log.reader.read(log.segment_id, offset, 1, visible)  # it ends within a batch
        if isinstance(found, Unread):
            return found
        if not found[0]:
            raise NotReplicaError(
                f"segment {log.segment_id} ends before {offset} on this node",
                segment_id=log.segment_id,
            )
        self._state.work.data_bytes += len(found[0])
        return found

    def _read_before(self, low: int, high: int) -> tuple[bytes, int] | Unread:
        """Batches that hold all from some offset on up to ``high``, and that offset.

        Logs are read forwards only. How many offsets fit into what may be read at once is guessed,
        from what the last ones took.
        """
        state = self._state
        state.window = state.window or self._first_window()
        while True:
            start = at = max(low, high - state.window)
            parts: list[bytes] = []
            length = 0
            while at < high and length < 2 * _SCAN_BYTES:
                found = self._read(at, _SCAN_BYTES, high)
                if isinstance(found, Unread):
                    return found
                data, at = found
                parts.append(data)
                length += len(data)
            if at >= high:
                if length < _SCAN_BYTES // 2:
                    state.window = min(2 * state.window, _WINDOW_OFFSETS_MAX)
                _, first_offset, _ = batch.peek(parts[0])
                return b"".join(parts), max(low, min(start, first_offset))
            state.window = max(1, state.window // 4)

    def _first_window(self) -> int:
        log = self._log
        tail = log.reader.tail(log.segment_id)
        _, high = self.left
        records = max(1, tail.end_offset - high)
        return max(1, min(_WINDOW_OFFSETS_MAX, _SCAN_BYTES * records // (tail.length_bytes or 1)))

    # --- comparing ------------------------------------------------------------------------------

    def _offer(self, data: bytes, done: OffsetRange, chosen: Int64s | None, sink: Sink) -> bool:
        """Give the sink the matching records of these batches, among the chosen offsets or all in a
        range. Return False when it is full before the end; ``left`` then says where."""
        found = list(_batches(data, done))
        self._state.work.effort_bytes += sum(map(_inflated_bytes, found)) // _LOOK_PART
        for each in reversed(found) if self._newest_first else found:
            try:
                picks, places = self._matching(each, done, chosen)
            except (CorruptBatchError, BatchTooLargeError) as error:
                if not sink.refuse(each, error):
                    self._reach(_edges(each.header.base_offset, each.header.end_offset))
                    return False
                continue
            if picks is None or not places:
                continue
            if self._newest_first:
                places.reverse()
            taken = sink.take(each, picks, places)
            if taken < len(places):
                offset = picks.offset_at(places[taken])
                self._reach(_edges(offset, offset + 1))
                return False
        return True

    def _matching(
        self, found: StoredBatch, asked: OffsetRange, chosen: Int64s | None
    ) -> tuple[Picks | None, list[int]]:
        """Return a batch and the places of the wanted records in it."""
        selection, header = self.selection, found.header
        if not selection.may_be_in(header):
            return None, []
        if chosen is not None:
            low, high = chosen.searchsorted([header.base_offset, header.end_offset]).tolist()
            if low == high:
                return None, []
            picks = BatchPicks(found.data, found.position, header)
            return picks, self._wanted(picks, picks.places_of(chosen[low:high]))
        if header.record_count <= _FEW:
            return self._matching_few(found, asked)
        if not selection.is_empty:
            index = decode_index(found.data, found.position, header)
            if not selection.may_match(index).any():
                return None, []
        columns = record.decode(found.data, found.position, header)
        first, stop = columns.offsets.searchsorted(asked).tolist()
        mask = selection.matches(columns)[first:stop]
        return ColumnPicks(columns), (mask.nonzero()[0] + first).tolist()

    def _matching_few(
        self, found: StoredBatch, asked: OffsetRange
    ) -> tuple[Picks | None, list[int]]:
        """Compare each record of a small batch: with few records that is faster than building
        columns."""
        keys = self.selection.key_hashes
        hashes = key_hashes_of(found.data, found.position, found.header) if keys else ()
        if keys and keys.isdisjoint(hashes):
            return None, []
        picks = BatchPicks(found.data, found.position, found.header)
        places = [at for at in range(len(picks)) if asked[0] <= picks.offset_at(at) < asked[1]]
        return picks, self._wanted(picks, places)

    def _wanted(self, picks: Picks, places: Sequence[int]) -> list[int]:
        if len(places) >= MANY:
            wanted = self.selection.places_in(picks.columns_at(places))
            return list(places) if len(wanted) == len(places) else [places[at] for at in wanted]
        wants, records = self.selection.wants, picks.records_at(places)
        return [at for at, each in zip(places, records, strict=True) if wants(each)]


def skips_by_time(summary: IndexSummary, selection: Selection) -> bool:
    """Return whether no event time of a log is wanted. Only a sealed log's times are known before
    it is read: other logs may have grown."""
    times = summary.timestamps_ms
    if summary.kind != SEALED_INDEX or times is None:
        return False
    return not selection.may_be_within(*times)


def _inflated_bytes(found: StoredBatch) -> int:
    """Return the bytes that reading a batch inflates: a compressed payload is inflated as a
    whole."""
    header = found.header
    return 0 if header.codec is batch.Codec.NONE else header.uncompressed_length


def _edges(low: int, high: int) -> OffsetRange:
    """Return the argument with which ``_reach`` stops the search in front of a range, from either
    side."""
    return high, low


def _batches(data: bytes, asked: OffsetRange) -> Iterator[StoredBatch]:
    position = 0
    while position < len(data):
        length, base_offset, end_offset = batch.peek(data, position)
        if end_offset > asked[0] and base_offset < asked[1]:
            yield StoredBatch(data, position, batch.parse_header(data, position))
        position += length
