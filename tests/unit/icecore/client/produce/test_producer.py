"""Producer: order, no duplicates and no gaps, whatever fails; batching; bounds; errors."""

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from typing import Any

import pyarrow as pa
import pytest
import pytest_asyncio

import icecore
from icecore import Producer
from icecore.codec.batch import BatchHeader, parse_header
from icecore.codec.decoding import decode
from icecore.codec.hashes import header_hash
from icecore.codec.record import Record, partition_for_key
from icecore.errors import (
    ConfigurationError,
    CorruptBatchError,
    HeaderHashesError,
    IcecoreError,
    InvalidRequestError,
    LeaderLostError,
    NotEnoughReplicasError,
    NotLeaderError,
    OutOfOrderSequenceError,
    RecordTooLargeError,
    RequestTimeoutError,
    RollingError,
    ThrottledError,
    TopicExistsError,
    UnavailableError,
    UnknownTopicError,
)
from icecore.topic_settings import SegmentSettings
from tests.support.fake_cluster import FakeCluster, FakePartition, Fate

Policy = Callable[[int, FakePartition, BatchHeader], Fate]


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster(nodes=2) as cluster:
        yield cluster


def producer(cluster: FakeCluster, **kwargs: Any) -> Producer:
    return Producer(cluster.bootstrap, net=cluster.net, **kwargs)


def stored(partition: FakePartition) -> list[Record]:
    return [
        record
        for segment in partition.segments
        for _, _, body in segment.batches
        for record in decode(body, 0, parse_header(body)).to_records()
    ]


def values(partition: FakePartition) -> list[int]:
    return [int(record.value or b"-1") for record in stored(partition)]


async def test_records_keep_everything(cluster: FakeCluster) -> None:
    (partition,) = cluster.add_topic("t")
    async with producer(cluster) as p:
        handles = [
            p.send("t", b"v", key=b"k", tags=["a", "b"], headers=(("h", b"x"), ("n", None))),
            p.send("t", None, key=b"", timestamp_ms=7),
            p.send("t", b""),
            p.send("t", b"z", tags=("b",)),
        ]
        found = [await handle for handle in handles]
    assert [(m.topic, m.partition, m.offset) for m in found] == [("t", 0, n) for n in range(4)]
    assert found[0].append_timestamp_ms == 1000
    first, second, third, last = stored(partition)
    assert (first.key, first.value, first.tags) == (b"k", b"v", ("a", "b"))
    assert first.headers == (("h", b"x"), ("n", None))
    assert (second.key, second.value, second.timestamp_ms) == (b"", None, 7)
    assert (third.key, third.value, third.tags, third.headers) == (None, b"", (), ())
    assert last.tags == ("b",)


async def test_keys_decide_the_partition_and_records_share_batches(cluster: FakeCluster) -> None:
    partitions = cluster.add_topic("t", 4)
    async with producer(cluster) as p:
        for n in range(1000):
            await p.send_wait("t", b"%d" % n, key=b"k%d" % (n % 50))
    for number, partition in enumerate(partitions):
        assert all(partition_for_key(r.key or b"", 4) == number for r in stored(partition))
        assert values(partition) == sorted(values(partition))
    assert sum(len(values(partition)) for partition in partitions) == 1000
    assert len(cluster.produce_sizes) < 20


async def test_without_keys_batches_spread_and_partition_is_obeyed(cluster: FakeCluster) -> None:
    partitions = cluster.add_topic("t", 4)
    async with producer(cluster, batch_bytes=1000) as p:
        for n in range(2000):
            await p.send_wait("t", b"%d" % n)
        await p.flush()
        assert all(values(partition) for partition in partitions)
        before = len(values(partitions[2]))
        assert (await p.send_and_wait("t", b"9", partition=2)).offset == before
        with pytest.raises(InvalidRequestError):
            p.send("t", b"9", partition=4)
        assert p.buffered_bytes == 0


