"""A person may see a stopped node's promises, and lower some."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from icecore.errors import StorageError
from icecore.model import CoordinatorEpoch
from icecore_node import offline
from icecore_node.storage.control.control_store import ReplicaRow
from icecore_node.storage.control.disk_identity import location_of
from icecore_node.storage.control.known_buckets import KnownBucket
from icecore_node.storage.data_dirs import DataDirs
from icecore_node.storage.data_folder import DataFolder
from icecore_node.storage.engines import make_store
from tests.conformance.log_builder import CLUSTER, identity


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = DataFolder.open(tmp_path / "data", 3)
    folder.control.promises.persist([(7, 1 << 40)], (1 << 63) - 1)
    folder.close()
    return tmp_path / "data"


def promised(data: Path) -> tuple[int, int]:
    """Coordinator epoch, and promise of segment 7, as a node finds them."""
    folder = DataFolder.open(data, 3)
    try:
        return folder.control.promises.max_coordinator_epoch, folder.control.promises.epoch_of(7)
    finally:
        folder.close()


def test_inspect_shows_whose_it_is(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    offline.main(["inspect", str(data)])
    found = json.loads(capsys.readouterr().out)
    assert (found["node_id"], found["max_token"]) == (3, (1 << 63) - 1)


def test_nothing_changes_without_yes(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    offline.main(["reset-coordinator-epoch", str(data), "--coordinator-epoch", "4"])
    assert "becomes 4" in (said := capsys.readouterr().out) and "--yes" in said
    assert promised(data) == ((1 << 63) - 1, 1 << 40)


def test_numbers_are_lowered(data: Path) -> None:
    offline.main(["reset-coordinator-epoch", str(data), "--coordinator-epoch", "4", "--yes"])
    assert promised(data) == (4, 1 << 40)
    offline.main(["reset-promise", str(data), "--segment", "7", "--epoch", "2", "--yes"])
    assert promised(data) == (4, 2)


def test_a_running_node_is_left_alone(data: Path) -> None:
    folder = DataFolder.open(data, 3)
    try:
        with pytest.raises(SystemExit, match="already in use by pid"):
            offline.main(["inspect", str(data)])
    finally:
        folder.close()


def test_other_folders_are_left_alone(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="not a node's data folder"):
        offline.main(["inspect", str(tmp_path)])
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(SystemExit):
        offline.main(["reset-coordinator-epoch", str(tmp_path), "--coordinator-epoch", "-1"])


def test_a_disk_is_given_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its replicas stay known, as UNKNOWN ones, and the node starts without it."""
    data, other = tmp_path / "data", tmp_path / "other"
    folder = DataFolder.open(data, 3)
    disk = (dirs := DataDirs.open([other], folder)).disks[1].name
    rows = [ReplicaRow.prepared(identity(number), 0) for number in (1, 2)]
    folder.control.put_rows([rows[0], replace(rows[1], engine=location_of("segment", disk))])
    dirs.close()
    folder.close()
    for wrong in ("", "nothing"):
        with pytest.raises(SystemExit, match=f"there are: {disk}"):
            offline.main(["forget-disk", str(data), "--disk", wrong, "--yes"])
    offline.main(["forget-disk", str(data), "--disk", disk])
    assert f"{other}: its 1 replicas are given up" in capsys.readouterr().out
    offline.main(["inspect", str(data)])
    found = json.loads(capsys.readouterr().out)
    assert found["further_disks"] == [{"disk": disk, "path": str(other), "replicas": 1}]
    offline.main(["forget-disk", str(data), "--disk", disk, "--yes"])
    folder = DataFolder.open(data, 3)
    DataDirs.open([], folder).close()
    store = make_store(folder.files, folder.index, folder.control, CLUSTER)
    assert [one.intact for one in store.start_up()] == [False, False]  # the first was never made
    assert "was given up" in store.start_up()[1].why
    store.removal.delete([2], CoordinatorEpoch(1))
    assert [row.segment_id for row in folder.control.rows()] == [1]
    store.close()
    folder.close()


def test_a_bucket_is_forgotten(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="remembers no bucket"):
        offline.main(["forget-bucket", str(data), "--yes"])
    folder = DataFolder.open(data, 3)
    known = KnownBucket("0a" * 16, "01" * 16)
    folder.control.known_buckets.at("s3://b/p/").keep(known)
    folder.control.known_buckets.at("s3://b/q").keep(KnownBucket("0a" * 16, ""))
    folder.close()
    offline.main(["forget-bucket", str(data)])
    said = capsys.readouterr().out
    assert f"bucket s3://b/p, store id {known.store_id}: it is forgotten" in said
    assert "store id none" in said and "--yes" in said
    folder = DataFolder.open(data, 3)
    assert folder.control.known_buckets.at("s3://b/p").recall() == known
    assert folder.control.known_buckets.at("s3://b").recall() is None
    folder.close()
    offline.main(["inspect", str(data)])
    assert len(json.loads(capsys.readouterr().out)["buckets"]) == 2
    offline.main(["forget-bucket", str(data), "--yes"])
    folder = DataFolder.open(data, 3)
    assert folder.control.known_buckets.all() == {}
    folder.control.database.put(buckets=b"[1]")
    with pytest.raises(StorageError, match="buckets is damaged"):
        folder.control.known_buckets.all()
    folder.close()
