"""A lane: what one I/O worker appends to. One file at a time, one write and one sync for all.

A lane belongs to a worker, and each log to the lane of its partition, so that appends wait for
nobody. Making, dropping and setting aside come from other threads and take the lane's lock for a
sync, which is the only lock that is held while the disk works. A file that is full, or of another
process, is never written again: the next one begins with what *stands*, all logs of the lane and
where they end, and so what older files say is settled by it. That holds for a file whose making
failed, too: it may be on disk all the same, and would settle what an older one is told later.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from icecore.errors import OutOfSpaceError
from icecore.model import SegmentId
from icecore_node.ports import Buffer, DiskFailedError
from icecore_node.storage.control.fail_stop import FailStop
from icecore_node.storage.files.locks import Lock
from icecore_node.storage.segment_engine.segment_log import FIRST_ALLOCATION_BYTES, LogSettings
from icecore_node.storage.shared_engine.frames import (
    FIRST_TWIN,
    SECOND_TWIN,
    Entry,
    encode_frame,
    frame_length,
)
from icecore_node.storage.shared_engine.shared_files import SharedFile, SharedFiles


@dataclass(slots=True)
class Block:
    """Entries and batches that are written as one frame; without batches, as two frames."""

    entries: list[Entry] = field(default_factory=list)
    buffers: list[Buffer] = field(default_factory=list)
    """Buffers of all batches, in the order of the entries."""

    @property
    def length(self) -> int:
        """On disk."""
        length = sum(entry.length for entry in self.entries)
        return frame_length(len(self.entries)) * (1 if length else 2) + length


@dataclass(slots=True)
class _Appending:
    """The file that is written, and what its next frame needs to know."""

    file: SharedFile
    allocated: int
    sequence: int = 0
    crc32c: int = 0


class _Writing:
    """One write: frames and batches, from the end of a file on."""

    __slots__ = ("_synced_position", "buffers", "position", "starts", "to")

    def __init__(self, to: _Appending, blocks: Sequence[Block]) -> None:
        self.to = _Appending(to.file, to.allocated, to.sequence, to.crc32c)
        self.position = self._synced_position = to.file.end_position
        self.buffers: list[Buffer] = []
        self.starts = [self._add(block) for block in blocks]
        """Where the batches of each block begin."""

    def _add(self, block: Block) -> int:
        if not block.buffers:
            self._frame(block, FIRST_TWIN)
            self._frame(block, SECOND_TWIN)
            return self.position
        self._frame(block, 0)
        start = self.position
        self.buffers += block.buffers
        self.position += sum(entry.length for entry in block.entries)
        return start

    def _frame(self, block: Block, flags: int) -> None:
        to = self.to
        frame, to.crc32c = encode_frame(
            to.file.number,
            to.sequence,
            flags,
            self._synced_position,
            to.crc32c,
            block.entries,
        )
        self.buffers.append(frame)
        self.position += len(frame)
        to.sequence += 1


class Lane:
    """The shared files of one I/O worker, one of which it appends to."""

    def __init__(
        self,
        files: SharedFiles,
        fail_stop: FailStop,
        settings: LogSettings,
        standing: Callable[[], list[Entry]],
    ) -> None:
        """
        Args:
            files: Of the data folder.
            fail_stop: Syncs.
            settings: Sizes.
            standing: What a new file begins with: an entry for each log of this lane.
        """
        self._files = files
        self._fail_stop = fail_stop
        self._settings = settings
        self._standing = standing
        self._lock = Lock()
        self._to: _Appending | None = None

    @property
    def has_file(self) -> bool:
        """Return whether what stands is on disk."""
        return self._to is not None

    def commit(
        self,
        blocks: Sequence[Block],
        doubtful: Sequence[SegmentId],
        done: Callable[[SharedFile, Sequence[int]], None],
    ) -> None:
        """Write all and sync once.

        Args:
            blocks: One frame each, or two.
            doubtful: Whose log can't be trusted if the sync fails.
            done: Called once all is durable, before anything else is written: moves the ends of
                logs. Gets the file, and for each block where its batches begin.

        Raises:
            DiskFailedError: The sync failed.
            OutOfSpaceError, OutOfResourcesError, StorageError: Nothing was written that counts.
        """
        with self._lock:
            length = sum(block.length for block in blocks)
            to, limit = self._to, self._settings.shared_file_bytes
            if to is not None and to.file.end_position + length <= limit:
                writing = _Writing(to, blocks)
                self._write(writing, doubtful)
                starts = writing.starts
            else:
                writing, starts = self._begin_file(blocks, length, doubtful)
            file = writing.to.file
            file.end_position = writing.position
            self._to = writing.to
            self._files.note(file)
            done(file, starts)

    def settle(self, change: Callable[[], None]) -> None:
        """Change something while nothing is committed."""
        with self._lock:
            change()

    def _begin_file(
        self, blocks: Sequence[Block], length: int, doubtful: Sequence[SegmentId]
    ) -> tuple[_Writing, list[int]]:
        standing = Block(self._standing())
        allocated = max(length + standing.length, self._first_allocation())
        file = self._files.begin(allocated)
        old, self._to = self._to, None
        if old is not None:
            old.file.is_appended = False
        writing = _Writing(_Appending(file, allocated), [standing, *blocks])
        try:
            self._write(writing, doubtful)
            self._files.sync_names()
        except DiskFailedError:
            raise
        except BaseException:
            self._files.undo(file)
            raise
        return writing, writing.starts[1:]

    def _first_allocation(self) -> int:
        settings = self._settings
        return min(FIRST_ALLOCATION_BYTES, settings.allocation_step_bytes)

    def _write(self, writing: _Writing, doubtful: Sequence[SegmentId]) -> None:
        file = writing.to.file
        with file.handle.using() as opened:
            if writing.position > writing.to.allocated:
                self._reserve(writing.to, opened.allocate, writing.position)
            opened.pwritev(writing.buffers, file.end_position)
            self._fail_stop.sync(doubtful, opened.fdatasync)

    def _reserve(self, to: _Appending, allocate: Callable[[int, int], None], need: int) -> None:
        """Allocate ahead in steps that double; exactly what is needed if that fails."""
        settings, have = self._settings, to.allocated
        step = min(settings.allocation_step_bytes, max(FIRST_ALLOCATION_BYTES, have))
        target = max(need, min(have + step, settings.shared_file_bytes))
        try:
            allocate(have, target - have)
        except OutOfSpaceError:
            if target == need:
                raise
            target = need
            allocate(have, target - have)
        to.allocated = target
