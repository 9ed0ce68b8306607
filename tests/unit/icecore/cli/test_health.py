"""The verdict on a cluster: what makes it, and how a command ends with it."""

import json
import time
from dataclasses import replace
from typing import Any, cast

import pytest

from icecore.cli import health
from icecore.cli.app import main
from icecore.cli.health import Health, HealthVerdict, Reason, judge
from icecore.client.cluster_types import (
    Alert,
    ClusterDescription,
    DiskUsage,
    LimitUse,
    NodeDescription,
)
from icecore.client.types import PartitionDescription, TopicDescription, TopicTiering
from icecore.errors import NotCoordinatorError
from icecore.model import NodeInfo, NodeState, Segment, SegmentState
from icecore.topic_settings import SegmentSettings, TopicSettings

NODES = tuple(NodeDescription(NodeInfo(i, "h:1", i), 1, 1, 0, 9) for i in (1, 2, 3))
CLUSTER = ClusterDescription(b"c", 1, NODES, 1, 1, 1, 0, 0, 0, 0, 0)
TAIL = Segment(
    7,
    b"t",
    "t",
    0,
    SegmentState.ACTIVE,
    1,
    leader=1,
    replicas=(1, 2, 3),
    isr=(1, 2, 3),
    settings=SegmentSettings(replication_factor=3, min_insync_replicas=2),
)
PARTITION = PartitionDescription(0, 0, 5, TAIL, 1, 0)


def judged(partition: PartitionDescription = PARTITION, **changes: Any) -> Health:
    topic = TopicDescription("t", b"t", TopicSettings(), (partition,))
    return judge(replace(CLUSTER, **changes), [topic])


def with_node(number: int, **changes: Any) -> tuple[NodeDescription, ...]:
    return tuple(
        replace(each, **changes) if each.node.node_id == number else each for each in NODES
    )


def test_a_whole_cluster_is_healthy() -> None:
    assert judged() == Health(())
    assert judged().verdict is HealthVerdict.HEALTHY


@pytest.mark.parametrize(
    ("tail", "verdict", "said"),
    [
        (None, HealthVerdict.UNAVAILABLE, "it has no leader"),
        (replace(TAIL, leader=0), HealthVerdict.UNAVAILABLE, "it has no leader"),
        (
            replace(TAIL, state=SegmentState.RECOVERING),
            HealthVerdict.UNAVAILABLE,
            "it has no leader",
        ),
        (replace(TAIL, isr=(1,)), HealthVerdict.UNAVAILABLE, "1 of 2 replicas needed are in sync"),
        (replace(TAIL, isr=(1, 2)), HealthVerdict.DEGRADED, "2 of 3 replicas are in sync"),
    ],
)
def test_partitions(tail: Segment | None, verdict: HealthVerdict, said: str) -> None:
    found = judged(replace(PARTITION, tail=tail))
    assert found.reasons == (Reason(verdict, said, "t", 0),)
    assert found.reasons[0].where == "t/0"
    assert found.verdict is verdict


def test_missing_copies() -> None:
    found = judged(replace(PARTITION, under_replicated_segments=2))
    assert [each.what for each in found.reasons] == ["2 segments with copies missing"]
    assert found.verdict is HealthVerdict.DEGRADED


def test_nodes_disks_and_what_waits_for_a_person() -> None:
    down = replace(NODES[1].node, state=NodeState.DOWN)
    disks = (DiskUsage("/a", 1, 2), DiskUsage("/b", 0, 0, "it failed"))
    found = judged(
        nodes=with_node(2, node=down, disks=disks),
        alerts=(Alert(9, "it differs", 1, 2), Alert(0, "nobody answers", 1, 2)),
    )
    assert [(each.where, each.what) for each in found.reasons] == [
        ("node 2", "it is down"),
        ("node 2", "disk /b: it failed"),
        ("cluster", "segment 9 waits for a person: it differs"),
        ("cluster", "it waits for a person: nobody answers"),
    ]
    assert found.verdict is HealthVerdict.DEGRADED
    all_down = tuple(replace(each, node=replace(each.node, state=NodeState.DOWN)) for each in NODES)
    assert judged(nodes=all_down).reasons[0] == Reason(HealthVerdict.UNAVAILABLE, "no node is up")
    assert judged(nodes=()).verdict is HealthVerdict.UNAVAILABLE


def test_a_limit_that_is_nearly_reached_is_told_with_what_makes_room() -> None:
    limits = (LimitUse("nodes", 799, 1_000), LimitUse("producer_names", 40_000, 50_000, "do this"))
    found = judge(replace(CLUSTER, limits=limits), [])
    assert found.verdict is HealthVerdict.DEGRADED
    assert [each.what for each in found.reasons] == [
        "40000 of 50000 producer names are used: do this"
    ]


def test_the_worst_comes_first() -> None:
    found = judged(
        replace(PARTITION, tail=None), nodes=with_node(1, disks=(DiskUsage("/b", 0, 0, "no"),))
    )
    assert [each.verdict for each in found.reasons] == [
        HealthVerdict.UNAVAILABLE,
        HealthVerdict.DEGRADED,
    ]


def test_a_node_that_is_down_is_told_with_its_time_and_what_helps() -> None:
    down = replace(NODES[1].node, state=NodeState.DOWN)
    [found] = judged(nodes=with_node(2, node=down, down_since_ms=1_000)).reasons
    assert found.what == "it is down since 1970-01-01T00:00:01.000Z"
    assert found.help == "start it; if it is gone for good: icecore node remove 2 --disk-gone"
    assert list(health.causes([found])) == [f"node 2: {found.what}; {found.help}"]
    drained = with_node(2, node=down, is_drained=True)
    assert judged(nodes=drained).verdict is HealthVerdict.HEALTHY


