"""Lone small appends on the loop's thread: which ones, in which order, and never two threads."""

import asyncio
import random
import threading
from dataclasses import replace
from typing import Any

import pytest

from icecore.errors import IcecoreError
from icecore.model import SegmentId
from icecore.process.system import SystemClock
from icecore_node.io.executor import EXIT_STATUS, ThreadExecutor
from icecore_node.io.io_pool import (
    LONE_APPENDS_MAX,
    LONE_BYTES_MAX,
    PATIENCE_MIN,
    IoPool,
    IoWorker,
    ShortSyncs,
)
from icecore_node.metrics import NodeMetrics
from icecore_node.ports import DiskFailedError
from icecore_node.storage.engine import NO_TAIL, AppendRequest, BatchMark, LogTail
from tests.simulation.executor import SimExecutor
from tests.simulation.loop import SimLoop
from tests.simulation.ports import SimClock
from tests.simulation.process import SimProcess

LIMIT_MS = 50.0
IN_MEMORY: SegmentId = 2


class Store:
    """Remembers what was appended, on which thread; notices two at once."""

    def __init__(self) -> None:
        self.groups: list[tuple[bool, list[int]]] = []
        """Whether it was on the loop's thread; the offsets."""
        self.error: Exception | None = None
        self._loop_thread = threading.get_ident()
        self._busy = threading.Lock()
        self.reader = self

    def appends_block(self, segment_id: SegmentId) -> bool:
        return segment_id != IN_MEMORY

    def append_group(self, requests: list[AppendRequest]) -> list[AppendRequest]:
        assert self._busy.acquire(blocking=False), "two threads at once"
        try:
            if self.error is not None:
                raise self.error
            is_here = threading.get_ident() == self._loop_thread
            self.groups.append((is_here, [each.tail.end_offset for each in requests]))
        finally:
            self._busy.release()
        return requests


class Owner:
    """Remembers how far it was told that its log is durable."""

    def __init__(self) -> None:
        self.ends: list[int] = []
        self._told = asyncio.Event()

    def on_appended(self, durable_tail: LogTail | None, error: IcecoreError | None) -> None:
        assert durable_tail is not None
        self.ends.append(durable_tail.end_offset)
        self._told.set()

    async def reached(self, end_offset: int) -> None:
        async with asyncio.timeout(60):
            while self.ends[-1:] != [end_offset]:
                self._told.clear()
                await self._told.wait()

    def on_broken(self, why: str) -> None:
        raise AssertionError(why)


class Bench:
    """One worker on real threads."""

    def __init__(self, limit_ms: float = LIMIT_MS) -> None:
        self.statuses: list[int] = []
        self.executor = ThreadExecutor(fatal=self.statuses.append)
        self.store, self.owner, self.next = Store(), Owner(), 1
        store: Any = self.store
        self.worker = IoWorker(
            "io-0",
            store,
            self.executor,
            SystemClock(),
            NodeMetrics(),
            group_items_max=100,
            syncs=ShortSyncs(limit_ms),
        )

    def append(self, length_bytes: int = 100, segment_id: SegmentId = 1) -> None:
        tail = replace(NO_TAIL, end_offset=self.next)
        marks = [BatchMark(self.next - 1, 0, length_bytes)]
        self.worker.append(AppendRequest(segment_id, [], marks, tail), self.owner)
        self.next += 1

    async def settled(self) -> None:
        await self.owner.reached(self.next - 1)

    async def trusted(self) -> None:
        """Short syncs until the loop may do it."""
        for _ in range(PATIENCE_MIN):
            self.append()
            await self.settled()
        assert {here for here, _ in self.store.groups} == {False}
        self.store.groups.clear()


async def test_a_lone_append_is_synced_by_the_loop_at_the_end_of_its_turn() -> None:
    bench = Bench()
    await bench.trusted()
    bench.append()
    assert not bench.store.groups, "followers are sent theirs first"
    await asyncio.sleep(0)
    assert bench.store.groups == [(True, [bench.next - 1])]
    assert bench.owner.ends[-1] == bench.next - 1
    bench.executor.close()


