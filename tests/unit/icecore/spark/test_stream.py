"""Tasks of a micro-batch follow from its offsets, which Spark keeps, and not from options."""

from typing import Any

import pytest

pytest.importorskip("pyspark")

from icecore.spark.columns import SCHEMA
from icecore.spark.options import read_options
from icecore.spark.plan import PartitionSnapshot, Snapshot
from icecore.spark.stream import StreamReader

TOPIC_ID = bytes(16)


def reader(min_partitions: int = 0, end: int = 1_000) -> StreamReader:
    options = {"topic": "t", "bootstrap": "127.0.0.1:1", "startingOffsets": "earliest"}
    if min_partitions:
        options["minPartitions"] = str(min_partitions)
    made = StreamReader(read_options(options, is_stream=True), SCHEMA)
    snapshot = Snapshot("t", TOPIC_ID, {0: PartitionSnapshot(0, end)})
    made._snapshot = lambda **_: snapshot  # type: ignore[method-assign, assignment]
    return made


def begun(made: StreamReader) -> tuple[dict[str, Any], dict[str, Any]]:
    start = {"version": 1, "topic": "t", "topic_id": TOPIC_ID.hex(), "partitions": {"0": 0}}
    return start, made.latestOffset(start, made.getDefaultReadLimit())


@pytest.mark.parametrize(("before", "now"), [(0, 8), (8, 0), (4, 5)])
def test_a_micro_batch_keeps_its_tasks(before: int, now: int) -> None:
    start, end = begun(reader(before))
    planned = reader(before).partitions(start, end)
    assert len(planned) == max(1, before)
    again = reader(now).partitions(start, end)
    assert [vars(each) for each in again] == [vars(each) for each in planned]
    _, later = begun(reader(now))
    assert len(reader(now).partitions(start, later)) == max(1, now)


def test_offsets_of_before_have_the_tasks_of_the_option() -> None:
    start, end = begun(reader(3))
    del end["min_partitions"]
    assert len(reader(5).partitions(start, end)) == 5


def test_another_option_alone_is_no_news() -> None:
    """Else there would be a micro-batch of nothing."""
    _, end = begun(reader(3))
    assert reader(5).latestOffset(end, reader().getDefaultReadLimit()) == end
