"""Tasks that are run again: the function that an executor runs, without Spark, on a fake cluster.

An attempt is what a driver starts: all of its tasks have one number. A driver that is killed leaves
some of them behind, done or half done or not begun.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence

import pyarrow as pa
import pytest

from icecore.client import Consumer
from icecore.errors import (
    ConflictError,
    InvalidRequestError,
    TopicRecreatedError,
    UnavailableError,
    UnknownTopicError,
)
from icecore.spark.tasks import appender as appenders
from icecore.spark.tasks import division as divisions
from icecore.spark.tasks import rows as task_rows
from icecore.spark.tasks.appender import Appender, find_topic
from icecore.spark.tasks.division import TaskDivision
from icecore.spark.tasks.identity import SparkTaskChangedError, identity
from icecore.spark.tasks.rows import AppendedRows, append_all
from icecore.v1 import data_pb2
from tests.support.fake_cluster import FakeCluster, Fate

ROWS = [b"%03d %s" % (number, b"x" * (number * 37 % 90)) for number in range(120)]
"""They have 4 to 93 bytes, so that batches end at other rows when they begin at another one."""

KINDS = (b"one", b"two", b"new")
ALL = 1_000
"""More batches than there are."""


@pytest.fixture
async def cluster(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FakeCluster]:
    monkeypatch.setattr(task_rows, "BATCH_BYTES", 300)
    monkeypatch.setattr(task_rows, "ROUND_BYTES", 600)
    async with FakeCluster(batches_kept=32) as started:
        started.add_topic("t", partitions=2)
        yield started


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(divisions, "WAIT_S", 0.4)


def rows_of(values: Sequence[bytes], partition: int | None = None) -> pa.RecordBatch:
    columns = {"value": pa.array(values, pa.binary())}
    if partition is not None:
        columns["partition"] = pa.array([partition] * len(values), pa.int32())
    return pa.RecordBatch.from_pydict(columns)


async def run(
    cluster: FakeCluster,
    attempt: int,
    task: int,
    rows: Iterable[pa.RecordBatch],
    *,
    batch: int = 0,
    topic_id: bytes = b"",
    follows: bool = False,
) -> AppendedRows:
    producer_id, epoch = identity("q", task, batch)
    appender = Appender(
        cluster.bootstrap,
        "t",
        producer_id=producer_id,
        producer_epoch=epoch,
        acks="all",
        codec="none",
        topic_id=topic_id,
    )
    division = TaskDivision(appender.connection, "q", attempt, follows=follows)
    return await append_all(appender, iter(rows), task, division)


def in_pieces(values: Sequence[bytes], each: int = 5) -> list[pa.RecordBatch]:
    return [rows_of(values[at : at + each]) for at in range(0, len(values), each)]


def divided(tasks: int) -> dict[int, list[pa.RecordBatch]]:
    """The rows as so many tasks have them."""
    size = -(-len(ROWS) // tasks)
    return {n: in_pieces(ROWS[n * size : n * size + size]) for n in range(tasks)}


async def written(cluster: FakeCluster) -> Counter[bytes | None]:
    async with Consumer(cluster.bootstrap, "t", stop_at_end=True) as consumer:
        return Counter([record.value async for record in consumer])


def killed_after(cluster: FakeCluster, batches: int) -> Callable[[], None]:
    """Let so many batches pass and refuse all others; how to end that."""
    left = [batches]

    def fate(*_: object) -> Fate:
        left[0] -= 1
        return Fate() if left[0] >= 0 else Fate(InvalidRequestError("it is dead"), append=False)

    cluster.on_produce = fate

    def end() -> None:
        cluster.on_produce = lambda *_: Fate()

    return end


async def attempt_at(
    cluster: FakeCluster, number: int, tasks: int, slots: int = 8
) -> list[BaseException]:
    """All tasks of an attempt, lowest numbers first; what went wrong. The first failure ends it."""
    free, failed = asyncio.Semaphore(slots), list[BaseException]()

    async def one(task: int, rows: list[pa.RecordBatch]) -> None:
        async with free:
            if failed:
                return
            try:
                await run(cluster, number, task, rows)
            except Exception as error:
                failed.append(error)

    await asyncio.gather(*(one(*each) for each in divided(tasks).items()))
    return failed


@pytest.mark.parametrize("before", [1, 3, 5, 14, ALL])
@pytest.mark.parametrize(("first", "second"), [(1, 8), (8, 1), (2, 3)])
@pytest.mark.usefixtures("impatient")
async def test_another_number_of_tasks_writes_nothing_twice(
    cluster: FakeCluster, first: int, second: int, before: int
) -> None:
    """Whenever the first driver was killed. Unless each task begins with what was written, the
    attempt fails, and the old number finishes."""
    end = killed_after(cluster, before)
    await attempt_at(cluster, 1, first)
    end()
    found = await written(cluster)
    assert found
    errors = await attempt_at(cluster, 2, second)
    if errors or before == ALL:
        assert [type(each) for each in errors[:1]] == [SparkTaskChangedError]
        assert await written(cluster) == found
        assert not await attempt_at(cluster, 3, first)
    assert await written(cluster) == Counter(ROWS)


@pytest.mark.parametrize("before", [0, 1, 3, 9, ALL])
@pytest.mark.parametrize(("tasks", "slots"), [(1, 1), (3, 2)])
@pytest.mark.parametrize("as_bits", [0, 32])
async def test_the_same_tasks_finish_what_was_begun(
    cluster: FakeCluster,
    tasks: int,
    slots: int,
    before: int,
    as_bits: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(divisions, "TASKS_AS_BITS", as_bits)
    for number in (1, 2):
        end = killed_after(cluster, before * number)
        await attempt_at(cluster, number, tasks, slots)
        end()
    assert not await attempt_at(cluster, 3, tasks, slots)
    assert await written(cluster) == Counter(ROWS)


@pytest.mark.usefixtures("impatient")
async def test_other_rows_in_the_same_number_of_tasks(cluster: FakeCluster) -> None:
    """A file of one task has gone to the other: its number alone would say that nothing changed."""
    halves = ROWS[:40], ROWS[40:]
    end = killed_after(cluster, ALL)
    await run(cluster, 1, 0, in_pieces(halves[0]))
    end()

    async def again() -> list[type[BaseException]]:
        found = await asyncio.gather(
            run(cluster, 2, 0, in_pieces(ROWS[:20])),
            run(cluster, 2, 1, in_pieces(ROWS[20:])),
            return_exceptions=True,
        )
        return [type(each) for each in found if isinstance(each, BaseException)]

    assert await again() == [SparkTaskChangedError] * 2
    assert await written(cluster) == Counter(halves[0])


@pytest.mark.usefixtures("impatient")
async def test_what_says_so_names_the_tasks_and_what_to_do(cluster: FakeCluster) -> None:
    await run(cluster, 1, 3, in_pieces(ROWS))
    with pytest.raises(SparkTaskChangedError, match=r"of the tasks 3.*appended nothing.*cores"):
        await run(cluster, 2, 0, in_pieces(ROWS))


@pytest.mark.parametrize("answers", [3, 8])
@pytest.mark.usefixtures("impatient")
async def test_a_leader_of_before_is_not_believed(cluster: FakeCluster, answers: int) -> None:
    """It has not heard that another one leads, and knows of no task what that one has appended."""
    await attempt_at(cluster, 1, 1)
    left = [answers]

    def forget(answer: data_pb2.ListOffsetsResponse) -> None:
        left[0] -= 1
        for each in answer.partitions if left[0] >= 0 else ():
            each.segment_id -= 1
            each.ClearField("producers")

    cluster.on_offsets = forget
    errors = await attempt_at(cluster, 2, 8)
    assert [type(each) for each in errors[:1]] == [SparkTaskChangedError]
    assert await written(cluster) == Counter(ROWS)


async def test_a_segment_that_is_rolled_meanwhile_counts(cluster: FakeCluster) -> None:
    """The leader's answer is of the newest one, and newer than what was asked before."""
    await run(cluster, 1, 0, in_pieces(ROWS))
    rolled: list[int] = []

    def roll(answer: data_pb2.ListOffsetsResponse) -> None:
        if not rolled:
            for partition in cluster.topics["t"]:
                partition.open(partition.tail.record.leader, partition.tail.record.replicas)
                rolled.append(partition.tail.record.segment_id)

    cluster.on_offsets = roll
    assert (await run(cluster, 2, 0, in_pieces(ROWS))).duplicates == len(ROWS)
    assert len(rolled) == 2