async def test_a_worker_is_not_woken_before_the_end_of_the_turn() -> None:
    """A thread that wakes it shares the interpreter with it: messages to followers would leave
    later."""
    bench = Bench(limit_ms=0)
    handed_over: list[Any] = []
    submit = bench.worker._queue.submit

    def noted(item: Any) -> None:
        handed_over.append(item)
        submit(item)

    bench.worker._queue.submit = noted  # type: ignore[method-assign]
    bench.append()
    assert not handed_over
    await asyncio.sleep(0)
    assert len(handed_over) == 1
    await bench.settled()
    bench.append(LONE_BYTES_MAX + 1)
    assert len(handed_over) == 2, "a large one is not held up"
    await bench.settled()
    bench.executor.close()


async def test_many_or_large_appends_go_to_the_worker() -> None:
    bench = Bench()
    await bench.trusted()
    for _ in range(LONE_APPENDS_MAX + 2):
        bench.append()
    await bench.settled()
    bench.append(LONE_BYTES_MAX + 1)
    await bench.settled()
    assert {here for here, _ in bench.store.groups} == {False}
    order = [end for _, ends in bench.store.groups for end in ends]
    assert order == sorted(order)
    bench.executor.close()


async def test_an_operation_waits_for_the_appends_before_it() -> None:
    bench = Bench()
    await bench.trusted()
    bench.append()
    seen = await bench.worker.run(lambda: [ends for _, ends in bench.store.groups])
    assert seen == [[bench.next - 1]]
    bench.append()
    bench.worker.close()
    await bench.settled()
    bench.executor.close()


async def test_nothing_is_done_here_while_the_worker_has_something() -> None:
    bench = Bench()
    await bench.trusted()
    gate = threading.Event()
    running = asyncio.ensure_future(bench.worker.run(gate.wait, 10))
    await asyncio.sleep(0.01)
    for _ in range(3):
        bench.append()
        await asyncio.sleep(0)
    assert not bench.store.groups
    gate.set()
    await running
    await bench.settled()
    assert {here for here, _ in bench.store.groups} == {False}
    bench.executor.close()


async def test_random_appends_keep_their_order_on_two_threads() -> None:
    bench, rng = Bench(), random.Random(5)
    for _ in range(3000):
        bench.append(rng.choice([10, 1000, LONE_BYTES_MAX]))
        if rng.random() < 0.1:
            await bench.worker.run(lambda: None)
        elif rng.random() < 0.7:
            await asyncio.sleep(0 if rng.random() < 0.9 else 0.002)
    await bench.settled()
    order = [end for _, ends in bench.store.groups for end in ends]
    assert order == list(range(1, bench.next))
    assert bench.owner.ends == sorted(bench.owner.ends)
    assert {here for here, _ in bench.store.groups} == {False, True}
    bench.executor.close()


async def test_with_zero_all_goes_to_the_worker() -> None:
    bench = Bench(0)
    await bench.trusted()
    for _ in range(20):
        bench.append()
        await bench.settled()
    assert {here for here, _ in bench.store.groups} == {False}
    bench.executor.close()


async def test_what_waits_for_no_disk_is_appended_here_whatever_the_disk_is_like() -> None:
    bench = Bench(0)
    for _ in range(3):
        for _ in range(LONE_APPENDS_MAX + 3):
            bench.append(LONE_BYTES_MAX, IN_MEMORY)
        await asyncio.sleep(0)
        assert bench.owner.ends[-1] == bench.next - 1
    assert {here for here, _ in bench.store.groups} == {True} and len(bench.store.groups) == 3
    bench.executor.close()


async def test_short_appends_in_memory_are_no_reason_to_trust_the_disk() -> None:
    bench = Bench()
    gate = threading.Event()
    running = asyncio.ensure_future(bench.worker.run(gate.wait, 10))
    await asyncio.sleep(0.01)
    for _ in range(PATIENCE_MIN):  # on the worker, which is busy
        bench.append(10, IN_MEMORY)
    gate.set()
    await running
    await bench.settled()
    for _ in range(PATIENCE_MIN):  # on the loop
        bench.append(10, IN_MEMORY)
        await asyncio.sleep(0)
    bench.append()
    await bench.settled()
    assert [here for here, _ in bench.store.groups[-1:]] == [False]
    bench.executor.close()


