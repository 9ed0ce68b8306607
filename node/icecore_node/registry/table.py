"""The replicas that a node holds, found by segment, or by partition and offset.

The lowest room of the registry: it finds, and decides nothing. What clients call a topic leads to
its partitions, an offset to the replica that serves it. A partition may have very many sealed ones,
so offsets and times are found by halving.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

from icecore.errors import IcecoreError, NotReplicaError, OffsetOutOfRangeError, UnknownTopicError
from icecore.model import NO_SEGMENT, NodeId, Segment, SegmentId
from icecore_node.identity.readers import PartitionKey, Readers
from icecore_node.registry.topic_mirror import TopicMirror
from icecore_node.registry.topic_names import TopicNames
from icecore_node.replica.life import Life, Removed
from icecore_node.replica.replica import Replica


@dataclass(frozen=True, slots=True)
class Nowhere:
    """Nothing of what is looked for is on this node. A value, for it may be somewhere else.

    Attributes:
        reason: What a client is told when it is nowhere else, either.
    """

    reason: IcecoreError


class PartitionReplicas:
    """The replicas that this node holds of one partition, ordered by base offset."""

    def __init__(self, topic_id: bytes, partition: int) -> None:
        self.topic_id = topic_id
        self.partition = partition
        self.replicas: list[Replica] = []
        """Replicas by base offset, then id; only ``place`` and ``displace`` change it."""
        self._places: list[tuple[int, SegmentId]] = []
        """(base offset, segment id) of each replica, in the same order."""
        self._placed: dict[SegmentId, tuple[int, SegmentId]] = {}
        self.log_start_offset = 0
        self.tail_segment_id = NO_SEGMENT
        self.tail_replicas: tuple[NodeId, ...] = ()
        self.tail_base_offset = 0

    @property
    def key(self) -> PartitionKey:
        """Key under which readers wait for this partition."""
        return self.topic_id, self.partition

    def place(self, replica: Replica) -> None:
        """Add a replica whose base offset is known."""
        if replica.segment_id in self._placed:
            return
        place = self._placed[replica.segment_id] = (replica.base_offset, replica.segment_id)
        at = bisect_left(self._places, place)
        self._places.insert(at, place)
        self.replicas.insert(at, replica)

    def displace(self, replica: Replica) -> None:
        """Take a replica out, if it is in."""
        place = self._placed.get(replica.segment_id)
        if place is None or self.replicas[at := bisect_left(self._places, place)] is not replica:
            return
        del self._placed[replica.segment_id], self._places[at], self.replicas[at]

    def find(self, offset: int, segment_id: SegmentId = NO_SEGMENT) -> Replica | Nowhere:
        """The replica that serves ``offset``; nowhere when other nodes hold that part.

        Raises:
            OffsetOutOfRangeError: The offset lies outside the partition.
        """
        if offset < self.log_start_offset:
            end_offset = max(self.log_start_offset, self.tail_base_offset, self.high_watermark)
            self._out_of_range(offset, end_offset)
        for replica in self._up_to(offset) if segment_id == NO_SEGMENT else self.only(segment_id):
            if replica.covers(offset):
                if replica.life is Life.LED and offset > replica.high_watermark:
                    self._out_of_range(offset, replica.high_watermark)
                if replica.life.is_idle and offset >= replica.high_watermark:
                    break  # it will never know more: others do
                return replica
            if _is_final(replica):
                break  # it ends at or below the offset, and so does all before it
        reason = NotReplicaError(
            f"no readable replica of partition {self.partition} at offset {offset} on this node",
            tail_segment_id=self.tail_segment_id,
            tail_replicas=",".join(map(str, self.tail_replicas)),
        )
        return Nowhere(reason)

    def _up_to(self, offset: int) -> Iterator[Replica]:
        """Replicas that begin at the offset or before, the newest first."""
        at = bisect_left(self._places, (offset + 1, NO_SEGMENT))
        while at > 0:
            at -= 1
            yield self.replicas[at]

    def only(self, segment_id: SegmentId) -> list[Replica]:
        """The replica of this segment, if it is here."""
        place = self._placed.get(segment_id)
        return [] if place is None else [self.replicas[bisect_left(self._places, place)]]

    @property
    def high_watermark(self) -> int:
        """The highest one that an intact replica knows; 0 when there is none."""
        highest = 0
        for replica in reversed(self.replicas):
            if replica.life.is_intact:
                highest = max(highest, replica.high_watermark)
                if replica.sealed:
                    break  # those before it end where it begins, or earlier
        return highest

    def since(self, timestamp_ms: int) -> list[Replica]:
        """Those that may hold a batch appended then or later.

        Append times never go back within a partition (R51): what was sealed before one that ends
        earlier holds none, either.
        """
        low, high = 0, len(self.replicas)
        while low < high:
            at = (low + high) // 2
            while at >= low and not _is_final(self.replicas[at]):
                at -= 1
            if at < low:
                break  # no time is known of this half
            if self.replicas[at].log.tail.max_append_timestamp_ms < timestamp_ms:
                low = at + 1
            else:
                high = at
        return self.replicas[low:]

    def _out_of_range(self, offset: int, high_watermark: int) -> None:
        raise OffsetOutOfRangeError(
            f"offset {offset} is outside [{self.log_start_offset}, {high_watermark}]",
            log_start_offset=self.log_start_offset,
            high_watermark=high_watermark,
        )

    def note_start(self, log_start_offset: int) -> None:
        """Take in the partition's start; it never goes back."""
        self.log_start_offset = max(self.log_start_offset, log_start_offset)

    def note_tail(
        self, segment_id: SegmentId, replicas: tuple[NodeId, ...], base_offset: int
    ) -> None:
        """Take in the segment and the nodes of the partition's tail, for hints to clients."""
        if base_offset >= self.tail_base_offset:
            self.tail_segment_id = segment_id
            self.tail_replicas = replicas
            self.tail_base_offset = base_offset