async def test_a_task_without_rows_waits_for_nobody(cluster: FakeCluster) -> None:
    """Else it would take the place of one that others wait for."""
    await run(cluster, 1, 3, in_pieces(ROWS))
    assert (await run(cluster, 2, 0, [])).records == 0


@pytest.mark.parametrize("marks", [b"other", b"x" * 300])
async def test_other_rows_are_not_taken_for_equal(cluster: FakeCluster, marks: bytes) -> None:
    """Batches end elsewhere, which leaders answer as they answer what they have forgotten."""
    await run(cluster, 1, 0, in_pieces(ROWS[:118]))
    found = await written(cluster)
    other = [marks + value for value in ROWS[:118]]
    with pytest.raises(SparkTaskChangedError, match="earlier attempt of this task wrote other"):
        await run(cluster, 1, 0, in_pieces(other))  # Spark itself runs it again
    with pytest.raises(SparkTaskChangedError, match="earlier attempt of this task wrote other"):
        await run(cluster, 2, 0, in_pieces(other))  # another driver does
    assert await written(cluster) == found


@pytest.mark.parametrize("count", [119, 60, 1, 0])
async def test_fewer_rows_are_not_the_same(cluster: FakeCluster, count: int) -> None:
    await run(cluster, 1, 0, in_pieces(ROWS))
    with pytest.raises(SparkTaskChangedError):
        await run(cluster, 2, 0, in_pieces(ROWS[:count]))
    if count > 1:
        with pytest.raises(SparkTaskChangedError):
            await run(cluster, 2, 0, in_pieces(ROWS[:count]))


