"""Errors that nobody expects, where nobody awaits: somebody hears of each, and nothing hangs."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from icecore.errors import IcecoreError, InternalError
from icecore.model import NodeInfo
from node.context import NodeContext
from node.coordinator_link import _Batcher
from node.io_pool import IoPool
from node.replication_client import LeaderLink
from node.store import AppendRequest, LogTail

TAIL = LogTail(10, 0, b"", 0, 0)


class Broken(Exception):
    """What no part of a node raises on purpose."""


def context(**parts: object) -> NodeContext:
    names = ("settings", "clock", "rng", "net", "executor", "files", "store", "pool", "cache")
    given: dict[str, Any] = {**dict.fromkeys((*names, "metrics")), **parts}
    return NodeContext(node_id=1, **given)


async def test_a_task_that_nobody_awaits_tells_the_node() -> None:
    shared, heard = context(), asyncio.get_running_loop().create_future()
    shared.on_unexpected = heard.set_result

    async def fail() -> None:
        raise Broken

    shared.start(fail())
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


class Executor:
    """Keeps what a worker would deliver to."""

    def worker(self, name: str, process: Any, deliver: Any, *, group_items_max: int) -> Any:
        self.process, self.deliver = process, deliver
        self.queue: list[Any] = []
        return SimpleNamespace(submit=self.queue.append)


class Owner:
    def __init__(self, error: Exception | None = None) -> None:
        self.error, self.durable = error, -1

    def on_appended(self, durable_tail: LogTail | None, error: IcecoreError | None) -> None:
        if self.error is not None:
            raise self.error
        assert durable_tail is not None
        self.durable = durable_tail.end_offset


async def test_an_owner_that_fails_does_not_cost_the_others_their_appends() -> None:
    executor, unexpected = Executor(), list[BaseException]()
    pool = IoPool(
        cast(Any, None), cast(Any, executor), cast(Any, None), cast(Any, None),
        workers=1, group_items_max=8,
    )  # fmt: skip
    pool.on_unexpected = unexpected.append
    bad, good = Owner(Broken()), Owner()
    worker = pool.worker_for(b"t", 0)
    for owner in (bad, good):
        worker.append(AppendRequest(1, [], [], TAIL), owner)
    probe = asyncio.ensure_future(worker.run(lambda: None))
    await asyncio.sleep(0)
    assert len(executor.queue) == 3
    executor.deliver(executor.queue)
    await asyncio.wait_for(probe, 30)
    assert good.durable == 10
    assert unexpected == [bad.error]


async def test_a_stream_to_a_leader_is_opened_again_whatever_broke_it() -> None:
    opened, again = list[str](), asyncio.Event()

    def open_stream(address: str, _: str) -> Any:
        opened.append(address)
        if len(opened) > 1:
            again.set()
        raise Broken

    shared = context(net=SimpleNamespace(open_stream=open_stream))
    shared.peers[2] = NodeInfo(2, "two", 1)
    link = LeaderLink(shared, 2)
    link.attach(cast(Any, SimpleNamespace(replica=SimpleNamespace(segment_id=1))))
    await asyncio.wait_for(again.wait(), 30)
    await link.close()
    assert opened[:2] == ["two", "two"]
