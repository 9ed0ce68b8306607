"""Limits of topics: a record beyond one costs itself, whatever leaders and metadata say."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icecore import Producer
from icecore.client.produce.batches import SendHandle
from icecore.client.produce.limits import batch_bytes_cap, why_too_large
from icecore.codec import batch as batches
from icecore.codec.batch import BatchLimits
from icecore.codec.record import check_columns, encode_columns
from icecore.errors import (
    BatchTooLargeError,
    IcecoreError,
    RecordTooLargeError,
    UnavailableError,
)
from icecore.topic_settings import SegmentSettings
from tests.support import rotation
from tests.support.fake_cluster import FakeCluster, FakePartition, Fate

SMALL = SegmentSettings(record_bytes_max=1_000, batch_bytes_max=8 << 10)


@pytest.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster(nodes=1) as fake:
        yield fake


def stored(partition: FakePartition) -> list[bytes | None]:
    """Values in the log, in order."""
    return [
        value
        for segment in partition.segments
        for _, _, raw in segment.batches
        for value in batches_values(raw)
    ]


def batches_values(raw: bytes) -> list[bytes | None]:
    from icecore.codec.record import decode

    return decode(raw, 0, batches.parse_header(raw)).values.to_list()


async def fates(handles: list[Any]) -> list[str]:
    """``ok`` or the name of the error, for each handle or refusal."""
    found = []
    for each in handles:
        try:
            if isinstance(each, Exception):
                raise each
            await each
            found.append("ok")
        except IcecoreError as error:
            found.append(type(error).__name__)
    return found


def tried(producer: Producer, value: bytes | None, **record: Any) -> SendHandle | IcecoreError:
    try:
        return producer.send("t", value, **record)
    except IcecoreError as error:
        return error


BAD = "RecordTooLargeError"
TOO_LARGE: dict[str, dict[str, Any]] = {
    "value": {"value": b"x" * 1_001},
    "key": {"value": b"x" * 500, "key": b"k" * 501},
    "header": {"value": None, "headers": [("n" * 500, b"v" * 501)]},
    "tags": {"value": b"v", "tags": ["t" * 600, "u" * 401]},
    "empty headers": {"value": b"v", "headers": [("", None)] * 9_000},
}


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize("case", TOO_LARGE)
async def test_a_record_beyond_the_limit_of_its_topic_costs_itself(
    cluster: FakeCluster, case: str, is_known: bool
) -> None:
    cluster.topic_settings["t"] = SMALL
    (partition,) = cluster.add_topic("t")
    async with Producer(cluster.bootstrap, net=cluster.net, linger_ms=20) as producer:
        if is_known:
            await producer.send_and_wait("t", b"known")
        good: dict[str, Any] = {"value": b"a"}
        handles = [tried(producer, **each) for each in (good, TOO_LARGE[case], good)]
        assert isinstance(handles[1], RecordTooLargeError) == is_known
        assert await fates(handles) == ["ok", BAD, "ok"]
        await producer.flush()
    assert stored(partition) == [b"known"] * is_known + [b"a", b"a"]


async def test_what_a_topic_just_allows_is_taken(cluster: FakeCluster) -> None:
    cluster.topic_settings["t"] = SMALL
    (partition,) = cluster.add_topic("t")
    async with Producer(cluster.bootstrap, net=cluster.net, linger_ms=20) as producer:
        handles = [
            tried(producer, b"x" * 1_000),
            tried(producer, b"x" * 900, key=b"k" * 50, headers=[("n" * 20, b"h" * 30)]),
            tried(producer, b"x" * 1_000, tags=["t" * 400, "u" * 600]),
            tried(producer, b"x", headers=[("", None)] * 500),
        ]
        assert await fates(handles) == ["ok"] * 4
    assert len(stored(partition)) == 4


async def test_batches_are_as_small_as_the_topic_asks(cluster: FakeCluster) -> None:
    cluster.topic_settings["t"] = SMALL
    (partition,) = cluster.add_topic("t")
    lines = [b"some text that makes a line longer %d" % number for number in range(3_000)]
    async with Producer(cluster.bootstrap, net=cluster.net) as producer:
        handles: list[Any] = [tried(producer, line) for line in lines[:1_000]]
        handles.append(producer.send_batch("t", lines[1_000:2_000]))
        handles.append(producer.send_batch("t", pa.table({"value": lines[2_000:]})))
        assert await fates(handles) == ["ok"] * len(handles)
        retries = producer.metrics().retries
    assert stored(partition) == lines
    assert retries == 0, "nothing was refused on the way"


async def test_a_limit_that_was_raised_is_used(cluster: FakeCluster) -> None:
    cluster.topic_settings["t"] = SegmentSettings(record_bytes_max=8 << 20, batch_bytes_max=8 << 20)
    (partition,) = cluster.add_topic("t")
    large = [bytes(2 << 20), bytes((8 << 20) - 4_096)]
    async with Producer(cluster.bootstrap, net=cluster.net) as producer:
        handles: list[Any] = [tried(producer, each) for each in large]
        handles.append(producer.send_batch("t", large))
        assert await fates(handles) == ["ok"] * 3
    assert stored(partition) == large * 2


async def test_a_limit_that_is_raised_under_way_is_heard_of(cluster: FakeCluster) -> None:
    cluster.topic_settings["t"] = SMALL
    (partition,) = cluster.add_topic("t")
    async with Producer(cluster.bootstrap, net=cluster.net) as producer:
        await producer.send_and_wait("t", b"known")
        cluster.topic_settings["t"] = replace(SMALL, record_bytes_max=2_000)
        partition.open(1, (1,))
        refused = 0
        async with asyncio.timeout(20):
            while isinstance(found := tried(producer, b"x" * 1_500), RecordTooLargeError):
                refused += 1
                await asyncio.sleep(0.01)
        assert await fates([found]) == ["ok"]
        assert refused


@pytest.mark.parametrize("is_idempotent", [True, False])
@pytest.mark.parametrize("arrow", [False, True])
async def test_what_a_segment_refuses_nevertheless_is_divided(
    cluster: FakeCluster, arrow: bool, is_idempotent: bool
) -> None:
    """Metadata know the topic's limits, and the segment was opened under those before."""
    cluster.topic_settings["t"] = SMALL
    (partition,) = cluster.add_topic("t")
    cluster.topic_settings["t"] = SegmentSettings()
    told: list[object] = []
    options: Any = {"linger_ms": 20, "idempotent": is_idempotent, "compression": "zstd"}
    async with Producer(cluster.bootstrap, net=cluster.net, **options) as producer:
        values = [b"%d" % number for number in range(50)]
        values[7] = values[31] = bytes(5_000)
        good = [value for value in values if len(value) < 1_000]
        if arrow:
            handle = producer.send_batch("t", pa.table({"value": values, "tags": [["a"]] * 50}))
            assert await fates([handle]) == [BAD]
        else:
            handles = [tried(producer, value, key=b"k", tags=["a"]) for value in values]
            handles[7].on_delivery(told.append)  # type: ignore[union-attr]
            handles[8].on_delivery(told.append)  # type: ignore[union-attr]
            found = await fates(handles)
            assert [at for at, fate in enumerate(found) if fate == BAD] == [7, 31]
            good_handles = [each for at, each in enumerate(handles) if at not in (7, 31)]
            offsets = [(await each).offset for each in good_handles]  # type: ignore[misc]
            assert sorted(offsets) == list(range(48))
            assert not is_idempotent or offsets == sorted(offsets)
        metrics = producer.metrics()
        assert (metrics.records_acknowledged, metrics.records_failed) == (48, 2)
        assert producer.buffered_bytes == 0
        await producer.send_and_wait("t", b"last")
    found_values = stored(partition)
    assert sorted(found_values, key=str) == sorted([*good, b"last"], key=str)
    assert not is_idempotent or found_values == [*good, b"last"]
    assert len(told) == (0 if arrow else 2)


