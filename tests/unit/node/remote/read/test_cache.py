"""The cache in memory: one read for all who want the same, and never more than its budget."""

import asyncio
import random
from typing import Any, cast

import pytest

from icecore.errors import ObjectStoreBusyError
from icecore_node.remote.read.cache import RemoteCache
from icecore_node.remote.read.disk_cache import DiskCache
from tests.simulation.disk import SimDisk, SimFileSystem
from tests.support.query_setup import DirectExecutor


def cache_of(memory_bytes: int, disk: DiskCache | None = None) -> RemoteCache:
    return RemoteCache(disk, memory_bytes, cast(Any, DirectExecutor()))


def here(cache: RemoteCache, key: Any) -> Any:
    """Return the value in memory under a key, or None."""
    lease = cache.lease_here(key)
    if lease is None:
        return None
    value = lease.value
    lease.close()
    return value


class Made:
    """Values that are made slowly, and how often."""

    def __init__(self, size: int = 10) -> None:
        self.size, self.count = size, 0
        self.failures = 0

    async def __call__(self) -> tuple[int, int]:
        self.count += 1
        number = self.count
        await asyncio.sleep(0.001)
        if self.failures:
            self.failures -= 1
            raise ObjectStoreBusyError("503")
        return number, self.size


async def test_one_for_all_and_a_failure_for_all() -> None:
    cache, made = cache_of(100), Made()
    found = await asyncio.gather(*(cache.parsed("a", made, is_pinned=False) for _ in range(50)))
    assert set(found) == {1} and made.count == 1
    cache.forget_key("a")
    assert cache.memory_bytes == 0
    made.failures = 1
    results = await asyncio.gather(
        *(cache.parsed("a", made, is_pinned=False) for _ in range(5)), return_exceptions=True
    )
    assert [type(each) for each in results] == [ObjectStoreBusyError] * 5
    assert await cache.parsed("a", made, is_pinned=False) == 3, "a failure is not kept"


async def test_closing_ends_what_is_under_way() -> None:
    cache, made = cache_of(100), Made()
    waiting = asyncio.ensure_future(cache.parsed("a", made, is_pinned=False))
    await asyncio.sleep(0)
    await cache.close()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_row_groups_go_first_and_find_room_all_the_same() -> None:
    cache = cache_of(100)
    for number in range(20):
        await cache.parsed(("pinned", number), Made(), is_pinned=True)
    assert cache.memory_bytes <= 75
    for number in range(5):
        await cache.parsed(("block", number), Made(), is_pinned=False)
    assert here(cache, ("pinned", 19)) and here(cache, ("block", 4))
    assert here(cache, ("block", 0)) is None and cache.memory_bytes <= 100
    await cache.parsed("huge", Made(101), is_pinned=False)
    assert here(cache, "huge") is None and here(cache, ("block", 4))


async def test_the_budget_holds_whatever_comes() -> None:
    cache, rng = cache_of(1000), random.Random(1)
    for _ in range(2000):
        key, made = rng.randrange(60), Made(rng.randrange(400))
        await cache.parsed(key, made, is_pinned=key % 3 == 0)
        assert 0 <= cache.memory_bytes <= 1000
        if rng.random() < 0.05:
            cache.forget(lambda key: cast(int, key) % 7 == 0)
    cache.forget(lambda _: True)
    assert cache.memory_bytes == 0


async def test_raw_bytes_come_from_disk_the_second_time() -> None:
    cache = cache_of(0, DiskCache(SimFileSystem(SimDisk(), None), 1000))
    reads = 0

    async def read() -> bytes:
        nonlocal reads
        reads += 1
        return b"content"

    for _ in range(3):
        assert await cache.raw("key", read, is_pinned=False) == b"content"
    assert reads == 1
    await cache.drop_raw("key")
    assert await cache.raw("key", read, is_pinned=False) == b"content"
    assert reads == 2


async def test_what_is_leased_counts_until_it_is_closed_and_is_not_let_go_of() -> None:
    cache = cache_of(100)
    leases = [await cache.leased(number, Made(40), is_pinned=False) for number in range(3)]
    assert cache.memory_bytes == 120 and cache.is_over, "all three are held"
    await cache.parsed("other", Made(40), is_pinned=False)
    assert here(cache, "other") is None, "there is no room beside them"
    again = await cache.leased(0, Made(40), is_pinned=False)
    assert cache.memory_bytes == 120, "twice leased, once counted"
    for lease in [*leases, again, again]:
        lease.close()
    assert cache.memory_bytes <= 100 and not cache.is_over


async def test_a_lease_outlives_what_the_cache_forgets() -> None:
    cache = cache_of(100)
    lease = await cache.leased("a", Made(40), is_pinned=False)
    large = await cache.leased("b", Made(400), is_pinned=False)
    cache.forget_key("a")
    assert (lease.value, cache.memory_bytes) == (1, 440)
    lease.close()
    large.close()
    assert cache.memory_bytes == 0
