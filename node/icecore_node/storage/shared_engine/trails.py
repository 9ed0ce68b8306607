"""Trail of each log through all shared files: its runs in order, and where it must end.

Files are told in the order of their numbers, frames in the order in which they lie. An append says
where the log ended before it, and a frame without batches where it ends now: what was found behind
that has been cut, even if the frame of the cut is no more. Batches that were copied take the place
of what they are copies of, or fill the gap that it has left.

A log is *suspect* while there may have been something of it in a hole. Whatever is told of it after
the hole clears it, for that says where the log ended; what its chain then lacks is found later.
"""

from dataclasses import dataclass, field, replace

from icecore.model import Generation, SegmentId
from icecore_node.storage.shared_engine.file_scan import ANY_GENERATION, Hole, ScannedFile
from icecore_node.storage.shared_engine.frames import (
    APPENDED,
    BEGUN,
    COPIED,
    GONE,
    NO_BATCHES,
    STANDS,
    Entry,
)

LogKey = tuple[SegmentId, Generation]


@dataclass(slots=True)
class FoundRun:
    """Batches of one log, one behind the other in one file, as a frame tells."""

    first_offset: int
    end_offset: int
    number: int
    position: int
    length: int
    is_synced: bool
    cut_offset: int | None = None
    """From this offset on the run does not count: the log was cut, or another run has it."""
    from_offset: int | None = None
    """Before this offset the run does not count: another run has it."""

    @property
    def start_offset(self) -> int:
        """Return where its part of the log begins."""
        return self.first_offset if self.from_offset is None else self.from_offset

    @property
    def stop_offset(self) -> int:
        """Return where its part of the log ends."""
        return self.end_offset if self.cut_offset is None else self.cut_offset


@dataclass(slots=True)
class Trail:
    """The runs and the end of one log, as frames tell them."""

    runs: list[FoundRun] = field(default_factory=list)
    end_offset: int = NO_BATCHES
    """It ends there or later: this was on disk."""
    last_header_crc32c: int = 0
    """Header CRC of the batch that ends there; 0 where it was not told."""
    high_watermark: int = 0
    is_confirmed: bool = False
    """Its base was known when it was told of."""
    is_suspect: bool = False

    def cut(self, end_offset: int) -> None:
        """Drop runs behind this end, which are no part of the log; runs before it were on disk."""
        runs = self.runs
        while runs and runs[-1].start_offset >= end_offset:
            runs.pop()
        if runs and runs[-1].stop_offset > end_offset:
            runs[-1].cut_offset = end_offset
        for run in reversed(runs):
            if run.is_synced:
                break
            run.is_synced = True

    def appended(self, run: FoundRun, last_header_crc32c: int) -> None:
        """Batches behind its end."""
        self.cut(run.first_offset)
        self.runs.append(run)
        if run.is_synced:
            self.end_offset, self.last_header_crc32c = run.end_offset, last_header_crc32c
        elif self.end_offset != run.first_offset:
            self.end_offset, self.last_header_crc32c = run.first_offset, 0

    def lacks(self, copy: FoundRun) -> bool:
        """Return whether nothing of these offsets is told of otherwise."""
        return all(
            run.stop_offset <= copy.first_offset or run.start_offset >= copy.end_offset
            for run in self.runs
        )

    def copied(self, copy: FoundRun) -> None:
        """It takes the place of whatever has the same offsets. A run that was copied with others
        before may be copied in parts later; what it has besides this part still counts."""
        kept: list[FoundRun] = []
        for run in self.runs:
            if run.stop_offset <= copy.first_offset or run.start_offset >= copy.end_offset:
                kept.append(run)
                continue
            if run.start_offset < copy.first_offset:
                kept.append(replace(run, cut_offset=copy.first_offset))
            if run.stop_offset > copy.end_offset:
                kept.append(replace(run, from_offset=copy.end_offset))
        kept.append(copy)
        self.runs = sorted(kept, key=lambda run: run.start_offset)


class Trails:
    """The trails of all logs of which any file tells."""

    def __init__(self) -> None:
        self._trails: dict[LogKey, Trail] = {}
        self._generations: dict[SegmentId, Generation] = {}
        """The latest that was told of each segment."""

    def take(self, key: LogKey) -> Trail | None:
        """Remove the trail of a log and return it; None when no file tells of the log."""
        return self._trails.pop(key, None)

    def rest(self) -> dict[LogKey, Trail]:
        """Those that nobody has taken."""
        return self._trails

    def add_file(self, number: int, scanned: ScannedFile) -> int:
        """Add the frames of one file; older files must be added before.

        Returns:
            The position up to which the file counts: the start of its first frame with a copy that
            is passed over, because no frame says that it was on disk; else the end of the file.
        """
        members: set[LogKey] = set()
        end_position = scanned.end_position
        for part in scanned.parts:
            if isinstance(part, Hole):
                self._suspect(members if part.position else None)
                continue
            position, is_synced = part.batches_position, scanned.is_synced(part)
            for entry in part.entries:
                run = FoundRun(
                    entry.first_offset, entry.end_offset, number, position, entry.length, is_synced
                )
                key, is_used = self._tell(entry, run)
                members.add(key)
                if not is_used:
                    end_position = min(end_position, part.position)
                position += entry.length
        return end_position

    def lost_file(self) -> None:
        """A file is gone, or can't be read."""
        self._suspect(None)

    def _suspect(self, members: set[LogKey] | None) -> None:
        """Something of these logs may be missing; of any log, if it is not known whose it was."""
        for key in self._trails if members is None else members:
            if key in self._trails:
                self._trails[key].is_suspect = True

    def _tell(self, entry: Entry, run: FoundRun) -> tuple[LogKey, bool]:
        """Add one entry to the trail of its log; return the log, and whether the entry counts."""
        generation = entry.generation
        if generation == ANY_GENERATION:
            generation = self._generations.get(entry.segment_id, Generation(0))
        self._generations[entry.segment_id] = generation
        key = (entry.segment_id, generation)
        if entry.kind == GONE:
            self._trails.pop(key, None)
            return key, True
        if entry.kind == BEGUN:
            self._trails[key] = Trail()
        trail = self._trails.setdefault(key, Trail())
        trail.high_watermark = max(trail.high_watermark, entry.high_watermark)
        if entry.kind in (STANDS, BEGUN):
            trail.cut(entry.end_offset)
            trail.end_offset = entry.end_offset
            trail.last_header_crc32c = entry.last_header_crc32c
            trail.is_confirmed = entry.first_offset >= 0
            trail.is_suspect = False
            return key, True
        if entry.kind == COPIED or _is_copy(trail, run, entry):
            # The original stays until the copy is on disk: without one the copy was.
            is_used = run.is_synced or trail.lacks(run)
            if is_used:
                trail.copied(run)
            return key, is_used
        if entry.kind == APPENDED:
            trail.appended(run, entry.last_header_crc32c)
            trail.is_suspect = False
        return key, True


def _is_copy(trail: Trail, run: FoundRun, entry: Entry) -> bool:
    """Return whether batches whose frame is bad were a copy: then the log had gone further
    already."""
    return entry.generation == ANY_GENERATION and run.first_offset < trail.end_offset
