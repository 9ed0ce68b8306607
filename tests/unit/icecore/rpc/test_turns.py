"""A long handler keeps nobody waiting, and hosts take turns."""

import asyncio
import time

from icecore.rpc.turns import AT_ONCE_MAX, ROUND_S, TURN_S, FairTurns, Turns


async def test_others_run_every_few_milliseconds() -> None:
    """Waits are processor time of this thread: other threads may have the processor meanwhile."""
    waits_s: list[float] = []

    async def other() -> None:
        while True:
            began_s = time.thread_time()
            await asyncio.sleep(0)
            waits_s.append(time.thread_time() - began_s)

    task = asyncio.create_task(other())
    await asyncio.sleep(0)
    turns, until_s = Turns(), time.thread_time() + 20 * TURN_S
    while time.thread_time() < until_s:
        await turns.give()
    task.cancel()
    assert len(waits_s) >= 5
    assert sorted(waits_s)[len(waits_s) // 2] < 5 * TURN_S


async def test_a_short_handler_waits_for_nobody() -> None:
    steps = Turns().give()
    try:
        steps.send(None)
    except StopIteration:
        return
    raise AssertionError("it has waited")


def busy(seconds: float) -> None:
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        pass


async def test_a_host_with_few_calls_does_not_wait_behind_one_with_many() -> None:
    turns, order = FairTurns(), list[str]()

    async def one(host: str) -> None:
        await turns.wait(host)
        busy(ROUND_S / 2)
        order.append(host)

    greedy = [asyncio.create_task(one("greedy")) for _ in range(200)]
    await asyncio.sleep(0)
    await asyncio.gather(*(one("modest") for _ in range(3)))
    assert len(order) < AT_ONCE_MAX + 10
    await asyncio.gather(*greedy)
    assert len(order) == 203


async def test_fewer_are_let_in_while_they_take_long_and_others_run_between() -> None:
    turns, rounds = FairTurns(), 0

    async def one() -> None:
        await turns.wait("host")
        busy(ROUND_S)

    async def count() -> None:
        nonlocal rounds
        while True:
            rounds += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    await asyncio.gather(*(one() for _ in range(60)))
    counting.cancel()
    assert rounds > 12


async def test_who_was_stopped_keeps_no_turn() -> None:
    turns = FairTurns()
    stopped = [asyncio.create_task(turns.wait("host")) for _ in range(100)]
    await asyncio.sleep(0)
    for each in stopped:
        each.cancel()
    async with asyncio.timeout(1):
        await turns.wait("host")
    await asyncio.gather(*stopped, return_exceptions=True)


async def test_nobody_overtakes_whose_turn_it_is_already() -> None:
    """Calls come in at any moment of a round, also between the turn of others and their next
    step."""
    turns, begun = FairTurns(), list[int]()
    tasks: list[asyncio.Task[None]] = []

    async def one(number: int) -> None:
        await turns.wait("host")
        begun.append(number)

    async def arrive() -> None:
        for burst in range(200):
            for _ in range(burst * 7 % 40):
                tasks.append(asyncio.create_task(one(len(tasks))))
            await asyncio.sleep(0)

    await arrive()
    await asyncio.gather(*tasks)
    assert begun == sorted(begun)


async def test_who_is_stopped_at_its_turn_holds_up_nobody() -> None:
    turns = FairTurns()
    tasks = [asyncio.create_task(turns.wait("host")) for _ in range(2 * AT_ONCE_MAX)]
    await asyncio.sleep(0)
    while not turns._woken:  # noqa: ASYNC110
        await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert not turns._woken
    await turns.wait("host")


async def test_what_is_to_begin_waits_in_the_line_of_its_host() -> None:
    turns, order = FairTurns(), list[str]()

    async def goes_on(host: str) -> None:
        await turns.wait(host)
        order.append(host)

    greedy = [asyncio.create_task(goes_on("greedy")) for _ in range(3 * AT_ONCE_MAX)]
    await asyncio.sleep(0)
    for number in range(3):
        turns.begin("modest", lambda number=number: order.append(f"modest {number}"))  # type: ignore[misc]
    assert "modest 0" not in order  # others wait as well
    await asyncio.gather(*greedy)
    modest = [each for each in order if each != "greedy"]
    assert modest == ["modest 0", "modest 1", "modest 2"]
    assert order.index("modest 2") < 2 * AT_ONCE_MAX


async def test_what_is_to_begin_does_so_at_once_when_nobody_waits() -> None:
    order = list[int]()
    FairTurns().begin("host", lambda: order.append(1))
    assert order == [1]
