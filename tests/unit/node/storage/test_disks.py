"""A node with several disks: where logs go, and what one disk that fails takes with it."""

import contextlib
import random
import sqlite3
from collections.abc import Sequence

import pytest

from icecore.errors import NotReplicaError, StorageError
from icecore.topic_settings import SEGMENT_ENGINE
from icecore_node.ports import DiskFailedError, DiskLostError
from icecore_node.storage.control.control_store import QUARANTINED, ControlStore
from icecore_node.storage.control.disk_identity import disk_of, location_of
from icecore_node.storage.disk_choice import choose_disk
from icecore_node.storage.disk_levels import DiskLimits
from icecore_node.storage.disks import Disk, Disks, Room
from icecore_node.storage.engines import make_store
from icecore_node.storage.memory_engine.memory_budget import MemoryBudget
from icecore_node.storage.memory_engine.memory_engine import MemoryEngine
from icecore_node.storage.memory_engine.memory_remains import LogMemory
from icecore_node.storage.port import FoundReplica
from icecore_node.storage.replica_store import ReplicaStore
from icecore_node.storage.segment_engine.segment_engine import SegmentEngine
from icecore_node.storage.segment_engine.segment_names import file_name
from tests.conformance.log_builder import CLUSTER, LogBuilder, identity
from tests.conformance.store_harness import FAR, append, read_all
from tests.conformance.test_segment_store import SMALL
from tests.simulation.disk import SimDisk, SimFileSystem
from tests.simulation.index import SimIndex, SimIndexDisk
from tests.simulation.ports import memory_database
from tests.simulation.process import ProcessKilled

OTHER = "b" * 32
LIMITS = DiskLimits(90.0, 95.0, 1 << 50)


class Node:
    """The store of one node with two disks."""

    def __init__(self) -> None:
        self.first, self.other = SimDisk(), SimDisk()
        for disk in (self.first, self.other):
            disk.limit(1 << 30)
        self.index = SimIndexDisk()
        self.database: sqlite3.Connection = memory_database()
        self.told: list[tuple[list[int], str]] = []
        self.start()

    def start(self, *, problem: str = "") -> list[FoundReplica]:
        self.control = control = ControlStore(self.database)
        files = SimFileSystem(self.first, None)
        other = None if problem else SimFileSystem(self.other, None)
        disks = [Disk("", "/first", files), Disk(OTHER, "/other", other, 1, problem)]
        self.store = make_store(
            files,
            SimIndex(self.index, None),
            control,
            CLUSTER,
            SMALL,
            "boot",
            Disks(control, disks, LIMITS),
        )
        self.store.disks.tell(lambda ids, why: self.told.append((list(ids), why)))
        return self.store.start_up()

    def make(self, number: int) -> LogBuilder:
        log = LogBuilder(number)
        assert self.store.creation.create([log.identity], {number: (b"state", 0)}) == [None]
        return log

    def on(self, number: int) -> str:
        return self.store.disks.on(number)


def names(disk: SimDisk) -> list[str]:
    return sorted(name for name in disk.names if name.startswith("segments"))


def logs_of(node: Node, count: int = 4) -> list[LogBuilder]:
    """Some on each disk, with a batch each."""
    logs = [node.make(number) for number in range(1, count + 1)]
    for log in logs:
        append(node.store, log, 2)
    return logs


@pytest.mark.parametrize(
    ("rooms", "chosen"),
    [
        ([Room("a", 0, 100, 0)], "a"),
        ([Room("a", 0, 100, 0), Room("b", 0, 101, 0)], "b"),
        ([Room("a", 0, 100, 0), Room("b", 0, 101, 1)], "a"),
        ([Room("a", 0, 100, 3), Room("b", 0, 1000, 3)], "b"),
        ([Room("a", 900, 100, 0), Room("b", 10, 20, 9)], "b"),  # a is beyond its watermark
        ([Room("a", 900, 100, 0), Room("b", 190, 10, 0)], "a"),  # and both are
        ([Room("a", 1, 0, 0), Room("b", 1, 0, 0)], "a"),
    ],
)
def test_a_log_goes_where_most_is_free_for_each_that_grows(rooms: list[Room], chosen: str) -> None:
    assert choose_disk(rooms, LIMITS) == chosen


def test_logs_are_shared_out_by_free_bytes_before_they_grow() -> None:
    node = Node()
    node.other.limit(3 << 30)
    numbers = range(1, 41)
    starts = dict.fromkeys(numbers, (b"", 0))
    errors = node.store.creation.create([identity(number, 0) for number in numbers], starts)
    assert errors == [None] * 40
    on_other = [number for number in numbers if node.on(number) == OTHER]
    assert len(on_other) in (29, 30, 31)
    assert len(names(node.other)) == len(on_other) and len(names(node.first)) == 40 - len(on_other)


