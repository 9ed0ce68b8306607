"""Which replicas a node holds: by segment, and by partition and offset.

The lowest room of the registry: it finds, and decides nothing. What clients call a topic leads to
its partitions, an offset to the replica that serves it.
"""

from collections.abc import Iterator

from icecore.errors import NotReplicaError, OffsetOutOfRangeError, UnknownTopicError
from icecore.model import NO_SEGMENT, NodeId, Segment, SegmentId
from icecore_node.identity.readers import PartitionKey, Readers
from icecore_node.registry.topic_names import TopicNames
from icecore_node.replica.life import Life, Removed
from icecore_node.replica.replica import Replica


class PartitionReplicas:
    """What this node holds of one partition, ordered by base offset."""

    def __init__(self, topic_id: bytes, partition: int) -> None:
        self.topic_id = topic_id
        self.partition = partition
        self.replicas: list[Replica] = []
        self.log_start_offset = 0
        self.tail_segment_id = NO_SEGMENT
        self.tail_replicas: tuple[NodeId, ...] = ()
        self.tail_base_offset = 0

    @property
    def key(self) -> PartitionKey:
        """By which readers wait for it."""
        return self.topic_id, self.partition

    def place(self, replica: Replica) -> None:
        """Add a replica whose base offset is known."""
        if replica not in self.replicas:
            self.replicas.append(replica)
            self.replicas.sort(key=lambda each: (each.base_offset, each.segment_id))

    def find(self, offset: int, segment_id: SegmentId = NO_SEGMENT) -> Replica:
        """The replica that serves ``offset``.

        Raises:
            OffsetOutOfRangeError: The offset lies outside the partition.
            NotReplicaError: Other nodes hold that part.
        """
        if offset < self.log_start_offset:
            self._out_of_range(offset, self._known_end())
        for replica in reversed(self.replicas):
            if segment_id not in (NO_SEGMENT, replica.segment_id):
                continue
            if replica.covers(offset):
                if replica.life is Life.LED and offset > replica.high_watermark:
                    self._out_of_range(offset, replica.high_watermark)
                if replica.life.is_idle and offset >= replica.high_watermark:
                    break  # it will never know more: others do
                return replica
        raise NotReplicaError(
            f"no readable replica of partition {self.partition} at offset {offset} on this node",
            tail_segment_id=self.tail_segment_id,
            tail_replicas=",".join(map(str, self.tail_replicas)),
        )

    def _known_end(self) -> int:
        """The highest watermark that is known here."""
        intact = (each.high_watermark for each in self.replicas if each.life.is_intact)
        return max(self.log_start_offset, self.tail_base_offset, *intact)

    def _out_of_range(self, offset: int, high_watermark: int) -> None:
        raise OffsetOutOfRangeError(
            f"offset {offset} is outside [{self.log_start_offset}, {high_watermark}]",
            log_start_offset=self.log_start_offset,
            high_watermark=high_watermark,
        )

    def note_start(self, log_start_offset: int) -> None:
        """Where the partition starts."""
        self.log_start_offset = max(self.log_start_offset, log_start_offset)

    def note_tail(
        self, segment_id: SegmentId, replicas: tuple[NodeId, ...], base_offset: int
    ) -> None:
        """Who holds the tail of the partition, for hints to clients."""
        if base_offset >= self.tail_base_offset:
            self.tail_segment_id = segment_id
            self.tail_replicas = replicas
            self.tail_base_offset = base_offset


class ReplicaTable:
    """All replicas of a node. Loop only."""

    def __init__(self, readers: Readers) -> None:
        self.names = TopicNames()
        self._readers = readers
        self._replicas: dict[SegmentId, Replica] = {}
        self._partitions: dict[PartitionKey, PartitionReplicas] = {}

    def __iter__(self) -> Iterator[Replica]:
        return iter(list(self._replicas.values()))

    def get(self, segment_id: SegmentId) -> Replica | None:
        """The replica of a segment, whatever it is."""
        return self._replicas.get(segment_id)

    def partition(self, topic_id: bytes, topic: str, partition: int) -> PartitionReplicas:
        """What we hold of a partition, by topic id or, when that is empty, by name; for clients.

        Raises UnknownTopicError when this node holds nothing of it, or the topic is deleted.
        """
        topic_id = self.names.id_for_client(topic_id, topic)
        found = self._partitions.get((topic_id, partition))
        if found is None:
            raise UnknownTopicError(
                f"topic {topic or topic_id.hex()!r} partition {partition} is not on this node"
            )
        return found

    def of(self, topic_id: bytes, partition: int) -> PartitionReplicas:
        """What we hold, or will hold, of a partition."""
        key = (topic_id, partition)
        found = self._partitions.get(key)
        if found is None:
            found = self._partitions[key] = PartitionReplicas(topic_id, partition)
        return found

    def add(self, replica: Replica) -> None:
        """A replica was created, confirmed, or found at start-up. One log has one owner."""
        known = self._replicas.setdefault(replica.segment_id, replica)
        assert known is replica, f"segment {replica.segment_id} is here already"
        if replica.base_offset >= 0:
            self.of(*replica.partition_key).place(replica)

    def retire(self, replica: Replica) -> None:
        """The replica is to be deleted: it plays no role and counts for nothing."""
        replica.move(Removed("the segment is deleted"))
        self._readers.wake(replica.partition_key)

    def remove(self, replica: Replica) -> None:
        """The replica's files are gone, or set aside."""
        replica.move(Removed("its files are gone"))
        if self._replicas.get(replica.segment_id) is replica:
            del self._replicas[replica.segment_id]
        found = self.of(*replica.partition_key)
        if replica in found.replicas:
            found.replicas.remove(replica)
        if not found.replicas:
            self._partitions.pop(found.key, None)

    def note_tail(self, record: Segment) -> None:
        """This segment is, or was, the tail of its partition."""
        found = self.of(record.topic_id, record.partition)
        found.note_start(record.log_start_offset)
        others = tuple(node for node in record.replicas if node != record.leader)
        found.note_tail(record.segment_id, (record.leader, *others), record.base_offset)

    def note_deleted(self, topic_id: bytes, partition: int, *, is_deleted: bool) -> None:
        """The topic is deleted, or is back: readers of a deleted one wait for nothing."""
        self.names.note_deleted(topic_id, is_deleted=is_deleted)
        if is_deleted:
            self._readers.wake((topic_id, partition))
