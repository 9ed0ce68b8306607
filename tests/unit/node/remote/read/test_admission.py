"""Remote reads have places of their own: so many at once, so many that wait, then THROTTLED."""

import asyncio

import pytest

from icecore.errors import ThrottledError
from icecore_node.remote.read.admission import Admission
from tests.support.query_setup import RunningClock


class Reads:
    """Reads that last until somebody ends them."""

    def __init__(self, admission: Admission) -> None:
        self.admission = admission
        self.running = self.running_max = self.done = 0
        self.end = asyncio.Event()

    async def read(self) -> None:
        async with self.admission.place():
            self.running += 1
            self.running_max = max(self.running_max, self.running)
            try:
                await self.end.wait()
                self.done += 1
            finally:
                self.running -= 1


async def test_a_thousand_at_once() -> None:
    admission = Admission(RunningClock(), running_max=4, waiting_max=100)
    reads = Reads(admission)
    tasks = [asyncio.ensure_future(reads.read()) for _ in range(1000)]
    await asyncio.sleep(0.01)
    assert reads.running == 4 and not admission.is_idle_enough
    reads.end.set()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    refused = [each for each in results if isinstance(each, ThrottledError)]
    assert len(refused) == 896 and reads.done == 104 and reads.running_max == 4
    assert all(int(each.metadata["retry_after_ms"]) >= 50 for each in refused)
    assert admission.is_idle_enough


async def test_the_retry_time_follows_what_reads_take() -> None:
    clock = RunningClock()
    admission = Admission(clock, running_max=1, waiting_max=1)
    for _ in range(50):
        async with admission.place():
            clock.ms += 3000
    reads = Reads(admission)
    tasks = [asyncio.ensure_future(reads.read()) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(ThrottledError) as caught:
        await reads.read()
    assert 2500 < int(caught.value.metadata["retry_after_ms"]) <= 5000
    reads.end.set()
    await asyncio.gather(*tasks)


async def test_who_leaves_frees_a_place() -> None:
    admission = Admission(RunningClock(), running_max=1, waiting_max=10)
    reads = Reads(admission)
    first, second, third = (asyncio.ensure_future(reads.read()) for _ in range(3))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.sleep(0)
    first.cancel()
    for _ in range(10):  # turns of the loop: on a busy machine a millisecond is over after one
        await asyncio.sleep(0)
    assert reads.running == 1 and not third.done()
    reads.end.set()
    await third
    async with asyncio.timeout(1):
        await reads.read()


async def test_a_turn_that_comes_with_the_cancellation_is_handed_on() -> None:
    admission = Admission(RunningClock(), running_max=1, waiting_max=10)
    reads = Reads(admission)
    first = asyncio.ensure_future(reads.read())
    await asyncio.sleep(0)
    second, third = (asyncio.ensure_future(reads.read()) for _ in range(2))
    await asyncio.sleep(0)
    reads.end.set()
    await first
    second.cancel()
    async with asyncio.timeout(1):
        await third
        await reads.read()
