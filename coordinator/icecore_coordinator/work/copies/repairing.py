"""Sealed segments with fewer copies than their replication factor are copied to another node.

So many bytes a second, for repair competes with produce for the same disks: many small ones, or one
large one. A copy that its own node calls damaged does not count, but the last one stays listed, and
a person is told (R42, R43).
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, islice

from icecore.errors import IcecoreError
from icecore.model import NodeId, Segment, SegmentId, SegmentState
from icecore.process.log import event
from icecore_coordinator.decisions.lossy_changes import may_vanish
from icecore_coordinator.decisions.node_changes import note_holder
from icecore_coordinator.decisions.placement import host_of, rack_of
from icecore_coordinator.decisions.retention import add_holder
from icecore_coordinator.decisions.segment_changes import (
    add_sealed_replica,
    is_sealed_state,
    remove_sealed_replica,
)
from icecore_coordinator.nodes.alerts import AlertKind
from icecore_coordinator.nodes.fan_out import by_node
from icecore_coordinator.nodes.node_calls import WriteBackItem, WrittenReplica
from icecore_coordinator.state.cluster_state import ClusterState, eligible_nodes, is_below_start
from icecore_coordinator.state.records import Change, SegmentRecord
from icecore_coordinator.work.backoff import KeyedBackoff
from icecore_coordinator.work.worker_ports import WorkerPorts

_log = logging.getLogger(__name__)

REPAIR_BYTES_PER_PASS = 64 << 20
"""A pass begins a second after the last one ended; one copy may be larger."""
REPAIRS_PER_PASS = 128
LOOKED_AT_PER_PASS = 10_000
"""Most segments without enough copies that one pass looks at. If more can't be repaired, the passes
take turns over them."""


@dataclass(frozen=True, slots=True)
class Repair:
    """One copy to make."""

    segment: Segment
    donor: NodeId
    target: NodeId


class Repairer:
    """Level-triggered; keeps no state that matters."""

    def __init__(self, ports: WorkerPorts) -> None:
        self._ledger = ports.ledger
        self._calls = ports.calls
        self._live = ports.live
        self._copies = ports.copies
        self._alerts = ports.alerts
        self._clock = ports.clock
        self._timing = ports.timing
        self._backoff: KeyedBackoff[SegmentId] = KeyedBackoff(
            ports.clock, ports.timing.retry_ms, ports.timing.retry_max_ms
        )
        self._copying: set[tuple[NodeId, SegmentId]] = set()
        """Targets of what is under way."""
        self._tries: dict[SegmentId, int] = {}
        """How often a copy of it has failed: each time another donor, then another target is asked.
        """
        self._looked_at = 0
        """So many of those that lack a copy had their turn."""
        self._last_copies: dict[tuple[NodeId, SegmentId], None] = {}
        """(node, segment) of damaged copies that stay listed, because there is no other."""

    async def drop_damaged(self) -> None:
        """Stop counting copies that their nodes call damaged or missing; repair follows."""
        segments = self._ledger.state.segments
        listed = [
            (node_id, segment_id)
            for node_id, segment_id in self._copies.unknown()
            if segment_id in segments
            and segments[segment_id].segment.state == SegmentState.SEALED
            and node_id in segments[segment_id].segment.replicas
        ]
        now_ms = self._clock.now_ms()
        await self._ledger.decide_each(
            listed, lambda state, copy: remove_sealed_replica(state, copy[1], copy[0], now_ms)
        )
        last = self._last_copies
        self._last_copies = {}
        for node_id, segment_id in listed:
            record = segments.get(segment_id)
            if record is None or node_id not in record.segment.replicas:
                event(_log, logging.WARNING, "copy_damaged", node_id=node_id, segment_id=segment_id)
                continue
            self._last_copies[node_id, segment_id] = None
            is_told = self._copies.vanished.has(node_id, segment_id) and may_vanish(record.segment)
            if (node_id, segment_id) not in last and not is_told:
                self._alerts.raise_alert(
                    AlertKind.DAMAGED, segment_id, f"node {node_id}: last copy is damaged"
                )

    def repairs(self) -> list[Repair]:
        """Copies that are due now, a bounded number; sources and targets are both live."""
        state = self._ledger.state
        found: list[Repair] = []
        length_bytes, first = 0, self._looked_at
        eligible = [each.node_id for each in eligible_nodes(state, self._live)]
        for segment_id in self._suspects():
            if not self._backoff.is_due(segment_id):
                continue
            repair = self._repair_of(state.segments[segment_id], eligible)
            if repair is None:
                continue
            found.append(repair)
            length_bytes += repair.segment.length_bytes
            if length_bytes >= REPAIR_BYTES_PER_PASS or len(found) >= REPAIRS_PER_PASS:
                self._looked_at = first  # the rest of these has its turn in the next pass
                break
        return found

    def _suspects(self) -> list[SegmentId]:
        """The next of those that may lack a copy: their records say so, or a node is lost."""
        state = self._ledger.state
        lost = [each for each in state.nodes if not self._counts(each)]
        some = chain(state.thin, *(state.segments_of_node.get(each, ()) for each in lost))
        first = self._looked_at
        found = list(islice(some, first, first + LOOKED_AT_PER_PASS))
        self._looked_at = first + len(found) if len(found) == LOOKED_AT_PER_PASS else 0
        return list(dict.fromkeys(found))

    def _repair_of(self, record: SegmentRecord, eligible: Sequence[NodeId]) -> Repair | None:
        segment = record.segment
        if segment.state != SegmentState.SEALED or is_below_start(self._ledger.state, record):
            return None  # not yet, or it is about to go
        taken = (*segment.replicas, *segment.surplus)
        targets = [each for each in eligible if each not in taken]
        if not targets:
            return None
        segment_id = segment.segment_id
        counted = [each for each in segment.replicas if self._counts(each)]
        donors = [
            each
            for each in segment.replicas
            if self._live.is_live(each) and not self._copies.is_unknown(each, segment_id)
        ]
        returning = [
            each for each in record.holders if each not in taken and self._may_return(each)
        ]
        enough = segment.settings.replication_factor
        if len(counted) + len(returning) >= enough or not donors:
            return None
        targets.sort(key=lambda each: self._copy_cost(record, each))
        tries = self._tries.get(segment_id, 0)
        donor = donors[(segment_id + tries) % len(donors)]
        return Repair(segment, donor, targets[tries // len(donors) % len(targets)])

    def _counts(self, node_id: NodeId) -> bool:
        """Copies on nodes that are merely down count for a grace period, those on nodes that are to
        be empty never: others take their place."""
        if (record := self._ledger.state.nodes.get(node_id)) is not None and record.is_drained:
            return False
        down_ms = self._live.down_ms(node_id, self._clock.monotonic_ms())
        return down_ms is None or down_ms < self._timing.lost_replica_grace_ms

    def _may_return(self, node_id: NodeId) -> bool:
        """Down so briefly that it may be starting again, with everything it had."""
        down_ms = self._live.down_ms(node_id, self._clock.monotonic_ms())
        return down_ms is not None and down_ms < self._timing.return_wait_ms

    def _copy_cost(
        self, record: SegmentRecord, node_id: NodeId
    ) -> tuple[bool, bool, bool, int, NodeId]:
        """Nodes in a rack without a copy first, then those on a host without one, then those that
        hold some of it already, then those with the fewest replicas."""
        state = self._ledger.state
        node = state.nodes[node_id]
        counted = [
            state.nodes[each]
            for each in record.segment.replicas
            if each in state.nodes and self._counts(each)
        ]
        return (
            rack_of(node) in {*map(rack_of, counted)},
            host_of(node) in {*map(host_of, counted)},
            node_id not in record.holders,
            len(state.segments_of_node.get(node_id, ())),
            node_id,
        )

    def is_copying(self, node_id: NodeId, segment_id: SegmentId) -> bool:
        """Return whether a copy is being made there, or was made and does not count yet."""
        return (node_id, segment_id) in self._copying

    async def repair(self) -> None:
        """Make the copies that are due; on its own, for a copy may take minutes."""
        segments = self._ledger.state.segments
        self._tries = {key: tries for key, tries in self._tries.items() if key in segments}
        repairs = self.repairs()
        self._backoff.take(each.segment.segment_id for each in repairs)
        self._copying.update((each.target, each.segment.segment_id) for each in repairs)
        grouped = by_node((each.target, each) for each in repairs)
        await asyncio.gather(*(self._copy(target, mine) for target, mine in grouped.items()))

    async def _copy(self, target: NodeId, repairs: list[Repair]) -> None:
        state = self._ledger.state
        done: list[tuple[Repair, WrittenReplica]] = []
        for repair in repairs:
            # Before the copy: what the node says of it afterwards holds, counted or not.
            self._copies.copied(target, repair.segment.segment_id)
        try:
            items = [
                WriteBackItem(
                    each.segment,
                    each.segment.end_offset,
                    donor_address=state.nodes[each.donor].address,
                    seal_digest=each.segment.seal_digest,
                    seal=True,
                )
                for each in repairs
            ]
            results = await self._calls.write_back(target, items, self._timing.copy_call_ms / 1000)
            refused: list[Repair] = []
            for repair, result in zip(repairs, results, strict=True):
                if isinstance(result, IcecoreError):
                    self._log_failure(repair, result)
                    refused.append(repair)
                elif result.seal_digest != repair.segment.seal_digest:
                    self._log_failure(repair, "the copy has another digest")
                elif not self._knows_producers(repair, result):
                    self._log_failure(repair, "the copy knows other producers than were sealed")
                else:
                    done.append((repair, result))
            await self._note_holder(target, refused)
            await self._count(target, done)
        except IcecoreError as error:
            event(_log, logging.WARNING, "repair_failed", node_id=target, error=error)
        finally:
            finished = {repair.segment.segment_id for repair, _ in done}
            for repair in repairs:
                segment_id = repair.segment.segment_id
                self._copying.discard((target, segment_id))
                self._backoff.release(segment_id, is_done=segment_id in finished)
                self._count_tries(segment_id, is_done=segment_id in finished)

    async def _note_holder(self, target: NodeId, refused: Sequence[Repair]) -> None:
        """A node that refuses may have an older copy, of which nobody knew: it was prepared, and
        opened too late. Such a copy waits until the node's own record says what becomes of it
        (R111), and only holders are told of records."""
        if refused:
            await self._ledger.decide_each(
                refused, lambda state, each: note_holder(state, each.segment.segment_id, target)
            )

    def _count_tries(self, segment_id: SegmentId, *, is_done: bool) -> None:
        tries = self._tries.pop(segment_id, 0)
        if not is_done:
            self._tries[segment_id] = tries + 1

    def _knows_producers(self, repair: Repair, written: WrittenReplica) -> bool:
        record = self._ledger.state.segments.get(repair.segment.segment_id)
        return record is None or is_sealed_state(record, written.producer_snapshot)

    async def _count(self, target: NodeId, done: list[tuple[Repair, WrittenReplica]]) -> None:
        def decision(state: ClusterState, copy: tuple[Repair, WrittenReplica]) -> Change:
            repair, written = copy
            return add_sealed_replica(
                state,
                repair.segment.segment_id,
                target,
                written.incarnation,
                written.seal_digest,
            )

        results = await self._ledger.decide_each(done, decision)
        for (repair, _), result in zip(done, results, strict=True):
            if isinstance(result, IcecoreError):
                self._log_failure(repair, result)
                await self._ledger.decide(
                    lambda state, each=repair: add_holder(state, each.segment.segment_id, target)  # type: ignore[misc]
                )
            else:
                event(
                    _log,
                    logging.INFO,
                    "repaired",
                    segment_id=repair.segment.segment_id,
                    node_id=target,
                )

    @staticmethod
    def _log_failure(repair: Repair, error: IcecoreError | str) -> None:
        event(
            _log,
            logging.WARNING,
            "repair_failed",
            segment_id=repair.segment.segment_id,
            node_id=repair.target,
            donor=repair.donor,
            error=error,
        )
