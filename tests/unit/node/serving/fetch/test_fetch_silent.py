"""A node that no coordinator hears of tells those who wait there, and lets nobody wait for long."""

import asyncio

import pytest

from icecore.v1 import data_pb2
from icecore_node.serving.fetch import fetch
from tests.support.query_setup import TOPIC, QueryNode, Stored

SILENT_MS = 7_000
END = data_pb2.FetchPartition(topic_id=TOPIC, offset=1)
LONG_MS = 20_000


@pytest.fixture
def node() -> QueryNode:
    node = QueryNode()
    node.begin(1)
    node.append(1, [Stored(value=b"v")])
    return node


async def asked(node: QueryNode, wait_ms: int = LONG_MS) -> "asyncio.Task[tuple[int, bytes]]":
    """The age in the answer, and what came."""

    async def ask() -> tuple[int, bytes]:
        header, batches = await node.fetch_answer(END, max_wait_ms=wait_ms)
        assert not header.partitions[0].HasField("error")
        return header.age_ms, batches

    task = asyncio.ensure_future(ask())
    for _ in range(5):
        await asyncio.sleep(0)
    return task


async def test_who_is_heard_lets_readers_wait(node: QueryNode) -> None:
    poll = await asked(node)
    node.readers.wake_all()
    await asyncio.sleep(0.05)
    assert not poll.done()
    node.append(1, [Stored(value=b"w")])
    age_ms, batches = await asyncio.wait_for(poll, 5)
    assert age_ms == 0 and batches


async def test_readers_that_wait_hear_of_it(
    node: QueryNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "SILENT_WAIT_MS", 50)
    poll = await asked(node)
    await asyncio.sleep(0.1)
    assert not poll.done()
    node.silent_ms = SILENT_MS
    node.readers.wake_all()
    assert await asyncio.wait_for(poll, 5) == (SILENT_MS, b"")


async def test_nobody_waits_for_long_meanwhile(
    node: QueryNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "SILENT_WAIT_MS", 300)
    node.silent_ms = SILENT_MS
    poll = await asked(node)
    await asyncio.sleep(0.05)
    assert not poll.done()
    assert await asyncio.wait_for(poll, 5) == (SILENT_MS, b"")
    assert await asyncio.wait_for(await asked(node, 0), 5) == (SILENT_MS, b"")


async def test_what_comes_meanwhile_is_given(node: QueryNode) -> None:
    node.silent_ms = SILENT_MS
    poll = await asked(node)
    node.append(1, [Stored(value=b"w")])
    age_ms, batches = await asyncio.wait_for(poll, 5)
    assert age_ms == SILENT_MS and batches
