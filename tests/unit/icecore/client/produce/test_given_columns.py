"""Columns as programs have them: what is stored of them, and what is said of the others."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import pytest_asyncio

from icecore import Consumer, Producer, Record
from icecore.client.produce.given_columns import time_column
from icecore.errors import InvalidRequestError
from tests.support.fake_cluster import FakeCluster

LONG_S = 20
NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
NOON_MS = 1795262400000


class Stream:
    """A frame of a library that we do not know."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster() as cluster:
        cluster.add_topic("t")
        async with asyncio.timeout(LONG_S):
            yield cluster


async def there_and_back(cluster: FakeCluster, values: Any, **columns: Any) -> list[Record]:
    async with Producer(cluster.bootstrap, net=cluster.net) as producer:
        await producer.send_batch("t", values, **columns)
    async with Consumer(cluster.bootstrap, "t", net=cluster.net, stop_at_end=True) as consumer:
        return [record async for record in consumer]


TABLE = pa.table(
    {
        "value": ["one", None, "three"],
        "key": pa.array(["a", "b", "a"]).dictionary_encode(),
        "timestamp": pa.array([NOON.replace(tzinfo=None)] * 3, pa.timestamp("ns")),
        "tags": [["x"], [], ["y", "x"]],
        "headers": pa.array([[("h", b"v")], [], None], pa.map_(pa.string(), pa.binary())),
        "of no interest": [1, 2, 3],
    }
)


@pytest.mark.parametrize(
    "given",
    [
        TABLE,
        pa.concat_tables([TABLE.slice(0, 1), TABLE.slice(1)]),
        TABLE.combine_chunks().to_batches()[0],
        Stream(TABLE),
        TABLE.to_reader(),
    ],
    ids=["table", "chunked table", "record batch", "stream", "reader"],
)
async def test_tables(cluster: FakeCluster, given: Any) -> None:
    found = await there_and_back(cluster, given)
    assert [(r.value, r.key, r.timestamp_ms, r.tags, r.headers) for r in found] == [
        (b"one", b"a", NOON_MS, ("x",), (("h", b"v"),)),
        (None, b"b", NOON_MS, (), ()),
        (b"three", b"a", NOON_MS, ("y", "x"), ()),
    ]


@pytest.mark.parametrize("library", ["pandas", "polars", "duckdb"])
async def test_frames(cluster: FakeCluster, library: str) -> None:
    module = pytest.importorskip(library)
    columns = {"value": ["one", None], "key": ["a", "b"], "timestamp": [NOON, NOON]}
    if library == "duckdb":
        rows = pa.table(columns)
        given = module.from_arrow(rows)
    else:
        given = module.DataFrame(columns)
    found = await there_and_back(cluster, given)
    assert [(r.value, r.key, r.timestamp_ms) for r in found] == [
        (b"one", b"a", NOON_MS),
        (None, b"b", NOON_MS),
    ]


@pytest.mark.parametrize(
    "values",
    [
        ["one", b"two", None],
        pa.array(["one", "two", None]),
        pa.chunked_array([["one"], ["two", None]]),
        Stream(pa.chunked_array([["one"], ["two", None]])),
        np.array(["one", "two", None], object),
    ],
    ids=["list", "array", "chunked array", "series", "numpy"],
)
async def test_one_column(cluster: FakeCluster, values: Any) -> None:
    found = await there_and_back(
        cluster, values, keys=np.array(["a", "b", "a"]), timestamps_ms=[NOON, NOON_MS, NOON]
    )
    assert [(r.value, r.key, r.timestamp_ms) for r in found] == [
        (b"one", b"a", NOON_MS),
        (b"two", b"b", NOON_MS),
        (None, b"a", NOON_MS),
    ]


