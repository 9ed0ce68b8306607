"""I/O workers: what one owner makes of its result costs no other."""

import asyncio
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, cast

import pytest
import uvloop

from icecore.errors import IcecoreError, OutOfResourcesError
from icecore.model import SegmentId
from icecore.process.system import SystemClock
from icecore_node.io.executor import EXIT_STATUS, ThreadExecutor
from icecore_node.io.io_pool import IoWorker, ShortSyncs
from icecore_node.metrics import NodeMetrics
from icecore_node.ports import DiskFailedError, Executor
from icecore_node.storage.engine import NO_TAIL, AppendRequest, LogTail
from icecore_node.storage.replica_store import ReplicaStore
from tests.simulation.executor import SimExecutor
from tests.simulation.loop import SimLoop
from tests.simulation.ports import SimClock

TAIL = replace(NO_TAIL, end_offset=1)


class Store:
    """Appends that always work."""

    @property
    def reader(self) -> "Store":
        return self

    def appends_block(self, segment_id: SegmentId) -> bool:
        return True

    def append_group(self, requests: list[AppendRequest]) -> list[AppendRequest]:
        return requests


class Owner:
    """Remembers what it was told."""

    def __init__(self, *, mistakes: int = 0) -> None:
        self._mistakes = mistakes
        self.told: list[str] = []

    def on_appended(self, durable_tail: LogTail | None, error: IcecoreError | None) -> None:
        self._tell("appended")

    def on_broken(self, why: str) -> None:
        self._tell("broken")

    def _tell(self, what: str) -> None:
        self.told.append(what)
        if len(self.told) <= self._mistakes:
            raise KeyError(what)


@pytest.fixture
def loop() -> Iterator[SimLoop]:
    loop = SimLoop(1)
    yield loop
    loop.close()


@pytest.mark.parametrize("mistakes", [1, 2])
def test_a_broken_owner_costs_no_other_its_result(loop: SimLoop, mistakes: int) -> None:
    first, broken, last = Owner(), Owner(mistakes=mistakes), Owner()

    async def main() -> int:
        store: ReplicaStore = Store()  # type: ignore[assignment]
        executor = SimExecutor(None, random.Random(1))
        worker = IoWorker(
            "io-0",
            store,
            executor,
            SimClock(loop),
            NodeMetrics(),
            group_items_max=100,
            syncs=ShortSyncs(0),
        )
        for owner in (first, broken, last):
            worker.append(AppendRequest(1, [], [], TAIL), owner)
        return await asyncio.wait_for(worker.run(lambda: 7), 10)

    assert loop.run_until_complete(main()) == 7
    assert (first.told, last.told) == (["appended"], ["appended"])
    assert broken.told == ["appended", "broken"]
    assert loop.failures == []


# --- syncs that were put off ----------------------------------------------------------------------


class LateStore(Store):
    """Says of each append that it is to be synced later."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.within_ms = {1: 500, 2: 200}
        self.synced: list[tuple[float, list[int]]] = []
        self.errors: list[IcecoreError] = []

    def append_group(self, requests: list[AppendRequest]) -> list[AppendRequest]:
        for request in requests:
            request.sync_within_ms = self.within_ms[request.segment_id]
        return requests

    def sync(self, segment_ids: list[int]) -> None:
        self.synced.append((round(self._loop.time(), 1), sorted(segment_ids)))
        if self.errors:
            raise self.errors.pop()


def late_worker(
    store: LateStore, loop: asyncio.AbstractEventLoop, executor: Executor | None = None
) -> IoWorker:
    return IoWorker(
        "io-0",
        cast(ReplicaStore, store),
        executor or SimExecutor(None, random.Random(1)),
        SimClock(loop) if isinstance(loop, SimLoop) else SystemClock(),
        NodeMetrics(),
        group_items_max=100,
        syncs=ShortSyncs(0),
    )


def test_what_was_put_off_is_synced_in_time_and_together(loop: SimLoop) -> None:
    store = LateStore(loop)

    async def main() -> None:
        worker = late_worker(store, loop)
        for segment_id in (1, 2, 2, 1):
            worker.append(AppendRequest(segment_id, [], [], TAIL), Owner())
            await asyncio.sleep(0.01)
        await asyncio.sleep(1)
        assert store.synced == [(0.2, [1, 2])]
        worker.append(AppendRequest(1, [], [], TAIL), Owner())
        store.within_ms[1] = 0  # so much was written that it is due now
        worker.append(AppendRequest(1, [], [], TAIL), Owner())
        await asyncio.sleep(1)
        assert [segment_ids for _, segment_ids in store.synced] == [[1, 2], [1]]

    loop.run_until_complete(main())
    assert loop.failures == []


def test_a_sync_that_could_not_be_tried_is_tried_again(loop: SimLoop) -> None:
    store = LateStore(loop)
    store.errors.append(OutOfResourcesError("a test"))

    async def main() -> None:
        worker = late_worker(store, loop)
        worker.append(AppendRequest(1, [], [], TAIL), Owner())
        await asyncio.sleep(5)

    loop.run_until_complete(main())
    assert store.synced == [(0.5, [1]), (1.5, [1])]
    assert loop.failures == []


def test_a_closed_worker_leaves_what_was_put_off_to_the_store(loop: SimLoop) -> None:
    store = LateStore(loop)

    async def main() -> None:
        worker = late_worker(store, loop)
        worker.append(AppendRequest(1, [], [], TAIL), Owner())
        await asyncio.sleep(0.1)
        worker.append(AppendRequest(2, [], [], TAIL), Owner())
        worker.close()
        await asyncio.sleep(1)

    loop.run_until_complete(main())
    assert store.synced == []


class HangingStore(LateStore):
    """A store whose syncs last until they are let go."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.within_ms = dict.fromkeys(range(5), 0)
        self.begun, self.go_on = threading.Semaphore(0), threading.Semaphore(0)

    def sync(self, segment_ids: list[int]) -> None:
        self.begun.release()
        assert self.go_on.acquire(timeout=10)
        super().sync(segment_ids)


