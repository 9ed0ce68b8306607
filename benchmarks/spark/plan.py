"""Measures the driver's time and memory to plan a read of very many segments.

    python -m benchmarks.spark.plan [--segments 10000]

Needs the extra ``spark``. The cluster is one that answers at once, so the figures are those of the
driver: its Python (``plan``), and Spark's JVM, which looks for each Parquet object in a folder
(``scan``) and lists them again in its first query (``count``). Every object is the same small file.
``tasks`` is what a read through nodes plans. Stdout gets one JSON line.
"""

import argparse
import json
import os
import resource
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.pandas.types import to_arrow_schema

from icecore import spark as icecore_spark
from icecore.client.types import PublishedCopy
from icecore.spark.columns import SCHEMA
from icecore.spark.options import read_options
from icecore.spark.plan import PartitionSnapshot, Snapshot, ranges_within, spanned
from icecore.spark.scan import scan
from icecore.spark.snapshot import plan_read

RECORDS: Final = 100
PARTITIONS: Final = 10
TOPIC_ID: Final = bytes(range(16))


class Answers:
    """A cluster with many segments, every second one of them tiered unless all are."""

    def __init__(self, segments: int, *, is_whole: bool) -> None:
        per_partition = segments // PARTITIONS
        self.ends = dict.fromkeys(range(PARTITIONS), per_partition * RECORDS)
        self.copies = tuple(
            PublishedCopy(
                1 + index * PARTITIONS + number,
                0,
                index * RECORDS,
                1,
                b"",
                number,
                (index + 1) * RECORDS,
                RECORDS,
            )
            for number in range(PARTITIONS)
            for index in range(per_partition)
            if is_whole or index % 2
        )

    def list_offsets(self, _: str, position: str, __: Any = None) -> dict[int, Any]:
        """Return the offsets of all partitions."""
        is_end = position == "latest"
        return {p: SimpleNamespace(offset=end * is_end) for p, end in self.ends.items()}

    def describe_topics(self, _: list[str]) -> list[Any]:
        """The topic."""
        partitions = [
            SimpleNamespace(partition=number, log_start_offset=0, length_bytes=0)
            for number in self.ends
        ]
        return [SimpleNamespace(topic_id=TOPIC_ID, partitions=partitions)]

    def describe_tiering(self, _: list[str], **__: Any) -> Any:
        """Its copies."""
        found = SimpleNamespace(topic_id=TOPIC_ID, copies=self.copies)
        return SimpleNamespace(topics=[found], tier_url="file:///")


def rss_mib(pid: int | str = "self") -> int:
    """Return the resident memory of a process at this moment, in MiB."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) >> 10


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--segments", type=int, default=10_000)
    arguments = parser.parse_args()
    options = read_options({"topic": "t", "bootstrap": "h:1"}, is_stream=False)
    spark = icecore_spark.session("local[2]", conf={"spark.ui.enabled": "false"})
    spark.sparkContext.setLogLevel("ERROR")
    gateway: Any = spark.sparkContext._gateway
    jvm = gateway.proc.pid
    spark.range(10).count()
    figures: dict[str, Any] = {"segments": arguments.segments, "jvm_before_mib": rss_mib(jvm)}

    def timed(name: str, began_s: float) -> None:
        figures[f"{name}_s"] = round(time.perf_counter() - began_s, 3)

    answers: Any = Answers(arguments.segments, is_whole=False)
    began_s = time.perf_counter()
    half = plan_read(answers, options, with_files=True)
    timed("plan_half", began_s)
    began_s = time.perf_counter()
    taken = Snapshot("t", TOPIC_ID, spanned(half.division.rest))
    figures["tasks"] = len(ranges_within(taken, half.division.rest))
    timed("tasks", began_s)
    assert all(isinstance(each, PartitionSnapshot) for each in taken.partitions.values())
    answers = Answers(arguments.segments, is_whole=True)
    began_s = time.perf_counter()
    whole = plan_read(answers, options, with_files=True)
    timed("plan", began_s)
    figures["python_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    with tempfile.TemporaryDirectory() as folder:
        first = f"{folder}/first"
        rows = {field.name: [None] * RECORDS for field in SCHEMA}
        pq.write_table(pa.table(rows, schema=to_arrow_schema(SCHEMA, timezone="UTC")), first)
        for each in whole.division.files:
            path = Path(folder, each.key)
            path.parent.mkdir(parents=True, exist_ok=True)
            os.link(first, path)
        began_s = time.perf_counter()
        frame = scan(spark, folder, whole.division.files, options)
        timed("scan", began_s)
        began_s = time.perf_counter()
        assert frame.count() == RECORDS * len(whole.division.files)
        timed("count", began_s)
    figures["jvm_after_mib"] = rss_mib(jvm)
    print(json.dumps(figures))
    spark.stop()


if __name__ == "__main__":
    main()
