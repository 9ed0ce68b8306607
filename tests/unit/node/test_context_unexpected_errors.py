"""Errors that nobody expects, where nobody awaits: somebody hears of each, and nothing hangs."""

import asyncio
from collections.abc import Callable
from dataclasses import fields
from types import SimpleNamespace
from typing import Any, cast

import pytest

from icecore.errors import IcecoreError, InternalError
from icecore.model import NodeInfo
from icecore_node.context import NodeContext, Peers, Tasks, end_task
from icecore_node.identity.identity import Identity
from icecore_node.link.coordinator_link import _Batcher
from icecore_node.replication.receiver import LeaderLink
from icecore_node.timing import NodeTiming


class Broken(Exception):
    """An error that no part of a node raises on purpose."""


def context(**parts: object) -> NodeContext:
    names = (each.name for each in fields(NodeContext))
    given: dict[str, Any] = {**dict.fromkeys(names), "identity": Identity(1), **parts}
    return NodeContext(**given)


async def test_a_task_that_nobody_awaits_tells_the_node() -> None:
    heard = asyncio.get_running_loop().create_future()

    async def fail() -> None:
        raise Broken

    Tasks(heard.set_result).start(fail())
    assert isinstance(await asyncio.wait_for(heard, 30), Broken)


async def fewer_answers(requests: list[int]) -> list[int]:
    return requests[1:]


async def no_answers(requests: list[int]) -> list[int]:
    raise Broken


@pytest.mark.parametrize("call", [fewer_answers, no_answers])
async def test_who_waits_for_a_batched_answer_hears_of_it(call: Callable[..., Any]) -> None:
    batcher: _Batcher[int, int] = _Batcher(call)
    outcomes = await asyncio.wait_for(
        asyncio.gather(batcher.submit(1), batcher.submit(2), return_exceptions=True), 30
    )
    assert [type(each) for each in outcomes] == [InternalError, InternalError]
    assert all(isinstance(each, IcecoreError) and each.indeterminate for each in outcomes)


async def test_a_stream_to_a_leader_is_opened_again_whatever_broke_it() -> None:
    opened, again = list[str](), asyncio.Event()

    def open_stream(address: str, _: str) -> Any:
        opened.append(address)
        if len(opened) > 1:
            again.set()
        raise Broken

    waits = SimpleNamespace(timing=NodeTiming(reconnect_ms=10))
    shared = context(
        net=SimpleNamespace(open_stream=open_stream), peers=Peers(), settings=cast(Any, waits)
    )
    shared.peers.learn(NodeInfo(2, "two", 1))
    link = LeaderLink(shared, 2)
    link.attach(cast(Any, SimpleNamespace(replica=SimpleNamespace(segment_id=1))))
    await asyncio.wait_for(again.wait(), 30)
    await link.close()
    assert opened[:2] == ["two", "two"]


async def test_who_ends_a_task_can_be_cancelled_meanwhile() -> None:
    """A node stops at the moment at which a stream of it breaks: its loop must not go on."""
    may_end, is_ending = asyncio.Event(), asyncio.Event()

    async def slow_to_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            is_ending.set()
            await may_end.wait()

    async def run() -> None:
        while True:
            task = asyncio.ensure_future(slow_to_end())
            await asyncio.sleep(0)
            await end_task(task)

    running = asyncio.ensure_future(run())
    await is_ending.wait()
    running.cancel()
    may_end.set()
    await asyncio.wait([running], timeout=10)
    assert running.cancelled()


async def test_what_a_task_has_failed_with_never_hides_that_we_are_cancelled() -> None:
    async def fail() -> None:
        raise Broken

    async def run() -> None:
        task = asyncio.ensure_future(fail())
        try:
            await asyncio.Event().wait()
        finally:
            await end_task(task)

    running = asyncio.ensure_future(run())
    await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait([running], timeout=10)
    assert running.cancelled()
    failed = asyncio.ensure_future(fail())
    await asyncio.sleep(0)
    with pytest.raises(Broken):
        await end_task(failed)
