"""Topics and clusters for programs and for people."""

import json
from dataclasses import replace

import pytest

from icecore.cli import cluster as cluster_command
from icecore.cli.output import Output
from icecore.cli.topics import topic_shown
from icecore.client.cluster_types import Alert, ClusterDescription, DiskUsage, NodeDescription
from icecore.client.types import PartitionDescription, SnapshotHold, TopicDescription
from icecore.model import NodeInfo, Segment, SegmentState
from icecore.topic_settings import TopicSettings

SETTINGS = TopicSettings(
    partitions=2,
    replication_factor=3,
    segment_bytes=64 << 20,
    segment_age_ms=86_400_000,
    record_bytes_max=1 << 20,
    retention_ms=-1,
    retention_bytes=5 << 30,
    local_retention_ms=90_000,
    indexed_headers=("a", "b"),
)
TAIL = Segment(
    7, b"\x01" * 16, "t", 0, SegmentState.ACTIVE, 4, leader=2, replicas=(2, 1, 3), isr=(2, 1)
)
WHOLE = PartitionDescription(0, 5, 12, TAIL, 3, 1, length_bytes=1536)
LEADERLESS = PartitionDescription(1, 0, 0, None, 0, 0)
TOPIC = TopicDescription("t", b"\x01" * 16, SETTINGS, (WHOLE, LEADERLESS))
NODES = tuple(
    NodeDescription(
        NodeInfo(number, f"10.0.0.{number}:7401", 9, native_address=f"{host}:7501"),
        *(1, 2, 3 << 30, 1 << 30),
        disks=(DiskUsage("/a", 1, 2, ""),) * number,
    )
    for number, host in ((2, "10.0.0.2"), (1, "10.9.0.1"))
)
CLUSTER = ClusterDescription(b"\xab", 1, NODES, 1, 2, 3, 0, 0, 0, 0, 0)


def test_a_document_has_what_is_documented_and_nothing_raw() -> None:
    found = json.loads(json.dumps(topic_shown.document(TOPIC)))
    assert list(found) == [
        *("name", "topic_id", "settings", "partitions", "earlier_partitions"),
        *("deleted_at", "grace_left_ms", "holds", "table"),
    ]
    first, second = found["partitions"]
    assert first == {
        "partition": 0,
        "leader": 2,
        "isr": [2, 1],
        "replicas": [2, 1, 3],
        "epoch": 4,
        "segment_id": 7,
        "state": "active",
        "log_start_offset": 5,
        "high_watermark": 12,
        "length_bytes": 1536,
        "segments": 3,
        "under_replicated_segments": 1,
        "lossy_segments": 0,
        "tiered_segments": 0,
        "remote_only_segments": 0,
        "left_out": [],
    }
    assert (second["leader"], second["isr"], second["epoch"]) == (None, [], None)
    assert (found["deleted_at"], found["grace_left_ms"], found["holds"]) == (None, None, [])


def test_a_deleted_topic_says_when_and_a_hold_whose() -> None:
    hold = SnapshotHold(b"\x01" * 16, b"\x02" * 16, 500, "job")
    topic = replace(TOPIC, deleted=True, deleted_at_ms=0, grace_left_ms=7, holds=(hold,))
    found = topic_shown.document(topic)
    assert (found["deleted_at"], found["grace_left_ms"]) == ("1970-01-01T00:00:00.000Z", 7)
    assert found["holds"] == [{"lease_id": "02" * 16, "owner": "job", "left_ms": 500}]


def test_settings_are_said_in_units_of_people() -> None:
    said = topic_shown.settings_line(TOPIC)
    for part in (
        *("replication factor 3", "segment size 64MiB", "segment age 1 d", "record size max 1MiB"),
        *("retention time unlimited", "retention size 5GiB", "local retention time 1 min"),
        "indexed headers a,b",
    ):
        assert part in said, said
    assert "_" not in said and "partitions" not in said


@pytest.fixture
def people(monkeypatch: pytest.MonkeyPatch) -> Output:
    monkeypatch.setenv("COLUMNS", "80")
    output = Output(is_json=False, is_quiet=False)
    output.is_json = False
    return output


def test_tables_fit_80_columns_and_headings_break_between_words(
    people: Output, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("icecore.cli.output._LOG_WIDTH", 80)
    topic_shown.show(people, TOPIC)
    topic_shown.show_list(people, [TOPIC])
    cluster_command.show_cluster(people, CLUSTER)
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80
    for word in ("partition ", "replicas", "watermark", "segments", "leaderless", "disk free"):
        assert word in printed
    assert "1.5KiB" in printed and "5GiB" in printed


def test_nodes_come_in_their_order_and_flat() -> None:
    found = json.loads(json.dumps(cluster_command.document(CLUSTER)))
    assert [each["node_id"] for each in found["nodes"]] == [1, 2]
    assert found["nodes"][0]["address"] == "10.0.0.1:7401"
    assert found["nodes"][0]["state"] == "up"
    assert found["min_copies"] is None
    sealed = replace(CLUSTER, sealed_segments=1, min_copies=2, alerts=(Alert(3, "why", 0, 1000),))
    found = cluster_command.document(sealed)
    assert found["min_copies"] == 2
    assert found["alerts"][0]["last_at"] == "1970-01-01T00:00:01.000Z"


def test_a_native_address_of_the_same_host_is_its_port(
    people: Output, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster_command.show_cluster(people, CLUSTER)
    first, second = [line for line in capsys.readouterr().out.splitlines() if " up " in line]
    assert "10.9.0.1:7501" in first and " :7501" in second