def test_records_remember_the_disk() -> None:
    node = Node()
    logs = logs_of(node)
    assert {node.on(log.identity.segment_id) for log in logs} == {"", OTHER}
    where = [node.on(log.identity.segment_id) for log in logs]
    node.store.seal(1, logs[0].tail.end_offset, logs[0].tail.digest)
    for _ in range(2):
        found = node.start()
        assert [one.intact for one in found] == [True] * 4
        assert [one.identity for one in found] == [log.identity for log in logs]
        assert [node.on(log.identity.segment_id) for log in logs] == where
        for log in logs:
            assert read_all(node.store, log) == b"".join(log.batches)
    assert all(one.identity.engine == SEGMENT_ENGINE for one in found)
    again = node.store.creation.create([log.identity for log in logs])
    assert again == [None] * 4 and len(names(node.first)) + len(names(node.other)) == 4
    node.store.removal.delete([1, 2, 3, 4], 7)
    assert not names(node.first) and not names(node.other) and node.start() == []


def lost_by_sync(node: Node, log: LogBuilder) -> None:
    node.other.faults.failing_syncs = 1
    request = log.request(1)
    node.store.append_group([request])
    assert isinstance(request.error, StorageError)
    node.other.faults.failing_syncs = 0


def test_a_sync_that_fails_on_a_further_disk_takes_that_disk_alone() -> None:
    node = Node()
    logs = logs_of(node, 6)
    here = [log for log in logs if node.on(log.identity.segment_id) == ""]
    there = [log for log in logs if log not in here]
    node.other.faults.failing_syncs = 1
    requests = [log.request(1) for log in logs]
    node.store.append_group(requests)
    for log, request in zip(logs, requests, strict=True):
        assert (request.error is None) == (log in here)
    lost = [log.identity.segment_id for log in there]
    [(told, why)] = node.told
    assert told == lost and why.startswith("its disk is lost: a sync had failed: segments/")
    assert all(node.control.row(number).damage for number in lost)  # type: ignore[union-attr]
    syncs = node.other.syncs
    for log in there:
        number = log.identity.segment_id
        request = log.request(1)
        node.store.append_group([request])
        assert isinstance(request.error, DiskLostError)
        assert not node.store.reader.holds(number)
        for use in (
            lambda number=number: node.store.reader.read(number, 0, 100, FAR),
            lambda number=number: node.store.truncate(number, 2),
            lambda number=number: node.store.seal(number, 2, b""),
        ):
            with pytest.raises(DiskLostError):
                use()
    assert node.other.syncs == syncs, "nothing is synced there again"
    for log in here:
        append(node.store, log)
    node.store.index.maintain()
    node.store.index.flush()
    assert node.on(node.make(7).identity.segment_id) == ""
    found = node.start()
    assert [one.intact for one in found] == [log in here for log in logs] + [True]


def test_a_sync_that_fails_on_the_first_disk_ends_the_process() -> None:
    node = Node()
    log = next(log for log in logs_of(node) if node.on(log.identity.segment_id) == "")
    node.first.faults.failing_syncs = 1
    with pytest.raises(DiskFailedError):
        node.store.append_group([log.request(1)])


def test_a_loss_that_can_not_be_stored_ends_the_process() -> None:
    node = Node()
    log = next(log for log in logs_of(node) if node.on(log.identity.segment_id) == OTHER)
    node.other.faults.failing_syncs = 1
    node.database.execute("DROP TABLE replicas")
    with pytest.raises(DiskFailedError):
        node.store.append_group([log.request(1)])


def test_a_replica_of_a_lost_disk_is_made_again_on_another_one() -> None:
    node = Node()
    log = next(log for log in logs_of(node) if node.on(log.identity.segment_id) == OTHER)
    number = log.identity.segment_id
    lost_by_sync(node, log)
    node.store.removal.quarantine(number, "replaced by a repair")
    assert node.store.salvage.tail(number) is None
    with pytest.raises(NotReplicaError):
        node.store.salvage.readmit(number)
    row = node.control.row(number)
    assert row is not None and row.state == QUARANTINED
    assert node.store.creation.create([log.identity], {number: (b"", 0)}, True) == [None]
    copy = LogBuilder(number)
    append(node.store, copy, 2)
    node.store.creation.certify(number)
    assert node.on(number) == ""
    found = {one.identity.segment_id: one for one in node.start()}
    assert found[number].intact and found[number].tail == copy.tail
    assert file_name(log.identity) in node.other.names  # nobody ordered that it goes
    node.store.removal.delete([number], 9)
    assert file_name(log.identity) not in [*node.other.names, *node.first.names]


