"""Crash points of one node: whatever an unsynced group left on disk, nothing durable is lost.

A crash keeps, drops or garbles each unsynced 512-byte sector on its own. The tests build such
images from a real run, recover them, and compare with what had been acknowledged.
"""

import random
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from icecore.errors import StorageError
from icecore_node.ports import DiskFailedError, SyncFailedError
from icecore_node.storage.control.control_store import ControlStore
from icecore_node.storage.engines import make_store
from icecore_node.storage.files.file_system import OsFile, OsFileSystem
from icecore_node.storage.port import FoundReplica
from icecore_node.storage.segment_engine.segment_header import (
    FILE_HEADER_LENGTH,
    confirm_slot,
    encode_file_header,
)
from icecore_node.storage.segment_engine.segment_log import LogSettings
from icecore_node.storage.segment_engine.segment_names import file_name
from tests.conformance.log_builder import CLUSTER, LogBuilder, identity
from tests.simulation.index import SimIndex, SimIndexDisk

SECTOR = 512
GROUP_BYTES = 16 << 10
SETTINGS = LogSettings(
    group_bytes_max=GROUP_BYTES,
    allocation_step_bytes=64 << 10,
    records_per_point=3,
    bytes_per_point=2048,
    recycle_bytes_min=1,
)
FAR = 1 << 40
GARBAGE = bytes((number * 37 + 11) % 256 for number in range(SECTOR))


class Disk:
    """A data folder whose parts can be taken back in time."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.index_disk = SimIndexDisk()
        self.control = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self.file_system = OsFileSystem(root)
        self.open()

    def open(self) -> list[FoundReplica]:
        """A new process recovers."""
        self.store = make_store(
            self.file_system,
            SimIndex(self.index_disk, None),
            ControlStore(self.control),
            CLUSTER,
            SETTINGS,
        )
        return self.store.start_up()

    def path(self, segment_id: int = 1) -> Path:
        """The data file."""
        return self.root / file_name(identity(segment_id))

    def image(self, data: bytes, index_disk: SimIndexDisk, control: sqlite3.Connection) -> None:
        """Become another state of the same disk."""
        self.path().write_bytes(data)
        self.index_disk = copy_of(index_disk)
        self.control = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        control.backup(self.control)


def copy_of(disk: SimIndexDisk) -> SimIndexDisk:
    other = SimIndexDisk()
    other.families = {name: family.copy() for name, family in disk.families.items()}
    return other


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    disk = Disk(tmp_path)
    yield disk
    disk.file_system.close()


def confirmed(disk: Disk, segment_id: int = 1) -> LogBuilder:
    log = LogBuilder(segment_id)
    assert disk.store.creation.create([identity(segment_id)]) == [None]
    disk.store.creation.confirm(log.identity, b"", 0)
    return log


def append(disk: Disk, log: LogBuilder, sizes: list[int]) -> None:
    first = len(log.batches)
    for size in sizes:
        log.make(1, size, high_watermark=log.tail.end_offset)
    request = log.request_of(first, len(log.batches))
    disk.store.append_group([request])
    assert request.error is None


def positions(log: LogBuilder) -> list[int]:
    """Return the position where each batch starts, and the end."""
    found = [FILE_HEADER_LENGTH]
    for batch in log.batches:
        found.append(found[-1] + len(batch))
    return found


def whole_prefix(log: LogBuilder, data: bytes) -> int:
    """Return the number of batches from the start that are in the image as they were written."""
    for number, (batch, start) in enumerate(zip(log.batches, positions(log), strict=False)):
        if data[start : start + len(batch)] != batch:
            return number
    return len(log.batches)


def check_goes_on(disk: Disk, log: LogBuilder, count: int) -> None:
    """A cut log takes the leader's next batches again, byte for byte."""
    request = log.request_of(count, len(log.batches))
    if request.marks:
        disk.store.append_group([request])
        assert request.error is None
    (found,) = disk.open()
    assert found.intact and found.tail == log.tail
    data, end = disk.store.reader.read(1, 0, 1 << 20, FAR)
    assert (data, end) == (b"".join(log.batches), log.tail.end_offset)


