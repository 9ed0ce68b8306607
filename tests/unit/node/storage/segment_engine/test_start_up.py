"""Start-up with bad sectors, a damaged index, and crashes in the middle of it: one replica or a
rebuild is the price, never the node."""

import random
import sqlite3
from pathlib import Path

import pytest

from icecore.errors import OutOfResourcesError, StorageError
from icecore_node.ports import DiskFailedError
from icecore_node.storage.control.control_store import ControlStore, ReplicaRow
from icecore_node.storage.data_folder import DataFolder
from icecore_node.storage.engines import make_store
from icecore_node.storage.port import FoundReplica
from icecore_node.storage.replica_store import ReplicaStore
from icecore_node.storage.segment_engine.segment_header import FILE_HEADER_LENGTH
from icecore_node.storage.segment_engine.segment_log import LogSettings
from icecore_node.storage.segment_engine.segment_names import file_name
from tests.conformance.log_builder import CLUSTER, LogBuilder
from tests.simulation.disk import SimDisk, SimFile, SimFileSystem
from tests.simulation.index import SimIndex, SimIndexDisk
from tests.simulation.process import ProcessKilled

SETTINGS = LogSettings(
    group_bytes_max=8 << 10,
    allocation_step_bytes=16 << 10,
    segment_bytes=64 << 10,
    records_per_point=1,
    recycle_bytes_max=0,
)


class Node:
    """The parts that outlive a process: a simulated disk, index and control store."""

    def __init__(self) -> None:
        self.disk, self.index = SimDisk(), SimIndexDisk()
        self.control = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self.start()

    def start(self) -> list[FoundReplica]:
        files, index = SimFileSystem(self.disk, None), SimIndex(self.index, None)
        self.store = make_store(files, index, ControlStore(self.control), CLUSTER, SETTINGS)
        return self.store.start_up()


def write(store: ReplicaStore, segment_id: int, *, sealed: bool) -> LogBuilder:
    log = LogBuilder(segment_id)
    assert store.creation.create([log.identity], {segment_id: (b"", 0)}) == [None]
    request = log.request(3)
    store.append_group([request])
    assert request.error is None
    if sealed:
        store.seal(segment_id, log.tail.end_offset, log.tail.digest)
    return log


@pytest.mark.parametrize("bad", [2, 4])
def test_a_bad_sector_costs_one_replica(monkeypatch: pytest.MonkeyPatch, bad: int) -> None:
    node = Node()
    logs = [write(node.store, number, sealed=number < 4) for number in range(1, 6)]
    name, real = file_name(logs[bad - 1].identity), SimFile.pread

    def pread(self: SimFile, length: int, position: int) -> bytes:
        if self._name == name:
            raise StorageError(f"read {name}: Input/output error")
        return real(self, length, position)

    monkeypatch.setattr(SimFile, "pread", pread)
    for _ in range(2):
        found = node.start()
        assert [each.identity.segment_id for each in found if not each.intact] == [bad]
        assert "Input/output error" in found[bad - 1].why


@pytest.mark.parametrize("topic_id", [b"", b"z" * 15])
def test_a_record_that_can_t_be_costs_one_replica(topic_id: bytes) -> None:
    """An earlier version stored what a forged Open had in it."""
    node = Node()
    for number in (1, 2):
        write(node.store, number, sealed=number == 1)
    row = ReplicaRow(9, 0, topic_id, 0, 1).confirmed(0, b"", 0)
    ControlStore(node.control).put_rows([row], [(9, 1)])
    for _ in range(2):
        found = node.start()
        assert [(each.identity.segment_id, each.intact) for each in found] == [
            (1, True),
            (2, True),
            (9, False),
        ]
        assert "16 bytes" in found[2].why
    node.disk.names[file_name(row.identity(CLUSTER))] = node.disk.names[
        file_name(found[1].identity)
    ]
    assert node.store.salvage.tail(9) is None


def test_a_failed_sync_that_an_earlier_version_noted() -> None:
    node = Node()
    for number in (1, 2, 3):
        write(node.store, number, sealed=number == 1)
    ControlStore(node.control).database.put(poisoned=b"fsync folder recycle")
    for _ in range(2):
        assert [each.intact for each in node.start()] == [True, False, False]


