"""The cluster as AdminService shows it: descriptions, metadata, pages of segments."""

from collections.abc import Callable, Iterator

from icecore.model import NO_NODE, NO_SEGMENT, NodeId, NodeInfo, SegmentId, SegmentState
from icecore.rpc.convert import (
    node_to_proto,
    segment_to_proto,
)
from icecore.rpc.messages import message_of
from icecore.rpc.ports import Clock
from icecore.v1 import admin_pb2 as pb
from icecore.v1 import common_pb2
from icecore.v1.coordinator_pb2 import SegmentAssignment
from icecore_coordinator.decisions.topic_deletion import kept_topics
from icecore_coordinator.nodes.alerts import Alerts
from icecore_coordinator.nodes.node_sessions import NodeSessions
from icecore_coordinator.nodes.reported_state import ReportedState
from icecore_coordinator.services.settings_messages import settings_message
from icecore_coordinator.state.cluster_state import (
    ClusterState,
    NodeLoad,
    live_topics,
    load_of_nodes,
    node_infos,
    segments_from,
)
from icecore_coordinator.state.limits import UsedLimit, limits_in_use
from icecore_coordinator.state.liveness import Liveness
from icecore_coordinator.state.records import (
    PartitionRecord,
    SegmentRecord,
    TopicRecord,
    is_prepared,
    is_under_replicated,
)
from icecore_coordinator.work.remote.tier_nodes import readers_of

SEGMENTS_PER_PAGE = 1_000
SEGMENTS_PER_PAGE_MAX = 10_000