def test_a_sync_under_way_holds_up_neither_appends_nor_operations() -> None:
    loop = asyncio.new_event_loop()
    store, statuses = HangingStore(loop), list[int]()

    async def main() -> None:
        executor = ThreadExecutor(fatal=statuses.append)
        worker = late_worker(store, loop, executor)
        worker.append(AppendRequest(1, [], [], TAIL), Owner())
        assert await asyncio.to_thread(store.begun.acquire, timeout=10)
        owners = [Owner() for _ in range(4)]
        for number, owner in enumerate(owners):
            worker.append(AppendRequest(number, [], [], TAIL), owner)
        assert await asyncio.wait_for(worker.run(lambda: 7), 10) == 7
        assert all(owner.told == ["appended"] for owner in owners)
        assert worker.busy_ms(SystemClock().monotonic_ms()) > 0
        probe = asyncio.ensure_future(worker.probe())
        assert not (await asyncio.wait({probe}, timeout=0.1))[0]
        store.go_on.release(2)  # what came due meanwhile is one more
        await asyncio.wait_for(probe, 10)
        assert await asyncio.to_thread(store.begun.acquire, timeout=10)
        await asyncio.wait_for(worker.probe(), 10)
        assert worker.busy_ms(SystemClock().monotonic_ms()) == 0
        worker.close()
        executor.close()

    loop.run_until_complete(main())
    loop.close()
    assert [segment_ids for _, segment_ids in store.synced] == [[1], [0, 1, 2, 3]]
    assert statuses == []


def test_a_late_sync_that_fails_ends_the_process() -> None:
    loop = asyncio.new_event_loop()
    store, statuses = LateStore(loop), list[int]()
    store.within_ms[1] = 0
    store.errors.append(DiskFailedError("a test"))

    async def main() -> None:
        ended = asyncio.Event()
        executor = ThreadExecutor(
            fatal=lambda status: (statuses.append(status), loop.call_soon_threadsafe(ended.set))[0]
        )
        worker = late_worker(store, loop, executor)
        worker.append(AppendRequest(1, [], [], TAIL), Owner())
        await asyncio.wait_for(ended.wait(), 10)
        worker.close()
        executor.close()

    loop.run_until_complete(main())
    loop.close()
    assert statuses == [EXIT_STATUS]


@pytest.mark.parametrize("make_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_burst_that_is_due_at_once_costs_nobody_a_result(
    make_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """A sync that is due now is no timer on every loop. Servers run on uvloop."""
    loop = make_loop()
    failures, statuses = list[dict[str, Any]](), list[int]()
    loop.set_exception_handler(lambda _, context: failures.append(context))
    store, owners = LateStore(loop), [Owner() for _ in range(200)]
    store.within_ms = {1: 0, 2: 0, 3: 500}

    async def main() -> None:
        executor = ThreadExecutor(fatal=statuses.append)
        worker = late_worker(store, loop, executor)
        for number, owner in enumerate(owners):
            worker.append(AppendRequest(number % 3 + 1, [], [], TAIL), owner)
            if number % 50 == 0:
                assert await asyncio.wait_for(worker.run(lambda: 7), 10) == 7
        assert await asyncio.wait_for(worker.run(lambda: 7), 10) == 7
        async with asyncio.timeout(10):
            while not {1, 2} <= {each for _, synced in store.synced for each in synced}:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        worker.close()
        executor.close()

    loop.run_until_complete(main())
    loop.close()
    assert failures == statuses == []
    assert all(owner.told for owner in owners)
