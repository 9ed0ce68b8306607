"""Every storage engine keeps the promises of its port, alone and in a store.

A store needs to know nothing of an engine but its name, and its user nothing at all. The memory of
the engine ``memory`` outlives its process here, as a disk would: what is true of every engine is
shown with that. That it does not in production is in ``test_memory_engine.py``.
"""

import random
import sqlite3
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path

import pytest

from icecore.errors import NotReplicaError, UnsupportedError
from icecore.topic_settings import SEGMENT_ENGINE
from icecore_node.io.io_pool import IoWorker, ShortSyncs
from icecore_node.metrics import NodeMetrics
from icecore_node.storage.control.control_store import ControlStore
from icecore_node.storage.engine import Engine, LogTail
from icecore_node.storage.memory_engine.memory_budget import MemoryBudget
from icecore_node.storage.memory_engine.memory_engine import MemoryEngine
from icecore_node.storage.memory_engine.memory_remains import LogMemory
from icecore_node.storage.port import FoundReplica
from icecore_node.storage.replica_store import ReplicaStore
from icecore_node.storage.rocksdb_engine.log_database import DatabaseChange
from icecore_node.storage.rocksdb_engine.log_keys import (
    batches_key,
    log_key,
    position_of,
    read_slot,
)
from icecore_node.storage.rocksdb_engine.rocks_database import RocksLogDatabase
from icecore_node.storage.rocksdb_engine.rocksdb_engine import RocksdbEngine
from icecore_node.storage.segment_engine.segment_engine import SegmentEngine
from icecore_node.storage.segment_engine.segment_names import file_name, folder_name
from tests.conformance.engine_suite import FAR, EngineConformance
from tests.conformance.log_builder import CLUSTER, LogBuilder, identity
from tests.conformance.segment_store_suite import ReplicaStoreConformance
from tests.conformance.store_harness import append, read_all
from tests.conformance.test_segment_store import SMALL
from tests.simulation.disk import SimDisk, SimFileSystem
from tests.simulation.executor import SimExecutor
from tests.simulation.index import SimIndex, SimIndexDisk
from tests.simulation.log_database import SimLogDatabase
from tests.simulation.log_disk import SimLogDisk
from tests.simulation.loop import SimLoop
from tests.simulation.ports import SimClock, memory_database


class SegmentBench:
    """The segment engine on a simulated disk; each kill is a power cut if there is a seed."""

    def __init__(self, power_cut: int | None) -> None:
        self.disk, self.index = SimDisk(), SimIndexDisk()
        self.condemned: dict[int, str] = {}
        self._rng = None if power_cut is None else random.Random(power_cut)
        self._open()

    def _open(self) -> None:
        files, index = SimFileSystem(self.disk, None), SimIndex(self.index, None)
        self.engine = SegmentEngine(files, index, SMALL, self.condemned.update)

    def kill(self) -> None:
        if self._rng is not None:
            self.disk.power_cut(self._rng)
            self.index.power_cut(self._rng)
        self._open()

    def lose(self, segment_id: int) -> None:
        files = SimFileSystem(self.disk, None)
        files.unlink(file_name(identity(segment_id)))
        files.sync_dir(folder_name(identity(segment_id)))


class TestSegmentEngine(EngineConformance):
    """icecore_node.storage.segment_engine.segment_engine."""

    @pytest.fixture(params=[None, 0, 1, 2])
    def bench(self, request: pytest.FixtureRequest) -> SegmentBench:
        return SegmentBench(request.param)


def new_memory() -> LogMemory:
    """Return the log memory of a process, with room for all that a test stores."""
    return LogMemory(MemoryBudget(64 << 20))


class MemoryBench:
    """The engine in memory."""

    def __init__(self) -> None:
        self.disk = new_memory()
        self.condemned: dict[int, str] = {}
        self.kill()

    def kill(self) -> None:
        self.engine = MemoryEngine(self.disk, self.condemned.update)

    def lose(self, segment_id: int) -> None:
        del self.disk.logs[segment_id]


class TestMemoryEngine(EngineConformance):
    """icecore_node.storage.memory_engine.memory_engine."""

    @pytest.fixture
    def bench(self) -> MemoryBench:
        return MemoryBench()


