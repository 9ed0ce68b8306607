"""Measure how old records are when a streaming query of Spark has put them into its sink.

    python -m benchmarks.spark.stream [--records-per-s 50000] [--seconds 30]

Needs the extra ``spark``. One node, two partitions, values of 100 bytes with the time at which they
were handed over; a producer in a process of its own sends a batch every 20 ms. The sink counts rows
of a micro-batch by their times, so a record's age is that at the end of its micro-batch, when the
sink has it. Spark has two threads, and node, producer and Spark share the machine. The first third
of the time warms up. Progress goes to stderr; stdout gets one JSON line.
"""

import argparse
import json
import multiprocessing
import os
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import numpy as np
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from benchmarks.harness.runner import progress
from icecore import spark as icecore_spark
from icecore.blocking import Admin, Producer
from icecore.dev import LocalCluster

TOPIC: Final = "events"
PARTITIONS: Final = 2
STEP_S: Final = 0.02
BUCKET_MS: Final = 20
_ROOT: Final = Path(__file__).resolve().parents[2]


def produce(bootstrap: str, records_per_s: int, seconds: float) -> None:
    """As many as that, evenly; what was missed by a late step is made up for."""
    value = bytes(range(100))
    with Producer(bootstrap, compression="lz4") as producer:
        began_s, sent = time.time(), 0
        while (passed_s := time.time() - began_s) < seconds:
            count = int(records_per_s * passed_s) - sent
            for number in range(PARTITIONS):
                mine = (count + number) // PARTITIONS
                if mine:
                    times_ms = np.full(mine, int(time.time() * 1000))
                    values = [value] * mine
                    producer.send_batch(TOPIC, values, timestamps_ms=times_ms, partition=number)
            sent += count
            time.sleep(STEP_S)


class Ages:
    """The ages of all records that came after the warm-up."""

    def __init__(self, from_s: float) -> None:
        self._from_s = from_s
        self.found: list[tuple[float, int]] = []
        """Age in seconds, and of how many records."""
        self.batches: list[float] = []
        """How long each took, in seconds."""

    def take(self, rows: DataFrame, _: int) -> None:
        """A micro-batch."""
        began_s = time.time()
        bucket = F.expr(f"unix_millis(timestamp) div {BUCKET_MS}").alias("bucket")
        counts = rows.groupBy(bucket).count().collect()
        now_s = time.time()
        if now_s < self._from_s:
            return
        self.batches.append(now_s - began_s)
        for each in counts:
            middle_s = (each["bucket"] + 0.5) * BUCKET_MS / 1000
            self.found.append((now_s - middle_s, each["count"]))

    def at(self, part: float) -> float:
        """A quantile, in seconds."""
        ages = sorted(self.found)
        total = sum(count for _, count in ages)
        seen = 0
        for age_s, count in ages:
            seen += count
            if seen >= part * total:
                return age_s
        return float("nan")


def measure(bootstrap: str, folder: str, records_per_s: int, seconds: float) -> dict[str, Any]:
    """One query beside one producer."""
    spark = icecore_spark.session(
        "local[2]",
        conf={"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": str(PARTITIONS)},
    )
    spark.sparkContext.setLogLevel("ERROR")
    warm_s = seconds / 3
    ages = Ages(time.time() + warm_s)
    sending = multiprocessing.get_context("spawn").Process(
        target=produce, args=(bootstrap, records_per_s, seconds)
    )
    reading = spark.readStream.format("icecore").options(topic=TOPIC, bootstrap=bootstrap)
    query = (
        reading.load()
        .select("timestamp", "value")
        .writeStream.foreachBatch(ages.take)
        .option("checkpointLocation", f"{folder}/checkpoint")
        .start()
    )
    sending.start()
    sending.join()
    query.processAllAvailable()
    query.stop()
    spark.stop()
    counted = sum(count for _, count in ages.found)
    return {
        "records_per_s": records_per_s,
        "measured_records_per_s": round(counted / (seconds - warm_s)),
        "age_p50_s": round(ages.at(0.5), 3),
        "age_p99_s": round(ages.at(0.99), 3),
        "micro_batches": len(ages.batches),
        "sink_p50_s": round(float(np.median(ages.batches)), 3),
    }


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records-per-s", type=int, default=50_000)
    parser.add_argument("--seconds", type=float, default=45.0)
    given = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")])
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCluster(f"{folder}/cluster", nodes=1) as cluster,
    ):
        with Admin(cluster.bootstrap) as admin:
            admin.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=1)
        progress("the cluster is up")
        found = measure(cluster.bootstrap, folder, given.records_per_s, given.seconds)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
