"""Measure how fast Spark reads a topic, beside a Python data source whose batches are ready.

    python -m benchmarks.spark.read [--records 2000000] [--rounds 5] [--threads 2]

Needs the extra ``spark``. One node, two partitions, values of 100 bytes, keys of 12; uncompressed,
as those of a producer that asks for nothing, or with ``--compression``. Spark has two threads and
throws the rows away (``noop``). With as many threads as the machine has processors node and Spark
share them, and a row costs what both do; with fewer it is seen whether Spark has to wait for the
node. The other source yields one batch again and again that was made before, with the same columns
and as many rows: what Spark itself costs. Both take turns, and the best of each counts, because the
machine is rarely quiet. Once with all columns, once with those that are often enough. Then the same
of a topic that is tiered as a whole, through ``icecore.spark.read``, beside Spark on the same
Parquet files. Progress goes to stderr; stdout gets one JSON line.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from benchmarks.harness.runner import progress
from icecore import spark as icecore_spark
from icecore.blocking import Admin, Consumer, Producer
from icecore.dev import LocalCluster
from icecore.spark.batches import BatchMaker
from icecore.spark.columns import SCHEMA, pruned
from icecore.spark.reading import BATCH_ROWS
from icecore.spark.tiered import divided

TOPIC: Final = "rows"
TIERED: Final = "tiered"
PARTITIONS: Final = 2
COLUMNS: Final = {"all": "", "few": "offset,timestamp,value"}
_ROOT: Final = Path(__file__).resolve().parents[2]


class ReadySource(DataSource):
    """Yields one batch as often as it takes; the option ``file`` has it."""

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "ready"

    def schema(self) -> StructType:
        """Return the topic's schema, with only the columns of the option ``columns`` if it names
        any."""
        return pruned([name for name in self.options.get("columns", "").split(",") if name])

    def reader(self, schema: StructType) -> DataSourceReader:
        """For a batch query."""
        return ReadyReader(self.options["file"], int(self.options["records"]))


class ReadyReader(DataSourceReader):
    """See ``ReadySource``."""

    def __init__(self, path: str, records: int) -> None:
        self._path = path
        self._records = records

    def partitions(self) -> list[InputPartition]:
        """As many as the topic has."""
        return [InputPartition(number) for number in range(PARTITIONS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The batch, again and again."""
        with pa.ipc.open_file(self._path) as file:
            batch = file.get_batch(0)
        left = self._records // PARTITIONS
        while left > 0:
            yield batch.slice(0, min(left, batch.num_rows))
            left -= batch.num_rows


def fill(bootstrap: str, topic: str, records: int, compression: Any, tier: str) -> None:
    """Produce the records."""
    with Admin(bootstrap) as admin:
        while not admin.describe_tiering().tier_urls:
            time.sleep(0.1)
        admin.create_topic(topic, partitions=PARTITIONS, replication_factor=1, tier=tier)
    rng = np.random.default_rng(1)
    with Producer(bootstrap, compression=compression) as producer:
        for start in range(0, records, 50_000):
            count = min(50_000, records - start)
            raw = rng.integers(97, 123, count * 100, dtype=np.uint8).tobytes()
            values = [raw[100 * n : 100 * (n + 1)] for n in range(count)]
            keys = [b"key-%08d" % n for n in range(start, start + count)]
            tags = [("EWR",) if n % 2 else ("JFK", "UA") for n in range(count)]
            for number in range(PARTITIONS):
                part = slice(number * count // PARTITIONS, (number + 1) * count // PARTITIONS)
                producer.send_batch(
                    topic, values[part], keys=keys[part], tags=tags[part], partition=number
                )


def tier(bootstrap: str) -> list[str]:
    """Have all of it copied into object storage: the keys of its rows."""
    with Admin(bootstrap) as admin:
        ends = {p: each.offset for p, each in admin.list_offsets(TIERED, "latest").items()}
        admin.roll_topic(TIERED)
        while True:
            (found,) = admin.describe_tiering([TIERED], with_copies=True).topics
            files = divided(found.topic_id, found.copies, dict.fromkeys(ends, 0), ends)
            if not files.rest:
                return [each.key for each in files.files]
            time.sleep(0.2)


def ready_file(bootstrap: str, folder: str, name: str) -> str:
    """A batch as Spark gets it from the topic, in a file."""
    schema = pruned([each for each in COLUMNS[name].split(",") if each])
    maker = BatchMaker(schema, TOPIC, 0)
    found: list[pa.RecordBatch] = []
    with Consumer(bootstrap, TOPIC, partitions=[0], stop_at_end=True) as consumer:
        for batch in consumer.batches(maker.names):
            found.append(batch)
            if sum(each.num_rows for each in found) >= BATCH_ROWS:
                break
    rows = maker.make(found)
    path = f"{folder}/{name}.arrow"
    with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, rows.schema) as writer:
        writer.write_batch(rows)
    return path


