"""Wrong arguments of every public call: an error at once, nobody else is hurt, and nothing hangs.

One table per class says which of the odd values below each argument takes; all others must be
refused with a TypeError, a ValueError or an error of ours, before anything was sent.
"""

import asyncio
import gc
import inspect
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import pytest_asyncio

from icecore import Admin, Consumer, Lookup, Producer, blocking
from icecore.codec.batch import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS
from icecore.dev import LocalCluster
from icecore.errors import (
    ConfigurationError,
    IcecoreError,
    InvalidRequestError,
    RecordTooLargeError,
)
from icecore.topic_settings import TopicSettings
from tests.support.fake_cluster import FakeCluster

LONG_S = 30
REFUSED = (TypeError, ValueError, IcecoreError)

ODD: dict[str, Any] = {
    "none": None,
    "true": True,
    "fraction": 1.5,
    "nan": float("nan"),
    "infinite": float("inf"),
    "text": "x",
    "empty text": "",
    "surrogate": "\ud800",
    "bytes": b"x",
    "bytearray": bytearray(b"x"),
    "view": memoryview(b"x"),
    "zero": 0,
    "one": 1,
    "negative": -1,
    "huge": 10**30,
    "number of numpy": np.int64(1),
    "empty list": [],
    "list": [1],
    "nested": [["a"]],
    "pair": [("a", "text")],
    "short pair": [("a",)],
    "dict": {"a": 1},
    "set": {1},
    "object": object(),
    "time": datetime(2026, 1, 1, tzinfo=UTC),
    "time without zone": datetime(2026, 1, 1),
}
INTEGERS = ("zero", "one", "number of numpy")


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    unheard: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unheard.append(context))
    async with FakeCluster() as cluster:
        cluster.add_topic("t", 2)
        async with asyncio.timeout(LONG_S):
            yield cluster
    gc.collect()  # a task that failed and that nobody asked says so when it goes
    assert not unheard


def wrong(*taken: str) -> list[Any]:
    """All odd values but these."""
    assert set(taken) <= ODD.keys()
    return [value for name, value in ODD.items() if name not in taken]


async def refuse(what: str, value: Any, call: Callable[[], Any]) -> None:
    """The call must raise, as it is called or when it is awaited."""
    try:
        found = call()
        if isinstance(found, Awaitable):
            found = await found
    except REFUSED as error:
        assert str(error), f"{what}={value!r}: an error without a text"
        return
    raise AssertionError(f"{what}={value!r} was taken: {found!r}")


# --- records ------------------------------------------------------------------------------------

YEAR_0, YEAR_10000 = MIN_TIMESTAMP_MS - 1, MAX_TIMESTAMP_MS + 1
"""Times that a leader refuses with the whole batch, and the other records in it."""
SEND: dict[str, list[Any]] = {
    "topic": wrong("text"),
    "value": wrong("none", "bytes"),
    "key": wrong("none", "bytes"),
    "tags": [*wrong("empty list"), ["a", "\ud800"], ["a", 1], ("a", b"b"), {"a": "b"}],
    "headers": [*wrong("empty list"), [("a", "b")], {"a": "b"}, [("\ud800", b"")], [(1, b"")]],
    "timestamp_ms": [*wrong("none", "negative", *INTEGERS), 1 << 63, YEAR_10000, YEAR_0],
    "partition": [*wrong("none", *INTEGERS), 2],
    "on_delivery": wrong("none"),
}
BATCH: dict[str, list[Any]] = {
    "topic": wrong("text"),
    "values": [*wrong(), [b"a", 1], ["\ud800"], [[b"a"]], [bytearray(b"a")], pa.table({"v": [1]})],
    "keys": [*wrong("none"), [1], [b"a", b"b"]],
    "tags": [
        *wrong("none", "nested", "pair", "short pair"),
        ["abc"],
        [[1]],
        [None],
        [["\ud800"]],
        [("a",), ("b",)],
    ],
    "headers": [*wrong("none"), [[("a", "b")]], [None], [[("a",)]], [{"a": 1}]],
    "timestamps_ms": [
        *wrong("none", "list"),
        *([1.5], ["1"], [1 << 63], [None], [[1]], [1, 2]),
        *([YEAR_10000], [YEAR_0], np.array([YEAR_10000]), np.array(["10000"], "datetime64[Y]")),
    ],
    "partition": [*wrong("none", *INTEGERS), 2],
}


