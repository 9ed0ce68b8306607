"""A failed sync ends the process at once, wherever it happens, and says whose log is in doubt."""

import threading
from pathlib import Path

import pytest

from icecore.errors import IcecoreError, OutOfResourcesError, OutOfSpaceError, StorageError
from icecore_node.io.executor import EXIT_STATUS, ThreadExecutor
from icecore_node.ports import DiskFailedError, SyncFailedError
from icecore_node.storage.control.control_store import ControlStore, ReplicaRow
from icecore_node.storage.control.fail_stop import FailStop


def control_store(path: Path) -> ControlStore:
    control = ControlStore(path / "control.db")
    if not control.rows():
        control.put_rows([ReplicaRow(number, 0, b"t" * 16, 0, 1) for number in (1, 2, 3)])
    return control


def damaged(control: ControlStore) -> list[int]:
    return [row.segment_id for row in control.rows() if row.damage]


def test_a_failed_sync_condemns_the_files_it_concerns(tmp_path: Path) -> None:
    def sync() -> None:
        raise SyncFailedError("no space")  # even then pages are lost

    control = control_store(tmp_path)
    fail_stop = FailStop(control.condemn)
    fail_stop.sync([1], lambda: None)
    assert damaged(control) == []
    with pytest.raises(DiskFailedError) as caught:
        fail_stop.sync([1, 3], sync)
    assert not isinstance(caught.value, OutOfSpaceError)
    control.close()
    again = control_store(tmp_path)
    assert damaged(again) == [1, 3]
    again.close()


@pytest.mark.parametrize("error", [OutOfResourcesError("EMFILE"), StorageError("no such folder")])
def test_a_sync_that_was_never_tried_is_no_failed_sync(tmp_path: Path, error: IcecoreError) -> None:
    def sync() -> None:
        raise error

    control = control_store(tmp_path)
    with pytest.raises(type(error)) as caught:
        FailStop(control.condemn).sync([1], sync)
    assert caught.value is error
    assert damaged(control) == []
    control.close()


async def test_a_reader_thread_ends_the_process_before_its_caller_is_told() -> None:
    ended, statuses = threading.Event(), list[tuple[int, int]]()

    def fatal(status: int) -> None:
        statuses.append((status, threading.get_ident()))
        ended.set()

    def sync() -> None:
        raise DiskFailedError("sync failed")

    executor = ThreadExecutor(fatal=fatal)
    with pytest.raises(DiskFailedError):
        await executor.run(sync)
    executor.close()
    [(status, thread)] = statuses
    assert status == EXIT_STATUS and thread != threading.get_ident()
