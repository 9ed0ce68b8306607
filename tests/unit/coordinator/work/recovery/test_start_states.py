"""The state with which a partition goes on behind a sealed segment."""

from dataclasses import replace

import pytest

from icecore.model import SegmentState
from icecore_coordinator.decisions.segment_changes import is_sealed_state
from icecore_coordinator.nodes.node_calls import WrittenReplica
from icecore_coordinator.state.records import SegmentRecord
from icecore_coordinator.work.recovery.start_states import Start, start_behind
from icecore_replication.producers import snapshot_digest
from tests.support.replication_setup import segment

RECORD = SegmentRecord(
    segment(state=SegmentState.SEALED, end_offset=150),
    producer_digest=snapshot_digest(b"s"),
    max_append_timestamp_ms=1_000,
)
WRITTEN = WrittenReplica(
    incarnation=1,
    seal_digest=b"d",
    producer_snapshot=b"s",
    producer_digest=snapshot_digest(b"s"),
    max_append_timestamp_ms=1_000,
    length_bytes=0,
)


@pytest.mark.parametrize(("told_ms", "expected_ms"), [(1_000, 1_000), (999, 1_000), (1_001, 1_001)])
def test_append_times_do_not_go_back(told_ms: int, expected_ms: int) -> None:
    written = replace(WRITTEN, max_append_timestamp_ms=told_ms)
    assert start_behind(RECORD, written) == Start(150, b"s", expected_ms)


def test_only_the_producers_of_the_seal_are_taken() -> None:
    assert is_sealed_state(RECORD, b"s")
    assert not is_sealed_state(RECORD, b"other")