async def test_batches_behind_one_that_is_divided_keep_their_order(cluster: FakeCluster) -> None:
    cluster.topic_settings["t"] = SegmentSettings(batch_bytes_max=2_000, record_bytes_max=1_000)
    (partition,) = cluster.add_topic("t")
    cluster.topic_settings["t"] = SegmentSettings()
    values = [b"%04d" % number * 25 for number in range(400)]
    async with Producer(cluster.bootstrap, net=cluster.net, batch_bytes=5_000) as producer:
        handles = [tried(producer, value) for value in values]
        assert await fates(handles) == ["ok"] * 400
    assert stored(partition) == values


async def test_what_may_be_stored_already_is_not_divided(cluster: FakeCluster) -> None:
    """An answer was lost: whoever divides the batch then may append it twice."""
    (partition,) = cluster.add_topic("t")
    answers: list[IcecoreError] = [BatchTooLargeError("shrunk"), UnavailableError("lost")]

    def fate(_: int, __: FakePartition, header: batches.BatchHeader) -> Fate:
        if header.record_count == 1 or not answers:
            return Fate()
        error = answers.pop()
        if error.reason == "UNAVAILABLE":
            error.indeterminate = True  # type: ignore[misc]
        return Fate(error, append=False)

    cluster.on_produce = fate
    async with Producer(cluster.bootstrap, net=cluster.net, linger_ms=20) as producer:
        await producer.send_and_wait("t", b"known")
        handles = [tried(producer, b"a"), tried(producer, b"b")]
        assert await fates(handles) == ["RequestTimeoutError"] * 2
    assert stored(partition) == [b"known"]


