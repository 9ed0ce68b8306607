"""A task on given ports: the simulator's are the only way to its cluster."""

import pyarrow as pa
import pytest

from icecore.client.cluster import connection
from icecore.process.system import SystemClock, SystemRng
from icecore.rpc.transports import Transports
from icecore.spark.tasks import rows as task_rows
from icecore.spark.tasks.appender import Appender
from icecore.spark.tasks.division import TaskDivision
from icecore.spark.tasks.identity import identity
from icecore.spark.tasks.rows import AppendedRows, append_all
from icecore.topic_settings import SegmentSettings
from tests.support.fake_cluster import FakeCluster

ROWS = [b"%03d" % number for number in range(60)]


def refuse() -> Transports:
    raise AssertionError("a network of its own was made")


class SlowClock(SystemClock):
    """Long ago."""

    def now_ms(self) -> int:
        return 1_000_000


async def test_all_calls_go_through_the_given_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the consumer that compares, too, which closes no net that it was given."""
    monkeypatch.setattr(task_rows, "BATCH_BYTES", 300)
    net = Transports()
    monkeypatch.setattr(connection, "Transports", refuse)
    async with FakeCluster() as cluster:
        cluster.add_topic("t", partitions=2)

        async def run(attempt: int) -> AppendedRows:
            producer_id, epoch = identity("q", 0, 0)
            appender = Appender(
                cluster.bootstrap,
                "t",
                producer_id=producer_id,
                producer_epoch=epoch,
                acks="all",
                codec="none",
                net=net,
                clock=SlowClock(),
                rng=SystemRng(),
            )
            division = TaskDivision(appender.connection, "q", attempt)
            rows = pa.record_batch({"value": ROWS})
            return await append_all(appender, iter([rows]), 0, division)

        assert await run(1) == AppendedRows(60, 0)
        assert (await run(2)).duplicates == 60
    await net.close()


async def test_rows_without_a_time_have_that_of_the_given_clock() -> None:
    cutter = task_rows.Cutter(1, task=0, clock=SlowClock())
    cutter.add(pa.record_batch({"value": [b"a"]}))
    ((batch,),) = cutter.take(is_last=True).values()
    assert batch.column("timestamp_ms").to_pylist() == [1_000_000]


async def test_a_batch_that_a_segment_does_not_take_is_divided_alike_each_time() -> None:
    """The segment was opened under a lower limit than the topic has now."""
    net = Transports()
    async with FakeCluster() as cluster:
        cluster.topic_settings["t"] = SegmentSettings(record_bytes_max=100, batch_bytes_max=500)
        (partition,) = cluster.add_topic("t")
        cluster.topic_settings["t"] = SegmentSettings()

        async def run(attempt: int) -> AppendedRows:
            producer_id, epoch = identity("q", 0, 0)
            appender = Appender(
                cluster.bootstrap,
                "t",
                producer_id=producer_id,
                producer_epoch=epoch,
                acks="all",
                codec="none",
                net=net,
            )
            division = TaskDivision(appender.connection, "q", attempt)
            rows = iter([pa.record_batch({"value": ROWS})])
            return await append_all(appender, rows, 0, division)

        assert await run(1) == AppendedRows(60, 0)
        again = await run(2)
        assert (again.records, again.duplicates) == (60, 60)
        assert partition.tail.end == 60
    await net.close()
