"""Streaming queries with a real Spark: each record once, however often a query is ended."""

import json
import shutil
import time
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import StreamingQuery

from icecore.blocking import Admin, Consumer, Producer
from icecore.dev import LocalCluster
from icecore.errors import InvalidRequestError
from icecore.model import Segment, SegmentState
from tests.chaos.damage import segment_file


def create(cluster: LocalCluster, topic: str, partitions: int = 2, copies: int = 1) -> None:
    with Admin(cluster.bootstrap) as admin:
        admin.create_topic(topic, partitions=partitions, replication_factor=copies)


def produce(cluster: LocalCluster, topic: str, start: int, count: int) -> None:
    with Producer(cluster.bootstrap) as producer:
        values = [b"%d" % number for number in range(start, start + count)]
        producer.send_batch(topic, values, keys=values)


def stream(spark: SparkSession, cluster: LocalCluster, topic: str, **options: str) -> DataFrame:
    given = {"startingOffsets": "earliest"} | options
    reading = spark.readStream.format("icecore").options(topic=topic, bootstrap=cluster.bootstrap)
    return reading.options(**given).load()


def to_table(rows: DataFrame, folder: Path, checkpoint: str = "checkpoint") -> StreamingQuery:
    writing = rows.selectExpr("partition", "offset", "cast(value as string) value")
    return (
        writing.writeStream.format("parquet")
        .option("checkpointLocation", str(folder / checkpoint))
        .trigger(availableNow=True)
        .start(str(folder / "table"))
    )


def to_topic(
    rows: DataFrame, cluster: LocalCluster, topic: str, folder: Path, **options: str
) -> StreamingQuery:
    return (
        rows.select("key", "value", "timestamp")
        .writeStream.format("icecore")
        .options(topic=topic, bootstrap=cluster.bootstrap, **options)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )


def numbers(spark: SparkSession, folder: Path) -> Counter[int]:
    rows = spark.read.parquet(str(folder / "table")).select("value").collect()
    return Counter(int(row.value) for row in rows)


def values(cluster: LocalCluster, topic: str) -> Counter[int]:
    with Consumer(cluster.bootstrap, topic, stop_at_end=True) as consumer:
        return Counter(int(record.value or b"-1") for record in consumer)