async def test_columns(cluster: FakeCluster) -> None:
    partitions = cluster.add_topic("t", 3)
    keys = [b"k%d" % (n % 20) if n % 7 else None for n in range(5000)]
    async with producer(cluster, batch_bytes=10_000) as p:
        p.send("t", b"0", key=b"k1")
        column = [b"%d" % n for n in range(1, 5001)]
        tags = [("even",) if n % 2 else () for n in range(5000)]
        found = await p.send_batch("t", column, keys=keys, tags=tags)
        assert sum(m.end_offset - m.base_offset for m in found) == 5000
        rows = pa.record_batch({"value": column, "key": keys})
        assert len(await p.send_batch("t", rows)) >= 5
        with pytest.raises(InvalidRequestError):
            p.send_batch("t", [b"1"], keys=[])
        with pytest.raises(TypeError):
            p.send_batch("t", [1])  # type: ignore[list-item]
    for number, partition in enumerate(partitions):
        records = stored(partition)
        assert all(r.key is None or partition_for_key(r.key, 3) == number for r in records)
        assert all((int(r.value or 0) % 2 == 0) for r in records if r.tags)
        for key in {r.key for r in records if r.key}:
            of_key = [int(r.value or 0) for r in records if r.key == key]
            half = len(of_key) // 2 + (key == b"k1")
            assert of_key[:half] == sorted(of_key[:half])
    assert sum(len(stored(p)) for p in partitions) == 10_001
    assert sorted(v for p in partitions for v in values(p)) == sorted([0, *[*range(1, 5001)] * 2])


async def test_columns_without_keys_go_to_a_partition_in_runs(cluster: FakeCluster) -> None:
    """A run is a mebibyte: batches that are neighbours are appended and synced together."""
    partitions = cluster.add_topic("t", 16)
    async with producer(cluster, batch_bytes=64 << 10) as p:
        for _ in range(2):
            await p.send_batch("t", [b"%04d" % n + bytes(1020) for n in range(8 << 10)])
        assert p.metrics().batches_acknowledged >= 256
    runs: list[list[int]] = []
    for partition in partitions:
        runs += _runs([int((record.value or b"")[:4]) for record in stored(partition)])
    assert sum(map(len, runs)) == 16 << 10
    assert len(runs) <= 2 * 8, "a run ends with its call, or with a mebibyte"


async def test_small_columns_without_keys_do_not_stay_with_one_partition(
    cluster: FakeCluster,
) -> None:
    partitions = cluster.add_topic("t", 8)
    async with producer(cluster, linger_ms=0) as p:
        for n in range(80):
            await p.send_batch("t", [b"%d" % n])
    assert sum(bool(stored(partition)) for partition in partitions) == 8


def _runs(numbers: list[int]) -> list[list[int]]:
    """Neighbours that follow each other."""
    runs: list[list[int]] = []
    for number in numbers:
        if not runs or number != runs[-1][-1] + 1:
            runs.append([])
        runs[-1].append(number)
    return runs


async def test_what_waits_for_its_turn_grows(cluster: FakeCluster) -> None:
    (partition,) = cluster.add_topic("t")
    may_answer = asyncio.Event()

    async def wait(node: int, method: str) -> None:
        if method == "_Produce":
            await may_answer.wait()

    cluster.before_call = wait
    async with producer(cluster, linger_ms=0) as p:
        handles = [p.send("t", b"0")]
        await asyncio.sleep(0.05)
        for n in range(1, 100):
            handles.append(p.send("t", b"%d" % n))
            await asyncio.sleep(0)
        may_answer.set()
        assert [(await handle).offset for handle in handles] == list(range(100))
    assert values(partition) == list(range(100))
    assert len(partition.segments[0].batches) <= 3


async def test_batches_are_filled_by_small_pieces(cluster: FakeCluster) -> None:
    """A batch is filled until as much again would not fit."""
    (partition,) = cluster.add_topic("t")
    async with producer(cluster, linger_ms=100, batch_bytes=10_000) as p:
        await p.send_and_wait("t", b"first")
        for _ in range(36):
            p.send_batch("t", [b"v" * 1_000])
        await p.flush()
    assert [end - base for base, end, _ in partition.segments[0].batches] == [1, 9, 9, 9, 9]


