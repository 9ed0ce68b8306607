"""A small cluster as the coordinator sees it, for tests of its decisions."""

from dataclasses import replace
from typing import Any

from icecore.model import NodeState, Segment
from icecore.topic_settings import Retention, SegmentSettings
from icecore_coordinator.decisions.segment_changes import (
    DecidedSeal,
    Opening,
    open_tail,
    prepare,
    seal,
)
from icecore_coordinator.decisions.topic_changes import (
    alter_topic,
    create_topic,
    missing_partitions,
)
from icecore_coordinator.state.cluster_state import ClusterState, Placement
from icecore_coordinator.state.liveness import Liveness
from icecore_coordinator.state.records import (
    Change,
    ClusterRecord,
    NodeRecord,
    PartitionKey,
    Record,
    SegmentRecord,
)
from icecore_coordinator.state.snapshot import snapshot

TOPIC = b"t" * 16
KEY = (TOPIC, 0)
SETTINGS = SegmentSettings(replication_factor=3, min_insync_replicas=2)
DIGEST = b"d" * 32
ALL = {1: 11, 2: 12, 3: 13}
"""Registered incarnation by node."""


class Cluster(ClusterState):
    """The committed state, and beside it who is up."""

    def __init__(self) -> None:
        super().__init__()
        self.live = Liveness()


def commit(state: ClusterState, change: Change) -> Change:
    """Apply a change the way the ledger does: every version must follow the stored one."""
    stored = {each.key: each.version for each in records(state)}
    for record in change.puts:
        assert stored.get(record.key, 0) == record.version - 1, record.key
    for record in change.deletes:
        assert stored[record.key] == record.version, record.key
    assert len(set(change.keys())) == len(change.keys())
    state.apply(change)
    return change


def records(state: ClusterState) -> list[Record]:
    return list(snapshot(state).records) if state.cluster else []


def registered(node_id: int, incarnation: int) -> NodeRecord:
    """A node that has come for the first time, and has begun to heartbeat."""
    return NodeRecord(
        node_id,
        disk_id=bytes([node_id]),
        address=f"n{node_id}:1",
        issued_incarnation=incarnation,
        incarnation=incarnation,
        version=1,
    )


def started() -> Cluster:
    """Three nodes up, one topic with one partition and its first segment (id 1) ACTIVE."""
    state = Cluster()
    commit(state, Change((ClusterRecord(b"c" * 16, version=1),)))
    for node_id, incarnation in ALL.items():
        commit(state, Change((registered(node_id, incarnation),)))
        state.live.note(node_id, state=NodeState.UP, is_connected=True)
    commit(state, create_topic(state, state.live, "events", TOPIC, 1, SETTINGS))
    for change in missing_partitions(state):
        commit(state, change)
    commit(state, prepare(state, [(KEY, Placement((1, 2, 3), 1))]))
    commit(state, open_tail(state, state.live, Opening(1, ALL)))
    return state


def segment(state: ClusterState, segment_id: int = 1) -> Segment:
    return state.segments[segment_id].segment


def sealing(state: ClusterState, end_offset: int = 10, **changes: object) -> DecidedSeal:
    made = DecidedSeal(1, segment(state).version, end_offset, DIGEST, (1, 2, 3))
    return replace(made, **changes)  # type: ignore[arg-type]


def another_topic(state: Cluster, number: int = 1) -> PartitionKey:
    """One more topic, like the first: its one partition."""
    topic_id = bytes([number]) * 16
    key = (topic_id, 0)
    commit(state, create_topic(state, state.live, f"other-{number}", topic_id, 1, SETTINGS))
    for change in missing_partitions(state):
        commit(state, change)
    commit(state, open_tail(state, state.live, Opening(prepared_successor(state, key), ALL)))
    return key


def prepared_successor(state: ClusterState, key: PartitionKey = KEY) -> int:
    change = commit(state, prepare(state, [(key, Placement((1, 2, 3), 1))]))
    [record] = [each for each in change.puts if isinstance(each, SegmentRecord)]
    return record.segment.segment_id


def roll(
    state: Cluster, length_bytes: int = 100, appended_ms: int = 0, key: PartitionKey = KEY
) -> int:
    """Seal the tail of a partition ten offsets on, under a successor: its id."""
    partition = state.partitions[key]
    tail = segment(state, partition.tail_segment_id)
    successor = prepared_successor(state, key)
    sealed = DecidedSeal(
        tail.segment_id,
        tail.version,
        tail.base_offset + 10,
        DIGEST,
        (1, 2, 3),
        length_bytes=length_bytes,
        max_append_timestamp_ms=appended_ms,
    )
    commit(state, seal(state, state.live, sealed, Opening(successor, ALL), 0))
    return tail.segment_id


def keep(state: Cluster, **limits: Any) -> None:
    """Alter what the topic keeps."""
    change = alter_topic(state, state.live, "events", SETTINGS, None, Retention(**limits))
    commit(state, change)
