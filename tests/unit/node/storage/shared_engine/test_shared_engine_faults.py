"""Shared files on disks that fail, fill up or lose a file: what it costs, and whom."""

import pytest

from icecore.errors import OutOfSpaceError
from icecore_node.ports import DiskFailedError
from icecore_node.storage.engine import FoundLog, KnownLog, NewLog
from icecore_node.storage.index.derived_index import DerivedIndex
from icecore_node.storage.shared_engine.shared_engine import SharedEngine
from tests.conformance.log_builder import LogBuilder
from tests.simulation.disk import SimDisk, SimFileSystem
from tests.simulation.index import SimIndex, SimIndexDisk
from tests.unit.node.storage.shared_engine.random_life import SETTINGS

FAR = 1 << 40


class Node:
    """An engine with some logs of one lane, and what was told of them."""

    def __init__(self, logs: int) -> None:
        self.disk, self.index = SimDisk(), SimIndexDisk()
        self.condemned: dict[int, str] = {}
        self.start([])
        self.logs = [LogBuilder(number) for number in range(1, logs + 1)]
        new = [NewLog(log.identity) for log in self.logs]
        assert self.engine.create(new, lambda created: None) == {}

    def start(self, logs: list[LogBuilder]) -> list[FoundLog]:
        self.condemned.clear()
        derived = DerivedIndex(SimIndex(self.index, None), list)
        files = SimFileSystem(self.disk, None)
        self.engine = SharedEngine(files, derived, SETTINGS, self.condemned.update)
        return self.engine.start_up([KnownLog(log.identity) for log in logs], [])

    def append(self, *logs: LogBuilder, size: int = 100) -> list[Exception | None]:
        requests = [log.request(1, 1, size) for log in logs]
        self.engine.append_group(requests)
        return [request.error for request in requests]

    def files(self) -> list[str]:
        return sorted(name for name in self.disk.names if name.endswith(".log"))


def test_a_failed_sync_condemns_all_of_the_write() -> None:
    node = Node(3)
    node.append(*node.logs)
    node.disk.faults.failing_syncs = 1
    with pytest.raises(DiskFailedError):
        node.append(*node.logs[:2])
    assert sorted(node.condemned) == [1, 2]
    [found] = node.start(node.logs[2:])
    assert not found.damage and found.tail == node.logs[2].tail


def test_a_write_that_fails_costs_its_logs_until_they_are_cut() -> None:
    node = Node(3)
    node.append(*node.logs)
    node.disk.limit(node.disk.used_bytes())
    first, second, third = node.logs
    failed = node.append(first, second, size=9000)
    assert all(isinstance(error, OutOfSpaceError) for error in failed)
    assert node.engine.reader.tail(1) == first.tails[1]
    assert node.append(third) == [None]
    [again] = node.append(first)
    assert isinstance(again, OutOfSpaceError)
    for log in (first, second):
        del log.batches[1:], log.tails[2:]
        node.engine.truncate(log.identity.segment_id, 1)
    node.disk.limit(None)
    assert node.append(first, second) == [None, None]
    found = node.start(node.logs)
    assert [one.tail for one in found] == [log.tail for log in node.logs]


def test_logs_go_although_the_disk_is_full() -> None:
    node = Node(2)
    for _ in range(12):
        assert node.append(node.logs[0], size=6000) == [None]
    node.disk.limit(node.disk.used_bytes())
    used = node.disk.used_bytes()
    node.engine.drop([node.logs[0].identity])
    assert node.disk.used_bytes() < used / 2
    [found] = node.start(node.logs[1:])
    assert not found.damage


@pytest.mark.parametrize("is_newest", [False, True])
def test_a_lost_file_condemns_who_had_something_there(is_newest: bool) -> None:
    node = Node(2)
    node.append(*node.logs, size=6000)
    for _ in range(6):
        node.append(node.logs[0], size=6000)
    node.index.flush()
    files = SimFileSystem(node.disk, None)
    files.unlink(node.files()[-1 if is_newest else 0])
    files.sync_dir("shared")
    found = node.start(node.logs)
    assert found[0].damage
    assert bool(found[1].damage) or not is_newest or found[1].tail == node.logs[1].tail
    if not is_newest:
        assert found[1].damage
    assert set(node.condemned) == {
        log.identity.segment_id for log, one in zip(node.logs, found, strict=True) if one.damage
    }


def test_what_is_no_shared_file_is_left_alone() -> None:
    node = Node(1)
    node.append(*node.logs)
    files = SimFileSystem(node.disk, None)
    for name in ("shared/notes.txt", "shared/x.log", "shared/00000000000000000900.log"):
        file = files.open(name, create=True)
        file.pwritev([b"icegrp\r\n" + bytes(500)], 0)
        file.close()
    [found] = node.start(node.logs)
    assert not found.damage and found.tail == node.logs[0].tail
    assert {"shared/notes.txt", "shared/x.log"} <= set(node.disk.names)
    assert node.append(*node.logs) == [None]
    assert max(node.files()[:-1]) > "shared/00000000000000000900.log"


def test_creating_many_logs_costs_one_sync_for_each_lane() -> None:
    node = Node(1)
    syncs = node.disk.syncs
    logs = [LogBuilder(number) for number in range(10, 200)]
    node.engine.create([NewLog(log.identity) for log in logs], lambda created: None)
    node.engine.append_group([log.request(1) for log in logs])
    assert node.disk.syncs - syncs <= 4
    assert node.engine.reader.read(10, 0, 1000, FAR) == (logs[0].batches[0], 1)
