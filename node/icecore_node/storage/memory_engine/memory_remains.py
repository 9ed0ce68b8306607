"""Logs in the memory of a process, in their place or set aside, and their salvage."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from icecore.model import SegmentId
from icecore_node.storage.engine import FoundLog, KnownLog
from icecore_node.storage.memory_engine.memory_budget import MemoryBudget
from icecore_node.storage.memory_engine.memory_log import MemoryLog


@dataclass
class LogMemory:
    """Logs in their place, and those set aside."""

    budget: MemoryBudget
    logs: dict[SegmentId, MemoryLog] = field(default_factory=dict)
    aside: dict[SegmentId, list[MemoryLog]] = field(default_factory=dict)

    @property
    def used_bytes(self) -> int:
        """See ``HeldMemory.used_bytes``."""
        return self.budget.used_bytes

    @property
    def bytes_max(self) -> int:
        """See ``HeldMemory.bytes_max``."""
        return self.budget.bytes_max

    def sealed_bytes(self) -> int:
        """See ``HeldMemory.sealed_bytes``."""
        return sum(log.end[1] for log in list(self.logs.values()) if log.is_sealed)

    def copies(self, segment_id: SegmentId) -> Iterator[MemoryLog]:
        """All that is left of one log."""
        yield from self.aside.get(segment_id, ())
        if segment_id in self.logs:
            yield self.logs[segment_id]

    def set_aside(self, segment_id: SegmentId) -> bool:
        """Clear a log's place; whether what lay there may have been confirmed."""
        log = self.logs.pop(segment_id, None)
        if log is not None:
            self.aside.setdefault(segment_id, []).append(log)
        return log is not None and log.identity.base_offset >= 0

    def drop(self, segment_id: SegmentId) -> None:
        """Free all that is left of one log."""
        for log in self.copies(segment_id):
            self.budget.give_back(log.end[1], log.count)
        self.logs.pop(segment_id, None)
        self.aside.pop(segment_id, None)


class MemoryRemains:
    """``Remains`` in memory.

    Args:
        memory: Of this process.
        logs: Those in use.
        use: Judges what is in the place of a log, and uses it.
    """

    def __init__(
        self,
        memory: LogMemory,
        logs: Mapping[SegmentId, MemoryLog],
        use: Callable[[KnownLog], FoundLog],
    ) -> None:
        self._memory = memory
        self._logs = logs
        self._use = use

    def strays(self) -> list[SegmentId]:
        """See ``Remains.strays``."""
        return [segment_id for segment_id in self._memory.logs if segment_id not in self._logs]

    def provable(self, log: KnownLog) -> list[MemoryLog]:
        """See ``Remains.provable``."""
        return [copy.proven() for copy in self._memory.copies(log.identity.segment_id)]

    def put_back(self, log: KnownLog, found: MemoryLog) -> None:
        """See ``Remains.put_back``: its batches are held twice until the log is dropped."""
        self._memory.budget.take(found.end[1], found.count)
        self._memory.logs[log.identity.segment_id] = found

    def use(self, log: KnownLog, found: MemoryLog) -> FoundLog:
        """See ``Remains.use``."""
        return self._use(log)
