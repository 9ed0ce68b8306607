"""The state with which a partition goes on behind a sealed segment."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from icecore.model import OFFSETS_LEFT_OUT, SegmentState
from icecore_coordinator.decisions.segment_changes import is_sealed_state, seal
from icecore_coordinator.nodes.copy_reports import CopyReports
from icecore_coordinator.nodes.node_calls import WriteBackItem, WrittenReplica
from icecore_coordinator.state.records import SegmentRecord
from icecore_coordinator.timing import Timing
from icecore_coordinator.work.recovery.start_states import Start, StartStates, start_behind
from icecore_replication.producers import snapshot_digest
from tests.support.cluster_states import KEY, commit, sealing, started
from tests.support.replication_setup import segment
from tests.unit.coordinator.nodes.test_node_sessions import FakeClock

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


@pytest.mark.parametrize("seen", [0, 25])
async def test_producers_go_on_behind_offsets_that_were_left_out(seen: int) -> None:
    """Their state is that of the last segment with records."""
    state = started()
    ended = sealing(state, 10, is_lossy=True, seen_end_offset=seen)
    ended = replace(ended, producer_digest=snapshot_digest(b"s"), max_append_timestamp_ms=1_000)
    commit(state, seal(state, state.live, ended, None, 9))
    asked: list[WriteBackItem] = []

    async def write_back(
        node_id: int, items: list[WriteBackItem], timeout_s: float
    ) -> list[WrittenReplica]:
        asked.extend(items)
        return [WRITTEN for _ in items]

    starts = StartStates(
        ledger=cast(Any, SimpleNamespace(state=state)),
        calls=cast(Any, SimpleNamespace(write_back=write_back)),
        live=state.live,
        copies=CopyReports(),
        alerts=cast(Any, None),
        clock=FakeClock(),
        timing=Timing(),
    )
    base = max(10, seen) + OFFSETS_LEFT_OUT
    assert await starts.find([KEY]) == {KEY: Start(base, b"s", 1_000)}
    assert [(each.segment.segment_id, each.end_offset) for each in asked] == [(1, 10)]
