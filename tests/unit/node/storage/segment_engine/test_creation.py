"""Out of descriptors while files are made: refused, nothing left behind, nobody condemned."""

import errno
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from icecore.errors import OutOfResourcesError
from icecore_node.storage.control.control_store import ControlStore
from icecore_node.storage.engines import make_store
from icecore_node.storage.files.file_system import OsFileSystem
from icecore_node.storage.port import FoundReplica
from icecore_node.storage.segment_engine.segment_log import LogSettings
from tests.conformance.log_builder import CLUSTER, LogBuilder, identity
from tests.conformance.store_harness import segment_engine
from tests.simulation.index import SimIndex, SimIndexDisk


class Folder:
    """A store on real files."""

    def __init__(self, root: Path) -> None:
        self.files = OsFileSystem(root)
        self.settings = LogSettings(
            allocation_step_bytes=16 << 10, recycle_bytes_max=0, descriptors_reserve=8
        )
        self.index = SimIndexDisk()
        self.control = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self.start()

    def start(self) -> list[FoundReplica]:
        control = ControlStore(self.control)
        index = SimIndex(self.index, None)
        self.store = make_store(self.files, index, control, CLUSTER, self.settings)
        return self.store.start_up()


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


def with_data(folder: Folder) -> LogBuilder:
    log = LogBuilder(1)
    assert folder.store.creation.create([log.identity], {1: (b"", 0)}) == [None]
    request = log.request(1)
    folder.store.append_group([request])
    assert request.error is None
    return log


def short_of(number: int, is_hit: Callable[[str], bool]) -> Callable[..., int]:
    """An ``os.open`` that fails for some names."""
    real = os.open

    def opened(name: str, *given: object, **named: object) -> int:
        if is_hit(str(name)):
            raise OSError(number, os.strerror(number))
        return real(name, *given, **named)  # type: ignore[arg-type]

    return opened


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_a_folder_that_cannot_be_opened_is_no_failed_sync(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: int
) -> None:
    with_data(folder)
    fresh = [identity(each) for each in (2, 3)]
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", short_of(number, lambda name: name == "recycle"))
        errors = folder.store.creation.create(fresh)
        assert all(isinstance(error, OutOfResourcesError) for error in errors)
    assert len(list(tmp_path.rglob("*.log"))) == 1  # nothing is left behind
    assert folder.store.creation.create(fresh) == [None, None]
    assert [found.intact for found in folder.start()] == [True, True, True]


def test_files_that_cannot_be_opened_cost_nobody_else(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = with_data(folder)
    segment_engine(folder.store)._open_files.make_room(100)
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", short_of(errno.EMFILE, lambda name: name.endswith(".log")))
        with pytest.raises(OutOfResourcesError):
            folder.store.reader.read(1, 0, 1000, 1)
        refused = log.request(1)
        folder.store.append_group([refused])
        assert isinstance(refused.error, OutOfResourcesError)
    assert folder.store.reader.read(1, 0, 1 << 20, 1)[1] == 1
    folder.store.truncate(1, 1)  # what an owner does after a failed append
    again = log.request_of(1, 2)
    folder.store.append_group([again])
    assert again.error is None
    assert [found.intact for found in folder.start()] == [True]


def test_the_reserve_is_for_what_is_there(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    with_data(folder)
    counts = iter([(95, 5), (94, 6), (92, 8)])
    monkeypatch.setattr(OsFileSystem, "descriptors", lambda _: next(counts))
    [error, known] = folder.store.creation.create([identity(2), identity(1)])
    assert isinstance(error, OutOfResourcesError) and error.retriable
    assert "94 of 100" in error.message and "ulimit" in error.message
    assert known is None  # it is there already: that takes nothing
    assert len(segment_engine(folder.store)._open_files) == 0  # idle files went first
    assert folder.store.creation.create([identity(2)]) == [None]


def test_a_row_that_cannot_be_stored_leaves_no_file(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def put_rows(*_: object) -> None:
        raise OutOfResourcesError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(ControlStore, "put_rows", put_rows)
        with pytest.raises(OutOfResourcesError):
            folder.store.creation.create([identity(2)], {2: (b"", 0)})
    assert list(tmp_path.rglob("*.log")) == []
    assert folder.store.creation.create([identity(2)], {2: (b"", 0)}) == [None]
    assert [found.intact for found in folder.start()] == [True]
