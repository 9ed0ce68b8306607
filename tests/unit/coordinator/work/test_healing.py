"""Needed work is looked for at once, but not all the time; a bounded part of it is under way."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from icecore_coordinator.timing import Timing
from icecore_coordinator.work.healing import ROUNDS_AT_ONCE, SEGMENTS_PER_ROUND, Healing
from icecore_coordinator.work.jobs import Jobs
from tests.unit.coordinator.nodes.test_node_sessions import FakeClock


class Sick:
    """A cluster in which so many partitions need a tail, and nothing else is missing."""

    def __init__(self) -> None:
        self.clock, self.timing = FakeClock(), Timing()
        self.jobs = Jobs(self.clock, lambda: None)
        self.without_tail: list[int] = []
        self.looks = 0
        self.rounds: list[Sequence[int]] = []
        self.goes_on = asyncio.Event()
        self.backoff = SimpleNamespace(is_waiting=False)
        nothing = SimpleNamespace(
            backoff=self.backoff, is_busy=False, needed=list, recover=None, hand_over=None
        )
        self.healing = Healing(
            cast(Any, SimpleNamespace(ledger=None, clock=self.clock, timing=self.timing)),
            self.jobs,
            cast(Any, nothing),
            cast(Any, self),
            cast(Any, nothing),
            cast(Any, nothing),
        )

    def needed(self) -> list[int]:
        self.looks += 1
        taken = {each for keys in self.rounds for each in keys}
        return [each for each in self.without_tail if each not in taken]

    async def open(self, keys: Sequence[int]) -> None:
        self.rounds.append(keys)
        await self.goes_on.wait()


@pytest.fixture
async def sick() -> AsyncIterator[Sick]:
    found = Sick()
    yield found
    await found.jobs.stop()


async def test_it_looks_when_poked_and_now_and_then(sick: Sick) -> None:
    sick.healing.look()
    sick.healing.look()
    assert sick.looks == 1
    sick.healing.poke()
    assert sick.healing.wake.is_set()
    sick.healing.look()
    sick.healing.look()
    assert sick.looks == 2
    sick.clock.now += sick.timing.look_ms - 1
    sick.healing.look()
    assert sick.looks == 2
    sick.clock.now += 1
    sick.healing.look()
    assert sick.looks == 3


async def test_it_always_looks_while_anything_waits_for_another_try(sick: Sick) -> None:
    sick.backoff.is_waiting = True
    sick.healing.look()
    sick.healing.look()
    assert sick.looks == 2


async def test_rounds_are_bounded_and_the_end_of_one_begins_another(sick: Sick) -> None:
    sick.without_tail = [*range(2 * ROUNDS_AT_ONCE * SEGMENTS_PER_ROUND)]
    sick.healing.poke()
    sick.healing.look()
    await asyncio.sleep(0)
    assert [len(each) for each in sick.rounds] == [SEGMENTS_PER_ROUND] * ROUNDS_AT_ONCE
    sick.healing.wake.clear()
    sick.healing.poke()
    sick.healing.look()
    await asyncio.sleep(0)
    assert len(sick.rounds) == ROUNDS_AT_ONCE
    sick.healing.wake.clear()
    sick.goes_on.set()
    async with asyncio.timeout(5):
        await sick.healing.wake.wait()
    sick.healing.look()
    await asyncio.sleep(0)
    assert len(sick.rounds) > ROUNDS_AT_ONCE