def sector_images(before: bytes, after: bytes, start: int, stop: int) -> Iterator[bytes]:
    """All kept, all dropped, and each sector on its own dropped, kept alone, or garbage.

    Bytes before ``start`` were synced and stay: they are on disk, whatever shares their sector.
    """
    yield after
    yield before
    for sector in range(start // SECTOR, (stop - 1) // SECTOR + 1):
        low, high = max(sector * SECTOR, start), min((sector + 1) * SECTOR, stop)
        yield after[:low] + before[low:high] + after[high:]
        yield before[:low] + after[low:high] + before[high:]
        yield after[:low] + GARBAGE[: high - low] + after[high:]


@pytest.mark.parametrize("stale", [False, True], ids=["new file", "recycled file"])
@pytest.mark.parametrize("index_state", ["exact", "lagging", "empty"])
@pytest.mark.parametrize(
    "group", [[100], [30, 900, 10], [400] * 4, [5000, 20]], ids=["one", "mixed", "even", "large"]
)
def test_every_crash_point_of_the_last_group(
    disk: Disk, group: list[int], index_state: str, stale: bool
) -> None:
    if stale:
        old = confirmed(disk, 0)
        for _ in range(8):
            append(disk, old, [400, 1000, 30])
        disk.store.removal.delete([0], 1)
        assert list((disk.root / "recycle").iterdir())
    log = confirmed(disk)
    index_disks = {"empty": SimIndexDisk()}
    append(disk, log, [300, 700])
    index_disks["lagging"] = copy_of(disk.index_disk)
    append(disk, log, [200])
    index_disks["exact"] = copy_of(disk.index_disk)
    durable, start = len(log.batches), positions(log)[-1]
    before = disk.path().read_bytes()
    append(disk, log, group)
    after, control = disk.path().read_bytes(), disk.control
    before = before.ljust(len(after), b"\0")

    cut = 0
    for image in sector_images(before, after, start, positions(log)[-1]):
        expected = whole_prefix(log, image)
        assert expected >= durable
        disk.image(image, index_disks[index_state], control)
        (found,) = disk.open()
        assert found.intact, found.why
        assert found.tail.end_offset == log.tails[expected].end_offset
        assert found.tail.digest == log.tails[expected].digest
        assert found.headers == log.headers()[:expected]
        assert not any(disk.path().read_bytes()[positions(log)[expected] :]), "it comes back"
        data, _ = disk.store.reader.read(1, 0, 1 << 20, FAR)
        assert data == b"".join(log.batches[:expected])
        cut += expected < len(log.batches)
        check_goes_on(disk, log, expected)
    assert cut


def test_the_high_watermark_of_a_torn_tail_is_kept(disk: Disk) -> None:
    """A reader may have seen it: the tripwire compares it with the end that is decided."""
    log = confirmed(disk)
    append(disk, log, [100])
    append(disk, log, [100, 100, 100])
    torn = positions(log)[1] + 180  # the body of the second batch
    image = bytearray(disk.path().read_bytes())
    image[torn] ^= 1
    disk.image(bytes(image), SimIndexDisk(), disk.control)
    (found,) = disk.open()
    assert found.intact and found.tail.end_offset == 1
    assert found.tail.max_known_high_watermark == 3


def test_a_batch_of_another_history_ends_the_log(disk: Disk) -> None:
    """Whole, of this segment, at the right offset: only the chain tells that it isn't the one."""
    log, other = confirmed(disk), LogBuilder(1)
    append(disk, log, [100] * 4)
    for size in (100, 99, 100, 100):  # 99 bytes take as much room as 100
        other.make(1, size)
    start, end = positions(log)[2:4]
    data = disk.path().read_bytes()
    disk.image(data[:start] + other.batches[2] + data[end:], SimIndexDisk(), disk.control)
    (found,) = disk.open()
    assert found.intact and found.tail.end_offset == 2 and "chain" in found.why


class LosesAll(random.Random):
    """For ``power_cut``: nothing of what was not flushed survives."""

    def randint(self, a: int, b: int) -> int:
        return a


@pytest.mark.parametrize("operation", ["delete", "quarantine", "truncate"])
def test_the_index_never_remembers_more_than_a_new_file_holds(disk: Disk, operation: str) -> None:
    """A power cut takes the end of its write-ahead log; the file is shorter for good."""
    log = confirmed(disk)
    append(disk, log, [3000] * 3)
    disk.store.index.flush()
    if operation == "truncate":
        disk.store.truncate(1, 1)
        end = 1
    else:
        end = 0
        if operation == "delete":
            disk.store.removal.delete([1], 1)
        else:
            disk.store.removal.quarantine(1, "a test")
        confirmed(disk)
        disk.store.creation.certify(1)
    disk.index_disk.power_cut(LosesAll())
    (found,) = disk.open()
    assert found.intact and found.tail.end_offset == end, found.why


# --- damage: kept, reported, never cut ----------------------------------------------------------


def flip(disk: Disk, position: int) -> bytes:
    """Rot one byte of the data file; the damaged content."""
    data = bytearray(disk.path().read_bytes())
    data[position] ^= 0x40
    disk.path().write_bytes(data)
    return bytes(data)


def check_unknown(disk: Disk, why: str) -> None:
    """UNKNOWN now, and after a restart with whatever index."""
    (found,) = disk.open()
    assert not found.intact and why in found.why
    disk.index_disk = SimIndexDisk()
    (found,) = disk.open()
    assert not found.intact and why in found.why


def test_rot_in_the_middle_of_a_log_without_index(disk: Disk) -> None:
    log = confirmed(disk)
    for _ in range(12):
        append(disk, log, [4000])
    disk.index_disk = SimIndexDisk()
    data = flip(disk, positions(log)[2] + 1000)
    check_unknown(disk, "mid-log damage")
    assert disk.path().read_bytes() == data


def test_rot_of_a_header_below_the_durable_end(disk: Disk) -> None:
    log = confirmed(disk)
    append(disk, log, [100] * 5)
    data = flip(disk, positions(log)[2] + 40)
    check_unknown(disk, "lost durable tail")
    assert disk.path().read_bytes() == data


def test_rot_of_a_body_below_the_durable_end_is_found_by_the_reader(disk: Disk) -> None:
    log = confirmed(disk)
    append(disk, log, [1000] * 5)
    flip(disk, positions(log)[2] + 400)
    (found,) = disk.open()
    assert found.intact
    with pytest.raises(StorageError):
        disk.store.reader.read(1, 2, 1, FAR)


def test_a_file_shorter_than_its_durable_end(disk: Disk) -> None:
    log = confirmed(disk)
    append(disk, log, [100] * 5)
    data = disk.path().read_bytes()[: positions(log)[3]]
    disk.path().write_bytes(data)
    check_unknown(disk, "lost durable tail")
    assert disk.path().read_bytes() == data


def test_a_missing_file(disk: Disk) -> None:
    append(disk, confirmed(disk), [100])
    disk.path().unlink()
    check_unknown(disk, "missing")


@pytest.mark.parametrize("position", [20, 600], ids=["first slot", "second slot"])
def test_a_rotten_file_header(disk: Disk, position: int) -> None:
    append(disk, confirmed(disk), [100])
    flip(disk, position)
    (found,) = disk.open()
    if position == 20:
        assert found.intact  # the confirmed slot says it all
    else:
        assert not found.intact and "belongs to" in found.why


def test_a_file_of_another_segment(disk: Disk) -> None:
    append(disk, confirmed(disk), [100])
    disk.path().write_bytes(encode_file_header(identity(2)) + bytes(100))
    check_unknown(disk, "belongs to")


def test_a_short_sealed_file(disk: Disk) -> None:
    log = confirmed(disk)
    append(disk, log, [100] * 5)
    disk.store.seal(1, 5, log.tail.digest)
    disk.path().write_bytes(disk.path().read_bytes()[:-8])
    check_unknown(disk, "sealed log")


@pytest.mark.parametrize("behind", [b"", GARBAGE, bytes(100_000)])
def test_a_sealed_file_that_a_power_cut_made_long_again(disk: Disk, behind: bytes) -> None:
    """The end of a sealed file is not synced: its record tells it."""
    log = confirmed(disk)
    append(disk, log, [100] * 5)
    disk.store.seal(1, 5, log.tail.digest)
    sealed = disk.path().read_bytes()
    assert sealed.endswith(log.batches[-1])
    disk.path().write_bytes(sealed + behind)
    (found,) = disk.open()
    assert found.intact and found.sealed_end_offset == 5 and found.tail == log.tail
    assert disk.path().read_bytes() == sealed


def test_a_seal_syncs_no_file_that_is_synced(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    log = confirmed(disk)
    append(disk, log, [100] * 5)
    monkeypatch.setattr(OsFile, "fdatasync", failing(SyncFailedError("simulated")))
    disk.store.seal(1, 5, log.tail.digest)
    assert [each.sealed_end_offset for each in disk.open()] == [5]


def test_an_unknown_replica_is_replaced_only_through_quarantine(disk: Disk) -> None:
    append(disk, confirmed(disk), [100])
    disk.path().unlink()
    disk.open()
    (error,) = disk.store.creation.create([identity(1)])
    assert isinstance(error, StorageError)
    disk.store.removal.quarantine(1, "gone")
    log = confirmed(disk)
    append(disk, log, [100])
    (found,) = disk.open()
    assert not found.intact and found.why.startswith("rebuilding")


# --- create and confirm torn by a crash -------------------------------------------------


def test_a_file_without_a_record_is_taken_again(disk: Disk) -> None:
    """Crash between the file and the control store; with a torn header too."""
    for content in (encode_file_header(identity(1)), GARBAGE * 8, b""):
        disk.path().parent.mkdir(parents=True, exist_ok=True)
        disk.path().write_bytes(content)
        log = confirmed(disk)
        append(disk, log, [100])
        (found,) = disk.open()
        assert found.intact and found.tail.end_offset == 1
        disk.store.removal.delete([1], 1)
        assert disk.open() == []


def test_a_confirmed_file_without_a_record_is_set_aside(disk: Disk) -> None:
    """The control store lost what it knew: the new file must not pass for the old one."""
    log = LogBuilder(1)
    slot, position = confirm_slot(log.identity)
    data = encode_file_header(identity(1))
    data = data[:position] + slot + data[position + len(slot) :]
    disk.path().parent.mkdir(parents=True)
    disk.path().write_bytes(data)
    confirmed(disk)
    (found,) = disk.open()
    assert not found.intact
    assert [path.read_bytes() for path in disk.root.glob("segments/*/*/*.quarantined0")] == [data]


@pytest.mark.parametrize("torn", [b"", GARBAGE], ids=["written", "garbage"])
def test_a_confirm_that_did_not_reach_the_control_store(disk: Disk, torn: bytes) -> None:
    disk.store.creation.create([identity(1)])
    slot, position = confirm_slot(identity(1, 77))
    data = disk.path().read_bytes()
    disk.path().write_bytes(data[:position] + (torn or slot) + data[position + len(slot) :])
    (found,) = disk.open()
    assert found.intact and found.identity == identity(1)
    log = LogBuilder(1)
    disk.store.creation.confirm(log.identity, b"", 0)
    append(disk, log, [100])
    (found,) = disk.open()
    assert found.intact and found.tail == log.tail


# --- failed syncs -------------------------------------------------------------------------------


def failing(error: Exception) -> Callable[[OsFile], None]:
    def fdatasync(_: OsFile) -> None:
        raise error

    return fdatasync


def test_after_a_failed_sync_its_log_is_not_trusted(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, sealed, other = confirmed(disk), confirmed(disk, 2), confirmed(disk, 3)
    append(disk, sealed, [10])
    disk.store.seal(2, 1, sealed.tail.digest)
    append(disk, log, [100])
    append(disk, other, [100])
    log.make(1)
    with monkeypatch.context() as patch:
        patch.setattr(OsFile, "fdatasync", failing(SyncFailedError("simulated")))
        with pytest.raises(DiskFailedError, match="process must end"):
            disk.store.append_group([log.request_of(1, 2)])
    found = disk.open()
    assert [replica.intact for replica in found] == [False, True, True]
    assert "sync had failed" in found[0].why
    assert [replica.intact for replica in disk.open()] == [False, True, True]


def test_data_is_synced_before_the_index_hears_of_it(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = confirmed(disk)
    calls: list[str] = []
    for owner, name in ((OsFile, "pwritev"), (OsFile, "fdatasync"), (SimIndex, "write")):
        real = getattr(owner, name)

        def spy(*args: object, _real: Callable[..., object] = real, _name: str = name) -> object:
            calls.append(_name)
            return _real(*args)

        monkeypatch.setattr(owner, name, spy)
    append(disk, log, [100, 200])
    assert calls == ["pwritev", "fdatasync", "write"]
    calls.clear()
    append(disk, log, [6000] * 6)  # more than one group's worth: a sync between the writes
    assert calls == ["pwritev", "fdatasync"] * 3 + ["write"]