def test_a_deletion_that_does_not_end_keeps_nobody_down(monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node()
    for number in (1, 2):
        write(node.store, number, sealed=number == 1)

    def unlink(_: object, name: str) -> None:
        raise StorageError(f"unlink {name}: Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(SimFileSystem, "unlink", unlink)
        with pytest.raises(StorageError):
            node.store.removal.delete([1], 7)
        assert [each.identity.segment_id for each in node.start()] == [1, 2]
    assert [each.identity.segment_id for each in node.start()] == [2]


def test_a_lack_of_descriptors_is_nobodys_damage() -> None:
    node = Node()
    for number in (1, 2, 3):
        write(node.store, number, sealed=number == 1)
    node.disk.faults.opens_left = 2
    with pytest.raises(OutOfResourcesError):
        node.start()
    node.disk.faults.opens_left = None
    assert [each.intact for each in node.start()] == [True, True, True]


@pytest.mark.parametrize("seed", range(40))
def test_the_index_never_leads_the_file_in_recovery(
    monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """SIGKILL between write and sync, another one in front of recovery's own sync, power cut."""
    node, rng = Node(), random.Random(seed)
    log = write(node.store, 1, sealed=False)
    node.store.index.flush()
    acked = log.tail.end_offset

    def dies(_: SimFile) -> None:
        raise ProcessKilled("here")

    with monkeypatch.context() as patch:
        patch.setattr(SimFile, "fdatasync", dies)
        with pytest.raises(ProcessKilled):
            node.store.append_group([log.request(2, size=352)])
        with pytest.raises(ProcessKilled):
            node.start()
    node.disk.power_cut(rng)
    node.index.power_cut(rng)
    [found] = node.start()
    assert found.intact, found.why
    assert found.tail.end_offset >= acked


def test_recovery_syncs_each_log_that_may_have_failed_to_sync_once() -> None:
    node = Node()
    logs = [write(node.store, number, sealed=number == 1) for number in (1, 2, 3)]
    node.start()
    before = node.disk.syncs
    node.start()
    assert node.disk.syncs == before, "the index knows all that is there"
    torn = node.disk.names[file_name(logs[2].identity)]
    torn.write(b"half", logs[2].tail.length_bytes + FILE_HEADER_LENGTH)
    node.start()
    assert node.disk.syncs == before + 2, "to see what is on disk, and to cut it"
    node.start()
    assert node.disk.syncs == before + 2


def test_a_tail_is_cut_wherever_something_lies_behind_it() -> None:
    for distance_bytes in (0, 8, 3_000, 5_000, 60_000):
        node = Node()
        log = write(node.store, 1, sealed=False)
        end = log.tail.length_bytes + FILE_HEADER_LENGTH
        inode = node.disk.names[file_name(log.identity)]
        inode.size = max(inode.size, end + 100_000)  # reserved, and nothing there
        inode.write(b"old", end + distance_bytes)
        [found] = node.start()
        assert found.intact and found.tail == log.tail
        assert inode.size == end


def test_what_a_failed_sync_left_in_the_page_cache_is_not_taken_for_durable() -> None:
    node = Node()
    log = write(node.store, 1, sealed=False)
    durable = log.tail
    node.disk.faults.failing_syncs = 1
    node.control.execute("BEGIN")
    with pytest.raises(DiskFailedError):
        node.store.append_group([log.request(2)])
    node.control.execute("ROLLBACK")  # the process died before the failure was stored
    [found] = node.start()
    assert found.intact and found.tail.end_offset == durable.end_offset, found.why


def test_a_damaged_index_is_made_again() -> None:
    node = Node()
    logs = [write(node.store, number, sealed=number < 4) for number in range(1, 6)]
    for _ in range(2):
        node.index.is_rotten = True
        assert all(each.intact for each in node.start())
        assert not node.index.is_rotten
    for log in logs:  # with all its points
        keys = node.index.families["offset"].keys
        prefix = (log.identity.segment_id << 16).to_bytes(8, "big")
        assert sum(key.startswith(prefix) for key in keys) == 3
    assert len(node.index.families["durable"].keys) == 5


def test_an_index_that_rots_at_run_time_is_begun_anew() -> None:
    node = Node()
    sealed, log = write(node.store, 1, sealed=True), write(node.store, 2, sealed=False)
    node.index.is_rotten = True
    request = log.request(1)
    node.store.append_group([request])
    assert request.error is None
    assert not node.index.is_rotten
    node.index.flush()
    # The durable end is known again at once: a log that lost its end is noticed.
    file = node.disk.names[file_name(log.identity)]
    file.truncate(FILE_HEADER_LENGTH + 300)
    file.sync()
    found = node.start()
    assert [each.intact for each in found] == [True, False]
    assert "lost durable tail" in found[1].why
    prefix = (sealed.identity.segment_id << 16).to_bytes(8, "big")
    assert sum(key.startswith(prefix) for key in node.index.families["offset"].keys) == 3


def test_a_flipped_bit_of_rocksdb(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def start() -> tuple[DataFolder, ReplicaStore]:
        folder = DataFolder.open(tmp_path, 1, CLUSTER)
        return folder, make_store(folder.files, folder.index, folder.control, CLUSTER, SETTINGS)

    folder, store = start()
    store.start_up()
    logs = [write(store, number, sealed=number < 20) for number in range(1, 30)]
    store.close()
    folder.close()
    folder, store = start()
    store.start_up()
    store.close()
    folder.close()
    tables = sorted((tmp_path / "index").glob("*.sst"))
    assert tables
    for table in tables:
        data = bytearray(table.read_bytes())
        data[40] ^= 4
        table.write_bytes(data)
    folder, store = start()
    assert all(found.intact for found in store.start_up())
    assert "event=index_rebuilt" in caplog.text
    for log in logs:
        assert store.reader.read(log.identity.segment_id, 0, 1 << 20, 3) == (
            log.bytes_between(0, 3),
            3,
        )
    store.close()
    folder.close()
