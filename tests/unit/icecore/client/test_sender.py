"""Which batches share a request, and that nobody waits long for the others."""

import asyncio

import pytest

from icecore import Producer
from icecore.client import sender
from tests.support.fake_cluster import FakeCluster


async def test_small_requests_wait_for_each_other_but_not_for_long() -> None:
    """A request that gets no answer holds the next ones back for a moment only."""
    async with FakeCluster(nodes=1) as cluster:
        cluster.add_topic("t", 4)
        may_answer, is_held = asyncio.Event(), asyncio.Event()
        requests = 0

        async def hold_first(_: int, method: str) -> None:
            nonlocal requests
            if method == "_Produce":
                requests += 1
                if requests == 1:
                    is_held.set()
                    await may_answer.wait()

        async with Producer(cluster.bootstrap, net=cluster.net, linger_ms=0) as p:
            await p.send_and_wait("t", b"known", partition=0)
            cluster.before_call = hold_first
            first = p.send("t", b"first", partition=0)
            await is_held.wait()
            others = [p.send("t", b"other", partition=n) for n in (1, 2, 3)]
            assert [(await handle).offset for handle in others] == [0, 0, 0]
            assert requests == 2
            assert not first.is_done
            may_answer.set()
            assert (await first).offset == 1
            await p.send_and_wait("t", b"last", partition=3)


async def test_closing_while_a_request_is_held_back() -> None:
    """No timer of a closed producer sends anything."""
    async with FakeCluster(nodes=1) as cluster:
        (partition, other) = cluster.add_topic("t", 2)
        async with Producer(cluster.bootstrap, net=cluster.net, linger_ms=0) as p:
            await p.send_and_wait("t", b"0", partition=0)
            p.send("t", b"1", partition=0)
            await asyncio.sleep(0)
            p.send("t", b"2", partition=1)
        await asyncio.sleep(0.05)
        assert (partition.tail.end, other.tail.end) == (2, 1)


async def test_a_request_holds_no_more_batches_than_a_node_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever room its bytes leave: small batches of many partitions go in several requests."""
    monkeypatch.setattr(sender, "_BATCHES_PER_REQUEST", 3)
    async with FakeCluster(nodes=1) as cluster:
        partitions = cluster.add_topic("t", 8)
        requests = 0

        async def count(_: int, method: str) -> None:
            nonlocal requests
            requests += method == "_Produce"

        async with Producer(cluster.bootstrap, net=cluster.net, linger_ms=50) as p:
            await p.send_and_wait("t", b"known", partition=0)
            cluster.before_call = count
            for number in range(8):
                p.send("t", b"one", partition=number)
            await p.flush()
        assert requests == 3
        assert [each.tail.end for each in partitions] == [2, *[1] * 7]
