"""Random wrong arguments, several at once, of producers on both APIs: no hang, no lost neighbour.

The tables of ``test_checks.py`` change one argument at a time. Here all of them are drawn from odd
values, before and after the topic is known; the seed of a failure is printed.
"""

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
import pytest_asyncio

from icecore import Producer, blocking
from icecore.errors import IcecoreError
from tests.support import rotation
from tests.support.fake_cluster import FakeCluster

LONG_S = 30
CALLS = 150
REFUSED = (TypeError, ValueError, IcecoreError)
SIMPLE = (
    *(None, True, 1.5, float("nan"), float("inf"), "x", "", "\ud800", b"x", b"", 0, 1, 2, -1),
    *(10**30, 1 << 63, -(1 << 63) - 1, np.int64(1), np.float64(1), object(), bytearray(b"x")),
    *(datetime(2026, 1, 1, tzinfo=UTC), memoryview(b"x")),
)
SEND = ("topic", "value", "key", "tags", "headers", "timestamp_ms", "partition", "on_delivery")
BATCH = ("topic", "values", "keys", "tags", "headers", "timestamps_ms", "partition")
SEEDS = rotation.take("unit: seeds of wrong arguments", range(6), 2)


def odd(chance: random.Random, depth: int = 2) -> Any:
    """A value of any type, lists and mappings of such included."""
    kind = chance.randrange(6) if depth else 5
    if kind == 0:
        return [odd(chance, depth - 1) for _ in range(chance.randrange(3))]
    if kind == 1:
        return tuple(odd(chance, depth - 1) for _ in range(chance.randrange(3)))
    if kind == 2:
        return {chance.choice(("a", b"a", 1, None)): odd(chance, depth - 1)}
    return chance.choice(SIMPLE)


def call_of(chance: random.Random) -> tuple[str, dict[str, Any]]:
    """A method and its arguments, at least one of them odd."""
    name = chance.choice(("send", "send_batch"))
    names = SEND if name == "send" else BATCH
    good = {"topic": "t", names[1]: b"v" if name == "send" else [b"v"]}
    strange = chance.sample(names, chance.randint(1, 3))
    return name, good | {each: odd(chance) for each in strange}


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    unheard: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
    async with FakeCluster() as cluster:
        cluster.add_topic("t", 2)
        yield cluster
    assert not unheard


@pytest.mark.parametrize("is_known", [False, True], ids=["unknown topic", "known topic"])
@pytest.mark.parametrize("seed", SEEDS)
async def test_asyncio(cluster: FakeCluster, seed: int, is_known: bool) -> None:
    chance = random.Random(seed)
    producer = Producer(cluster.bootstrap, net=cluster.net, delivery_timeout_ms=500)
    await producer.start()
    async with asyncio.timeout(LONG_S):
        if is_known:
            await producer.send_and_wait("t", b"first")
        taken, good = [], []
        for _ in range(CALLS):
            name, given = call_of(chance)
            try:
                taken.append((given, getattr(producer, name)(**given)))
            except REFUSED as error:
                assert str(error), f"seed {seed}: {name}({given})"
            good.append(producer.send("t", b"good", key=b"k", tags=["a"]))
        assert len([await handle for handle in good]) == CALLS
        for given, handle in taken:
            try:
                await handle
            except REFUSED as error:
                assert str(error), f"seed {seed}: {given}"
        await producer.flush()
        assert producer.buffered_bytes == 0, f"seed {seed}"
        await producer.close()


@pytest.fixture
def served() -> Iterator[str]:
    """The bootstrap of a cluster on a thread of its own."""
    started, stop = threading.Event(), threading.Event()
    found: list[str] = []

    async def serve() -> None:
        async with FakeCluster() as fake:
            fake.add_topic("t", 2)
            found.append(fake.bootstrap)
            started.set()
            await asyncio.to_thread(stop.wait)

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert started.wait(LONG_S)
    yield found[0]
    stop.set()
    thread.join()


@pytest.mark.parametrize("seed", SEEDS[:1])
def test_blocking(served: str, seed: int) -> None:
    chance = random.Random(seed)
    with blocking.Producer(served, delivery_timeout_ms=500) as producer:
        taken, good = [], []
        for _ in range(CALLS // 3):
            name, given = call_of(chance)
            try:
                found: Any = getattr(producer, name)(**given)
                if name == "send":
                    taken.append((given, found))
            except REFUSED as error:
                assert str(error), f"seed {seed}: {name}({given})"
            good.append(producer.send("t", b"good", key=b"k", tags=["a"]))
        producer.flush(timeout_s=LONG_S)
        for handle in good:
            assert handle.result(LONG_S).topic == "t"
        for given, handle in taken:
            try:
                handle.result(LONG_S)
            except REFUSED as error:
                assert str(error), f"seed {seed}: {given}"
