"""One replica in memory: its tail, where its newest batches start, and the way to its file.

I/O workers change it, reader threads only look: whatever both touch is replaced in one step, never
edited in place.
"""

from collections import deque
from dataclasses import dataclass

from icecore.errors import IcecoreError
from icecore_node.ports import File
from icecore_node.storage.batches.batch_log import Place
from icecore_node.storage.batches.recent_batches import RecentBatches
from icecore_node.storage.engine import BatchMark, LogTail, SegmentIdentity
from icecore_node.storage.files.open_files import LogFile
from icecore_node.storage.index.coverage import Coverage
from icecore_node.storage.index.points import PointMaker, key_prefix
from icecore_node.storage.segment_engine.segment_header import FILE_HEADER_LENGTH
from icecore_node.storage.segment_engine.unsynced import Unsynced

_RECENT_BATCHES = 4096
_RECENT_TAILS = 64
FIRST_ALLOCATION_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class LogSettings:
    """Sizes of the segment engine and of those beside it; tests shrink them."""

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
    """Segment files kept open beyond their use."""
    descriptors_reserve: int = 0
    """With fewer descriptors left nothing is created: what is there needs them."""
    recycle_bytes_max: int = 4 << 30
    """Maximum size of all files in the recycle pool; 0 = there is none."""
    recycle_bytes_min: int = 8 << 20
    """Minimum size of a file that the recycle pool keeps."""
    recent_entries_bytes_max: int = 64 << 20
    """Memory for recent entries of all logs. When half of it is used, runs are made early. Entries
    that find no room are indexed later, in the background."""
    entries_per_run: int = 256 << 10
    """Number of recent entries that become a run. They take 3 MiB in memory, and a look-up of one
    key searches them in about 50 us. Larger runs are merged less often."""
    memory_engine_bytes: int = 1 << 30
    """Memory for all logs of the engine ``memory``; see ``memory_budget.py``."""
    open_indexes_max: int = 256
    """Index files of sealed logs whose directories are kept in memory, 64 KiB each at most."""
    io_workers: int = 1
    """So many append at a time, each to a shared file of its own."""
    shared_file_bytes: int = 256 << 20
    """Maximum size of a shared file; one group that is larger has a file of its own."""
    shared_copy_bytes: int = 1 << 20
    """So much is copied out of an old shared file with each group, where one is to be emptied."""


class SegmentLog:
    """An open replica; a ``BatchLog``."""

    __slots__ = (
        "allocated",
        "base",
        "coverage",
        "end",
        "failed",
        "flush",
        "handle",
        "identity",
        "is_being_cut",
        "is_sealed",
        "points",
        "prefix",
        "recent",
        "tails",
        "unsynced",
    )

    def __init__(
        self,
        identity: SegmentIdentity,
        handle: LogFile,
        size_bytes: int,
        start: LogTail,
        settings: LogSettings,
        coverage: Coverage,
    ) -> None:
        """
        Args:
            size_bytes: Of the file.
            start: The tail of the empty log; meaningless until confirmed.
            coverage: What is indexed of it.
        """
        self.identity = identity
        self.coverage = coverage
        self.handle = handle
        self.prefix = key_prefix(identity)
        self.base: Place = (start, FILE_HEADER_LENGTH)
        self.end: Place = self.base
        """Durable tail and position (bytes), but for ``unsynced_bytes``; they move together."""
        self.flush = identity.flush
        """Bounds of what may be left unsynced; None = every append is synced."""
        self.unsynced = Unsynced() if identity.flush else None
        """Written, counted, and not synced: the file is held meanwhile. None = always nothing."""
        self.allocated = size_bytes
        self.is_sealed = False
        self.is_being_cut = False
        """The end is about to move back: an index that is made anew must not tell of it."""
        self.failed: IcecoreError | None = None
        """Error of a failed append; the log refuses appends until it is truncated or deleted."""
        self.recent = RecentBatches()
        self.tails: deque[Place] = deque(maxlen=_RECENT_TAILS)
        self.points = PointMaker(self.prefix, settings.records_per_point, settings.bytes_per_point)

    @property
    def file(self) -> File:
        """The open file, for who holds ``handle``."""
        return self.handle.file

    @property
    def unsynced_bytes(self) -> int:
        """So many of the last ones may not be on disk."""
        return self.unsynced.bytes if self.unsynced else 0

    @property
    def tail(self) -> LogTail:
        """The durable tail."""
        return self.end[0]

    @property
    def is_confirmed(self) -> bool:
        """Return whether the base offset is known."""
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

    def rewind(self, tail: LogTail, position: int, settings: LogSettings) -> None:
        """The file was cut to ``position``."""
        self.recent = RecentBatches()
        self.tails.clear()
        self.points = PointMaker(self.prefix, settings.records_per_point, settings.bytes_per_point)
        self.end = (tail, position)
        self.allocated = position
        self.failed = None

    def nearest_tail(self, end_offset: int) -> Place:
        """The latest remembered place at or before ``end_offset``."""
        for place in reversed(list(self.tails)):
            if place[0].end_offset <= end_offset:
                return place
        return self.base
