"""The client's view of the cluster at one moment: a value with look-ups and a method for the next
view.

An answer of the coordinator holds all nodes and the topics that were asked for. Topics that it does
not hold, or holds an error for, stay as they were known before. Of a topic it may hold no more than
what changed after the answer that the question named (``base``): who asks again and again while
very many leaders move pays for those that moved.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from icecore.client.types import PartitionMetadata, TopicMetadata
from icecore.codec.batch import BatchLimits
from icecore.errors import IcecoreError, UnknownTopicError
from icecore.model import NodeInfo, NodeState
from icecore.rpc import convert
from icecore.rpc.addresses import Transport, peer_address
from icecore.v1 import admin_pb2

NO_PARTITIONS: Final = "no_partitions"
"""Metadata of an UnknownTopicError: the topic is being made."""


@dataclass(frozen=True, slots=True)
class ClusterView:
    """Nodes and topics of the cluster, as known at one moment."""

    cluster_id: bytes = b""
    """16 bytes, empty before the first answer."""
    nodes: Mapping[int, NodeInfo] = field(default_factory=dict)
    """All known, by id."""
    topics: Mapping[str, TopicMetadata] = field(default_factory=dict)
    """Topics by name; a topic stays here once it was found."""
    transport: Transport = "auto"
    """How nodes may be called."""
    stamp: tuple[int, int] = (0, 0)
    """Coordinator epoch and version of the newest answer: a node may know less than another server
    has said."""
    bases: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Coordinator epoch and version up to which all changes of a topic are known, by topic. Only
    servers that
    tell changes fill it."""

    def base(self, names: Collection[str]) -> tuple[int, int]:
        """Coordinator epoch and version after which changes of these topics are enough to hear;
        zeros when all
        of them are asked for."""
        found = {self.bases.get(name, (0, 0)) for name in names}
        return found.pop() if len(found) == 1 else (0, 0)

    def partition(self, topic: str, partition: int) -> PartitionMetadata | None:
        """The partition, None when there is none."""
        found = self.topics.get(topic)
        if found is None or not 0 <= partition < len(found.partitions):
            return None
        return found.partitions[partition]

    def address(self, node_id: int) -> str | None:
        """Return the address of a node, None when it is unknown."""
        node = self.nodes.get(node_id)
        return peer_address(node, self.transport) or None if node is not None else None

    def is_up(self, node_id: int) -> bool:
        """Return whether the coordinator thinks the node is up."""
        node = self.nodes.get(node_id)
        return node is not None and node.state is not NodeState.DOWN

    def leader(self, topic: str, partition: int) -> int:
        """Node id of the leader, 0 when there is none or its address is unknown."""
        found = self.partition(topic, partition)
        return found.leader if found is not None and self.address(found.leader) else 0

    def after(self, answer: admin_pb2.GetMetadataResponse) -> "ClusterView":
        """Return the view after one more answer. An answer older than the view only adds to it."""
        refused = self.errors_of(answer)
        is_older = self.is_newer_than(answer)
        nodes = {node.node_id: convert.node_from_proto(node) for node in answer.nodes}
        if is_older:
            for node_id, node in self.nodes.items():
                if node_id not in nodes or nodes[node_id].incarnation <= node.incarnation:
                    nodes[node_id] = node
        down = _down(nodes)
        topics, bases = dict(self.topics), dict(self.bases)
        if down != _down(self.nodes):
            topics = {name: _led(topic, down) for name, topic in topics.items()}
        for message in answer.topics:
            known = topics.get(message.name)
            is_other = known is not None and known.topic_id != message.topic_id
            is_told = not message.changes_only or self.base([message.name]) != (0, 0)
            if message.name not in refused and is_told and not (is_older and is_other):
                topics[message.name] = _topic(message, known, down)
                bases[message.name] = self._base_after(answer, message)
        stamp = max(self.stamp, (answer.coordinator_epoch, answer.version))
        return ClusterView(answer.cluster_id, nodes, topics, self.transport, stamp, bases)

    def _base_after(
        self, answer: admin_pb2.GetMetadataResponse, message: admin_pb2.TopicMetadata
    ) -> tuple[int, int]:
        """Up to where all changes of a topic are known with an answer. One of a server that is
        behind holds no changes that were not known."""
        if not answer.tells_changes:
            return (0, 0)
        told = (answer.coordinator_epoch, answer.version)
        return max(told, self.bases[message.name]) if message.changes_only else told

    def errors_of(self, answer: admin_pb2.GetMetadataResponse) -> dict[str, IcecoreError]:
        """Return, by topic name, why an answer has nothing usable about the topic."""
        found: dict[str, IcecoreError] = {}
        for message in answer.topics:
            error = convert.error_from_proto(message.error)
            known = self.topics.get(message.name)
            is_known = known is not None and known.topic_id == message.topic_id
            is_empty = not (message.partitions or (message.changes_only and is_known))
            if error is None and is_empty:  # it is being made: nothing can be sent
                why = f"topic {message.name} has no partitions yet"
                error = UnknownTopicError(why, **{NO_PARTITIONS: "true"})
            if error is not None:
                found[message.name] = error
        return found

    def is_newer_than(self, answer: admin_pb2.GetMetadataResponse) -> bool:
        """Return whether another server has said something later. One that counts no changes is
        believed as it comes."""
        return (
            bool(answer.coordinator_epoch)
            and (answer.coordinator_epoch, answer.version) < self.stamp
        )

    def has_other_topic_than(self, before: "ClusterView") -> bool:
        """Return whether some topic was deleted and made again since ``before``."""
        return any(
            before.topics[name].topic_id != topic.topic_id
            for name, topic in self.topics.items()
            if name in before.topics
        )


