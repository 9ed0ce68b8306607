"""Partitions added while a producer and a consumer run: what is sent there is read."""

import time

import pytest

from icecore import Record
from icecore.blocking import Admin, Consumer, Producer
from icecore.client.cluster import metadata
from icecore.dev import LocalCluster


def test_no_record_of_an_added_partition_is_missed(
    shared_cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata, "_AGE_MS_MAX", 500.0)
    with Admin(shared_cluster.bootstrap) as admin:
        admin.create_topic("growing", partitions=1)
        with Consumer(shared_cluster.bootstrap, "growing", start="latest") as consumer:
            admin.add_partitions("growing", 3)
            with Producer(
                shared_cluster.bootstrap
            ) as producer:  # knows of them before the consumer does
                sent = [b"%d" % number for number in range(30)]
                for number, value in enumerate(sent):
                    producer.send("growing", value, partition=number % 3)
                producer.flush()
            records = list[Record]()
            give_up_s = time.monotonic() + 60
            while len(records) < len(sent) and time.monotonic() < give_up_s:
                records += consumer.poll(1.0)
            assert sorted(int(record.value or b"") for record in records) == [*range(30)]
            assert consumer.position() == {0: 10, 1: 10, 2: 10}
