"""Logs that are synced later: what counts after which end of a process, and what a sync costs."""

import sqlite3
from collections.abc import Callable
from dataclasses import replace

import pytest

from icecore.errors import IcecoreError, StorageError
from icecore.topic_settings import FlushBounds
from icecore_node.ports import DiskFailedError
from icecore_node.storage.control.control_store import ControlStore
from icecore_node.storage.control.disk_identity import LastStop
from icecore_node.storage.engines import make_store
from icecore_node.storage.port import FoundReplica
from icecore_node.storage.segment_engine.segment_log import LogSettings
from tests.conformance.log_builder import CLUSTER, LogBuilder
from tests.conformance.store_harness import append, read_all, segment_engine
from tests.simulation.disk import SimDisk, SimFileSystem
from tests.simulation.index import SimIndex, SimIndexDisk

BOUNDS = FlushBounds(interval_ms=700, length_bytes=2_000)


class Keeping:
    """Every unsynced sector survives, so that only the rule can tell that it might not have."""

    def random(self) -> float:
        return 0.7

    def choice(self, options: list[object]) -> object:
        return options[0]


class Machine:
    """One node's disk, with logs 1 and 2 that are synced late and log 3 that is synced at once."""

    def __init__(self) -> None:
        self.disk, self.index_disk, self.power_cuts = SimDisk(), SimIndexDisk(), 0
        self.connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self.start()
        self.late, self.other, self.usual = logs = [LogBuilder(number) for number in (1, 2, 3)]
        for log in logs[:2]:
            log.identity = replace(log.identity, flush=BOUNDS)
        starts = {log.identity.segment_id: (b"", 0) for log in logs}
        assert self.store.creation.create([log.identity for log in logs], starts) == [None] * 3

    def start(self, boot_id: str | None = None) -> dict[int, FoundReplica]:
        """As after a SIGKILL, unless something else was done before."""
        boot_id = f"boot {self.power_cuts}" if boot_id is None else boot_id
        self.control = ControlStore(self.connection)
        files, index = SimFileSystem(self.disk, None), SimIndex(self.index_disk, None)
        settings = LogSettings(
            allocation_step_bytes=16 << 10, sync_all_files_min=3, open_files_max=8
        )
        self.store = make_store(files, index, self.control, CLUSTER, settings, boot_id)
        return {found.identity.segment_id: found for found in self.store.start_up()}

    def append(self, batches: int = 1) -> None:
        for log in (self.late, self.other, self.usual):
            append(self.store, log, batches)

    def power_cut(self) -> None:
        self.power_cuts += 1
        self.disk.power_cut(Keeping())  # type: ignore[arg-type]

    def held_files(self) -> int:
        """Files that stay open although others need the room."""
        files = segment_engine(self.store)._open_files
        files.make_room(100)
        return len(files)


@pytest.fixture
def machine() -> Machine:
    return Machine()


def intact(found: dict[int, FoundReplica]) -> list[bool]:
    return [found[number].intact for number in (1, 2, 3)]


# --- when a sync is due ---------------------------------------------------------------------------


def test_an_append_waits_for_no_sync_and_says_until_when_one_is_due(machine: Machine) -> None:
    syncs, request = machine.disk.syncs, machine.late.request(1)
    machine.store.append_group([request])
    assert (request.error, request.sync_within_ms) == (None, BOUNDS.interval_ms)
    assert machine.disk.syncs == syncs and read_all(machine.store, machine.late)
    usual = machine.usual.request(1)
    machine.store.append_group([usual])
    assert (usual.sync_within_ms, machine.disk.syncs) == (None, syncs + 1)


def test_a_sync_is_due_at_half_of_the_bound_and_nothing_is_put_off_beyond_it(
    machine: Machine,
) -> None:
    def due() -> list[int | None]:
        asked = [machine.late.request(1, size=300) for _ in range(5)]
        for request in asked:
            machine.store.append_group([request])
        return [request.sync_within_ms for request in asked]

    syncs = machine.disk.syncs
    assert due() == [700, 700, 0, 700, None]  # of some 440 bytes each
    assert machine.disk.syncs == syncs + 1
    machine.store.sync([1])
    assert due() == [700, 700, 0, 700, None]


