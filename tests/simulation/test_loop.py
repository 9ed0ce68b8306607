"""Tests of the simulated loop and processes: virtual time, same seed same run, kill and pause."""

import asyncio
import random
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from tests.simulation.loop import DeadlockError, LivelockError, SimLoop, SimulationError
from tests.simulation.process import ProcessKilled, SimProcess


def run(
    main: Callable[[SimLoop], Coroutine[Any, Any, Any]], seed: int = 1, shuffle: float = 0.0
) -> SimLoop:
    loop = SimLoop(seed, shuffle=shuffle)
    try:
        loop.run_until_complete(main(loop))
    finally:
        loop.close()
    return loop


async def jostle(loop: SimLoop) -> None:
    """Many tasks that sleep, wait on each other and are cancelled from sets."""
    rng = random.Random(7)
    queue: asyncio.Queue[int] = asyncio.Queue(3)

    async def put(number: int) -> None:
        await asyncio.sleep(rng.random())
        await queue.put(number)

    async def take() -> None:
        while True:
            loop.trace(f"took {await queue.get()}")

    async def boom() -> None:
        await asyncio.sleep(0.7)
        raise KeyError

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(take())
            for number in range(50):
                group.create_task(put(number))
            group.create_task(boom())
    except* KeyError:
        loop.trace("boom")


@pytest.mark.parametrize("shuffle", [0.0, 1.0])
def test_same_seed_same_run(shuffle: float) -> None:
    assert run(jostle, 1, shuffle).trace_hash() == run(jostle, 1, shuffle).trace_hash()


def test_other_seed_other_order() -> None:
    hashes = {run(jostle, seed, 1.0).trace_hash() for seed in range(5)}
    assert len(hashes) == 5


def test_hours_pass_at_once() -> None:
    async def main(loop: SimLoop) -> None:
        for _ in range(24):
            await asyncio.sleep(3600)

    started = time.monotonic()
    assert run(main).time() == pytest.approx(24 * 3600)
    assert time.monotonic() - started < 5


def test_timeouts_are_virtual() -> None:
    async def main(loop: SimLoop) -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30):
                await asyncio.Event().wait()
        assert loop.time() == pytest.approx(30)

    run(main)


def test_callbacks_keep_their_order_without_shuffling() -> None:
    async def main(loop: SimLoop) -> None:
        seen: list[int] = []
        for number in range(100):
            loop.call_soon(seen.append, number)
        await asyncio.sleep(0)
        assert seen == list(range(100))

    run(main)


def test_deadlock_and_livelock_are_found() -> None:
    async def wait(loop: SimLoop) -> None:
        await asyncio.Event().wait()

    async def spin(loop: SimLoop) -> None:
        loop.call_soon(again, loop)
        await asyncio.sleep(1)

    def again(loop: SimLoop) -> None:
        loop.call_soon(again, loop)

    with pytest.raises(DeadlockError):
        run(wait)
    with pytest.raises(LivelockError):
        run(spin)


def test_threads_are_forbidden() -> None:
    async def main(loop: SimLoop) -> None:
        with pytest.raises(SimulationError):
            await asyncio.to_thread(print)

    run(main)


def test_kill_ends_all_tasks_of_a_process_and_no_other() -> None:
    ticks: list[str] = []

    async def tick(process: SimProcess) -> None:
        try:
            while True:
                await asyncio.sleep(1)
                ticks.append(process.name)
        finally:
            with pytest.raises(ProcessKilled):
                process.check()

    async def parent(process: SimProcess) -> None:
        child = asyncio.create_task(tick(process))
        await child

    async def main(loop: SimLoop) -> None:
        victim, other = SimProcess("victim", 1), SimProcess("other", 1)
        for process in (victim, other):
            process.spawn(parent(process))
        await asyncio.sleep(3.5)
        victim.kill("test", loop.time())
        await asyncio.sleep(3)
        other.kill("end", loop.time())
        await asyncio.sleep(1)

    run(main)
    assert ticks.count("victim") == 3
    assert ticks.count("other") == 6


def test_a_task_that_swallows_cancellation_stays_dead() -> None:
    acts: list[float] = []

    async def stubborn(loop: SimLoop) -> None:
        while True:
            try:
                await asyncio.sleep(1)
                acts.append(loop.time())
            except asyncio.CancelledError:
                continue

    async def main(loop: SimLoop) -> None:
        victim = SimProcess("victim", 1)
        victim.spawn(stubborn(loop))
        await asyncio.sleep(2.5)
        victim.kill("test", loop.time())
        await asyncio.sleep(10)

    run(main)
    assert acts == [1.0, 2.0]


def test_pause_piles_up_timers() -> None:
    ticks: list[float] = []

    async def tick(loop: SimLoop) -> None:
        while True:
            await asyncio.sleep(1)
            ticks.append(loop.time())

    async def main(loop: SimLoop) -> None:
        process = SimProcess("paused", 1)
        process.spawn(tick(loop))
        await asyncio.sleep(1.5)
        process.paused = True
        await asyncio.sleep(10)
        loop.resume(process)
        await asyncio.sleep(1.2)
        process.kill("end", loop.time())

    run(main)
    assert ticks == pytest.approx([1.0, 11.5, 12.5])


def test_unhandled_exceptions_are_failures() -> None:
    async def main(loop: SimLoop) -> None:
        process = SimProcess("buggy", 1)

        async def buggy() -> None:
            raise ValueError("oops")

        process.spawn(buggy())
        await asyncio.sleep(1)

    assert any("oops" in failure for failure in run(main).failures)
