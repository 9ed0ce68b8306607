"""A node that was cut off answers by what it heard long ago; who begins there is told, and safe.

The node is paused while a topic is deleted and made again, and goes on after the coordinator has
died: all that it knows is old, and nobody corrects it.
"""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from icecore.blocking import Admin, Consumer, Lookup, Producer
from icecore.client.cluster.connection import STALE_MS
from icecore.dev import LocalCluster
from icecore.model import NodeState
from icecore.v1 import admin_pb2, admin_pb2_grpc
from tests.support.waiting import until

STALE = 3
COUNT = 30


def produce(bootstrap: str, *values: bytes) -> None:
    with Producer(bootstrap) as producer:
        for each in [producer.send("t", value, key=b"k") for value in values]:
            each.result(20)


def consumed(bootstrap: str) -> set[bytes]:
    with Consumer(bootstrap, "t", start="earliest", stop_at_end=True) as consumer:
        return {each.value or b"" for each in consumer}


def told(address: str) -> admin_pb2.GetMetadataResponse:
    """Return the metadata that a server has of the topic."""
    with grpc.insecure_channel(address) as channel:
        stub = admin_pb2_grpc.AdminServiceStub(channel)
        request = admin_pb2.GetMetadataRequest(topics=["t"])
        found: admin_pb2.GetMetadataResponse = stub.GetMetadata(request, timeout=10)
        return found


def topic_id(address: str) -> bytes:
    return told(address).topics[0].topic_id


def knows_leaders(address: str, wanted_id: bytes) -> bool:
    """Return whether a server knows this topic and a leader of each of its partitions."""
    (topic,) = told(address).topics
    return topic.topic_id == wanted_id and all(each.leader for each in topic.partitions)


def is_down(admin: Admin, node_id: int) -> bool:
    nodes = [each.node for each in admin.describe_cluster().nodes]
    return any(each.node_id == node_id and each.state is NodeState.DOWN for each in nodes)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """The coordinator is dead, and one node knows only the topic that was there before."""
    settings = {"lease_ms": 3_000}  # a busy machine takes no leader away from the living nodes
    with LocalCluster(tmp_path, nodes=3, coordinator_settings=settings) as cluster:
        with Admin(cluster.bootstrap) as admin:
            admin.create_topic("t", partitions=3, replication_factor=2)
            produce(cluster.addresses[STALE], *(b"old %d" % n for n in range(COUNT)))
            cluster.node(STALE).pause()
            asyncio.run(until(lambda: is_down(admin, STALE), 20))
            admin.delete_topic("t")
            admin.create_topic("t", partitions=3, replication_factor=2)
        produce(cluster.bootstrap, *(b"new %d" % n for n in range(COUNT)))
        others = [each for number, each in cluster.addresses.items() if number != STALE]
        new = topic_id(cluster.bootstrap)
        asyncio.run(until(lambda: all(knows_leaders(each, new) for each in others), 20))
        cluster.kill_coordinator()
        cluster.node(STALE).resume()
        yield cluster


def icecore(address: str, *words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "icecore.cli", "--bootstrap", address, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done


def test_who_begins_there_gets_the_new_topic_and_the_age(cluster: LocalCluster) -> None:
    node = cluster.addresses[STALE]
    asyncio.run(until(lambda: told(node).age_ms > STALE_MS, 20))
    assert topic_id(node) != topic_id(cluster.addresses[1])
    values = {b"new %d" % n for n in range(COUNT)}
    assert consumed(node) == values
    produce(node, b"newest")
    assert consumed(node) == values | {b"newest"}
    youngest_ms = min(told(address).age_ms for address in cluster.addresses.values())
    with Lookup(node, "t") as lookup:
        page = lookup.find(keys=[b"k"])
    assert page.complete and {each.value for each in page.records} == values | {b"newest"}
    assert page.planned_age_ms >= youngest_ms > 0
    asyncio.run(until(lambda: min(map(age_ms, cluster.addresses.values())) > STALE_MS, 20))
    assert "no coordinator answers" in icecore(node, "query", "t", "--key", "k").stderr


def age_ms(address: str) -> int:
    return int(told(address).age_ms)