def has_moved(before: PartitionMetadata | None, now: PartitionMetadata | None) -> bool:
    """Return whether a partition has a leader, and another one than before."""
    if now is None or not now.leader:
        return False
    return before is None or now.epoch > before.epoch or not before.leader


def _topic(
    message: admin_pb2.TopicMetadata, before: TopicMetadata | None, down: Collection[int]
) -> TopicMetadata:
    """The topic of an answer; a partition never goes back to an older epoch."""
    same = before if before is not None and before.topic_id == message.topic_id else None
    known = same.partitions if same is not None else ()
    partitions = list(known) if message.changes_only else []
    for each in sorted(message.partitions, key=lambda p: p.partition):
        found, number = _partition(each, down), each.partition
        if number < len(known) and known[number].epoch > found.epoch:
            found = known[number]
        partitions[number : number + 1] = [found]
    if same is not None and message.changes_only and not message.HasField("settings"):
        return replace(same, partitions=tuple(partitions)) if message.partitions else same
    partitioner = message.settings.partitioner or "xxh64"
    return TopicMetadata(
        message.name,
        message.topic_id,
        tuple(partitions),
        partitioner,
        tuple(message.settings.indexed_headers),
        tuple(message.earlier_partitions),
        _limits(message.settings),
    )


def _limits(settings: admin_pb2.TopicSettings) -> BatchLimits:
    """A server that does not say a limit means the default."""
    default = BatchLimits()
    return BatchLimits(
        record_bytes_max=settings.record_bytes_max or default.record_bytes_max,
        batch_bytes_max=settings.batch_bytes_max or default.batch_bytes_max,
        uncompressed_bytes_max=settings.uncompressed_bytes_max or default.uncompressed_bytes_max,
    )


def _partition(message: admin_pb2.PartitionMetadata, down: Collection[int]) -> PartitionMetadata:
    found = PartitionMetadata(
        partition=message.partition,
        log_start_offset=message.log_start_offset,
        segment_id=message.segment_id,
        epoch=message.epoch,
        leader=message.leader,
        replicas=tuple(message.replicas),
        isr=tuple(message.isr),
        tail_base_offset=message.tail_base_offset,
        down_leader=message.down_leader,
    )
    return _led_partition(found, down)


def _down(nodes: Mapping[int, NodeInfo]) -> frozenset[int]:
    return frozenset(each for each, node in nodes.items() if node.state is NodeState.DOWN)


def _led(topic: TopicMetadata, down: Collection[int]) -> TopicMetadata:
    """The topic while these nodes are down."""
    partitions = tuple(_led_partition(each, down) for each in topic.partitions)
    return replace(topic, partitions=partitions)


def _led_partition(partition: PartitionMetadata, down: Collection[int]) -> PartitionMetadata:
    leader = partition.leader or partition.down_leader
    if leader in down:
        return replace(partition, leader=0, down_leader=leader) if partition.leader else partition
    return replace(partition, leader=leader, down_leader=0) if partition.down_leader else partition