def test_a_sync_makes_durable_what_was_put_off_and_nothing_twice(machine: Machine) -> None:
    machine.append()
    syncs = machine.disk.syncs
    machine.store.sync([1, 3, 99])
    assert machine.disk.syncs == syncs + 1
    machine.store.sync([1, 3, 99])
    assert machine.disk.syncs == syncs + 1


def test_one_syncfs_serves_many(machine: Machine) -> None:
    machine.disk.can_sync_all = True
    more = [LogBuilder(number) for number in (4, 5)]
    for log in more:
        log.identity = replace(log.identity, flush=BOUNDS)
    starts = {log.identity.segment_id: (b"", 0) for log in more}
    machine.store.creation.create([log.identity for log in more], starts)
    for log in (machine.late, machine.other, *more):
        append(machine.store, log)
    syncs = machine.disk.syncs
    machine.store.sync([1, 2, 4, 5])
    assert machine.disk.syncs == syncs + 1


def test_a_request_beyond_what_one_sync_may_write_is_synced_at_once(machine: Machine) -> None:
    segment_engine(machine.store)._commit._settings = LogSettings(group_bytes_max=2_000)
    append(machine.store, machine.late)
    large = machine.late.request(3, size=1_500)
    machine.store.append_group([large])
    assert (large.error, large.sync_within_ms) == (None, None)
    assert machine.held_files() == 0


def test_a_file_stays_open_until_it_is_synced(machine: Machine) -> None:
    """A write-back that fails is told only to who has the file open."""
    machine.append()
    assert machine.held_files() == 2
    machine.store.sync([1, 2])
    assert machine.held_files() == 0
    machine.append(2)
    machine.store.truncate(1, 1)
    assert machine.held_files() == 1
    machine.store.seal(2, machine.other.tail.end_offset, machine.other.tail.digest)
    assert machine.held_files() == 0


def test_when_half_of_the_files_are_held_further_logs_are_synced_at_once(machine: Machine) -> None:
    segment_engine(machine.store)._commit._settings = LogSettings(open_files_max=2)
    machine.append()
    request = machine.other.request(1)
    machine.store.append_group([request])
    assert request.sync_within_ms is None and machine.held_files() == 1
    machine.store.sync([1])
    request = machine.other.request(1)
    machine.store.append_group([request])
    assert request.sync_within_ms == BOUNDS.interval_ms


def test_a_log_that_goes_takes_its_debt_along(machine: Machine) -> None:
    machine.append()
    machine.store.removal.quarantine(1, "a test")
    machine.store.removal.delete([2], 1)
    syncs = machine.disk.syncs
    machine.store.sync([1, 2])
    assert machine.disk.syncs == syncs and machine.held_files() == 0


# --- what counts at the next start ----------------------------------------------------------------


def test_after_a_kill_everything_counts(machine: Machine) -> None:
    machine.append(3)
    found = machine.start()
    assert intact(found) == [True] * 3
    assert found[1].tail == machine.late.tail
    assert read_all(machine.store, machine.late) == b"".join(machine.late.batches)


def test_after_a_power_cut_a_log_is_unknown_as_a_whole(machine: Machine) -> None:
    machine.append(3)
    machine.store.sync([1, 2])
    machine.power_cut()
    assert intact(machine.start()) == [False, False, True]
    machine.store.close()
    assert intact(machine.start()) == [False, False, True]  # for ever
    found = machine.store.salvage.tail(1)
    assert found is not None and found.end_offset == machine.late.tail.end_offset


def test_after_a_clean_stop_everything_counts(machine: Machine) -> None:
    machine.append(3)
    machine.store.close()
    machine.power_cut()
    assert intact(machine.start()) == [True] * 3
    assert read_all(machine.store, machine.late) == b"".join(machine.late.batches)


