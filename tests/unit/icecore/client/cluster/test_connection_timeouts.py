"""Each wait ends with the time that its caller gave it, and says what was in the way."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
import pytest_asyncio

from icecore import Admin, Consumer, Lookup, Producer
from icecore.errors import (
    IcecoreError,
    InvalidRequestError,
    RequestTimeoutError,
    UnavailableError,
    UnsupportedError,
)
from tests.support.fake_cluster import FakeCluster

LONG_S = 20
GIVEN_S = 1.0
ENDED_S = 5.0
"""Far less than any time that nobody gave."""


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster() as cluster:
        cluster.add_topic("t")
        async with asyncio.timeout(LONG_S):
            yield cluster


@pytest.fixture
def silent() -> Iterator[str]:
    """Takes connections and never says anything, as a stopped process does."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def hang(cluster: FakeCluster, *wanted: str) -> None:
    async def wait(node: int, method: str) -> None:
        if method in wanted:
            await asyncio.Event().wait()

    cluster.before_call = wait


async def fails_in_time(call: Callable[[], Awaitable[Any]], error: type[Exception]) -> str:
    """Expect the call to fail in time, and return the text of its error."""
    began = time.monotonic()
    with pytest.raises(error) as caught:
        await call()
    assert time.monotonic() - began < ENDED_S
    return str(caught.value)


async def consume(bootstrap: str, **settings: Any) -> None:
    async with Consumer(bootstrap, "t", timeout_s=GIVEN_S, **settings):
        raise AssertionError("it has started")


async def produce(bootstrap: str, **settings: Any) -> None:
    async with Producer(bootstrap, delivery_timeout_ms=GIVEN_S * 1000, **settings) as producer:
        await producer.send_and_wait("t", b"0")


async def take_name(bootstrap: str) -> None:
    await produce(bootstrap, producer_name="n")


async def describe(bootstrap: str) -> None:
    async with Admin(bootstrap, timeout_s=GIVEN_S) as admin:
        await admin.describe_cluster()


async def find(bootstrap: str) -> None:
    async with Lookup(bootstrap, "t", timeout_s=GIVEN_S) as lookup:
        await lookup.find()


EVERYONE = [consume, produce, take_name, describe, find]


@pytest.mark.parametrize("use", EVERYONE)
async def test_nobody_listens_at_the_bootstrap(use: Callable[[str], Awaitable[None]]) -> None:
    said = await fails_in_time(lambda: use("127.0.0.1:9"), IcecoreError)
    if use is not find:  # which says what to do
        assert said == "can't reach the coordinator at 127.0.0.1:9: Connection refused"


@pytest.mark.parametrize("use", EVERYONE)
async def test_the_bootstrap_says_nothing(
    silent: str, use: Callable[[str], Awaitable[None]]
) -> None:
    await fails_in_time(lambda: use(silent), IcecoreError)


async def test_a_server_without_the_method_is_none_of_ours(cluster: FakeCluster) -> None:
    said = await fails_in_time(lambda: describe(cluster.addresses[1]), UnsupportedError)
    assert said.startswith(f"{cluster.addresses[1]} does not answer as a server of icecore")


async def test_a_node_that_hangs_holds_nobody_beyond_the_delivery_timeout(
    cluster: FakeCluster,
) -> None:
    hang(cluster, "_Produce")
    await fails_in_time(lambda: produce(cluster.bootstrap, net=cluster.net), RequestTimeoutError)
    hang(cluster, "_InitProducer")
    await fails_in_time(lambda: produce(cluster.bootstrap, net=cluster.net), IcecoreError)
    await fails_in_time(
        lambda: produce(cluster.bootstrap, net=cluster.net, producer_name="n"), IcecoreError
    )


async def test_a_node_that_hangs_while_offsets_are_looked_up(cluster: FakeCluster) -> None:
    hang(cluster, "_ListOffsets")
    said = await fails_in_time(
        lambda: consume(cluster.bootstrap, net=cluster.net), RequestTimeoutError
    )
    assert "t" in said


# --- flush and close ----------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["_Produce", "GetMetadata"])
async def test_flush_and_close_end_in_time(cluster: FakeCluster, method: str) -> None:
    hang(cluster, method)
    producer = Producer(cluster.bootstrap, net=cluster.net)
    await producer.start()
    handles: list[Any] = [producer.send("t", b"0"), producer.send_batch("t", [b"1", b"2"])]
    said = await fails_in_time(lambda: producer.flush(0.05), TimeoutError)
    assert said == "3 records have no outcome after 0.05 s"
    assert producer.buffered_bytes  # they are still sent
    await fails_in_time(lambda: producer.close(timeout_s=0.05), TimeoutError)
    for handle in handles:
        with pytest.raises(IcecoreError) as caught:
            await handle
        assert caught.value.indeterminate
    with pytest.raises(UnavailableError):
        producer.send("t", b"3")
    await producer.close()


async def test_who_flushes_again_loses_nothing(cluster: FakeCluster) -> None:
    may_go_on = asyncio.Event()

    async def wait(node: int, method: str) -> None:
        if method == "_Produce":
            await may_go_on.wait()

    cluster.before_call = wait
    async with Producer(cluster.bootstrap, net=cluster.net) as producer:
        handle = producer.send("t", b"0")
        await fails_in_time(lambda: producer.flush(0), TimeoutError)
        may_go_on.set()
        await producer.flush(LONG_S)
        assert (await handle).offset == 0
        await producer.flush(0)  # nothing is open


@pytest.mark.parametrize("wrong", ["1", -1, float("nan"), True, 1e30, [1]])
async def test_a_timeout_that_is_none_changes_nothing(cluster: FakeCluster, wrong: Any) -> None:
    async with Producer(cluster.bootstrap, net=cluster.net) as producer:
        for call in (producer.flush, producer.close):
            with pytest.raises((TypeError, InvalidRequestError), match="timeout_s"):
                await call(wrong)
        await producer.send_and_wait("t", b"0")
