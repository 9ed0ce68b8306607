"""Several requests of one partition under way: as many as may, and in order whatever fails."""

import asyncio
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from icecore import Producer
from icecore.client.produce import sender
from icecore.client.produce.sender import REQUESTS_PER_PARTITION_MAX
from icecore.codec.batch import BatchHeader, parse_header
from icecore.codec.decoding import decode
from icecore.errors import (
    CorruptBatchError,
    IcecoreError,
    LeaderLostError,
    NotLeaderError,
    RequestTimeoutError,
    RollingError,
    ThrottledError,
    TopicRecreatedError,
    UnavailableError,
)
from tests.support.fake_cluster import FakeCluster, FakePartition, Fate

KEPT = 32
VALUE = b"v" * 1000


@pytest_asyncio.fixture
async def cluster(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeCluster]:
    monkeypatch.setattr("icecore.client.produce.sender.REQUEST_BYTES_MIN", 1)
    async with FakeCluster(nodes=2, is_native=True, batches_kept=KEPT) as cluster:
        yield cluster


def producer(cluster: FakeCluster, **kwargs: Any) -> Producer:
    given = {"linger_ms": 0, "batch_bytes": 1000} | kwargs
    return Producer(cluster.bootstrap, net=cluster.net, **given)


def values(partition: FakePartition) -> list[int]:
    return [
        int((record.value or b"")[:6])
        for segment in partition.segments
        for _, _, body in segment.batches
        for record in decode(body, 0, parse_header(body)).to_records()
    ]


def send(p: Producer, numbers: range) -> list[Any]:
    """Each is a batch of its own."""
    return [p.send("t", b"%06d" % n + VALUE) for n in numbers]


async def outcomes(handles: list[Any]) -> list[Any]:
    found: list[Any] = []
    for handle in handles:
        try:
            found.append((await handle).offset)
        except IcecoreError as error:
            found.append(type(error))
    return found


class Held:
    """Holds produce requests back, each until it is let go or all are."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.gates: list[asyncio.Event] = []
        self.is_open = False
        cluster.before_call = self._wait

    async def _wait(self, _: int, method: str) -> None:
        if method == "_Produce" and not self.is_open:
            gate = asyncio.Event()
            self.gates.append(gate)
            await gate.wait()

    def let_all_go(self) -> None:
        self.is_open = True
        for gate in self.gates:
            gate.set()

    async def until(self, count: int) -> None:
        async with asyncio.timeout(5):
            while len(self.gates) < count:  # noqa: ASYNC110
                await asyncio.sleep(0.001)


async def test_as_many_as_may_are_under_way_and_the_first_goes_alone(cluster: FakeCluster) -> None:
    (partition,) = cluster.add_topic("t")
    held = Held(cluster)
    async with producer(cluster) as p:
        handles = send(p, range(200))
        await held.until(1)
        await asyncio.sleep(0.05)
        assert len(held.gates) == 1, "a leader that was not heard of yet gets one request"
        held.gates[0].set()
        await held.until(1 + REQUESTS_PER_PARTITION_MAX)
        await asyncio.sleep(0.05)
        assert len(held.gates) == 1 + REQUESTS_PER_PARTITION_MAX
        held.let_all_go()
        assert await outcomes(handles) == list(range(200))
    assert values(partition) == list(range(200))
    assert len(partition.sequences) == 1


@pytest.mark.parametrize("busy", [sender.OVERLAP_BATCHES_MAX - 2, sender.OVERLAP_BATCHES_MAX])
@pytest.mark.parametrize("value_bytes", [10, sender.OVERLAP_BYTES_MIN])
async def test_a_small_batch_beside_many_waits_for_its_partition_and_grows(
    monkeypatch: pytest.MonkeyPatch, busy: int, value_bytes: int
) -> None:
    """Beside few, or when it is large, it goes out at once."""
    monkeypatch.setattr("icecore.client.produce.sender.REQUEST_BYTES_MIN", 1)
    async with (
        FakeCluster(nodes=1, is_native=True, batches_kept=KEPT) as cluster,
        producer(cluster, batch_bytes=1 << 20) as p,
    ):
        partitions = cluster.add_topic("t", busy + 1)
        for number in range(busy + 1):
            await p.send_and_wait("t", b"known", partition=number)
        held = Held(cluster)
        handles = [p.send("t", b"1", partition=number) for number in range(busy + 1)]
        await held.until(1)
        for _ in range(3):
            handles.append(p.send("t", bytes(value_bytes), partition=0))
            await asyncio.sleep(0.01)
        is_small_beside_many = busy >= sender.OVERLAP_BATCHES_MAX and value_bytes < 1000
        assert (len(held.gates) == 1) == is_small_beside_many
        held.let_all_go()
        found = [(await handle).offset for handle in handles]
    assert found == [1] * (busy + 1) + [2, 3, 4]
    if is_small_beside_many:
        assert len(partitions[0].segments[0].batches) == 3, "what waited is one batch"


async def test_a_small_batch_does_not_go_out_behind_a_full_one_beside_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It waits for the answer and grows."""
    monkeypatch.setattr("icecore.client.produce.sender.REQUEST_BYTES_MIN", 1)
    busy = sender.OVERLAP_BATCHES_MAX + 1
    async with (
        FakeCluster(nodes=1, is_native=True, batches_kept=KEPT) as cluster,
        producer(cluster, batch_bytes=10_000) as p,
    ):
        partitions = cluster.add_topic("t", busy + 1)
        for number in range(busy + 1):
            await p.send_and_wait("t", b"known", partition=number)
        held = Held(cluster)
        first = [p.send("t", b"1", partition=number) for number in range(busy)]
        await held.until(1)
        pieces = [p.send_batch("t", [bytes(4_000)], partition=busy) for _ in range(3)]
        await asyncio.sleep(0.01)
        pieces.append(p.send_batch("t", [bytes(4_000)], partition=busy))
        held.let_all_go()
        found = [(await piece)[0].base_offset for piece in pieces]
        await asyncio.gather(*(handle._wait() for handle in first))
    assert found == [1, 2, 3, 4]
    batches = partitions[busy].segments[0].batches
    assert [end - base for base, end, _ in batches] == [1, 2, 2], "the third waited for the fourth"