def best(records: int, rounds: int, ways: dict[str, Callable[[], DataFrame]]) -> dict[str, float]:
    """Rows per second of each, taking turns; the first turn warms up."""
    took_s: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds + 1):
        for name, rows in ways.items():
            began_s = time.perf_counter()
            rows().write.format("noop").mode("overwrite").save()
            if turn:
                took_s[name].append(time.perf_counter() - began_s)
                progress(f"{name}: {records / took_s[name][-1]:,.0f} rows/s")
    return {name: records / min(each) for name, each in took_s.items()}


def measure(
    spark: SparkSession, bootstrap: str, folder: str, records: int, rounds: int
) -> dict[str, Any]:
    """Both sources, for each choice of columns."""
    found: dict[str, Any] = {"records": records}
    for name, columns in COLUMNS.items():
        path = ready_file(bootstrap, folder, name)
        reading = spark.read.format("icecore").options(topic=TOPIC, bootstrap=bootstrap)
        reading = reading.option("columns", columns) if columns else reading
        ready = spark.read.format("ready").options(file=path, records=records, columns=columns)
        rates = best(records, rounds, {"icecore": reading.load, "ready": ready.load})
        found[name] = _compared(rates, "ready")
    return found


def measure_tiered(
    spark: SparkSession, cluster: LocalCluster, paths: list[str], records: int, rounds: int
) -> dict[str, Any]:
    """Tiered rows, beside the same files as nothing but files."""
    at, found = cluster.bootstrap, dict[str, Any]()

    def files(wanted: list[str]) -> DataFrame:
        return spark.read.parquet(*paths).select(*wanted)

    for name, columns in COLUMNS.items():
        wanted = columns.split(",") if columns else SCHEMA.fieldNames()
        rates = best(
            records,
            rounds,
            {
                "icecore": partial(icecore_spark.read, spark, TIERED, bootstrap=at, columns=wanted),
                "parquet": partial(files, wanted),
            },
        )
        found[name] = _compared(rates, "parquet")
    return found


def _compared(rates: dict[str, float], other: str) -> dict[str, float]:
    return {
        "icecore_rows_s": round(rates["icecore"]),
        f"{other}_rows_s": round(rates[other]),
        "ratio": round(rates["icecore"] / rates[other], 3),
    }


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=2_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2, help="of Spark")
    parser.add_argument("--compression", choices=("none", "lz4", "zstd"), default="none")
    arguments = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")])
    spark = icecore_spark.session(f"local[{arguments.threads}]", conf={"spark.ui.enabled": "false"})
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(ReadySource)
    records, rounds, codec = arguments.records, arguments.rounds, arguments.compression
    with tempfile.TemporaryDirectory() as folder:
        bucket = Path(folder) / "bucket"
        bucket.mkdir()
        with LocalCluster(f"{folder}/cluster", nodes=1, tier_url=bucket.as_uri()) as cluster:
            fill(cluster.bootstrap, TOPIC, records, codec, "off")
            progress("filled")
            figures = measure(spark, cluster.bootstrap, folder, records, rounds)
            fill(cluster.bootstrap, TIERED, records, codec, "on")
            paths = [f"{bucket}/{key}" for key in tier(cluster.bootstrap)]
            progress(f"tiered: {len(paths)} files")
            figures["tiered"] = measure_tiered(spark, cluster, paths, records, rounds)
    print(json.dumps({"threads": arguments.threads, "compression": codec, **figures}))
    spark.stop()


if __name__ == "__main__":
    main()
