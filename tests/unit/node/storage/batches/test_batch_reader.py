"""Reads happen on a reader's thread, beside everything else that happens to a replica."""

from pathlib import Path

import pytest

from icecore.codec.batch import HEADER_LENGTH
from icecore.errors import NotReplicaError, StorageError
from icecore_node.storage.batches.batch_reader import BatchReader
from icecore_node.storage.control.control_store import ControlStore
from icecore_node.storage.engine import NewLog
from icecore_node.storage.segment_engine.segment_header import FILE_HEADER_LENGTH
from tests.conformance.log_builder import LogBuilder
from tests.conformance.store_harness import FAR, append, opened
from tests.support.memory_engine import Log, MemoryDisk, MemoryEngine
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


def test_a_log_that_grows_under_a_walk_is_not_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    log = LogBuilder(1)
    engine = MemoryEngine(MemoryDisk(), lambda _: None)
    engine.create([NewLog(log.identity)], lambda _: None)
    engine.append_group([log.request()])
    read = Log.pread

    def grow(kept: Log, length: int, position: int) -> bytes:
        data = read(kept, length, position)
        engine.append_group([log.request()])
        return data

    monkeypatch.setattr(Log, "pread", grow)
    assert engine.reader.headers(1, FAR) == log.headers()[:1]
    assert len(log.headers()) > 1


@pytest.mark.parametrize("is_cold", [False, True])
def test_bodies_of_sealed_logs_may_be_left_to_the_reader(tmp_path: Path, is_cold: bool) -> None:
    disk = Disk(tmp_path)
    log = opened(disk.store, 1)
    append(disk.store, log, 3, size=300)
    path = next(tmp_path.rglob("*.log"))
    whole = b"".join(log.batches)
    in_body = FILE_HEADER_LENGTH + len(log.batches[0]) + HEADER_LENGTH + 20

    def read(reader_checks: bool, offset: int = 0) -> bytes:
        return disk.store.reader.read(1, offset, 1 << 20, FAR, reader_checks)[0]

    assert read(True) == read(False) == whole
    wrong = flipped(path, in_body)
    with pytest.raises(StorageError, match="producer CRC"):
        read(True)  # it is not sealed
    flipped(path, in_body)
    disk.store.seal(1, log.tail.end_offset, log.tail.digest)
    if is_cold:
        disk.store.close()
        disk.open()
    assert flipped(path, in_body) == wrong
    data = read(True)
    assert (
        len(data) == len(whole)
        and [a == b for a, b in zip(data, whole, strict=True)].count(False) == 1
    )
    with pytest.raises(StorageError, match="producer CRC"):
        read(False)
    flipped(path, in_body)
    for at in range(len(log.batches[0]), len(log.batches[0]) + HEADER_LENGTH, 11):
        flipped(path, FILE_HEADER_LENGTH + at)
        with pytest.raises(StorageError):
            read(True, log.tails[1].end_offset)
        flipped(path, FILE_HEADER_LENGTH + at)
    assert read(True) == whole
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 1)
    with pytest.raises(StorageError):
        read(True, log.tails[2].end_offset)
    disk.store.close()


def flipped(path: Path, position: int) -> int:
    """Flip a bit of a file; the byte as it is then."""
    with path.open("r+b") as file:
        file.seek(position)
        byte = file.read(1)[0] ^ 4
        file.seek(position)
        file.write(bytes([byte]))
    return byte
