"""Sealed logs reach the segment engine whole or not at all, whatever happens on the way."""

import random
import sqlite3
from collections.abc import Sequence

import pytest

from icecore.errors import OutOfSpaceError, StorageError
from icecore.topic_settings import SEGMENT_ENGINE
from icecore_node.storage.control.control_store import ControlStore
from icecore_node.storage.engine import KnownLog, SegmentIdentity
from icecore_node.storage.hand_over import HandOver
from icecore_node.storage.memory_engine.memory_budget import MemoryBudget
from icecore_node.storage.memory_engine.memory_engine import MemoryEngine
from icecore_node.storage.memory_engine.memory_log import MemoryLog
from icecore_node.storage.memory_engine.memory_remains import LogMemory
from icecore_node.storage.port import FoundReplica
from icecore_node.storage.replica_store import ReplicaStore
from icecore_node.storage.segment_engine.segment_engine import SegmentEngine
from icecore_node.storage.segment_engine.segment_names import file_name, unfinished_copy_name
from tests.conformance.log_builder import CLUSTER, LogBuilder
from tests.conformance.store_harness import append, read_all
from tests.conformance.test_segment_store import SMALL
from tests.simulation.disk import SimDisk, SimFileSystem
from tests.simulation.index import SimIndex, SimIndexDisk
from tests.simulation.ports import memory_database


class Memory(MemoryEngine):
    """One whose ``drop`` can fail."""

    is_stuck = False

    def drop(self, identities: Sequence[SegmentIdentity]) -> None:
        if self.is_stuck:
            raise StorageError("stuck")
        super().drop(identities)


class Node:
    """The store of one node, and a sealed log in the engine that is not the last one. What that one
    has in memory outlives the process here, as a disk would."""

    def __init__(self) -> None:
        self.files, self.index, self.memory = (
            SimDisk(),
            SimIndexDisk(),
            LogMemory(MemoryBudget(1 << 20)),
        )
        self.database: sqlite3.Connection = memory_database()
        self.start()
        self.log = LogBuilder(1, 7, engine="memory")
        assert self.store.creation.create([self.log.identity], {1: (b"state", 0)}) == [None]
        for _ in range(20):
            append(self.store, self.log, 3)
        self.store.seal(1, self.log.tail.end_offset, self.log.tail.digest)

    def start(self) -> list[FoundReplica]:
        self.control = ControlStore(self.database)
        files, index = SimFileSystem(self.files, None), SimIndex(self.index, None)
        engine = SegmentEngine(files, index, SMALL, self.control.condemn)
        self.engine = Memory(self.memory, self.control.condemn)
        engines = {SEGMENT_ENGINE: engine, "memory": self.engine}
        self.store = ReplicaStore(self.control, engines, CLUSTER, "boot", engine.sealed_logs)
        return self.store.start_up()

    def power_cut(self) -> list[FoundReplica]:
        self.files.power_cut(random.Random(1))
        return self.start()

    def hand_over(self) -> None:
        for _ in range(100):
            if not self.store.hand_over.step():
                return
        raise AssertionError("it does not end")

    @property
    def location(self) -> str:
        row = self.control.row(1)
        assert row is not None
        return row.engine

    def check(self) -> None:
        """Check that all of the log is there, in whichever engine it lies."""
        assert read_all(self.store, self.log) == b"".join(self.log.batches)
        assert self.store.reader.tail(1) == self.log.tail

    @property
    def log_files(self) -> set[str]:
        return {name for name in self.files.names if ".log" in name}


@pytest.fixture
def node() -> Node:
    return Node()