def arguments(name: str, value: Any) -> dict[str, Any]:
    return {"topic": "t", "value": b"bad", name: value}


def batch_arguments(name: str, value: Any) -> dict[str, Any]:
    return {"topic": "t", "values": [b"bad"], name: value}


@pytest.mark.parametrize("is_known", [False, True], ids=["unknown topic", "known topic"])
@pytest.mark.parametrize("name", SEND)
async def test_send(cluster: FakeCluster, name: str, is_known: bool) -> None:
    producer = Producer(cluster.bootstrap, net=cluster.net, linger_ms=20)
    await producer.start()
    if is_known:
        await producer.send_and_wait("t", b"first")
    good = []
    for value in SEND[name]:
        await refuse(name, value, lambda value=value: producer.send(**arguments(name, value)))
        good.append(producer.send("t", b"good", key=b"k", tags=["a"], headers={"h": b"v"}))
    assert len([await handle for handle in good]) == len(SEND[name])
    await producer.flush()
    assert producer.buffered_bytes == 0
    await producer.close()


@pytest.mark.parametrize("is_known", [False, True], ids=["unknown topic", "known topic"])
@pytest.mark.parametrize("name", BATCH)
async def test_send_batch(cluster: FakeCluster, name: str, is_known: bool) -> None:
    producer = Producer(cluster.bootstrap, net=cluster.net, linger_ms=20)
    await producer.start()
    if is_known:
        await producer.send_and_wait("t", b"first")
    good = []
    for value in BATCH[name]:

        def send(value: Any = value) -> Any:
            return producer.send_batch(**batch_arguments(name, value))

        await refuse(name, value, send)
        good.append(producer.send_batch("t", [b"good"], keys=[b"k"]))
    for handle in good:
        await handle
    await producer.flush()
    assert producer.buffered_bytes == 0
    await producer.close()


ROWS: dict[str, dict[str, Any]] = {
    "no value": {"key": [b"a"]},
    "values are numbers": {"value": [1]},
    "keys are numbers": {"value": [b"a"], "key": [1]},
    "a null time": {"value": [b"a"], "timestamp_ms": pa.array([None], pa.int64())},
    "a time with a fraction": {"value": [b"a"], "timestamp_ms": [1.5]},
    "a time as text": {"value": [b"a"], "timestamp_ms": ["1"]},
    "tags are a text": {"value": [b"a"], "tags": ["a"]},
    "a null tag": {"value": [b"a"], "tags": [[None]]},
    "headers are texts": {"value": [b"a"], "headers": [["a"]]},
    "a null header name": {"value": [b"a"], "headers": [[{"key": None, "value": b""}]]},
    "no rows": {"value": pa.array([], pa.binary())},
    "a large record": {"value": [bytes((1 << 20) + 1)]},
}


@pytest.mark.parametrize("case", ROWS)
async def test_rows_that_are_refused_leave_the_others_alone(
    cluster: FakeCluster, case: str
) -> None:
    async with Producer(cluster.bootstrap, net=cluster.net, linger_ms=20) as producer:
        assert (await producer.send_and_wait("t", b"known", partition=0)).offset == 0
        good = [producer.send_batch("t", pa.record_batch({"value": [b"a"]}), partition=0)]
        await asyncio.sleep(0)
        for kind in (pa.record_batch, pa.table):
            with pytest.raises((InvalidRequestError, RecordTooLargeError)):
                producer.send_batch("t", kind(ROWS[case]), partition=0)
        good.append(producer.send_batch("t", pa.table({"value": ["text"]}), partition=0))
        assert [(await handle)[0].base_offset for handle in good] == [1, 2]


async def test_what_is_taken_is_what_was_given(cluster: FakeCluster) -> None:
    """A caller's own lists may change afterwards; numbers of numpy are numbers."""
    async with (
        Producer(cluster.bootstrap, net=cluster.net) as producer,
        Consumer(cluster.bootstrap, "t", net=cluster.net) as consumer,
    ):
        tags, headers, columns = ["a"], {"h": b"v"}, [b"1", b"2"]
        handles: list[Any] = [
            producer.send("t", b"0", tags=tags, headers=headers, partition=np.int64(0)),
            producer.send_batch("t", columns, partition=0),
        ]
        tags.append("b")
        headers["i"] = b"w"
        columns.clear()
        for handle in handles:
            await handle
        found = [await anext(consumer) for _ in range(3)]
        assert [record.value for record in found] == [b"0", b"1", b"2"]
        assert (found[0].tags, found[0].headers) == (("a",), (("h", b"v"),))


