"""Looks over all segments once a second and puts right what no event will: too few copies.

Sealed segments with fewer copies than their replication factor are copied to another node. Active
ones are rolled, so that their successor opens on more or better nodes. A few at a time: repair
competes with produce for the same disks. Also ends what an earlier coordinator left half done:
prepared segments that nobody opened.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from icecore.errors import IcecoreError
from icecore.model import NodeState, Segment, SegmentState
from icecore.rpc.ports import Clock
from icecore_coordinator.config import Timing
from icecore_coordinator.decisions.segment_changes import add_sealed_replica, remove_sealed_replica
from icecore_coordinator.ledger import Ledger
from icecore_coordinator.nodes.node_calls import NodeCalls, WriteBackItem, Written, by_node
from icecore_coordinator.nodes.node_sessions import NodeSessions
from icecore_coordinator.state.cluster_state import ClusterState
from icecore_coordinator.state.records import Change, PartitionKey, SegmentRecord, is_prepared
from icecore_coordinator.work.backoff import Backoff
from icecore_coordinator.work.sealing import LiveSealing
from icecore_coordinator.work.segment_opening import SegmentOpening
from icecore_coordinator.work.start_states import is_sealed_state

log = logging.getLogger(__name__)

REPAIRS_AT_ONCE = 8
ROLLS_AT_ONCE = 8
ROLL_WAIT_MS = 5_000.0
REPLACE_WAIT_MS = 2_000.0
REPLACE_WAIT_MS_MAX = 600_000.0


@dataclass(frozen=True, slots=True)
class Repair:
    """One copy to make."""

    segment: Segment
    donor: int
    target: int


class Auditor:
    """Periodic, level-triggered; keeps no state that matters."""

    def __init__(
        self,
        ledger: Ledger,
        calls: NodeCalls,
        sessions: NodeSessions,
        opening: SegmentOpening,
        sealing: LiveSealing,
        recover: Callable[[int], None],
        clock: Clock,
        timing: Timing,
    ) -> None:
        self._ledger = ledger
        self._calls = calls
        self._sessions = sessions
        self._opening = opening
        self._sealing = sealing
        self._recover = recover
        self._clock = clock
        self._timing = timing
        self._repairing: Backoff[int] = Backoff(clock)
        self._rolling: Backoff[int] = Backoff(clock, ROLL_WAIT_MS)
        self._replacing: Backoff[PartitionKey] = Backoff(
            clock, REPLACE_WAIT_MS, REPLACE_WAIT_MS_MAX
        )
        self._prepared_since_ms: dict[int, float] = {}
        self._last_copies: dict[tuple[int, int], None] = {}
        """(node, segment) of damaged copies that stay listed, because there is no other."""
        self._first_own_segment_id = 0
        """Segments below it were opened before this process looked the first time."""

    async def audit(self) -> None:
        """One pass over all but the sealed segments."""
        if not self._first_own_segment_id:
            self._first_own_segment_id = self._ledger.state.next_of("segment_id").next_value
        await self._drop_damaged()
        await self._roll()
        await self._abandon_prepared()

    # --- sealed segments ------------------------------------------------------------------------

    async def _drop_damaged(self) -> None:
        """Stop counting copies that their nodes call damaged or missing; repair follows."""
        segments = self._ledger.state.segments
        listed = [
            (node_id, segment_id)
            for node_id, ids in self._sessions.unknown.items()
            for segment_id in ids
            if segment_id in segments
            and segments[segment_id].segment.state == SegmentState.SEALED
            and node_id in segments[segment_id].segment.replicas
        ]
        await self._ledger.decide_all(
            [
                lambda state, node=node_id, segment=segment_id: remove_sealed_replica(  # type: ignore[misc]
                    state, segment, node
                )
                for node_id, segment_id in listed
            ]
        )
        last = self._last_copies
        self._last_copies = {}
        for node_id, segment_id in listed:
            record = segments.get(segment_id)
            if record is None or node_id not in record.segment.replicas:
                log.warning("event=copy_damaged node=%d segment=%d", node_id, segment_id)
                continue
            self._last_copies[node_id, segment_id] = None
            if (node_id, segment_id) not in last:
                self._sessions.pages.page(segment_id, f"node {node_id}: last copy is damaged")

    def repairs(self) -> list[Repair]:
        """Copies that are due now, a bounded number; sources and targets are both live."""
        state = self._ledger.state
        found: list[Repair] = []
        lost = [each for each in state.nodes if not self._counts(each)]
        suspects = dict.fromkeys(state.thin)
        for node_id in lost:
            suspects.update(dict.fromkeys(state.segments_of_node.get(node_id, ())))
        for segment_id in suspects:
            if len(found) >= REPAIRS_AT_ONCE:
                break
            record = state.segments[segment_id]
            segment = record.segment
            if segment.state != SegmentState.SEALED or not self._repairing.is_due(segment_id):
                continue
            counted = [each for each in segment.replicas if self._counts(each)]
            donors = [
                each
                for each in segment.replicas
                if state.is_live(each) and not self._sessions.is_unknown(each, segment_id)
            ]
            returning = [
                each
                for each in record.holders
                if each not in segment.replicas and self._may_return(each)
            ]
            enough = segment.settings.replication_factor
            if len(counted) + len(returning) >= enough or not donors:
                continue
            targets = [
                each.node_id
                for each in state.eligible_nodes()
                if each.node_id not in segment.replicas
            ]
            if targets:
                target = min(targets, key=lambda each: self._copy_cost(record, each))
                found.append(Repair(segment, donors[segment_id % len(donors)], target))
        return found

    def _counts(self, node_id: int) -> bool:
        """Copies on nodes that are merely down count for a grace period."""
        down_since = self._sessions.down_since_ms.get(node_id)
        if down_since is None:
            return True
        down_ms = self._clock.monotonic_ms() - down_since
        return down_ms < self._timing.lost_replica_grace_ms

    def _may_return(self, node_id: int) -> bool:
        """Down so briefly that it may be starting again, with everything it had."""
        down_since = self._sessions.down_since_ms.get(node_id)
        if down_since is None:
            return False
        return self._clock.monotonic_ms() - down_since < self._timing.return_wait_ms

    def _copy_cost(self, record: SegmentRecord, node_id: int) -> tuple[bool, int, int]:
        """Nodes that hold some of it already first, then those with the fewest replicas."""
        count = len(self._ledger.state.segments_of_node.get(node_id, ()))
        return (node_id not in record.holders, count, node_id)

    async def repair(self) -> None:
        """Make the copies that are due; on its own, for a copy may take minutes."""
        repairs = self.repairs()
        self._repairing.take(each.segment.segment_id for each in repairs)
        grouped = by_node((each.target, each) for each in repairs)
        await asyncio.gather(*(self._copy(target, mine) for target, mine in grouped.items()))

    async def _copy(self, target: int, repairs: list[Repair]) -> None:
        state = self._ledger.state
        done: list[tuple[Repair, Written]] = []
        for repair in repairs:
            # Before the copy: what the node says of it afterwards holds, counted or not.
            self._sessions.copied(target, repair.segment.segment_id)
        try:
            items = [
                WriteBackItem(
                    each.segment,
                    each.segment.end_offset,
                    state.nodes[each.donor].address,
                    each.segment.seal_digest,
                    seal=True,
                )
                for each in repairs
            ]
            results = await self._calls.write_back(target, items, self._timing.copy_call_s)
            for repair, result in zip(repairs, results, strict=True):
                if isinstance(result, IcecoreError):
                    self._log_failure(repair, result.message)
                elif result.seal_digest != repair.segment.seal_digest:
                    self._log_failure(repair, "the copy has another digest")
                elif not self._knows_producers(repair, result):
                    self._log_failure(repair, "the copy knows other producers than were sealed")
                else:
                    done.append((repair, result))
            await self._count(target, done)
        except IcecoreError as error:
            log.warning("event=repair_failed node=%d why=%r", target, error.message)
        finally:
            finished = {repair.segment.segment_id for repair, _ in done}
            for repair in repairs:
                segment_id = repair.segment.segment_id
                self._repairing.release(segment_id, is_done=segment_id in finished)

    def _knows_producers(self, repair: Repair, written: Written) -> bool:
        record = self._ledger.state.segments.get(repair.segment.segment_id)
        return record is None or is_sealed_state(record, written.producer_snapshot)

    async def _count(self, target: int, done: list[tuple[Repair, Written]]) -> None:
        def decision(state: ClusterState, repair: Repair, written: Written) -> Change:
            return add_sealed_replica(
                state,
                repair.segment.segment_id,
                target,
                written.incarnation,
                written.seal_digest,
            )

        results = await self._ledger.decide_all(
            [lambda state, pair=pair: decision(state, *pair) for pair in done]  # type: ignore[misc]
        )
        for (repair, _), result in zip(done, results, strict=True):
            if isinstance(result, IcecoreError):
                self._log_failure(repair, result.message)
            else:
                log.info("event=repaired segment=%d node=%d", repair.segment.segment_id, target)

    @staticmethod
    def _log_failure(repair: Repair, why: str) -> None:
        log.warning(
            "event=repair_failed segment=%d node=%d donor=%d why=%r",
            *(repair.segment.segment_id, repair.target, repair.donor, why),
        )

    # --- active segments ------------------------------------------------------------------------

    def rolls(self) -> list[tuple[Segment, str]]:
        """Active segments that would be better off on other nodes, a bounded number, and why."""
        state = self._ledger.state
        ripe = [each.node_id for each in state.eligible_nodes() if self._is_ripe(each.node_id)]
        is_calm = all(state.state_of(each) == NodeState.UP for each in state.nodes)
        found: list[tuple[Segment, str]] = []
        for segment_id in state.unsealed:
            if len(found) >= ROLLS_AT_ONCE:
                break
            segment = state.segments[segment_id].segment
            is_full = len(segment.replicas) == segment.settings.replication_factor
            if is_calm and is_full and not self._unknown_replicas(segment):
                continue
            if segment.state != SegmentState.ACTIVE or not self._rolling.is_due(segment_id):
                continue
            why = self._why_roll(segment, ripe)
            if why and state.leader_is_live(segment):
                found.append((segment, why))
        return found

    def _why_roll(self, segment: Segment, ripe: list[int]) -> str:
        state = self._ledger.state
        states = [state.state_of(each) for each in segment.replicas]
        others = [each for each in ripe if each not in segment.replicas]
        stay = [each for each in segment.replicas if state.is_eligible(each)]
        if len(stay) + len(others) < segment.settings.min_insync:
            return ""
        if self._unknown_replicas(segment):
            return "unknown_replica"
        if not others:
            return ""
        if NodeState.READ_ONLY in states:
            return "read_only"
        if sum(each != NodeState.DOWN for each in states) >= segment.settings.replication_factor:
            return ""
        in_sync = sum(state.is_live(each) for each in segment.isr)
        can_wait = in_sync >= segment.settings.min_insync
        if can_wait and any(self._may_return(each) for each in segment.replicas):
            return ""
        return "roll_up"

    def _unknown_replicas(self, segment: Segment) -> list[int]:
        """Members that have said that their copy counts for nothing."""
        is_unknown = self._sessions.is_unknown
        return [each for each in segment.replicas if is_unknown(each, segment.segment_id)]

    def must_recover(self, segment: Segment) -> bool:
        """Whether its leader could not seal it: it is damaged itself, or too few are in sync.

        Such a leader is healthy otherwise, so S1 holds: the end is known at once, and what its
        followers lack is written back to other nodes (R44).
        """
        unknown, is_live = self._unknown_replicas(segment), self._ledger.state.is_live
        sound = [each for each in segment.isr if each not in unknown and is_live(each)]
        return segment.leader in unknown or len(sound) < segment.settings.min_insync

    def _is_ripe(self, node_id: int) -> bool:
        since = self._sessions.up_since_ms.get(node_id)
        now = self._clock.monotonic_ms()
        return since is not None and now - since >= self._timing.roll_up_wait_ms

    def _is_empty(self, segment: Segment) -> bool:
        """As far as its leader has told; leaders tell only of high watermarks that moved.

        Of segments older than this process it may have told the last one, so those are asked to
        roll first and count as empty only when that did not help.
        """
        known = self._sessions.heard.high_watermark(segment.segment_id)
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
            log.info("event=replacing_empty segment=%d why=%s", segment.segment_id, why)
            self._recover(segment.segment_id)

    async def _roll(self) -> None:
        self._rolling.forget(lambda segment_id: segment_id not in self._ledger.state.unsealed)
        self._replacing.forget(self._is_whole)
        rolls = self.rolls()
        self._rolling.take(segment.segment_id for segment, _ in rolls)
        try:
            for segment, why in rolls:
                if self.must_recover(segment):
                    log.info("event=recovery_wanted segment=%d why=%s", segment.segment_id, why)
                    self._recover(segment.segment_id)
                    continue
                if self._is_empty(segment):
                    self._replace(segment, why)
                    continue
                if why == "roll_up":
                    self._sealing.expect_gain(segment.segment_id)
                try:
                    [rolling] = await self._calls.roll(
                        segment.leader, [segment], why, self._timing.node_call_s
                    )
                    error = rolling.error
                except IcecoreError as failure:
                    error = failure
                log.info(
                    "event=roll_asked segment=%d leader=%d why=%s error=%r",
                    *(segment.segment_id, segment.leader, why, error.message if error else ""),
                )
        finally:
            for segment, _ in rolls:
                self._rolling.release(segment.segment_id, is_done=False)

    # --- leftovers ------------------------------------------------------------------------------

    async def _abandon_prepared(self) -> None:
        state, now = self._ledger.state, self._clock.monotonic_ms()
        since = {
            segment_id: self._prepared_since_ms.get(segment_id, now)
            for segment_id in state.unsealed
            if is_prepared(state.segments[segment_id])
        }
        self._prepared_since_ms = since
        old = [key for key, at in since.items() if now - at >= self._timing.prepared_keep_ms]
        await self._opening.abandon(old)
