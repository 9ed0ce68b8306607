"""Messages of the coordinator on the heartbeat stream, and what the node reports when a stream
begins.

Each message is split here, and each part goes to the component that it concerns.
"""

from collections.abc import Callable

from icecore.errors import UnavailableError
from icecore.model import CoordinatorEpoch, NodeId, ProducerEpoch, ProducerId, Segment, SegmentId
from icecore.rpc import convert
from icecore.v1 import coordinator_pb2
from icecore_node.context import NodeContext
from icecore_node.identity.node_report import InitialReport
from icecore_node.membership.topic_following import TopicFollowing
from icecore_node.registry.assignments import Assignments
from icecore_node.registry.leaders import Leaders
from icecore_node.registry.table import ReplicaTable
from icecore_node.replica.damage import is_shut_out
from icecore_replication import inputs


class Updates:
    """Takes the coordinator's messages in their order. Loop only."""

    def __init__(
        self,
        context: NodeContext,
        table: ReplicaTable,
        leaders: Leaders,
        assignments: Assignments,
        delete_later: Callable[[SegmentId], None],
        drop_surplus: Callable[[Segment], None],
        following: TopicFollowing,
    ) -> None:
        """
        Args:
            context: The node.
            table: All replicas.
            leaders: All leaders.
            assignments: Gives replicas their roles.
            delete_later: Carries out the order to delete a segment,
            drop_surplus: and to drop a copy of one that stays.
            following: Hears how many changes of topics there are.
        """
        self._context = context
        self._table = table
        self._leaders = leaders
        self._assignments = assignments
        self._delete_later = delete_later
        self._drop_surplus = drop_surplus
        self._following = following
        self._nodes_version = 0
        """The one of the stream's last message about nodes."""

    def take(self, update: coordinator_pb2.HeartbeatResponse) -> None:
        """Producers' fences, peers, assignments, partitions and delete intents.

        Raises UnavailableError when a change of nodes was lost: the next stream begins with all.
        """
        context = self._context
        self._check_nodes_version(update)
        context.identity.hear(CoordinatorEpoch(update.coordinator_epoch), update.metadata_revision)
        if update.full:  # it has all names (R112)
            named = {ProducerId(each.producer_id) for each in update.producer_fences}
            context.producer_fences.forget({*context.producer_fences.min_epochs} - named)
        context.producer_fences.forget(map(ProducerId, update.deleted_producer_ids))
        for fence in update.producer_fences:  # before we lead anything more (R48)
            context.producer_fences.fence(
                ProducerId(fence.producer_id), ProducerEpoch(fence.min_epoch)
            )
        self._take_nodes(update)
        for assignment in update.assignments:
            record = convert.segment_from_proto(assignment)
            self._assignments.apply(record)
            if context.identity.node_id in record.surplus:
                self._drop_surplus(record)
        for progress in update.partitions:
            self._note_partition(progress)
        for segment_id in convert.segment_ids(update.delete_segment_ids):
            self._delete_later(segment_id)
        self._following.heard(CoordinatorEpoch(update.coordinator_epoch), update.topics_version)

    def _check_nodes_version(self, update: coordinator_pb2.HeartbeatResponse) -> None:
        """Raises UnavailableError when this is not the message about nodes after the last one, nor
        an earlier one once more. Coordinators of before say no version."""
        has_changes = bool(update.changed_nodes or update.gone_node_ids)
        if not update.nodes and update.nodes_version > self._nodes_version + has_changes:
            raise UnavailableError(
                f"a change of nodes was lost: version {update.nodes_version} of this stream came "
                f"after {self._nodes_version}"
            )

    def _take_nodes(self, update: coordinator_pb2.HeartbeatResponse) -> None:
        """All nodes, or those that changed; nothing where that was taken before."""
        if not update.nodes and update.nodes_version <= self._nodes_version:
            return
        self._nodes_version, peers = update.nodes_version, self._context.peers
        for message in (*update.nodes, *update.changed_nodes):
            node = convert.node_from_proto(message)
            if peers.learn(node):
                for leader in self._leaders.all():
                    leader.feed(inputs.NodeChanged(node))
        there = {each.node_id for each in update.nodes} or {*peers.nodes}
        peers.forget_others(NodeId(each) for each in there.difference(update.gone_node_ids))

    def _note_partition(self, progress: coordinator_pb2.PartitionProgress) -> None:
        """Take in a topic's name, whether it is deleted, its partition's start and the holders of
        its tail."""
        self._table.names.note(progress.topic_id, progress.topic)
        self._table.note_deleted(progress.topic_id, progress.partition, is_deleted=progress.deleted)
        held = self._table.of(progress.topic_id, progress.partition)
        held.note_start(progress.log_start_offset)
        held.note_tail(
            SegmentId(progress.tail_segment_id),
            convert.node_ids(progress.tail_replicas),
            progress.tail_base_offset,
        )

    def standing(self) -> InitialReport:
        """Return the state that the first heartbeat of a stream reports."""
        node_id = self._context.identity.node_id
        return InitialReport(
            [each.segment_id for each in self._table if not each.life.is_intact],
            {each.replica.segment_id: each.log for each in self._leaders.all()},
            [each.segment_id for each in self._table if is_shut_out(each, node_id)],
        )