EAST = timezone(timedelta(hours=2))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ([NOON, NOON.astimezone(EAST)], [NOON_MS] * 2),
        ([NOON + timedelta(microseconds=1)], [NOON_MS]),
        ([NOON - timedelta(microseconds=1)], [NOON_MS - 1]),
        (np.array(["2026-11-21T12:00"], "datetime64[s]"), [NOON_MS]),
        (pa.array([NOON], pa.timestamp("us", "UTC")), [NOON_MS]),
        ([np.int64(5), 6], [5, 6]),
        ([], []),
    ],
)
def test_times(given: Any, expected: list[int]) -> None:
    assert time_column(given).tolist() == expected


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([NOON, NOON.replace(tzinfo=None)], r"timestamps_ms\[1\] .* no time zone"),
        ([5, 1.5], "timestamps_ms"),
        ([NOON, "x"], r"timestamps_ms\[1\] .* 'x' \(str\)"),
        ([NOON, None], r"timestamps_ms\[1\] .* None \(NoneType\)"),
        (np.array(["NaT"], "datetime64[s]"), r"timestamps_ms\[0\] is no time"),
        (np.array([1, 1 << 62], "datetime64[s]"), r"timestamps_ms\[1\] is not in the years"),
        (np.array([1, 1 << 63], "u8"), r"timestamps_ms\[1\] is int milliseconds"),
        (pa.array([1, 1 << 60], pa.timestamp("s")), "column timestamps_ms, row 1, is timestamp"),
    ],
)
def test_times_that_are_none(given: Any, said: str) -> None:
    with pytest.raises((TypeError, InvalidRequestError), match=said):
        time_column(given)


BAD: dict[str, tuple[Any, str]] = {
    "no value": (pa.table({"id": [1], "name": ["a"]}), "no column named value; .*: id, name"),
    "no rows": (TABLE.slice(0, 0), "no records"),
    "no columns": (pa.table({}), "no column named value"),
    "numbers": (pa.table({"value": [1]}), "column value is int64, which is not taken as binary"),
    "a text as a time": (
        pa.table({"value": ["a"] * 3, "timestamp": ["2026-11-21T12:00Z"] * 2 + ["noon"]}),
        "column timestamp, row 2, is string",
    ),
    "a null time": (
        pa.table({"value": ["a"] * 2, "timestamp": pa.array([NOON, None])}),
        "row 1: a time is null",
    ),
    "a null tag": (
        pa.table({"value": ["a"] * 3, "tags": [["x", "y"], [], ["z", None]]}),
        "row 2: one of tags is null",
    ),
    "a time out of range": (
        pa.table({"value": ["a"], "timestamp": pa.array([1 << 62], pa.timestamp("s"))}),
        "column timestamp, row 0, is timestamp",
    ),
    "a tag that is no text": (
        pa.table({"value": ["a"] * 2, "tags": pa.array([[b"x"], [b"\xff"]])}),
        "column tags, row 1, is list",
    ),
    "a row that is no bytes": (["a", b"b", 3], r"values\[2\] .* 3 \(int\)"),
    "half a character": (["a", "\ud800"], r"values\[1\] .* no UTF-8 form"),
    "headers with other fields": (
        pa.table({"value": ["a"], "headers": [[{"name": "h", "value": b"v"}]]}),
        "column headers .* its fields are name, value, and must be key and value",
    ),
    "texts of which several are no times": (
        pa.table({"value": ["a"] * 3, "timestamp": ["2026-11-21T12:00Z", "noon", "late"]}),
        "column timestamp, row 1, .*'noon'",
    ),
    "a row of tags that is none": (["a", "b"], "row 1: tags is a sequence of strings, not None"),
    "a stream that fails": (Stream(5), "can't be read as a table"),
}


@pytest.mark.parametrize("case", BAD)
async def test_what_is_refused_is_named(cluster: FakeCluster, case: str) -> None:
    given, said = BAD[case]
    async with Producer(cluster.bootstrap, net=cluster.net, linger_ms=20) as producer:
        good = producer.send("t", b"good")
        more = {"tags": [["x"], None]} if case == "a row of tags that is none" else {}
        with pytest.raises((TypeError, InvalidRequestError), match=said):
            producer.send_batch("t", given, **more)
        assert producer.metrics().buffered_records == 1
        assert (await good).offset == 0
