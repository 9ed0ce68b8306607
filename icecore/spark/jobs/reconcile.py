"""Compare a topic with its metadata: offsets, counts and, for tiered records, contents.

Three accounts are compared. Metadata: segments follow each other from the start of the log to its
end. The cluster: every offset is read once. The table in object storage: each record that is
published there is the one that the cluster serves. Spark counts and hashes blocks of offsets, so
little comes back to the driver however long the topic is.
"""

from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import unquote, urlsplit
from uuid import UUID

import numpy as np
import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from icecore.blocking import Admin
from icecore.errors import ConfigurationError
from icecore.model import Segment, SegmentState
from icecore.spark.jobs import steps
from icecore.spark.jobs.watch import Watch
from icecore.spark.plan import PartitionSnapshot, Snapshot
from icecore.spark.runs import offsets
from icecore.spark.runs.report import Report
from icecore.spark.scan import literal
from icecore.spark.snapshot import ADMIN_TIMEOUT_S

BLOCK: Final = 65_536
"""Offsets of one count."""
_PLAIN: Final = (
    "partition",
    "offset",
    "timestamp",
    "append_timestamp",
    "key",
    "value",
    "schema_id",
)
Spans = dict[int, list[tuple[int, int]]]
"""Offsets from … to by partition, in their order."""


def reconcile(spark: SparkSession, arguments: Namespace, report: Report) -> None:
    """Compare, and note each difference.

    Raises:
        ConfigurationError: The table can't be opened.
        IcecoreError: The topic can't be read.
    """
    metrics = report.metrics
    snapshot = steps.snapshot_of(arguments.bootstrap, arguments.topic, with_segments=True)
    metrics.topic_id = snapshot.topic_id.hex()
    with Admin(arguments.bootstrap, timeout_s=ADMIN_TIMEOUT_S) as admin:
        segments = admin.list_segments(arguments.topic)
    starts, ends = offsets.left(snapshot, offsets.NOTHING, may_lose=True)
    offsets.note_range(metrics, starts, ends)
    for problem in problems_of(snapshot, segments):
        report.finding(problem)
    lost = skipped_spans(segments)
    tiered = {number: tiered_spans(each) for number, each in snapshot.partitions.items()}
    records = sum(high - low for spans in tiered.values() for low, high in spans)
    report.note(f"{offsets.count(snapshot, starts, ends):,} records, {records:,} of them tiered")
    files = _table_files(arguments, snapshot) if arguments.table and records else []
    if arguments.dry_run:
        metrics.status = "planned"
        return
    with Watch(spark, report, "reading all records through the cluster"):
        rows = steps.read_step(spark, arguments, metrics.topic_id, starts, ends, through_nodes=True)
        served = blocks(rows, tiered if files else {})
    metrics.records_read = sum(each["records"] for each in served.values())
    for problem in miscounted(served, snapshot, lost):
        report.finding(problem)
    if files:
        with Watch(spark, report, f"reading {records:,} records in object storage"):
            remote = blocks(spark.read.parquet(*map(literal, files)), tiered)
        for problem in differing(served, remote):
            report.finding(problem)
    metrics.steps_done = 1
    metrics.status = "differs" if metrics.findings else "done"


def problems_of(snapshot: Snapshot, segments: Sequence[Segment]) -> Iterator[str]:
    """Yield the problems that metadata alone show."""
    for number, partition in sorted(snapshot.partitions.items()):
        where = f"{snapshot.topic}/{number}"
        at = partition.log_start_offset
        known = [each for each in segments if each.partition == number and each.base_offset >= 0]
        known.sort(key=lambda each: each.base_offset)
        for index, each in enumerate(known):
            if each.end_offset >= 0 and each.end_offset <= partition.log_start_offset:
                continue  # retention has not come to it yet
            if each.base_offset > at:
                yield f"{where}: no segment has offsets {at} to {each.base_offset}"
            elif each.base_offset < at and index and at > partition.log_start_offset:
                yield f"{where}: offsets {each.base_offset} to {at} are in two segments"
            yield from _problems_of_segment(where, each)
            at = max(at, each.end_offset if each.end_offset >= 0 else partition.high_watermark)
        if at < partition.high_watermark:
            yield f"{where}: no segment has offsets {at} to {partition.high_watermark}"


def _problems_of_segment(where: str, segment: Segment) -> Iterator[str]:
    name = f"{where}, segment {segment.segment_id}"
    if segment.is_lost:
        yield f"{name}: was declared lost"
    elif segment.is_skipped:
        return
    elif segment.state is SegmentState.SEALED and not segment.holders and not segment.is_tiered:
        yield f"{name}: nobody holds it"
    if segment.is_tiered and segment.replicas and not segment.full_digest:
        yield f"{name}: is tiered without a digest that was agreed on"


def skipped_spans(segments: Sequence[Segment]) -> Spans:
    """Offsets that were declared lost or left out: nobody expects records of them."""
    found: Spans = {}
    for each in segments:
        if each.is_skipped:
            found.setdefault(each.partition, []).append((each.base_offset, each.end_offset))
    return found


