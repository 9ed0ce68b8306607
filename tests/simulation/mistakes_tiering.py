"""Seeded mistakes in what moves segments into object storage; see ``mistakes``."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from icecore.model import NodeId, SegmentId
from icecore.tier_records import NO_ATTEMPT, ClosedAttempt, TierState, closed
from icecore_coordinator.decisions import retention, topic_deletion
from icecore_coordinator.decisions.remote import tier_merging, tiering, verified_copies
from icecore_coordinator.decisions.remote.tiering import Sweeping, drop_tiered
from icecore_coordinator.state.cluster_state import ClusterState
from icecore_coordinator.state.records import (
    Change,
    PartitionKey,
    PartitionRecord,
    TopicRecord,
    updated,
)
from icecore_coordinator.work.remote import tables_and_sweeps, uploads
from icecore_coordinator.work.remote.tables_and_sweeps import TableScheduler
from icecore_coordinator.work.remote.verified_copies import CopyVerifier
from icecore_node.remote.write.copy_writer import CopyWriter
from icecore_node.remote.write.tier_evidence import TierEvidence
from tests.simulation.mistakes import Mistake, patch


def published_without_proof() -> Mistake:
    """R85: the store said that it has everything, so nobody reads it back."""

    async def wrong(self: CopyWriter, *_: Any) -> None:
        return None

    return patch(CopyWriter, "_prove", wrong)


@contextmanager
def copies_leave_first() -> Iterator[None]:
    """R87: nodes drop their copies of what is old enough, published or not."""

    def wrong(*_: Any) -> bool:
        return True

    async def believed(_: CopyVerifier, segment_ids: Iterable[SegmentId]) -> dict[SegmentId, int]:
        return dict.fromkeys(segment_ids, NO_ATTEMPT)

    with (
        patch(verified_copies, "_may_go", wrong),
        patch(verified_copies, "_is_verified", wrong),
        patch(CopyVerifier, "verify", believed),
    ):
        yield


def metadata_are_believed() -> Mistake:
    """R87: what metadata call published is there, so nobody has to look."""

    async def believed(
        self: CopyVerifier, segment_ids: Iterable[SegmentId]
    ) -> dict[SegmentId, int]:
        tiers = self._ledger.state.tiers.segments
        return {each: tiers[each].attempt for each in segment_ids}

    return patch(CopyVerifier, "verify", believed)


def tables_are_believed() -> Mistake:
    """R88: a table has what metadata say, so nobody compares it."""

    def wrong(_: TableScheduler) -> Iterator[PartitionKey]:
        return iter(())

    return patch(TableScheduler, "_unchecked", wrong)


def deletions_are_kept_quiet() -> Mistake:
    """R99: a deletion makes no order due, so the bucket hears of it with the next one."""

    def wrong(state: ClusterState, topic: TopicRecord, **changes: Any) -> Change:
        return Change((updated(topic, **changes),))

    return patch(topic_deletion, "altered", wrong)


def starts_are_kept_quiet() -> Mistake:
    """R99: a log start is nobody's business but that of nodes."""

    def wrong(_: ClusterState, partition: PartitionRecord, offset: int, __: int) -> Change:
        if offset <= partition.log_start_offset:
            return Change()
        return Change((updated(partition, log_start_offset=offset),))

    return patch(retention, "_moved", wrong)


@contextmanager
def current_attempt_is_swept() -> Iterator[None]:
    """R89: the sweeper takes what is published for what failed; and nodes believe it (R103)."""
    right = tiering.sweepings

    def wrong(
        state: ClusterState, segment_id: SegmentId, keep_ms: int, held_attempt: int = NO_ATTEMPT
    ) -> list[Sweeping]:
        tier = state.tiers.segments.get(segment_id)
        found = right(state, segment_id, keep_ms, held_attempt)
        if tier is None or tier.state is not TierState.PUBLISHED:
            return found
        return [*found, Sweeping(segment_id, tier.attempt, is_last=False)]

    with patch(tables_and_sweeps, "sweepings", wrong), all_orders_are_believed():
        yield


def all_orders_are_believed() -> Mistake:
    """R103: a node asks nobody before it takes something out of object storage."""

    async def is_published(*_: object) -> bool:
        return False

    return patch(TierEvidence, "_is_published", is_published)


def closed_attempt_is_forgotten() -> Mistake:
    """R89: an upload that failed is forgotten at once, so nobody sweeps what it left."""

    def wrong(state: ClusterState, segment_id: SegmentId, attempt: int) -> Change:
        tier = state.tiers.segments.get(segment_id)
        if tier is None or not tier.is_under_way or tier.attempt != attempt:
            return Change()
        forgotten: tuple[ClosedAttempt, ...] = ()
        return Change((replace(closed(tier, state.counted_ms), closed_attempts=forgotten),))

    return patch(uploads, "close", wrong)


def sources_go_first() -> Mistake:
    """R91: small segments are dropped when a large one is begun, and it may never come."""
    right = tier_merging.begin_merge

    def wrong(state: ClusterState, segment_ids: Sequence[SegmentId], owner: NodeId) -> Change:
        change = right(state, segment_ids, owner)
        return change + drop_tiered(state, [state.segments[each] for each in segment_ids], 0)

    return patch(uploads, "begin_merge", wrong)
