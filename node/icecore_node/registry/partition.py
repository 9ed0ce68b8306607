"""What a node holds of one partition, by offset: which of its replicas serves a reader.

Readers that wait for new data register here, and are woken when a watermark moves or a replica
begins or ends to serve.
"""

from collections.abc import Callable

from icecore.errors import NotReplicaError, OffsetOutOfRangeError
from icecore_node.replica.replica import Replica
from icecore_node.roles.leader import Leader


class PartitionReplicas:
    """What this node holds of one partition, ordered by base offset."""

    def __init__(self, topic_id: bytes, partition: int) -> None:
        self.topic_id = topic_id
        self.partition = partition
        self.replicas: list[Replica] = []
        self.leader: Leader | None = None
        self.log_start_offset = 0
        self.tail_segment_id = 0
        self.tail_replicas: tuple[int, ...] = ()
        self.tail_base_offset = 0
        self.watchers: dict[object, Callable[[], None]] = {}

    def place(self, replica: Replica) -> None:
        """Add a replica whose base offset is known."""
        if replica not in self.replicas:
            self.replicas.append(replica)
            self.replicas.sort(key=lambda each: (each.base_offset, each.segment_id))

    def find(self, offset: int, segment_id: int = 0) -> Replica:
        """The replica that serves ``offset``.

        Raises:
            OffsetOutOfRangeError: The offset lies outside the partition.
            NotReplicaError: Other nodes hold that part.
        """
        for replica in reversed(self.replicas):
            if segment_id not in (0, replica.segment_id):
                continue
            if replica.covers(offset):
                if replica.leader is not None and offset > replica.high_watermark:
                    self._out_of_range(offset, replica.high_watermark)
                if replica.idle and offset >= replica.high_watermark:
                    break  # it will never know more: others do
                return replica
        if offset < self.log_start_offset:
            self._out_of_range(offset, max(self.log_start_offset, self.tail_base_offset))
        raise NotReplicaError(
            f"no readable replica of partition {self.partition} at offset {offset} on this node",
            tail_segment_id=self.tail_segment_id,
            tail_replicas=",".join(map(str, self.tail_replicas)),
        )

    def _out_of_range(self, offset: int, high_watermark: int) -> None:
        raise OffsetOutOfRangeError(
            f"offset {offset} is outside [{self.log_start_offset}, {high_watermark}]",
            log_start_offset=self.log_start_offset,
            high_watermark=high_watermark,
        )

    def wake(self) -> None:
        """Something readers may wait for happened."""
        for wake in list(self.watchers.values()):
            wake()
