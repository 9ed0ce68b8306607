"""The sender chooses which batches share a request, and lets no batch wait long for others."""

import asyncio

import pytest

from icecore import Producer
from icecore.client.produce import sender
from icecore.client.produce.batches import Batch, SendHandle
from icecore.client.produce.produce_request import ProduceRequest
from icecore.errors import IcecoreError, RequestTimeoutError, UnavailableError
from tests.support.fake_cluster import FakeCluster


async def error_of(handle: SendHandle) -> IcecoreError | None:
    """Return why a record was given up."""
    try:
        await handle
    except IcecoreError as error:
        return error
    return None


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


async def test_without_linger_one_turn_of_the_loop_is_one_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It goes out as soon as the program lets go, and whoever waits goes on with the outcome."""
    requests: list[int] = []
    start = ProduceRequest.start

    def counted(request: ProduceRequest) -> None:
        requests.append(len(request.entries))
        start(request)

    monkeypatch.setattr(ProduceRequest, "start", counted)
    async with FakeCluster(nodes=1) as cluster:
        cluster.add_topic("t", 3)
        async with Producer(cluster.bootstrap, net=cluster.net, linger_ms=0) as p:
            await p.send_and_wait("t", b"known", partition=0)
            requests.clear()
            handles = [p.send("t", b"record", partition=n) for n in (0, 1, 2)]
            assert not requests
            await asyncio.sleep(0)
            assert requests == [3]
            assert [(await handle).offset for handle in handles] == [1, 0, 0]


async def test_who_waits_for_a_batch_goes_on_in_the_turn_after_its_outcome() -> None:
    batch = Batch(0.0, asyncio.get_running_loop())
    given_up, kept = (asyncio.create_task(batch.wait()) for _ in range(2))
    await asyncio.sleep(0)
    given_up.cancel()
    await asyncio.sleep(0)
    assert len(batch.waiters) == 1, "who gives up leaves nothing behind"
    batch.fail(UnavailableError("no node"))
    await asyncio.sleep(0)
    assert given_up.cancelled() and kept.done()
    with pytest.raises(UnavailableError):
        await kept


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


@pytest.mark.parametrize("is_native", [True, False])
async def test_what_finds_no_place_in_a_request_is_given_up_in_time(is_native: bool) -> None:
    """A node that hangs holds a few requests until they are given up: then the others are old."""
    async with FakeCluster(nodes=1, is_native=is_native) as cluster:
        partitions = cluster.add_topic("t", 60)
        may_answer = asyncio.Event()

        async def hang(_: int, method: str) -> None:
            if method == "_Produce":
                await may_answer.wait()

        async with Producer(
            cluster.bootstrap,
            net=cluster.net,
            linger_ms=0,
            request_bytes_max=1000,
            delivery_timeout_ms=1_500,
        ) as p:
            for number in range(60):
                await p.send_and_wait("t", b"known", partition=number)
            cluster.before_call = hang
            handles = [p.send("t", bytes(900), partition=number) for number in range(60)]
            async with asyncio.timeout(6):  # twice as long and a little, not twelve times
                found = await asyncio.gather(*map(error_of, handles))
            assert {type(each) for each in found} == {RequestTimeoutError}
            cluster.before_call = None
            may_answer.set()
            for number in range(60):
                await p.send_and_wait("t", b"last", partition=number)
    assert {each.tail.end for each in partitions} <= {2, 3}
