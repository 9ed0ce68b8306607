"""Looks over all segments that are not sealed and puts right what no event will: too few copies.

Active segments are rolled, so that their successor opens on more or better nodes, and no more of
them at once than go well (``roll_pace``). Also ends what an earlier coordinator left half done:
prepared segments that nobody opened.
"""

import logging
from collections.abc import Callable

from icecore.model import NodeId, NodeState, Segment, SegmentId, SegmentState
from icecore.process.log import event
from icecore_coordinator.state.cluster_state import drained_nodes, eligible_nodes, next_of
from icecore_coordinator.state.records import PartitionKey
from icecore_coordinator.work.backoff import KeyedBackoff
from icecore_coordinator.work.segments.gains import ExpectedGains
from icecore_coordinator.work.segments.rolls import ROLLS_MIN, RollPace, ask_to_roll
from icecore_coordinator.work.segments.segment_opening import SegmentOpening
from icecore_coordinator.work.worker_ports import WorkerPorts

_log = logging.getLogger(__name__)

REPLACE_WAIT_MS_MAX = 600_000.0


class Auditor:
    """Periodic, level-triggered; keeps no state that matters."""

    def __init__(
        self,
        ports: WorkerPorts,
        opening: SegmentOpening,
        gains: ExpectedGains,
        recover: Callable[[SegmentId], None],
    ) -> None:
        self._ledger = ports.ledger
        self._calls = ports.calls
        self._live = ports.live
        self._heard = ports.heard
        self._copies = ports.copies
        self._clock = ports.clock
        self._timing = ports.timing
        self._opening = opening
        self._gains = gains
        self._recover = recover
        roll_retry_ms = ports.timing.roll_retry_ms
        self._rolling: KeyedBackoff[SegmentId] = KeyedBackoff(
            ports.clock, roll_retry_ms, roll_retry_ms
        )
        self._pace = RollPace(ports.clock, roll_retry_ms)
        self._replacing: KeyedBackoff[PartitionKey] = KeyedBackoff(
            ports.clock, ports.timing.replace_retry_ms, REPLACE_WAIT_MS_MAX
        )
        self._prepared_since_ms: dict[SegmentId, float] = {}
        self._first_own_segment_id = 0
        """Segments below it were opened before this process looked the first time."""

    @property
    def is_rolling(self) -> bool:
        """Return whether segments were asked to roll that have not, so far."""
        return self._pace.is_under_way

    async def roll(self) -> None:
        """One look at what is not sealed, as far as something may be wrong with it: some of it is
        asked to roll, and what can't be sealed by its leader is recovered."""
        if not self._first_own_segment_id:
            self._first_own_segment_id = next_of(self._ledger.state, "segment_id").next_value
        self._rolling.forget(lambda segment_id: segment_id not in self._ledger.state.unsealed)
        self._replacing.forget(self._is_whole)
        rolls = self.rolls(self._pace.room(self._ledger.state.unsealed.__contains__))
        self._rolling.take(segment.segment_id for segment, _ in rolls)
        try:
            asked: dict[tuple[NodeId, str], list[Segment]] = {}
            for segment, why in rolls:
                if not self._is_ended_otherwise(segment, why):
                    asked.setdefault((segment.leader, why), []).append(segment)
            for (leader, why), segments in asked.items():
                for segment in segments:
                    self._pace.ask(segment.segment_id)
                    if why == "roll_up":
                        self._gains.expect(segment.segment_id)
                await ask_to_roll(
                    self._calls, leader, segments, why, self._timing.node_call_ms / 1000
                )
        finally:
            for segment, _ in rolls:
                self._rolling.release(segment.segment_id, is_done=False)

    def rolls(self, count_max: int = ROLLS_MIN) -> list[tuple[Segment, str]]:
        """Active segments that would be better off on other nodes, so many at most, and why: those
        first that were not asked yet, then those that were asked longest ago."""
        state = self._ledger.state
        ripe = [
            each.node_id
            for each in eligible_nodes(state, self._live)
            if self._is_ripe(each.node_id)
        ]
        drained = frozenset(drained_nodes(state))
        is_calm = all(self._live.state_of(each) == NodeState.UP for each in state.nodes)
        is_calm = is_calm and not drained
        found: list[tuple[Segment, str]] = []
        again: list[tuple[Segment, str]] = []
        # Of very many segments, with nothing to complain of, only those are looked at.
        is_well, takers = self._copies.is_all_well, frozenset(ripe)
        for segment_id in state.short if is_calm and is_well else state.unsealed:
            if len(found) >= count_max:
                break
            segment = state.segments[segment_id].segment
            is_led_by_drained = segment.leader in drained
            if is_well and takers.issubset(segment.replicas) and not is_led_by_drained:
                continue  # nobody could take the place of one that is away
            is_full = len(segment.replicas) == segment.settings.replication_factor
            is_fine = not self._unknown_replicas(segment) and not self._is_crowded(segment)
            if is_calm and is_full and is_fine:
                continue
            if segment.state != SegmentState.ACTIVE or not self._rolling.is_due(segment_id):
                continue
            why = self._why_roll(segment, ripe, drained)
            if why and state.leader_is_live(segment, self._live):
                was_asked = self._rolling.was_tried(segment_id)
                (again if was_asked else found).append((segment, why))
        again.sort(key=lambda each: self._rolling.due_ms(each[0].segment_id))
        return (found + again)[:count_max]

    def _why_roll(self, segment: Segment, ripe: list[NodeId], drained: frozenset[NodeId]) -> str:
        states = [self._live.state_of(each) for each in segment.replicas]
        others = [each for each in ripe if each not in segment.replicas]
        stay = [
            each
            for each in segment.replicas
            if self._live.is_eligible(each) and each not in drained
        ]
        if len(stay) + len(others) < segment.settings.min_insync_replicas:
            return ""
        if self._unknown_replicas(segment):
            return "unknown_replica"
        if self._is_crowded(segment):
            return "crowded_disk"
        if segment.leader in drained:
            return "drained_node"  # a successor with one copy less is made whole later
        if not others:
            return ""
        if not drained.isdisjoint(segment.replicas):
            return "drained_node"
        if NodeState.READ_ONLY in states:
            return "read_only"
        if sum(each != NodeState.DOWN for each in states) >= segment.settings.replication_factor:
            return ""
        in_sync = sum(self._live.is_live(each) for each in segment.isr)
        can_wait = in_sync >= segment.settings.min_insync_replicas
        if can_wait and any(self._may_return(each) for each in segment.replicas):
            return ""
        return "roll_up"

    def _unknown_replicas(self, segment: Segment) -> list[NodeId]:
        """Members that have said that their copy counts for nothing."""
        is_unknown = self._copies.is_unknown
        return [each for each in segment.replicas if is_unknown(each, segment.segment_id)]

    def _is_crowded(self, segment: Segment) -> bool:
        """Return whether a member has it on a disk that is getting full, and has another one."""
        is_crowded = self._copies.is_crowded
        return any(is_crowded(each, segment.segment_id) for each in segment.replicas)

    def must_recover(self, segment: Segment) -> bool:
        """Return whether its leader could not seal it: it is damaged itself, or too few are in
        sync.

        Such a leader is healthy otherwise, so S1 holds: the end is known at once, and what its
        followers lack is written back to other nodes (R44).
        """
        unknown, is_live = self._unknown_replicas(segment), self._live.is_live
        sound = [each for each in segment.isr if each not in unknown and is_live(each)]
        return segment.leader in unknown or len(sound) < segment.settings.min_insync_replicas

    def _may_return(self, node_id: NodeId) -> bool:
        """Down so briefly that it may be starting again, with everything it had."""
        down_ms = self._live.down_ms(node_id, self._clock.monotonic_ms())
        return down_ms is not None and down_ms < self._timing.return_wait_ms

    def _is_ripe(self, node_id: NodeId) -> bool:
        since = self._live.of(node_id).up_since_ms
        now = self._clock.monotonic_ms()
        return since is not None and now - since >= self._timing.roll_up_wait_ms

    def _is_empty(self, segment: Segment) -> bool:
        """As far as its leader has told; leaders tell only of high watermarks that moved.

        Of segments older than this process it may have told the last one, so those are asked to
        roll first and count as empty only when that did not help.
        """
        known = self._heard.high_watermark(segment.segment_id)
        if known is None and segment.segment_id < self._first_own_segment_id:
            return self._rolling.was_tried(segment.segment_id)
        return known is None or known <= segment.base_offset

    def _is_whole(self, key: PartitionKey) -> bool:
        """The tail of the partition has all its replicas, or there is no such partition."""
        partition = self._ledger.state.partitions.get(key)
        if partition is None:
            return True
        tail = self._ledger.state.tail(partition)
        if tail is None:
            return False
        return len(tail.segment.replicas) >= tail.segment.settings.replication_factor

    def _replace(self, segment: Segment, why: str) -> None:
        """Nothing to seal, so its leader would wait for a first record: open another instead.

        That may gain nothing (a node that is up, but too slow to open in time), so a partition
        waits longer each time.
        """
        key = (segment.topic_id, segment.partition)
        if self._replacing.is_due(key):
            self._replacing.release(key, is_done=False)
            self._pace.ask(segment.segment_id)
            event(_log, logging.INFO, "replacing_empty", segment_id=segment.segment_id, why=why)
            self._recover(segment.segment_id)

    def _is_ended_otherwise(self, segment: Segment, why: str) -> bool:
        """Return whether its leader can't seal it, so that it is recovered instead."""
        if self.must_recover(segment):
            event(_log, logging.INFO, "recovery_wanted", segment_id=segment.segment_id, why=why)
            self._pace.ask(segment.segment_id)
            self._recover(segment.segment_id)
            return True
        if self._is_empty(segment):
            self._replace(segment, why)
            return True
        return False

    # --- leftovers ------------------------------------------------------------------------------

    async def audit(self) -> None:
        """Give up prepared segments that nobody opened."""
        state, now = self._ledger.state, self._clock.monotonic_ms()
        since = {
            segment_id: self._prepared_since_ms.get(segment_id, now)
            for segment_id in state.prepared
        }
        self._prepared_since_ms = since
        old = [key for key, at in since.items() if now - at >= self._timing.prepared_keep_ms]
        await self._opening.abandon(old)
