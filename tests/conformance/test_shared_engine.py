"""The engine of shared files behind the suites of all engines, on a simulated disk and on files."""

import random
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from icecore.topic_settings import SEGMENT_ENGINE
from icecore_node.ports import FileSystem, Index
from icecore_node.storage.control.control_store import ControlStore
from icecore_node.storage.data_folder import DataFolder
from icecore_node.storage.index.derived_index import DerivedIndex
from icecore_node.storage.port import FoundReplica
from icecore_node.storage.replica_store import ReplicaStore
from icecore_node.storage.segment_engine.segment_log import LogSettings
from icecore_node.storage.shared_engine.shared_engine import SharedEngine
from icecore_node.storage.shared_engine.shared_files import file_name
from tests.conformance.engine_suite import EngineConformance
from tests.conformance.log_builder import CLUSTER
from tests.conformance.segment_store_suite import ReplicaStoreConformance
from tests.simulation.disk import SimDisk, SimFileSystem
from tests.simulation.index import SimIndex, SimIndexDisk
from tests.simulation.ports import memory_database

SMALL = LogSettings(
    allocation_step_bytes=16 << 10,
    io_workers=2,
    shared_file_bytes=48 << 10,
    shared_copy_bytes=2 << 10,
)


def make_engine(files: FileSystem, index: Index, condemn: object) -> SharedEngine:
    """An engine that has the index for itself."""
    return SharedEngine(files, DerivedIndex(index, list), SMALL, condemn)  # type: ignore[arg-type]


def places(engine: SharedEngine, segment_id: int) -> list[tuple[str, int, int]]:
    """(file, position, length) of the runs of a log, also of one that is not used."""
    log = engine._logs.get(segment_id)
    runs = log.all_runs() if log else engine._untrusted[segment_id]
    return [(file_name(run.number), run.position, run.length) for run in runs]


class SharedBench:
    """The engine on a simulated disk; each kill is a power cut if there is a seed."""

    def __init__(self, power_cut: int | None) -> None:
        self.disk, self.index = SimDisk(), SimIndexDisk()
        self.condemned: dict[int, str] = {}
        self._rng = None if power_cut is None else random.Random(power_cut)
        self._open()

    def _open(self) -> None:
        files, index = SimFileSystem(self.disk, None), SimIndex(self.index, None)
        self.engine = make_engine(files, index, self.condemned.update)
        self.engine.start_up([], [])

    def kill(self) -> None:
        if self._rng is not None:
            self.disk.power_cut(self._rng)
            self.index.power_cut(self._rng)
        files, index = SimFileSystem(self.disk, None), SimIndex(self.index, None)
        self.engine = make_engine(files, index, self.condemned.update)

    def lose(self, segment_id: int) -> None:
        files = SimFileSystem(self.disk, None)
        for name, position, length in places(self.engine, segment_id):
            file = files.open(name)
            file.pwritev([bytes(length)], position)
            file.fdatasync()


class TestSharedEngine(EngineConformance):
    """icecore_node.storage.shared_engine.shared_engine."""

    @pytest.fixture(params=[None, 0, 1, 2])
    def bench(self, request: pytest.FixtureRequest) -> SharedBench:
        return SharedBench(request.param)


class SharedHarness:
    """A store over a simulated disk whose only engine is this, under the name of the usual one."""

    def __init__(self) -> None:
        self.disk, self.index = SimDisk(), SimIndexDisk()
        self._control: sqlite3.Connection = memory_database()
        self._open()

    def _open(self) -> list[FoundReplica]:
        control = ControlStore(self._control)
        files, index = SimFileSystem(self.disk, None), SimIndex(self.index, None)
        self.engine = make_engine(files, index, control.condemn)
        self.store = ReplicaStore(control, {SEGMENT_ENGINE: self.engine}, CLUSTER, "boot")
        return self.store.start_up()

    def kill(self) -> list[FoundReplica]:
        return self._open()

    def stop(self) -> list[FoundReplica]:
        self.store.close()
        return self._open()

    def damage(self, segment_id: int, position: int) -> None:
        for name, start, length in places(self.engine, segment_id):
            if position < length:
                self.disk.names[name].flip_bit(start + position, 4)
                return
            position -= length


class TestStoreOverSharedEngine(ReplicaStoreConformance):
    """icecore_node.storage.replica_store over the shared engine."""

    @pytest.fixture
    def harness(self) -> SharedHarness:
        return SharedHarness()


class SharedDiskHarness:
    """The same over a real data folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._open()

    def _open(self) -> list[FoundReplica]:
        self.folder = folder = DataFolder.open(self.path, 1, CLUSTER)
        self.engine = make_engine(folder.files, folder.index, folder.control.condemn)
        self.store = ReplicaStore(folder.control, {SEGMENT_ENGINE: self.engine}, CLUSTER, "boot")
        return self.store.start_up()

    def kill(self) -> list[FoundReplica]:
        self.engine._files.close()
        self.folder.close()
        return self._open()

    def stop(self) -> list[FoundReplica]:
        self.store.close()
        return self.kill()

    def damage(self, segment_id: int, position: int) -> None:
        for name, start, length in places(self.engine, segment_id):
            if position < length:
                data = bytearray((self.path / name).read_bytes())
                data[start + position] ^= 0x10
                (self.path / name).write_bytes(data)
                return
            position -= length


class TestStoreOverSharedFiles(ReplicaStoreConformance):
    """icecore_node.storage.replica_store over the shared engine, on real files."""

    @pytest.fixture
    def harness(self, tmp_path: Path) -> Iterator[SharedDiskHarness]:
        harness = SharedDiskHarness(tmp_path / "data")
        yield harness
        harness.engine._files.close()
        harness.folder.close()
