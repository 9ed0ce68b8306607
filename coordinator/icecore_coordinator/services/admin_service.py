"""AdminService: what clients and operators ask about topics, metadata and the cluster.

Messages to values, outcomes to messages, nothing else: ``topics`` and ``lossy_acts`` act,
``admin_messages`` describes.
"""

from collections.abc import Callable, Mapping, Sequence

from icecore.errors import InvalidRequestError, UnknownTopicError
from icecore.model import NodeId, SegmentId, check_topic_name
from icecore.rpc.convert import error_to_proto, retention_with, segment_to_proto, tiering_with
from icecore.rpc.framing import parse
from icecore.rpc.messages import message_of
from icecore.rpc.methods import ADMIN
from icecore.rpc.ports import CallContext, Handlers, Received, UnaryHandler
from icecore.rpc.turns import Turns
from icecore.topic_settings import KEEP_ALL, NOT_TIERED
from icecore.v1 import admin_pb2 as pb
from icecore_coordinator.config import TopicDefaults
from icecore_coordinator.decisions.balance import Move
from icecore_coordinator.decisions.topic_deletion import kept_topics
from icecore_coordinator.ledger import Ledger
from icecore_coordinator.nodes.topic_versions import TopicVersions
from icecore_coordinator.services.admin_messages import Describer
from icecore_coordinator.services.settings_messages import (
    altered_settings,
    grace_of,
    settings_of,
    with_defaults,
)
from icecore_coordinator.state.cluster_state import ClusterState, live_topics
from icecore_coordinator.state.records import TopicRecord
from icecore_coordinator.work.node_removal import NodeRemoval
from icecore_coordinator.work.record_deletion import RecordDeletion
from icecore_coordinator.work.recovery.lossy_acts import LossyActs
from icecore_coordinator.work.topics import TopicActs


