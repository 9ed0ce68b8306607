"""Nodes that are about to stop: what could not go on without them moves, then they may leave.

A node that stops cleanly says so at once and goes on serving. A segment that it leads, or in which
too few others are in sync, is rolled by its leader, and the successor opens on other nodes: to
producers that is a roll like any other. When nothing is left to move, the node is told that it may
leave. When no node would stay, the whole cluster goes down: nothing is moved and nobody waits.

Level-triggered: everything is found by looking, so a restarted coordinator goes on.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Sequence

from icecore.errors import IcecoreError
from icecore.model import NodeId, NodeState, Segment, SegmentId, SegmentState
from icecore.process.log import event
from icecore_coordinator.nodes.fan_out import by_node
from icecore_coordinator.state.cluster_state import eligible_nodes
from icecore_coordinator.work.backoff import KeyedBackoff
from icecore_coordinator.work.segments.gains import ExpectedGains
from icecore_coordinator.work.worker_ports import WorkerPorts

_log = logging.getLogger(__name__)

AT_ONCE_MIN = 2
"""Rolls at a time: they share disks and processors, and a partition takes nothing until its own
roll is done. With eight at a time each stood still half as long again."""
ROUNDS_MAX = 16
"""More at a time when there is so much to move that it would take more rounds than this."""


class LeadershipHandOver:
    """Moves segments away from draining nodes.

    Args:
        ports: The cluster.
        gains: Nobody insists on more replicas meanwhile.
        recover: Replaces a segment that is empty, which its leader can't seal.
        let_leave: Tells a node that it may leave.
    """

    def __init__(
        self,
        ports: WorkerPorts,
        gains: ExpectedGains,
        recover: Callable[[SegmentId], None],
        let_leave: Callable[[NodeId], None],
    ) -> None:
        self._ledger = ports.ledger
        self._calls = ports.calls
        self._live = ports.live
        self._clock = ports.clock
        self._timing = ports.timing
        self._gains = gains
        self._recover = recover
        self._let_leave = let_leave
        self._asking: KeyedBackoff[SegmentId] = KeyedBackoff(
            ports.clock, ports.timing.hand_over_retry_ms, ports.timing.retry_max_ms
        )
        self._since_ms: dict[NodeId, float] = {}
        """Draining nodes and when they were first seen so."""

    @property
    def is_busy(self) -> bool:
        """Return whether any node wants to leave."""
        return bool(self._since_ms)

    def needed(self) -> list[Segment]:
        """Segments to move now; nodes that none of them holds back are told that they may leave."""
        state, now = self._ledger.state, self._clock.monotonic_ms()
        self._since_ms = {
            node_id: self._since_ms.get(node_id, now)
            for node_id in state.nodes
            if self._live.state_of(node_id) == NodeState.DRAINING
        }
        if not self._since_ms:
            return []
        staying = len(eligible_nodes(state, self._live))
        to_move: list[Segment] = []
        needed_here: set[NodeId] = set()
        for segment_id in state.unsealed if staying else ():
            segment = state.segments[segment_id].segment
            leaving = [each for each in segment.replicas if each in self._since_ms]
            if not leaving or segment.state == SegmentState.PREPARED:
                continue
            if segment.state == SegmentState.RECOVERING or not state.leader_is_live(
                segment, self._live
            ):
                needed_here.update(leaving)  # its end may only be known with their copies
            elif self._must_move(segment, staying):
                needed_here.update(leaving)
                # Nodes that are stopped together are all heard of by then, and nothing moves.
                if any(
                    now - self._since_ms[each] >= self._timing.hand_over_settle_ms
                    for each in leaving
                ):
                    to_move.append(segment)
        for node_id in self._since_ms:
            if node_id not in needed_here:
                self._let_leave(node_id)
        return self._next_round(to_move)

    def _next_round(self, to_move: Sequence[Segment]) -> list[Segment]:
        """Those to ask for now; none before half of the last round is done."""
        at_once = max(AT_ONCE_MIN, math.ceil(len(to_move) / ROUNDS_MAX))
        due = [each for each in to_move if self._asking.is_due(each.segment_id)]
        free = at_once - (len(to_move) - len(due))
        return due[:free] if 2 * free >= at_once else []

    def _must_move(self, segment: Segment, staying: int) -> bool:
        """Return whether a roll helps: it gains a leader that stays, or members that do."""
        settings = segment.settings
        if segment.leader in self._since_ms:
            return staying + len(self._since_ms) >= settings.min_insync_replicas
        in_sync = [
            each for each in segment.isr if self._live.is_live(each) and each not in self._since_ms
        ]
        return len(in_sync) < min(staying, max(settings.min_insync_replicas, settings.quorum))

    async def hand_over(self, segments: Sequence[Segment]) -> None:
        """Ask the leaders once to roll; what does not happen is asked again later."""
        taken = set(self._asking.take(each.segment_id for each in segments))
        mine = [each for each in segments if each.segment_id in taken]
        try:
            for segment in mine:
                self._gains.forget(segment.segment_id)
            grouped = by_node((each.leader, each) for each in mine)
            await asyncio.gather(*(self._ask(*each) for each in grouped.items()))
        finally:
            for segment_id in taken:
                self._asking.release(segment_id, is_done=False)
            self._asking.forget(lambda segment_id: segment_id not in self._ledger.state.unsealed)

    async def _ask(self, leader: NodeId, segments: Sequence[Segment]) -> None:
        try:
            answers = await self._calls.roll(
                leader, segments, "leave", self._timing.node_call_ms / 1000
            )
        except IcecoreError as error:
            event(_log, logging.WARNING, "hand_over_failed", leader=leader, error=error)
            return
        replaced = 0
        for segment, answer in zip(segments, answers, strict=True):
            # In traffic it won't be empty for long, and then rolls in less time than this takes.
            if answer.is_empty and self._asking.was_tried(segment.segment_id):
                replaced += 1
                self._recover(segment.segment_id)
        event(
            _log,
            logging.INFO,
            "handing_over",
            leader=leader,
            segments=len(segments),
            replaced=replaced,
        )
