"""A recovery that ends where nothing proves it knows how far somebody has read (R96)."""

import pytest

from icecore.model import OFFSETS_LEFT_OUT, NodeId, SegmentState
from icecore_coordinator.work.recovery.recovery_case import Case
from icecore_replication.recovery import FenceReply
from tests.support.replication_setup import segment

BASE, NOW_MS = 100, 7
ONE, OTHER = NodeId(1), NodeId(2)


def case(*replies: FenceReply) -> Case:
    found = Case(segment(state=SegmentState.RECOVERING, base_offset=BASE), is_lossy=True)
    found.replies = dict(zip((ONE, OTHER), replies, strict=False))
    return found


def whole(end_offset: int, told: int = 0) -> FenceReply:
    return FenceReply(True, durable_end_offset=end_offset, max_known_high_watermark=told)


@pytest.mark.parametrize(
    ("known", "told", "seen"),
    [
        (0, 0, BASE),
        (130, 0, 130),
        (130, 150, 150),
        (1 << 62, 0, BASE + OFFSETS_LEFT_OUT),
        (0, 1 << 62, BASE + OFFSETS_LEFT_OUT),
    ],
)
def test_whoever_says_more_than_a_segment_has_uses_up_no_offsets(
    known: int, told: int, seen: int
) -> None:
    decided = case(whole(120), whole(110, told)).decide_unclean(known, 0, NOW_MS)
    assert (decided.end.end_offset, decided.seen_end_offset) == (120, seen)


def test_who_proves_nothing_says_nothing() -> None:
    unknown = FenceReply(False, durable_end_offset=900, max_known_high_watermark=900)
    decided = case(whole(120), unknown).decide_unclean(0, 0, NOW_MS)
    assert decided.seen_end_offset == BASE
    salvaged = FenceReply(
        False, durable_end_offset=110, max_known_high_watermark=140, salvageable=True
    )
    assert case(whole(120), salvaged).decide_unclean(0, 0, NOW_MS).seen_end_offset == 140


@pytest.mark.parametrize("known", [0, 150, 1 << 62])
def test_nothing_is_left(known: int) -> None:
    decided = case(FenceReply(False)).decide_unclean(known, 0, NOW_MS)
    seen = max(BASE, min(known, BASE + OFFSETS_LEFT_OUT))
    assert decided.is_lost and (decided.end.end_offset, decided.seen_end_offset) == (seen, seen)
    successor = decided.successor_to_open(decided.segment)
    assert successor.base_offset == seen + OFFSETS_LEFT_OUT
    assert case(whole(120)).decide_unclean(known, 121, NOW_MS).is_lost, "all is below the log start"
