"""Calls about object storage: of operators its progress, imports and merges; of nodes the published
copies that they must read.

Messages to values, outcomes to messages, nothing else.
"""

import logging
from collections.abc import Callable, Iterator

from icecore.errors import ConflictError, InvalidRequestError, WrongClusterError
from icecore.model import SegmentId
from icecore.process.log import event
from icecore.rpc.convert import error_to_proto, segment_to_proto
from icecore.rpc.framing import parse
from icecore.rpc.ports import CallContext, Received, UnaryHandler
from icecore.rpc.turns import Turns
from icecore.tier_records import TierRecord, TierState
from icecore.v1 import admin_pb2 as pb
from icecore.v1 import coordinator_pb2
from icecore_coordinator.config import TopicDefaults
from icecore_coordinator.decisions.remote.tier_merging import looking
from icecore_coordinator.decisions.remote.tiering import forget_store
from icecore_coordinator.ledger import Ledger
from icecore_coordinator.nodes.tier_calls import copy_to_proto
from icecore_coordinator.services.admin_messages import (
    Describer,
)
from icecore_coordinator.services.import_messages import imported_segment, imported_topic
from icecore_coordinator.state.cluster_state import ClusterState, is_published
from icecore_coordinator.state.records import TopicRecord
from icecore_coordinator.work.remote.tier_import import TierImport
from icecore_coordinator.work.remote.uploads import Merging

_log = logging.getLogger(__name__)

# --- of operators ---------------------------------------------------------------------------------

GROUPS_PER_PAGE = 2_000
TARGET_BYTES_MAX = 64 << 30


class TierAdmin:
    """Five methods of AdminService, each as bytes to bytes.

    Args:
        ledger: The cluster.
        imports: Takes in what comes.
        describer: Of topics.
        defaults: Of topics that say nothing.
        merging: Has segments merged.
        last_error: By topic id: what last went wrong, and when by the wall clock.
    """

    def __init__(
        self,
        ledger: Ledger,
        imports: TierImport,
        describer: Describer,
        defaults: TopicDefaults,
        merging: Merging,
        last_error: Callable[[bytes], tuple[str, int]],
    ) -> None:
        self._ledger = ledger
        self._imports = imports
        self._describer = describer
        self._defaults = defaults
        self._merging = merging
        self._last_error = last_error

    def handlers(self) -> dict[str, UnaryHandler]:
        """By the short names of their methods."""
        return {
            "DescribeTiering": self.describe,
            "ImportTiered": self.import_tiered,
            "PlanMerges": self.plan_merges,
            "MergeSegments": self.merge,
            "ForgetStore": self.forget_store,
        }

    async def describe(self, body: Received, _: CallContext) -> bytes:
        """DescribeTiering."""
        request, state = parse(pb.DescribeTieringRequest, body), self._ledger.state
        topics = [state.topic(name) for name in request.topics] or _tiered_topics(state)
        urls = {each.tier_url for each in state.nodes.values()} - {""}
        return pb.DescribeTieringResponse(
            cluster_id=state.cluster_id,
            topics=[self._topic(each, with_copies=request.with_copies) for each in topics],
            tier_urls=sorted(urls),
            gone_topics=sum(each not in state.topics for each in state.tiers.topics),
            tier_url=state.tiers.url,
            store_id=state.tiers.store_id,
        ).SerializeToString()

    def _topic(self, topic: TopicRecord, *, with_copies: bool) -> pb.TopicTiering:
        state, topic_id = self._ledger.state, topic.topic_id
        tiers = [state.tiers.segments[each] for each in state.tiers.of_topic.get(topic_id, ())]
        published = [each for each in tiers if each.state is TierState.PUBLISHED]
        held = state.tiers.held.get(topic_id, {})
        untiered = [state.segments[each] for each in state.tiers.untiered.get(topic_id, ())]
        local = [*untiered, *(state.segments[each] for each in held)]
        due = [each.since_ms + topic.tiering.tier_after_ms for each in untiered]
        why, when_ms = self._last_error(topic_id)
        return pb.TopicTiering(
            name=topic.name,
            topic_id=topic_id,
            on=topic.tiering.is_on,
            waiting_segments=len(untiered) if topic.tiering.is_on else 0,
            uploading_segments=sum(each.is_under_way for each in tiers),
            published_segments=len(published),
            remote_only_segments=len(published) - len(held),
            unswept_attempts=sum(len(each.closed_attempts) + each.is_retiring for each in tiers),
            local_bytes=sum(each.segment.length_bytes for each in local),
            remote_bytes=sum(each.copy.length_bytes for each in published),
            lag_ms=max(0, state.counted_ms - min(due)) if due and topic.tiering.is_on else 0,
            stale_tables=sum(key[0] == topic_id for key in state.tiers.stale_tables),
            last_error=why,
            last_error_ms=when_ms,
            copies=map(_published, published) if with_copies else (),
        )

    async def import_tiered(self, body: Received, _: CallContext) -> bytes:
        """ImportTiered."""
        request = parse(pb.ImportTieredRequest, body)
        topic = imported_topic(request, self._defaults, len(self._ledger.state.nodes))
        segments = [imported_segment(topic, each) for each in request.segments]
        await self._imports.take(topic, segments, request.segment_ids_max, request.attempts_max)
        if not request.last:
            return pb.ImportTieredResponse().SerializeToString()
        restored = await self._imports.finish(topic, request.table_revisions)
        return pb.ImportTieredResponse(topic=self._describer.topic(restored)).SerializeToString()

    async def plan_merges(self, body: Received, call: CallContext) -> bytes:
        """PlanMerges."""
        request, state = parse(pb.PlanMergesRequest, body), self._ledger.state
        if not 0 < request.target_bytes <= TARGET_BYTES_MAX:
            raise InvalidRequestError(f"target_bytes is 1 to {TARGET_BYTES_MAX}")
        topic = state.topic(request.topic)
        response, turns = pb.PlanMergesResponse(topic_id=topic.topic_id), Turns(call.slot)
        for partition in list(state.partitions_of(topic)):
            for each in looking(state, partition.partition_key, request.target_bytes):
                await turns.give()
                if each is None:
                    continue
                if len(response.groups) == GROUPS_PER_PAGE:
                    response.more = True
                    return response.SerializeToString()
                response.groups.add(
                    partition=partition.partition,
                    segment_ids=each.segment_ids,
                    length_bytes=each.length_bytes,
                    records=each.records,
                )
        return response.SerializeToString()

    async def forget_store(self, body: Received, _: CallContext) -> bytes:
        """ForgetStore."""
        request = parse(pb.ForgetStoreRequest, body)
        change = await self._ledger.decide(lambda state: forget_store(state, request.store_id))
        if change.puts:
            event(_log, logging.WARNING, "store_forgotten", store_id=request.store_id)
        return pb.ForgetStoreResponse().SerializeToString()

    async def merge(self, body: Received, _: CallContext) -> bytes:
        """MergeSegments."""
        request, state = parse(pb.MergeSegmentsRequest, body), self._ledger.state
        topic = state.topic(request.topic)
        for each in request.segment_ids:
            record = state.segments.get(SegmentId(each))
            if record is not None and record.segment.topic_id != topic.topic_id:
                raise InvalidRequestError(f"segment {each} is not one of topic {topic.name!r}")
        try:
            merged = await self._merging.merge([*map(SegmentId, request.segment_ids)])
        except ConflictError as error:  # clients would repeat that, and it stays so
            raise InvalidRequestError(error.message) from error
        return pb.MergeSegmentsResponse(
            segment=segment_to_proto(merged.segment),
            length_bytes=merged.copy.length_bytes,
            records=merged.copy.records,
        ).SerializeToString()


