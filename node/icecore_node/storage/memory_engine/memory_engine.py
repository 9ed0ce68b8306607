"""The engine ``memory``: active logs in memory, for topics that promise no more than replicas.

Nothing here waits for a disk, so the loop itself may append. What was appended lasts as long as the
process: a node that starts finds none of the logs that its records name, condemns them, and their
replicas are UNKNOWN like any other that was lost. Only a log that was never given a base comes back
as it was, for nobody can have put anything into it. A sealed log stays here until it is handed over
to the segment engine; before that it goes the same way.

What a process has is in ``memory_remains.py``: it is made with the process, and gone with it.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar, Final

from icecore.codec.batch import parse_header
from icecore.errors import IcecoreError, InvalidRequestError
from icecore.model import SegmentId
from icecore_node.storage.batches.batch_log import Place, Readable
from icecore_node.storage.batches.batch_reader import BatchReader
from icecore_node.storage.batches.log_table import LogTable
from icecore_node.storage.batches.no_index import NoIndex
from icecore_node.storage.batches.proven_logs import ProvenLogs
from icecore_node.storage.engine import (
    NO_TAIL,
    AppendRequest,
    Condemn,
    CreatedLog,
    FoundLog,
    KnownLog,
    LogEnd,
    LogTail,
    NewLog,
    SegmentIdentity,
)
from icecore_node.storage.memory_engine.memory_log import MemoryLog, length_of
from icecore_node.storage.memory_engine.memory_remains import LogMemory, MemoryRemains

LOST: Final = "kept in memory, and the process ended"


class MemoryEngine:
    """``Engine`` over memory.

    Args:
        memory: Of this process.
        condemn: Told of logs that are not here any more.
    """

    appends_block: ClassVar[bool] = False

    def __init__(self, memory: LogMemory, condemn: Condemn) -> None:
        self._memory = memory
        self._condemn = condemn
        self._logs = LogTable[MemoryLog]()
        self.reader = BatchReader(self._logs, MemoryShortcuts())
        self.salvage = ProvenLogs(MemoryRemains(memory, self._logs, self._found))
        self.index = NoIndex(self.reader.find)

    # --- start-up -----------------------------------------------------------------------------

    def start_up(
        self, logs: Sequence[KnownLog], untrusted: Sequence[SegmentIdentity]
    ) -> list[FoundLog]:
        """See ``Engine.start_up``."""
        found = {log.identity.segment_id: self._found(log) for log in logs}
        self._condemn({number: log.damage for number, log in found.items() if log.damage})
        return list(found.values())

    def _found(self, known: KnownLog) -> FoundLog:
        segment_id = known.identity.segment_id
        log = self._memory.logs.get(segment_id)
        if log is None:
            if known.identity.base_offset >= 0:
                return FoundLog(NO_TAIL, LOST, damage=LOST)
            log = self._memory.logs[segment_id] = MemoryLog(known.identity, 0)
        elif log.identity != known.identity and not log.count:  # its confirm did not end
            log.confirm(known.identity, known.start_timestamp_ms)
        log.is_sealed = known.sealed is not None
        self._logs[segment_id] = log
        tail = log.end[0]
        headers = [] if log.is_sealed else self.reader.headers(segment_id, tail.end_offset)
        return FoundLog(tail, "clean", headers=headers)

    # --- create, confirm, append --------------------------------------------------------------

    def create(
        self, logs: Sequence[NewLog], remember: Callable[[Sequence[CreatedLog]], None]
    ) -> dict[SegmentId, IcecoreError]:
        """See ``Engine.create``."""
        memory = self._memory
        made = {
            new.identity.segment_id: MemoryLog(new.identity, new.start_timestamp_ms) for new in logs
        }
        created = [CreatedLog(segment_id, memory.set_aside(segment_id)) for segment_id in made]
        memory.logs.update(made)
        try:
            remember(created)
        except IcecoreError:
            for segment_id in made:
                del memory.logs[segment_id]
            raise
        self._logs.update(made)
        return {}

    def confirm(
        self, identity: SegmentIdentity, start_timestamp_ms: int, remember: Callable[[], object]
    ) -> LogTail:
        """See ``Engine.confirm``."""
        log = self.reader.find(identity.segment_id)
        remember()
        log.confirm(identity, start_timestamp_ms)
        return log.end[0]

    def append_group(self, requests: Sequence[AppendRequest]) -> None:
        """See ``Engine.append_group``."""
        for request in requests:
            try:
                self._append(self._logs.appendable(request.segment_id), request)
            except IcecoreError as error:
                request.error = error

    def _append(self, log: MemoryLog, request: AppendRequest) -> None:
        due, marks = log.end[0].end_offset, request.marks
        if not marks or marks[0].base_offset != due:
            raise InvalidRequestError(
                f"segment {request.segment_id} ends at {due}, an append starts elsewhere"
            )
        try:
            self._memory.budget.take(
                length_of(marks), len(marks), is_bound=not request.ends_segment
            )
        except IcecoreError as error:
            log.failed = error
            raise
        log.append(request)

    # --- the end of a log ---------------------------------------------------------------------

    def truncate(self, segment_id: SegmentId, end_offset: int) -> LogTail:
        """See ``Engine.truncate``."""
        log = self.reader.find(segment_id)
        end = self.reader.cut_at(log, end_offset)
        before, count = log.end[1], log.count
        log.cut(end)
        self._memory.budget.give_back(before - end[1], count - log.count)
        return end[0]

    def seal(
        self,
        segment_id: SegmentId,
        end_offset: int,
        seal_digest: bytes,
        remember: Callable[[LogEnd], None],
    ) -> None:
        """See ``Engine.seal``: it is final; durable once it is handed over."""
        self._logs.seal(segment_id, end_offset, seal_digest, remember)

    # --- setting aside and dropping -----------------------------------------------------------

    def set_aside(self, identity: SegmentIdentity) -> None:
        """See ``Engine.set_aside``: kept as long as the process lives."""
        self._logs.pop(identity.segment_id, None)
        self._memory.set_aside(identity.segment_id)

    def drop(self, identities: Sequence[SegmentIdentity]) -> None:
        """See ``Engine.drop``."""
        for identity in identities:
            self._logs.pop(identity.segment_id, None)
            self._memory.drop(identity.segment_id)

    def close(self) -> None:
        """See ``Engine.close``."""
        self._logs.clear()


# --- shortcuts ------------------------------------------------------------------------------------

# Where a read of a log in memory begins: at the batch itself, for where each one is is known.


class MemoryShortcuts:
    """``Shortcuts`` of logs in memory; used by any number of threads."""

    def span(
        self, log: MemoryLog, offset: int, max_bytes: int, end_offset: int, end: Place
    ) -> tuple[int, int, int] | None:
        """See ``Shortcuts.span``."""
        tail, position = end
        return log.held.places.span(offset, max_bytes, end_offset, tail.end_offset, position)

    def tail_before(self, log: MemoryLog, end_offset: int) -> Place:
        """See ``Shortcuts.tail_before``."""
        for place in reversed(list(log.tails)):
            if place[0].end_offset <= end_offset:
                return place
        return log.base

    def batch_before(self, log: MemoryLog, file: Readable, offset: int) -> Place:
        """See ``Shortcuts.batch_before``."""
        held = log.held
        number = bisect_right(held.places.offsets, offset) - 1
        if number < 0:
            return log.base
        header = parse_header(held.batches[number])
        # Enough to follow the chain from there; what has to be added up from the base is not known.
        tail = replace(
            NO_TAIL, end_offset=header.base_offset, last_header_crc32c=header.prev_header_crc32c
        )
        return tail, held.places.positions[number]

    def offset_before(self, log: MemoryLog, timestamp_ms: int) -> int:
        """See ``Shortcuts.offset_before``: of the very batch, if there is one."""
        held = log.held
        number = bisect_left(held.times_ms, timestamp_ms)
        offsets = held.places.offsets
        return offsets[number] if number < len(offsets) else log.identity.base_offset