names = st.text(st.characters(codec="utf-8"), max_size=20)
sizes = st.integers(0, 300)


@settings(max_examples=rotation.examples(150), deadline=None)
@given(
    value=st.none() | sizes,
    key=st.none() | sizes,
    tags=st.lists(names, max_size=8),
    headers=st.lists(st.tuples(names, st.none() | sizes), max_size=8),
    copies=st.sampled_from([1, 1, 1, 2_000]),
)
def test_a_record_is_refused_exactly_when_a_leader_would(
    value: int | None, key: int | None, tags: list[str], headers: list[Any], copies: int
) -> None:
    limits = BatchLimits(record_bytes_max=300, batch_bytes_max=4 << 20)
    pairs = [(name, None if size is None else bytes(size)) for name, size in headers] * copies
    record = (
        None if value is None else bytes(value),
        None if key is None else bytes(key),
        tuple(tags),
        tuple(pairs),
    )
    raw = encode_columns(
        values=[record[0]],
        timestamps_ms=[0],
        keys=[record[1]],
        tags=[record[2]],
        headers=[record[3]],
    )
    refused = False
    try:
        header = batches.check_produced(raw, 0, limits)
        check_columns(raw, 0, header, limits=limits)
    except RecordTooLargeError:
        refused = True
    assert (why_too_large(limits, *record) is not None) == refused


def test_a_batch_has_room_for_what_is_not_counted() -> None:
    """Lists of tags and of headers that are empty, and keys that are null, cost as well."""
    for batch_bytes_max in (4 << 10, 64 << 10, 1 << 20):
        limits = BatchLimits(batch_bytes_max=batch_bytes_max)
        count = batch_bytes_cap(limits) // 24
        nothing: list[Any] = [()] * (count - 1)
        raw = encode_columns(
            values=[b""] * count,
            timestamps_ms=[0] * count,
            keys=[None] * (count - 1) + [b""],
            tags=[*nothing, ("",)],
            headers=[*nothing, (("", None),)],
        )
        assert len(raw) <= batch_bytes_max
