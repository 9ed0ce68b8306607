"""Random wrong arguments of every public method of every client, asyncio and blocking.

Methods and their parameters come from the signatures, so that a new one is tried without a row
here. Each call ends within its time, with a result or with an error that says something; then the
same client still does what it is for, and no task or thread has failed unheard.
"""

import asyncio
import gc
import inspect
import random
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest
import pytest_asyncio

import icecore
from icecore import blocking
from icecore.blocking.background import background
from icecore.client.conditions import SearchArguments
from icecore.client.produce.options import RecordArguments
from icecore.errors import UnavailableError
from icecore.topic_settings import TopicFields
from tests.support.fake_cluster import FakeCluster
from tests.unit.icecore.client.test_checks_random import LONG_S, REFUSED, odd

CALLS = 25
ENDED = (*REFUSED, TimeoutError)
"""A flush may be given no time, and says so; a call that hangs is a TimeoutError without a text."""
CLASSES = ("Producer", "Consumer", "Lookup", "Admin")
LEFT_OUT = {"start", "close", "ready"}
"""They take no arguments, or end the client; what `close` takes is tried at the end."""
SETTINGS: dict[str, dict[str, Any]] = {
    "Producer": {"delivery_timeout_ms": 500},
    "Consumer": {"topic": "t", "start": "earliest", "stop_at_end": True, "timeout_s": 2},
    "Lookup": {"topic": "t", "timeout_s": 2},
    "Admin": {"timeout_s": 1},
}
NEEDED: dict[str, Any] = {
    "topic": "t",
    "name": "n",
    "value": b"v",
    "values": [b"v"],
    "partition": 0,
    "partitions": 1,
    "position": "earliest",
    "offset": 0,
    "append_time": 0,
    "before_offsets": {0: 0},
    "segment_id": 1,
    "segment_ids": [1, 2],
    "node_id": 1,
    "hold_ms": 1,
    "lease_id": bytes(16),
    "store_id": bytes(16),
    "plan": {},
    "path": "/nowhere/backup",
    "settings": None,
}
"""A good value for each parameter that has no default, by its name."""
KEYWORDS = {"arguments": SearchArguments, "fields": TopicFields, "record": RecordArguments}
"""The keyword arguments that stand behind the ** of a signature."""


def methods(kind: type) -> dict[str, tuple[dict[str, Any], list[str]]]:
    """Return the arguments that each method needs, and the names of all its parameters."""
    found = {}
    for name, method in vars(kind).items():
        if name.startswith("_") or isinstance(method, property) or name in LEFT_OUT:
            continue
        needed, names = {}, []
        for each in list(inspect.signature(method).parameters.values())[1:]:
            if each.kind is inspect.Parameter.VAR_KEYWORD:
                names += KEYWORDS[each.name].__annotations__
                continue
            names.append(each.name)
            if each.default is inspect.Parameter.empty:
                needed[each.name] = NEEDED[each.name]
        found[name] = (needed, names)
    return found


