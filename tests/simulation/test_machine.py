"""Tests of single calls that fail or cost time, at every port of a simulated machine."""

import asyncio
import random
import sqlite3
from typing import cast

import pytest

from icecore.errors import InvalidRequestError, OutOfSpaceError, StorageError
from icecore.rpc.ports import Body, CallContext, Handlers, Received
from icecore_node.storage.control.control_store import ControlStore, ReplicaRow
from tests.simulation.disk import SimDisk, SimFileSystem
from tests.simulation.executor import SimExecutor
from tests.simulation.index import SimIndex, SimIndexDisk
from tests.simulation.loop import SimLoop
from tests.simulation.machine import INDEX_READS, NAMES, READS, SYNCS, WRITES, Machine, Trouble
from tests.simulation.network import SimNet, SimNetwork
from tests.simulation.ports import SimConnection, memory_database
from tests.simulation.process import SimProcess

MANY = 1000


def met(machine: Machine) -> list[str]:
    """The list that gets the kind of each operation that fails from now on."""
    kinds: list[str] = []
    machine.count_fault = kinds.append
    return kinds


def test_a_trouble_waits_for_its_operations_on_its_files_and_ends() -> None:
    machine = Machine(troubles=[Trouble("eio", READS, times=2, skip=1, names="/7/")])
    kinds = met(machine)
    machine.check("pwritev", "a/7/log")
    machine.check("pread", "a/8/log")
    machine.check("pread", "a/7/log")  # skipped
    for _ in range(2):
        with pytest.raises(StorageError):
            machine.check("pread", "a/7/log")
    machine.check("pread", "a/7/log")
    assert kinds == ["eio", "eio"]


@pytest.mark.parametrize("operation", NAMES)
def test_each_operation_on_names_can_fail_and_changes_nothing(operation: str) -> None:
    machine = Machine()
    disk = SimDisk()
    system = SimFileSystem(disk, None, machine)
    system.make_dirs("a")
    system.open("a/file", create=True).close()
    machine.troubles.append(Trouble("eio", (operation,)))
    calls = {
        "open": lambda: system.open("a/file"),
        "list_dir": lambda: system.list_dir("a"),
        "rename": lambda: system.rename("a/file", "a/other"),
        "unlink": lambda: system.unlink("a/file"),
    }
    with pytest.raises(StorageError):
        calls[operation]()
    assert list(disk.names) == ["a/file"]
    calls[operation]()


def test_a_write_may_fail_in_its_middle() -> None:
    machine = Machine(troubles=[Trouble("eio", WRITES, partly=True)])
    file = SimFileSystem(SimDisk(), None, machine).open("file", create=True)
    with pytest.raises(StorageError) as raised:
        file.pwritev([b"12345678", b"next"], 0)
    assert not isinstance(raised.value, OutOfSpaceError)
    assert file.pread(100, 0) == b"1234"


def test_a_folder_is_there_for_good_once_its_parent_was_synced() -> None:
    kept = lost = 0
    for seed in range(20):
        machine = Machine(troubles=[Trouble("eio", ("sync_dir",))])
        disk = SimDisk()
        system = SimFileSystem(disk, None, machine)
        with pytest.raises(StorageError):
            system.make_dirs("a/b")
        system.open("a/file", create=True).fdatasync()
        system.sync_dir("a")
        disk.power_cut(random.Random(seed))
        assert system.exists("a") is system.exists("a/file")
        kept, lost = kept + system.exists("a"), lost + (not system.exists("a"))
        system.make_dirs("a/b")
        disk.power_cut(random.Random(seed))
        assert system.exists("a/b")
    assert kept and lost


def test_what_a_failed_sync_left_in_the_page_cache_is_not_durable() -> None:
    disk = SimDisk()
    file = SimFileSystem(disk, None).open("file", create=True)
    file.pwritev([b"x" * 2000], 0)
    file.fdatasync()
    file.pwritev([b"y" * 2000], 2000)
    inode = disk.names["file"]
    assert inode.is_durable(2000) and not inode.is_durable(2001)
    disk.faults.failing_syncs = 1
    with pytest.raises(StorageError):
        file.fdatasync()
    file.fdatasync()
    assert inode.is_durable(2000) and not inode.is_durable(2001)
    file.pwritev([b"y" * 2000], 2000)
    file.fdatasync()
    assert inode.is_durable(4000)