class ReplicaTable:
    """All replicas of a node. Loop only.

    Args:
        readers: Readers that wait for partitions.
        mirror: All topics of the cluster; None = an empty mirror.
    """

    def __init__(self, readers: Readers, mirror: TopicMirror | None = None) -> None:
        self.names = TopicNames()
        self._mirror = mirror or TopicMirror()
        self._readers = readers
        self._replicas: dict[SegmentId, Replica] = {}
        self._partitions: dict[PartitionKey, PartitionReplicas] = {}

    def __iter__(self) -> Iterator[Replica]:
        return iter(list(self._replicas.values()))

    def get(self, segment_id: SegmentId) -> Replica | None:
        """Return the replica of a segment, in whatever state; None without one."""
        return self._replicas.get(segment_id)

    def partition(self, topic_id: bytes, topic: str, partition: int) -> PartitionReplicas:
        """Return the replicas held here of a partition, for clients. It is found by topic id or,
        when that is empty, by name.

        Raises:
            NotReplicaError: Only other nodes hold replicas of it.
            UnknownTopicError: This node has heard of no such partition, or the topic is deleted.
        """
        found = self.look_for(topic_id, topic, partition)
        if isinstance(found, Nowhere):
            raise found.reason.again()
        return found

    def look_for(self, topic_id: bytes, topic: str, partition: int) -> PartitionReplicas | Nowhere:
        """As ``partition``, without an error where no replica of it is here.

        Raises:
            UnknownTopicError: The topic is deleted.
        """
        found = self.find_partition(topic_id, topic, partition)
        if found is not None:
            self._readers.on_read(found.key)
            return found
        what = f"partition {partition} of topic {topic or topic_id.hex()!r}"
        if holders := self.holders(topic_id, topic, partition):
            reason: IcecoreError = NotReplicaError(
                f"{what} is on other nodes, and not on this one",
                tail_replicas=",".join(map(str, holders)),
            )
        else:
            reason = UnknownTopicError(f"this node has heard of no {what}", topic=topic)
        return Nowhere(reason)

    def holders(self, topic_id: bytes, topic: str, partition: int) -> tuple[NodeId, ...]:
        """Return the nodes that hold the tail of a partition, its leader first; empty when the
        coordinator reported none."""
        found = self._mirror.partition(topic_id, topic, partition)
        if found is None:
            return ()
        leader = [found.leader] if found.leader else []
        return tuple(map(NodeId, dict.fromkeys([*leader, *found.replicas])))

    def find_partition(
        self, topic_id: bytes, topic: str, partition: int
    ) -> PartitionReplicas | None:
        """Return the replicas held here of a partition; None when there are none."""
        return self._partitions.get((self.names.id_for_client(topic_id, topic), partition))

    def partitions_of(self, topic_id: bytes) -> list[PartitionReplicas]:
        """Return the partitions of a topic of which replicas are here, by number."""
        found = [each for key, each in self._partitions.items() if key[0] == topic_id]
        return sorted(found, key=lambda each: each.partition)

    def of(self, topic_id: bytes, partition: int) -> PartitionReplicas:
        """Return the replicas held here of a partition; an empty entry is made when there are none
        yet."""
        key = (topic_id, partition)
        found = self._partitions.get(key)
        if found is None:
            found = self._partitions[key] = PartitionReplicas(topic_id, partition)
        return found

    def add(self, replica: Replica) -> None:
        """A replica was created, confirmed, or found at start-up. One log has one owner."""
        known = self._replicas.setdefault(replica.segment_id, replica)
        assert known is replica, f"segment {replica.segment_id} is here already"
        replica.log.note_change()
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
        found.displace(replica)
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


def _is_final(replica: Replica) -> bool:
    """Return whether the replica's end and its times are final."""
    return replica.sealed and replica.life.is_intact