# --- constructors and other calls ---------------------------------------------------------------

SIZES = wrong("one", "number of numpy")
TIMES = wrong("fraction", "one", "zero")

POSITIONS = [*wrong("zero", "one", "negative", "time"), "first", "2026-13-01", -(1 << 63)]

PRODUCER: dict[str, list[Any]] = {
    "bootstrap": [*wrong(), "host", "host:", "host:port", ","],
    "acks": [*wrong(), 1, "some"],
    "compression": [*wrong(), "gzip"],
    "linger_ms": TIMES,
    "batch_bytes": SIZES,
    "buffer_bytes": SIZES,
    "request_bytes_max": SIZES,
    "request_timeout_ms": SIZES,
    "delivery_timeout_ms": wrong("fraction", "one"),
    "idempotent": wrong("true"),
    "producer_name": wrong("text", "empty text", "surrogate"),
    "producer_topics": [*wrong("empty list"), ["t"]],
    "on_retry": wrong("none"),
}
CONSUMER: dict[str, list[Any]] = {
    "bootstrap": PRODUCER["bootstrap"],
    "topic": wrong("text"),
    "topics": [*wrong("none"), ["t"]],  # only one of the three
    "pattern": wrong("none"),
    "position": [*wrong("none", "text"), "a/b", "x" * 250],
    "save_interval_s": [*wrong("none", "one", "fraction"), 0.01],
    "partitions": wrong("none", "empty list", "list", "set"),
    "start": POSITIONS,
    "until": [each for each in POSITIONS if each is not None],
    "stop_at_end": wrong("true"),
    "on_out_of_range": wrong(),
    "on_recreated": wrong(),
    "on_corrupt": wrong(),
    "keys": [*wrong("none"), ["a"], [[b"a"]], [b"%d" % n for n in range(1_000_000)]],
    "tags_any": [*wrong("none"), [b"a"], ["\ud800"], [str(n) for n in range(101)]],
    "tags_all": wrong("none"),
    "tags_none": wrong("none"),
    "headers": [*wrong("none"), {"a": None}, [("a", b"b", b"c")]],
    "max_bytes": SIZES,
    "fetch_bytes": SIZES,
    "max_wait_ms": wrong("zero", "one", "number of numpy"),
    "timeout_s": TIMES,
    "on_retry": wrong("none"),
}
POLL = {"timeout_s": TIMES, "max_records": SIZES}
SEEK = {
    "partition": [*wrong(*INTEGERS), 2],
    "position": POSITIONS,
    "topic": [*wrong("none"), "other"],
}
ABOUT_TOPIC = ("position", "lag", "high_watermarks", "skipped_records")
"""Methods of a consumer that take a topic."""
ADMIN: dict[str, dict[str, list[Any]]] = {
    "create_topic": {
        "name": wrong("text"),
        "settings": wrong("none"),
        "if_not_exists": wrong("true"),
        "partitions": wrong("none", *INTEGERS),
        "replication_factor": wrong("none", *INTEGERS),
        "min_insync_replicas": wrong("none", *INTEGERS),
        "flush_mode": wrong("none"),
        "segment_bytes": wrong("none", *INTEGERS),
        "segment_age_ms": wrong("none", *INTEGERS),
        "partitioner": wrong("none", "text", "empty text", "surrogate"),
        "record_bytes_max": wrong("none", *INTEGERS),
        "batch_bytes_max": wrong("none", *INTEGERS),
        "uncompressed_bytes_max": wrong("none", *INTEGERS),
        "delete_grace_ms": wrong("none", *INTEGERS),
        "indexed_headers": [
            *wrong("none", "empty list"),
            [""],
            ["h", "h"],
            ["h" * 250],
            ["\ud800"],
            [f"{n}" for n in range(17)],
        ],
        "unknown": wrong(),
    },
    "describe_topics": {"names": wrong("empty list"), "deleted": wrong("true")},
    "alter_topic": {"name": wrong("text"), "partitions": wrong(*INTEGERS)},
    "add_partitions": {"name": wrong("text"), "partitions": wrong("one", "number of numpy")},
    "delete_topic": {"name": wrong("text"), "now": wrong("true"), "topic_id": wrong("bytes")},
    "undelete_topic": {
        "name": wrong("text"),
        "topic_id": wrong("bytes"),
        "new_name": wrong("text", "empty text"),
    },
    "roll_topic": {"name": wrong("text")},
    "accept_disk": {"node_id": wrong("one", "number of numpy")},
    "remove_node": {"node_id": wrong("one", "number of numpy"), "disk_gone": wrong("true")},
    "drain_node": {
        "node_id": wrong("one", "number of numpy"),
        "allow_fewer_copies": wrong("true"),
    },
    "balance_cluster": {"dry_run": wrong("true")},
    "undrain_node": {"node_id": wrong("one", "number of numpy")},
    "adopt_metadata": {
        "dry_run": wrong("true"),
        "without_nodes": wrong("empty list", "list"),
        "skip_gaps": wrong("true"),
        "bucket": [*wrong("none", "empty list"), [5], [["a"]], [{}], [{"partitions": "x"}]],
    },
    "backup_metadata": {"path": wrong("text", "empty text")},
    "delete_records": {
        "topic": wrong("text"),
        "before_offsets": [*wrong(), {-1: 0}, {0: -1}, {0: 1.5}, {"0": 0}],
        "dry_run": wrong("true"),
    },
    "list_segments": {
        "topic": wrong("text", "empty text"),
        "partitions": wrong("none", "empty list", "list", "set"),
        "from_offset": wrong(*INTEGERS),
    },
    "declare_lost": {
        "topic": wrong("text"),
        "partition": wrong(*INTEGERS),
        "segment_id": wrong("one", "number of numpy"),
    },
    "recover_unclean": {
        "topic": wrong("text"),
        "partition": wrong(*INTEGERS),
        "segment_id": wrong("one", "number of numpy"),
    },
    "hold_snapshot": {
        "topic": wrong("text"),
        "hold_ms": wrong("one", "number of numpy"),
        "lease_id": [*wrong("bytes"), b"short"],
        "owner": wrong("text", "empty text"),
    },
    "release_snapshot": {"topic": wrong("text"), "lease_id": wrong("bytes")},
    "describe_tiering": {"topics": wrong("empty list"), "with_copies": wrong("true")},
    "list_positions": {
        "name": wrong("text", "empty text", "surrogate"),
        "topics": wrong("empty list"),
    },
    "reset_position": {
        "name": [*wrong("text"), "a/b", "x" * 250],
        "topic": wrong("text"),
        "position": POSITIONS,
        "partitions": wrong("none", "empty list", "list", "set"),
        "dry_run": wrong("true"),
    },
    "delete_positions": {"name": wrong("text"), "topic": wrong("text", "empty text")},
    "list_producer_names": {},
    "delete_producer_name": {"name": wrong("text")},
    "import_tiered": {"plan": [*wrong(), {}, {"segments": 5}], "settings": wrong("none")},
    "forget_store": {"store_id": [*wrong("bytes"), b"short"]},
    "plan_merges": {"topic": wrong("text"), "target_bytes": wrong("one", "number of numpy")},
    "merge_segments": {
        "topic": wrong("text"),
        "segment_ids": [*wrong("empty list", "list"), ["a"], [0], [1.5], [2**64]],
    },
    "list_offsets": {
        "topic": wrong("text"),
        "position": POSITIONS,
        "partitions": wrong("none", "empty list", "list", "set"),
    },
}
ADMIN_DEFAULTS: dict[str, dict[str, Any]] = {
    "create_topic": {"name": "n"},
    "alter_topic": {"name": "n"},
    "add_partitions": {"name": "n", "partitions": 1},
    "delete_topic": {"name": "n"},
    "undelete_topic": {"name": "n"},
    "declare_lost": {"topic": "t", "partition": 0, "segment_id": 1},
    "recover_unclean": {"topic": "t", "partition": 0, "segment_id": 1},
    "list_offsets": {"topic": "t", "position": "latest"},
    "delete_records": {"topic": "t", "before_offsets": {0: 0}},
    "import_tiered": {"plan": {}, "settings": TopicSettings()},
    "hold_snapshot": {"topic": "t", "hold_ms": 1},
    "release_snapshot": {"topic": "t", "lease_id": bytes(16)},
    "reset_position": {"name": "n", "topic": "t", "position": "latest"},
    "delete_positions": {"name": "n"},
    "forget_store": {"store_id": bytes(16)},
    "plan_merges": {"topic": "t"},
    "merge_segments": {"topic": "t", "segment_ids": [1, 2]},
}
LOCAL_CLUSTER: dict[str, list[Any]] = {
    "folder": wrong("text", "surrogate"),
    "nodes": wrong("one", "number of numpy"),
    "base_port": [*wrong("none", "one", "number of numpy"), 65_535],
    "node_settings": wrong("none", "dict"),
    "coordinator_settings": wrong("none", "dict"),
    "config_path": wrong("none", "text", "empty text", "surrogate"),
    "host": wrong("text", "empty text", "surrogate"),
    "insecure_bind": wrong("true"),
    "with_metrics": wrong("true"),
    "start_timeout_s": TIMES,
    "stop_timeout_s": TIMES,
}