async def test_appends_of_both_kinds_keep_their_order() -> None:
    bench, rng = Bench(), random.Random(7)
    await bench.trusted()
    for _ in range(3000):
        bench.append(rng.choice([10, 1000, LONE_BYTES_MAX]), rng.choice([1, IN_MEMORY]))
        if rng.random() < 0.1:
            await bench.worker.run(lambda: None)
        elif rng.random() < 0.7:
            await asyncio.sleep(0 if rng.random() < 0.9 else 0.002)
    await bench.settled()
    order = [end for _, ends in bench.store.groups for end in ends]
    assert order == list(range(PATIENCE_MIN + 1, bench.next))
    assert {here for here, _ in bench.store.groups} == {False, True}
    bench.executor.close()


async def test_a_sync_that_fails_on_the_loop_ends_the_process() -> None:
    bench = Bench()
    await bench.trusted()
    told = list(bench.owner.ends)
    bench.store.error = DiskFailedError("a sync had failed")
    bench.append()
    await asyncio.sleep(0)
    assert bench.statuses == [EXIT_STATUS]
    bench.store.error = None
    with pytest.raises(RuntimeError, match="closed"):
        bench.append()
    await asyncio.sleep(0.02)
    assert bench.owner.ends == told, "nothing is answered after it"
    assert not bench.store.groups
    bench.executor.close()


async def test_a_queue_with_something_in_it_is_not_run_here() -> None:
    executor, gate = ThreadExecutor(), threading.Event()
    delivered, told = list[object](), asyncio.Event()

    def process(group: list[int]) -> list[int]:
        gate.wait(10)
        return group

    def deliver(result: object) -> None:
        delivered.append(result)
        told.set()

    worker = executor.worker("io-0", process, deliver, group_items_max=3)
    assert worker.is_idle
    worker.submit(1)
    with pytest.raises(AssertionError, match="not idle"):
        worker.run_here([2])
    gate.set()
    await asyncio.wait_for(told.wait(), 10)
    worker.run_here([3])
    assert delivered == [[1], [3]]
    executor.close()
    with pytest.raises(AssertionError, match="not idle"):
        worker.run_here([4])


def test_a_disk_that_stalls_holds_the_loop_for_one_sync() -> None:
    """In virtual time: nothing else of the process runs meanwhile, then the worker takes over."""
    loop = SimLoop(1)
    process, ticks = SimProcess("node", 1), list[float]()
    stalled_until_s = 0.0
    owner, other, done_s = Owner(), Owner(), list[float]()

    async def main() -> None:
        nonlocal stalled_until_s
        executor = SimExecutor(
            process,
            random.Random(1),
            disk_delay=lambda delay_s: max(0.0, stalled_until_s - loop.time()) + delay_s,
        )
        store: Any = Store()
        pool = IoPool(
            store,
            executor,
            SimClock(loop),
            NodeMetrics(),
            workers=2,
            group_items_max=100,
            sync_on_loop_ms_max=2.0,
        )
        first = pool.worker_for(b"topic", 0)
        second = next(w for n in range(99) if (w := pool.worker_for(b"topic", n)) is not first)

        async def append(end_offset: int) -> None:
            request = AppendRequest(1, [], [], replace(NO_TAIL, end_offset=end_offset))
            first.append(request, owner)
            second.append(request, other)
            await owner.reached(end_offset)
            await other.reached(end_offset)
            done_s.append(loop.time())

        async def tick() -> None:
            while True:
                await asyncio.sleep(0.1)
                ticks.append(loop.time())

        ticking = asyncio.ensure_future(tick())
        for end_offset in range(1, PATIENCE_MIN + 1):
            await append(end_offset)
        stalled_until_s = 5.0
        await append(100)
        assert done_s[-1] >= 5.0
        assert all(tick_s >= 5.0 for tick_s in ticks), "the loop stood still"
        held, stalled_until_s = len(ticks), 10.0
        await append(101)
        assert done_s[-1] >= 10.0
        assert len(ticks) - held > 40, "these were the workers'"
        ticking.cancel()

    loop.run_until_complete(_as(process, main()))
    loop.close()


async def _as(process: SimProcess, work: Any) -> None:
    await process.spawn(work)