def test_available_now_goes_on_from_its_checkpoint(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    create(cluster, "steps", partitions=2)
    total = 0
    for step, added in enumerate((500, 300, 0, 200)):
        if step == 1:
            with Admin(cluster.bootstrap) as admin:
                admin.add_partitions("steps", 3)
        if added:
            produce(cluster, "steps", total, added)
        total += added
        query = to_table(stream(spark, cluster, "steps", maxOffsetsPerTrigger="180"), tmp_path)
        query.awaitTermination()
        assert numbers(spark, tmp_path) == Counter(range(total))
        if step == 0:
            batches = [each["numInputRows"] for each in query.recentProgress]
            assert sum(batches) == 500
            assert max(batches) <= 180


def undo_commit(folder: Path) -> None:
    """As if the driver had been killed when all was written, and Spark had not noted that."""
    for name in ("0", ".0.crc"):
        (folder / "checkpoint" / "commits" / name).unlink()


def test_a_micro_batch_keeps_its_tasks(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    """Another minPartitions counts from the next one on."""
    for topic in ("tasks-from", "tasks-to"):
        create(cluster, topic, partitions=1)
    produce(cluster, "tasks-from", 0, 300)
    to_topic(stream(spark, cluster, "tasks-from"), cluster, "tasks-to", tmp_path).awaitTermination()
    undo_commit(tmp_path)
    again = stream(spark, cluster, "tasks-from", minPartitions="6")
    to_topic(again, cluster, "tasks-to", tmp_path).awaitTermination()
    assert values(cluster, "tasks-to") == Counter(range(300))


def test_files_in_other_tasks_are_not_written_twice(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    """Spark packs files into tasks by the number of cores, or as here by a setting."""
    create(cluster, "packed", partitions=2)
    (tmp_path / "in").mkdir()
    for number in range(4):
        lines = [json.dumps({"key": str(n), "value": str(n)}) for n in range(number, 400, 4)]
        (tmp_path / "in" / f"{number}.json").write_text("\n".join(lines))

    def run() -> StreamingQuery:
        rows = spark.readStream.schema("key string, value string").json(str(tmp_path / "in"))
        return to_topic(rows.selectExpr("*", "now() timestamp"), cluster, "packed", tmp_path)

    run().awaitTermination()
    undo_commit(tmp_path)
    spark.conf.set("spark.sql.files.maxPartitionBytes", "1000")
    try:
        with pytest.raises(Exception, match="divided into other tasks"):
            run().awaitTermination()
    finally:
        spark.conf.unset("spark.sql.files.maxPartitionBytes")
    assert values(cluster, "packed") == Counter(range(400))
    run().awaitTermination()
    assert values(cluster, "packed") == Counter(range(400))


def until_committed(query: StreamingQuery, folder: Path, batches: int) -> None:
    """Wait until a query has so many micro-batches more behind it: it is in the middle of the next
    one then."""
    commits, deadline = folder / "checkpoint" / "commits", time.monotonic() + 60

    def last() -> int:
        names = [each.name for each in commits.glob("*")]
        return max((int(name) for name in names if name.isdecimal()), default=-1)

    wanted = last() + batches
    while last() < wanted:
        assert query.isActive, query.exception() or "it has read everything already"
        assert time.monotonic() < deadline, query.lastProgress
        time.sleep(0.02)


@pytest.mark.every(2, turn=0)
def test_stopped_query_sees_each_record_once(
    spark: SparkSession, mortal: LocalCluster, tmp_path: Path
) -> None:
    """Stopped in the middle of batches, while a node dies and comes back."""
    create(mortal, "stopped", partitions=3, copies=3)
    produce(mortal, "stopped", 0, 3_000)
    for is_killing in (False, True):
        query = to_table(stream(spark, mortal, "stopped", maxOffsetsPerTrigger="150"), tmp_path)
        if is_killing:
            mortal.kill_node(1)
        until_committed(query, tmp_path, 2)
        query.stop()
    mortal.start_node(1)
    produce(mortal, "stopped", 3_000, 500)
    query = to_table(stream(spark, mortal, "stopped", maxOffsetsPerTrigger="2000"), tmp_path)
    query.awaitTermination()
    assert numbers(spark, tmp_path) == Counter(range(3_500))


@pytest.mark.every(2, turn=0)
def test_stopped_writes_leave_each_record_once(
    spark: SparkSession, mortal: LocalCluster, tmp_path: Path
) -> None:
    """A node dies between two batches that go on without it."""
    create(mortal, "from", partitions=3, copies=3)
    create(mortal, "to", partitions=2, copies=3)
    produce(mortal, "from", 0, 3_000)
    for is_killing in (False, True):
        rows = stream(spark, mortal, "from", maxOffsetsPerTrigger="200")
        query = to_topic(rows, mortal, "to", tmp_path)
        until_committed(query, tmp_path, 1)
        if is_killing:
            mortal.kill_node(2)
            until_committed(query, tmp_path, 2)
        query.stop()
    mortal.start_node(2)
    query = to_topic(stream(spark, mortal, "from"), mortal, "to", tmp_path)
    query.awaitTermination()
    assert values(mortal, "to") == Counter(range(3_000))


def test_batch_that_was_written_is_not_written_again(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    """Killed between the write and the note of it: the note is taken away here."""
    create(cluster, "noted")
    create(cluster, "again")
    produce(cluster, "noted", 0, 1_000)
    query = to_topic(stream(spark, cluster, "noted"), cluster, "again", tmp_path)
    query.awaitTermination()
    for name in ("0", ".0.crc"):
        (tmp_path / "checkpoint" / "commits" / name).unlink()
    query = to_topic(stream(spark, cluster, "noted"), cluster, "again", tmp_path)
    query.awaitTermination()
    assert query.lastProgress["numInputRows"] == 1_000
    assert values(cluster, "again") == Counter(range(1_000))


def test_a_query_that_began_with_nothing_goes_on(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    create(cluster, "from-empty")
    create(cluster, "to-empty")
    for _ in range(2):
        to_topic(
            stream(spark, cluster, "from-empty"), cluster, "to-empty", tmp_path
        ).awaitTermination()
    produce(cluster, "from-empty", 0, 100)
    rows = stream(spark, cluster, "from-empty")
    to_topic(rows, cluster, "to-empty", tmp_path).awaitTermination()
    assert values(cluster, "to-empty") == Counter(range(100))


def test_what_it_wrote_into_was_made_again(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    create(cluster, "source")
    create(cluster, "sunk")
    produce(cluster, "source", 0, 100)
    to_topic(stream(spark, cluster, "source"), cluster, "sunk", tmp_path).awaitTermination()
    produce(cluster, "source", 100, 100)
    with Admin(cluster.bootstrap) as admin:
        admin.delete_topic("sunk")
        create(cluster, "sunk")
        (described,) = admin.describe_topics(["sunk"])
    rows = stream(spark, cluster, "source")
    with pytest.raises(Exception, match="topicId=" + described.topic_id.hex()):
        to_topic(rows, cluster, "sunk", tmp_path).awaitTermination()
    assert values(cluster, "sunk") == Counter()
    meant = described.topic_id.hex()
    to_topic(rows, cluster, "sunk", tmp_path, topicId=meant).awaitTermination()
    assert values(cluster, "sunk") == Counter(range(100, 200))


def test_checkpoint_of_another_topic(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    create(cluster, "one")
    create(cluster, "two")
    produce(cluster, "one", 0, 10)
    to_table(stream(spark, cluster, "one"), tmp_path).awaitTermination()
    with pytest.raises(Exception, match="checkpoint is of topic one, the query reads two"):
        to_table(stream(spark, cluster, "two"), tmp_path).awaitTermination()


def test_topic_that_is_gone(spark: SparkSession, cluster: LocalCluster, tmp_path: Path) -> None:
    create(cluster, "gone")
    produce(cluster, "gone", 0, 10)
    to_table(stream(spark, cluster, "gone"), tmp_path).awaitTermination()
    with Admin(cluster.bootstrap) as admin:
        admin.delete_topic("gone")
        create(cluster, "gone")
        with pytest.raises(Exception, match="made again, or is another one"):
            to_table(stream(spark, cluster, "gone"), tmp_path).awaitTermination()
        admin.delete_topic("gone")
    with pytest.raises(Exception, match="does not exist, or was deleted"):
        to_table(stream(spark, cluster, "gone"), tmp_path).awaitTermination()


def test_records_deleted_before_they_were_read(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    create(cluster, "outrun", partitions=1)
    produce(cluster, "outrun", 0, 100)
    to_table(stream(spark, cluster, "outrun"), tmp_path).awaitTermination()
    produce(cluster, "outrun", 100, 100)
    with Admin(cluster.bootstrap) as admin:
        admin.delete_records("outrun", {0: 150})
    shutil.copytree(tmp_path, tmp_path.with_name("strict"))
    with pytest.raises(Exception, match="deleted before they were read"):
        to_table(stream(spark, cluster, "outrun"), tmp_path.with_name("strict")).awaitTermination()
    lenient = stream(spark, cluster, "outrun", failOnDataLoss="false")
    to_table(lenient, tmp_path).awaitTermination()
    assert numbers(spark, tmp_path) == Counter([*range(100), *range(150, 200)])


def test_a_log_that_ends_before_the_checkpoint(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    """As after a restore by an older version, which gave offsets out again."""
    create(cluster, "shorter", partitions=1)
    produce(cluster, "shorter", 0, 100)
    to_table(stream(spark, cluster, "shorter"), tmp_path).awaitTermination()
    noted = tmp_path / "checkpoint" / "offsets" / "0"
    text = noted.read_text()
    assert text.count('"0": 100') == 1
    noted.write_text(text.replace('"0": 100', '"0": 150'))
    (noted.parent / ".0.crc").unlink(missing_ok=True)
    produce(cluster, "shorter", 100, 30)
    query = to_table(stream(spark, cluster, "shorter"), tmp_path)
    with pytest.raises(Exception, match="ends at offset 130, and the query has read up to 150"):
        query.awaitTermination()
    lossy = {"failOnDataLoss": "false"}
    to_table(stream(spark, cluster, "shorter", **lossy), tmp_path).awaitTermination()
    produce(cluster, "shorter", 130, 40)
    to_table(stream(spark, cluster, "shorter", **lossy), tmp_path).awaitTermination()
    assert numbers(spark, tmp_path) == Counter([*range(100), *range(130, 170)])


def lose_the_active_segment(cluster: LocalCluster, topic: str) -> None:
    """The only copy of it is gone, and a person says that the partition goes on."""
    with Admin(cluster.bootstrap) as admin:
        [active] = [
            each for each in admin.list_segments(topic) if each.state is SegmentState.ACTIVE
        ]
    cluster.kill_node(active.leader)
    lost = segment_file(cluster.folder / f"node-{active.leader}", active)
    assert lost is not None
    lost.unlink()
    cluster.start_node(active.leader)
    with Admin(cluster.bootstrap) as admin:
        until_s = time.monotonic() + 60
        while True:
            try:
                admin.recover_unclean(topic, 0, active.segment_id)
                return
            except InvalidRequestError:  # it is not RECOVERING yet
                assert time.monotonic() < until_s
                time.sleep(0.1)


def test_offsets_that_were_left_out_are_passed(spark: SparkSession, tmp_path: Path) -> None:
    """A query goes on behind a loss of what it had read, in micro-batches as small as ever."""
    with LocalCluster(tmp_path / "cluster", nodes=1) as cluster:
        create(cluster, "holed", partitions=1)
        produce(cluster, "holed", 0, 100)
        with Admin(cluster.bootstrap) as admin:
            while admin.list_segments("holed")[0].state is not SegmentState.SEALED:
                admin.roll_topic("holed")  # until the coordinator has heard of the records
                time.sleep(0.1)
        produce(cluster, "holed", 100, 30)
        to_table(stream(spark, cluster, "holed"), tmp_path).awaitTermination()
        lose_the_active_segment(cluster, "holed")
        produce(cluster, "holed", 130, 50)
        before = len([*(tmp_path / "checkpoint" / "commits").glob("[0-9]*")])
        limited = stream(spark, cluster, "holed", maxOffsetsPerTrigger="20", minPartitions="2")
        to_table(limited, tmp_path).awaitTermination()
        assert numbers(spark, tmp_path) == Counter(range(180))
        commits = len([*(tmp_path / "checkpoint" / "commits").glob("[0-9]*")])
        assert commits - before == 3
        where = {"topic": "holed", "bootstrap": cluster.bootstrap, "minPartitions": "4"}
        reading = spark.read.format("icecore").options(**where)
        everything = reading.option("failOnDataLoss", "false").load()
        assert everything.rdd.getNumPartitions() <= 6
        assert everything.count() == 150
        with pytest.raises(Exception, match="declared lost"):
            spark.read.format("icecore").options(**where).load().count()


def test_latest_is_where_a_query_begins(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    create(cluster, "begins")
    produce(cluster, "begins", 0, 50)
    to_table(
        stream(spark, cluster, "begins", startingOffsets="latest"), tmp_path
    ).awaitTermination()
    produce(cluster, "begins", 50, 20)
    to_table(
        stream(spark, cluster, "begins", startingOffsets="latest"), tmp_path
    ).awaitTermination()
    assert numbers(spark, tmp_path) == Counter(range(50, 70))


def test_limits_by_bytes_and_segments(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    create(cluster, "limited", partitions=1)
    with Admin(cluster.bootstrap) as admin:
        for start in (0, 100, 200):
            produce(cluster, "limited", start, 100)
            sealed: list[Segment] = []
            while sum(each.end_offset - each.base_offset for each in sealed) < start + 100:
                admin.roll_topic("limited")  # until the coordinator has heard of the records
                found = admin.list_segments("limited")
                sealed = [
                    each
                    for each in found
                    if each.state is SegmentState.SEALED and each.end_offset > each.base_offset
                ]
                time.sleep(0.1)
        assert len(sealed) == 3
    produce(cluster, "limited", 300, 50)
    for name, options, expected in (
        ("files", {"maxFilesPerTrigger": "1"}, [100, 100, 100, 50]),
        ("two", {"maxFilesPerTrigger": "2", "maxOffsetsPerTrigger": "150"}, [150, 150, 50]),
        ("bytes", {"maxBytesPerTrigger": str(sealed[0].length_bytes)}, None),
    ):
        query = to_table(stream(spark, cluster, "limited", **options), tmp_path / name)
        query.awaitTermination()
        batches = [each["numInputRows"] for each in query.recentProgress if each["numInputRows"]]
        assert numbers(spark, tmp_path / name) == Counter(range(350))
        if expected is None:
            assert 3 <= len(batches) <= 6 and max(batches) <= 130, batches
        else:
            assert batches == expected


def test_lag_is_in_the_progress(spark: SparkSession, cluster: LocalCluster, tmp_path: Path) -> None:
    create(cluster, "lagging", partitions=2)
    produce(cluster, "lagging", 0, 100)
    query = to_table(stream(spark, cluster, "lagging", maxOffsetsPerTrigger="30"), tmp_path)
    query.awaitTermination()
    told = [each["sources"][0] for each in query.recentProgress]
    behind = [_lag(each["latestOffset"]) for each in told if each["numInputRows"]]
    assert behind == [70, 40, 10, 0]


def _lag(offset: object) -> int:
    found = json.loads(offset) if isinstance(offset, str) else offset
    return int(found["lag"])  # type: ignore[index]


def test_topic_deleted_while_streaming(
    spark: SparkSession, cluster: LocalCluster, tmp_path: Path
) -> None:
    create(cluster, "leaving")
    produce(cluster, "leaving", 0, 100)
    rows = stream(spark, cluster, "leaving")
    query = (
        rows.writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(processingTime="200 milliseconds")
        .start()
    )
    while not any(each["numInputRows"] for each in query.recentProgress):
        time.sleep(0.1)
    with Admin(cluster.bootstrap) as admin:
        admin.delete_topic("leaving", now=True)
    with pytest.raises(Exception, match="does not exist, or was deleted"):
        query.awaitTermination(90)
