"""Finds records by the keys that they are stored with.

For whoever follows a store, and hears of rows: a deletion names its key, and nothing else.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from icecore.model import NodeId, SegmentId
from icecore.tier_records import TierRecord, TierTopicRecord
from icecore_coordinator.state.cluster_state import ClusterState
from icecore_coordinator.state.records import (
    RECORD_TYPES,
    ClusterRecord,
    CounterRecord,
    DeletionRecord,
    NodeRecord,
    PartitionRecord,
    PositionRecord,
    ProducerRecord,
    Record,
    ReportedStateRecord,
    SegmentRecord,
    TopicRecord,
)

Place = tuple[Callable[[ClusterState], Mapping[Any, Record]], Callable[[str], Any]]


def _partition_key(rest: str) -> tuple[bytes, int]:
    topic_id, _, partition = rest.partition("/")
    return bytes.fromhex(topic_id), int(partition)


def _segment_id(rest: str) -> SegmentId:
    return SegmentId(int(rest.rpartition("/")[2]))


_PLACES: Final[dict[type[Record], Place]] = {
    ClusterRecord: (lambda state: {"": state.cluster} if state.cluster else {}, str),
    CounterRecord: (lambda state: state.counters, str),
    NodeRecord: (lambda state: state.nodes, lambda rest: NodeId(int(rest))),
    TopicRecord: (lambda state: state.topics, bytes.fromhex),
    PartitionRecord: (lambda state: state.partitions, _partition_key),
    SegmentRecord: (lambda state: state.segments, _segment_id),
    DeletionRecord: (lambda state: state.deleted, _segment_id),
    ProducerRecord: (lambda state: state.producers, str),
    ReportedStateRecord: (lambda state: state.heard, int),
    PositionRecord: (
        lambda state: state.positions.records,
        lambda rest: PositionRecord.prefix + rest,
    ),
    TierRecord: (lambda state: state.tiers.segments, _segment_id),
    TierTopicRecord: (lambda state: state.tiers.topics, bytes.fromhex),
}
"""By type: where a state has its records, and what they go by there (of a key without prefix)."""
_TYPES: Final = sorted(RECORD_TYPES, key=lambda each: len(each.prefix), reverse=True)


def type_of(key: str) -> type[Record] | None:
    """The type of record that is stored with this key; None = no version until now stores it."""
    return next((each for each in _TYPES if key.startswith(each.prefix)), None)


def record_at(state: ClusterState, key: str) -> Record | None:
    """The record that is stored with this key; None = the state has none."""
    cls = type_of(key)
    if cls is None:
        return None
    place, name_of = _PLACES[cls]
    return place(state).get(name_of(key[len(cls.prefix) :]))


def count_of(state: ClusterState) -> int:
    """Return how many records there are."""
    return sum(len(place(state)) for place, _ in _PLACES.values())