def test_the_marker_of_a_clean_stop_is_good_for_one_start(machine: Machine) -> None:
    machine.store.close()
    machine.start()
    machine.append()
    machine.power_cut()
    assert intact(machine.start()) == [False, False, True]


def test_a_start_that_dies_before_it_is_done_leaves_the_same_question(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        raise KeyboardInterrupt

    machine.append()
    machine.power_cut()
    for owner, name in ((ControlStore, "condemn"), (LastStop, "begin")):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(owner, name, die)
            machine.start()
    assert intact(machine.start()) == [False, False, True]


def test_where_nobody_can_tell_the_boot_only_a_clean_stop_counts(machine: Machine) -> None:
    machine.store.close()
    assert intact(machine.start("")) == [True] * 3
    assert intact(machine.start("")) == [False, False, True]


def test_what_is_sealed_or_settled_outlives_a_power_cut(machine: Machine) -> None:
    machine.append(2)
    machine.store.seal(1, machine.late.tail.end_offset, machine.late.tail.digest)
    machine.store.sync([2, 3, 99], from_now_on=True)
    request = machine.other.request(1)
    machine.store.append_group([request])
    assert request.sync_within_ms is None
    machine.power_cut()
    found = machine.start()
    assert intact(found) == [True] * 3 and found[2].tail == machine.other.tail
    syncs = machine.disk.syncs
    append(machine.store, machine.other)
    assert machine.disk.syncs == syncs + 1  # it stays so


def test_to_settle_again_costs_no_commit(machine: Machine) -> None:
    machine.store.sync([1], from_now_on=True)
    commits: list[str] = []
    machine.connection.set_trace_callback(commits.append)
    machine.store.sync([1, 3], from_now_on=True)
    assert "COMMIT" not in commits


# --- syncs that fail ------------------------------------------------------------------------------


def fail_one(machine: Machine, do: Callable[[], object]) -> None:
    machine.disk.faults.failing_syncs = 1
    with pytest.raises(DiskFailedError):
        do()


def damaged(machine: Machine) -> list[int]:
    return [row.segment_id for row in machine.control.rows() if row.damage]


def test_a_late_sync_that_fails_condemns_its_log(machine: Machine) -> None:
    machine.append()
    fail_one(machine, lambda: machine.store.sync([1, 2]))
    assert damaged(machine) == [1]
    assert intact(machine.start()) == [False, True, True]


def test_a_syncfs_that_fails_condemns_what_was_put_off(machine: Machine) -> None:
    machine.disk.can_sync_all = True
    segment_engine(machine.store)._commit._settings = LogSettings(sync_all_files_min=1)
    append(machine.store, machine.late)
    fail_one(machine, lambda: append(machine.store, machine.usual))
    assert damaged(machine) == [1, 3]


def test_a_stop_whose_sync_fails_is_not_clean(machine: Machine) -> None:
    machine.append()
    machine.disk.faults.failing_syncs = 1
    machine.store.close()
    assert damaged(machine) == [1]
    machine.power_cut()
    assert intact(machine.start()) == [False, False, True]


def test_a_stop_that_cannot_be_marked_is_not_clean(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise StorageError("a test")

    with monkeypatch.context() as patch:
        patch.setattr(machine.control.database, "commit", full)
        machine.store.close()
    machine.power_cut()
    assert intact(machine.start()) == [False, False, True]


def test_a_failed_sync_that_could_not_be_stored_shows_at_the_next_start(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The machine goes on, the page cache shows what no disk has, and the index tells of it."""
    machine.append(3)

    def full(*_: object, **__: object) -> None:
        raise IcecoreError("a test")

    with monkeypatch.context() as patch:
        patch.setattr(machine.control.database, "commit", full)
        fail_one(machine, lambda: machine.store.sync([1]))
    assert damaged(machine) == []
    found = machine.start()
    assert intact(found) == [False, True, True] and "lost durable tail" in found[1].why
