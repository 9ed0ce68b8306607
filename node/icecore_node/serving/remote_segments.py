"""Finds the published segment that a request needs and that no intact replica here can answer for.

A client that was told to come here names the segment. A client that asks for a sealed replica
damaged here need not know that: the copy in object storage is as good.
"""

import contextlib
import math
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from icecore.errors import IcecoreError, NotReplicaError, OffsetOutOfRangeError
from icecore.model import NO_SEGMENT, Segment, SegmentId
from icecore.rpc.ports import Clock
from icecore_node.registry.table import ReplicaTable
from icecore_node.replica.life import Life
from icecore_node.serving.query.log_search import LogView

if TYPE_CHECKING:  # for nodes with an object store
    from icecore_node.remote.read.reading import RemoteReading
    from icecore_node.remote.read.remote_log import RemoteLog


K = TypeVar("K")
V = TypeVar("V")

_KNOWN_MAX: Final = 1_024
_NOTHING_KEEP_MS: Final = 1_000.0

Find: TypeAlias = Callable[[str, int, int], Awaitable[Segment | None]]


class RemoteSegments:
    """Loop only.

    Args:
        reading: Reads object storage; None = this node has no object store.
        table: Replicas on this node.
        clock: For how long an answer that there is nothing holds.
        find: Asks the coordinator which segment holds an offset of a topic's partition.
    """

    def __init__(
        self, reading: "RemoteReading | None", table: ReplicaTable, clock: Clock, find: Find
    ) -> None:
        self._reading = reading
        self._table = table
        self._clock = clock
        self._find = find
        self._found: OrderedDict[tuple[str, int], Segment] = OrderedDict()
        """The last segments that were found in object storage alone, by partition."""
        self._nothing_ms: OrderedDict[tuple[str, int], float] = OrderedDict()
        """When nothing was found in a partition."""

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
        if named == NO_SEGMENT and self._is_history(topic_id, topic, partition, offset):
            named = await self._history_at(topic_id, topic, partition, offset)
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

    def _is_history(self, topic_id: bytes, topic: str, partition: int, offset: int) -> bool:
        """Return whether an offset is before all that this node has of a partition."""
        held = self._table.find_partition(topic_id, topic, partition)
        return held is None or all(each.base_offset > offset for each in held.replicas)

    async def _history_at(
        self, topic_id: bytes, topic: str, partition: int, offset: int
    ) -> SegmentId:
        """Return the segment of an offset that no node has any more: a client need not know the
        ids of segments. What nodes have is theirs to answer."""
        key = (self._table.names.name_of(topic_id) or topic, partition)
        known = self._found.get(key)
        if known is not None and known.base_offset <= offset < known.end_offset:
            return known.segment_id
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._nothing_ms.get(key, -math.inf) < _NOTHING_KEEP_MS:
            return NO_SEGMENT
        found: Segment | None = None
        with contextlib.suppress(IcecoreError):
            found = await self._find(*key, offset)
        if found is None or found.replicas or not found.is_tiered:
            _keep(self._nothing_ms, key, self._clock.monotonic_ms())
            return NO_SEGMENT
        _keep(self._found, key, found)
        return found.segment_id

    def _damaged_at(self, topic_id: bytes, topic: str, partition: int, offset: int) -> int:
        held = self._table.find_partition(topic_id, topic, partition)
        for replica in held.replicas if held is not None else ():
            end = replica.sealed_end_offset
            is_damaged = replica.life is Life.UNKNOWN and end is not None
            if is_damaged and replica.base_offset <= offset < (end or 0):
                return replica.segment_id
        return NO_SEGMENT


def _keep(known: OrderedDict[K, V], key: K, value: V) -> None:
    known[key] = value
    known.move_to_end(key)
    if len(known) > _KNOWN_MAX:
        known.popitem(last=False)


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