async def test_columns_share_batches_with_what_fits(cluster: FakeCluster) -> None:
    (partition,) = cluster.add_topic("t")
    async with producer(cluster, linger_ms=50) as p:
        await p.send_and_wait("t", b"0")
        handles = [
            p.send_batch("t", [b"1", b"2"]),
            p.send_batch("t", [b"3"], keys=[b"k"]),
            p.send_batch("t", [b"4"], keys=[b"k"], tags=[("a",)]),
            p.send_batch("t", pa.record_batch({"value": [b"5", b"6"]})),
            p.send_batch("t", pa.record_batch({"value": [b"7"]})),
        ]
        last = p.send("t", b"8")
        found = [[(m.base_offset, m.end_offset) for m in await handle] for handle in handles]
        assert (await last).offset == 8
    assert found == [[(1, 3)], [(3, 4)], [(4, 5)], [(5, 7)], [(7, 8)]]
    assert values(partition) == list(range(9))
    assert [r.key for r in stored(partition)][2:6] == [None, b"k", b"k", None]
    assert [r.tags for r in stored(partition)][3:6] == [(), ("a",), ()]
    counts = [parse_header(body).record_count for *_, body in partition.segments[0].batches]
    assert counts == [1, 2, 1, 1, 3, 1]


async def send_all(p: Producer, count: int) -> list[Any]:
    """Send numbers in small batches; the offset or error of each."""
    handles = []
    for n in range(count):
        handles.append(p.send("t", b"%d" % n))
        if n % 3 == 0:
            await asyncio.sleep(0.0005)
    outcomes: list[Any] = []
    for handle in handles:
        try:
            outcomes.append((await handle).offset)
        except IcecoreError as error:
            outcomes.append(error)
    return outcomes


ERRORS = [
    RollingError(),
    NotLeaderError(),
    NotEnoughReplicasError(),
    LeaderLostError(),
    RequestTimeoutError(),
    ThrottledError(retry_after_ms=1),
]


@pytest.mark.parametrize("seed", range(8))
async def test_order_without_duplicates_or_gaps(cluster: FakeCluster, seed: int) -> None:
    (partition,) = cluster.add_topic("t")
    rng = random.Random(seed)
    breaks: list[int] = []

    def fate(node: int, found: FakePartition, header: BatchHeader) -> Fate:
        if rng.random() > 0.25:
            return Fate()
        error = rng.choice(ERRORS)
        if isinstance(error, RollingError | NotLeaderError):
            other = rng.choice([1, 2])
            found.open(other, (other,))
        return Fate(error, append=error.indeterminate and rng.random() < 0.5)

    async def break_connection(node: int, method: str) -> None:
        if method == "_Produce" and rng.random() < 0.1:
            breaks.append(node)
            raise UnavailableError("broken")

    cluster.on_produce, cluster.before_call = fate, break_connection
    async with producer(cluster, batch_bytes=200, linger_ms=1) as p:
        outcomes = await send_all(p, 300)
    assert outcomes == list(range(300))
    assert values(partition) == list(range(300))


async def test_a_refused_batch_fails_alone(cluster: FakeCluster) -> None:
    (partition,) = cluster.add_topic("t")
    refused: list[int] = []

    def fate(node: int, found: FakePartition, header: BatchHeader) -> Fate:
        if header.base_sequence >= 100 and not refused:
            refused.append(header.record_count)
            return Fate(CorruptBatchError("no"), append=False)
        return Fate()

    cluster.on_produce = fate
    async with producer(cluster, batch_bytes=200, linger_ms=1) as p:
        outcomes = await send_all(p, 300)
    failed = [n for n, outcome in enumerate(outcomes) if isinstance(outcome, CorruptBatchError)]
    assert failed == list(range(failed[0], failed[0] + refused[0]))
    assert values(partition) == [n for n in range(300) if n not in failed]