def tiered_spans(partition: PartitionSnapshot) -> list[tuple[int, int]]:
    """Offsets that object storage has, neighbours put together."""
    found: list[tuple[int, int]] = []
    for each in partition.segments:
        low = max(each.base_offset, partition.log_start_offset)
        high = min(each.end_offset, partition.high_watermark)
        if not each.is_tiered or low >= high:
            continue
        if found and found[-1][1] == low:
            low = found.pop()[0]
        found.append((low, high))
    return found


def blocks(rows: DataFrame, tiered: Mapping[int, Sequence[tuple[int, int]]]) -> dict[Any, Any]:
    """Return, by partition and block, the number of records, and count and sums of hashes of tiered
    ones."""
    remote = _is_in(tiered)
    hashed = F.when(remote, F.xxhash64(*_PLAIN, *_lists()))
    place = F.expr(f"offset % {BLOCK}").alias("place")
    columns = rows.select("partition", "offset", place, remote.alias("remote"), hashed.alias("h"))
    groups = columns.groupBy("partition", F.expr(f"offset div {BLOCK}").alias("block"))
    # Two halves of the hash: sums of 64 bits would overflow.
    table = groups.agg(
        F.count("*").alias("records"),
        F.sum("place").alias("places"),
        F.sum(F.col("place") * F.col("place")).alias("squares"),
        F.count_if("remote").alias("remote_records"),
        F.sum(F.col("h").bitwiseAND(0xFFFF_FFFF)).alias("low_sum"),
        F.sum(F.shiftrightunsigned("h", 32)).alias("high_sum"),
    )
    return {(row["partition"], row["block"]): row.asDict() for row in table.collect()}


def _lists() -> list[Column]:
    """Columns that hold lists: where there is none, one account may say so by an empty one."""
    types = {"tags": "array<string>", "headers": "array<struct<key:string,value:binary>>"}
    return [F.coalesce(name, F.array().cast(of_type)) for name, of_type in types.items()]


def _is_in(spans: Mapping[int, Sequence[tuple[int, int]]]) -> Column:
    found = F.lit(False)
    for number, each in spans.items():
        for low, high in each:
            is_here = (F.col("partition") == number) & (F.col("offset") >= low)
            found = found | (is_here & (F.col("offset") < high))
    return found


def miscounted(served: Mapping[Any, Any], snapshot: Snapshot, lost: Spans) -> Iterator[str]:
    """Blocks of which the cluster served more or fewer records than there are offsets, or others.

    Offsets are compared by their sum and that of their squares: to count different ones, Spark
    would have to move all of them.
    """
    for number, partition in sorted(snapshot.partitions.items()):
        first, end = partition.log_start_offset, partition.high_watermark
        for block in range(first // BLOCK, -(-end // BLOCK)):
            low, high = max(first, block * BLOCK), min(end, (block + 1) * BLOCK)
            places = np.arange(low, high)
            for start, stop in lost.get(number, []):
                places = places[(places < start) | (places >= stop)]
            places %= BLOCK
            due = (len(places), int(places.sum()), int((places * places).sum()))
            found = served.get((number, block), {})
            got = tuple(found.get(name) or 0 for name in ("records", "places", "squares"))
            if got != due:
                yield (
                    f"{snapshot.topic}/{number}, offsets {low} to {high}: {got[0]} records were "
                    f"read, not {due[0]}" + (", or some twice" if got[0] == due[0] else "")
                )


def differing(served: Mapping[Any, Any], remote: Mapping[Any, Any]) -> Iterator[str]:
    """Blocks of which the table has other tiered records than the cluster serves."""
    for key in sorted(served.keys() | remote.keys()):
        ours, theirs = served.get(key, {}), remote.get(key, {})
        counts = [each.get("remote_records", 0) for each in (ours, theirs)]
        where = f"partition {key[0]}, offsets {key[1] * BLOCK} to {(key[1] + 1) * BLOCK}"
        if counts[0] != counts[1]:
            yield f"{where}: the table has {counts[1]} tiered records, the cluster {counts[0]}"
        elif any(ours.get(name) != theirs.get(name) for name in ("low_sum", "high_sum")):
            yield f"{where}: records in the table differ from those that the cluster serves"


def _table_files(arguments: Namespace, snapshot: Snapshot) -> list[str]:
    """Return the files that the table's log names, as Spark opens them."""
    try:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError
    except ModuleNotFoundError as error:
        raise ConfigurationError("--table needs deltalake: install icecore[tier]") from error
    where = f"{arguments.table.rstrip('/')}/{UUID(bytes=snapshot.topic_id)}"
    try:
        paths = pa.table(DeltaTable(where).get_add_actions()).column("path").to_pylist()
    except (DeltaError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigurationError(f"there is no table of the topic at {where}: {reason}") from error
    # The library's own URIs encode braces of folders, and Spark would look for such names.
    root = f"s3a://{where[5:]}" if where.startswith("s3://") else where
    if where.startswith("file:"):
        root = unquote(urlsplit(where).path)
    return [f"{root}/{each}" for each in sorted(paths)]
