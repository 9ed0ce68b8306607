"""A queue of changes for each connected node, and the messages that tell them.

A committed change is queued by key for the nodes that it concerns. A message has the record as it
is when the message is sent. A stream begins with everything that its node holds or is listed for,
and with all nodes. Later only nodes that have changed are told (R113): where each of a thousand
nodes heard of all others at each change of one, the last ones to hear did so much later.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeVar

from icecore.model import NodeId, NodeInfo, ProducerId, SegmentId
from icecore.process.log import event
from icecore.rpc.convert import node_to_proto, segment_to_proto
from icecore.rpc.ports import ServerStream
from icecore.v1 import coordinator_pb2 as pb
from icecore_coordinator.state.cluster_state import ClusterState, node_infos
from icecore_coordinator.state.liveness import Liveness
from icecore_coordinator.state.records import (
    Change,
    DeletionRecord,
    NodeRecord,
    PartitionKey,
    PartitionRecord,
    ProducerRecord,
    SegmentRecord,
    TopicRecord,
    is_prepared,
)

K = TypeVar("K")

_log = logging.getLogger(__name__)

ITEMS_PER_PUSH = 500
"""Most items of each kind in one message, also in the first one. However many replicas a node
holds, neither loop works on one message for longer than some ten milliseconds."""
NODE_CHANGES_VERSION = 5
"""Protocol version from which on nodes take changes of nodes; older ones get all of them."""


@dataclass(kw_only=True)
class Outbox:
    """Changes that one stream has yet to send."""

    node_id: NodeId
    held: Collection[SegmentId] = ()
    """Segments that the node said it held when it registered."""
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    is_closed: bool = False
    answer: int = 0
    """Sequence of the newest heartbeat that was not answered yet."""
    is_full: bool = True
    is_nodes_due: bool = True
    """All nodes are to be told."""
    nodes: dict[NodeId, None] = field(default_factory=dict)
    """Those that have changed, or are gone, since they were told."""
    nodes_version: int = 0
    may_leave: bool = False
    segments: dict[SegmentId, None] = field(default_factory=dict)
    deletes: dict[SegmentId, None] = field(default_factory=dict)
    partitions: dict[PartitionKey, None] = field(default_factory=dict)
    fences: dict[str, None] = field(default_factory=dict)
    deleted_names: dict[ProducerId, None] = field(default_factory=dict)
    """Names of producers whose epoch rose."""

    @property
    def has_more(self) -> bool:
        """Return whether the last message had no room for all of it."""
        return bool(self.segments or self.deletes or self.partitions or self.nodes)


class Pushes:
    """One outbox for each connected node."""

    def __init__(
        self, state: ClusterState, live: Liveness, topics_version: Callable[[], int]
    ) -> None:
        self._state = state
        self._topics_version = topics_version
        self._live = live
        self._outboxes: dict[NodeId, Outbox] = {}
        self._nodes: dict[NodeId, NodeInfo] = {}
        """All nodes, as they are queued."""
        self._is_stale = True
        """Nodes may have changed since."""

    def open(self, node_id: NodeId, held: Collection[SegmentId]) -> Outbox:
        """A stream begins; its first message says everything.

        Args:
            node_id: Whose.
            held: Segments that the node said it held when it registered.
        """
        outbox = Outbox(node_id=node_id, held=held)
        outbox.wake.set()
        self._outboxes[node_id] = outbox
        return outbox

    def close(self, outbox: Outbox) -> None:
        """The stream is over, or another one took its place. Idempotent."""
        outbox.is_closed = True
        outbox.wake.set()
        if self._outboxes.get(outbox.node_id) is outbox:
            del self._outboxes[outbox.node_id]

    def nodes_changed(self) -> None:
        """Tell all nodes who is up, and where."""
        self._is_stale = True
        for outbox in self._outboxes.values():
            outbox.wake.set()

    def _queue_nodes(self) -> None:
        """Queue the nodes that have changed. Several changes of one turn are found at once."""
        if not self._is_stale:
            return
        self._is_stale, before = False, self._nodes
        self._nodes = {each.node_id: each for each in node_infos(self._state, self._live)}
        changed = [each for each, info in self._nodes.items() if before.get(each) != info]
        changed += [each for each in before if each not in self._nodes]
        for outbox in self._outboxes.values():
            outbox.nodes.update(dict.fromkeys(changed))

    def let_leave(self, node_id: NodeId) -> None:
        """Tell a draining node that nobody needs it any more."""
        outbox = self._outboxes.get(node_id)
        if outbox is not None and not outbox.may_leave:
            event(_log, logging.INFO, "node_may_leave", node_id=node_id)
            outbox.may_leave = True
            outbox.wake.set()

    def on_change(self, change: Change) -> None:
        """Queue for each node what concerns it in a committed change."""
        for record in change.puts:
            match record:
                case SegmentRecord() if not is_prepared(record):
                    for outbox in self._of(record.holders):
                        outbox.segments[record.segment.segment_id] = None
                case DeletionRecord():
                    for outbox in self._of(record.holders):
                        outbox.deletes[record.segment_id] = None
                case PartitionRecord():
                    self._queue_partition(record.partition_key)
                case TopicRecord():  # another name, deleted, or back
                    for partition in self._state.partitions_of(record):
                        self._queue_partition(partition.partition_key)
                case NodeRecord():
                    self.nodes_changed()
                case ProducerRecord():
                    for outbox in self._of(self._outboxes):
                        outbox.fences[record.name] = None
                case _:
                    pass
        for record in change.deletes:
            if isinstance(record, ProducerRecord):
                for outbox in self._of(self._outboxes):
                    outbox.deleted_names[record.producer_id] = None

    def _queue_partition(self, key: PartitionKey) -> None:
        of_node, mine = self._state.segments_of_node, self._state.segments_of_partition.get(key, {})
        for node_id, outbox in self._outboxes.items():
            if not of_node.get(node_id, {}).keys().isdisjoint(mine.keys()):
                outbox.partitions[key] = None
                outbox.wake.set()

    def _of(self, nodes: Iterable[NodeId]) -> list[Outbox]:
        """The outboxes of those nodes that are connected; they are woken."""
        found = [self._outboxes[each] for each in nodes if each in self._outboxes]
        for outbox in found:
            outbox.wake.set()
        return found

    async def write(self, outbox: Outbox, stream: ServerStream) -> None:
        """Send answers to heartbeats, and pushes, until the outbox is closed."""
        while True:
            await outbox.wake.wait()
            outbox.wake.clear()
            if outbox.is_closed:
                return
            while True:
                message = self.next_message(outbox)
                await stream.write(message.SerializeToString())
                if not outbox.has_more or outbox.is_closed:
                    break

    def next_message(self, outbox: Outbox) -> pb.HeartbeatResponse:
        """As much of what is queued as one message takes; the queue is shorter after it."""
        message = pb.HeartbeatResponse(
            coordinator_epoch=self._state.coordinator_epoch,
            sequence=outbox.answer,
            metadata_revision=self._state.metadata_revision,
            store_id=self._state.tiers.store_id,
            forgotten_store_id=self._state.tiers.forgotten_store_id,
        )
        outbox.answer = 0
        message.may_leave = outbox.may_leave
        message.topics_version = self._topics_version()
        if outbox.is_full:
            outbox.is_full = False
            message.full = True
            self._queue_everything(outbox)
        self._add_nodes(message, outbox)
        message.deleted_producer_ids.extend(outbox.deleted_names)
        outbox.deleted_names.clear()
        for name in outbox.fences:
            producer = self._state.producers.get(name)
            if producer is None:
                continue  # deleted meanwhile
            message.producer_fences.add(
                producer_id=producer.producer_id, min_epoch=producer.producer_epoch
            )
        outbox.fences.clear()
        for segment_id in _taken(outbox.segments):
            record = self._state.segments.get(segment_id)
            if record is not None:
                message.assignments.append(segment_to_proto(self._state.assignment(record)))
        deletes = _taken(outbox.deletes)
        message.delete_segment_ids.extend(deletes)
        for key in _taken(outbox.partitions):
            partition = self._state.partitions.get(key)
            if partition is not None:
                message.partitions.append(self._progress(partition))
        return message

    def _add_nodes(self, message: pb.HeartbeatResponse, outbox: Outbox) -> None:
        self._queue_nodes()
        known = self._state.nodes.get(outbox.node_id)
        is_old = known is not None and known.protocol_version < NODE_CHANGES_VERSION
        if outbox.is_nodes_due or (is_old and outbox.nodes):
            outbox.is_nodes_due = False
            outbox.nodes.clear()
            outbox.nodes_version += 1
            message.nodes.extend(map(node_to_proto, self._nodes.values()))
        elif changed := _taken(outbox.nodes):
            outbox.nodes_version += 1
            there = [self._nodes[each] for each in changed if each in self._nodes]
            message.changed_nodes.extend(map(node_to_proto, there))
            message.gone_node_ids.extend(each for each in changed if each not in self._nodes)
        message.nodes_version = outbox.nodes_version

    def _queue_everything(self, outbox: Outbox) -> None:
        state, node_id = self._state, outbox.node_id
        mine = dict.fromkeys(state.segments_of_node.get(node_id, ()))
        # Also what others sealed without it while it was away: it may still believe to lead that.
        mine.update((id_, None) for id_, each in state.segments.items() if node_id in each.holders)
        mine.update(dict.fromkeys(outbox.held))
        for segment_id in mine:
            record = state.segments.get(segment_id)
            if record is not None and not is_prepared(record):
                outbox.segments[segment_id] = None
                outbox.partitions[record.partition_key] = None
        for segment_id in state.deleted_held:
            if node_id in state.deleted[segment_id].holders:
                outbox.deletes[segment_id] = None
        named = [each.name for each in state.producers.values() if each.is_known_to_nodes]
        outbox.fences = dict.fromkeys(named)

    def _progress(self, partition: PartitionRecord) -> pb.PartitionProgress:
        tail = self._state.tail(partition)
        nodes: list[NodeId] = []
        if tail is not None:
            followers = [each for each in tail.segment.replicas if each != tail.segment.leader]
            nodes = [tail.segment.leader, *followers]
        return pb.PartitionProgress(
            topic_id=partition.topic_id,
            partition=partition.partition,
            log_start_offset=partition.log_start_offset,
            tail_segment_id=partition.tail_segment_id,
            tail_replicas=nodes,
            tail_base_offset=partition.next_base_offset,
            topic=self._state.name_of(partition.topic_id),
            deleted=not self._state.is_live_topic(partition.topic_id),
        )


def _taken(queue: dict[K, None]) -> list[K]:
    """The next of a queue, which are in it no more."""
    found = list(islice(queue, ITEMS_PER_PUSH))
    for each in found:
        del queue[each]
    return found