async def test_an_unknown_outcome_is_said_and_never_repeated(cluster: FakeCluster) -> None:
    (partition,) = cluster.add_topic("t")
    hits = 0

    def fate(node: int, found: FakePartition, header: BatchHeader) -> Fate:
        nonlocal hits
        if (header.producer_id, header.base_sequence) == (1, 1):
            hits += 1
            # The first attempt lands late, after the client has given up.
            return Fate(LeaderLostError("who knows"), append=False)
        return Fate()

    cluster.on_produce = fate
    async with producer(cluster, linger_ms=0, delivery_timeout_ms=600) as p:
        await p.send_and_wait("t", b"0")
        lost = p.send("t", b"1")
        await asyncio.sleep(0.4)  # so long do those behind it have, once it is given up
        later = [p.send("t", b"%d" % n) for n in (2, 3)]
        with pytest.raises(LeaderLostError) as caught:
            await lost
        assert caught.value.indeterminate
        # Those behind it were never sent, so they go on under a fresh producer id.
        assert [(await handle).offset for handle in later] == [1, 2]
    assert hits > 1
    assert values(partition) == [0, 2, 3]
    assert len(partition.sequences) == 2


async def test_last_definite_error_does_not_hide_an_earlier_unknown_one(
    cluster: FakeCluster,
) -> None:
    cluster.add_topic("t")
    errors: list[IcecoreError] = [LeaderLostError()]
    cluster.on_produce = lambda *_: Fate(errors.pop() if errors else NotLeaderError(), append=False)
    async with producer(cluster, delivery_timeout_ms=1_000) as p:
        with pytest.raises(RequestTimeoutError, match="unknown"):
            await p.send_and_wait("t", b"0")


async def test_acks_lost_with_a_leader_are_counted(cluster: FakeCluster) -> None:
    (partition,) = cluster.add_topic("t")
    async with producer(cluster, acks="leader") as p:
        await p.send_and_wait("t", b"0")
        await p.send_and_wait("t", b"1")
        partition.tail.batches.pop()  # fail over to one that had not got it yet
        recent = next(iter(partition.sequences.values()))
        recent.pop()
        assert (await p.send_and_wait("t", b"2")).offset == 1
        assert p.lost_acks_leader == 1
        partition.sequences.clear()
        with pytest.raises(OutOfOrderSequenceError):
            cluster.on_produce = lambda *_: Fate(OutOfOrderSequenceError(), append=False)
            await asyncio.wait_for(producer_gives_up(cluster), 5)
    assert values(partition) == [0, 2]


async def producer_gives_up(cluster: FakeCluster) -> None:
    async with producer(cluster, delivery_timeout_ms=1_000) as p:
        await p.send_and_wait("t", b"x")


async def test_failover_moves_to_the_new_leader(cluster: FakeCluster) -> None:
    (partition,) = cluster.add_topic("t")
    async with producer(cluster) as p:
        await p.send_and_wait("t", b"0")
        partition.open(2, (2,))
        assert (await p.send_and_wait("t", b"1")).offset == 1
    assert [node for node, method in cluster.calls if method == "_Produce"] == [1, 1, 2]


async def test_a_leader_that_hangs_is_left_when_another_leads(cluster: FakeCluster) -> None:
    (partition,) = cluster.add_topic("t")

    async def hang(node: int, method: str) -> None:
        if (node, method) == (1, "_Produce"):
            await asyncio.sleep(30)

    async with producer(cluster) as p:
        await p.send_and_wait("t", b"0")
        cluster.before_call = hang
        pending = p.send("t", b"1")
        await asyncio.sleep(0.1)
        partition.open(2, (2,))
        assert (await asyncio.wait_for(asyncio.shield(wait(pending)), 5)).offset == 1


async def wait(handle: Any) -> Any:
    return await handle


