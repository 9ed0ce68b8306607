"""Deletions of files: in groups, whole after a crash at any point, never without a stored order."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from icecore.errors import StorageError
from icecore_node.storage.control.control_database import ControlDatabase
from icecore_node.storage.control.control_store import ControlStore
from icecore_node.storage.files.file_system import OsFileSystem
from icecore_node.storage.segment_engine.recycle import RecyclePool
from tests.simulation.index import SimIndex
from tests.unit.node.storage.segment_engine.test_start_up_crash_points import (
    Disk,
    append,
    confirmed,
)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    disk = Disk(tmp_path)
    yield disk
    disk.file_system.close()


def crash_at(function_name: str, monkeypatch: pytest.MonkeyPatch, owner: type) -> None:
    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(owner, function_name, crash)


def crash_at_call(
    call: int, function_name: str, monkeypatch: pytest.MonkeyPatch, owner: type
) -> None:
    """After ``call - 1`` that go well; from then on nothing does."""
    real, calls = getattr(owner, function_name), []

    def crash(*args: object) -> object:
        calls.append(args)
        if len(calls) >= call:
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr(owner, function_name, crash)


@pytest.mark.parametrize(
    ("owner", "function_name", "call"),
    [
        (OsFileSystem, "rename", 1),
        (OsFileSystem, "rename", 2),
        (OsFileSystem, "unlink", 1),
        (OsFileSystem, "unlink", 2),
        (OsFileSystem, "sync_dir", 1),
        (OsFileSystem, "sync_dir", 2),
        (SimIndex, "delete_range", 1),
        (SimIndex, "delete_range", 3),
        (ControlStore, "finish_intents", 1),
    ],
)
@pytest.mark.parametrize("is_recycled", [True, False])
def test_a_deletion_is_finished_after_a_crash(
    disk: Disk,
    monkeypatch: pytest.MonkeyPatch,
    owner: type,
    function_name: str,
    call: int,
    is_recycled: bool,
) -> None:
    """Wherever in a group of two it falls: what is stored first is that both go."""
    if not is_recycled:
        monkeypatch.setattr(RecyclePool, "put", lambda *_: False)
    for segment_id in (1, 2):
        append(disk, confirmed(disk, segment_id), [5000])
    with monkeypatch.context() as patch:
        crash_at_call(call, function_name, patch, owner)
        with contextlib.suppress(KeyboardInterrupt):
            disk.store.removal.delete([1, 2], 3)
    assert disk.open() == []
    assert not disk.path(1).exists() and not disk.path(2).exists()
    log = confirmed(disk)
    append(disk, log, [10])
    (found,) = disk.open()
    assert found.intact and found.tail == log.tail


def test_nothing_goes_before_the_order_is_stored(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    logs = [confirmed(disk, segment_id) for segment_id in (1, 2)]
    for log in logs:
        append(disk, log, [5000])
    with monkeypatch.context() as patch:
        crash_at("put_intents", patch, ControlStore)
        with pytest.raises(KeyboardInterrupt):
            disk.store.removal.delete([1, 2], 3)
    assert [found.tail for found in disk.open()] == [log.tail for log in logs]


def test_a_group_is_two_commits_whatever_its_size(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    for segment_id in range(1, 9):
        append(disk, confirmed(disk, segment_id), [100])
    commits = []
    commit = ControlDatabase.commit
    monkeypatch.setattr(
        ControlDatabase, "commit", lambda self, change: (commits.append(1), commit(self, change))
    )
    disk.store.removal.delete(list(range(1, 9)), 3)
    assert len(commits) == 2


def test_files_that_one_in_the_way_leaves_behind_go_later(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RecyclePool, "put", lambda *_: False)
    for segment_id in (1, 2, 3):
        append(disk, confirmed(disk, segment_id), [100])
    with monkeypatch.context() as patch:
        unlink = OsFileSystem.unlink

        def refuse(self: OsFileSystem, name: str) -> None:
            if "00002." in name:
                raise StorageError("simulated")
            unlink(self, name)

        patch.setattr(OsFileSystem, "unlink", refuse)
        with pytest.raises(StorageError, match="simulated"):
            disk.store.removal.delete([1, 2, 3], 3)
        disk.store.removal.delete([1], 3)
        disk.store.removal.delete([3], 3)
        assert [disk.path(each).exists() for each in (1, 2, 3)] == [False, True, False]
    assert disk.open() == []
    assert not disk.path(2).exists()
