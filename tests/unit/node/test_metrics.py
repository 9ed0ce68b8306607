"""Metrics: names a dashboard can rely on, gauges asked for at scrape time, loopback only."""

import re
import urllib.request

import pytest
from prometheus_client import generate_latest

from icecore.errors import ConfigurationError
from icecore.process.status_page import StatusServer
from icecore_node.metrics import NodeMetrics, NodeSample, PartitionSample, pages


def sample() -> NodeSample:
    leader = PartitionSample("t", 0, 5, 10, 12, True, 2, 3, ((2, 0), (3, 7)))
    follower = PartitionSample("t", 1, 0, 1, 1, False, 0, 3)
    disks = (("/a", 60, 300, True), ("/b", 40, 600, False))
    return NodeSample((leader, follower), (("active", 2), ("sealed", 4)), 100, 900, 7, 8, disks, 9)


def shown(metrics: NodeMetrics) -> dict[str, float]:
    lines = generate_latest(metrics.registry).decode().splitlines()
    return {
        name: float(value)
        for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    }


def test_names_have_the_prefix_and_a_help_text() -> None:
    metrics = NodeMetrics()
    metrics.show(sample)
    text = generate_latest(metrics.registry).decode()
    names = re.findall(r"^# HELP (\S+) \S", text, re.MULTILINE)
    names = [name for name in names if not name.endswith("_created")]
    assert len(names) >= 25
    assert all(name.startswith("icecore_") for name in names)
    assert len(set(names)) == len(names)


def test_hot_path_objects_count() -> None:
    metrics = NodeMetrics()
    metrics.produce_requests["all"].inc()
    metrics.produce_bytes.inc(1000)
    metrics.produce_errors.labels("NOT_LEADER").inc()
    metrics.group_appends.observe(3)
    values = shown(metrics)
    assert values['icecore_produce_requests_total{acks="all"}'] == 1
    assert values["icecore_produce_bytes_total"] == 1000
    assert values['icecore_produce_errors_total{reason="NOT_LEADER"}'] == 1
    assert values['icecore_group_appends_bucket{le="2.0"}'] == 0
    assert values['icecore_group_appends_bucket{le="4.0"}'] == 1


def test_gauges_come_from_the_sample() -> None:
    metrics = NodeMetrics()
    metrics.show(sample)
    values = shown(metrics)
    assert values['icecore_high_watermark{partition="0",topic="t"}'] == 10
    assert values['icecore_data_dir_free_bytes{path="/b"}'] == 600
    assert [values[f'icecore_data_dir_up{{path="/{each}"}}'] for each in "ab"] == [1, 0]
    assert [values[f'icecore_is_leader{{partition="{i}",topic="t"}}'] for i in (0, 1)] == [1, 0]
    assert values['icecore_log_end_offset{partition="1",topic="t"}'] == 1
    assert values['icecore_under_replicated{partition="0",topic="t"}'] == 1
    assert 'icecore_isr_size{partition="1",topic="t"}' not in values
    assert values['icecore_replica_lag_offsets{partition="0",replica="3",topic="t"}'] == 7
    assert values['icecore_segments{state="sealed"}'] == 4
    assert values["icecore_disk_free_bytes"] == 900
    assert values["icecore_memory_engine_bytes"] == 9


def test_nodes_of_one_process_do_not_share_counts() -> None:
    first, second = NodeMetrics(), NodeMetrics()
    first.isr_shrinks.inc()
    assert shown(second)["icecore_isr_shrinks_total"] == 0


def test_served_on_loopback_only() -> None:
    shown = pages(NodeMetrics(), str, str)
    with pytest.raises(ConfigurationError):
        StatusServer(shown, "0.0.0.0:0")
    server = StatusServer(shown, "127.0.0.1:0")
    try:
        with urllib.request.urlopen(f"http://{server.address}/metrics", timeout=5) as answer:
            assert b"icecore_build_info" in answer.read()
    finally:
        server.stop()