def test_what_lies_on_a_disk_that_is_missing_is_unknown_until_it_is_back() -> None:
    node = Node()
    logs = logs_of(node)
    where = [node.on(log.identity.segment_id) for log in logs]
    found = node.start(problem="nothing is mounted there")
    assert [one.intact for one in found] == [disk == "" for disk in where]
    assert {one.why for one in found if not one.intact} == {"nothing is mounted there"}
    assert node.store.disks.usage()[1].problem == "nothing is mounted there"
    gone = [log.identity.segment_id for log, disk in zip(logs, where, strict=True) if disk]
    with pytest.raises(DiskLostError):
        node.store.removal.delete(gone, 3)
    assert all(node.control.row(number) is not None for number in gone)
    assert node.on(node.make(9).identity.segment_id) == ""
    found = node.start()  # and now the order is carried out
    assert [one.identity.segment_id for one in found if one.intact] == [
        *(log.identity.segment_id for log, disk in zip(logs, where, strict=True) if not disk),
        9,
    ]
    assert not names(node.other)


@pytest.mark.parametrize("operations", range(1, 12))
def test_a_creation_that_died_is_made_again_where_its_file_is(operations: int) -> None:
    """The disk was chosen, the file made, perhaps, and there is no record."""
    for seed in range(4):
        node = Node()
        node.other.limit(1 << 40)
        node.other.faults.operations_to_live = operations
        log = LogBuilder(1)
        with contextlib.suppress(ProcessKilled):
            node.store.creation.create([log.identity], {1: (b"", 0)})
        node.other.faults.operations_to_live = None
        if seed:
            node.other.power_cut(random.Random(seed))
        node.other.limit(1 << 20)  # it would not be chosen again
        has_file = file_name(log.identity) in node.other.names
        is_known = bool(node.start())
        assert node.store.creation.create([log.identity], {1: (b"", 0)}) == [None]
        assert (node.on(1) == OTHER) == (has_file or is_known)
        append(node.store, log)
        node.store.removal.delete([1], 2)
        assert not names(node.first) and not names(node.other)


def test_a_disk_that_can_not_even_be_opened_is_left_out() -> None:
    node = Node()
    logs = logs_of(node)
    for log in logs:
        inode = node.other.names.get(file_name(log.identity))
        if inode is not None:
            inode.write(b"torn", inode.size)
    node.other.faults.failing_syncs = 100
    found = node.start()  # each log with something behind its end is synced first, and that fails
    intact: Sequence[bool] = [one.intact for one in found]
    assert intact == [disk_of(node.control.row(n).engine) == "" for n in (1, 2, 3, 4)]  # type: ignore[union-attr]
    assert logs and node.store.disks.usage()[1].problem


def test_space_is_that_of_the_disks_that_count_and_shared_space_counts_once() -> None:
    node = Node()
    one = node.first.used_bytes() + node.other.used_bytes()
    assert node.store.disks.space() == (one, (2 << 30) - one)
    control = node.control
    files = SimFileSystem(node.first, None)
    shared = Disks(control, [Disk("", "", files), Disk("c", "", files)], LIMITS)
    assert shared.space() == files.space()
    node.start(problem="gone")
    assert node.store.disks.space() == files.space()


class Mixed(Node):
    """With an engine that works on the first disk alone."""

    def start(self, *, problem: str = "") -> list[FoundReplica]:
        super().start(problem=problem)
        memory = getattr(self, "memory", None) or LogMemory(MemoryBudget(1 << 20))
        self.memory = memory
        control = ControlStore(self.database)
        files = [SimFileSystem(disk, None) for disk in (self.first, self.other)]
        disks = Disks(control, [Disk("", "/first", files[0]), Disk(OTHER, "", files[1], 1)], LIMITS)
        first = SegmentEngine(files[0], SimIndex(self.index, None), SMALL, control.condemn)
        loss = disks.loss_of(OTHER)
        other = SegmentEngine(
            files[1], SimIndex(self.index, None), SMALL, control.condemn, loss=loss, beside=first
        )
        location = location_of(SEGMENT_ENGINE, OTHER)
        engines = {
            SEGMENT_ENGINE: first,
            location: other,
            "memory": MemoryEngine(memory, control.condemn),
        }
        further = {location: other.sealed_logs}
        self.control = control
        self.store = ReplicaStore(
            control, engines, CLUSTER, "boot", first.sealed_logs, disks, further
        )
        return self.store.start_up()


@pytest.mark.parametrize("is_lost", [False, True])
def test_what_another_engine_sealed_goes_to_any_disk(is_lost: bool) -> None:
    node = Mixed()
    node.other.limit(1 << 40)
    log = LogBuilder(1, engine="memory")
    assert node.store.creation.create([log.identity], {1: (b"state", 0)}) == [None]
    assert node.on(1) == ""  # where its engine works
    append(node.store, log, 20)
    node.store.seal(1, log.tail.end_offset, log.tail.digest)
    node.other.faults.failing_syncs = int(is_lost)
    for _ in range(9):
        node.store.index.maintain()
    assert node.on(1) == ("" if is_lost else OTHER) and not node.memory.logs
    assert read_all(node.store, log) == b"".join(log.batches)
    [found] = node.start()
    assert found.intact and found.sealed_end_offset == log.tail.end_offset
    node.store.removal.delete([1], 4)
    assert not names(node.first) and not names(node.other)