async def test_topics_may_appear_late_or_never(cluster: FakeCluster) -> None:
    async with producer(cluster, delivery_timeout_ms=500, wait_for_topic_s=5) as p:
        handle = p.send("late", b"0", key=b"k")
        columns = p.send_batch("late", [b"1"], keys=[b"k"])
        await asyncio.sleep(0.05)
        assert not handle.is_done
        cluster.add_topic("late", 2)
        assert (await handle).offset == 0
        assert (await columns)[0].base_offset == 1
        with pytest.raises(UnknownTopicError):
            await p.send_and_wait("never", b"0")
        assert p.buffered_bytes == 0


async def test_full_buffer(cluster: FakeCluster) -> None:
    (partition,) = cluster.add_topic("t")
    async with producer(cluster, buffer_bytes=2000, linger_ms=60_000) as p:
        with pytest.raises(ThrottledError):
            for n in range(1000):
                p.try_send("t", b"%d" % n)
        count = n
        assert 50 < count < 100
        await p.ready()
        for n in range(count, 1000):
            await p.send_wait("t", b"%d" % n)
    assert values(partition) == list(range(1000))


async def test_flush_reports_what_nobody_awaited(cluster: FakeCluster) -> None:
    cluster.add_topic("t")
    cluster.on_produce = lambda *_: Fate(CorruptBatchError(), append=False)
    async with producer(cluster) as p:
        p.send("t", b"0")
        with pytest.raises(CorruptBatchError):
            await p.flush()
        with pytest.raises(CorruptBatchError):
            await p.send_and_wait("t", b"0")
        await p.flush()


async def test_cancelling_a_waiter_leaves_the_batch_alone(cluster: FakeCluster) -> None:
    cluster.add_topic("t")
    async with producer(cluster, linger_ms=50) as p:
        first, second = p.send("t", b"0"), p.send("t", b"1")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(wait(first), 0.01)
        assert (await second).offset == 1
        assert (await first).offset == 0


async def test_arguments_are_checked(cluster: FakeCluster) -> None:
    cluster.add_topic("t")
    with pytest.raises(ConfigurationError):
        producer(cluster, acks="some")
    with pytest.raises(ConfigurationError):
        Producer("nowhere")
    with pytest.raises(UnavailableError):
        producer(cluster).send("t", b"0")
    async with producer(cluster, compression="zstd") as p:
        with pytest.raises(TypeError):
            p.send("t", "text")  # type: ignore[arg-type]
        with pytest.raises(TypeError):
            p.send("t", b"", key="text")  # type: ignore[arg-type]
        with pytest.raises(RecordTooLargeError):
            p.send("t", bytes((8 << 20) + 1))
        assert (await p.send_and_wait("t", b"0")).offset == 0
        with pytest.raises(RecordTooLargeError):
            p.send("t", bytes((1 << 20) + 1))
        assert (await p.send_and_wait("t", b"1")).offset == 1


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
async def test_retries_keep_compressed_bytes(cluster: FakeCluster, codec: Any) -> None:
    (partition,) = cluster.add_topic("t")
    errors: list[IcecoreError] = [OutOfOrderSequenceError(), RollingError()]
    cluster.on_produce = lambda *_: Fate(errors.pop(), append=False) if errors else Fate()
    async with producer(cluster, compression=codec) as p:
        for n in range(100):
            p.send("t", b"%d" % n)
    assert values(partition) == list(range(100))


async def test_admin(cluster: FakeCluster) -> None:
    async with icecore.Admin(cluster.bootstrap, net=cluster.net, timeout_s=5) as admin:
        topic = await admin.create_topic("a", partitions=3)
        assert cluster.settings[0].partitions == 3
        assert [p.partition for p in topic.partitions] == [0, 1, 2]
        with pytest.raises(TopicExistsError):
            await admin.create_topic("a")
        assert (await admin.describe_topics())[0].name == "a"
        with pytest.raises(UnknownTopicError):
            await admin.describe_topics(["b"])
        async with producer(cluster) as p:
            for _ in range(5):
                await p.send_and_wait("a", b"0", partition=0)
                cluster.topics["a"][0].open(1, (1,))
        assert len(await admin.list_segments("a", [0])) == 6
        assert len(await admin.list_segments("a", [0], from_offset=3)) == 3
        found = await admin.list_offsets("a", "latest")
        assert {n: r.offset for n, r in found.items()} == {0: 5, 1: 0, 2: 0}