def calls(kind: type, chance: random.Random) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every method in turn, with up to three odd arguments."""
    known = methods(kind)
    for _ in range(CALLS):
        for name, (needed, names) in known.items():
            strange = chance.sample(names, min(len(names), chance.randint(0, 3)))
            yield name, needed | {each: odd(chance) for each in strange}


def test_all_of_both_apis_is_tried() -> None:
    for name in CLASSES:
        here, there = (methods(getattr(module, name)) for module in (icecore, blocking))
        assert here and there
        both = here.keys() & there.keys()
        assert {each: here[each] for each in both} == {each: there[each] for each in both}
        assert here.keys() ^ there.keys() <= {"send_wait", "arrow_reader", "save_position"}


# --- asyncio --------------------------------------------------------------------------------------


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    unheard: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
    async with FakeCluster() as cluster:
        cluster.add_topic("t", 2)
        yield cluster
    gc.collect()
    assert not unheard


async def outcome(call: Callable[[], Any]) -> None:
    found = call()
    if isinstance(found, Awaitable):
        await found
    elif hasattr(found, "__aiter__"):
        async for _ in found:
            pass


async def works(client: Any) -> None:
    """Do what the client is for, and check the result."""
    if isinstance(client, icecore.Producer):
        assert (await client.send_and_wait("t", b"good", key=b"k")).topic == "t"
    elif isinstance(client, icecore.Consumer):
        for number in (0, 1):
            await client.seek(number, "earliest")
        assert (await client.to_arrow()).num_rows >= 2
    elif isinstance(client, icecore.Lookup):
        assert (await client.find()).complete
    else:
        assert (await client.describe_topics(["t"]))[0].name == "t"


@pytest.mark.parametrize("is_used", [False, True], ids=["new", "used"])
@pytest.mark.parametrize("name", CLASSES)
async def test_asyncio(cluster: FakeCluster, name: str, is_used: bool) -> None:
    chance = random.Random(f"{name} {is_used}")
    kind = getattr(icecore, name)
    async with icecore.Producer(cluster.bootstrap, net=cluster.net) as producer:
        for partition in (0, 1):
            await producer.send_and_wait("t", b"first", partition=partition)
    async with kind(cluster.bootstrap, net=cluster.net, **SETTINGS[name]) as client:
        if is_used:
            await works(client)
        for method, given in calls(kind, chance):
            try:
                async with asyncio.timeout(LONG_S):
                    await outcome(lambda m=method, g=given: getattr(client, m)(**g))  # type: ignore[misc]
            except ENDED as error:
                assert str(error), f"{method}({given})"
        async with asyncio.timeout(LONG_S):
            await works(client)


# --- threads --------------------------------------------------------------------------------------


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


@pytest.fixture
def unheard() -> Iterator[None]:
    """Nothing on the loop of the blocking clients fails without being heard."""
    found: list[dict[str, Any]] = []
    loop = background.loop
    loop.call_soon_threadsafe(loop.set_exception_handler, lambda _, context: found.append(context))
    yield
    gc.collect()
    loop.call_soon_threadsafe(loop.set_exception_handler, None)
    assert not found


def blocking_outcome(found: Any) -> None:
    if isinstance(found, blocking.producer.SendHandle):
        found.result(LONG_S)
    elif isinstance(found, pa.RecordBatchReader):
        found.read_all()
    elif isinstance(found, Iterator):
        list(found)


def blocking_works(client: Any) -> None:
    """Do what the client is for, and check the result."""
    if isinstance(client, blocking.Producer):
        assert client.send_and_wait("t", b"good", key=b"k").topic == "t"
    elif isinstance(client, blocking.Consumer):
        for number in (0, 1):
            client.seek(number, "earliest")
        assert client.to_arrow().num_rows >= 2
    elif isinstance(client, blocking.Lookup):
        assert client.find().complete
    else:
        assert client.describe_topics(["t"])[0].name == "t"


@pytest.mark.parametrize("is_used", [False, True], ids=["new", "used"])
@pytest.mark.parametrize("name", CLASSES)
def test_blocking(served: str, unheard: None, name: str, is_used: bool) -> None:
    chance = random.Random(f"{name} {is_used}")
    kind = getattr(blocking, name)
    with blocking.Producer(served) as producer:
        for partition in (0, 1):
            producer.send_and_wait("t", b"first", partition=partition)
    with ThreadPoolExecutor(1) as caller, kind(served, **SETTINGS[name]) as client:
        if is_used:
            blocking_works(client)

        def call(method: str, given: dict[str, Any]) -> None:
            blocking_outcome(getattr(client, method)(**given))

        for method, given in calls(kind, chance):
            try:
                caller.submit(call, method, given).result(LONG_S)
            except ENDED as error:
                assert str(error), f"{method}({given})"
        caller.submit(blocking_works, client).result(LONG_S)
        if name == "Producer":
            for wrong in ("x", -1, float("nan"), True):
                with pytest.raises(REFUSED):
                    client.close(wrong)


@pytest.mark.parametrize("name", CLASSES)
async def test_a_closed_client_says_so_at_once(cluster: FakeCluster, name: str) -> None:
    """It would wait for its timeout, and blame the network."""
    kind = getattr(icecore, name)
    async with icecore.Producer(cluster.bootstrap, net=cluster.net) as producer:
        for partition in (0, 1):
            await producer.send_and_wait("t", b"first", partition=partition)
    async with kind(cluster.bootstrap, net=cluster.net, **SETTINGS[name]) as client:
        await works(client)
    async with asyncio.timeout(LONG_S):
        with pytest.raises(UnavailableError, match="is closed"):
            await works(client)
