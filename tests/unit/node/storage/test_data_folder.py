"""The data folder: one process, one node, one cluster; what a restart finds."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from icecore.errors import ConfigurationError, StorageError, WrongClusterError
from icecore_coordinator.stores.sqlite_store import SqliteDatabase
from icecore_node.storage.data_folder import CONTROL_NAME, DataFolder

CLUSTER = b"c" * 16


def test_a_new_folder_gets_its_layout_and_a_cookie(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "data"
    folder = DataFolder.open(path, 3)
    assert (folder.node_id, folder.cluster_id, folder.incarnation) == (3, b"", 0)
    assert len(folder.disk_id) == 16
    assert {"control.db", "index", "segments", "recycle"} <= set(os.listdir(path))
    folder.join_cluster(CLUSTER)
    folder.keep_incarnation(12, 7)
    folder.close()

    again = DataFolder.open(path, 3)
    assert (again.cluster_id, again.disk_id) == (CLUSTER, folder.disk_id)
    assert again.incarnation == 12
    again.close()
    other = DataFolder.open(tmp_path / "other", 3)
    assert other.disk_id != folder.disk_id
    other.close()


def test_each_new_folder_is_durable_in_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, synced = os.fsync, list[str]()

    def fsync(fd: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    DataFolder.open(tmp_path / "deep" / "data", 3).close()
    assert {str(tmp_path), str(tmp_path / "deep"), str(tmp_path / "deep" / "data")} <= set(synced)


def test_a_folder_belongs_to_one_node_and_one_cluster(tmp_path: Path) -> None:
    folder = DataFolder.open(tmp_path, 1, CLUSTER)
    with pytest.raises(WrongClusterError, match="cluster"):
        folder.join_cluster(b"d" * 16)
    folder.close()
    with pytest.raises(WrongClusterError, match="node 1, this is node 2"):
        DataFolder.open(tmp_path, 2, CLUSTER)
    with pytest.raises(WrongClusterError, match="cluster"):
        DataFolder.open(tmp_path, 1, b"d" * 16)
    DataFolder.open(tmp_path, 1, CLUSTER).close()


def test_one_process_at_a_time(tmp_path: Path) -> None:
    folder = DataFolder.open(tmp_path, 1)
    code = (
        "import sys; from pathlib import Path\n"
        "from icecore.errors import ConfigurationError\n"
        "from icecore_node.storage.data_folder import DataFolder\n"
        "try: DataFolder.open(Path(sys.argv[1]), 1).close(); print('open')\n"
        "except ConfigurationError as error: print(error)\n"
    )

    def other() -> str:
        command = [sys.executable, "-c", code, str(tmp_path)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60).stdout

    assert f"already in use by pid {os.getpid()}" in other()
    folder.close()
    assert other() == "open\n"


def test_a_damaged_control_store_stops_the_start_with_advice(tmp_path: Path) -> None:
    DataFolder.open(tmp_path, 1).close()
    for name in (CONTROL_NAME, f"{CONTROL_NAME}-wal"):
        if (tmp_path / name).exists():
            (tmp_path / name).write_bytes(b"garbage" * 1000)
    with pytest.raises(StorageError, match="other replicas"):
        DataFolder.open(tmp_path, 1)
    with pytest.raises(StorageError):
        DataFolder.open(tmp_path, 1)  # the lock was given back


def test_a_lost_control_store_is_a_new_disk(tmp_path: Path) -> None:
    folder = DataFolder.open(tmp_path, 1, CLUSTER)
    folder.close()
    for file in tmp_path.glob("control.*"):
        file.unlink()
    again = DataFolder.open(tmp_path, 1, CLUSTER)
    assert again.disk_id != folder.disk_id
    again.close()


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigurationError, match="cannot be used"):
        DataFolder.open(tmp_path / "file" / "data", 1)


def test_the_folder_of_a_coordinator(tmp_path: Path) -> None:
    """A swapped path would begin a new, empty node there."""
    SqliteDatabase(tmp_path / "metadata.sqlite3").close()
    before = {each.name for each in tmp_path.iterdir()}
    with pytest.raises(ConfigurationError, match="is the data folder of a coordinator"):
        DataFolder.open(tmp_path, 1)
    assert {each.name for each in tmp_path.iterdir()} == before
