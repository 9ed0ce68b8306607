"""A segment goes on without its copies only when each of them is known to be of no use (R82)."""

from dataclasses import replace

import pytest

from icecore.errors import InvalidRequestError
from icecore.model import NodeId, SegmentState
from icecore.topic_settings import RESTART_EMPTY
from icecore_coordinator.decisions.lossy_changes import allow_total_loss
from icecore_coordinator.decisions.segment_changes import start_recovery
from icecore_coordinator.state.records import Change, updated_segment
from icecore_replication.recovery import FenceReply
from tests.support.cluster_states import ALL, Cluster, commit, segment, started

LOST = {NodeId(node): FenceReply(False, incarnation=number) for node, number in ALL.items()}


@pytest.fixture
def state() -> Cluster:
    """Segment 1 is RECOVERING, and may go on without its copies."""
    state = started()
    record = state.segments[1]
    settings = replace(record.segment.settings, on_total_loss=RESTART_EMPTY)
    commit(state, Change((updated_segment(record, {"settings": settings}),)))
    commit(state, start_recovery(state, 1, state.segments[1].version))
    assert segment(state).state is SegmentState.RECOVERING
    return state


def test_it_is_allowed_when_every_copy_is_unknown(state: Cluster) -> None:
    commit(state, allow_total_loss(state, 1, LOST))
    assert state.segments[1].is_unclean_allowed
    assert allow_total_loss(state, 1, LOST) == Change()


@pytest.mark.parametrize(
    "reply",
    [
        None,
        FenceReply(True, incarnation=12),
        FenceReply(False, incarnation=11),
    ],
    ids=["silent", "whole", "of an earlier life"],
)
def test_one_copy_that_may_be_whole_is_enough_to_wait(
    state: Cluster, reply: FenceReply | None
) -> None:
    replies = {node: each for node, each in LOST.items() if node != 2}
    if reply is not None:
        replies[NodeId(2)] = reply
    replies[NodeId(9)] = FenceReply(False)
    with pytest.raises(InvalidRequestError, match="may be whole"):
        allow_total_loss(state, 1, replies)


def test_a_segment_that_was_opened_otherwise_waits_for_a_person() -> None:
    state = started()
    with pytest.raises(InvalidRequestError, match="not RECOVERING"):
        allow_total_loss(state, 1, LOST)
    commit(state, start_recovery(state, 1, segment(state).version))
    with pytest.raises(InvalidRequestError, match="waits for a person"):
        allow_total_loss(state, 1, LOST)
    with pytest.raises(InvalidRequestError, match="not RECOVERING"):
        allow_total_loss(state, 99, LOST)
