"""Logs sealed in shared files reach files of their own; a shared file goes once it is empty."""

import random

import pytest

from icecore.topic_settings import SEGMENT_ENGINE
from icecore_node.storage.control.control_store import ControlStore
from icecore_node.storage.engines import SHARED_ENGINE, make_store
from icecore_node.storage.port import FoundReplica
from tests.conformance.log_builder import CLUSTER, LogBuilder
from tests.conformance.store_harness import append, read_all
from tests.conformance.test_segment_store import SMALL
from tests.simulation.disk import SimDisk, SimFileSystem
from tests.simulation.index import SimIndex, SimIndexDisk
from tests.simulation.ports import memory_database


class Node:
    """A node with two logs in one shared file, the first of them sealed."""

    def __init__(self) -> None:
        self.files, self.index = SimDisk(), SimIndexDisk()
        self.database = memory_database()
        self.start()
        self.logs = [LogBuilder(number, engine=SHARED_ENGINE) for number in (1, 2)]
        starts = {log.identity.segment_id: (b"", 0) for log in self.logs}
        made = self.store.creation.create([log.identity for log in self.logs], starts)
        assert made == [None, None]
        for _ in range(10):
            for log in self.logs:
                append(self.store, log, 2)
        sealed = self.logs[0]
        self.store.seal(1, sealed.tail.end_offset, sealed.tail.digest)

    def start(self) -> list[FoundReplica]:
        self.control = ControlStore(self.database)
        files, index = SimFileSystem(self.files, None), SimIndex(self.index, None)
        self.store = make_store(files, index, self.control, CLUSTER, SMALL)
        return self.store.start_up()

    def power_cut(self, seed: int) -> list[FoundReplica]:
        rng = random.Random(seed)
        self.files.power_cut(rng)
        self.index.power_cut(rng)
        return self.start()

    def location(self, segment_id: int) -> str:
        row = self.control.row(segment_id)
        assert row is not None
        return row.engine

    def check(self) -> None:
        for log in self.logs:
            assert read_all(self.store, log) == b"".join(log.batches)

    def maintain(self) -> None:
        while self.store.index.maintain():
            pass


@pytest.mark.parametrize("steps", range(8))
def test_a_crash_at_any_step_costs_nothing(steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("icecore_node.storage.hand_over.STEP_BYTES", 1000)
    node = Node()
    for _ in range(steps):
        node.store.hand_over.step()
    found = node.power_cut(steps)
    assert [one.intact for one in found] == [True, True], [one.why for one in found]
    node.check()
    node.maintain()
    assert [node.location(1), node.location(2)] == [SEGMENT_ENGINE, SHARED_ENGINE]
    node.check()
    append(node.store, node.logs[1])
    assert [one.intact for one in node.power_cut(99)] == [True, True]
    node.check()


def test_the_file_goes_with_the_last_log_that_is_not_sealed() -> None:
    node = Node()
    node.maintain()
    assert any(name.startswith("shared/") for name in node.files.names)
    last = node.logs[1]
    node.store.seal(2, last.tail.end_offset, last.tail.digest)
    node.maintain()
    assert [node.location(1), node.location(2)] == [SEGMENT_ENGINE, SEGMENT_ENGINE]
    node.check()
    assert [one.intact for one in node.power_cut(5)] == [True, True]
    node.maintain()
    assert not [name for name in node.files.names if name.startswith("shared/")]
    node.check()
