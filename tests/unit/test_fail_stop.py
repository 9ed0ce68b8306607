"""A failed sync ends the process at once, wherever it happens, and the next start knows of it."""

import threading
from pathlib import Path

import pytest

from icecore.errors import OutOfSpaceError, StorageError
from node.executor import EXIT_STATUS, ThreadExecutor
from node.ports import DiskFailedError
from node.storage.control_store import ControlStore
from node.storage.fail_stop import FailStop


@pytest.mark.parametrize("error", [StorageError("EIO"), OutOfSpaceError("no space")])
def test_a_failed_sync_is_remembered(tmp_path: Path, error: StorageError) -> None:
    def sync() -> None:
        raise error

    control = ControlStore(tmp_path / "control.db")
    fail_stop = FailStop(control)
    fail_stop.sync([1], lambda: None)
    assert control.get("poisoned") is None
    with pytest.raises(DiskFailedError) as caught:
        fail_stop.sync([1], sync)
    assert not isinstance(caught.value, OutOfSpaceError)
    control.close()
    again = ControlStore(tmp_path / "control.db")
    assert again.get("poisoned") == str(error).encode()
    again.close()


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
