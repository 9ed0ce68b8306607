"""Cache of bytes read from object storage: parsed in memory, raw on disk.

Both have a budget, and in both manifests, footers and parts of indexes outlive row groups: they
are small, and nothing is found without them. Readers who want the same thing at the same time
share one read: the first one begins it, the others wait for its result.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from typing import Any, Final, TypeAlias, TypeVar

from icecore_node.ports import Executor
from icecore_node.remote.read.disk_cache import DiskCache

T = TypeVar("T")

PINNED_PART_MAX: Final = 0.75
"""Maximum share of the memory for pinned values. The rest stays free for row groups, so that
reading ahead works."""
_Kept: TypeAlias = OrderedDict[Hashable, tuple[Any, int]]
"""Values and their bytes by key; the longest unused first."""


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
        kept = self._pinned if is_pinned else self._blocks
        found = kept.get(key)
        if found is not None:
            kept.move_to_end(key)
            value: T = found[0]
            return value

        async def made() -> T:
            value, size = await make()
            self._keep(kept, key, value, size)
            return value

        return await self._once(key, made)

    def here(self, key: Hashable) -> Any:
        """Return the value in memory under a key, or None."""
        found = self._pinned.get(key) or self._blocks.get(key)
        return None if found is None else found[0]

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
            if key in kept:
                freed = kept.pop(key)[1]
                self.memory_bytes -= freed
                self._pinned_bytes -= freed if kept is self._pinned else 0

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
        await asyncio.wait({task})
        found: T = task.result()
        return found

    def _ended(self, key: Hashable, task: "asyncio.Task[Any]") -> None:
        if self._running.get(key) is task:
            del self._running[key]
        if not task.cancelled():
            task.exception()  # looked at, even when everybody has left

    def _keep(self, kept: _Kept, key: Hashable, value: Any, size: int) -> None:
        if size > self._memory_bytes_max:
            return
        self.forget_key(key)
        kept[key] = value, size
        self.memory_bytes += size
        self._pinned_bytes += size if kept is self._pinned else 0
        pinned_max = self._memory_bytes_max * PINNED_PART_MAX
        while self._pinned and self._pinned_bytes > pinned_max:
            self.forget_key(next(iter(self._pinned)))
        while self._blocks and self.memory_bytes > self._memory_bytes_max:
            self.forget_key(next(iter(self._blocks)))


def _put(disk: DiskCache, key: str, data: bytes, is_pinned: bool) -> None:
    disk.put(key, data, is_pinned=is_pinned)
