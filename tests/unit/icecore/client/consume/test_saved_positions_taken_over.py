"""A consumer that begins takes its name over: a save of the one before it comes too late then."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio

from icecore import Consumer, Producer
from icecore.client.cluster.connection import Connection
from icecore.client.consume import saved_positions
from icecore.client.consume.saved_positions import ReaderPlace, SavedPositions
from icecore.errors import IcecoreError, InvalidRequestError, PositionConflictError
from icecore.errors import RequestTimeoutError as Lost
from icecore.rpc import convert
from icecore.v1 import admin_pb2
from tests.support.fake_cluster import FakeCluster

pytestmark = pytest.mark.timeout(60)
OFTEN_S = 0.1


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    """Topic t: 30 records in partition 0, none in partition 1; name "job" has read 10 of them."""
    async with FakeCluster() as cluster:
        cluster.add_topic("t", 2)
        async with Producer(cluster.bootstrap, net=cluster.net) as producer:
            await producer.send_batch("t", [b"%d" % n for n in range(30)], partition=0)
        for partition, offset in ((0, 10), (1, 0)):
            cluster.positions.saved["job", cluster.topic_id("t"), partition] = (offset, 5, 99)
        yield cluster


def consumer(cluster: FakeCluster, **kwargs: Any) -> Consumer:
    kwargs = {"topic": "t", "position": "job", "max_wait_ms": 100, **kwargs}
    return Consumer(cluster.bootstrap, net=cluster.net, **kwargs)


async def take(c: Consumer, count: int) -> list[int]:
    return [(await anext(c)).offset for _ in range(count)]


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.01)


def saved(cluster: FakeCluster, partition: int = 0) -> tuple[int, int]:
    """Offset and version."""
    return cluster.positions.saved["job", cluster.topic_id("t"), partition][:2]


async def test_a_late_save_of_the_one_before_is_refused(cluster: FakeCluster) -> None:
    """It was killed with that save under way; the next one goes on undisturbed."""
    connection = Connection(cluster.bootstrap, cluster.net)
    killed = SavedPositions(connection, "job", 10)
    await killed.load(["t"])
    async with consumer(cluster, save_interval_s=OFTEN_S) as c:
        with pytest.raises(PositionConflictError):
            await killed.save(lambda: [ReaderPlace(cluster.topic_id("t"), 0, 20)])
        assert saved(cluster)[0] == 10
        assert await take(c, 3) == [10, 11, 12]
        await until(lambda: saved(cluster)[0] == 12)
    assert saved(cluster)[0] == 13
    await connection.close()


@pytest.mark.parametrize("times", [1, 2])
async def test_what_was_saved_before_the_name_is_taken_over_counts(
    cluster: FakeCluster, times: int
) -> None:
    late = [times]

    def save() -> None:
        if late[0]:
            late[0] -= 1
            offset, version = saved(cluster)
            cluster.positions.saved["job", cluster.topic_id("t"), 0] = (offset + 5, version + 1, 99)

    cluster.positions.on_save = save
    async with consumer(cluster) as c:
        assert c.position() == {0: 10 + 5 * times, 1: 0}
        assert await take(c, 1) == [10 + 5 * times]
    assert saved(cluster)[0] == 11 + 5 * times


async def test_who_saves_again_and_again_is_told_of(cluster: FakeCluster) -> None:
    def save() -> None:
        offset, version = saved(cluster)
        cluster.positions.saved["job", cluster.topic_id("t"), 0] = (offset, version + 1, 99)

    cluster.positions.on_save = save
    with pytest.raises(PositionConflictError):
        await consumer(cluster).start()


async def test_of_two_that_run_the_one_before_is_told(cluster: FakeCluster) -> None:
    async with consumer(cluster, save_interval_s=OFTEN_S) as first:
        await take(first, 2)
        second = consumer(cluster, save_interval_s=OFTEN_S)
        await second.start()
        start = second.position()[0]
        assert start in (10, 11)
        with pytest.raises(PositionConflictError):
            while True:
                await first.poll(OFTEN_S)
    assert await take(second, 12) == list(range(start, start + 12))
    await until(lambda: saved(cluster)[0] == start + 11)
    await second.close()
    assert saved(cluster)[0] == start + 12


async def test_partitions_of_others_are_left_to_them(cluster: FakeCluster) -> None:
    async with consumer(cluster, partitions=[1]):
        assert saved(cluster, 0) == (10, 5)
        assert saved(cluster, 1) == (0, 6)
        async with consumer(cluster, partitions=[0]):
            assert (saved(cluster, 0), saved(cluster, 1)) == ((10, 6), (0, 6))


async def test_who_saves_by_hand_alone_disturbs_nobody_by_beginning(cluster: FakeCluster) -> None:
    async with consumer(cluster, save_interval_s=None) as c:
        await take(c, 3)
        assert (saved(cluster), cluster.positions.calls) == ((10, 5), 0)


async def test_one_call_takes_all_partitions_over(cluster: FakeCluster) -> None:
    for number in range(3):
        cluster.add_topic(f"wide-{number}", 40)
        for partition in range(40):
            key = ("job", cluster.topic_id(f"wide-{number}"), partition)
            cluster.positions.saved[key] = (0, 1, 99)
    names = [f"wide-{number}" for number in range(3)]
    async with consumer(cluster, topic=None, topics=names):
        assert cluster.positions.calls == 1
        assert sum(version == 2 for _, version, _ in cluster.positions.saved.values()) == 120


async def test_more_than_fit_into_a_call(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saved_positions, "_PER_CALL", 1)
    async with consumer(cluster):
        assert (saved(cluster, 0), saved(cluster, 1)) == ((10, 6), (0, 6))


async def test_nothing_is_taken_over_where_nothing_is_saved(cluster: FakeCluster) -> None:
    async with consumer(cluster, position="other"):
        assert cluster.positions.calls == 0


async def test_what_was_deleted_meanwhile_is_not_saved_again(cluster: FakeCluster) -> None:
    def delete() -> None:
        cluster.positions.saved.pop(("job", cluster.topic_id("t"), 0), None)

    cluster.positions.on_save = delete
    c = consumer(cluster)
    await c.start()
    assert c.position() == {0: 0, 1: 0}
    assert cluster.positions.offsets("job") == {("t", 1): 0}
    cluster.positions.on_save = lambda: None
    await c.close()


async def test_an_answer_that_was_lost_takes_over_all_the_same(cluster: FakeCluster) -> None:
    lost: list[IcecoreError] = [Lost("lost") for _ in range(2)]
    cluster.positions.on_saved = lambda: lost.pop() if lost else None
    async with consumer(cluster) as c:
        assert not lost and c.position()[0] == 10
        assert saved(cluster) == (10, 6)
        await take(c, 1)
    assert saved(cluster) == (11, 7)


async def test_a_topic_that_went_meanwhile_is_passed_over(cluster: FakeCluster) -> None:
    connection = Connection(cluster.bootstrap, cluster.net)
    reader = SavedPositions(connection, "job", 10, takes_over=True)

    def go() -> None:
        cluster.topics.pop("t", None)

    cluster.positions.on_save = go
    await reader.load(["t"])
    await connection.close()


async def test_a_refusal_ends_the_start(cluster: FakeCluster) -> None:
    cluster.positions.on_save = lambda: InvalidRequestError("no such name")
    with pytest.raises(InvalidRequestError, match="no such name"):
        await consumer(cluster).start()


@pytest.mark.parametrize("metadata", [{}, {"version": 7}, {"version": "x", "offset": 1}])
async def test_a_forged_refusal_says_so(cluster: FakeCluster, metadata: dict[str, Any]) -> None:
    def forge(answer: admin_pb2.SavePositionsResponse) -> None:
        error = convert.error_to_proto(PositionConflictError("forged", **metadata))
        for each in answer.outcomes:
            each.error.CopyFrom(error)

    cluster.positions.on_answer = forge
    with pytest.raises(PositionConflictError, match="forged"):
        await consumer(cluster).start()
