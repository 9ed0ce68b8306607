"""Asks leaders to roll segments, and logs what each says."""

import logging
from collections.abc import Sequence

from icecore.errors import IcecoreError
from icecore.model import NodeId, Segment
from icecore.process.log import event
from icecore_coordinator.nodes.node_calls import NodeCalls, Rolling

_log = logging.getLogger(__name__)


async def ask_to_roll(
    calls: NodeCalls, leader: NodeId, segments: Sequence[Segment], why: str, timeout_s: float
) -> None:
    """Ask one of them for all that it leads. That it refuses, or can't be reached, is only logged:
    who wants them rolled looks again."""
    try:
        answers = await calls.roll(leader, segments, why, timeout_s)
    except IcecoreError as error:
        answers = [Rolling(error)] * len(segments)
    for segment, rolling in zip(segments, answers, strict=True):
        event(
            _log,
            logging.INFO,
            "roll_asked",
            segment_id=segment.segment_id,
            leader=leader,
            why=why,
            error=rolling.error,
        )
