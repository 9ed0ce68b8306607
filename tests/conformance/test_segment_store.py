"""The segment engine on real files: the common suite, syncfs, and a disk that fills up."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from icecore.errors import OutOfSpaceError
from icecore_node.storage.data_folder import DataFolder
from icecore_node.storage.engines import make_store
from icecore_node.storage.files.file_system import SyncFs
from icecore_node.storage.port import FoundReplica
from icecore_node.storage.segment_engine.segment_header import FILE_HEADER_LENGTH
from icecore_node.storage.segment_engine.segment_log import LogSettings
from icecore_node.storage.segment_engine.segment_names import file_name
from tests.conformance.log_builder import CLUSTER, LogBuilder, identity
from tests.conformance.segment_store_suite import ReplicaStoreConformance
from tests.conformance.store_harness import FAR, append, opened, read_all, segment_engine

SMALL = LogSettings(
    group_bytes_max=32 << 10,
    allocation_step_bytes=64 << 10,
    segment_bytes=300 << 10,
    records_per_point=10,
    bytes_per_point=4 << 10,
    sync_all_files_min=3,
    open_files_max=2,
    recycle_bytes_max=400 << 10,
    recycle_bytes_min=1 << 10,
)


class DiskHarness:
    """A store over a real data folder."""

    def __init__(self, path: Path, *, syncfs: SyncFs = "auto") -> None:
        self.path = path
        self._syncfs: SyncFs = syncfs
        self.settings = SMALL
        self._open()

    def _open(self) -> list[FoundReplica]:
        self.folder = DataFolder.open(self.path, 1, CLUSTER, syncfs=self._syncfs)
        folder = self.folder
        self.store = make_store(folder.files, folder.index, folder.control, CLUSTER, self.settings)
        return self.store.start_up()

    def kill(self) -> list[FoundReplica]:
        open_files = segment_engine(self.store)._open_files
        open_files.make_room(len(open_files))  # a process that dies keeps no deleted file alive
        self.folder.close()
        return self._open()

    def stop(self) -> list[FoundReplica]:
        self.store.close()
        return self.kill()

    def damage(self, segment_id: int, position: int) -> None:
        path = self.path / file_name(identity(segment_id))
        data = bytearray(path.read_bytes())
        data[FILE_HEADER_LENGTH + position] ^= 0x10
        path.write_bytes(data)


class TestReplicaStore(ReplicaStoreConformance):
    """icecore_node.storage.replica_store over node.storage.segment_engine."""

    @pytest.fixture
    def harness(self, tmp_path: Path) -> Iterator[DiskHarness]:
        harness = DiskHarness(tmp_path / "data")
        yield harness
        harness.folder.close()

    def test_sealing_returns_preallocated_space(self, harness: DiskHarness) -> None:
        log = opened(harness.store, 1)
        append(harness.store, log, 2)
        path = harness.path / file_name(log.identity)
        assert path.stat().st_size == 64 << 10
        harness.store.seal(1, 2, log.tail.digest)
        assert path.stat().st_size == FILE_HEADER_LENGTH + sum(map(len, log.batches))

    def test_a_deleted_file_goes_to_the_pool_unless_somebody_reads_it(
        self, harness: DiskHarness
    ) -> None:
        for segment_id in (1, 2):
            append(harness.store, opened(harness.store, segment_id), 2, size=2000)
        log = segment_engine(harness.store).reader.find(1)
        with log.handle.using() as file:
            harness.store.removal.delete([1], 1)
            harness.store.removal.delete([2], 1)
            assert len(list((harness.path / "recycle").iterdir())) == 1
            opened(harness.store, 3)
            assert len(list((harness.path / "recycle").iterdir())) == 0
            assert file.pread(8, 0) == b"iceseg\r\n"
        assert [found.identity.segment_id for found in harness.kill()] == [3]

    def test_a_file_is_not_given_to_an_older_segment(self, harness: DiskHarness) -> None:
        """Batches of a former life would look like its own."""
        append(harness.store, opened(harness.store, 5), 2, size=2000)
        harness.store.removal.delete([5], 1)
        opened(harness.store, 5)
        assert len(list((harness.path / "recycle").iterdir())) == 1

    @pytest.mark.parametrize("room_bytes", [0, 66 << 10])
    def test_the_pool_keeps_no_more_than_it_may(
        self, harness: DiskHarness, room_bytes: int
    ) -> None:
        """Neither of what is deleted now nor of what an earlier process kept."""
        pool = harness.path / "recycle"
        for segment_id in (1, 2, 3):
            append(harness.store, opened(harness.store, segment_id), 2, size=2000)
        harness.store.removal.delete([1], 1)
        harness.store.removal.delete([2], 1)
        assert len(list(pool.iterdir())) == 2
        harness.settings = replace(SMALL, recycle_bytes_max=room_bytes)
        harness.kill()
        assert len(list(pool.iterdir())) == (room_bytes > 0)
        harness.store.removal.delete([3], 1)
        assert len(list(pool.iterdir())) == (room_bytes > 0)

    def test_a_node_starts_although_a_pool_file_cannot_be_opened(
        self, harness: DiskHarness
    ) -> None:
        unusable = harness.path / "recycle" / f"{1:020d}.1"
        unusable.mkdir()
        append(harness.store, opened(harness.store, 2), 2, size=2000)
        harness.kill()
        harness.store.removal.delete([2], 1)
        opened(harness.store, 3)
        assert list((harness.path / "recycle").iterdir()) == [unusable]

    def test_unknown_files_are_kept(self, harness: DiskHarness) -> None:
        log = opened(harness.store, 1)
        stranger = (harness.path / file_name(log.identity)).with_name("00000000000000000077.0.log")
        stranger.write_bytes(b"precious")
        assert len(harness.kill()) == 1
        assert stranger.read_bytes() == b"precious"


class TestWithSyncfs(ReplicaStoreConformance):
    """The same with one ``syncfs`` per group of three files or more."""

    @pytest.fixture
    def harness(self, tmp_path: Path) -> Iterator[DiskHarness]:
        harness = DiskHarness(tmp_path / "data", syncfs="always")
        yield harness
        harness.folder.close()


def test_a_full_disk_fails_one_segment_and_frees_with_it(small_disk: Path) -> None:
    harness = DiskHarness(small_disk)
    filler, log = opened(harness.store, 1), opened(harness.store, 2)
    append(harness.store, log, 2)
    failed = None
    for _ in range(500):
        request = filler.request(4, 1, 30_000)
        harness.store.append_group([request])
        if request.error is not None:
            failed = request
            break
    assert failed is not None and isinstance(failed.error, OutOfSpaceError)
    end = failed.marks[0].base_offset
    assert harness.store.reader.read(1, end, 1000, FAR) == (b"", end)
    late = LogBuilder(1)
    late.batches, late.tails = filler.batches, filler.tails
    request = late.request_of(end, end + 4)
    harness.store.append_group([request])
    assert isinstance(request.error, OutOfSpaceError)

    # Fences and seals still find room, if need be in the reserve.
    harness.store.promises.persist([(1, 7), (2, 7)], 1)
    harness.store.seal(2, 2, log.tail.digest)
    found = {replica.identity.segment_id: replica for replica in harness.kill()}
    assert found[1].intact and found[1].tail.end_offset == end
    assert found[2].intact and found[2].sealed_end_offset == 2
    assert harness.store.promises.epoch_of(1) == 7

    harness.store.removal.delete([1], 1)
    fresh = opened(harness.store, 3)
    append(harness.store, fresh, 4, size=6000)
    assert read_all(harness.store, fresh) == b"".join(fresh.batches)
    harness.store.index.flush()
    assert (small_disk / "control.reserve").stat().st_size == 4 << 20
    harness.folder.close()
