"""The simulator's ports keep the same promises as the real ones."""

import asyncio
import random
import sqlite3
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest

from icecore_coordinator.stores.metadata_store import MetadataStore
from icecore_coordinator.stores.sqlite_store import SqliteDatabase, SqliteStore
from icecore_node.ports import FileSystem, WorkerQueue
from icecore_node.storage.control.control_store import ControlStore
from icecore_node.storage.engines import make_store
from icecore_node.storage.port import FoundReplica
from icecore_node.storage.segment_engine.segment_header import FILE_HEADER_LENGTH
from icecore_node.storage.segment_engine.segment_names import file_name
from tests.conformance.file_system_suite import FileSystemConformance
from tests.conformance.index_suite import IndexConformance
from tests.conformance.log_builder import CLUSTER, identity
from tests.conformance.metadata_store_suite import MetadataStoreSuite
from tests.conformance.segment_store_suite import ReplicaStoreConformance
from tests.conformance.test_segment_store import SMALL
from tests.simulation.disk import SimDisk, SimFileSystem
from tests.simulation.executor import SimExecutor
from tests.simulation.index import SimIndex, SimIndexDisk
from tests.simulation.loop import SimLoop
from tests.simulation.ports import SimConnection, SimMetadataStore, memory_database
from tests.simulation.process import SimProcess


class TestSimFileSystem(FileSystemConformance):
    """tests.simulation.disk."""

    @pytest.fixture
    def fs(self) -> SimFileSystem:
        return SimFileSystem(SimDisk(), None)

    def fail_next_sync(self, fs: FileSystem) -> None:
        assert isinstance(fs, SimFileSystem)
        fs.disk.faults.failing_syncs = 1

    @contextmanager
    def without_descriptors(self, fs: FileSystem) -> Iterator[None]:
        assert isinstance(fs, SimFileSystem)
        fs.disk.faults.opens_left = 0
        yield
        fs.disk.faults.opens_left = None


class TestSimIndex(IndexConformance):
    """tests.simulation.index."""

    @pytest.fixture
    def index(self) -> SimIndex:
        return SimIndex(SimIndexDisk(), None)


class SimHarness:
    """The production store over a simulated disk, index and control store.

    Args:
        power_cut: ``kill`` cuts the power, with this seed; None = SIGKILL only.
    """

    def __init__(self, power_cut: int | None) -> None:
        self.disk = SimDisk()
        self._index = SimIndexDisk()
        self._control: sqlite3.Connection = memory_database()
        self._rng = None if power_cut is None else random.Random(power_cut)
        self._lives = 0
        self._open()

    def _open(self) -> list[FoundReplica]:
        self._lives += 1
        self._process = process = SimProcess("node-1", self._lives)
        connection = cast(sqlite3.Connection, SimConnection(self._control, process))
        self.store = make_store(
            SimFileSystem(self.disk, process),
            SimIndex(self._index, process),
            ControlStore(connection),
            CLUSTER,
            SMALL,
        )
        return self.store.start_up()

    def kill(self) -> list[FoundReplica]:
        self._process.kill("test", 0.0)
        if self._rng is not None:
            self.disk.power_cut(self._rng)
            self._index.power_cut(self._rng)
        return self._open()

    def stop(self) -> list[FoundReplica]:
        self.store.close()
        return self.kill()

    def damage(self, segment_id: int, position: int) -> None:
        bit = 8 * (FILE_HEADER_LENGTH + position) + 4
        self.disk.flip_bit(file_name(identity(segment_id)), bit)


class TestSegmentStoreOnSimDisk(ReplicaStoreConformance):
    """icecore_node.storage.segment_store, killed."""

    @pytest.fixture
    def harness(self) -> SimHarness:
        return SimHarness(None)


class TestSegmentStoreUnderPowerCuts(ReplicaStoreConformance):
    """The segment store, whose every kill is a power cut: what it promised must be there."""

    @pytest.fixture(params=range(5))
    def harness(self, request: pytest.FixtureRequest) -> SimHarness:
        return SimHarness(request.param)


@pytest.fixture
def loop() -> Iterator[SimLoop]:
    loop = SimLoop(1)
    yield loop
    loop.close()


Main = Callable[[], Coroutine[Any, Any, None]]


def run(loop: SimLoop, main: Main) -> None:
    loop.run_until_complete(main())
    assert loop.failures == []


class TestSimMetadataStore(MetadataStoreSuite):
    """tests.simulation.ports over coordinator.sqlite_store."""

    @pytest.fixture(autouse=True)
    def shared(self) -> None:
        self._database = SqliteDatabase(":memory:")

    async def open_store(self) -> MetadataStore:
        process = SimProcess("coordinator", 1)
        return SimMetadataStore(SqliteStore(self._database), process, random.Random(1))


def test_executor_keeps_order_and_bounds_groups(loop: SimLoop) -> None:
    groups: list[list[int]] = []

    async def main() -> None:
        executor = SimExecutor(None, random.Random(1))
        done = asyncio.Event()

        def deliver(group: list[int]) -> None:
            groups.append(group)
            if sum(map(len, groups)) == 1000:
                done.set()

        worker: WorkerQueue[int] = executor.worker("io-0", list[int], deliver, group_items_max=64)
        for item in range(1000):
            worker.submit(item)
            if item % 100 == 0:
                await asyncio.sleep(0.0005)
        await done.wait()

    run(loop, main)
    assert [item for group in groups for item in group] == list(range(1000))
    assert max(map(len, groups)) == 64


def test_executor_close_processes_what_is_queued(loop: SimLoop) -> None:
    seen: list[int] = []

    async def main() -> None:
        executor = SimExecutor(None, random.Random(1))
        worker: WorkerQueue[int] = executor.worker(
            "io-0", seen.extend, lambda _: None, group_items_max=3
        )
        for item in range(100):
            worker.submit(item)
        worker.close()
        with pytest.raises(RuntimeError):
            worker.submit(1)
        await asyncio.sleep(1)

    run(loop, main)
    assert seen == list(range(100))


def test_executor_exception_ends_the_process(loop: SimLoop) -> None:
    ends: list[BaseException] = []

    async def main() -> None:
        executor = SimExecutor(None, random.Random(1), fail_stop=ends.append)

        def process(group: list[int]) -> None:
            raise OSError("disk on fire")

        executor.worker("io-0", process, lambda _: None, group_items_max=3).submit(1)
        await asyncio.sleep(1)

    run(loop, main)
    assert [str(error) for error in ends] == ["disk on fire"]


def test_executor_run_returns_and_raises(loop: SimLoop) -> None:
    async def main() -> None:
        executor = SimExecutor(None, random.Random(1))
        assert await executor.run(divmod, 7, 3) == (2, 1)
        with pytest.raises(ZeroDivisionError):
            await executor.run(divmod, 7, 0)

    run(loop, main)
