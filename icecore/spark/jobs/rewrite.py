"""Many small tiered segments of a topic into few large ones, while readers run.

The coordinator says which segments follow each other and fit together; each task asks for one group
after the other. A node makes the merged objects, because nodes have the credentials of the object
store and the encoder; it proves them, and the coordinator swaps each group in one change. A run
that is killed leaves nothing half done: the next one makes a new plan. What was merged is merged
again with its neighbours until nothing fits together.
"""

from argparse import Namespace
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pyspark.sql import SparkSession

from icecore.blocking import Admin
from icecore.client.admin.tiering import MergeGroup
from icecore.errors import InvalidRequestError, TopicRecreatedError
from icecore.spark.jobs.watch import Watch
from icecore.spark.runs.report import Report
from icecore.spark.snapshot import ADMIN_TIMEOUT_S

MERGE_TIMEOUT_S = 1_800.0
"""For one group, with the time that all nodes are busy."""
GROUPS_PER_TASK = 4
"""In one round, which ends with a line about it."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome of merging one group."""

    group: MergeGroup
    length_bytes: int = 0
    """Size of the objects that replaced the group."""
    refused: str = ""
    """Why it stays as it is."""


def rewrite(spark: SparkSession, arguments: Namespace, report: Report) -> None:
    """Merge all that fits together.

    Raises:
        IcecoreError: The topic or the object store can't be reached; what was merged before counts.
    """
    metrics, refused = report.metrics, dict[tuple[int, ...], None]()
    metrics.output = arguments.topic
    while True:
        with Admin(arguments.bootstrap, timeout_s=ADMIN_TIMEOUT_S) as admin:
            plan = admin.plan_merges(arguments.topic, arguments.target_bytes)
        if metrics.topic_id not in ("", plan.topic_id.hex()):
            raise TopicRecreatedError(f"topic {arguments.topic} was made anew meanwhile")
        metrics.topic_id = plan.topic_id.hex()
        groups = [each for each in plan.groups if each.segment_ids not in refused]
        report.note(_sum(groups) + (", and more" if plan.has_more else ""))
        if arguments.dry_run:
            metrics.records_read = sum(each.records for each in groups)
            metrics.status = "planned"
            return
        if not groups:
            break
        for outcome in _merged(spark, arguments, report, groups):
            if outcome.refused:
                refused[outcome.group.segment_ids] = None
                report.note(f"{_name(outcome.group)} stay as they are: {outcome.refused}")
    metrics.segments_left = sum(map(len, refused))
    metrics.status = "done"


def _merged(
    spark: SparkSession, arguments: Namespace, report: Report, groups: Sequence[MergeGroup]
) -> Iterator[Outcome]:
    """In rounds, so that there is something to tell."""
    metrics = report.metrics
    per_round = GROUPS_PER_TASK * arguments.tasks
    bootstrap, topic = arguments.bootstrap, arguments.topic
    for at in range(0, len(groups), per_round):
        some = groups[at : at + per_round]
        tasks = spark.sparkContext.parallelize(some, min(len(some), arguments.tasks))
        done = f"{at} of {len(groups)} groups"
        with Watch(spark, report, f"merging, {done} done"):
            found = tasks.mapPartitions(lambda part: merge_each(bootstrap, topic, part)).collect()
        for outcome in found:
            if not outcome.refused:
                metrics.steps_done += 1
                metrics.segments_merged += len(outcome.group.segment_ids)
                metrics.bytes_read += outcome.group.length_bytes
                metrics.bytes_written += outcome.length_bytes
                metrics.records_read += outcome.group.records
                metrics.records_written += outcome.group.records
            yield outcome


def merge_each(bootstrap: str, topic: str, groups: Iterable[MergeGroup]) -> Iterator[Outcome]:
    """On an executor: have one group merged after the other.

    Args:
        bootstrap: As the job was given it.
        topic: Of the groups.
        groups: Of this task.

    Raises:
        IcecoreError: Nobody could do it, and the next task could as little.
    """
    with Admin(bootstrap, timeout_s=MERGE_TIMEOUT_S) as admin:
        for each in groups:
            try:
                merged = admin.merge_segments(topic, each.segment_ids)
            except InvalidRequestError as error:
                yield Outcome(each, refused=error.message)
            else:
                yield Outcome(each, merged.length_bytes)


def _sum(groups: Sequence[MergeGroup]) -> str:
    segments = sum(len(each.segment_ids) for each in groups)
    records = sum(each.records for each in groups)
    size = sum(each.length_bytes for each in groups) / 1e6
    if not groups:
        return "no segments fit together: only those that object storage alone has are merged"
    return f"{segments} segments into {len(groups)}: {records:,} records, {size:,.1f} MB"


def _name(group: MergeGroup) -> str:
    first, last = group.segment_ids[0], group.segment_ids[-1]
    return f"partition {group.partition}, segments {first} to {last}"