async def test_what_is_forgotten_is_said(cluster: FakeCluster) -> None:
    """More batches than a leader remembers; the last ones are compared all the same."""
    cluster.batches_kept = 3
    await run(cluster, 1, 0, in_pieces(ROWS))
    found = await run(cluster, 2, 0, in_pieces(ROWS))
    assert found.duplicates == len(ROWS)
    assert 0 < found.uncompared < len(ROWS)
    other = [*ROWS[:-1], b"%03d" % 119 + b"y" * (len(ROWS[-1]) - 3)]
    with pytest.raises(SparkTaskChangedError):
        await run(cluster, 2, 0, in_pieces(other))
    assert await written(cluster) == Counter(ROWS)


async def test_new_rows_wait_until_all_of_before_have_come(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """New ones of one partition come long before the last known one of the other does."""
    one, two, new = ([b"%s%02d" % (kind, n) + bytes(300) for n in range(20)] for kind in KINDS)
    await run(cluster, 1, 0, [rows_of(two, 1), rows_of(one, 0)])
    again = [rows_of(one, 0), rows_of(new, 0), rows_of(two, 1), rows_of(new, 1)]
    assert (await run(cluster, 2, 0, again)).duplicates == 40
    assert await written(cluster) == Counter([*one, *two, *new, *new])
    monkeypatch.setattr("icecore.spark.tasks.outbox.HELD_BYTES_MAX", 5_000)
    more = [rows_of(one + new, 0), rows_of(new, 0), rows_of(two, 1)]
    with pytest.raises(SparkTaskChangedError, match=r"t/1: .*had appended 40 rows, and of these"):
        await run(cluster, 3, 0, more)


async def test_another_driver_takes_over(cluster: FakeCluster) -> None:
    await run(cluster, 1, 5, in_pieces(ROWS))
    waiting = asyncio.ensure_future(run(cluster, 2, 0, in_pieces(ROWS)))
    await asyncio.sleep(0.15)
    await run(cluster, 3, 5, in_pieces(ROWS))
    with pytest.raises(ConflictError, match="another attempt at this write has begun"):
        await waiting
    assert await written(cluster) == Counter(ROWS)


async def test_answers_that_are_lost_change_nothing(cluster: FakeCluster) -> None:
    """Each save is stored, and said to have failed, once."""
    await run(cluster, 1, 0, in_pieces(ROWS[:60]))
    answers = iter([UnavailableError("lost", indeterminate=True), None] * 50)
    cluster.positions.on_saved = lambda: next(answers)
    await asyncio.gather(
        run(cluster, 2, 0, in_pieces(ROWS[:60])), run(cluster, 2, 1, in_pieces(ROWS[60:]))
    )
    assert await written(cluster) == Counter(ROWS)


@pytest.mark.parametrize("as_bits", [0, 32])
@pytest.mark.usefixtures("impatient")
async def test_a_task_takes_itself_out_once_also_when_the_answer_is_lost(
    cluster: FakeCluster, as_bits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the sum of the others never comes to 0, and all wait in vain."""
    monkeypatch.setattr(divisions, "TASKS_AS_BITS", as_bits)
    parts = [ROWS[n * 30 : n * 30 + 30] for n in range(4)]
    for task in range(3):
        await run(cluster, 1, task, in_pieces(parts[task]))
    known = dict(cluster.positions.saved)

    def lose() -> UnavailableError | None:
        if known == cluster.positions.saved:
            return None  # it was refused, and that is said
        known.update(cluster.positions.saved)
        return UnavailableError("lost", indeterminate=True)

    cluster.positions.on_saved = lose
    for task in range(4):
        await run(cluster, 2, task, in_pieces(parts[task]))
    assert await written(cluster) == Counter(ROWS)


async def test_micro_batches_follow_each_other(cluster: FakeCluster) -> None:
    for batch in range(3):
        tasks = [run(cluster, 7 + batch, n, in_pieces(ROWS), batch=batch) for n in range(2)]
        await asyncio.gather(*tasks)
    assert await written(cluster) == Counter(ROWS * 6)
    assert len(cluster.positions.saved) == 1


async def test_a_topic_that_was_made_again_is_another(cluster: FakeCluster) -> None:
    meant = cluster.topic_id("t")
    await run(cluster, 1, 0, in_pieces(ROWS), topic_id=meant)
    del cluster.topics["t"]
    cluster.add_topic("t", partitions=2)
    with pytest.raises(TopicRecreatedError):
        await run(cluster, 1, 1, in_pieces(ROWS), topic_id=meant)
    assert not await written(cluster)


async def test_a_micro_batch_goes_where_those_before_went(cluster: FakeCluster) -> None:
    await run(cluster, 1, 0, in_pieces(ROWS), batch=0)
    del cluster.topics["t"]
    cluster.positions.saved.clear()  # they go with their topic
    cluster.add_topic("t", partitions=2)
    now = cluster.topic_id("t")
    with pytest.raises(TopicRecreatedError, match=f"topicId={now.hex()}"):
        await run(cluster, 2, 0, in_pieces(ROWS), batch=1, follows=True)
    assert not await written(cluster)
    await run(cluster, 3, 0, in_pieces(ROWS), batch=1)  # topicId was given
    await run(cluster, 4, 0, in_pieces(ROWS), batch=2, follows=True)
    assert await written(cluster) == Counter(ROWS * 2)


async def test_a_driver_finds_its_topic(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(appenders, "FIND_TIMEOUT_S", 0.5)
    assert await find_topic(cluster.bootstrap, "t") == cluster.topic_id("t")
    with pytest.raises(UnknownTopicError):
        await find_topic(cluster.bootstrap, "missing")