def test_a_sealed_log_becomes_a_file(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("icecore_node.storage.hand_over.STEP_BYTES", 2000)
    digest = node.store.reader.full_digest(1)
    steps = 0
    while node.store.hand_over.step():
        node.check()
        steps += 1
    assert steps > 3
    node.check()
    assert node.location == SEGMENT_ENGINE and not node.memory.logs
    assert node.log_files == {file_name(node.log.identity)}
    [found] = node.power_cut()
    assert found.intact and found.sealed_end_offset == node.log.tail.end_offset
    node.check()
    assert digest == node.store.reader.full_digest(1)
    verification = node.store.reader.verification(1)
    while verification.step(1 << 20):
        pass
    assert verification.digest == digest
    assert not node.store.hand_over.step()


def process_ends(node: Node) -> FoundReplica:
    node.memory = LogMemory(MemoryBudget(1 << 20))
    [found] = node.power_cut()
    return found


def test_what_was_only_in_memory_vanishes_with_the_process(node: Node) -> None:
    found = process_ends(node)
    assert (found.intact, found.is_vanished) == (False, True)
    again = process_ends(node)
    assert (again.intact, again.is_vanished) == (False, True), "also to later processes"


def test_what_was_handed_over_never_vanishes(node: Node) -> None:
    """Its file may be on a disk that is away, or be mended; a lost file is no lost memory."""
    node.hand_over()
    [name] = node.log_files
    SimFileSystem(node.files, None).unlink(name)
    node.files.sync_names(None)
    found = process_ends(node)
    assert (found.intact, found.is_vanished) == (False, False)


def test_an_empty_log_is_handed_over(node: Node) -> None:
    log = LogBuilder(2, 5, engine="memory")
    assert node.store.creation.create([log.identity], {2: (b"", 0)}) == [None]
    node.store.seal(2, 5, log.tail.digest)
    node.hand_over()
    assert not node.memory.logs
    assert [each.intact for each in node.power_cut()] == [True, True]


@pytest.mark.parametrize("steps", range(6))
def test_a_crash_on_the_way_costs_nothing(
    node: Node, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("icecore_node.storage.hand_over.STEP_BYTES", 2000)
    for _ in range(steps):
        node.store.hand_over.step()
    [found] = node.power_cut()
    assert found.intact
    node.check()
    node.hand_over()
    assert node.location == SEGMENT_ENGINE and not node.memory.logs
    [found] = node.power_cut()
    assert found.intact
    node.check()


def test_a_crash_before_the_commit_leaves_a_file_that_is_replaced(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OutOfSpaceError("no room for the record")

    monkeypatch.setattr(HandOver, "_remember", refuse)
    node.hand_over()
    assert node.location == "memory" and node.log_files == {file_name(node.log.identity)}
    node.check()
    monkeypatch.undo()
    [found] = node.power_cut()
    assert found.intact
    node.hand_over()
    assert node.location == SEGMENT_ENGINE
    node.check()


def test_a_crash_after_the_commit_leaves_bytes_that_go_at_the_start(node: Node) -> None:
    node.engine.is_stuck = True
    node.hand_over()
    assert node.location == SEGMENT_ENGINE and node.memory.logs
    node.check()
    [found] = node.power_cut()
    assert found.intact and not node.memory.logs
    node.check()


def test_what_is_deleted_on_the_way_leaves_nothing(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("icecore_node.storage.hand_over.STEP_BYTES", 2000)
    node.store.hand_over.step()
    assert node.log_files == {unfinished_copy_name(node.log.identity)}
    node.store.removal.delete([1], 5)
    node.hand_over()
    assert not node.log_files and not node.memory.logs
    assert node.power_cut() == [] and not node.log_files


def test_a_file_of_a_hand_over_that_died_goes_with_the_replica(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("icecore_node.storage.hand_over.STEP_BYTES", 2000)
    node.store.hand_over.step()
    node.start()
    node.store.removal.delete([1], 5)
    assert not node.log_files


def test_what_is_set_aside_on_the_way_stays_where_it_is(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("icecore_node.storage.hand_over.STEP_BYTES", 2000)
    node.store.hand_over.step()
    node.store.removal.quarantine(1, "in a test")
    node.hand_over()
    assert node.location == "memory" and not node.log_files and node.memory.aside


def test_a_full_disk_only_delays_it(node: Node) -> None:
    node.files.limit(node.files.used_bytes() + 1000)
    node.hand_over()
    assert node.location == "memory" and not node.log_files
    node.check()
    node.files.limit(None)
    node.hand_over()
    assert node.location == SEGMENT_ENGINE
    node.check()


def test_a_copy_that_differs_is_never_used(node: Node) -> None:
    memory, whole = node.memory, node.memory.logs[1]
    other = LogBuilder(1, 7, engine="memory")
    memory.logs[1] = MemoryLog(other.identity, 0)
    node.engine.start_up([KnownLog(other.identity)], [])
    request = other.request(60, size=101)
    node.engine.append_group([request])
    assert request.error is None
    node.hand_over()
    assert node.location == "memory" and not node.log_files
    memory.logs[1] = whole
    node.start()
    node.check()


def test_a_read_that_meets_the_hand_over_is_answered(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = node.engine.reader.read

    def late(*asked: int) -> tuple[bytes, int]:
        monkeypatch.undo()
        node.hand_over()
        return read(*asked)  # type: ignore[arg-type]

    monkeypatch.setattr(node.engine.reader, "read", late)
    node.check()
    assert node.location == SEGMENT_ENGINE