@pytest.mark.parametrize("name", PRODUCER)
async def test_producer(cluster: FakeCluster, name: str) -> None:
    for value in PRODUCER[name]:
        given = {"bootstrap": cluster.bootstrap, "net": cluster.net, name: value}
        await refuse(name, value, lambda given=given: Producer(**given))


@pytest.mark.parametrize("name", CONSUMER)
async def test_consumer(cluster: FakeCluster, name: str) -> None:
    for value in CONSUMER[name]:
        given = {"bootstrap": cluster.bootstrap, "topic": "t", "net": cluster.net, name: value}
        await refuse(name, value, lambda given=given: Consumer(**given))


async def test_poll_and_seek(cluster: FakeCluster) -> None:
    async with Producer(cluster.bootstrap, net=cluster.net) as producer:
        await producer.send_batch("t", [b"0", b"1"], partition=0)
    async with Consumer(cluster.bootstrap, "t", net=cluster.net) as consumer:
        assert (await consumer.poll(LONG_S, 1))[0].value == b"0"
        for name, values in POLL.items():
            for value in values:
                given = {name: value}
                await refuse(name, value, lambda given=given: consumer.poll(**given))
        for name, values in SEEK.items():
            for value in values:
                given = {"partition": 0, "position": 0, name: value}
                await refuse(name, value, lambda given=given: consumer.seek(**given))
        for value in SEEK["topic"]:
            for method in ABOUT_TOPIC:
                with pytest.raises(REFUSED):
                    getattr(consumer, method)(value)
        with pytest.raises(InvalidRequestError, match="no position"):
            await consumer.save_position()
        assert [record.value for record in await consumer.poll(LONG_S)] == [b"1"]


