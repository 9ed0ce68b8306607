"""Asks a cluster what a topic has, and reads the records of a step with Spark."""

from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from icecore.blocking import Admin
from icecore.spark.plan import Snapshot
from icecore.spark.runs.offsets import step_options
from icecore.spark.sessions import read
from icecore.spark.snapshot import ADMIN_TIMEOUT_S, take_snapshot


def snapshot_of(bootstrap: str, topic: str, *, with_segments: bool = False) -> Snapshot:
    """The topic as it is now. Raises IcecoreError."""
    with Admin(bootstrap, timeout_s=ADMIN_TIMEOUT_S) as admin:
        return take_snapshot(admin, topic, with_segments=with_segments)


def read_step(
    spark: SparkSession,
    arguments: Any,
    topic_id: str,
    starts: Mapping[str, int],
    ends: Mapping[str, int],
    *,
    through_nodes: bool = False,
) -> DataFrame:
    """The records of a step.

    Args:
        spark: The session.
        arguments: Of the job.
        topic_id: As ``step_options`` takes it.
        starts: Likewise.
        ends: Likewise.
        through_nodes: Have nodes serve all of it, whatever else could.

    Raises:
        TopicRecreatedError: The topic of that name is another one by now.
        IcecoreError: It can't be read.
    """
    with Admin(arguments.bootstrap, timeout_s=ADMIN_TIMEOUT_S) as admin:
        numbers = admin.list_offsets(arguments.topic, "latest")
    may_lose = arguments.allow_data_loss
    options: dict[str, Any] = {**step_options(numbers, topic_id, starts, ends, may_lose=may_lose)}
    if not through_nodes:
        where: dict[str, Any] = {"bootstrap": arguments.bootstrap, "tiered": "files-or-nodes"}
        return read(spark, arguments.topic, **where, **options)
    options |= {"topic": arguments.topic, "bootstrap": arguments.bootstrap, "tiered": "nodes"}
    return spark.read.format("icecore").options(**options).load()
