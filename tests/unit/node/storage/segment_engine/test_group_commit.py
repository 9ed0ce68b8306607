"""Groups in which something fails: who is told, who goes on, and whose log is in doubt."""

import sqlite3

import pytest

from icecore.errors import IcecoreError, OutOfResourcesError, StorageError
from icecore_node.ports import DiskFailedError
from icecore_node.storage.control.control_store import ControlStore
from icecore_node.storage.engines import make_store
from icecore_node.storage.segment_engine.segment_log import LogSettings
from icecore_node.storage.segment_engine.segment_names import file_name
from tests.conformance.log_builder import CLUSTER, LogBuilder
from tests.conformance.store_harness import segment_engine
from tests.simulation.disk import SimDisk, SimFile, SimFileSystem
from tests.simulation.index import SimIndex, SimIndexDisk

COUNT = 5


class Group:
    """Five logs on a simulated disk, whose next appends come in one group."""

    def __init__(self, group_bytes_max: int = LogSettings().group_bytes_max) -> None:
        self.disk = SimDisk()
        self.disk.can_sync_all = True
        self.control = ControlStore(sqlite3.connect(":memory:", isolation_level=None))
        settings = LogSettings(
            allocation_step_bytes=16 << 10,
            sync_all_files_min=3,
            open_files_max=2,
            group_bytes_max=group_bytes_max,
        )
        files, index = SimFileSystem(self.disk, None), SimIndex(SimIndexDisk(), None)
        self.store = make_store(files, index, self.control, CLUSTER, settings)
        self.store.start_up()
        self.logs = [LogBuilder(number) for number in range(1, COUNT + 1)]
        starts = {log.identity.segment_id: (b"", 0) for log in self.logs}
        assert (
            self.store.creation.create([log.identity for log in self.logs], starts)
            == [None] * COUNT
        )

    def append(self, count: int = COUNT) -> list[IcecoreError | None]:
        requests = [log.request(1) for log in self.logs[:count]]
        self.store.append_group(requests)
        return [request.error for request in requests]

    def damaged(self) -> list[int]:
        return [row.segment_id for row in self.control.rows() if row.damage]


@pytest.mark.parametrize("error", [StorageError("EIO"), OutOfResourcesError("ENOMEM")])
def test_a_write_that_fails_costs_its_log_its_appends(
    monkeypatch: pytest.MonkeyPatch, error: IcecoreError
) -> None:
    group, real = Group(), SimFile.pwritev
    name = file_name(group.logs[1].identity)

    def pwritev(self: SimFile, *given: object) -> None:
        if self._name == name:
            raise error
        real(self, *given)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(SimFile, "pwritev", pwritev)
        assert group.append() == [None, error, None, None, None]
    assert group.append() == [None, error, None, None, None]  # until it is cut
    group.store.truncate(2, 0)
    again = group.logs[1].request_of(0, 1)
    group.store.append_group([again])
    assert again.error is None and group.damaged() == []


def test_no_more_files_stay_open_than_may() -> None:
    group = Group()
    for _ in range(3):
        assert group.append() == [None] * COUNT
    assert group.append(1) == [None]
    assert len(segment_engine(group.store)._open_files) == 2


def test_a_syncfs_that_fails_leaves_all_in_doubt_whose_bytes_were_on_their_way() -> None:
    group = Group()
    group.append()
    group.disk.faults.failing_syncs = 1
    with pytest.raises(DiskFailedError):
        group.append(3)
    assert group.damaged() == [1, 2, 3]


def test_an_fdatasync_that_fails_leaves_its_own_log_in_doubt() -> None:
    group = Group()
    group.disk.can_sync_all = False
    group.append()
    group.disk.faults.failing_syncs = 1
    with pytest.raises(DiskFailedError):
        group.append(3)
    assert group.damaged() == [1]


def test_a_syncfs_that_fails_leaves_a_large_request_in_doubt_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It goes to disk in pieces, while other workers sync theirs."""
    group, real = Group(group_bytes_max=2_000), SimFile.fdatasync
    group.append()
    large = group.logs[0].request(batches=3, size=1_500)
    meanwhile: list[IcecoreError] = []

    def fdatasync(self: SimFile) -> None:
        if not meanwhile:
            group.disk.faults.failing_syncs = 1
            with pytest.raises(DiskFailedError) as failed:
                group.store.append_group([log.request(1) for log in group.logs[1:4]])
            meanwhile.append(failed.value)
        real(self)

    monkeypatch.setattr(SimFile, "fdatasync", fdatasync)
    group.store.append_group([large])
    assert group.damaged() == [1, 2, 3, 4]
