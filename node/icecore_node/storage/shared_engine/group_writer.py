"""Group commit into shared files: what queued up of all logs of a lane becomes one write, one sync.

The rules are those of ``segment_engine/group_commit.py``: errors of one log stay with it, a failed
sync condemns all whose bytes were on their way and ends the process (R53), and ``log.end``, which
readers and acks go by, moves after the sync. What fails for lack of room fails all of the group.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from icecore.errors import IcecoreError, InvalidRequestError
from icecore.model import SegmentId
from icecore_node.ports import DiskFailedError
from icecore_node.storage.engine import AppendRequest
from icecore_node.storage.shared_engine.compaction import Compaction, block_of
from icecore_node.storage.shared_engine.frames import APPENDED, Entry
from icecore_node.storage.shared_engine.lane import Block, Lane
from icecore_node.storage.shared_engine.shared_files import SharedFile, SharedFiles
from icecore_node.storage.shared_engine.shared_log import SharedLog, place_of


@dataclass(slots=True)
class _Part:
    """The appends to one log in one group."""

    log: SharedLog
    due: int
    """The offset with which the next request must begin."""
    requests: list[AppendRequest] = field(default_factory=list)
    length: int = 0

    def entry(self) -> Entry:
        """Return the entry of this log in the group's frame."""
        identity, tail = self.log.identity, self.requests[-1].tail
        return Entry(
            identity.segment_id,
            identity.generation,
            APPENDED,
            self.log.end[0].end_offset,
            tail.end_offset,
            self.length,
            tail.last_header_crc32c,
            tail.max_known_high_watermark,
        )

    def fail(self, error: IcecoreError) -> None:
        """Nothing of it is durable; nothing follows it until the log is cut back."""
        self.log.failed = error
        for request in self.requests:
            request.error = error


class GroupWriter:
    """Writes groups for one data folder.

    Args:
        lanes: One for each worker.
        files: Theirs.
        logs: Those in use; the engine's, and only looked at.
        find: The log of a segment that may be appended to; raises an IcecoreError otherwise.
        compaction: Has a little more to write with a group.
    """

    def __init__(
        self,
        lanes: Sequence[Lane],
        files: SharedFiles,
        logs: Mapping[SegmentId, SharedLog],
        find: Callable[[SegmentId], SharedLog],
        compaction: Compaction,
    ) -> None:
        self._lanes = lanes
        self._files = files
        self._logs = logs
        self._find = find
        self._compaction = compaction

    def append(self, requests: Sequence[AppendRequest]) -> None:
        """See ``Engine.append_group``."""
        parts: dict[SegmentId, _Part] = {}
        for request in requests:
            try:
                self._add(parts, request)
            except IcecoreError as error:
                request.error = error
        by_lane: dict[int, list[_Part]] = {}
        for part in parts.values():
            if part.requests:
                by_lane.setdefault(part.log.lane, []).append(part)
        for lane, group in by_lane.items():
            self._write(lane, group)

    def _add(self, parts: dict[SegmentId, _Part], request: AppendRequest) -> None:
        segment_id, marks = request.segment_id, request.marks
        part = parts.get(segment_id)
        if part is None:
            log = self._find(segment_id)
            part = parts[segment_id] = _Part(log, log.end[0].end_offset)
        if not marks or marks[0].base_offset != part.due:
            first = marks[0].base_offset if marks else -1
            raise InvalidRequestError(
                f"segment {segment_id} ends at {part.due}, an append starts at {first}"
            )
        part.requests.append(request)
        part.due = request.tail.end_offset
        for mark in marks:
            part.length += mark.length_bytes

    def _write(self, lane: int, parts: Sequence[_Part]) -> None:
        block = Block()
        for part in parts:
            block.entries.append(part.entry())
            for request in part.requests:
                block.buffers += request.buffers
        copies = self._compaction.copies(lane)
        blocks = [block, *block_of(copies)]

        def done(file: SharedFile, starts: Sequence[int]) -> None:
            self._advance(file, starts[0], parts)
            self._compaction.copied(copies, file, starts[-1])

        try:
            self._lanes[lane].commit(blocks, [part.log.identity.segment_id for part in parts], done)
        except DiskFailedError:
            raise
        except IcecoreError as error:
            for part in parts:
                part.fail(error)

    def _advance(self, file: SharedFile, position: int, parts: Sequence[_Part]) -> None:
        """Move the ends of all logs over what is durable now."""
        lengths: dict[SegmentId, int] = {}
        for part in parts:
            log, segment_id = part.log, part.log.identity.segment_id
            if self._logs.get(segment_id) is log:  # else it was dropped meanwhile
                lengths[segment_id] = part.length
            place = place_of(file.number, position)
            log.advance(log.end[0].end_offset, place, part.length, part.requests[-1].tail)
            position += part.length
        self._files.count(file, lengths)