class MemoryHarness:
    """A store whose only engine is the one in memory, under the name of the usual one."""

    def __init__(self) -> None:
        self.disk, self._control = new_memory(), memory_database()
        self._open()

    def _open(self) -> list[FoundReplica]:
        control = ControlStore(self._control)
        engine = MemoryEngine(self.disk, control.condemn)
        self.store = ReplicaStore(control, {SEGMENT_ENGINE: engine}, CLUSTER, "boot")
        return self.store.start_up()

    def kill(self) -> list[FoundReplica]:
        return self._open()

    def stop(self) -> list[FoundReplica]:
        self.store.close()
        return self._open()

    def damage(self, segment_id: int, position: int) -> None:
        held = self.disk.logs[segment_id].held
        number = bisect_right(held.places.positions, position) - 1
        changed = bytearray(held.batches[number])
        changed[position - held.places.positions[number]] ^= 0x10
        held.batches[number] = bytes(changed)


class TestStoreOverMemoryEngine(ReplicaStoreConformance):
    """icecore_node.storage.replica_store over node.storage.memory_engine."""

    @pytest.fixture
    def harness(self) -> MemoryHarness:
        return MemoryHarness()


class RocksBench:
    """The engine in a database; each kill is a power cut if there is a seed."""

    def __init__(self, power_cut: int | None) -> None:
        self.disk = SimLogDisk()
        self.condemned: dict[int, str] = {}
        self._rng = None if power_cut is None else random.Random(power_cut)
        self._open()

    def _open(self) -> None:
        self.database = SimLogDatabase(self.disk)
        self.engine = RocksdbEngine(self.database, 32 << 10, self.condemned.update)

    def kill(self) -> None:
        if self._rng is not None:
            self.disk.power_cut(self._rng)
        self._open()

    def lose(self, segment_id: int) -> None:
        lower = log_key(segment_id)
        self.database.write(DatabaseChange(cuts=[(lower, lower + b"\0")]))
        self.database.sync()


class TestRocksdbEngine(EngineConformance):
    """icecore_node.storage.rocksdb_engine.rocksdb_engine."""

    @pytest.fixture(params=[None, 0, 1, 2])
    def bench(self, request: pytest.FixtureRequest) -> RocksBench:
        return RocksBench(request.param)


class RocksHarness:
    """A store whose only engine is the one in a database, under the name of the usual one."""

    def __init__(self, path: Path) -> None:
        self._path, self._control = path, memory_database()
        self._open()

    def _open(self) -> list[FoundReplica]:
        control = ControlStore(self._control)
        self.database = RocksLogDatabase(self._path)
        engine = RocksdbEngine(self.database, 32 << 10, control.condemn)
        self.store = ReplicaStore(control, {SEGMENT_ENGINE: engine}, CLUSTER, "boot")
        return self.store.start_up()

    def kill(self) -> list[FoundReplica]:
        self.database.close()
        return self._open()

    def stop(self) -> list[FoundReplica]:
        self.store.close()
        return self.kill()

    def damage(self, segment_id: int, position: int) -> None:
        slot = read_slot(self.database.get(log_key(segment_id)) or b"").number
        found = self.database.floor(batches_key(slot, position), batches_key(slot, 0))
        assert found is not None
        key, value = found[0], bytearray(found[1])
        value[position - position_of(key)] ^= 0x10
        self.database.write(DatabaseChange([(key, bytes(value))]))
        self.database.sync()


class TestStoreOverRocksdbEngine(ReplicaStoreConformance):
    """icecore_node.storage.replica_store over node.storage.rocksdb_engine, on a real database."""

    @pytest.fixture
    def harness(self, tmp_path: Path) -> Iterator[RocksHarness]:
        harness = RocksHarness(tmp_path / "rocksdb")
        yield harness
        harness.database.close()


class TwoEngines:
    """One node's store with both engines, over a disk for each."""

    def __init__(self) -> None:
        self.files, self.index = SimDisk(), SimIndexDisk()
        self.memory = new_memory()
        self.control: sqlite3.Connection = memory_database()
        self.start()

    def start(self, *, has_memory: bool = True) -> list[FoundReplica]:
        control = ControlStore(self.control)
        files, index = SimFileSystem(self.files, None), SimIndex(self.index, None)
        engines: dict[str, Engine] = {
            SEGMENT_ENGINE: SegmentEngine(files, index, SMALL, control.condemn)
        }
        if has_memory:
            engines["memory"] = MemoryEngine(self.memory, control.condemn)
        self.store = ReplicaStore(control, engines, CLUSTER, "boot")
        return self.store.start_up()


