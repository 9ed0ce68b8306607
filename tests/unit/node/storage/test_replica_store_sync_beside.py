"""Late syncs beside the appends of their worker, on threads: what is held up, and what counts."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from icecore_node.ports import DiskFailedError, SyncFailedError
from tests.conformance.store_harness import append, read_all
from tests.simulation.disk import SimFile
from tests.unit.node.storage.test_replica_store_late_sync import BOUNDS, Machine

WITHIN_S = 10.0


class Gate:
    """Holds up the syncs of files, once it is closed, until it is opened."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._open.set()
        self.arrived = threading.Semaphore(0)
        self.failures = 0
        """Number of the next syncs that fail."""

    def close(self) -> None:
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    def pass_through(self) -> None:
        fails, self.failures = self.failures > 0, max(0, self.failures - 1)
        self.arrived.release()
        assert self._open.wait(WITHIN_S)
        if fails:
            raise SyncFailedError("a test")


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    gate, real = Gate(), SimFile.fdatasync

    def fdatasync(self: SimFile) -> None:
        gate.pass_through()
        real(self)

    monkeypatch.setattr(SimFile, "fdatasync", fdatasync)
    return gate


@pytest.fixture
def machine(gate: Gate) -> Machine:
    return Machine()


@pytest.fixture
def threads(gate: Gate) -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as threads:
        yield threads
        gate.open()


def begun(machine: Machine, gate: Gate, threads: ThreadPoolExecutor) -> "Future[None]":
    """A sync of log 1 that is under way and stays so."""
    gate.close()
    while gate.arrived.acquire(blocking=False):
        pass
    found = threads.submit(machine.store.sync, [1])
    assert gate.arrived.acquire(timeout=WITHIN_S)
    return found


def within_ms(machine: Machine, size: int = 10) -> int | None:
    request = machine.late.request(1, size=size)
    machine.store.append_group([request])
    assert request.error is None
    return request.sync_within_ms


def test_appends_go_on_and_are_read_while_a_sync_is_under_way(
    machine: Machine, gate: Gate, threads: ThreadPoolExecutor
) -> None:
    append(machine.store, machine.late)
    sync = begun(machine, gate, threads)
    assert within_ms(machine) == BOUNDS.interval_ms
    assert read_all(machine.store, machine.late) == b"".join(machine.late.batches)
    assert not sync.done()
    gate.open()
    sync.result(WITHIN_S)


def test_what_came_during_a_sync_is_left_for_the_next(
    machine: Machine, gate: Gate, threads: ThreadPoolExecutor
) -> None:
    append(machine.store, machine.late)
    sync = begun(machine, gate, threads)
    within_ms(machine)
    gate.open()
    sync.result(WITHIN_S)
    assert machine.held_files() == 1
    syncs = machine.disk.syncs
    machine.store.sync([1])
    assert (machine.disk.syncs, machine.held_files()) == (syncs + 1, 0)


def test_more_than_a_log_may_leave_unsynced_waits_for_the_disk(
    machine: Machine, gate: Gate, threads: ThreadPoolExecutor
) -> None:
    append(machine.store, machine.late)
    sync = begun(machine, gate, threads)
    beyond = threads.submit(within_ms, machine, BOUNDS.length_bytes)
    with pytest.raises(TimeoutError):
        beyond.result(0.1)
    gate.open()
    assert beyond.result(WITHIN_S) is None
    sync.result(WITHIN_S)
    assert machine.held_files() == 0


def test_a_fence_behind_a_sync_that_fails_does_not_succeed(
    machine: Machine, gate: Gate, threads: ThreadPoolExecutor
) -> None:
    """The kernel tells an error once to those who share an open file: a second sync proves
    nothing, however soon it comes."""
    append(machine.store, machine.late)
    gate.failures = 1
    sync = begun(machine, gate, threads)
    fence = threads.submit(machine.store.sync, [1], from_now_on=True)
    with pytest.raises(TimeoutError):
        fence.result(0.1)
    gate.open()
    for each in (sync, fence):
        with pytest.raises(DiskFailedError):
            each.result(WITHIN_S)
    assert [row.segment_id for row in machine.control.rows() if row.damage] == [1]


def test_a_truncation_and_a_seal_behind_a_sync_that_fails_do_not_succeed(
    machine: Machine, gate: Gate, threads: ThreadPoolExecutor
) -> None:
    append(machine.store, machine.late, 2)
    tail = machine.late.tail
    gate.failures = 1
    sync = begun(machine, gate, threads)
    seal = threads.submit(machine.store.seal, 1, tail.end_offset, tail.digest)
    gate.open()
    for each in (sync, seal):
        with pytest.raises(DiskFailedError):
            each.result(WITHIN_S)
    with pytest.raises(DiskFailedError):
        machine.store.truncate(1, 1)


def test_a_log_that_goes_during_its_sync_leaves_nothing_open(
    machine: Machine, gate: Gate, threads: ThreadPoolExecutor
) -> None:
    append(machine.store, machine.late)
    sync = begun(machine, gate, threads)
    machine.store.removal.quarantine(1, "a test")
    gate.open()
    sync.result(WITHIN_S)
    assert machine.held_files() == 0


def test_many_syncs_and_appends_at_once_settle_at_nothing(machine: Machine) -> None:
    """Counts of both sides agree in the end, and no file stays open for ever."""
    stop = threading.Event()

    def sync() -> None:
        while not stop.is_set():
            machine.store.sync([1, 2])

    syncers = [threading.Thread(target=sync) for _ in range(2)]
    for each in syncers:
        each.start()
    for _ in range(400):
        append(machine.store, machine.late)
        append(machine.store, machine.other)
    stop.set()
    for each in syncers:
        each.join(WITHIN_S)
    machine.store.sync([1, 2])
    assert machine.held_files() == 0
    assert read_all(machine.store, machine.late) == b"".join(machine.late.batches)