def test_a_rotten_block_of_an_index_fails_until_it_is_made_anew() -> None:
    disk = SimIndexDisk()
    index = SimIndex(disk, None)
    index.write([("offset", bytes([number]), b"value") for number in range(9)])
    disk.rotten.add(("offset", b"\x03"))
    assert index.get("offset", b"\x02") == b"value"
    for read in (
        lambda: index.get("offset", b"\x03"),
        lambda: index.floor("offset", b"\x03", b"\x00"),
        lambda: index.scan("offset", b"\x00", b"\x09"),
    ):
        with pytest.raises(StorageError):
            read()
    disk.wipe()
    assert index.get("offset", b"\x03") is None


def test_calls_of_an_index_fail_for_a_while() -> None:
    machine = Machine(troubles=[Trouble("eio", INDEX_READS, times=2)])
    index = SimIndex(SimIndexDisk(), None, machine)
    index.write([("offset", b"key", b"value")])
    for _ in range(2):
        with pytest.raises(StorageError):
            index.get("offset", b"key")
    assert index.get("offset", b"key") == b"value"


class TestControlStore:
    """Transactions that fail, or did not fail after all."""

    def make(self, database: sqlite3.Connection, machine: Machine) -> ControlStore:
        connection = SimConnection(database, SimProcess("node-1", 1), machine)
        return ControlStore(cast(sqlite3.Connection, connection))

    @pytest.mark.parametrize(("partly", "is_stored"), [(False, False), (True, True)])
    def test_a_commit_may_fail_before_or_after_it_was_done(
        self, partly: bool, is_stored: bool
    ) -> None:
        database, machine = memory_database(), Machine()
        store = self.make(database, machine)
        machine.troubles.append(Trouble("control_error", ("control commit",), partly=partly))
        with pytest.raises(StorageError):
            store.put_rows([ReplicaRow(7, 0, bytes(16), 0, 1)])
        assert store.row(7) is None
        assert (self.make(database, machine).row(7) is not None) is is_stored

    def test_no_space_is_told_from_damage(self) -> None:
        machine = Machine()
        store = self.make(memory_database(), machine)
        machine.troubles.append(Trouble("control_full", ("control commit",), times=MANY))
        with pytest.raises(OutOfSpaceError):
            store.promises.persist([(7, 3)], 1)
        assert store.promises.epoch_of(7) == 0


def test_a_thread_is_busy_for_as_long_as_its_operations_take() -> None:
    machine = Machine()
    machine.raise_costs(SYNCS, 0.01)
    system = SimFileSystem(SimDisk(), None, machine)
    loop = SimLoop(1)
    done_s: list[float] = []

    def work(group: list[int]) -> list[int]:
        file = system.open(f"file{group[0]}", create=True)
        for _ in range(group[0]):
            file.fdatasync()
        return group

    async def run() -> None:
        executor = SimExecutor(None, random.Random(1), mean_delay_s=1e-6, spent_s=machine.spent_s)
        ended = loop.create_future()

        def deliver(group: object) -> None:
            done_s.append(loop.time())
            if group == [1]:
                ended.set_result(None)

        queue = executor.worker("io", work, deliver, group_items_max=1)
        queue.submit(1000)
        queue.submit(1)
        await ended
        await executor.run(work, [20])
        done_s.append(loop.time())

    loop.run_until_complete(run())
    loop.close()
    assert [round(at_s, 2) for at_s in done_s] == [10.0, 10.01, 10.21]


def test_a_message_that_is_too_large_is_refused_both_ways() -> None:
    loop = SimLoop(1)
    network = SimNetwork(loop, random.Random(3))
    network.message_bytes_max = 1000

    async def echo(body: Received, context: CallContext) -> Body:
        return [body, body]

    async def run() -> None:
        server, client = SimProcess("server", 1), SimProcess("client", 1)
        await SimNet(network, server).serve("server:1", Handlers(unary={"/echo": echo}, streams={}))
        net = SimNet(network, client)
        assert len(await net.call("server:1", "/echo", bytes(500), timeout_s=1)) == 1000
        for size in (501, 1001):
            with pytest.raises(InvalidRequestError, match="larger than max"):
                await net.call("server:1", "/echo", bytes(size), timeout_s=1)
        stream = net.open_stream("server:1", "/none")
        with pytest.raises(InvalidRequestError, match="larger than max"):
            await stream.write(bytes(1001))
        await asyncio.sleep(2)

    loop.run_until_complete(run())
    loop.close()
