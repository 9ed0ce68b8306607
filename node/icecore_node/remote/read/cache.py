"""Cache of bytes read from object storage: parsed in memory, raw on disk.

Both have a budget, and in both manifests, footers and parts of indexes outlive row groups: they
are small, and nothing is found without them. Readers who want the same thing at the same time
share one read: the first one begins it, the others wait for its result.

A search holds values from one of its steps to the next. It takes each as a ``ValueLease``, and what
is leased counts like what is kept, once: the budget is that of both together.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeAlias, TypeVar

from icecore_node.ports import Executor
from icecore_node.remote.read.disk_cache import DiskCache

T = TypeVar("T")

PINNED_PART_MAX: Final = 0.75
"""Maximum share of the memory for pinned values. The rest stays free for row groups, so that
reading ahead works."""


@dataclass(slots=True, eq=False)
class _Entry:
    value: Any
    size: int
    is_kept: bool = False
    leases: int = 0


_Kept: TypeAlias = OrderedDict[Hashable, _Entry]
"""Values by key; the longest unused first."""


class ValueLease(Generic[T]):
    """A value that counts until ``close``, whether the cache keeps it or not."""

    def __init__(self, cache: "RemoteCache", entry: _Entry) -> None:
        self._cache = cache
        self._entry: _Entry | None = entry
        entry.leases += 1

    @property
    def value(self) -> T:
        """The value; not after ``close``."""
        assert self._entry is not None, "the lease is closed"
        value: T = self._entry.value
        return value

    def close(self) -> None:
        """Let go of the value; may be called again."""
        entry, self._entry = self._entry, None
        if entry is not None:
            self._cache.end_lease(entry)


class RemoteCache:
    """Loop only; the disk is on threads of remote reads.

    Args:
        disk: Keeps raw bytes; None = nothing does.
        memory_bytes: Maximum size of all parsed values.
        executor: Runs reads and writes of the disk cache.
    """

    def __init__(self, disk: DiskCache | None, memory_bytes: int, executor: Executor) -> None:
        self._disk = disk
        self._memory_bytes_max = memory_bytes
        self._executor = executor
        self._blocks: _Kept = OrderedDict()
        self._pinned: _Kept = OrderedDict()
        self._pinned_bytes = 0
        self._running: dict[Hashable, asyncio.Task[Any]] = {}
        self.memory_bytes = 0

    @property
    def is_over(self) -> bool:
        """Return whether more is leased and kept than the budget allows. Each row group that is
        kept is leased then."""
        return self.memory_bytes > self._memory_bytes_max

    async def parsed(
        self,
        key: Hashable,
        make: Callable[[], Coroutine[Any, Any, tuple[T, int]]],
        *,
        is_pinned: bool,
    ) -> T:
        """The value of a key, made if it is not here.

        Args:
            key: Says what it is, for ever.
            make: Its value, and how many bytes of memory that takes.
            is_pinned: Whether it outlives row groups.
        """
        value: T = (await self._entry(key, make, is_pinned=is_pinned)).value
        return value

    async def leased(
        self,
        key: Hashable,
        make: Callable[[], Coroutine[Any, Any, tuple[T, int]]],
        *,
        is_pinned: bool,
    ) -> ValueLease[T]:
        """As ``parsed``, for a holder that closes the lease."""
        return self._lease(await self._entry(key, make, is_pinned=is_pinned))

    def lease_here(self, key: Hashable) -> ValueLease[Any] | None:
        """Return a lease of the value in memory under a key, or None."""
        found = self._pinned.get(key) or self._blocks.get(key)
        return None if found is None else self._lease(found)

    def _lease(self, entry: _Entry) -> ValueLease[Any]:
        if not (entry.is_kept or entry.leases):  # it is too large to be kept, or has gone meanwhile
            self.memory_bytes += entry.size
        lease = ValueLease[Any](self, entry)
        self._shrink()
        return lease

    def end_lease(self, entry: _Entry) -> None:
        """For ``ValueLease.close`` alone."""
        entry.leases -= 1
        if not (entry.is_kept or entry.leases):
            self.memory_bytes -= entry.size
        self._shrink()

    async def _entry(
        self,
        key: Hashable,
        make: Callable[[], Coroutine[Any, Any, tuple[T, int]]],
        *,
        is_pinned: bool,
    ) -> _Entry:
        kept = self._pinned if is_pinned else self._blocks
        found = kept.get(key)
        if found is not None:
            kept.move_to_end(key)
            return found

        async def made() -> _Entry:
            entry = _Entry(*await make())
            self._keep(kept, key, entry)
            return entry

        return await self._once(key, made)

    async def raw(
        self,
        key: str,
        read: Callable[[], Awaitable[bytes]],
        *,
        is_pinned: bool,
    ) -> bytes:
        """Bytes of an object, from disk or else by ``read``, which proves them as far as it can."""

        async def made() -> bytes:
            disk = self._disk
            if disk is None:
                return await read()
            kept = await self._executor.run(disk.get, key)
            if kept is not None:
                return kept
            data = await read()
            await self._executor.run(_put, disk, key, data, is_pinned)
            return data

        return await self._once(("raw", key), made)

    def forget(self, is_meant: Callable[[Hashable], bool]) -> None:
        """Drop the values in memory whose keys meet the condition."""
        for key in [each for kept in (self._blocks, self._pinned) for each in kept]:
            if is_meant(key):
                self.forget_key(key)

    def forget_key(self, key: Hashable) -> None:
        """Drop the value in memory under one key, if there is one."""
        for kept in (self._blocks, self._pinned):
            entry = kept.pop(key, None)
            if entry is not None:
                entry.is_kept = False
                self.memory_bytes -= 0 if entry.leases else entry.size
                self._pinned_bytes -= entry.size if kept is self._pinned else 0

    async def drop_raw(self, key: str) -> None:
        """Drop the bytes on disk under this key."""
        if self._disk is not None:
            await self._executor.run(self._disk.drop, key)

    async def close(self) -> None:
        """End what is under way."""
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _once(self, key: Hashable, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run ``make`` once for all callers that want this key now. A caller that is cancelled does
        not end it."""
        task = self._running.get(key)
        if task is None:
            task = self._running[key] = asyncio.get_running_loop().create_task(make())
            task.add_done_callback(lambda ended: self._ended(key, ended))
        try:
            await asyncio.wait({task})
            found: T = task.result()
            return found
        finally:
            del task  # it has an error, which has this frame: neither would go by itself

    def _ended(self, key: Hashable, task: "asyncio.Task[Any]") -> None:
        if self._running.get(key) is task:
            del self._running[key]
        if not task.cancelled():
            task.exception()  # looked at, even when everybody has left

    def _keep(self, kept: _Kept, key: Hashable, entry: _Entry) -> None:
        if entry.size > self._memory_bytes_max:
            return
        self.forget_key(key)
        kept[key] = entry
        entry.is_kept = True
        self.memory_bytes += entry.size
        self._pinned_bytes += entry.size if kept is self._pinned else 0
        pinned_max = self._memory_bytes_max * PINNED_PART_MAX
        while self._pinned and self._pinned_bytes > pinned_max:
            self.forget_key(next(iter(self._pinned)))
        self._shrink()

    def _shrink(self) -> None:
        """Drop the longest unused row groups that nobody has leased, until all fits."""
        while self.is_over:
            unused = (key for key, entry in self._blocks.items() if not entry.leases)
            key = next(unused, None)
            if key is None:
                return
            self.forget_key(key)


def _put(disk: DiskCache, key: str, data: bytes, is_pinned: bool) -> None:
    disk.put(key, data, is_pinned=is_pinned)