class Describer:
    """Reads the state, changes nothing."""

    def __init__(
        self,
        *,
        state: ClusterState,
        live: Liveness,
        heard: ReportedState,
        alerts: Alerts,
        sessions: NodeSessions,
        clock: Clock,
        recoveries: Callable[[], int],
        refused_streams: Callable[[], int],
    ) -> None:
        """
        Args:
            state: The cluster.
            live: Who is up.
            heard: Knows the newest watermarks.
            alerts: What a person must look at.
            sessions: Know what nodes said of their disks.
            clock: Says since when a node is down.
            recoveries: How many recovery-seals this process has done.
            refused_streams: How many heartbeat streams it refused as those of somebody else.
        """
        self._state = state
        self._live = live
        self._heard = heard
        self._alerts = alerts
        self._sessions = sessions
        self._clock = clock
        self._recoveries = recoveries
        self._refused_streams = refused_streams

    def nodes(self) -> list[common_pb2.NodeInfo]:
        """All registered nodes, by id."""
        return [node_to_proto(each) for each in node_infos(self._state, self._live)]

    def topic(self, topic: TopicRecord) -> pb.TopicDescription:
        """A topic with its partitions."""
        return pb.TopicDescription(
            name=topic.name,
            topic_id=topic.topic_id,
            settings=settings_message(topic),
            partitions=[self._partition(each) for each in self._state.partitions_of(topic)],
            deleted=topic.is_deleted,
            deleted_at_ms=topic.deleted_at_ms,
            grace_left_ms=topic.grace_left_ms,
            earlier_partitions=topic.known_counts[:-1],
            holds=holds_of(topic, self._state.counted_ms),
        )

    def _partition(self, partition: PartitionRecord) -> pb.PartitionDescription:
        state = self._state
        records = state.segments_in(partition.partition_key)
        tail = state.tail(partition)
        known = self._heard.high_watermark(partition.tail_segment_id) or 0
        return pb.PartitionDescription(
            partition=partition.partition,
            log_start_offset=partition.log_start_offset,
            high_watermark=max(known, partition.next_base_offset),
            tail=segment_to_proto(state.assignment(tail)) if tail else None,
            segments=sum(not is_prepared(each) for each in records),
            under_replicated_segments=sum(is_under_replicated(each) for each in records),
            lossy_segments=sum(each.segment.lossy for each in records),
            tiered_segments=sum(each.segment.is_tiered for each in records),
            remote_only_segments=sum(each.segment.is_remote_only for each in records),
            length_bytes=sum(each.segment.length_bytes for each in records)
            + self._heard.length_bytes(partition.tail_segment_id),
            left_out=[
                message_of(pb.OffsetSpan, each.segment)
                for each in records
                if each.segment.is_skipped and not each.segment.is_lost
            ],
        )

    def metadata(self, topic: TopicRecord) -> pb.TopicMetadata:
        """Return a topic's metadata for a client, with the leaders of all its partitions."""
        message = _without_partitions(topic)
        for partition in self._state.partitions_of(topic):
            self._led_partition(message, partition)
        return message

    def changes(self, topic: TopicRecord, numbers: frozenset[int]) -> pb.TopicMetadata:
        """The same for a client that knows all other partitions."""
        message = _without_partitions(topic)
        message.changes_only = True
        for partition in self._numbered(topic, numbers):
            self._led_partition(message, partition)
        return message

    def mirrored(self, topic: TopicRecord, numbers: frozenset[int]) -> pb.TopicMetadata:
        """The same for a node, with those partitions alone. Who is down it hears by itself: a
        leader that is back has changed nothing here."""
        message = _without_partitions(topic)
        for partition in self._numbered(topic, numbers):
            self._partition_metadata(message, partition)
        return message

    def _numbered(self, topic: TopicRecord, numbers: frozenset[int]) -> Iterator[PartitionRecord]:
        for number in sorted(numbers):
            partition = self._state.partitions.get((topic.topic_id, number))
            if partition is not None:
                yield partition

    def _led_partition(self, message: pb.TopicMetadata, partition: PartitionRecord) -> None:
        """Added to the message: who does not lead it now but will when it is up again is told
        apart from who will not, because its incarnation is another one."""
        item = self._partition_metadata(message, partition)
        tail = self._state.tail(partition)
        if tail is None or self._state.leader_is_live(tail.segment, self._live):
            return
        if item.leader and not self._live.is_live(tail.segment.leader):
            item.down_leader = item.leader
        item.leader = NO_NODE

    def _partition_metadata(
        self, message: pb.TopicMetadata, partition: PartitionRecord
    ) -> pb.PartitionMetadata:
        """Added to the message, with the leader of the tail if that is ACTIVE."""
        item = message.partitions.add(
            partition=partition.partition,
            log_start_offset=partition.log_start_offset,
            segment_id=partition.tail_segment_id,
            tail_base_offset=partition.next_base_offset,
        )
        tail = self._state.tail(partition)
        if tail is not None:
            segment = tail.segment
            item.epoch = segment.epoch
            item.replicas.extend(segment.replicas)
            item.isr.extend(segment.isr)
            if segment.state == SegmentState.ACTIVE:
                item.leader = segment.leader
        return item

    def cluster(self) -> pb.DescribeClusterResponse:
        """Nodes and counts over all segments."""
        state, totals = self._state, self._state.totals
        live = live_topics(state)
        partitions = sum(totals.partitions[each.topic_id] for each in live)
        active = sum(totals.active[each.topic_id] for each in live)
        loads = load_of_nodes(state)
        infos = node_infos(state, self._live)
        return pb.DescribeClusterResponse(
            cluster_id=state.cluster_id,
            coordinator_epoch=state.coordinator_epoch,
            nodes=[self._node(each, loads[each.node_id]) for each in infos],
            topics=len(live),
            partitions=partitions,
            deleted_topics=len(kept_topics(state)),
            deleted_bytes=sum(
                size_bytes
                for topic_id, size_bytes in totals.sealed_bytes.items()
                if not state.is_live_topic(topic_id)
            ),
            segments=len(state.segments) - len(state.prepared),
            sealed_segments=len(state.segments) - len(state.unsealed),
            under_replicated=len(state.thin) + len(totals.out_of_sync),
            min_copies=min(totals.copies, default=0),
            recoveries=self._recoveries(),
            offline_partitions=partitions - active,
            alerts=[message_of(pb.Alert, each) for each in self._alerts],
            limits=[_limit(each) for each in limits_in_use(state)],
            refused_streams=self._refused_streams(),
            backup_at_ms=state.cluster.backup_at_ms if state.cluster else 0,
        )

    def _node(self, info: NodeInfo, load: NodeLoad) -> pb.NodeDescription:
        node_id = info.node_id
        usage = self._sessions.usage(node_id)
        return pb.NodeDescription(
            node=node_to_proto(info),
            leads=load.leads,
            replicas=len(self._state.segments_of_node.get(node_id, ())),
            disk_used_bytes=usage.used_bytes,
            disk_free_bytes=usage.free_bytes,
            disks=usage.disks,
            drained=self._state.nodes[node_id].is_drained,
            host=self._state.nodes[node_id].host,
            down_since_ms=self._down_since_ms(node_id),
            held=self._state.held[node_id],
        )

    def _down_since_ms(self, node_id: NodeId) -> int:
        """Return when a node was found to be down, by the wall clock; 0 = it is up, or this process
        never saw it up."""
        down_ms = self._live.down_ms(node_id, self._clock.monotonic_ms())
        return 0 if down_ms is None else round(self._clock.now_ms() - down_ms)

    def segments(self, request: pb.ListSegmentsRequest) -> pb.ListSegmentsResponse:
        """One page. Raises UnknownTopicError."""
        state = self._state
        topics = [state.topic(request.topic)] if request.topic else live_topics(state)
        limit = min(request.max_segments or SEGMENTS_PER_PAGE, SEGMENTS_PER_PAGE_MAX)
        last = SegmentId(request.after_segment_id)
        *after, end_offset = self._end_of_page(request)
        wanted = frozenset(request.partitions)
        response = pb.ListSegmentsResponse()
        for topic in topics:
            for partition in state.partitions_of(topic):
                place, key = [topic.name, partition.partition], partition.partition_key
                if (wanted and partition.partition not in wanted) or place < after:
                    continue
                from_offset = max(request.from_offset, partition.log_start_offset)
                if place == after and last not in state.segments:
                    from_offset = max(from_offset, end_offset)
                skipped = last if place == after else NO_SEGMENT
                for record in segments_from(state, key, from_offset, skipped):
                    if not _is_listed(record, from_offset):
                        continue
                    if len(response.segments) == limit:
                        response.more = True
                        return response
                    response.segments.append(self._listed(record))
        return response

    def _listed(self, record: SegmentRecord) -> SegmentAssignment:
        """With who reads it, when no node has a copy."""
        message = segment_to_proto(self._state.assignment(record))
        if record.segment.is_remote_only:
            segment_id = record.segment.segment_id
            message.readers.extend(readers_of(self._state, self._live, segment_id))
        return message

    def _end_of_page(self, request: pb.ListSegmentsRequest) -> tuple[str, int, int]:
        """Topic, partition and offset at which the page before ended; the first one of all
        without a segment."""
        record = self._state.segments.get(SegmentId(request.after_segment_id))
        if record is None:
            return request.after_topic, request.after_partition, request.after_end_offset
        segment = record.segment
        return self._state.name_of(segment.topic_id), segment.partition, segment.end_offset


def _limit(used: UsedLimit) -> pb.LimitUse:
    limit = used.limit
    way_out = limit.way_out if used.is_nearly_full else ""
    return pb.LimitUse(name=limit.name, used=used.used, most=limit.most, way_out=way_out)


def _without_partitions(topic: TopicRecord) -> pb.TopicMetadata:
    return pb.TopicMetadata(
        name=topic.name,
        topic_id=topic.topic_id,
        settings=settings_message(topic),
        earlier_partitions=topic.known_counts[:-1],
    )


def _is_listed(record: SegmentRecord, from_offset: int) -> bool:
    """Open segments have no end yet, so they end above any offset."""
    if is_prepared(record):
        return False
    return record.segment.state != SegmentState.SEALED or record.segment.end_offset > from_offset


def holds_of(topic: TopicRecord, counted_ms: int) -> list[pb.SnapshotHold]:
    """Those that have not ended."""
    return [
        pb.SnapshotHold(
            lease_id=each.lease_id, left_ms=each.until_ms - counted_ms, owner=each.owner
        )
        for each in topic.holds
        if each.until_ms > counted_ms
    ]
