"""A row that is deleted names its key and nothing else: each record is found by that."""

import pytest

from benchmarks.scale.metadata import records_of
from icecore.model import Generation, NodeId, ProducerId, SegmentId
from icecore.tier_records import TierRecord, TierState, TierTopicRecord
from icecore_coordinator.state.cluster_state import ClusterState
from icecore_coordinator.state.records import (
    RECORD_TYPES,
    Change,
    ClusterRecord,
    DeletionRecord,
    PositionRecord,
    ProducerRecord,
    Record,
    ReportedStateRecord,
)
from icecore_coordinator.state.stored_keys import count_of, record_at, type_of

RECORDS: tuple[Record, ...] = (
    ClusterRecord(b"c" * 16, version=1),
    *records_of(3, 2),
    DeletionRecord(SegmentId(90), (NodeId(1),), 5, version=1),
    ProducerRecord("orders/1", ProducerId(7), version=1),
    ReportedStateRecord(12, version=1),
    PositionRecord(b"t" * 16, "a reader/of mine", 3, version=1),
    TierRecord(
        SegmentId(80), b"t" * 16, 1, Generation(0), 0, 9, TierState.UPLOADING, "parquet", version=1
    ),
    TierTopicRecord(b"t" * 16, version=1),
)


@pytest.fixture
def state() -> ClusterState:
    found = ClusterState()
    found.apply(Change(RECORDS))
    return found


def test_there_is_one_of_each_type() -> None:
    assert {type(each) for each in RECORDS} == set(RECORD_TYPES)


@pytest.mark.parametrize("record", RECORDS, ids=lambda each: str(each.key))
def test_a_record_is_found_by_its_key(state: ClusterState, record: Record) -> None:
    assert type_of(record.key) is type(record)
    assert record_at(state, record.key) == record
    assert record_at(ClusterState(), record.key) is None


def test_all_are_counted(state: ClusterState) -> None:
    assert count_of(state) == len(RECORDS)
    assert count_of(ClusterState()) == 0


def test_no_version_stores_such_a_key(state: ClusterState) -> None:
    assert type_of("unheard/of") is None
    assert record_at(state, "unheard/of") is None
