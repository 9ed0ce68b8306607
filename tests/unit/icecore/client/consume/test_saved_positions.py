"""Consumers with a name go on where the last one was: at least once, and one at a time."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from icecore import Admin, Consumer, Producer, blocking
from icecore.client.cluster.connection import Connection
from icecore.client.consume import fetcher, saved_positions
from icecore.client.consume.saved_positions import ReaderPlace, SavedPositions
from icecore.errors import (
    IcecoreError,
    InternalError,
    InvalidRequestError,
    OffsetOutOfRangeError,
    PositionConflictError,
    RequestTimeoutError,
)
from icecore.rpc import convert
from icecore.v1 import admin_pb2
from tests.support.fake_cluster import FakeCluster

LONG_S = 20
pytestmark = pytest.mark.timeout(60)
OFTEN_S = 0.1


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    """Topic t: 30 records in partition 0, in batches of ten; none in partition 1."""
    async with FakeCluster() as cluster:
        cluster.add_topic("t", 2)
        await fill(cluster, 0, 30)
        yield cluster


async def fill(cluster: FakeCluster, start: int, end: int, topic: str = "t") -> None:
    async with Producer(cluster.bootstrap, net=cluster.net) as producer:
        for base in range(start, end, 10):
            values = [b"%d" % n for n in range(base, base + 10)]
            await producer.send_batch(topic, values, partition=0)


def consumer(cluster: FakeCluster, **kwargs: Any) -> Consumer:
    kwargs = {"topic": "t", "position": "job", "max_wait_ms": 100, **kwargs}
    return Consumer(cluster.bootstrap, net=cluster.net, **kwargs)


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


async def take(c: Consumer, count: int) -> list[int]:
    return [(await anext(c)).offset for _ in range(count)]


async def test_the_next_one_goes_on_there(cluster: FakeCluster) -> None:
    async with consumer(cluster) as c:
        assert await take(c, 13) == list(range(13))
    assert cluster.positions.offsets("job") == {("t", 0): 13, ("t", 1): 0}
    async with consumer(cluster, start="latest") as c:
        assert c.position() == {0: 13, 1: 0}, "what is saved counts, not the start"
        assert (await c.poll(LONG_S, 4))[0].offset == 13
        await c.save_position()
        assert cluster.positions.offsets("job")["t", 0] == 17
    async with consumer(cluster, position="other") as c:
        assert await take(c, 1) == [0]


async def test_an_interval_saves_what_is_processed(cluster: FakeCluster) -> None:
    async with consumer(cluster, save_interval_s=OFTEN_S) as c:
        await take(c, 5)
        await until(lambda: cluster.positions.offsets("job").get(("t", 0)) == 4)
        await asyncio.sleep(3 * OFTEN_S)
        assert cluster.positions.offsets("job")["t", 0] == 4, "the fifth may be in the works"
        await take(c, 1)
        await until(lambda: cluster.positions.offsets("job")["t", 0] == 5)
        assert len(await c.poll(LONG_S)) == 4
        await asyncio.sleep(3 * OFTEN_S)
        assert cluster.positions.offsets("job")["t", 0] == 6, "all of a poll is held back"
        asking = asyncio.ensure_future(c.poll(LONG_S))
        await asking
        await until(lambda: cluster.positions.offsets("job")["t", 0] == 10)
        while await c.poll(OFTEN_S):
            pass
        await until(lambda: cluster.positions.offsets("job")["t", 0] == 30)
        calls = cluster.positions.calls
        await asyncio.sleep(3 * OFTEN_S)
        assert cluster.positions.calls == calls, "nothing new, nothing said"


async def test_arrow_rows_are_held_back_as_well(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetcher, "RUN_BYTES_MAX", 0)  # each batch comes alone
    async with consumer(cluster, save_interval_s=OFTEN_S) as c:
        found = c.batches()
        assert (await anext(found)).num_rows == 10
        await asyncio.sleep(3 * OFTEN_S)
        assert cluster.positions.offsets("job").get(("t", 0), 0) == 0
        await anext(found)
        await until(lambda: cluster.positions.offsets("job")["t", 0] == 10)
    assert cluster.positions.offsets("job")["t", 0] == 20


async def test_what_failed_in_the_program_comes_again(cluster: FakeCluster) -> None:
    with pytest.raises(ZeroDivisionError):
        async with consumer(cluster) as c:
            async for record in c:
                assert 1 / (7 - record.offset)
    async with consumer(cluster) as c:
        assert await take(c, 1) == [7]


async def test_without_an_interval_only_hands_save(cluster: FakeCluster) -> None:
    async with consumer(cluster, start="latest", save_interval_s=None) as c:
        assert not cluster.positions.saved
        await c.seek(0, 3)
        await take(c, 2)
        await c.save_position()
        await take(c, 2)
    assert cluster.positions.offsets("job") == {("t", 0): 5, ("t", 1): 0}


async def test_a_start_at_the_end_is_saved_at_once(cluster: FakeCluster) -> None:
    """Killed before its first save, the next one would begin at another end."""
    async with consumer(cluster, start="latest"):
        assert cluster.positions.offsets("job") == {("t", 0): 30, ("t", 1): 0}


async def read(c: Consumer, kind: str) -> list[int]:
    """All up to the end."""
    if kind == "batches":
        return [n async for rows in c.batches(["offset"]) for n in rows.column(0).to_pylist()]
    found: list[int] = []
    if kind == "polls":
        while records := await c.poll(5.0, 3):
            found += [record.offset for record in records]
        return found
    return [record.offset async for record in c]


@pytest.mark.parametrize("kind", ["records", "polls", "batches"])
@pytest.mark.parametrize("filtered", [{}, {"tags_none": ["unwanted"]}])
@pytest.mark.parametrize("ends", [[25, 27, 30], [10, 11, 20], [9, 10, 30]])
async def test_what_was_fetched_behind_the_end_is_for_the_next_one(
    cluster: FakeCluster, ends: list[int], filtered: Any, kind: str
) -> None:
    """Nodes answer with whole batches, and with more of them than were there at the start."""
    start = 0
    for end in ends:
        async with consumer(cluster, until=end, partitions=[0], **filtered) as c:
            assert await read(c, kind) == list(range(start, end))
            assert c.position() == {0: end}
        assert cluster.positions.offsets("job") == {("t", 0): end}
        start = end


async def test_what_comes_while_all_there_is_is_read_is_for_the_next_one(
    cluster: FakeCluster,
) -> None:
    async with consumer(cluster, stop_at_end=True) as c:
        first = await take(c, 1)
        await fill(cluster, 30, 60)
        await c.seek(0, 25)
        assert first + await read(c, "records") == [0, *range(25, 30)]
    assert cluster.positions.offsets("job") == {("t", 0): 30, ("t", 1): 0}
    async with consumer(cluster, stop_at_end=True) as c:
        assert await read(c, "records") == list(range(30, 60))


async def test_who_is_overtaken_is_told_and_nothing_is_lost(cluster: FakeCluster) -> None:
    first = consumer(cluster, save_interval_s=OFTEN_S)
    async with consumer(cluster, save_interval_s=None) as second:
        await first.start()
        await take(second, 20)
        await second.save_position()
        with pytest.raises(PositionConflictError):
            while True:
                await take(first, 1)
                await asyncio.sleep(OFTEN_S)
                await first.poll(2 * OFTEN_S)
        with pytest.raises(PositionConflictError):
            await first.save_position()
        await first.close()  # it has been told
        assert cluster.positions.offsets("job")["t", 0] == 20
        await take(second, 1)
        await second.save_position()
        assert cluster.positions.offsets("job")["t", 0] == 21


async def test_an_end_tells_who_was_not_told_before(cluster: FakeCluster) -> None:
    first, second = consumer(cluster), consumer(cluster)
    await first.start()
    await second.start()
    await take(first, 3)
    await take(second, 2)
    await second.close()
    with pytest.raises(PositionConflictError):
        await first.close()
    assert cluster.positions.offsets("job")["t", 0] == 2
    await first.close()


async def test_an_answer_that_was_lost_overtakes_nobody(cluster: FakeCluster) -> None:
    lost: list[IcecoreError] = [RequestTimeoutError("lost") for _ in range(2)]
    cluster.positions.on_saved = lambda: lost.pop() if lost else None
    async with consumer(cluster) as c:
        await take(c, 3)
        await c.save_position()
        assert not lost
        await take(c, 1)
    assert cluster.positions.offsets("job")["t", 0] == 4


async def test_a_save_that_fails_for_a_while_is_repeated(cluster: FakeCluster) -> None:
    down: list[IcecoreError] = [RequestTimeoutError("away") for _ in range(3)]
    cluster.positions.on_save = lambda: down.pop() if down else None
    async with consumer(cluster, save_interval_s=OFTEN_S, timeout_s=0.2) as c:
        await take(c, 3)
        await until(lambda: cluster.positions.offsets("job").get(("t", 0)) == 2)
        assert not down


async def test_a_refusal_ends_the_reading(cluster: FakeCluster) -> None:
    cluster.positions.on_save = lambda: InvalidRequestError("too many names")
    async with consumer(cluster, save_interval_s=OFTEN_S) as c:
        with pytest.raises(InvalidRequestError, match="too many names"):
            while True:
                await c.poll(OFTEN_S)


@pytest.mark.parametrize("count", [0, 1, 3])
async def test_a_forged_number_of_outcomes_changes_nothing(
    cluster: FakeCluster, count: int
) -> None:
    forged = admin_pb2.SavePositionsResponse(
        outcomes=[admin_pb2.PositionOutcome(version=77) for _ in range(count)]
    )
    async with consumer(cluster) as c:
        await take(c, 3)
        cluster.positions.on_answer = lambda answer: answer.CopyFrom(forged)
        with pytest.raises(InternalError, match=f"{count} positions"):
            await c.save_position()
    connection = Connection(cluster.bootstrap, cluster.net)
    saved, topic_id = (
        SavedPositions(connection, "other", 10),
        next(iter(cluster.positions.saved))[1],
    )
    with pytest.raises(InternalError, match=f"{count} positions"):
        await saved.save(lambda: [ReaderPlace(topic_id, number, 7) for number in range(2)])
    assert [saved.offset(topic_id, number) for number in range(2)] == [None, None]
    await connection.close()


@pytest.mark.parametrize("version", ["", "-1", "x", "²", str(1 << 64), "9" * 5_000])
async def test_a_forged_version_of_our_own_save_is_refused(
    cluster: FakeCluster, version: str
) -> None:
    def forge(answer: admin_pb2.SavePositionsResponse) -> None:
        (instance,) = {instance for _, _, instance in cluster.positions.saved.values()}
        ours = {"instance": instance} | ({"version": version} if version else {})
        error = convert.error_to_proto(PositionConflictError("forged", **ours))
        for each in answer.outcomes:
            each.error.CopyFrom(error)

    async with consumer(cluster) as c:
        await take(c, 3)
        cluster.positions.on_answer = forge
        with pytest.raises(PositionConflictError, match="forged"):
            await c.save_position()


async def test_a_topic_made_again_has_no_position(cluster: FakeCluster) -> None:
    async with consumer(cluster) as c:
        await take(c, 13)
    cluster.add_topic("t")
    await fill(cluster, 0, 10)
    async with consumer(cluster) as c:
        assert await take(c, 10) == list(range(10))
    assert cluster.positions.offsets("job")["t", 0] == 10


async def test_a_topic_that_went_spares_the_others(cluster: FakeCluster) -> None:
    cluster.add_topic("u")
    async with consumer(cluster, topic=None, topics=["t", "u"]) as c:
        await take(c, 3)
        del cluster.topics["u"]
    assert cluster.positions.offsets("job")["t", 0] == 3


async def test_a_topic_that_is_made_in_a_moment_spares_what_is_saved_of_others(
    cluster: FakeCluster,
) -> None:
    async with consumer(cluster) as c:
        await take(c, 13)

    async def make_soon() -> None:
        await asyncio.sleep(0.2)
        cluster.add_topic("u")

    making = asyncio.create_task(make_soon())
    wanted = {"topic": None, "topics": ["t", "u"], "start": "latest", "wait_for_topic_s": 5}
    async with consumer(cluster, **wanted) as c:
        assert c.position("t") == {0: 13, 1: 0}
        assert c.position("u") == {0: 0}
    await making


async def test_who_is_overtaken_in_one_partition_saves_all_others(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saved_positions, "_PER_CALL", 2)
    cluster.add_topic("wide", 5)
    first = consumer(cluster, topic="wide", save_interval_s=None)
    await first.start()
    for key in [("job", cluster.topic_id("wide"), partition) for partition in (0, 3)]:
        cluster.positions.saved[key] = (7, 1, 9)
    with pytest.raises(PositionConflictError):
        await first.save_position()
    await first.close()
    offsets = cluster.positions.offsets("job")
    assert offsets == {("wide", at): 7 if at in (0, 3) else 0 for at in range(5)}


async def test_a_reset_to_what_is_saved_is_told_to_who_runs(cluster: FakeCluster) -> None:
    """It has read further since, and would take the reset back with its next save."""
    c = consumer(cluster, save_interval_s=None)
    await c.start()
    await c.save_position()
    await take(c, 3)
    async with Admin(cluster.bootstrap, net=cluster.net) as admin:
        changes = await admin.reset_position("job", "t", "earliest")
    assert (changes[0].before, changes[0].to) == (0, 0)
    with pytest.raises(PositionConflictError):
        await c.save_position()
    await c.close()
    assert cluster.positions.offsets("job")["t", 0] == 0


async def test_records_that_are_gone_are_told(cluster: FakeCluster) -> None:
    async with consumer(cluster) as c:
        await take(c, 3)
    cluster.topics["t"][0].log_start = 10
    async with consumer(cluster) as c:
        with pytest.raises(OffsetOutOfRangeError):
            await take(c, 1)
    async with consumer(cluster, on_out_of_range="earliest") as c:
        assert await take(c, 1) == [10]
        assert c.skipped_records()[0] == 7


async def test_partitions_of_many_pages_are_found(cluster: FakeCluster) -> None:
    cluster.add_topic("wide", 5)
    async with consumer(cluster, topic="wide"):
        pass
    assert len(cluster.positions.offsets("job")) == 5
    async with consumer(cluster, topic="wide") as c:
        assert len(c.position()) == 5


async def test_the_blocking_one_does_the_same(cluster: FakeCluster) -> None:
    await asyncio.to_thread(read_blocking, cluster)


def read_blocking(cluster: FakeCluster) -> None:
    with blocking.Consumer(cluster.bootstrap, "t", position="job") as c:
        for record in c:
            if record.offset == 12:
                break
    assert cluster.positions.offsets("job")["t", 0] == 13, "not what it has in store"
    with (
        pytest.raises(ZeroDivisionError),
        blocking.Consumer(cluster.bootstrap, "t", position="job") as c,
    ):
        for record in c:
            assert 1 / (record.offset - 15)
    assert cluster.positions.offsets("job")["t", 0] == 15
    with blocking.Consumer(cluster.bootstrap, "t", position="job", save_interval_s=None) as c:
        assert [each.offset for each in c.poll(LONG_S, 2)] == [15, 16]
        c.save_position()
        assert next(iter(c)).offset == 17
    assert cluster.positions.offsets("job")["t", 0] == 17