def test_a_backup_that_is_missed() -> None:
    week_ago_ms = int((time.time() - 7 * 86_400) * 1000)
    assert judged(backup_at_ms=week_ago_ms + 3_600_000) == Health(())
    [found] = judged(backup_at_ms=week_ago_ms - 86_400_000).reasons
    assert (
        found.what == "the last backup of the metadata is 8 days old: icecore cluster backup FILE"
    )


def test_partitions_that_suffer_alike_share_a_line() -> None:
    short = replace(PARTITION, tail=replace(TAIL, isr=(1, 2)))
    gone = replace(PARTITION, partition=9, tail=None)
    topic = TopicDescription(
        "t", b"t", TopicSettings(), (*(replace(short, partition=each) for each in range(5)), gone)
    )
    assert list(health.causes(judge(CLUSTER, [topic]).reasons)) == [
        "t/9: it has no leader",
        "5 partitions (t/0, t/1, t/2, …): 2 of 3 replicas are in sync",
    ]


# --- the command ----------------------------------------------------------------------------------


def run(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["cluster", "health", *words])
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> list[Health]:
    """Return the findings of the next looks; the last one is found again and again."""
    given: list[Health] = []

    def look(_: object) -> tuple[Health, dict[str, Any]]:
        return (given.pop(0) if len(given) > 1 else given[0]), {}

    monkeypatch.setattr(health, "_look", look)
    monkeypatch.setattr(health, "_POLL_S", 0.01)
    return given


DEGRADED = Health((Reason(HealthVerdict.DEGRADED, "it is down", node_id=2),))
UNAVAILABLE = Health((Reason(HealthVerdict.UNAVAILABLE, "it has no leader", "t", 3),))


def test_the_status_says_the_verdict(
    looks: list[Health], capsys: pytest.CaptureFixture[str]
) -> None:
    for found, status in ((Health(()), 0), (DEGRADED, 10), (UNAVAILABLE, 20)):
        looks[:] = [found]
        assert run() == status
        document = json.loads(capsys.readouterr().out)
        assert (document["schema"], document["verdict"]) == (1, found.verdict.value)
        assert len(document["reasons"]) == len(found.reasons)
    assert document["reasons"][0]["where"] == "t/3"


def test_waiting_ends_when_it_is_healthy_or_too_late(looks: list[Health]) -> None:
    looks[:] = [UNAVAILABLE, DEGRADED, Health(())]
    assert run("--wait", "60") == 0
    looks[:] = [UNAVAILABLE, DEGRADED]
    assert run("--wait", "0.1") == 10
    assert run("--wait", "1", "--watch") == 2
    assert run("--wait", "-1") == 2


def test_nobody_there_is_unavailable(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("-b", "127.0.0.1:1") == 20
    assert "no coordinator answers" in capsys.readouterr().out


def test_standbys_of_which_none_can_act_are_unavailable() -> None:
    """Nobody may lose sight of the cluster, with --wait or --watch, while etcd is away."""

    class Session:
        def admin(self, _: object) -> None:
            raise NotCoordinatorError("this coordinator stands by, and no coordinator can act")

    found, numbers = health._look(cast(Any, Session()))
    assert (found.verdict, numbers) == (HealthVerdict.UNAVAILABLE, {})
    assert found.reasons[0].what.startswith("no coordinator acts: this coordinator stands by")


def test_people_read_a_word_and_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    output = health.Output(is_json=False, is_quiet=False)
    output.is_json = False
    many = tuple(Reason(HealthVerdict.DEGRADED, f"x{i}", "t", i) for i in range(22))
    health._show(output, Health(many), {"nodes": 3, "nodes_up": 1, "topics": 1, "partitions": 22})
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "DEGRADED  1 of 3 nodes up, 1 topic, 22 partitions"
    assert lines[1] == "  t/0: x0"
    assert lines[-1] == "  and 2 more: --json has them all"


@pytest.mark.parametrize(
    ("lag_ms", "error", "is_told"),
    [(0, "", False), (90_000, "", False), (30_000, "503 SlowDown", False), (90_000, "503", True)],
)
def test_an_object_store_that_fails_for_long_is_told(
    lag_ms: int, error: str, is_told: bool
) -> None:
    one = TopicTiering(
        name="t",
        topic_id=b"t",
        is_on=True,
        waiting_segments=3,
        uploading_segments=0,
        published_segments=0,
        remote_only_segments=0,
        unswept_attempts=0,
        local_bytes=9,
        remote_bytes=0,
        lag_ms=lag_ms,
        stale_tables=0,
        last_error=error,
        last_error_ms=1,
    )
    fine = replace(one, name="u", lag_ms=0, last_error="")
    found = judge(CLUSTER, [], [fine, one, replace(one, name="v", lag_ms=lag_ms // 2)])
    assert (found.verdict is HealthVerdict.DEGRADED) is is_told
    if is_told:
        [reason] = found.reasons
        assert reason.what == "object storage fails: 1 topic up to 1 min behind, t most: 503"
        assert reason.help == "icecore tier status says more"


def test_what_helps_with_a_disk_is_said() -> None:
    [found] = judged(nodes=with_node(2, disks=(DiskUsage("/b", 0, 0, "it failed"),))).reasons
    assert found.help.startswith("bring the disk back and start the node again; if it is gone for")
    assert found.help.endswith("icecore-node forget-disk")
