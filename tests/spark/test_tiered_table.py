"""Spark reads the table of a topic with no cluster at all, and agrees with the source.

The files that the Delta log names are read as Parquet: Delta's own jar for Spark can't be had by
tests. What it would do beyond that is to find out the same names.
"""

from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from pyspark.sql import SparkSession

from icecore.codec.columns import Record
from icecore.tier_records import topic_folder
from icecore_node.io.executor import ThreadExecutor
from tests.support import tiered
from tests.support.tiered_folder import TieredFolder


async def test_spark_agrees_with_the_source(spark: SparkSession, tmp_path: Path) -> None:
    executor = ThreadExecutor(reader_threads=2)
    bucket = TieredFolder(tmp_path / "bucket", executor)
    raws = tiered.flights(3), tiered.flights(2, seed=2)
    first = await bucket.put(raws[0], 0, 1)
    second = await bucket.put(raws[1], first.facts.end_offset, 2)
    await bucket.put(raws[1], 0, 9)  # nobody has published it
    bucket.publish(first, second)
    executor.close()
    files = DeltaTable(tmp_path / "bucket" / topic_folder(first.facts.topic_id)).file_uris()
    rows = spark.read.parquet(*files).orderBy("offset").collect()
    source = [
        *tiered.source_of(raws[0], 0).records(),
        *tiered.source_of(raws[1], first.facts.end_offset).records(),
    ]
    assert [each["offset"] for each in rows] == list(range(len(source)))
    assert [_of_row(each) for each in rows] == [_of_record(each) for each in source]
    assert {(each["topic"], each["partition"]) for each in rows} == {("flights", 3)}


def _of_row(row: Any) -> tuple[Any, ...]:
    headers = [(each["key"], _bytes(each["value"])) for each in row["headers"]]
    return (_bytes(row["key"]), _bytes(row["value"]), list(row["tags"]), headers)


def _of_record(record: Record) -> tuple[Any, ...]:
    return (record.key, record.value, list(record.tags), list(record.headers))


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)
