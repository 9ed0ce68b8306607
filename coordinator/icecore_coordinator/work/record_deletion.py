"""Deletes records of partitions below offsets that an operator gives; their topic goes on.

Either everything that was asked for is right and happens, or nothing does. The log starts move
here; ``retention`` then lets the files of whole segments go, like those of expired ones.
"""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass

from icecore.errors import InvalidRequestError, OffsetOutOfRangeError, TopicRecreatedError
from icecore.model import Segment
from icecore.process.log import event
from icecore_coordinator.decisions.retention import below_start, move_log_start
from icecore_coordinator.state.cluster_state import ClusterState
from icecore_coordinator.state.left_out import behind_left_out
from icecore_coordinator.state.records import Change, PartitionKey
from icecore_coordinator.work.worker_ports import WorkerPorts

_log = logging.getLogger(__name__)

HEARTBEATS_WAITED = 4
"""A watermark that somebody has just seen is told here with one of the leader's next heartbeats."""


@dataclass(frozen=True, slots=True)
class Deleted:
    """The records that a deletion removes from one partition, or would remove in a dry run."""

    partition: int
    from_offset: int
    """Log start before the deletion."""
    log_start_offset: int
    segments: tuple[Segment, ...]
    """Segments whose files are deleted."""


class RecordDeletion:
    """Acts of operators, each on its own."""

    def __init__(self, ports: WorkerPorts) -> None:
        self._ledger = ports.ledger
        self._heard = ports.heard
        self._timing = ports.timing

    async def delete(
        self,
        topic: str,
        offsets: Mapping[int, int],
        *,
        topic_id: bytes = b"",
        is_dry_run: bool,
    ) -> list[Deleted]:
        """Move log starts, or say what that would do.

        Args:
            topic: Its name.
            offsets: By partition, the first offset to keep.
            topic_id: Its id; empty = whichever topic has the name now.
            is_dry_run: Only look.

        Returns:
            In the order of ``offsets``.

        Raises:
            UnknownTopicError: There is no such topic.
            TopicRecreatedError: Another topic has the name now.
            InvalidRequestError: It has no such partition, or an offset is negative.
            OffsetOutOfRangeError: An offset is above the high watermark.
        """
        for _ in range(HEARTBEATS_WAITED):
            try:
                self._changes(self._ledger.state, topic, topic_id, offsets)
                break
            except OffsetOutOfRangeError:
                await asyncio.sleep(self._timing.heartbeat_ms / 1000)
        found: list[Deleted] = []

        def decision(state: ClusterState) -> Change:
            changes = self._changes(state, topic, topic_id, offsets)
            found[:] = [_deleted(state, key, _start(state, key, offsets)) for key in changes]
            if is_dry_run:
                return Change()
            return sum(changes.values(), Change())

        await self._ledger.decide(decision)
        for each in () if is_dry_run else found:
            event(
                _log,
                logging.INFO,
                "log_start_moved",
                topic=topic,
                partition=each.partition,
                log_start_offset=each.log_start_offset,
                why="delete_records",
            )
        return found

    def _changes(
        self, state: ClusterState, topic: str, topic_id: bytes, offsets: Mapping[int, int]
    ) -> dict[PartitionKey, Change]:
        record = state.topic(topic)
        if topic_id not in (b"", record.topic_id):
            raise TopicRecreatedError(
                f"topic {topic} was deleted and made again: {topic_id[:16].hex()} was meant, "
                f"{record.topic_id.hex()} is there, and keeps its records"
            )
        changes: dict[PartitionKey, Change] = {}
        for number, offset in offsets.items():
            partition = state.partitions.get((record.topic_id, number))
            if partition is None:
                raise InvalidRequestError(f"{topic} has partitions 0 to {record.partitions - 1}")
            if offset < 0:
                raise InvalidRequestError(f"partition {number}: offset {offset} is negative")
            known = self._heard.high_watermark(partition.tail_segment_id) or 0
            key = partition.partition_key
            changes[key] = move_log_start(state, key, _start(state, key, offsets), known)
        return changes


def _start(state: ClusterState, key: PartitionKey, offsets: Mapping[int, int]) -> int:
    """Return the first offset to keep: no log starts in the middle of what was left out, since
    readers could not tell how many records they missed."""
    return behind_left_out(state.segments_in(key), offsets[key[1]])


def _deleted(state: ClusterState, key: PartitionKey, offset: int) -> Deleted:
    before = state.partitions[key].log_start_offset
    start = max(before, offset)
    gone = below_start(state, key, start)
    return Deleted(key[1], before, start, tuple(each.segment for each in gone))
