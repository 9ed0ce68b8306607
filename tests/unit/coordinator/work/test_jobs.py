"""Jobs of a coordinator run again and again, are woken, rest, and never die in silence (R63)."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable

import pytest

from icecore_coordinator.work.jobs import Job, Jobs
from tests.support.waiting import until
from tests.unit.coordinator.nodes.test_node_sessions import FakeClock

LONG_MS = 600_000


class Loops:
    """Jobs on a clock that is moved by hand, and what became of them."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.is_lost = asyncio.Event()
        self.jobs = Jobs(self.clock, self.is_lost.set)
        self.turns: list[str] = []

    def noted(self, name: str) -> Callable[[], None]:
        """A step that only says that it was carried out."""
        return lambda: self.turns.append(name)


@pytest.fixture
async def loops() -> AsyncIterator[Loops]:
    found = Loops()
    async with asyncio.timeout(5):
        yield found
        await found.jobs.stop()


async def turned() -> None:
    """Let everything run that is not waiting for a time."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_a_job_waits_before_each_turn(loops: Loops) -> None:
    loops.jobs.start([Job("audit", loops.noted("audit"), every_ms=LONG_MS)])
    loops.jobs.start([Job("repair", loops.noted("repair"), every_ms=1)])
    await until(lambda: len(loops.turns) >= 3)
    assert set(loops.turns) == {"repair"}


async def test_the_first_turn_may_begin_at_once(loops: Loops) -> None:
    job = Job("tick", loops.noted("tick"), every_ms=LONG_MS, is_first_at_once=True)
    loops.jobs.start([job])
    await turned()
    assert loops.turns == ["tick"]


async def test_steps_follow_each_other_whether_they_wait_or_not(loops: Loops) -> None:
    async def second() -> None:
        await asyncio.sleep(0)
        loops.turns.append("second")

    job = Job("audit", loops.noted("first"), second, loops.noted("third"), every_ms=LONG_MS)
    await job.turn(loops.clock)
    assert loops.turns == ["first", "second", "third"]


async def test_an_event_begins_the_next_turn_once(loops: Loops) -> None:
    wake = asyncio.Event()
    loops.jobs.start([Job("upload", loops.noted("upload"), every_ms=LONG_MS, wake=wake)])
    await turned()
    assert loops.turns == []
    wake.set()
    await turned()
    assert loops.turns == ["upload"]
    assert not wake.is_set()


async def test_a_job_with_an_event_needs_none(loops: Loops) -> None:
    wake = asyncio.Event()
    loops.jobs.start([Job("upload", loops.noted("upload"), every_ms=1, wake=wake)])
    await until(lambda: len(loops.turns) >= 2)


async def test_an_event_during_a_turn_begins_another_one(loops: Loops) -> None:
    wake = asyncio.Event()

    def work() -> None:
        loops.turns.append("heal")
        if len(loops.turns) == 1:
            wake.set()

    job = Job("heal", work, every_ms=LONG_MS, wake=wake, is_first_at_once=True)
    loops.jobs.start([job])
    await turned()
    assert len(loops.turns) == 2


async def test_the_wait_is_asked_for_each_time(loops: Loops) -> None:
    waits_ms = [LONG_MS, 1, 1]
    loops.jobs.start([Job("roll", loops.noted("roll"), every_ms=waits_ms.pop)])
    await until(lambda: not waits_ms)
    assert loops.turns == ["roll", "roll"]


@pytest.mark.parametrize("rests", [0.0, 4.0])
async def test_a_long_turn_is_followed_by_a_rest(
    loops: Loops, monkeypatch: pytest.MonkeyPatch, rests: float
) -> None:
    slept_s: list[float] = []

    async def sleep(seconds: float) -> None:
        slept_s.append(seconds)

    def work() -> None:
        loops.clock.now += 25

    monkeypatch.setattr(asyncio, "sleep", sleep)
    await Job("heal", work, every_ms=LONG_MS, rests=rests).turn(loops.clock)
    monkeypatch.undo()
    assert slept_s == ([0.1] if rests else [])


@pytest.mark.parametrize("is_late", [False, True])
async def test_a_job_that_fails_ends_the_coordinator(
    loops: Loops, caplog: pytest.LogCaptureFixture, *, is_late: bool
) -> None:
    def fail() -> None:
        raise RuntimeError("out of luck")

    async def fail_late() -> None:
        await asyncio.sleep(0)
        fail()

    with caplog.at_level(logging.ERROR):
        loops.jobs.start([Job("repair", fail_late if is_late else fail, every_ms=1)])
        await loops.is_lost.wait()
    assert [each.getMessage() for each in caplog.records] == ["event=task_failed task=repair"]
    assert loops.jobs.count("repair") == 0


async def test_a_wait_that_fails_does_so_too(loops: Loops) -> None:
    def no_wait() -> float:
        raise RuntimeError("out of luck")

    loops.jobs.start([Job("roll", loops.noted("roll"), every_ms=no_wait)])
    await loops.is_lost.wait()


@pytest.mark.parametrize("fails", [False, True])
async def test_a_task_tells_of_its_end_and_ends_nothing_else(
    loops: Loops, caplog: pytest.LogCaptureFixture, *, fails: bool
) -> None:
    async def work() -> None:
        await asyncio.sleep(0)
        if fails:
            raise RuntimeError("out of luck")

    ended: list[int] = []
    with caplog.at_level(logging.ERROR):
        loops.jobs.spawn(work(), "recover", lambda: ended.append(loops.jobs.count("recover")))
        assert loops.jobs.count("recover") == 1
        await until(lambda: bool(ended))
    assert ended == [0], "there is room for another one by then"
    assert [each.getMessage() for each in caplog.records] == [
        "event=task_failed task=recover"
    ] * fails
    assert not loops.is_lost.is_set()


async def test_all_of_them_end_together(loops: Loops) -> None:
    ended: list[str] = []

    async def work() -> None:
        await asyncio.sleep(LONG_MS)

    loops.jobs.start([Job(each, work, every_ms=1) for each in ("audit", "repair")])
    loops.jobs.spawn(work(), "recover", lambda: ended.append("recover"))
    await asyncio.sleep(0.01)
    await loops.jobs.stop()
    await loops.jobs.stop()
    assert ended == ["recover"]
    assert [loops.jobs.count(each) for each in ("audit", "repair", "recover")] == [0, 0, 0]
    assert not loops.is_lost.is_set(), "who is asked to end has not failed"
