"""Clusters whose processes talk natively, over gRPC, or as each of them can."""

import re
import socket
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from icecore.blocking import Admin, Consumer, Producer
from icecore.cli.app import main
from icecore.dev import LocalCluster
from icecore.model import NodeState

TOPIC, PARTITIONS, RECORDS = "flights", 4, 200
WAIT_S = 60.0
_CALLS = re.compile(r'^icecore_rpc_calls_total\{transport="(\w+)"\} (\S+)$', re.MULTILINE)


def with_metrics(cluster: LocalCluster) -> LocalCluster:
    for node_id in cluster.addresses:
        cluster.node(node_id).metrics_listen = free_address()
    return cluster


def free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def calls(cluster: LocalCluster, node_id: int) -> dict[str, float]:
    """Return the number of calls that a node has counted, by transport."""
    url = f"http://{cluster.node(node_id).metrics_listen}/metrics"
    with urllib.request.urlopen(url, timeout=WAIT_S) as answer:
        return {name: float(count) for name, count in _CALLS.findall(answer.read().decode())}


def produce(cluster: LocalCluster, first: int = 0, **options: Any) -> None:
    with Producer(cluster.bootstrap, **options) as producer:
        sent = [producer.send(TOPIC, b"%d" % n) for n in range(first, first + RECORDS)]
        assert {each.result(WAIT_S).durable_copies >= 2 for each in sent} == {True}


def values(cluster: LocalCluster, **options: Any) -> list[int]:
    with Consumer(cluster.bootstrap, TOPIC, stop_at_end=True, **options) as consumer:
        return sorted(int(record.value or b"") for record in consumer)


def wait_for_copies(cluster: LocalCluster) -> None:
    """Until no copy is missing anywhere, and all nodes are up."""
    deadline = time.monotonic() + WAIT_S
    with Admin(cluster.bootstrap) as admin:
        while True:
            found = admin.describe_cluster()
            states = {each.node.state for each in found.nodes}
            if not found.under_replicated and states == {NodeState.UP}:
                return
            assert time.monotonic() < deadline, found
            time.sleep(0.1)


def test_processes_of_ours_talk_natively(tmp_path: Path) -> None:
    """Produce, replicate, recover what a killed node led, copy what it lacks, read it all."""
    with with_metrics(LocalCluster(tmp_path / "cluster", nodes=3)) as cluster:
        with Admin(cluster.bootstrap) as admin:
            admin.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3)
            assert all(each.node.native_address for each in admin.describe_cluster().nodes)
        produce(cluster)
        cluster.kill_node(1)
        produce(cluster, RECORDS)
        cluster.start_node(1)  # its native port is another one now
        wait_for_copies(cluster)
        produce(cluster, 2 * RECORDS)
        assert values(cluster) == list(range(3 * RECORDS))
        for node_id in (1, 2, 3):
            counts = calls(cluster, node_id)
            assert counts["native"] > 0 and counts["grpc"] == 0, (node_id, counts)
        assert values(cluster, transport="grpc") == list(range(3 * RECORDS))
        assert sum(calls(cluster, node_id)["grpc"] for node_id in (1, 2, 3)) > 0


def test_a_node_without_it_is_called_over_grpc(tmp_path: Path) -> None:
    cluster = with_metrics(LocalCluster(tmp_path / "cluster", nodes=3))
    cluster.node(3).extra += ["--transport", "grpc"]
    with cluster:
        with Admin(cluster.bootstrap) as admin:
            admin.create_topic(TOPIC, partitions=PARTITIONS, replication_factor=3)
            found = {each.node.node_id: each.node for each in admin.describe_cluster().nodes}
            assert [bool(found[i].native_address) for i in (1, 2, 3)] == [True, True, False]
        produce(cluster)
        cluster.kill_node(1)
        produce(cluster, RECORDS)
        cluster.start_node(1)
        wait_for_copies(cluster)
        produce(cluster, 2 * RECORDS, transport="grpc")
        assert values(cluster) == values(cluster, transport="grpc") == list(range(3 * RECORDS))
        assert calls(cluster, 3)["native"] == 0 < calls(cluster, 3)["grpc"]
        assert min(calls(cluster, 2).values()) > 0


def test_a_coordinator_may_listen_natively_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster, address = LocalCluster(tmp_path / "cluster", nodes=1), free_address()
    cluster.coordinator.extra += ["--native-listen", address]
    cluster.node(1).extra += ["--coordinator", f"native://{address}"]
    with cluster:
        for bootstrap in (cluster.bootstrap, f"native://{address}"):
            with Admin(bootstrap) as admin:
                admin.create_topic(TOPIC, partitions=1, if_not_exists=True)
            with pytest.raises(SystemExit) as ended:
                main(["--bootstrap", bootstrap, "topic", "list"])
            assert not ended.value.code and TOPIC in capsys.readouterr().out
