"""Seeded mistakes of the engines beside the one with files; see ``mistakes``."""

from collections.abc import Sequence

from icecore_node.storage.engine import FoundLog, KnownLog
from icecore_node.storage.memory_engine.memory_engine import MemoryEngine
from icecore_node.storage.memory_engine.memory_log import MemoryLog
from icecore_node.storage.rocksdb_engine.database_commit import DatabaseCommit, _Part
from tests.simulation.mistakes import Mistake, patch


def memory_comes_back_empty() -> Mistake:
    """R41: a log that went with its process is taken for one without batches."""
    found = MemoryEngine._found

    def wrong(self: MemoryEngine, known: KnownLog) -> FoundLog:
        logs = self._memory.logs
        logs.setdefault(
            known.identity.segment_id, MemoryLog(known.identity, known.start_timestamp_ms)
        )
        return found(self, known)

    return patch(MemoryEngine, "_found", wrong)


def database_not_synced() -> Mistake:
    """Principle "acked means durable": changes of the database are not synced."""

    def wrong(self: DatabaseCommit, written: Sequence[_Part]) -> None:
        for part in written:
            part.log.advance(part.marks, part.requests[-1].tail)

    return patch(DatabaseCommit, "_sync", wrong)
