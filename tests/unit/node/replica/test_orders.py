"""One order at a time per segment, and none that was overtaken goes on."""

import asyncio

import pytest

from icecore.errors import FencedError
from icecore_node.identity.identity import Identity
from icecore_node.replica.orders import Orders


def orders() -> tuple[Orders, Identity]:
    identity = Identity(1)
    identity.hear(5)
    return Orders(identity), identity


async def test_who_works_on_a_segment_is_alone_with_it_and_only_with_it() -> None:
    work, _ = orders()
    course: list[str] = []

    async def take(name: str, *segment_ids: int) -> None:
        async with work.alone(*segment_ids):
            course.append(f"{name} begins")
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            course.append(f"{name} ends")

    await asyncio.gather(take("a", 1, 2), take("b", 2, 1), take("c", 3))
    assert course.index("b begins") > course.index("a ends")
    assert course.index("c begins") < course.index("a ends")
    assert not work._turns


async def test_who_gives_up_waiting_leaves_nothing_behind() -> None:
    work, _ = orders()
    async with work.alone(1):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                async with work.alone(0, 1):
                    raise AssertionError("two at once")
    async with work.alone(0, 1):
        pass
    assert not work._turns


async def test_an_order_ends_at_a_fence_also_while_it_waits() -> None:
    work, _ = orders()
    never = asyncio.Event()
    async with work.carry_out(1, 5) as order, work.carry_out(2, 5) as other:
        order.check()
        waiting = asyncio.ensure_future(order.unless_overtaken(_wait(never)))
        await asyncio.sleep(0)
        work.overtake(1, "a fence came")
        with pytest.raises(FencedError, match="a fence came"):
            await waiting
        with pytest.raises(FencedError):
            order.check()
        other.check()
    async with work.carry_out(1, 5) as later:  # it came after the fence
        later.check()
    assert not work._under_way


async def test_an_order_that_waits_for_its_turn_is_overtaken_as_well() -> None:
    work, _ = orders()

    async def carry_out() -> None:
        async with work.carry_out(1, 5):
            raise AssertionError("it changes something")

    async with work.alone(1):
        waiting = asyncio.ensure_future(carry_out())
        await asyncio.sleep(0)
        work.overtake(1, "a fence came")
    with pytest.raises(FencedError):
        await waiting


async def test_an_order_ends_when_a_newer_coordinator_was_heard() -> None:
    work, identity = orders()
    async with work.carry_out(1, 5) as order:
        identity.hear(6)
        with pytest.raises(FencedError, match="coordinator epoch 6"):
            order.check()


async def test_what_was_waited_for_is_given_up_and_its_result_is_given_on() -> None:
    work, _ = orders()
    async with work.carry_out(1, 5) as order:
        assert await order.unless_overtaken(asyncio.sleep(0, "data")) == "data"


async def _wait(event: asyncio.Event) -> None:
    await event.wait()
