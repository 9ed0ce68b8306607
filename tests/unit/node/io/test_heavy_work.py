"""HeavyWork: a bounded number of bytes and calls at once, first come first, whoever gives up."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar, cast

import pytest

from icecore_node.io.heavy_work import HeavyWork
from icecore_node.ports import Executor

T = TypeVar("T")


class Hands:
    """An executor whose calls end when a test says so."""

    def __init__(self) -> None:
        self.running: dict[str, asyncio.Future[None]] = {}

    async def run(self, function: Callable[..., T], *args: object) -> T:
        name = cast(str, args[0])
        self.running[name] = asyncio.get_running_loop().create_future()
        try:
            await self.running[name]
        finally:
            del self.running[name]
        return function(*args)


def same(name: str) -> str:
    return name


def started(work: HeavyWork, name: str, weight_bytes: int) -> "asyncio.Task[Any]":
    return asyncio.ensure_future(work.run(weight_bytes, same, name))


@pytest.fixture
def hands() -> Hands:
    return Hands()


def work_of(hands: Hands) -> HeavyWork:
    return HeavyWork(cast(Executor, hands), bytes_max=100, calls_max=2)


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_bytes_and_calls_are_bounded_in_order(hands: Hands) -> None:
    work = work_of(hands)
    tasks = [started(work, name, size) for name, size in (("a", 60), ("b", 60), ("c", 1))]
    await turns()
    assert set(hands.running) == {"a"}, "c waits behind b, or b might wait for ever"
    hands.running["a"].set_result(None)
    await turns()
    assert set(hands.running) == {"b", "c"}
    tasks.append(started(work, "d", 1))
    await turns()
    assert set(hands.running) == {"b", "c"}, "two calls at once"
    for name in ("b", "c"):
        hands.running[name].set_result(None)
    await turns()
    hands.running["d"].set_result(None)
    assert await asyncio.gather(*tasks) == ["a", "b", "c", "d"]


async def test_what_is_larger_than_all_runs_alone(hands: Hands) -> None:
    work = work_of(hands)
    task = started(work, "huge", 10_000)
    other = started(work, "b", 1)
    await turns()
    assert set(hands.running) == {"huge"}
    hands.running["huge"].set_result(None)
    assert await task == "huge"
    await turns()
    hands.running["b"].set_result(None)
    assert await other == "b"


async def test_who_gives_up_keeps_nobody_out(hands: Hands) -> None:
    work = work_of(hands)
    first, second, third = (started(work, name, 100) for name in ("a", "b", "c"))
    await turns()
    first.cancel()
    second.cancel()
    await turns()
    assert set(hands.running) == {"a"}, "its thread is not done yet"
    hands.running["a"].set_result(None)
    await turns()
    assert set(hands.running) == {"c"}
    hands.running["c"].set_result(None)
    assert await third == "c"
    assert first.cancelled() and second.cancelled()


async def test_an_error_is_raised_and_frees_its_place(hands: Hands) -> None:
    work = work_of(hands)
    failing, next_one = started(work, "a", 100), started(work, "b", 100)
    await turns()
    hands.running["a"].set_exception(ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        await failing
    await turns()
    hands.running["b"].set_result(None)
    assert await next_one == "b"


@pytest.mark.parametrize("later", range(8))
async def test_giving_up_at_any_moment_frees_the_place(hands: Hands, later: int) -> None:
    work = work_of(hands)
    _, second, third = (started(work, name, 100) for name in ("a", "b", "c"))
    await turns()
    hands.running["a"].set_result(None)
    for _ in range(later):
        await asyncio.sleep(0)
    second.cancel()
    await turns()
    if "b" in hands.running:
        hands.running["b"].set_result(None)
    await turns()
    hands.running["c"].set_result(None)
    assert await third == "c"
