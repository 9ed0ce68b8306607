"""The Python blocks of docs/spark.md run as they stand, one after the other."""

import json
import re
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import icecore.spark
from icecore.blocking import Admin, Consumer, Producer
from icecore.dev import LocalCluster
from tests.tidy.tree import ROOT

BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)


def test_blocks_run(
    spark: SparkSession,
    cluster: LocalCluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Admin(cluster.bootstrap) as admin:
        for topic in ("flights", "late"):
            admin.create_topic(topic, partitions=2, replication_factor=1)
    with Producer(cluster.bootstrap) as producer:
        for number in range(300):
            flight = {"carrier": "UA", "month": 1 + number % 12, "dep_delay": number}
            tags = ("UA",) if number % 2 else ("AA",)
            key = b"N14228" if number % 3 else b"N2"
            producer.send("flights", json.dumps(flight).encode(), key=key, tags=tags)
    monkeypatch.setattr(icecore.spark, "session", lambda _: spark)
    blocks = BLOCK.findall((ROOT / "docs/spark.md").read_text())
    assert len(blocks) >= 8
    names: dict[str, object] = {}
    for block in blocks:
        text = block.replace("127.0.0.1:7400", cluster.bootstrap)
        exec(text.replace("build/checkpoint", str(tmp_path)), names)
    assert "200 150" in capsys.readouterr().out
    with Consumer(cluster.bootstrap, "late", stop_at_end=True) as consumer:
        assert len(list(consumer)) == 300 - 61 + 2
