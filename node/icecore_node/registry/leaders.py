"""The leaders of partitions on this node, for producers and for requests to a leader.

A leader is in here from the record that made it one until its role ends; its replica has no role
then.
"""

from collections.abc import Sequence

from icecore.errors import NotLeaderError, NotReplicaError
from icecore.model import NodeId
from icecore_node.context import Peers
from icecore_node.identity.readers import PartitionKey
from icecore_node.registry.table import ReplicaTable
from icecore_node.replica.replica import Replica
from icecore_node.replication.leader import Leader
from icecore_node.replication.leader_ticks import LeaderTicks


class Leaders:
    """All leaders of a node. Loop only.

    Args:
        table: All replicas.
        node_id: Id of this node.
        peers: All nodes: a client that asks the wrong node gets the leader's address.
    """

    def __init__(self, table: ReplicaTable, node_id: NodeId, peers: Peers) -> None:
        self._table = table
        self._node_id = node_id
        self._peers = peers
        self._leaders: dict[PartitionKey, Leader] = {}
        self.ticks = LeaderTicks[Leader]()
        """Schedules ticks for the leaders that have something to do as time passes."""

    def put(self, leader: Leader) -> None:
        """Add a leader, which leads its partition's active segment from now on."""
        self._leaders[leader.replica.partition_key] = leader

    def of(self, replica: Replica) -> Leader | None:
        """Return the leader that leads with this replica, or None."""
        leader = self._at(replica.partition_key)
        return leader if leader is not None and leader.replica is replica else None

    def all(self) -> list[Leader]:
        """Everything led at the moment."""
        found = [self._at(key) for key in list(self._leaders)]
        return [leader for leader in found if leader is not None]

    def due(self, now_ms: float) -> list[Leader]:
        """Those that get a tick now."""
        return [each for each in self.ticks.due(now_ms) if self.of(each.replica) is each]

    def leader(self, topic_id: bytes, topic: str, partition: int, epoch: int) -> Leader:
        """The leader of a partition's active segment. ``epoch`` 0 = any; a plain number, as the
        request has it, because this is asked twice for each batch.

        Raises NotLeaderError (with a hint) or UnknownTopicError.
        """
        try:
            held = self._table.partition(topic_id, topic, partition)
        except NotReplicaError as error:
            holders = self._table.holders(topic_id, topic, partition)
            raise self._elsewhere(partition, holders) from error
        leader = self._at(held.key)
        if leader is None:
            raise self._elsewhere(partition, held.tail_replicas)
        self._table.names.check_current(leader.segment.topic_id)
        if epoch not in (0, leader.segment.epoch):
            raise NotLeaderError(
                f"the active segment has epoch {leader.segment.epoch}, not {epoch}",
                leader_node_id=self._node_id,
                epoch=leader.segment.epoch,
            )
        return leader

    def _elsewhere(self, partition: int, tail_replicas: Sequence[NodeId]) -> NotLeaderError:
        """Return the error that names the leader's node, as the coordinator reported it last;
        without a name when none is known."""
        leader = self._peers.get(tail_replicas[0]) if tail_replicas else None
        return NotLeaderError(
            f"this node does not lead partition {partition}",
            leader_node_id=tail_replicas[0] if tail_replicas else 0,
            leader_address=leader.address if leader else "",
        )

    def _at(self, key: PartitionKey) -> Leader | None:
        leader = self._leaders.get(key)
        if leader is not None and leader.replica.role is not leader:
            del self._leaders[key]
            return None
        return leader
