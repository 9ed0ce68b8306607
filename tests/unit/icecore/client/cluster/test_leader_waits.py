"""Partitions without a leader: one question for all that wait, and only who is led wakes."""

import asyncio
import random

import pytest

from icecore.client.cluster.leader_waits import LeaderWaits
from icecore.errors import UnavailableError

WAIT_S = 5.0


class Cluster:
    """Metadata, as far as waits go; each answer may show more partitions with a leader."""

    def __init__(self) -> None:
        self.led: set[tuple[str, int]] = set()
        self.coming: list[set[tuple[str, int]]] = []
        self.asked = 0
        self.fails = 0
        self.waits = LeaderWaits(random.Random(1), self.refresh, self.is_led)

    def is_led(self, topic: str, partition: int) -> bool:
        return (topic, partition) in self.led

    async def refresh(self) -> None:
        self.asked += 1
        if self.fails:
            self.fails -= 1
            raise UnavailableError("no coordinator")
        if self.coming:
            self.led |= self.coming.pop(0)
        self.waits.look()


async def test_who_is_led_does_not_wait() -> None:
    cluster = Cluster()
    cluster.led = {("t", 0)}
    assert await cluster.waits.until_led("t", 0, WAIT_S)
    assert cluster.asked == 0


async def test_thousands_wait_for_the_answers_to_a_few_questions() -> None:
    cluster = Cluster()
    everybody = {("t", number) for number in range(2_000)}
    cluster.coming = [set(), {("t", number) for number in range(1_000)}, everybody]
    waiting = [cluster.waits.until_led(*each, WAIT_S) for each in sorted(everybody)]
    assert all(await asyncio.gather(*waiting))
    assert cluster.asked == 3
    await asyncio.sleep(0.3)
    assert cluster.asked == 3  # nobody waits any more


async def test_who_is_not_led_in_time_hears_so_and_the_others_go_on() -> None:
    cluster = Cluster()
    cluster.coming = [set()] * 3 + [{("t", 1)}]
    late = asyncio.ensure_future(cluster.waits.until_led("t", 0, 0.02))
    assert await cluster.waits.until_led("t", 1, WAIT_S)
    assert await late is False


async def test_a_question_that_fails_is_asked_again() -> None:
    cluster = Cluster()
    cluster.fails, cluster.coming = 2, [{("t", 0)}]
    assert await cluster.waits.until_led("t", 0, WAIT_S)
    assert cluster.asked == 3


async def test_questions_end_with_the_last_who_waits() -> None:
    cluster = Cluster()
    waiting = asyncio.ensure_future(cluster.waits.until_led("t", 0, WAIT_S))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    await asyncio.sleep(0.1)
    asked = cluster.asked
    await asyncio.sleep(0.3)
    assert cluster.asked == asked <= 1
    cluster.coming = [{("t", 0)}]
    assert await cluster.waits.until_led("t", 0, WAIT_S)  # and begin anew


async def test_nothing_is_asked_after_the_end() -> None:
    cluster = Cluster()
    waiting = asyncio.ensure_future(cluster.waits.until_led("t", 0, 0.2))
    await asyncio.sleep(0)
    await cluster.waits.close()
    assert await waiting is False
    assert cluster.asked == 0
