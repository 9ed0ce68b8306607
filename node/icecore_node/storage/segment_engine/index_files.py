"""Index files of sealed logs: made beside the data file, opened when they are needed.

The format is in ``sealed_index.py``. A file is written under another name, synced, and renamed, so
that one with the right name is whole unless its disk has harmed it. It names the seal digest: one
that tells of other bytes than those of the log counts for nothing. Header and directory of the most
recently used stay in memory; their descriptors are among those of all logs.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from icecore.codec.columns import UInt64s
from icecore.errors import SHORTAGES, OutOfSpaceError, StorageError
from icecore_node.ports import DiskFailedError, DiskLostError, FileSystem
from icecore_node.storage.control.fail_stop import FailStop
from icecore_node.storage.engine import SegmentIdentity
from icecore_node.storage.files.locks import Lock
from icecore_node.storage.files.open_files import LogFile, OpenFiles
from icecore_node.storage.index.entries import Entries, UInt32s
from icecore_node.storage.index.posting_blocks import DamagedIndexError
from icecore_node.storage.segment_engine.sealed_index import (
    Points,
    SealedFacts,
    SealedIndex,
    write_sealed_index,
)
from icecore_node.storage.segment_engine.segment_log import SegmentLog
from icecore_node.storage.segment_engine.segment_names import (
    aside_name,
    folder_name,
    index_file_name,
    unfinished_name,
)

_ENTRY_BYTES_MAX = 16
_FREE_MIN_PART = 20


class IndexFiles:
    """The index files of sealed logs in one data folder.

    Args:
        file_system: The data folder.
        open_files: Gives out descriptors, also for other files.
        fail_stop: Syncs files.
        sync_folder: Makes names durable; ends the process if that fails.
        open_max: Number of indexes kept in memory.
    """

    def __init__(
        self,
        file_system: FileSystem,
        open_files: OpenFiles,
        fail_stop: FailStop,
        sync_folder: Callable[[str], None],
        open_max: int,
    ) -> None:
        self._fs = file_system
        self._open_files = open_files
        self._fail_stop = fail_stop
        self._sync_folder = sync_folder
        self._open_max = open_max
        self._opened: OrderedDict[SealedCover, SealedIndex] = OrderedDict()
        self._lock = Lock()

    def check_room(self, entries: int) -> None:
        """Raises OutOfSpaceError when the disk has little left beside so many entries: that is for
        records, which matter more."""
        used, free = self._fs.space()
        if free < entries * _ENTRY_BYTES_MAX + (used + free) // _FREE_MIN_PART:
            raise OutOfSpaceError(f"{free} bytes are free, too few to index {entries} entries")

    def exists(self, identity: SegmentIdentity) -> bool:
        """Return whether there is a file of that name."""
        return self._fs.exists(index_file_name(identity))

    def cover(self, log: SegmentLog) -> "SealedCover":
        """The whole of a sealed log, by its file, which is not looked at yet."""
        tail = log.tail
        name = index_file_name(log.identity)
        handle = LogFile(log.identity.segment_id, name, self._open_files)
        return SealedCover(
            log.identity.base_offset, tail.end_offset, log.identity, tail.digest, handle, self
        )

    def opened(self, cover: "SealedCover") -> SealedIndex:
        """Raises DamagedIndexError when the file is gone, or is not what it should be."""
        with self._lock:
            found = self._opened.get(cover)
            if found is not None:
                self._opened.move_to_end(cover)
                return found
        found = SealedIndex(cover.read)
        _check(found.facts, cover)
        with self._lock:
            self._opened[cover] = found
            while len(self._opened) > self._open_max:
                self._opened.popitem(last=False)
        return found

    def forget(self, cover: "SealedCover") -> None:
        """Close what is open of it."""
        with self._lock:
            self._opened.pop(cover, None)
        cover.handle.close()

    def write(
        self, log: SegmentLog, parts: Iterable[Entries], entries_max: int, of: "Told"
    ) -> None:
        """Make the file of a sealed log, durably."""
        identity = log.identity
        name, unfinished = index_file_name(identity), unfinished_name(identity)
        self._clear(unfinished)
        file, is_whole = self._fs.open(unfinished, create=True), False
        try:
            write_sealed_index(file, of.facts(log), parts, entries_max, of.points, b"")
            # Nothing is lost with it, but a disk that fails a sync is trusted with nothing more.
            self._fail_stop.sync([], file.fdatasync)
            is_whole = True
        finally:
            file.close()
            if not is_whole:
                self._fs.unlink(unfinished)
        try:
            self._fs.rename(unfinished, name)
        except (DiskFailedError, DiskLostError, *SHORTAGES):
            raise
        except StorageError:  # a folder is in the way
            self._clear(name)
            self._fs.rename(unfinished, name)
        self._sync_folder(folder_name(identity))

    def remove(self, identity: SegmentIdentity) -> None:
        """Remove the index file of a log. The next folder sync makes that durable."""
        for name in (index_file_name(identity), unfinished_name(identity)):
            self._clear(name)

    def _clear(self, name: str) -> None:
        """Free a name. A thing there that is no file, and so none of ours, is set aside."""
        if not self._fs.exists(name):
            return
        try:
            self._fs.unlink(name)
        except (DiskFailedError, DiskLostError, *SHORTAGES):
            raise
        except StorageError:
            self._fs.rename(name, aside_name(self._fs, name))


@dataclass(frozen=True, slots=True)
class Told:
    """Facts about a log from the headers of its batches, besides their entries."""

    points: Points
    min_timestamp_ms: int
    max_timestamp_ms: int

    def facts(self, log: SegmentLog) -> SealedFacts:
        """For the header."""
        identity, tail = log.identity, log.tail
        return SealedFacts(
            cluster_id=identity.cluster_id,
            topic_id=identity.topic_id,
            partition=identity.partition,
            segment_id=identity.segment_id,
            generation=identity.generation,
            epoch=identity.epoch,
            base_offset=identity.base_offset,
            end_offset=tail.end_offset,
            seal_digest=tail.digest,
            min_timestamp_ms=self.min_timestamp_ms,
            max_timestamp_ms=self.max_timestamp_ms,
        )


@dataclass(frozen=True, slots=True, eq=False)
class SealedCover:
    """A ``Cover``: the index file of a sealed log."""

    from_offset: int
    end_offset: int
    identity: SegmentIdentity
    seal_digest: bytes
    handle: LogFile
    files: IndexFiles

    @property
    def index(self) -> SealedIndex:
        """Opened. Raises DamagedIndexError."""
        return self.files.opened(self)

    @property
    def entries(self) -> int:
        """See ``Cover``."""
        return self.index.run.directory.entries

    def find(self, wanted: UInt64s) -> tuple[list[UInt32s], int]:
        """See ``Cover.find``."""
        return self.index.run.find(wanted)

    def walk(self) -> Iterator[Entries]:
        """See ``Cover.walk``."""
        return self.index.run.walk()

    def release(self) -> None:
        """See ``Cover.release``."""
        self.files.forget(self)

    def read(self, length: int, position: int) -> bytes:
        """Bytes of the file; fewer only at its end."""
        try:
            with self.handle.using() as file:
                return file.pread(length, position)
        except SHORTAGES:
            raise
        except StorageError as error:
            raise DamagedIndexError(str(error)) from error


def _check(facts: SealedFacts, cover: SealedCover) -> None:
    identity = cover.identity
    found = (
        (facts.cluster_id, facts.topic_id, facts.partition),
        (facts.segment_id, facts.generation, facts.epoch),
        (facts.base_offset, facts.end_offset, facts.seal_digest),
    )
    if found != (
        (identity.cluster_id, identity.topic_id, identity.partition),
        (identity.segment_id, identity.generation, identity.epoch),
        (cover.from_offset, cover.end_offset, cover.seal_digest),
    ):
        raise DamagedIndexError(f"the index file is that of {facts}")
