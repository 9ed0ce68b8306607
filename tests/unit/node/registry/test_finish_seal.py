"""Replicas are sealed as records say: a few at a time, none forgotten, none begun once it is
over."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from icecore.errors import OutOfSpaceError
from icecore.model import NodeId, Segment
from icecore.process.system import SystemClock
from icecore_node.context import Tasks
from icecore_node.identity.identity import Identity
from icecore_node.identity.readers import Readers
from icecore_node.registry.digest_queue import DigestQueue
from icecore_node.registry.finish_seal import SEALS_AT_ONCE, SealFinisher
from icecore_node.registry.seal_order import CROWD_MIN
from icecore_node.replica.orders import Orders
from icecore_node.replica.replica import Replica
from icecore_node.timing import NodeTiming
from tests.support.waiting import until


class Finisher(SealFinisher):
    """Its seals end when they are let."""

    def __init__(self) -> None:
        self.readers, self.unexpected = Readers(), list[BaseException]()
        context = SimpleNamespace(
            clock=SystemClock(),
            tasks=Tasks(self.unexpected.append),
            settings=SimpleNamespace(timing=NodeTiming(space_retry_ms=10)),
        )
        orders = Orders(Identity(NodeId(1)))
        super().__init__(cast(Any, context), orders, cast(Any, None), self.readers, DigestQueue())
        self.under_way: list[int] = []
        self.done: list[int] = []
        self.go_on = asyncio.Event()
        self.short_of_space = 0

    async def finish(self, replica: Replica, segment: Segment) -> None:
        self.under_way.append(replica.segment_id)
        await self.go_on.wait()
        self.under_way.remove(replica.segment_id)
        if self.short_of_space:
            self.short_of_space -= 1
            raise OutOfSpaceError("no space")
        self.done.append(replica.segment_id)

    def ask(self, number: int) -> None:
        replica = SimpleNamespace(
            segment_id=number,
            partition_key=(b"t", number),
            life=SimpleNamespace(is_intact=True),
            end_role=lambda why: None,
        )
        self.finish_later(cast(Any, replica), cast(Any, None))


async def test_a_few_at_a_time_and_none_twice() -> None:
    seals = Finisher()
    for number in (*range(10), *range(10)):
        seals.ask(number)
    await until(lambda: len(seals.under_way) == SEALS_AT_ONCE)
    await asyncio.sleep(0.01)
    assert len(seals.under_way) == SEALS_AT_ONCE
    seals.go_on.set()
    await until(lambda: len(seals.done) == 10)
    assert sorted(seals.done) == [*range(10)] and not seals.unexpected


async def test_one_that_comes_when_the_others_end_is_not_forgotten() -> None:
    seals = Finisher()
    seals.go_on.set()
    for number in range(200):
        seals.ask(number)
        for _ in range(number % 7):
            await asyncio.sleep(0)
    await until(lambda: len(seals.done) == 200)


async def test_a_crowd_leaves_recoveries_in_front_but_for_what_is_read() -> None:
    seals = Finisher()
    seals.go_on.set()
    seals.note_fence()
    for number in range(CROWD_MIN + SEALS_AT_ONCE):
        seals.ask(number)
    await asyncio.sleep(0)
    begun = len(seals.done)
    seals.readers.on_read((b"t", CROWD_MIN))
    await until(lambda: CROWD_MIN in seals.done)
    assert len(seals.done) <= begun + SEALS_AT_ONCE + 1
    await until(lambda: len(seals.done) == CROWD_MIN + SEALS_AT_ONCE)


async def test_a_shortage_is_waited_for() -> None:
    seals = Finisher()
    seals.short_of_space = 3
    seals.go_on.set()
    seals.ask(1)
    seals.ask(1)
    await until(lambda: seals.done == [1])
    assert not seals.short_of_space and not seals.unexpected


async def test_none_begins_once_it_is_over() -> None:
    seals = Finisher()
    for number in range(10):
        seals.ask(number)
    await until(lambda: len(seals.under_way) == SEALS_AT_ONCE)
    closing = asyncio.ensure_future(seals.close())
    await asyncio.sleep(0)
    seals.go_on.set()
    await closing
    assert len(seals.done) == SEALS_AT_ONCE
    seals.ask(99)
    await asyncio.sleep(0.01)
    assert len(seals.done) == SEALS_AT_ONCE and not seals.unexpected