class AdminService:
    """Each method as bytes to bytes; those about object storage are ``tier_admin``'s,
    those about holds ``snapshot_admin``'s, those about saved positions ``position_admin``'s."""

    def __init__(
        self,
        ledger: Ledger,
        topics: TopicActs,
        records: RecordDeletion,
        lossy: LossyActs,
        removal: NodeRemoval,
        balance: Callable[[bool], Sequence[Move]],
        describer: Describer,
        versions: TopicVersions,
        defaults: TopicDefaults,
        other_handlers: Mapping[str, UnaryHandler],
    ) -> None:
        self._ledger = ledger
        self._topics = topics
        self._records = records
        self._defaults = defaults
        self._lossy = lossy
        self._removal = removal
        self._balance = balance
        self._describer = describer
        self._versions = versions
        self._other_handlers = other_handlers

    def handlers(self) -> Handlers:
        """By full method name."""
        return ADMIN.handlers(
            {
                "CreateTopic": self._create_topic,
                "DescribeTopics": self._describe_topics,
                "AlterTopic": self._alter_topic,
                "AddPartitions": self._add_partitions,
                "DeleteTopic": self._delete_topic,
                "UndeleteTopic": self._undelete_topic,
                "RollTopic": self._roll_topic,
                "DescribeCluster": self._describe_cluster,
                "GetMetadata": self._get_metadata,
                "ListSegments": self._list_segments,
                "DeclareLost": self._declare_lost,
                "RecoverUnclean": self._recover_unclean,
                "AcceptDisk": self._accept_disk,
                "RemoveNode": self._remove_node,
                "DrainNode": self._drain_node,
                "BalanceCluster": self._balance_cluster,
                "DeleteRecords": self._delete_records,
                "AdoptMetadata": self._adopt_metadata,
                **self._other_handlers,
            }
        )

    @property
    def _state(self) -> ClusterState:
        return self._ledger.state

    # --- topics ---------------------------------------------------------------------------------

    async def _create_topic(self, body: Received, _: CallContext) -> bytes:
        request = parse(pb.CreateTopicRequest, body)
        check_topic_name(request.name)
        topic = self._live_topic(request.name) if request.if_not_exists else None
        if topic is None:
            asked = with_defaults(request.settings, self._defaults)
            topic = await self._topics.create(
                request.name,
                asked.partitions if asked.HasField("partitions") else 1,
                settings_of(asked),
                grace_of(asked),
                retention_with(KEEP_ALL, asked),
                tiering_with(NOT_TIERED, asked),
            )
        return pb.CreateTopicResponse(topic=self._describer.topic(topic)).SerializeToString()

    def _live_topic(self, name: str) -> TopicRecord | None:
        try:
            return self._state.topic(name)
        except UnknownTopicError:
            return None

    async def _describe_topics(self, body: Received, call: CallContext) -> bytes:
        """Some topics or all; of those that are deleted and kept when asked so."""
        request = parse(pb.DescribeTopicsRequest, body)
        if request.deleted:
            kept, names = kept_topics(self._state), frozenset(request.names)
            topics = [each for each in kept if not names or each.name in names]
        else:
            named = [self._state.topic(name) for name in dict.fromkeys(request.names)]
            topics = named or live_topics(self._state)
        response, turns = pb.DescribeTopicsResponse(), Turns(call.slot)
        for each in topics:
            await turns.give()
            response.topics.append(self._describer.topic(each))
        return response.SerializeToString()

    async def _alter_topic(self, body: Received, _: CallContext) -> bytes:
        request = parse(pb.AlterTopicRequest, body)
        if request.settings.HasField("partitions"):
            raise InvalidRequestError("partitions are added by AddPartitions")
        if request.clear_indexed_headers and request.settings.indexed_headers:
            raise InvalidRequestError("indexed_headers are to be cleared and set at once")
        errors = await self._topics.alter(
            request.name,
            lambda topic: altered_settings(request, topic.settings),
            lambda topic: grace_of(request.settings, topic.delete_grace_ms),
            lambda topic: retention_with(topic.retention, request.settings),
            lambda topic: tiering_with(topic.tiering, request.settings),
        )
        return pb.AlterTopicResponse(
            topic=self._describer.topic(self._state.topic(request.name)),
            roll_errors=[error_to_proto(each) for each in errors],
        ).SerializeToString()

    async def _add_partitions(self, body: Received, _: CallContext) -> bytes:
        request = parse(pb.AddPartitionsRequest, body)
        topic = await self._topics.add_partitions(request.name, request.partitions)
        return pb.AddPartitionsResponse(topic=self._describer.topic(topic)).SerializeToString()

    async def _delete_topic(self, body: Received, _: CallContext) -> bytes:
        request = parse(pb.DeleteTopicRequest, body)
        topic = await self._topics.delete(request.name, request.topic_id, is_now=request.now)
        return pb.DeleteTopicResponse(
            topic_id=topic.topic_id, grace_ms=topic.grace_left_ms
        ).SerializeToString()

    async def _undelete_topic(self, body: Received, _: CallContext) -> bytes:
        request = parse(pb.UndeleteTopicRequest, body)
        topic = await self._topics.undelete(request.name, request.topic_id, request.new_name)
        return pb.UndeleteTopicResponse(topic=self._describer.topic(topic)).SerializeToString()

    async def _roll_topic(self, body: Received, _: CallContext) -> bytes:
        request = parse(pb.RollTopicRequest, body)
        outcomes = await self._topics.roll(request.name, "roll_topic")
        return pb.RollTopicResponse(
            rolled=sum(each is None for each in outcomes),
            errors=[error_to_proto(each) for each in outcomes if each],
        ).SerializeToString()

    # --- what there is --------------------------------------------------------------------------

    async def _describe_cluster(self, _: Received, __: CallContext) -> bytes:
        return self._describer.cluster().SerializeToString()

    async def _get_metadata(self, body: Received, call: CallContext) -> bytes:
        """Answer with the nodes and the leaders of topics; an unknown topic is an error of its own
        entry. A topic that is named twice is answered once: each may be as large as the cluster.
        While leaders move, clients ask again and again, so they send the version they know and get
        the changes."""
        request, turns = parse(pb.GetMetadataRequest, body), Turns(call.slot)
        response = pb.GetMetadataResponse(
            cluster_id=self._state.cluster_id,
            nodes=self._describer.nodes(),
            coordinator_epoch=self._state.coordinator_epoch,
            version=self._versions.version,
            tells_changes=True,
        )
        is_mine = request.known_coordinator_epoch == self._state.coordinator_epoch
        since = self._versions.known_since(request.known_version) if is_mine else 0
        for name in dict.fromkeys(request.topics):
            await turns.give()
            response.topics.append(self._metadata(name, since))
        for topic in () if request.topics else live_topics(self._state):
            await turns.give()
            if request.names_only:
                response.topics.add(name=topic.name, topic_id=topic.topic_id)
            else:
                response.topics.append(self._describer.metadata(topic))
        return response.SerializeToString()

    def _metadata(self, name: str, since: int) -> pb.TopicMetadata:
        """A topic, or what changed of it after a version; 0 = all."""
        topic, versions = self._live_topic(name), self._versions
        if topic is not None and not since:
            return self._describer.metadata(topic)
        if topic is not None and versions.has_changed(topic.topic_id, since):
            numbers = versions.partitions_since(topic.topic_id, since)
            return self._describer.changes(topic, numbers)
        if topic is not None:
            return pb.TopicMetadata(name=name, topic_id=topic.topic_id, changes_only=True)
        error = UnknownTopicError(f"no topic {name!r}", topic=name)
        return pb.TopicMetadata(error=error_to_proto(error), name=name)

    async def _list_segments(self, body: Received, _: CallContext) -> bytes:
        return self._describer.segments(parse(pb.ListSegmentsRequest, body)).SerializeToString()

    # --- what gives up data ---------------------------------------------------------------------

    async def _declare_lost(self, body: Received, _: CallContext) -> bytes:
        request = parse(pb.DeclareLostRequest, body)
        record = await self._lossy.declare_lost(
            request.topic, request.partition, SegmentId(request.segment_id)
        )
        return pb.DeclareLostResponse(segment=segment_to_proto(record.segment)).SerializeToString()

    async def _recover_unclean(self, body: Received, _: CallContext) -> bytes:
        request = parse(pb.RecoverUncleanRequest, body)
        record = await self._lossy.recover_unclean(
            request.topic, request.partition, SegmentId(request.segment_id)
        )
        response = pb.RecoverUncleanResponse()
        if record is not None:
            response.segment.CopyFrom(segment_to_proto(record.segment))
        return response.SerializeToString()

    async def _delete_records(self, body: Received, _: CallContext) -> bytes:
        """Log starts move at once; whole segments below them go within seconds."""
        request = parse(pb.DeleteRecordsRequest, body)
        offsets = {each.partition: each.before_offset for each in request.partitions}
        if not offsets or len(offsets) != len(request.partitions):
            raise InvalidRequestError("name at least one partition, and each of them once")
        found = await self._records.delete(
            request.topic, offsets, topic_id=request.topic_id, is_dry_run=request.dry_run
        )
        return pb.DeleteRecordsResponse(
            partitions=[
                message_of(pb.DeletedRecords, each, segments=map(segment_to_proto, each.segments))
                for each in found
            ]
        ).SerializeToString()

    async def _accept_disk(self, body: Received, _: CallContext) -> bytes:
        node_id = NodeId(parse(pb.AcceptDiskRequest, body).node_id)
        lost_count = await self._lossy.accept_disk(node_id)
        return pb.AcceptDiskResponse(last_copies=lost_count).SerializeToString()

    async def _remove_node(self, body: Received, _: CallContext) -> bytes:
        request = parse(pb.RemoveNodeRequest, body)
        given_up = await self._removal.forget(
            NodeId(request.node_id), is_disk_gone=request.disk_gone
        )
        return pb.RemoveNodeResponse(given_up_copies=given_up).SerializeToString()

    async def _drain_node(self, body: Received, _: CallContext) -> bytes:
        request = parse(pb.DrainNodeRequest, body)
        await self._removal.drain(
            NodeId(request.node_id),
            undrain=request.undrain,
            allow_fewer_copies=request.allow_fewer_copies,
        )
        return pb.DrainNodeResponse().SerializeToString()

    async def _balance_cluster(self, body: Received, _: CallContext) -> bytes:
        request = parse(pb.BalanceClusterRequest, body)
        found, topics = self._balance(request.dry_run), self._state.topics
        return pb.BalanceClusterResponse(
            moves=[
                pb.SegmentMove(
                    topic=topics[each.segment.topic_id].name,
                    topic_id=each.segment.topic_id,
                    partition=each.segment.partition,
                    segment_id=each.segment.segment_id,
                    leader=each.segment.leader,
                    replicas=each.segment.replicas,
                    next_leader=each.placement.leader,
                    next_replicas=each.placement.nodes,
                )
                for each in found
            ]
        ).SerializeToString()

    async def _adopt_metadata(self, _: Received, __: CallContext) -> bytes:
        raise InvalidRequestError(
            "the metadata of this coordinator are the newest that any node has told of: there is "
            "nothing to adopt"
        )