def _tiered_topics(state: ClusterState) -> Iterator[TopicRecord]:
    for topic in state.topics.values():
        if topic.is_live and (topic.tiering.is_on or topic.topic_id in state.tiers.topics):
            yield topic


def _published(tier: TierRecord) -> coordinator_pb2.PublishedCopy:
    return coordinator_pb2.PublishedCopy(
        segment_id=tier.segment_id,
        generation=tier.generation,
        base_offset=tier.base_offset,
        attempt=tier.attempt,
        manifest_sha256=tier.copy.manifest_sha256,
        partition=tier.partition,
        end_offset=tier.end_offset,
        records=tier.copy.records,
    )


# --- of nodes -------------------------------------------------------------------------------------

SEGMENTS_MAX = 1_000


class TieredCopies:
    """Reads the state, changes nothing.

    Args:
        state: The cluster.
        doubt: Told of each published copy that a node could not read.
    """

    def __init__(self, state: ClusterState, doubt: Callable[[SegmentId], None]) -> None:
        self._state = state
        self._doubt = doubt

    async def describe(self, body: Received, _: CallContext) -> bytes:
        """Each segment by itself: some may be gone, or lie on nodes alone.

        Raises WrongClusterError, InvalidRequestError for too many at once.
        """
        request = parse(coordinator_pb2.DescribeTieredRequest, body)
        if request.cluster_id != self._state.cluster_id:
            raise WrongClusterError(
                f"this is cluster {self._state.cluster_id.hex()}, not {request.cluster_id.hex()}"
            )
        if len(request.segment_ids) > SEGMENTS_MAX:
            raise InvalidRequestError(f"at most {SEGMENTS_MAX} segments at once")
        found = [self._segment(SegmentId(each)) for each in request.segment_ids]
        refuted = frozenset(request.refuted_attempts)
        for segment_id, each in zip(request.segment_ids, found, strict=True):
            if each.HasField("copy") and each.copy.attempt in refuted:
                self._doubt(SegmentId(segment_id))
        return coordinator_pb2.DescribeTieredResponse(segments=found).SerializeToString()

    def _segment(self, segment_id: SegmentId) -> coordinator_pb2.DescribedCopy:
        record = self._state.segments.get(segment_id)
        if record is None:
            error = ConflictError(f"there is no segment {segment_id} (any more)")
            return coordinator_pb2.DescribedCopy(error=error_to_proto(error))
        segment = segment_to_proto(self._state.assignment(record))
        if not is_published(self._state, record):
            error = ConflictError(f"no copy of segment {segment_id} is published")
            return coordinator_pb2.DescribedCopy(error=error_to_proto(error), segment=segment)
        tier = self._state.tiers.segments[segment_id]
        return coordinator_pb2.DescribedCopy(segment=segment, copy=copy_to_proto(tier))