LOOKUP: dict[str, list[Any]] = {
    "keys": CONSUMER["keys"],
    "tags_any": CONSUMER["tags_any"],
    "tags_all": CONSUMER["tags_all"],
    "tags_none": CONSUMER["tags_none"],
    "headers": CONSUMER["headers"],
    "from_event_time": wrong("none", "negative", "time", *INTEGERS),
    "to_event_time": wrong("none", "negative", "time", *INTEGERS),
    "from_append_time": wrong("none", "negative", "time", *INTEGERS),
    "to_append_time": wrong("none", "negative", "time", *INTEGERS),
    "from_offset": wrong(*INTEGERS),
    "to_offset": wrong("none", "one", "number of numpy"),
    "partitions": [*wrong("none", "list", "set"), [2]],
    "newest_first": wrong("true"),
    "max_count": [*wrong("one", "number of numpy"), 10_001],
    "continuation": [each for each in wrong() if each != b""],
}


@pytest.mark.parametrize("name", LOOKUP)
async def test_lookup(cluster: FakeCluster, name: str) -> None:
    async with Lookup(cluster.bootstrap, "t", net=cluster.net) as lookup:
        for value in LOOKUP[name]:
            given = {name: value}

            async def pages(given: dict[str, Any] = given) -> Any:
                return [page async for page in lookup.pages(**given)]

            await refuse(name, value, lambda given=given: lookup.find(**given))
            await refuse(name, value, lambda given=given: lookup.explain(**given))
            await refuse(name, value, pages)
        assert (await lookup.find()).complete
        assert set(inspect.signature(lookup.find).parameters) == LOOKUP.keys()
    for value in TIMES:
        for wait in ("timeout_s", "patience_s"):
            settings: dict[str, Any] = {wait: value}
            await refuse(wait, value, lambda s=settings: Lookup(cluster.bootstrap, "t", **s))


