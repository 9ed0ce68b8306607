"""Memory that a storm leaves behind goes back to the system, and only that."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from icecore.process.memory import (
    AGAIN_LOOKS,
    BUSY_LOOKS,
    GROWTH_BYTES,
    MemoryReturn,
    resident_bytes,
    trim,
)
from tests.support.waiting import until

MIB = 1 << 20
POOL = "ARROW_DEFAULT_MEMORY_POOL"


class Heap:
    """The memory of a process, and the part of it that the allocator could free."""

    def __init__(self) -> None:
        self.used_bytes, self.free_bytes = 100 * MIB, 0
        self.garbage_bytes = self.pinned_bytes = 0
        self.looks = self.collections = 0
        self.trim_looks: list[int] = []
        self.used_s, self.is_busy = 0.0, False

    def resident(self) -> int:
        self.looks += 1
        return self.used_bytes + self.free_bytes + self.garbage_bytes + self.pinned_bytes

    @property
    def trims(self) -> int:
        return len(self.trim_looks)

    def collect(self) -> None:
        self.collections += 1
        self.free_bytes += self.garbage_bytes
        self.garbage_bytes = 0

    def watch(self) -> MemoryReturn:
        return MemoryReturn(self.resident, self.trim, self.collect, 0.001, self.processor_s)

    def trim(self) -> None:
        self.trim_looks.append(self.looks)
        self.free_bytes, self.pinned_bytes = self.pinned_bytes, 0  # free right after

    def processor_s(self) -> float:
        self.used_s += self.is_busy
        return self.used_s

    async def looked_at(self, times: int = 3) -> None:
        before = self.looks
        await until(lambda: self.looks >= before + times)


async def watched(heap: Heap, change: Callable[[], None]) -> None:
    memory = heap.watch()
    memory.start()
    await heap.looked_at()
    change()
    await heap.looked_at(5)
    await memory.stop()


async def test_a_storm_is_forgotten() -> None:
    heap = Heap()

    def storm() -> None:
        heap.free_bytes = 500 * MIB

    await watched(heap, storm)
    assert heap.free_bytes == 0


async def test_what_garbage_holds_goes_with_it() -> None:
    heap = Heap()

    def storm() -> None:
        heap.garbage_bytes = 500 * MIB

    await watched(heap, storm)
    assert (heap.garbage_bytes, heap.free_bytes) == (0, 0)


async def test_what_was_in_use_at_first_goes_soon_after() -> None:
    heap = Heap()
    memory = heap.watch()
    memory.start()
    await heap.looked_at()
    heap.pinned_bytes = 500 * MIB
    await until(lambda: heap.trims == 2)
    assert (heap.pinned_bytes, heap.free_bytes) == (0, 0)
    await heap.looked_at(3 * AGAIN_LOOKS)
    assert heap.trims == 2
    await memory.stop()


async def test_a_little_more_is_kept_and_what_is_in_use_is_not_asked_for_again() -> None:
    heap = Heap()

    def grow() -> None:
        heap.free_bytes = GROWTH_BYTES - 1

    await watched(heap, grow)
    assert heap.trims == 0

    def use() -> None:
        heap.used_bytes = 500 * MIB

    await watched(heap, use)
    assert heap.trims in (1, 2)


async def test_nobody_who_is_busy_is_held_up_until_the_storm_is_over_or_lasts() -> None:
    heap = Heap()
    memory = heap.watch()
    memory.start()
    heap.is_busy = True
    await heap.looked_at()
    heap.free_bytes = 500 * MIB
    before = heap.looks
    await until(lambda: heap.trims == 1)
    assert heap.trim_looks[0] - before in (BUSY_LOOKS, BUSY_LOOKS + 1)
    assert heap.collections == 0

    heap.is_busy = False
    await until(lambda: heap.trims == 2)  # once more
    await heap.looked_at()
    heap.free_bytes = 500 * MIB
    before = heap.looks
    await until(lambda: heap.trims >= 3)
    assert heap.trim_looks[2] - before in (1, 2)
    await memory.stop()


async def test_free_memory_of_this_process_goes_back() -> None:
    if not resident_bytes():
        pytest.skip("this system does not tell")
    await asyncio.to_thread(trim)
    held = [bytes(1000) + str(number).encode() for number in range(200_000)]
    before = resident_bytes()
    del held
    trim()
    assert resident_bytes() < before - 50 * MIB


@pytest.mark.parametrize(("said", "used"), [({}, "system"), ({POOL: "mimalloc"}, "mimalloc")])
def test_arrow_of_a_node_takes_its_memory_from_the_c_library(
    said: dict[str, str], used: str
) -> None:
    """Arrow asks once, when it is imported: what a node imports first does not import it."""
    code = (
        "import icecore_node.__main__, icecore.process.system\n"
        "icecore.process.system.tune_process()\n"
        "import pyarrow\n"
        "print(pyarrow.default_memory_pool().backend_name)"
    )
    environment = {name: value for name, value in os.environ.items() if name != POOL} | said
    command = [sys.executable, "-c", code]
    told = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert told.stdout.split() == [used]