async def test_what_fails_before_its_turn_takes_no_other_partition_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A topic is made again while a batch for the old one is under way and more of them wait."""
    monkeypatch.setattr("icecore.client.produce.sender._HOLD_S", 0.5)
    async with (
        FakeCluster(nodes=1, is_native=True, batches_kept=KEPT) as cluster,
        producer(cluster, linger_ms=200) as p,
    ):
        for topic in ("t", "other"):
            cluster.add_topic(topic)
            await p.send_and_wait(topic, VALUE)
        held = Held(cluster)
        under_way = p.send("t", VALUE)
        await held.until(1)
        beside = p.send("other", VALUE)
        waiting = [p.send("t", VALUE), p.send("t", b"lingers, and is offered")]
        cluster.add_topic("t")
        await p._metadata.refresh()
        assert await outcomes(waiting) == [TopicRecreatedError] * 2
        await held.until(2)
        held.let_all_go()
        async with asyncio.timeout(5):
            assert await outcomes([beside, under_way]) == [1, TopicRecreatedError]


async def test_no_more_batches_are_unresolved_than_leaders_recognise(
    cluster: FakeCluster,
) -> None:
    (partition,) = cluster.add_topic("t")
    async with producer(cluster) as p:
        assert await outcomes(send(p, range(1))) == [0]
        held = Held(cluster)
        handles = send(p, range(1, 200))
        await held.until(REQUESTS_PER_PARTITION_MAX)
        for gate in held.gates[1:]:  # only the oldest is not answered
            gate.set()
        await asyncio.sleep(0.1)
        assert sum(cluster.produce_sizes) <= KEPT
        held.let_all_go()
        assert await outcomes(handles) == list(range(1, 200))
    assert values(partition) == list(range(200))
    assert len(partition.sequences) == 1


@pytest.mark.parametrize("why", ["grpc", "not numbered"])
async def test_elsewhere_one_request_is_under_way(
    monkeypatch: pytest.MonkeyPatch, why: str
) -> None:
    monkeypatch.setattr("icecore.client.produce.sender.REQUEST_BYTES_MIN", 1)
    is_native = why != "grpc"
    async with FakeCluster(is_native=is_native, batches_kept=KEPT) as cluster:
        (partition,) = cluster.add_topic("t")
        async with producer(cluster, idempotent=why == "grpc") as p:
            await outcomes(send(p, range(1)))
            held = Held(cluster)
            handles = send(p, range(1, 100))
            await held.until(1)
            await asyncio.sleep(0.05)
            assert len(held.gates) == 1
            held.let_all_go()
            await outcomes(handles)
        assert values(partition) == list(range(100))
        assert max(cluster.produce_sizes) > KEPT // REQUESTS_PER_PARTITION_MAX


async def test_a_leader_that_says_nothing_gets_five_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("icecore.client.produce.sender.REQUEST_BYTES_MIN", 1)
    async with FakeCluster(is_native=True, batches_kept=5) as cluster:
        (partition,) = cluster.add_topic("t")
        async with producer(cluster) as p:
            await outcomes(send(p, range(1)))
            held = Held(cluster)
            handles = send(p, range(1, 60))
            await held.until(REQUESTS_PER_PARTITION_MAX)
            for gate in held.gates[1:]:
                gate.set()
            await asyncio.sleep(0.05)
            assert sum(cluster.produce_sizes) <= 5
            held.let_all_go()
            await outcomes(handles)
        assert values(partition) == list(range(60))


@pytest.mark.parametrize(
    "error",
    [NotLeaderError(), ThrottledError(retry_after_ms=1), RollingError(), LeaderLostError()],
    ids=lambda error: error.reason,
)
async def test_the_first_is_refused_while_others_are_under_way(
    cluster: FakeCluster, error: IcecoreError
) -> None:
    (partition,) = cluster.add_topic("t")
    async with producer(cluster) as p:
        assert await outcomes(send(p, range(1))) == [0]
        held, refused = Held(cluster), list[int]()

        def refuse_first(_: int, found: FakePartition, header: BatchHeader) -> Fate:
            if not refused:
                refused.append(header.base_sequence)
                return Fate(error, append=False)
            return Fate()

        cluster.on_produce = refuse_first
        handles = send(p, range(1, 100))
        await held.until(REQUESTS_PER_PARTITION_MAX)
        held.let_all_go()
        assert await outcomes(handles) == list(range(1, 100))
    assert refused == [1]
    assert values(partition) == list(range(100))
    assert len(partition.sequences) == 1, "all of it went out again under its own numbers"


async def test_nothing_is_sent_before_all_have_ended(cluster: FakeCluster) -> None:
    (partition,) = cluster.add_topic("t")
    async with producer(cluster) as p:
        assert await outcomes(send(p, range(1))) == [0]
        held = Held(cluster)
        handles = send(p, range(1, 100))
        await held.until(REQUESTS_PER_PARTITION_MAX)
        held.gates[1].set()  # it overtakes the first, and comes back
        await asyncio.sleep(0.3)
        assert len(held.gates) == REQUESTS_PER_PARTITION_MAX
        held.let_all_go()
        assert await outcomes(handles) == list(range(1, 100))
    assert values(partition) == list(range(100))
    assert len(partition.sequences) == 1, "what overtook others shows no gap"


async def test_a_refused_batch_fails_alone_in_the_middle_of_others(cluster: FakeCluster) -> None:
    (partition,) = cluster.add_topic("t")

    def refuse(_: int, found: FakePartition, header: BatchHeader) -> Fate:
        is_it = header.base_sequence == 20 and header.producer_id == 1
        return Fate(CorruptBatchError("no") if is_it else None, append=False)

    cluster.on_produce = refuse
    async with producer(cluster) as p:
        found = await outcomes(send(p, range(100)))
    assert found == [*range(20), CorruptBatchError, *range(20, 99)]
    assert values(partition) == [n for n in range(100) if n != 20]


async def test_closing_with_requests_under_way(cluster: FakeCluster) -> None:
    (partition,) = cluster.add_topic("t")
    p = producer(cluster)
    await p.start()
    assert await outcomes(send(p, range(1))) == [0]
    held = Held(cluster)
    handles = send(p, range(1, 100))
    await held.until(REQUESTS_PER_PARTITION_MAX)
    closing = asyncio.ensure_future(p.close())
    await asyncio.sleep(0.01)
    closing.cancel()
    await asyncio.wait({closing})
    assert set(await outcomes(handles)) == {UnavailableError}
    assert p.buffered_bytes == 0
    held.let_all_go()
    await asyncio.sleep(0.05)
    found = values(partition)
    assert found == list(range(len(found)))


ERRORS = [
    RollingError(),
    NotLeaderError(),
    LeaderLostError(),
    RequestTimeoutError(),
    ThrottledError(retry_after_ms=1),
]


@pytest.mark.parametrize("seed", range(6))
async def test_order_without_duplicates_or_gaps(cluster: FakeCluster, seed: int) -> None:
    """Requests are refused, appended without an answer, lost, late, and overtake each other."""
    (partition,) = cluster.add_topic("t")
    rng = random.Random(seed)

    def fate(_: int, found: FakePartition, header: BatchHeader) -> Fate:
        if rng.random() > 0.05:
            return Fate()
        error = rng.choice(ERRORS)
        if isinstance(error, RollingError | NotLeaderError):
            other = rng.choice([1, 2])
            found.open(other, (other,))
        return Fate(error, append=error.indeterminate and rng.random() < 0.5)

    async def disturb(_: int, method: str) -> None:
        if method != "_Produce":
            return
        if rng.random() < 0.2:
            await asyncio.sleep(rng.choice([0, 0.002, 0.02]))
        if rng.random() < 0.05:
            raise UnavailableError("broken")

    cluster.on_produce, cluster.before_call = fate, disturb
    async with producer(cluster) as p:
        handles: list[Any] = []
        for n in range(0, 400, 20):
            handles += send(p, range(n, n + 20))
            await asyncio.sleep(0.002)
        assert await outcomes(handles) == list(range(400))
    assert values(partition) == list(range(400))
    assert len(partition.sequences) == 1
