"""Live seals: a leader asks for a prepared successor, later reports the agreed end.

Nothing here decides where a segment ends: the leader and its in-sync replicas agreed before, and
say so again when they are asked (``seal_checking.py``). Where a recovery was faster, the
compare-and-set refuses the seal (R29, R30). One transaction seals and opens; if too few
nodes can open the successor by then, the segment is sealed without a tail, because its leader will
not append again.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from icecore.errors import (
    ConflictError,
    IcecoreError,
    NotEnoughReplicasError,
)
from icecore.model import (
    NO_SEGMENT,
    Epoch,
    Incarnation,
    NodeId,
    NodeState,
    Segment,
    SegmentId,
    SegmentState,
)
from icecore.process.log import event
from icecore_coordinator.decisions.segment_changes import DecidedSeal, Opening, check_leader, seal
from icecore_coordinator.nodes.node_calls import OpenItem
from icecore_coordinator.state.cluster_state import ClusterState
from icecore_coordinator.state.records import Change, PartitionKey, is_prepared
from icecore_coordinator.work.backoff import KeyedBackoff
from icecore_coordinator.work.segments.gains import ExpectedGains
from icecore_coordinator.work.segments.seal_checking import SealChecker
from icecore_coordinator.work.segments.segment_opening import SegmentOpening
from icecore_coordinator.work.worker_ports import WorkerPorts
from icecore_replication.producers import snapshot_digest
from icecore_replication.seal_check import SealClaim

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Asker:
    """The node that asks, in its incarnation."""

    node_id: NodeId
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class SealReport:
    """One segment as its leader wants it sealed."""

    epoch: Epoch
    sealing: DecidedSeal
    successor_segment_id: SegmentId
    producer_snapshot: bytes


@dataclass(frozen=True, slots=True)
class SealOutcome:
    """The outcome: the sealed record (None when it was empty and is gone) and its successor."""

    sealed: Segment | None
    successor: Segment | None


class LiveSealing:
    """PrepareSuccessor and Seal for lists of segments."""

    def __init__(
        self,
        ports: WorkerPorts,
        opening: SegmentOpening,
        checker: SealChecker,
        gains: ExpectedGains,
    ) -> None:
        self._ledger = ports.ledger
        self._live = ports.live
        self._clock = ports.clock
        self._open_wait_ms = ports.timing.open_wait_ms
        self._opening = opening
        self._checker = checker
        self._gains = gains
        self._ready: dict[SegmentId, SegmentId] = {}
        """Segment to its prepared and confirmed successor."""
        self._preparing: KeyedBackoff[SegmentId] = KeyedBackoff(
            ports.clock, ports.timing.retry_ms, ports.timing.retry_max_ms
        )

    async def prepare(
        self, asker: Asker, segments: Sequence[tuple[SegmentId, Epoch]]
    ) -> list[SegmentId | IcecoreError]:
        """Successors of (segment id, epoch) pairs, confirmed by at least min_insync_replicas nodes.

        Returns the successor's id or why there is none, in the same order.
        """
        state = self._ledger.state
        results: dict[SegmentId, SegmentId | IcecoreError] = {}
        wanted: dict[PartitionKey, Segment | None] = {}
        ids: dict[PartitionKey, SegmentId] = {}
        mine = self._preparing.take(each for each, _ in segments)
        try:
            for segment_id, epoch in segments:
                try:
                    record = check_leader(
                        state, segment_id, epoch, asker.node_id, asker.incarnation
                    )
                except IcecoreError as error:
                    results[segment_id] = error
                    continue
                if (ready := self._ready_for(segment_id)) is not None:
                    results[segment_id] = ready.segment_id
                elif segment_id in mine:
                    wanted[record.partition_key] = record.segment
                    ids[record.partition_key] = segment_id
                else:
                    results[segment_id] = ConflictError("its successor is being prepared")
            results.update(await self._prepare(wanted, ids))
        finally:
            for segment_id in mine:
                self._preparing.release(segment_id, is_done=True)
        return [results[segment_id] for segment_id, _ in segments]

    def _ready_for(self, segment_id: SegmentId) -> Segment | None:
        """A successor prepared for an earlier try, unless one of its nodes is to leave by now."""
        state = self._ledger.state
        record = state.segments.get(self._ready.get(segment_id, NO_SEGMENT))
        if record is None or not is_prepared(record):
            return None
        states = [self._live.state_of(each) for each in record.segment.replicas]
        return None if NodeState.DRAINING in states else record.segment

    async def _prepare(
        self, wanted: dict[PartitionKey, Segment | None], ids: dict[PartitionKey, SegmentId]
    ) -> dict[SegmentId, SegmentId | IcecoreError]:
        if not wanted:
            return {}
        await self._opening.abandon([self._ready.pop(each, NO_SEGMENT) for each in ids.values()])
        prepared = await self._opening.prepare(wanted)
        items = [OpenItem(each) for each in prepared.values()]
        openings = await self._opening.confirm(items, self._open_wait_ms)
        results: dict[SegmentId, SegmentId | IcecoreError] = {}
        useless = []
        is_live = self._live.is_live
        for key, segment_id in ids.items():
            successor = prepared.get(key)
            opening = openings.get(successor.segment_id) if successor else None
            before = wanted[key]
            live = [each for each in before.replicas if is_live(each)] if before else []
            gains = opening is None or len(opening.confirmed) > len(live)
            if successor and opening and (gains or not self._gains.must_gain(segment_id)):
                self._ready[segment_id] = successor.segment_id
                results[segment_id] = successor.segment_id
                continue
            if successor:
                useless.append(successor.segment_id)
            results[segment_id] = NotEnoughReplicasError(
                "too few nodes can take the next segment"
                if gains
                else "no more nodes than now can take the next segment"
            )
        await self._opening.abandon(useless)
        return results

    async def seal(
        self, asker: Asker, reports: Sequence[SealReport]
    ) -> list[SealOutcome | IcecoreError]:
        """Seal segments at the end their leader reports and open the successors; same order."""
        results: dict[SegmentId, SealOutcome | IcecoreError] = {}
        valid: list[SealReport] = []
        for report in reports:
            segment_id = report.sealing.segment_id
            try:
                if (done := self._done_before(report)) is not None:
                    results[segment_id] = done
                    continue
                self._check(asker, report)
                valid.append(report)
            except IcecoreError as error:
                results[segment_id] = error
        valid = await self._checked(asker, valid, results)
        openings = await self._confirm(valid)
        now_ms = self._clock.now_ms()

        def decision(state: ClusterState, report: SealReport) -> Change:
            check_leader(
                state, report.sealing.segment_id, report.epoch, asker.node_id, asker.incarnation
            )
            opening = openings.get(report.successor_segment_id)
            try:
                return seal(state, self._live, report.sealing, opening, now_ms)
            except NotEnoughReplicasError:
                return seal(state, self._live, report.sealing, None, now_ms)

        changes = await self._ledger.decide_each(valid, decision)
        for report, change in zip(valid, changes, strict=True):
            segment_id = report.sealing.segment_id
            self._ready.pop(segment_id, None)
            self._gains.forget(segment_id)
            if isinstance(change, IcecoreError) and (done := self._done_meanwhile(report)):
                results[segment_id] = done
                continue
            if isinstance(change, IcecoreError):
                event(_log, logging.WARNING, "seal_refused", segment_id=segment_id, error=change)
                results[segment_id] = change
                continue
            results[segment_id] = self._outcome(report)
            event(
                _log,
                logging.INFO,
                "sealed",
                segment_id=segment_id,
                end_offset=report.sealing.end_offset,
                successor=report.successor_segment_id,
            )
        return [results[each.sealing.segment_id] for each in reports]

    async def _checked(
        self,
        asker: Asker,
        reports: Sequence[SealReport],
        results: dict[SegmentId, SealOutcome | IcecoreError],
    ) -> list[SealReport]:
        """Those that their members confirm, with just these members; ``results`` gets the rest."""
        state = self._ledger.state
        claims = [
            SealClaim(
                segment_id=each.segment_id,
                leader=asker.node_id,
                end_offset=each.end_offset,
                seal_digest=each.seal_digest,
                producer_digest=each.producer_digest,
                length_bytes=each.length_bytes,
                replicas=each.replicas,
                min_insync_replicas=state.segments[
                    each.segment_id
                ].segment.settings.min_insync_replicas,
            )
            for each in (report.sealing for report in reports)
        ]
        confirmed: list[SealReport] = []
        for report, verdict in zip(reports, await self._checker.check(claims), strict=True):
            segment_id = report.sealing.segment_id
            if isinstance(verdict, IcecoreError):
                event(
                    _log,
                    logging.WARNING,
                    "seal_not_believed",
                    segment_id=segment_id,
                    error=verdict,
                )
                results[segment_id] = verdict
            else:
                sealing = replace(report.sealing, replicas=verdict)
                confirmed.append(replace(report, sealing=sealing))
        return confirmed

    def _check(self, asker: Asker, report: SealReport) -> None:
        state, sealing = self._ledger.state, report.sealing
        record = check_leader(
            state, sealing.segment_id, report.epoch, asker.node_id, asker.incarnation
        )
        if record.version != sealing.version:
            raise ConflictError(
                f"segment {sealing.segment_id} is at version {record.version}, "
                f"not {sealing.version}",
                version=record.version,
            )
        strangers = [each for each in sealing.replicas if each not in record.segment.replicas]
        if strangers or len(sealing.seal_digest) != 32:
            raise ConflictError(f"nodes {strangers} are no replicas, or the digest is malformed")
        if snapshot_digest(report.producer_snapshot) != sealing.producer_digest:
            raise ConflictError("the producers' digest is not that of their snapshot")

    async def _confirm(self, reports: Sequence[SealReport]) -> dict[SegmentId, Opening]:
        state = self._ledger.state
        items = []
        for report in reports:
            prepared = state.segments.get(report.successor_segment_id)
            if prepared is not None and is_prepared(prepared):
                items.append(
                    OpenItem(
                        prepared.segment,
                        report.sealing.end_offset,
                        report.producer_snapshot,
                        report.sealing.max_append_timestamp_ms,
                    )
                )
        return await self._opening.confirm(items)

    def _done_before(self, report: SealReport) -> SealOutcome | None:
        """The outcome of an earlier, equal Seal whose answer was lost."""
        record = self._ledger.state.segments.get(report.sealing.segment_id)
        if record is None or record.segment.state != SegmentState.SEALED:
            return None
        same = (report.sealing.end_offset, report.sealing.seal_digest)
        if (record.segment.end_offset, record.segment.seal_digest) != same:
            raise ConflictError(
                f"segment {record.segment.segment_id} is already sealed at offset "
                f"{record.segment.end_offset}, not {same[0]} (or with another digest)"
            )
        return self._outcome(report)

    def _done_meanwhile(self, report: SealReport) -> SealOutcome | None:
        """The same Seal came twice, and the other one was first."""
        try:
            return self._done_before(report)
        except ConflictError:
            return None

    def _outcome(self, report: SealReport) -> SealOutcome:
        state = self._ledger.state
        record = state.segments.get(report.sealing.segment_id)
        successor = state.segments.get(report.successor_segment_id)
        is_open = successor is not None and not is_prepared(successor)
        return SealOutcome(
            state.assignment(record) if record else None,
            state.assignment(successor) if successor and is_open else None,
        )
