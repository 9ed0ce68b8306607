"""Queries while the cluster changes: a node dies and comes back, segments are sealed. The numbers
are those of pandas over the source."""

import json
import threading

import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

import icecore.spark
from icecore.blocking import Admin, Producer
from icecore.dev import LocalCluster

RECORDS = 20_000


def source() -> pd.DataFrame:
    numbers = range(RECORDS)
    return pd.DataFrame(
        {
            "number": list(numbers),
            "kind": [f"k{number % 7}" for number in numbers],
            "amount": [number * 37 % 1_000 for number in numbers],
        }
    )


def keep_producing(bootstrap: str, stop: threading.Event) -> None:
    """Records that the queries do not count, so that segments fill and are sealed."""
    with Producer(bootstrap) as producer:
        while not stop.is_set():
            noise = json.dumps({"number": -1, "pad": "x" * 2_000}).encode()
            producer.send_batch("busy", [noise] * 100)
            stop.wait(0.05)


def test_groups_while_a_node_dies_and_segments_are_sealed(
    spark: SparkSession, own_cluster: LocalCluster
) -> None:
    rows = source()
    with Admin(own_cluster.bootstrap) as admin:
        admin.create_topic("busy", partitions=3, segment_bytes=1 << 20)
    with Producer(own_cluster.bootstrap) as producer:
        values = [line.encode() for line in rows.to_json(orient="records", lines=True).split()]
        producer.send_batch("busy", values, keys=values)
    wanted = rows.groupby("kind").amount.agg(["size", "sum"])
    expected = {kind: (int(size), int(total)) for kind, size, total in wanted.itertuples()}
    stop = threading.Event()
    noise = threading.Thread(target=keep_producing, args=(own_cluster.bootstrap, stop))
    noise.start()
    try:
        for turn in range(5):
            killer = threading.Timer(0.7, own_cluster.kill_node, [2])
            if turn == 1:
                killer.start()
            read = icecore.spark.read(
                spark, "busy", bootstrap=own_cluster.bootstrap, columns="value", minPartitions=6
            )
            parsed = F.from_json(
                F.col("value").cast("string"), "number long, kind string, amount long"
            )
            table = read.select(parsed.alias("v")).select("v.*").filter("number >= 0")
            groups = table.groupBy("kind").agg(F.count("*"), F.sum("amount")).collect()
            assert {kind: (size, total) for kind, size, total in groups} == expected
            assert table.filter("amount > 990").count() == int((rows.amount > 990).sum())
            if turn == 1:
                killer.join()
            if turn == 3:
                own_cluster.start_node(2)
    finally:
        stop.set()
        noise.join()
    with Admin(own_cluster.bootstrap) as admin:
        assert sum(each.end_offset > 0 for each in admin.list_segments("busy")) >= 2
