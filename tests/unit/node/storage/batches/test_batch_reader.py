"""Reads happen on a reader's thread, beside everything else that happens to a replica."""

from pathlib import Path

import pytest

from icecore.errors import NotReplicaError
from icecore_node.storage.batches.batch_log import Place
from icecore_node.storage.batches.batch_reader import BatchReader
from icecore_node.storage.batches.log_table import LogTable
from icecore_node.storage.control.control_store import ControlStore
from icecore_node.storage.engine import NewLog
from icecore_node.storage.memory_engine.memory_budget import MemoryBudget
from icecore_node.storage.memory_engine.memory_engine import MemoryEngine
from icecore_node.storage.memory_engine.memory_log import HeldBatches, MemoryLog
from icecore_node.storage.memory_engine.memory_remains import LogMemory
from tests.conformance.log_builder import LogBuilder
from tests.conformance.store_harness import FAR, append, opened
from tests.unit.node.storage.segment_engine.test_start_up_crash_points import Disk


def test_a_segment_may_be_deleted_while_its_digest_is_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Disk(tmp_path).store
    log = opened(store, 1)
    append(store, log, 3)
    store.seal(1, log.tail.end_offset, log.tail.digest)
    compute = BatchReader.full_digest

    def slowly(*arguments: object) -> bytes:
        digest = compute(*arguments)  # type: ignore[arg-type]
        store.removal.delete([1], 0)
        return digest

    monkeypatch.setattr(BatchReader, "full_digest", slowly)
    with pytest.raises(NotReplicaError):
        store.reader.full_digest(1)
    store.close()


def test_a_stored_digest_in_an_earlier_format_is_computed_again(tmp_path: Path) -> None:
    disk = Disk(tmp_path)
    log = opened(disk.store, 1)
    append(disk.store, log, 3)
    disk.store.seal(1, log.tail.end_offset, log.tail.digest)
    full = disk.store.reader.full_digest(1)
    disk.store.close()
    ControlStore(disk.control).change_row(1, full_digest=bytes(32))

    [found] = disk.open()
    assert found.intact and found.full_digest == b""  # so that the node computes it again
    assert disk.store.reader.full_digest(1) == full
    assert ControlStore(disk.control).rows()[0].full_digest == full
    disk.store.close()


class NoShortcuts:
    """Starting points of a walk when nothing but the base is known."""

    def span(self, *_: object) -> None:
        return None

    def tail_before(self, log: MemoryLog, _: int) -> Place:
        return log.base

    def batch_before(self, log: MemoryLog, *_: object) -> Place:
        return log.base

    def offset_before(self, log: MemoryLog, _: int) -> int:
        return log.identity.base_offset


def in_memory(log: LogBuilder) -> tuple[MemoryEngine, BatchReader[MemoryLog]]:
    """An engine with an empty log, and a reader that must walk."""
    memory = LogMemory(MemoryBudget(64 << 20))
    engine = MemoryEngine(memory, lambda _: None)
    engine.create([NewLog(log.identity)], lambda _: None)
    return engine, BatchReader(LogTable(memory.logs), NoShortcuts())


def test_a_log_that_grows_under_a_walk_is_not_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    log = LogBuilder(1)
    engine, reader = in_memory(log)
    engine.append_group([log.request()])
    read = HeldBatches.pread

    def grow(kept: HeldBatches, length: int, position: int) -> bytes:
        data = read(kept, length, position)
        engine.append_group([log.request()])
        return data

    monkeypatch.setattr(HeldBatches, "pread", grow)
    assert reader.headers(1, FAR) == log.headers()[:1]
    assert len(log.headers()) > 1


@pytest.mark.parametrize(("size", "batches", "most"), [(112, 2000, 12), (200_000, 10, 13)])
def test_a_walk_reads_small_batches_by_the_chunk_and_headers_of_large_ones(
    monkeypatch: pytest.MonkeyPatch, size: int, batches: int, most: int
) -> None:
    log = LogBuilder(1)
    engine, reader = in_memory(log)
    engine.append_group([log.request(batches, size=size)])
    read, lengths = HeldBatches.pread, []

    def counted(kept: HeldBatches, length: int, position: int) -> bytes:
        lengths.append(length)
        return read(kept, length, position)

    monkeypatch.setattr(HeldBatches, "pread", counted)
    assert reader.read(1, batches - 1, 1, FAR) == (log.batches[-1], batches)
    assert len(lengths) <= most
    assert sum(lengths) < len(log.batches[0]) * batches + (3 << 16)
