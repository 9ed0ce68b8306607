"""What a client knows of the cluster at one moment: a value, with look-ups and the next one.

An answer of the coordinator holds all nodes and the topics that were asked for. Topics that it does
not hold, or holds an error for, stay as they were known before.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from icecore.client.types import PartitionMetadata, TopicMetadata
from icecore.errors import IcecoreError, UnknownTopicError
from icecore.model import NodeInfo, NodeState
from icecore.rpc import convert
from icecore.rpc.addresses import Transport, peer_address
from icecore.v1 import admin_pb2


@dataclass(frozen=True, slots=True)
class ClusterView:
    """Who serves what."""

    cluster_id: bytes = b""
    """16 bytes, empty before the first answer."""
    nodes: Mapping[int, NodeInfo] = field(default_factory=dict)
    """All known, by id."""
    topics: Mapping[str, TopicMetadata] = field(default_factory=dict)
    """By name, those that were found once."""
    transport: Transport = "auto"
    """How nodes may be called."""
    stamp: tuple[int, int] = (0, 0)
    """Token and version of the newest answer: a node may know less than another server has said."""

    def partition(self, topic: str, partition: int) -> PartitionMetadata | None:
        """The partition, None when there is none."""
        found = self.topics.get(topic)
        if found is None or not 0 <= partition < len(found.partitions):
            return None
        return found.partitions[partition]

    def address(self, node_id: int) -> str | None:
        """Where a node is called, None when that is unknown."""
        node = self.nodes.get(node_id)
        return peer_address(node, self.transport) or None if node is not None else None

    def is_up(self, node_id: int) -> bool:
        """Whether the coordinator thinks the node is up."""
        node = self.nodes.get(node_id)
        return node is not None and node.state is not NodeState.DOWN

    def leader(self, topic: str, partition: int) -> int:
        """Node id of the leader, 0 when there is none or its address is unknown."""
        found = self.partition(topic, partition)
        return found.leader if found is not None and self.address(found.leader) else 0

    def after(self, answer: admin_pb2.GetMetadataResponse) -> "ClusterView":
        """What is known after one more answer. One that is older than what is known adds to it, and
        takes nothing back."""
        refused = errors_of(answer)
        is_older = self.is_newer_than(answer)
        topics = dict(self.topics)
        for message in answer.topics:
            known = topics.get(message.name)
            is_other = known is not None and known.topic_id != message.topic_id
            if message.name not in refused and not (is_older and is_other):
                topics[message.name] = _topic(message, known)
        nodes = {node.node_id: convert.node_from_proto(node) for node in answer.nodes}
        if is_older:
            for node_id, node in self.nodes.items():
                if node_id not in nodes or nodes[node_id].incarnation <= node.incarnation:
                    nodes[node_id] = node
        stamp = max(self.stamp, (answer.token, answer.version))
        return ClusterView(answer.cluster_id, nodes, topics, self.transport, stamp)

    def is_newer_than(self, answer: admin_pb2.GetMetadataResponse) -> bool:
        """Whether another server has said something later. One that counts no changes is believed
        as it comes."""
        return bool(answer.token) and (answer.token, answer.version) < self.stamp

    def has_other_topic_than(self, before: "ClusterView") -> bool:
        """Whether some topic was deleted and made again since ``before``."""
        return any(
            before.topics[name].topic_id != topic.topic_id
            for name, topic in self.topics.items()
            if name in before.topics
        )


def errors_of(answer: admin_pb2.GetMetadataResponse) -> dict[str, IcecoreError]:
    """By name of a topic, why the coordinator says nothing of it that could be used."""
    found: dict[str, IcecoreError] = {}
    for message in answer.topics:
        error = convert.error_from_proto(message.error)
        if error is None and not message.partitions:  # it is being made: nothing can be sent
            error = UnknownTopicError(f"topic {message.name} has no partitions yet")
        if error is not None:
            found[message.name] = error
    return found


def has_moved(before: PartitionMetadata | None, now: PartitionMetadata | None) -> bool:
    """Whether a partition has a leader, and another one than before."""
    if now is None or not now.leader:
        return False
    return before is None or now.epoch > before.epoch or not before.leader


def _topic(message: admin_pb2.TopicMetadata, before: TopicMetadata | None) -> TopicMetadata:
    """The topic of an answer; a partition never goes back to an older epoch."""
    same = before if before is not None and before.topic_id == message.topic_id else None
    partitions = []
    for found in sorted(message.partitions, key=lambda p: p.partition):
        partition = PartitionMetadata(
            partition=found.partition,
            log_start_offset=found.log_start_offset,
            segment_id=found.segment_id,
            epoch=found.epoch,
            leader=found.leader,
            replicas=tuple(found.replicas),
            isr=tuple(found.isr),
            tail_base_offset=found.tail_base_offset,
        )
        if same is not None and found.partition < len(same.partitions):
            old = same.partitions[found.partition]
            partition = old if old.epoch > partition.epoch else partition
        partitions.append(partition)
    partitioner = message.settings.partitioner or "xxh64"
    return TopicMetadata(
        message.name,
        message.topic_id,
        tuple(partitions),
        partitioner,
        tuple(message.settings.indexed_headers),
        tuple(message.earlier_partitions),
    )
