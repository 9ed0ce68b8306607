"""One open replica in memory: its file, its tail, and where its newest batches start.

I/O workers change it, reader threads only look: whatever both touch is replaced in one step, never
edited in place. A file is closed when its last reader has left, so that a deleted file is never
recycled under someone who still reads it.
"""

from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from icecore.errors import IcecoreError, NotReplicaError
from node.executor import Lock
from node.ports import File
from node.storage.segment_file import FILE_HEADER_LENGTH
from node.storage.segment_index import PointMaker, key_prefix
from node.store import BatchMark, LogTail, SegmentIdentity

_RECENT_BATCHES = 4096
_RECENT_TAILS = 64
FIRST_ALLOCATION_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Sizes of the segment engine; tests shrink them."""

    group_bytes_max: int = 16 << 20
    """G: no more than this is written to one file between two syncs; recovery relies on it."""
    allocation_step_bytes: int = 8 << 20
    segment_bytes: int = 1 << 30
    """Where segments usually roll: the last step before it is smaller."""
    records_per_point: int = 1000
    bytes_per_point: int = 1 << 20
    sync_all_files_min: int = 32
    """From this many touched files on, one ``syncfs`` is cheaper than one fdatasync each."""
    open_files_max: int = 512
    """Sealed files kept open beyond their use."""
    recycle_bytes_max: int = 4 << 30
    """Of all files in the pool; 0 = there is none."""
    recycle_bytes_min: int = 8 << 20
    """Of a file that is worth keeping."""


class Recent:
    """Start offsets and positions of the newest batches, contiguous up to the end of the log.

    Append-only for its one writer; readers may look at any moment, since a position is there
    before its offset.
    """

    __slots__ = ("offsets", "positions")

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.positions: list[int] = []

    def add(self, offset: int, position: int) -> None:
        """One more batch."""
        self.positions.append(position)
        self.offsets.append(offset)

    def newest(self, count: int) -> "Recent":
        """A copy of the last ``count``."""
        copy = Recent()
        copy.offsets = self.offsets[-count:]
        copy.positions = self.positions[-count:]
        return copy

    def span(
        self, offset: int, max_bytes: int, end_offset: int, log_end_offset: int, log_position: int
    ) -> tuple[int, int, int] | None:
        """(position, length, next offset) of the batches to read; None when ``offset`` is older.

        The log's end is passed in as it was *before* this object was looked at.
        """
        offsets = self.offsets
        count = bisect_right(offsets, log_end_offset - 1)
        first = bisect_right(offsets, offset, 0, count) - 1
        if first < 0:
            return None
        positions = self.positions
        start = positions[first]
        stop = bisect_right(positions, start + max_bytes, first, count) - 1
        if stop == count - 1 and log_position - start <= max_bytes:
            stop = count
        # A batch that starts at end_offset or ends beyond it is not for this reader.
        if end_offset < log_end_offset:
            stop = min(stop, bisect_right(offsets, end_offset, first, count) - 1)
        stop = max(stop, first + 1)
        if stop >= count:
            return start, log_position - start, log_end_offset
        return start, positions[stop] - start, offsets[stop]


class SegmentLog:
    """An open replica. ``tail`` and ``position`` move together in ``end``."""

    __slots__ = (
        "_closing",
        "_is_open",
        "_lock",
        "_open",
        "_readers",
        "allocated",
        "end",
        "failed",
        "file",
        "identity",
        "is_sealed",
        "name",
        "points",
        "prefix",
        "recent",
        "start",
        "tails",
    )

    def __init__(
        self,
        identity: SegmentIdentity,
        name: str,
        file: File,
        start: LogTail,
        settings: StoreSettings,
        open_file: Callable[[str], File],
    ) -> None:
        """
        Args:
            file: Open already.
            start: The tail of the empty log; meaningless until confirmed.
            open_file: Opens ``name`` again after ``release``.
        """
        self.identity = identity
        self.name = name
        self.file = file
        self.start = start
        self.prefix = key_prefix(identity)
        self.end: tuple[LogTail, int] = (start, FILE_HEADER_LENGTH)
        """Durable tail and position (bytes)."""
        self.allocated = file.size()
        self.is_sealed = False
        self.failed: IcecoreError | None = None
        """Out of space in the middle of an append: nothing more until truncated or deleted."""
        self.recent = Recent()
        self.tails: deque[tuple[LogTail, int]] = deque(maxlen=_RECENT_TAILS)
        self.points = PointMaker(self.prefix, settings.records_per_point, settings.bytes_per_point)
        self._open = open_file
        self._is_open = True
        self._lock = Lock()
        self._readers = 0
        self._closing = False

    @property
    def tail(self) -> LogTail:
        """The durable tail."""
        return self.end[0]

    @property
    def is_confirmed(self) -> bool:
        """Whether the base offset is known."""
        return self.identity.base_offset >= 0

    def advance(self, marks: list[BatchMark], tail: LogTail) -> None:
        """Take over batches that are durable now."""
        recent, position = self.recent, self.end[1]
        for mark in marks:
            recent.add(mark.base_offset, position)
            position += mark.length_bytes
        self.end = (tail, position)
        self.tails.append(self.end)
        if len(recent.offsets) > 2 * _RECENT_BATCHES:
            self.recent = recent.newest(_RECENT_BATCHES)

    def rewind(self, tail: LogTail, position: int, settings: StoreSettings) -> None:
        """The file was cut to ``position``."""
        self.recent = Recent()
        self.tails.clear()
        self.points = PointMaker(self.prefix, settings.records_per_point, settings.bytes_per_point)
        self.end = (tail, position)
        self.allocated = position
        self.failed = None

    def nearest_tail(self, end_offset: int) -> tuple[LogTail, int]:
        """The latest remembered (tail, position) at or before ``end_offset``."""
        for tail, position in reversed(list(self.tails)):
            if tail.end_offset <= end_offset:
                return tail, position
        return self.start, FILE_HEADER_LENGTH

    # --- readers ------------------------------------------------------------------------------

    @contextmanager
    def reading(self) -> Iterator[File]:
        """Hold the file open while reading. Raises NotReplicaError when it is being closed."""
        with self._lock:
            if self._closing:
                raise NotReplicaError(
                    f"segment {self.identity.segment_id} is closed",
                    segment_id=self.identity.segment_id,
                )
            if not self._is_open:
                self.file = self._open(self.name)
                self._is_open = True
            self._readers += 1
        try:
            yield self.file
        finally:
            self._leave()

    def _leave(self) -> None:
        with self._lock:
            self._readers -= 1
            is_last = self._closing and self._readers == 0
        if is_last:
            self.file.close()

    def release(self) -> None:
        """Give the descriptor of a sealed file back unless someone reads; ``reading`` reopens."""
        with self._lock:
            if self._is_open and self._readers == 0 and not self._closing:
                self.file.close()
                self._is_open = False

    def close(self) -> bool:
        """No new readers; close the file now or with the last one.

        Returns:
            Whether it is closed already, so that nobody can read its bytes any more.
        """
        with self._lock:
            self._closing = True
            is_free = self._readers == 0
        if is_free:
            self.file.close()
        return is_free


class OpenFiles:
    """Bounds the descriptors held by sealed files: the least recently read one goes first."""

    def __init__(self, files_max: int) -> None:
        self._files_max = files_max
        self._logs: OrderedDict[int, SegmentLog] = OrderedDict()
        self._lock = Lock()

    def used(self, log: SegmentLog) -> None:
        """A sealed log was opened or is about to be read."""
        with self._lock:
            self._logs[log.identity.segment_id] = log
            self._logs.move_to_end(log.identity.segment_id)
            oldest = None
            if len(self._logs) > self._files_max:
                _, oldest = self._logs.popitem(last=False)
        if oldest is not None:
            oldest.release()

    def forget(self, segment_id: int) -> None:
        """The replica is gone."""
        with self._lock:
            self._logs.pop(segment_id, None)