def mixed(store: ReplicaStore) -> list[LogBuilder]:
    """Confirmed logs of both engines, made in one call."""
    logs = [
        LogBuilder(number, engine="memory" if number % 2 else SEGMENT_ENGINE)
        for number in (1, 2, 3, 4)
    ]
    starts = {log.identity.segment_id: (b"state", 0) for log in logs}
    assert store.creation.create([log.identity for log in logs], starts) == [None] * 4
    return logs


def test_each_replica_is_kept_by_the_engine_of_its_segment() -> None:
    node = TwoEngines()
    logs = mixed(node.store)
    requests = [log.request(2) for log in logs]
    unknown = LogBuilder(9).request()
    assert node.store.append_group([*requests, unknown]) == [*requests, unknown]
    assert [request.error for request in requests] == [None] * 4
    assert isinstance(unknown.error, NotReplicaError)
    assert sorted(node.memory.logs) == [1, 3]
    assert {name for name in node.files.names if name.startswith("segments")} == {
        file_name(log.identity) for log in logs[1::2]
    }
    for log in logs[:2]:
        node.store.seal(log.identity.segment_id, log.tail.end_offset, log.tail.digest)
    for _ in range(2):
        found = node.start()
        assert [one.identity for one in found] == [log.identity for log in logs]
        assert [one.tail for one in found] == [log.tail for log in logs]
        assert [one.sealed_end_offset for one in found] == [2, 2, None, None]
        for log in logs:
            assert read_all(node.store, log) == b"".join(log.batches)
    node.store.removal.quarantine(3, "in a test")
    node.store.removal.delete([1, 2], 5)
    assert sorted(node.memory.logs) == [] and sorted(node.memory.aside) == [3]
    assert [one.intact for one in node.start()] == [False, True]
    assert node.store.salvage.readmit(3).tail == logs[2].tail


def test_what_an_engine_keeps_that_is_not_here_counts_for_nothing() -> None:
    node = TwoEngines()
    logs = mixed(node.store)
    found = node.start(has_memory=False)
    assert [one.intact for one in found] == [False, True, False, True]
    assert "no storage engine 'memory'" in found[0].why
    [error] = node.store.creation.create([LogBuilder(5, engine="memory").identity])
    assert isinstance(error, UnsupportedError)
    with pytest.raises(UnsupportedError):
        node.store.reader.read(1, 0, 1000, FAR)
    append(node.store, logs[1])
    assert [one.intact for one in node.start()] == [True] * 4  # and it is not condemned


class Owner:
    """Waits for its appends, as a replica's role does."""

    def __init__(self) -> None:
        self.tails: list[LogTail | None] = []

    def on_appended(self, durable_tail: LogTail | None, error: Exception | None) -> None:
        assert error is None
        self.tails.append(durable_tail)

    def on_broken(self, why: str) -> None:
        raise AssertionError(why)


@pytest.mark.parametrize("engine", ["memory", SEGMENT_ENGINE])
def test_a_nodes_worker_serves_a_log_of_any_engine(engine: str) -> None:
    """Append, read and seal by way of the worker that a node's replicas use."""
    node, owner, log = TwoEngines(), Owner(), LogBuilder(1, engine=engine)
    store = node.store
    assert store.creation.create([log.identity], {1: (b"", 0)}) == [None]
    loop = SimLoop(1)

    async def main() -> tuple[bytes, int]:
        executor = SimExecutor(None, random.Random(1))
        worker = IoWorker(
            "io-0",
            store,
            executor,
            SimClock(loop),
            NodeMetrics(),
            group_items_max=100,
            syncs=ShortSyncs(0),
        )
        for _ in range(3):
            worker.append(log.request(2), owner)
        read = await worker.run(store.reader.read, 1, 0, 1 << 20, FAR)
        await worker.run(store.seal, 1, log.tail.end_offset, log.tail.digest)
        return read

    assert loop.run_until_complete(main()) == (b"".join(log.batches), 6)
    assert owner.tails[-1] == log.tail
    assert [found.sealed_end_offset for found in node.start()] == [6]
    loop.close()
