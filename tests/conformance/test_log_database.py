"""The database of active logs: the common suite, damage of RocksDB's own log, and a full disk."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from icecore.errors import ConfigurationError, OutOfSpaceError, StorageError
from icecore_node.ports import DiskFailedError, SyncFailedError
from icecore_node.storage.engine import KnownLog, NewLog
from icecore_node.storage.rocksdb_engine.log_database import DatabaseChange
from icecore_node.storage.rocksdb_engine.rocks_database import RocksLogDatabase
from icecore_node.storage.rocksdb_engine.rocksdb_engine import RocksdbEngine
from tests.conformance.engine_suite import accept
from tests.conformance.log_builder import LogBuilder
from tests.conformance.log_database_suite import LogDatabaseConformance
from tests.simulation.disk import DiskFaults
from tests.simulation.log_database import SimLogDatabase
from tests.simulation.log_disk import SimLogDisk


class TestSimLogDatabase(LogDatabaseConformance):
    """tests.simulation.log_database."""

    @pytest.fixture
    def database(self) -> SimLogDatabase:
        return SimLogDatabase(SimLogDisk())

    def test_a_power_cut_loses_a_tail_of_what_was_not_synced(self) -> None:
        kept = set()
        for seed in range(30):
            disk = SimLogDisk()
            database = SimLogDatabase(disk)
            database.write(DatabaseChange([(b"a", b"1")]))
            database.sync()
            for number in range(3):
                database.write(DatabaseChange([(b"b%d" % number, b"")], [(b"a", b"b")]))
            disk.power_cut(random.Random(seed))
            after = [key for key, _ in SimLogDatabase(disk).scan(b"", b"z")]
            kept.add(tuple(after))
        assert kept == {(b"a",), (b"b0",), (b"b0", b"b1"), (b"b0", b"b1", b"b2")}


class TestRocksLogDatabase(LogDatabaseConformance):
    """icecore_node.storage.rocksdb_engine.rocks_database."""

    @pytest.fixture
    def database(self, tmp_path: Path) -> Iterator[RocksLogDatabase]:
        database = RocksLogDatabase(tmp_path / "rocksdb")
        yield database
        database.close()

    def test_nothing_is_made_before_something_is_written(
        self, database: RocksLogDatabase, tmp_path: Path
    ) -> None:
        assert database.get(b"k") is None and not (tmp_path / "rocksdb").exists()
        database.write(DatabaseChange([(b"k", b"v")]))
        assert (tmp_path / "rocksdb").exists()

    def test_a_database_in_use_is_not_thrown_away(
        self, database: RocksLogDatabase, tmp_path: Path
    ) -> None:
        database.write(DatabaseChange([(b"k", b"v")]))
        with pytest.raises(ConfigurationError):
            RocksLogDatabase(tmp_path / "rocksdb").get(b"k")
        assert database.get(b"k") == b"v"
        database.close()
        with pytest.raises(StorageError, match="closed"):
            database.get(b"k")


def copied(path: Path, to: Path) -> Path:
    """A database as a process that was killed left it: its log is not flushed into tables."""
    to.mkdir()
    for file in path.iterdir():
        if file.name != "LOCK":
            (to / file.name).write_bytes(file.read_bytes())
    return to


def three_synced(path: Path) -> Path:
    """A killed database with three synced changes in its log, one behind the other."""
    database = RocksLogDatabase(path / "alive")
    for number in range(3):
        database.write(DatabaseChange([(b"k%d" % number, bytes([number]) * 1000)]))
        database.sync()
    killed = copied(path / "alive", path / "killed")
    database.close()
    return killed


def log_of(path: Path) -> Path:
    (found,) = [file for file in path.glob("*.log") if file.stat().st_size]
    return found


def test_a_torn_end_of_its_log_was_never_synced(tmp_path: Path) -> None:
    killed = three_synced(tmp_path)
    data = log_of(killed).read_bytes()
    log_of(killed).write_bytes(data[:-500])
    database = RocksLogDatabase(killed)
    assert [key for key, _ in database.scan(b"", b"z")] == [b"k0", b"k1"]
    database.close()


def test_damage_in_the_middle_keeps_the_whole_aside(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Else changes that were synced behind it would be gone without a word."""
    killed = three_synced(tmp_path)
    data = bytearray(log_of(killed).read_bytes())
    data[500] ^= 0x10
    log_of(killed).write_bytes(bytes(data))
    database = RocksLogDatabase(killed)
    assert list(database.scan(b"", b"z")) == []
    assert "event=database_damaged" in caplog.text
    assert log_of(tmp_path / "killed.damaged.1").read_bytes() == bytes(data)
    database.write(DatabaseChange([(b"new", b"1")]))
    database.sync()
    database.close()


def test_a_full_disk_refuses_and_is_used_again_once_there_is_room(small_disk: Path) -> None:
    database = RocksLogDatabase(small_disk / "rocksdb")
    database.write(DatabaseChange([(b"first", b"1")]))
    database.sync()
    filler = small_disk / "filler"
    written = 0
    with filler.open("wb") as file:
        file.write(bytes(30 << 20))
    with pytest.raises(OutOfSpaceError):
        for number in range(1000):
            database.write(DatabaseChange([(b"k%03d" % number, random.randbytes(100_000))]))
            database.sync()
            written = number + 1
    assert database.get(b"first") == b"1"
    filler.unlink()
    database.write(DatabaseChange([(b"last", b"2")]))
    database.sync()
    assert database.get(b"first") == b"1" and database.get(b"last") == b"2"
    assert len(list(database.scan(b"k", b"l"))) >= written > 0
    database.close()


def test_a_sync_that_fails_ends_the_process_and_condemns_what_was_on_its_way() -> None:
    disk, faults, condemned = SimLogDisk(), DiskFaults(), dict[int, str]()
    engine = RocksdbEngine(SimLogDatabase(disk, faults=faults), 1 << 20, condemned.update)
    logs = [LogBuilder(number) for number in (1, 2, 3)]
    engine.create([NewLog(log.identity) for log in logs], accept)
    engine.append_group([log.request() for log in logs])
    faults.failing_syncs = 1
    with pytest.raises(DiskFailedError):
        engine.append_group([log.request() for log in logs[:2]])
    assert sorted(condemned) == [1, 2] and "sync" in condemned[1]
    assert engine.reader.tail(1).end_offset == 1, "nothing of it is readable"
    again = RocksdbEngine(SimLogDatabase(disk), 1 << 20, condemned.update)
    found = again.start_up([KnownLog(log.identity) for log in logs], [])
    assert [one.tail.end_offset for one in found] == [1, 1, 1]


def test_a_failed_sync_is_told_as_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    database = RocksLogDatabase(tmp_path / "rocksdb")
    database.write(DatabaseChange([(b"k", b"v")]))

    class Broken:
        def flush_wal(self, _: bool) -> None:
            raise Exception("IO error: No space left on device")

    monkeypatch.setattr(database, "_database", Broken())
    with pytest.raises(SyncFailedError):
        database.sync()
