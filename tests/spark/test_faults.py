"""Queries while the cluster changes: a node dies and comes back, segments are sealed. The numbers
are those of pandas over the source."""

import json
import threading
import time

import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import icecore.spark
from icecore.blocking import Admin, Producer
from icecore.dev import LocalCluster

RECORDS = 10_000


def source() -> pd.DataFrame:
    numbers = range(RECORDS)
    return pd.DataFrame(
        {
            "number": list(numbers),
            "kind": [f"k{number % 7}" for number in numbers],
            "amount": [number * 37 % 1_000 for number in numbers],
        }
    )


def produce_noise(bootstrap: str) -> None:
    """Records that the query does not count, so that a segment of each partition fills and is
    sealed. They are so many on a slow machine, too: the next query reads them all."""
    noise = json.dumps({"number": -1, "pad": "x" * 2_000}).encode()
    with Producer(bootstrap) as producer:
        for _ in range(16):
            producer.send_batch("busy", [noise] * 100)
            time.sleep(0.05)


def test_groups_while_a_node_dies_and_segments_are_sealed(
    spark: SparkSession, mortal: LocalCluster
) -> None:
    rows = source()
    with Admin(mortal.bootstrap) as admin:
        admin.create_topic("busy", partitions=3, segment_bytes=1 << 20)
    with Producer(mortal.bootstrap) as producer:
        values = [line.encode() for line in rows.to_json(orient="records", lines=True).split()]
        producer.send_batch("busy", values, keys=values)
    wanted = rows.assign(large=rows.amount > 990).groupby("kind")
    wanted = wanted.agg(size=("amount", "size"), total=("amount", "sum"), large=("large", "sum"))
    expected = {kind: tuple(map(int, numbers)) for kind, *numbers in wanted.itertuples()}
    for turn in range(4):
        noise = threading.Thread(target=produce_noise, args=(mortal.bootstrap,))
        noise.start()
        killer = threading.Timer(0.7, mortal.kill_node, [2])
        if turn == 1:
            killer.start()
        try:
            read = icecore.spark.read(
                spark, "busy", bootstrap=mortal.bootstrap, columns="value", minPartitions=6
            )
            parsed = F.from_json(
                F.col("value").cast("string"), "number long, kind string, amount long"
            )
            table = read.select(parsed.alias("v")).select("v.*").filter("number >= 0")
            groups = table.groupBy("kind").agg(
                F.count("*"), F.sum("amount"), F.count_if(F.col("amount") > 990)
            )
            assert {kind: tuple(numbers) for kind, *numbers in groups.collect()} == expected
        finally:
            noise.join()
        if turn == 1:
            killer.join()
        if turn == 2:
            mortal.start_node(2)
    with Admin(mortal.bootstrap) as admin:
        assert sum(each.end_offset > 0 for each in admin.list_segments("busy")) >= 2
