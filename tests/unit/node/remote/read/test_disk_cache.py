"""The cache on disk never returns what it can't prove, and stays within its budget."""

import random

import pytest

from icecore.errors import OutOfSpaceError
from icecore_node.remote.read.disk_cache import FOLDER, DiskCache
from tests.simulation.disk import SimDisk, SimFileSystem


def cache_on(disk: SimDisk, bytes_max: int = 1 << 20) -> DiskCache:
    return DiskCache(SimFileSystem(disk, None), bytes_max)


def names(disk: SimDisk) -> list[str]:
    return SimFileSystem(disk, None).list_dir(FOLDER)


def overwrite(disk: SimDisk, name: str, data: bytes, position: int = 0) -> None:
    file = SimFileSystem(disk, None).open(f"{FOLDER}/{name}")
    file.pwritev([data], position)
    file.close()


def test_kept_across_a_restart() -> None:
    disk = SimDisk()
    cache = cache_on(disk)
    cache.put("a", b"content", is_pinned=False)
    cache.put("b", b"", is_pinned=True)
    for each in (cache, cache_on(disk)):
        assert each.get("a") == b"content" and each.get("b") == b""
        assert each.get("c") is None
    assert cache_on(disk, 0).get("a") is None
    assert names(disk) == [], "a smaller budget holds from the start"


@pytest.mark.parametrize("at", [0, 4, 6, 8, 16, 50, 60])
def test_what_was_altered_is_dropped(at: int) -> None:
    disk = SimDisk()
    cache_on(disk).put("key", bytes(100), is_pinned=False)
    [name] = names(disk)
    overwrite(disk, name, b"\x55", at)
    cache = cache_on(disk)
    assert cache.get("key") is None
    assert names(disk) == [] and cache.size_bytes == 0
    cache.put("key", b"new", is_pinned=False)
    assert cache.get("key") == b"new"


def test_an_entry_under_another_name_is_dropped() -> None:
    disk = SimDisk()
    cache = cache_on(disk)
    cache.put("one", b"1" * 50, is_pinned=False)
    cache.put("two", b"2" * 50, is_pinned=False)
    first, second = names(disk)
    SimFileSystem(disk, None).rename(f"{FOLDER}/{first}", f"{FOLDER}/{second}")
    cache = cache_on(disk)
    found = {key: cache.get(key) for key in ("one", "two")}
    assert found == {"one": None, "two": None}


def test_a_power_cut_at_any_write_leaves_nothing_wrong() -> None:
    for seed in range(60):
        rng = random.Random(seed)
        disk = SimDisk()
        cache = cache_on(disk)
        contents = {f"key{n}": rng.randbytes(rng.randrange(20_000)) for n in range(8)}
        for key, content in contents.items():
            cache.put(key, content, is_pinned=rng.random() < 0.5)
        disk.power_cut(rng)
        cache = cache_on(disk)
        for key, content in contents.items():
            assert cache.get(key) in (None, content)
            cache.put(key, content, is_pinned=False)
            assert cache.get(key) == content


def test_strangers_and_unfinished_files_go() -> None:
    disk = SimDisk()
    files = SimFileSystem(disk, None)
    files.make_dirs(FOLDER)
    for name in (".new", "hello", "x-1.b", "0" * 40 + "-x.p"):
        files.open(f"{FOLDER}/{name}", create=True).close()
    cache = cache_on(disk)
    assert cache.get("any") is None and names(disk) == []


def test_blocks_go_before_what_is_pinned_and_the_unused_first() -> None:
    disk = SimDisk()
    cache = cache_on(disk, 5_000)
    cache.put("pinned", bytes(1000), is_pinned=True)
    for number in range(3):
        cache.put(f"block{number}", bytes(1000), is_pinned=False)
    assert cache.get("block0")  # it is used again
    cache.put("block3", bytes(1000), is_pinned=False)
    assert cache.get("pinned") and cache.get("block0") and cache.get("block3")
    assert cache.get("block1") is None
    for number in range(10):
        cache.put(f"more{number}", bytes(1000), is_pinned=True)
    assert cache.size_bytes <= 5_000 and cache.get("block0") is None
    cache.put("huge", bytes(6_000), is_pinned=True)
    assert cache.get("huge") is None and cache.size_bytes <= 5_000
    cache.put("late", bytes(1000), is_pinned=False)
    assert cache.get("late") is None, "blocks take nothing from what is pinned"


def test_the_budget_holds_whatever_comes() -> None:
    disk, rng = SimDisk(), random.Random(1)
    cache = cache_on(disk, 20_000)
    for number in range(500):
        cache.put(f"k{rng.randrange(80)}", bytes(rng.randrange(4000)), is_pinned=number % 7 == 0)
        on_disk = sum(int(each.partition("-")[2][:-2]) for each in names(disk))
        assert on_disk == cache.size_bytes <= 20_000


def test_a_full_disk_fails_no_read(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimDisk()
    files = SimFileSystem(disk, None)
    cache = DiskCache(files, 1 << 20)
    cache.put("a", b"1", is_pinned=False)
    monkeypatch.setattr(files, "space", lambda: (99, 1))
    cache.put("b", b"2", is_pinned=False)
    assert cache.get("a") == b"1" and cache.get("b") is None

    def refuse(*_: object, **__: object) -> None:
        raise OutOfSpaceError("full")

    monkeypatch.setattr(files, "open", refuse)
    cache.put("c", b"3", is_pinned=False)
    assert cache.get("c") is None and cache.get("a") is None
