"""Tests of the forgetful disk and index: what survives a kill, a power cut, a failing fsync."""

import random

import pytest

from icecore.errors import OutOfSpaceError, StorageError
from tests.simulation.disk import SimDisk, SimFileSystem
from tests.simulation.index import SimIndex, SimIndexDisk
from tests.simulation.inode import BLOCK_BYTES, SECTOR_BYTES
from tests.simulation.process import ProcessKilled, SimProcess

SEEDS = range(40)


def mount(disk: SimDisk) -> SimFileSystem:
    return SimFileSystem(disk, None)


def durable_file(disk: SimDisk, name: str = "log", content: bytes = b"") -> None:
    system = mount(disk)
    file = system.open(name, create=True)
    file.pwritev([content], 0)
    file.fdatasync()
    system.sync_dir("")


def content(disk: SimDisk, name: str = "log") -> bytes:
    file = mount(disk).open(name)
    return file.pread(file.size(), 0)


def test_synced_bytes_survive_every_power_cut() -> None:
    old = bytes(range(256)) * 20
    for seed in SEEDS:
        disk = SimDisk()
        durable_file(disk, content=old)
        mount(disk).open("log").pwritev([b"x" * 3000], 8192)
        disk.power_cut(random.Random(seed))
        assert content(disk)[: len(old)] == old


def test_each_unsynced_sector_is_kept_dropped_or_garbage() -> None:
    fates = set()
    for seed in SEEDS:
        disk = SimDisk()
        durable_file(disk, content=b"o" * 4 * SECTOR_BYTES)
        mount(disk).open("log").pwritev([b"n" * 4 * SECTOR_BYTES], 0)
        disk.power_cut(random.Random(seed))
        after = content(disk)
        for start in range(0, len(after), SECTOR_BYTES):
            sector = after[start : start + SECTOR_BYTES]
            fates.add(
                {b"o": "dropped", b"n": "kept"}.get(sector[:1] * (len(set(sector)) == 1), "?")
            )
    assert fates == {"dropped", "kept", "?"}


def test_unsynced_growth_may_or_may_not_show() -> None:
    sizes = set()
    for seed in SEEDS:
        disk = SimDisk()
        durable_file(disk, content=b"o" * 100)
        mount(disk).open("log").pwritev([b"n" * 10_000], 100)
        disk.power_cut(random.Random(seed))
        sizes.add(len(content(disk)))
    assert {100, 10_100} <= sizes
    assert len(sizes) > 2


def test_what_lay_behind_the_end_is_not_seen_when_a_file_grows() -> None:
    shrunk = 0
    for seed in SEEDS:
        disk = SimDisk()
        durable_file(disk, content=b"o" * 100)
        mount(disk).open("log").pwritev([b"n" * 10_000], 100)
        disk.power_cut(random.Random(seed))
        size = len(content(disk))
        mount(disk).open("log").allocate(0, 20_000)
        assert not any(content(disk)[size:])
        shrunk += size < 10_100
    assert shrunk


def test_kill_without_power_cut_keeps_the_page_cache() -> None:
    disk = SimDisk()
    process = SimProcess("node-1", 1)
    system = SimFileSystem(disk, process)
    file = system.open("log", create=True)
    file.pwritev([b"abc"], 0)
    process.kill("test", 0.0)
    with pytest.raises(ProcessKilled):
        file.pwritev([b"zombie"], 0)
    with pytest.raises(ProcessKilled):
        system.unlink("log")
    assert content(disk) == b"abc"


def test_names_are_durable_only_after_sync_dir() -> None:
    outcomes = set()
    for seed in SEEDS:
        disk = SimDisk()
        durable_file(disk, "kept")
        durable_file(disk, "old", b"1")
        system = mount(disk)
        system.open("created", create=True).fdatasync()
        system.rename("old", "new")
        system.unlink("kept")
        disk.power_cut(random.Random(seed))
        outcomes.add(tuple(mount(disk).list_dir("")))
    assert ("kept", "old") in outcomes
    assert ("created", "new") in outcomes
    assert len(outcomes) == 8
    for names in outcomes:
        assert ("old" in names) != ("new" in names)


def test_sync_dir_of_one_folder_says_nothing_of_another() -> None:
    disk = SimDisk()
    system = mount(disk)
    system.make_dirs("a/b")
    system.open("a/one", create=True)
    system.open("a/b/two", create=True)
    system.sync_dir("a")
    assert list(disk.durable_names) == ["a/one"]
    assert system.list_dir("a") == ["b", "one"]


