"""Finds the published segment that a request needs and that no intact replica here can answer for.

A client that was told to come here names the segment. A client that asks for a sealed replica
damaged here need not know that: the copy in object storage is as good.
"""

from typing import TYPE_CHECKING

from icecore.errors import NotReplicaError, OffsetOutOfRangeError
from icecore.model import NO_SEGMENT, Segment, SegmentId
from icecore_node.registry.table import ReplicaTable
from icecore_node.replica.life import Life
from icecore_node.serving.query.log_search import LogView

if TYPE_CHECKING:  # for nodes with an object store
    from icecore_node.remote.read.reading import RemoteReading
    from icecore_node.remote.read.remote_log import RemoteLog


class RemoteSegments:
    """Loop only.

    Args:
        reading: Reads object storage; None = this node has no object store.
        table: Replicas on this node.
    """

    def __init__(self, reading: "RemoteReading | None", table: ReplicaTable) -> None:
        self._reading = reading
        self._table = table

    @property
    def reading(self) -> "RemoteReading":
        """Only once a segment was found."""
        assert self._reading is not None, "there is no object store"
        return self._reading

    def is_held(self, segment_id: int) -> bool:
        """Return whether an intact replica of the segment is here."""
        replica = self._table.get(SegmentId(segment_id))
        return replica is not None and replica.life.is_intact

    async def named(
        self, topic_id: bytes, topic: str, partition: int, segment_id: int
    ) -> Segment | None:
        """The record of a segment that lies in object storage; None when it does not, or when it is
        another partition's.

        Raises:
            UnknownTopicError: The topic is deleted.
            IcecoreError: The coordinator did not answer, and the segment was not known here.
        """
        topic_id = self._table.names.id_for_client(topic_id, topic)
        if self._reading is None or segment_id == NO_SEGMENT:
            return None
        try:
            found = await self._reading.describe(SegmentId(segment_id))
        except NotReplicaError:
            return None
        is_meant = found.topic_id == topic_id if topic_id else found.topic == topic
        return found if is_meant and found.partition == partition else None

    async def at(
        self, topic_id: bytes, topic: str, partition: int, segment_id: int, offset: int
    ) -> Segment | None:
        """Return the record of the segment in object storage that holds an offset; None when there
        is none.

        Raises:
            OffsetOutOfRangeError: The partition begins after it by now.
        """
        if self._reading is None:
            return None
        named = segment_id or self._damaged_at(topic_id, topic, partition, offset)
        found = await self.named(topic_id, topic, partition, named)
        if found is None or not found.base_offset <= offset < found.end_offset:
            return None
        if offset < found.log_start_offset:
            raise OffsetOutOfRangeError(
                f"offset {offset} is outside [{found.log_start_offset}, ...",
                log_start_offset=found.log_start_offset,
                high_watermark=max(found.log_start_offset, found.end_offset),
            )
        return found

    def _damaged_at(self, topic_id: bytes, topic: str, partition: int, offset: int) -> int:
        held = self._table.find_partition(topic_id, topic, partition)
        for replica in held.replicas if held is not None else ():
            end = replica.sealed_end_offset
            is_damaged = replica.life is Life.UNKNOWN and end is not None
            if is_damaged and replica.base_offset <= offset < (end or 0):
                return replica.segment_id
        return NO_SEGMENT


def view_of_remote(
    log: "RemoteLog", segment: Segment, quiet: tuple[tuple[int, int], ...]
) -> LogView:
    """Return a segment in object storage as searches see it: all of it is visible."""
    return LogView(
        log,
        log,
        segment.segment_id,
        segment.end_offset,
        frozenset(segment.settings.indexed_headers),
        quiet,
        log.floor,
    )
