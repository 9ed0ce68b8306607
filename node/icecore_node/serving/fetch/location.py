"""Locates records by offset: in a replica here, in object storage, or nowhere on this node.

The answer is a value. Clients that look for a segment ask many nodes, so most of what is asked for
is not here. An exception would keep its frames alive, and the buffers that they hold.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from icecore.errors import InvalidRequestError, NotReplicaError
from icecore.model import Segment, SegmentId
from icecore.v1 import data_pb2
from icecore_node.identity.readers import PartitionKey
from icecore_node.registry.table import Nowhere, PartitionReplicas, ReplicaTable
from icecore_node.replica.life import Life
from icecore_node.replica.replica import Replica
from icecore_node.serving.remote_segments import RemoteSegments


@dataclass(frozen=True, slots=True)
class Local:
    """A replica here holds the records, or will."""

    held: PartitionReplicas
    replica: Replica


@dataclass(frozen=True, slots=True)
class Remote:
    """A published segment holds the records."""

    segment: Segment


Location: TypeAlias = Local | Remote | Nowhere


class Locator:
    """Loop only.

    Args:
        table: Replicas on this node.
        remote: Segments in object storage.
    """

    def __init__(self, table: ReplicaTable, remote: RemoteSegments) -> None:
        self._table = table
        self._remote = remote

    async def locate(
        self,
        entry: data_pb2.FetchPartition,
        result: data_pb2.FetchPartitionResult,
        watch: Callable[[PartitionKey], object],
    ) -> Location:
        """Look for the next offset of a result, and describe in the result what was found.

        Args:
            entry: The question.
            result: Its next offset is the asked one or, with a filter, a later one.
            watch: Called with a partition of which something is here, before it is looked at.

        Raises:
            InvalidRequestError: The offset is negative.
            OffsetOutOfRangeError: The partition has no such offset.
            UnknownTopicError: The topic is deleted.
            IcecoreError: The coordinator did not answer, and the segment was not known here.
        """
        if entry.offset < 0:
            raise InvalidRequestError(f"offset {entry.offset} is negative")
        found = self._local(entry, result, watch)
        return found if isinstance(found, Local) else await self.elsewhere(entry, result, found)

    async def elsewhere(
        self,
        entry: data_pb2.FetchPartition,
        result: data_pb2.FetchPartitionResult,
        nowhere: Nowhere,
    ) -> Remote | Nowhere:
        """As ``locate``, for what no replica here can answer."""
        named = (entry.topic_id, entry.topic, entry.partition, entry.segment_id)
        segment = await self._remote.at(*named, result.next_offset)
        return nowhere if segment is None else Remote(segment)

    def _local(
        self,
        entry: data_pb2.FetchPartition,
        result: data_pb2.FetchPartitionResult,
        watch: Callable[[PartitionKey], object],
    ) -> Local | Nowhere:
        held = self._table.look_for(entry.topic_id, entry.topic, entry.partition)
        if isinstance(held, Nowhere):
            return held
        watch(held.key)
        result.log_start_offset = held.log_start_offset
        replica = held.find(result.next_offset, SegmentId(entry.segment_id))
        if isinstance(replica, Nowhere):
            return replica
        _describe(replica, held, result)
        end = replica.high_watermark
        is_behind = result.next_offset >= end and entry.min_high_watermark > end
        if is_behind and replica.life is not Life.LED:
            return Nowhere(NotReplicaError(f"this replica knows only offsets below {end}"))
        return Local(held, replica)


def _describe(
    replica: Replica, held: PartitionReplicas, result: data_pb2.FetchPartitionResult
) -> None:
    result.segment_id = replica.segment_id
    result.epoch = replica.identity.epoch
    result.high_watermark = held.high_watermark
    if replica.sealed_end_offset is not None:
        result.segment_sealed = True
        result.sealed_end_offset = replica.sealed_end_offset