def test_no_change_of_a_name_overtakes_an_earlier_one() -> None:
    """A file is set aside, and another one comes from a folder that is synced first."""
    disk = SimDisk()
    system = mount(disk)
    system.make_dirs("a", "pool")
    durable_file(disk, "pool/recycled", b"2")
    system.open("a/log", create=True)
    system.rename("a/log", "a/log.aside")
    system.rename("pool/recycled", "a/log")
    system.sync_dir("pool")
    system.sync_dir("a")
    assert sorted(disk.durable_names) == ["a/log", "a/log.aside"]
    assert disk.durable_names["a/log"] is disk.names["a/log"]


def test_truncate_and_rewrite() -> None:
    disk = SimDisk()
    durable_file(disk, content=b"x" * 10_000)
    file = mount(disk).open("log")
    file.truncate(5_000)
    assert file.pread(20_000, 4_000) == b"x" * 1_000
    file.truncate(6_000)
    assert file.pread(2_000, 4_500) == b"x" * 500 + bytes(1_000)
    file.fdatasync()
    disk.power_cut(random.Random(1))
    assert content(disk) == b"x" * 5_000 + bytes(1_000)


def test_failed_fsync_shows_bytes_that_are_not_there() -> None:
    disk = SimDisk()
    durable_file(disk, content=b"old")
    file = mount(disk).open("log")
    file.pwritev([b"new"], 0)
    disk.faults.failing_syncs = 1
    with pytest.raises(StorageError):
        file.fdatasync()
    file.fdatasync()
    assert content(disk) == b"new"
    disk.power_cut(random.Random(1))
    assert content(disk) == b"old"


def test_full_disk() -> None:
    disk = SimDisk()
    durable_file(disk, content=b"x" * BLOCK_BYTES)
    disk.faults.capacity_bytes = 3 * BLOCK_BYTES
    file = mount(disk).open("log")
    file.allocate(0, 2 * BLOCK_BYTES)
    with pytest.raises(OutOfSpaceError):
        file.pwritev([b"y" * 3 * BLOCK_BYTES], BLOCK_BYTES)
    file.pwritev([b"y" * BLOCK_BYTES], BLOCK_BYTES)
    assert mount(disk).space() == (2 * BLOCK_BYTES, BLOCK_BYTES)
    mount(disk).unlink("log")
    assert mount(disk).space() == (0, 3 * BLOCK_BYTES)


def test_death_in_the_middle_of_a_write() -> None:
    disk = SimDisk()
    durable_file(disk)
    deaths: list[bool] = []
    disk.faults.operations_to_live = 2
    disk.faults.on_mid_death = lambda: deaths.append(True)
    file = mount(disk).open("log")
    with pytest.raises(ProcessKilled):
        file.pwritev([b"a", b"b", b"c", b"d"], 0)
    assert content(disk) == b"ab"
    assert deaths == [True]


def test_flipped_bit() -> None:
    disk = SimDisk()
    durable_file(disk, content=b"\x00\x00")
    disk.flip_bit("log", 9)
    assert content(disk) == b"\x00\x02"


def test_index_loses_a_tail_of_batches_in_order() -> None:
    survivors = set()
    for seed in SEEDS:
        disk = SimIndexDisk()
        index = SimIndex(disk, None)
        index.write([("f", b"0", b"flushed")])
        index.flush()
        for number in range(1, 4):
            index.write([("f", b"%d" % number, b"x"), ("g", b"%d" % number, b"y")])
        disk.power_cut(random.Random(seed))
        index = SimIndex(disk, None)
        keys = [key for key, _ in index.scan("f", b"", b"\xff")]
        assert keys[1:] == [key for key, _ in index.scan("g", b"", b"\xff")]
        survivors.add(b"".join(keys))
    assert survivors == {b"0", b"01", b"012", b"0123"}


def test_index_lookups() -> None:
    index = SimIndex(SimIndexDisk(), None)
    index.write([("f", b"b", b"1"), ("f", b"d", b"2"), ("g", b"c", b"3")])
    assert index.get("f", b"b") == b"1"
    assert index.get("f", b"c") is None
    assert index.floor("f", b"c", b"a") == (b"b", b"1")
    assert index.floor("f", b"c", b"c") is None
    assert index.floor("f", b"a", b"") is None
    index.delete_range("f", b"b", b"c")
    assert list(index.scan("f", b"", b"z")) == [(b"d", b"2")]