@pytest.mark.parametrize("method", ADMIN)
async def test_admin(cluster: FakeCluster, method: str) -> None:
    async with Admin(cluster.bootstrap, net=cluster.net) as admin:
        before = len(cluster.calls)
        for name, values in ADMIN[method].items():
            for value in values:
                given = {**ADMIN_DEFAULTS.get(method, {}), name: value}
                await refuse(name, value, lambda given=given: getattr(admin, method)(**given))
        assert len(cluster.calls) == before
        with pytest.raises(InvalidRequestError):
            await admin.create_topic("n", TopicSettings(), partitions=1)
        assert (await admin.describe_topics(["t"]))[0].name == "t"
    for value in TIMES:
        await refuse("timeout_s", value, lambda v=value: Admin(cluster.bootstrap, timeout_s=v))


@pytest.mark.parametrize("name", LOCAL_CLUSTER)
async def test_local_cluster(tmp_path: Path, name: str) -> None:
    for value in LOCAL_CLUSTER[name]:
        given = {"folder": tmp_path, name: value}
        await refuse(name, value, lambda given=given: LocalCluster(**given))


# --- threads ------------------------------------------------------------------------------------


@pytest.fixture
def bootstrap() -> Iterator[str]:
    """A cluster on a loop of its own."""
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


def test_blocking_clients(bootstrap: str) -> None:
    with blocking.Producer(bootstrap, linger_ms=20) as producer:
        good = []
        for name, values in SEND.items():
            for value in values:
                with pytest.raises(REFUSED):
                    producer.send(**arguments(name, value)).result(LONG_S)
                with pytest.raises(REFUSED):
                    producer.try_send(**arguments(name, value)).result(LONG_S)
                good.append(producer.send("t", b"good", key=b"k"))
        assert len([handle.result(LONG_S) for handle in good]) == len(good)
        for name, values in BATCH.items():
            for value in values:
                with pytest.raises(REFUSED):
                    producer.send_batch(**batch_arguments(name, value))
        assert producer.send_batch("t", [b"good"])
        producer.flush()
    with blocking.Consumer(bootstrap, "t") as consumer:
        for name, values in POLL.items():
            for value in values:
                with pytest.raises(REFUSED):
                    consumer.poll(**{name: value})
        for name, values in SEEK.items():
            for value in values:
                with pytest.raises(REFUSED):
                    consumer.seek(**{"partition": 0, "position": 0, name: value})
        for value in SEEK["topic"]:
            for method in ABOUT_TOPIC:
                with pytest.raises(REFUSED):
                    getattr(consumer, method)(value)
        with pytest.raises(InvalidRequestError, match="no position"):
            consumer.save_position()
        assert consumer.poll(LONG_S)
    with blocking.Admin(bootstrap) as admin:
        for name, values in ADMIN["create_topic"].items():
            for value in values:
                with pytest.raises(REFUSED):
                    admin.create_topic(**{"name": "n", name: value})
        assert admin.describe_topics(["t"])
    for constructor, table in ((blocking.Producer, PRODUCER), (blocking.Consumer, CONSUMER)):
        for name, values in table.items():
            for value in values[:3]:
                given = {"bootstrap": bootstrap, name: value}
                if constructor is blocking.Consumer:
                    given = {"topic": "t", **given}
                with pytest.raises((TypeError, InvalidRequestError, ConfigurationError)):
                    constructor(**given)
    with blocking.Lookup(bootstrap, "t") as lookup:
        for bad in ({"keys": []}, {"max_count": 0}, {"from_offset": -1}, {"keys": "k"}):
            with pytest.raises(REFUSED):
                lookup.find(**bad)
            with pytest.raises(REFUSED):
                next(lookup.pages(**bad))
        page = lookup.find(keys=[b"k"], max_count=5)
        assert [record.value for record in page.records] == [b"good"] * 5
        count = sum(len(each.records) for each in lookup.pages(keys=[b"k"], max_count=7))
        assert count == len(good)
        assert lookup.explain(keys=[b"k"]).complete
        assert lookup.record(page.records[0].partition, page.records[0].offset) == page.records[0]
        assert set(lookup.offset_at(0)) == {0, 1}


def test_every_public_method_is_tried() -> None:
    """One that is new needs a row in the tables above."""
    tried = {"describe_cluster", "close", *ADMIN}
    assert {name for name in vars(Admin) if not name.startswith("_")} == tried
    producer = {"send", "try_send", "send_wait", "send_and_wait", "send_batch", "flush", "close"}
    rest = {"start", "ready", "metrics", "buffered_bytes", "lost_acks_leader"}
    assert {name for name in vars(Producer) if not name.startswith("_")} == producer | rest
