"""The data folder of a story about storage: the default engine on a simulated disk, watched.

Between the engine and the disk stand a file system and an index that write down what is done to
them, in order, and can fail for one segment. Nothing else is replaced: the engine is production's.
"""

import sqlite3
import struct
from collections.abc import Iterable, Sequence
from typing import Any

from icecore.errors import StorageError
from icecore_node.ports import Buffer, File, FileSystem
from icecore_node.storage.control.control_store import ControlStore
from icecore_node.storage.engine import AppendRequest
from icecore_node.storage.engines import make_store
from icecore_node.storage.index.points import read_durable
from icecore_node.storage.port import FoundReplica
from icecore_node.storage.replica_store import ReplicaStore
from icecore_node.storage.segment_engine.segment_header import FILE_HEADER_LENGTH
from icecore_node.storage.segment_engine.segment_log import LogSettings
from tests.conformance.log_builder import CLUSTER, LogBuilder
from tests.simulation.disk import SimDisk, SimFileSystem
from tests.simulation.index import SimIndex, SimIndexDisk

_PREFIX = struct.Struct(">Q")


class Watch:
    """Record of operations in order since the last look, and the writes that are to fail."""

    def __init__(self) -> None:
        self.failing_writes: set[int] = set()
        """Segments to whose files nothing can be written."""
        self._lines: list[str] = []

    def note(self, line: str) -> None:
        """One more operation."""
        self._lines.append(line)

    def noted(self) -> list[str]:
        """All of them."""
        lines, self._lines = self._lines, []
        return lines


class WatchedFile:
    """A segment's file; what is not worth a line goes straight through."""

    def __init__(self, file: File, segment_id: int, watch: Watch) -> None:
        self._file = file
        self._segment_id = segment_id
        self._watch = watch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> None:
        """As node.ports."""
        length = sum(memoryview(buffer).nbytes for buffer in buffers)
        where = f"segment {self._segment_id}: write [{position}, {position + length})"
        if self._segment_id in self._watch.failing_writes:
            self._watch.note(f"{where}, which fails")
            raise StorageError("input/output error")
        self._file.pwritev(buffers, position)
        self._watch.note(where)

    def fdatasync(self) -> None:
        """As node.ports."""
        self._watch.note(f"segment {self._segment_id}: sync")
        self._file.fdatasync()

    def truncate(self, length: int) -> None:
        """As node.ports."""
        self._watch.note(f"segment {self._segment_id}: cut the file to {length} bytes")
        self._file.truncate(length)


class WatchedFiles:
    """A file system that gives out watched files."""

    def __init__(self, files: FileSystem, watch: Watch) -> None:
        self._files = files
        self._watch = watch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def open(self, name: str, *, create: bool = False) -> WatchedFile:
        """As node.ports."""
        segment_id = int(name.rpartition("/")[2].split(".")[0])
        return WatchedFile(self._files.open(name, create=create), segment_id, self._watch)

    def sync_all(self) -> None:
        """As node.ports."""
        self._watch.note("all files: sync")
        self._files.sync_all()


class WatchedIndex:
    """An index that tells how far each batch of puts says that logs are durable."""

    def __init__(self, index: SimIndex, watch: Watch) -> None:
        self._index = index
        self._watch = watch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._index, name)

    def write(self, puts: Iterable[tuple[str, bytes, bytes]]) -> None:
        """As node.ports."""
        batch = list(puts)
        self._index.write(batch)
        ends = []
        for family, key, _ in batch:
            if family == "durable":
                [prefix] = _PREFIX.unpack(key)
                found = read_durable(self._index, prefix, FILE_HEADER_LENGTH)
                assert found is not None
                ends.append(f"segment {prefix >> 16} to {found[1].end_offset}")
        told = f"durable {', '.join(ends)}" if ends else "points only"
        self._watch.note(f"index: one batch, {told}")

    def wipe(self) -> None:
        """As node.ports."""
        self._watch.note("index: begun anew")
        self._index.wipe()


class StorageRoom:
    """One data folder, and the logs that are to be in it; ``start`` begins a process."""

    def __init__(self) -> None:
        self.disk = SimDisk()
        self.watch = Watch()
        self.logs: dict[int, LogBuilder] = {}
        self.group: dict[str, AppendRequest] = {}
        """Requests of the next commit, by the names that the scenario gives them."""
        self._settings = LogSettings()
        self.index_disk = SimIndexDisk()
        self._control = ControlStore(sqlite3.connect(":memory:", isolation_level=None))
        self.store: ReplicaStore

    def start(self, settings: LogSettings | None = None) -> list[FoundReplica]:
        """A process opens the folder, whatever became of the one before."""
        self._settings = settings or self._settings
        self.store = make_store(
            WatchedFiles(SimFileSystem(self.disk, None), self.watch),
            WatchedIndex(SimIndex(self.index_disk, None), self.watch),
            self._control,
            CLUSTER,
            self._settings,
        )
        return self.store.start_up()

    def create(self, count: int) -> None:
        """Create ``count`` empty logs, of segments 1, 2, …, which begin at offset 0."""
        self.logs = {number: LogBuilder(number) for number in range(1, count + 1)}
        identities = [log.identity for log in self.logs.values()]
        errors = self.store.creation.create(identities, dict.fromkeys(self.logs, (b"", 0)))
        assert errors == [None] * count, errors
