"""Asks nodes for sight of published copies, before other nodes drop what they have (R87).

Another node than the uploader is asked, whose way to the store may be the wrong one. A copy that
nobody sees is asked for again, later each time, and an operator is told; nodes keep theirs.
"""

import asyncio
import logging
from collections.abc import Iterable, Sequence

from icecore.errors import IcecoreError, UnavailableError
from icecore.model import NO_SEGMENT, NodeId, SegmentId
from icecore.process.log import event
from icecore.tier_records import TierRecord
from icecore_coordinator.decisions.local_copies import verifiers
from icecore_coordinator.nodes.alerts import AlertKind
from icecore_coordinator.nodes.tier_calls import CopyMissingError, TierCalls
from icecore_coordinator.work.backoff import KeyedBackoff
from icecore_coordinator.work.remote.tier_nodes import best_of, has_store
from icecore_coordinator.work.remote.tiering_errors import VERIFY, TieringErrors
from icecore_coordinator.work.worker_ports import WorkerPorts

_log = logging.getLogger(__name__)

VERIFY_WAIT_MS_MAX = 60_000.0


class CopyVerifier:
    """Keeps only when to ask for a copy again, and which node failed last.

    Args:
        ports: The cluster.
        errors: What went wrong, for people.
    """

    def __init__(self, ports: WorkerPorts, errors: TieringErrors) -> None:
        self._ledger = ports.ledger
        self._live = ports.live
        self._alerts = ports.alerts
        self._clock = ports.clock
        self._timing = ports.timing
        self._calls = TierCalls(ports.calls)
        self._errors = errors
        self._backoff: KeyedBackoff[SegmentId] = KeyedBackoff(
            ports.clock, ports.timing.sweep_retry_ms, VERIFY_WAIT_MS_MAX
        )
        self._failed: dict[SegmentId, NodeId] = {}
        """Nodes that did not see a copy last time: another one is asked, if there is one."""
        self._missing: dict[SegmentId, int] = {}

    def is_due(self, segment_id: SegmentId) -> bool:
        """Return whether it may be asked for now."""
        return self._backoff.is_due(segment_id)

    def take_missing(self) -> dict[SegmentId, int]:
        """Take what is missing for certain: the attempts, by segment. Each is returned once."""
        missing, self._missing = self._missing, {}
        return missing

    async def verify(self, segment_ids: Iterable[SegmentId]) -> dict[SegmentId, int]:
        """Have nodes look for published copies, each node once and all of them side by side.

        Returns:
            The attempts of the copies that were seen, by segment.
        """
        tiers = self._ledger.state.tiers.segments
        self._backoff.forget(lambda each: each not in tiers)
        self._failed = {each: node_id for each, node_id in self._failed.items() if each in tiers}
        by_node: dict[NodeId | None, list[TierRecord]] = {}
        for segment_id in segment_ids:
            if segment_id in tiers and self.is_due(segment_id):
                tier = tiers[segment_id]
                by_node.setdefault(self._node_for(tier), []).append(tier)
        for of_node in by_node.values():
            self._backoff.take(each.segment_id for each in of_node)
        found = await asyncio.gather(*(self._ask(each, of) for each, of in by_node.items()))
        return {segment_id: attempt for seen in found for segment_id, attempt in seen.items()}

    def _node_for(self, tier: TierRecord) -> NodeId | None:
        """Return the node to ask; None = none of those that could say is up. The same one for a
        topic, so that calls are few."""
        state = self._ledger.state
        able = [each for each in verifiers(state, tier) if not self._is_gone(each)]
        if not able:  # the others will not come back: better the uploader than nobody
            able = [*state.tiers.nodes]
        up = [each for each in able if has_store(state, self._live, each)]
        others = [each for each in up if each != self._failed.get(tier.segment_id)]
        return best_of(others or up, tier.topic_id)

    def _is_gone(self, node_id: NodeId) -> bool:
        down_ms = self._live.down_ms(node_id, self._clock.monotonic_ms())
        return down_ms is not None and down_ms >= self._timing.lost_replica_grace_ms

    async def _ask(
        self, node_id: NodeId | None, tiers: Sequence[TierRecord]
    ) -> dict[SegmentId, int]:
        seen: dict[SegmentId, int] = {}
        answers: Sequence[IcecoreError | bool] = ()
        try:
            answers = await self._answers(node_id, tiers)
            for tier, answer in zip(tiers, answers, strict=True):
                if isinstance(answer, IcecoreError):
                    self._note_unseen(tier, node_id, answer)
                else:
                    seen[tier.segment_id] = tier.attempt
                    self._failed.pop(tier.segment_id, None)
                    self._errors.forget(tier.topic_id, VERIFY)
        finally:
            for tier in tiers:
                self._backoff.release(tier.segment_id, is_done=tier.segment_id in seen)
        return seen

    async def _answers(
        self, node_id: NodeId | None, tiers: Sequence[TierRecord]
    ) -> Sequence[IcecoreError | bool]:
        error: IcecoreError = UnavailableError("no node that could look for copies is up")
        if node_id is not None:
            try:
                return await self._calls.verify(node_id, tiers, self._timing.tier_call_ms / 1000)
            except IcecoreError as failure:
                error = failure
        return [error] * len(tiers)

    def _note_unseen(self, tier: TierRecord, node_id: NodeId | None, error: IcecoreError) -> None:
        if node_id is not None:
            self._failed[tier.segment_id] = node_id
        self._errors.note(tier.topic_id, error.message, VERIFY)
        event(
            _log,
            logging.WARNING,
            "copy_not_seen",
            segment_id=tier.segment_id,
            node_id=node_id,
            attempt=tier.attempt,
            error=error,
        )
        if isinstance(error, CopyMissingError):
            self._missing[tier.segment_id] = tier.attempt
        elif not error.retriable:
            self.tell_unseen(tier)

    def tell_unseen(self, tier: TierRecord) -> None:
        """Tell an operator that the node which looked for this copy last does not find it, and that
        nothing mends it."""
        topic = self._ledger.state.topics.get(tier.topic_id)
        name = topic.name if topic is not None else tier.topic_id.hex()
        why = (
            f"node {self._failed.get(tier.segment_id)} does not find published copies of topic "
            f"{name} in its object store, so nodes keep theirs: mount it, or put the objects back; "
            "icecore tier status has the last error"
        )
        self._alerts.raise_alert(AlertKind.MISSING, NO_SEGMENT, why)