async def test_partitions_that_wait_for_an_id_miss_no_search_that_follows(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search fails, the next begins at once: those who waited for the first hear its outcome."""
    async with producer(cluster) as p:
        identities = p._identities
        first_searches = asyncio.Event()
        late: list[asyncio.Task[Any]] = []

        async def search() -> Any:
            if late:
                await asyncio.sleep(3600)
            await first_searches.wait()
            late.append(asyncio.create_task(identities.find()))  # runs before who waits
            raise UnavailableError("no node is up")

        monkeypatch.setattr(identities, "_ask", search)
        waiting = asyncio.create_task(identities.find())
        await asyncio.sleep(0)
        first_searches.set()
        with pytest.raises(UnavailableError):
            await asyncio.wait_for(waiting, 5)
        late[0].cancel()


def indexed(partition: FakePartition) -> list[list[int]]:
    """The hashes of headers, per record."""
    rows = []
    for segment in partition.segments:
        for _, _, body in segment.batches:
            columns = decode(body, 0, parse_header(body))
            hashes = columns.index.header_hashes
            assert hashes is not None
            rows += [list(row) for row in hashes.split(hashes.items.tolist())]
    return rows


@pytest.mark.parametrize("is_arrow", [False, True])
async def test_indexed_headers_are_hashed(cluster: FakeCluster, is_arrow: bool) -> None:
    cluster.topic_settings["t"] = SegmentSettings(indexed_headers=("order", "customer"))
    (partition,) = cluster.add_topic("t")
    headers: list[Any] = [(("order", b"1"), ("order", None), ("x", b"2")), [("customer", b"")]]
    async with producer(cluster) as p:
        if is_arrow:
            pairs = [[{"key": name, "value": value} for name, value in row] for row in headers]
            await p.send_batch("t", pa.record_batch({"value": [b"0", b"1"], "headers": pairs}))
        else:
            for row in headers:
                p.send("t", b"v", headers=row)
    assert indexed(partition) == [[header_hash("order", b"1")], [header_hash("customer", b"")]]


async def test_a_batch_for_other_settings_is_encoded_anew(cluster: FakeCluster) -> None:
    """A topic is altered while a producer works: it hears of it from the leader, and loses nothing,
    also where the topic's settings say something else than the segment's."""
    (partition,) = cluster.add_topic("t")
    async with producer(cluster, compression="zstd") as p:
        await p.send_and_wait("t", b"0", headers=[("a", b"1"), ("b", b"2")])
        cluster.topic_settings["t"] = SegmentSettings(indexed_headers=("b",))
        partition.open(1, (1,))
        cluster.topic_settings["t"] = SegmentSettings(indexed_headers=("a",))
        handles = [p.send("t", b"%d" % n, headers=[("a", b"1"), ("b", b"2")]) for n in (1, 2, 3)]
        assert [(await handle).offset for handle in handles] == [1, 2, 3]
    partition.segments = partition.segments[1:]
    assert values(partition) == [1, 2, 3]
    assert indexed(partition) == [[header_hash("b", b"2")]] * 3


async def test_a_leader_that_refuses_the_right_hashes_is_not_asked_for_ever(
    cluster: FakeCluster,
) -> None:
    cluster.add_topic("t")
    cluster.on_produce = lambda *_: Fate(
        HeaderHashesError("no", indexed_headers="[]"), append=False
    )
    async with producer(cluster) as p:
        with pytest.raises(HeaderHashesError):
            await p.send_and_wait("t", b"0", headers=[("a", b"1")])
        for nonsense in ("[1]", "{}", "x", '"a"'):
            cluster.on_produce = lambda *_, said=nonsense: Fate(  # type: ignore[misc]
                HeaderHashesError("no", indexed_headers=said), append=False
            )
            with pytest.raises(HeaderHashesError):
                await p.send_and_wait("t", b"0", headers=[("a", b"1")])
