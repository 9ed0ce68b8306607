"""Further disks of a node: whose they are, which are refused, which are only left out."""

import errno
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from icecore.errors import ConfigurationError, OutOfResourcesError, WrongClusterError
from icecore_node.storage.control.control_store import ReplicaRow
from icecore_node.storage.control.disk_identity import location_of
from icecore_node.storage.data_dirs import DataDirs, check_layout
from icecore_node.storage.data_folder import DataFolder
from icecore_node.storage.folder_owner import OWNER_NAME
from icecore_node.storage.index.points import FAMILIES
from tests.conformance.log_builder import CLUSTER, identity


class Machine:
    """Nodes and the folders that they are given."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder: DataFolder | None = None
        self.dirs: DataDirs | None = None

    def open(self, *names: str, node_id: int = 1, data: str = "data") -> DataDirs:
        self.close()
        paths = [self.root / name for name in names]
        check_layout(self.root / data, paths, None)
        self.folder = DataFolder.open(self.root / data, node_id, CLUSTER)
        self.dirs = DataDirs.open(paths, self.folder)
        return self.dirs

    def close(self) -> None:
        for each in (self.dirs, self.folder):
            if each is not None:
                each.close()
        self.dirs = self.folder = None

    def hold(self, disk: str, number: int = 1) -> None:
        """A replica that lies on a disk, as the control store knows it."""
        assert self.folder is not None
        row = ReplicaRow.prepared(identity(number), 0)
        row = ReplicaRow(**{**_fields(row), "engine": location_of("segment", disk)})
        self.folder.control.put_rows([row])


def _fields(row: ReplicaRow) -> dict[str, object]:
    return {name: getattr(row, name) for name in ReplicaRow.__slots__}


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path)
    yield machine
    machine.close()


def test_a_disk_is_known_again_wherever_it_is_mounted(machine: Machine) -> None:
    first = machine.open("b", "c")
    assert [disk.path for disk in first.disks] == [
        str(machine.root / n) for n in ("data", "b", "c")
    ]
    ids = [disk.name for disk in first.disks]
    assert ids[0] == "" and len({*ids}) == 3 and len(ids[1]) == 32
    machine.hold(ids[1])
    machine.close()
    (machine.root / "b").rename(machine.root / "x")
    (machine.root / "c").rename(machine.root / "b")
    again = machine.open("b", "x")
    assert {disk.path[-1]: disk.name for disk in again.disks[1:]} == {"b": ids[2], "x": ids[1]}
    assert all(disk.files is not None for disk in again.disks)
    names = set(os.listdir(machine.root / "b"))
    assert names == {"lock", "segments", "recycle", OWNER_NAME}


def test_the_folder_of_another_node_is_refused(machine: Machine) -> None:
    machine.open("b", data="other", node_id=2)
    with pytest.raises(WrongClusterError, match="belongs to node 2"):
        machine.open("b")
    machine.open(data="third", node_id=3)
    with pytest.raises(ConfigurationError, match="data folder of a node"):
        machine.open("third")
    with pytest.raises(ConfigurationError, match="no data folder"):
        machine.open(data="b")


def test_a_new_data_folder_does_not_inherit_the_other_disks(machine: Machine) -> None:
    machine.open("b")
    machine.close()
    shutil.rmtree(machine.root / "data")
    with pytest.raises(WrongClusterError, match="belongs to node 1 with data folder"):
        machine.open("b")


def test_two_nodes_at_one_folder(machine: Machine) -> None:
    machine.open("b")
    folder = DataFolder.open(machine.root / "other", 2)
    with pytest.raises(ConfigurationError, match="already in use by pid"):
        DataDirs.open([machine.root / "b"], folder)
    folder.close()


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (("b", "b"), "are one folder"),
        (("b", "link"), "are one folder"),
        (("data",), "are one folder"),
        (("b", "b/c"), "one lies in the other"),
        (("data/b",), "one lies in the other"),
        (("b/../c/d", "c"), "one lies in the other"),
    ],
)
def test_folders_given_twice_or_in_each_other(
    machine: Machine, names: tuple[str, ...], why: str
) -> None:
    (machine.root / "b").mkdir()
    (machine.root / "link").symlink_to(machine.root / "b")
    with pytest.raises(ConfigurationError, match=why):
        machine.open(*names)
    assert not (machine.root / "data").exists()


def test_a_copy_of_a_disk_is_refused(machine: Machine) -> None:
    machine.open("b")
    machine.close()
    shutil.copytree(machine.root / "b", machine.root / "c")
    with pytest.raises(ConfigurationError, match="is a copy of"):
        machine.open("b", "c")


def test_segments_of_nobody_are_refused(machine: Machine) -> None:
    path = machine.root / "b" / "segments" / "topic" / "0"
    path.mkdir(parents=True)
    (path / "1.log").write_bytes(b"x")
    with pytest.raises(ConfigurationError, match="nothing says whose"):
        machine.open("b")


def test_a_disk_with_replicas_must_be_named(machine: Machine) -> None:
    disk = machine.open("b", "c").disks[1].name
    machine.hold(disk, 1)
    machine.hold(disk, 2)
    topic = identity(1).topic_id.hex()
    for _ in range(2):
        with pytest.raises(ConfigurationError, match="2 replicas: 2 of topic " + topic) as refused:
            machine.open("c")
        assert str(machine.root / "b") in refused.value.message
        assert f"forget-disk {machine.root / 'data'} --disk {disk}" in refused.value.message
    assert machine.open("c", "b").disks[2].name == disk


def test_one_without_replicas_may_go(machine: Machine) -> None:
    machine.open("b", "c")
    assert len(machine.open("c").disks) == 2
    assert machine.folder is not None
    assert [each.path[-1] for each in machine.folder.control.known_disks.all().values()] == ["c"]


@pytest.mark.parametrize("fault", ["gone", "empty", "file", "garbage", "read_only", "unmounted"])
def test_a_disk_that_was_there_is_left_out(
    machine: Machine, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its replicas are UNKNOWN, and a new one is not made in the place of one that is missing."""
    path = machine.root / "b"
    if fault == "unmounted":
        monkeypatch.setattr(os.path, "ismount", lambda each: Path(each) == path)
    disk = machine.open("b").disks[1].name
    machine.hold(disk)
    machine.close()
    if fault in ("gone", "empty", "file", "unmounted"):
        shutil.rmtree(path)
    if fault in ("empty", "unmounted"):
        path.mkdir()
    if fault == "file":
        path.write_bytes(b"")
    if fault == "garbage":
        (path / OWNER_NAME).write_text("{")
    real = os.open
    with monkeypatch.context() as patch:

        def open_read_only(name: object, flags: int, *more: object, **named: object) -> int:
            if str(name) == str(path / "lock") and fault == "read_only":
                raise OSError(errno.EROFS, "Read-only file system")
            return real(name, flags, *more, **named)  # type: ignore[arg-type]

        patch.setattr(os, "open", open_read_only)
        patch.setattr(os.path, "ismount", lambda each: False)
        disks = machine.open("b").disks
        left_out = [each for each in disks if each.name == disk]
        assert [each.files for each in left_out] == [None]
        why = {"empty": "another disk", "unmounted": "nothing is mounted", "read_only": "Read-only"}
        assert why.get(fault, "") in left_out[0].problem and left_out[0].problem
        assert len(disks) == (3 if fault == "empty" else 2)
        assert fault != "unmounted" or not os.listdir(path)
    machine.open("b")  # and so at the next start, or it is back


@pytest.mark.parametrize("fault", ["file", "garbage"])
def test_one_that_never_was_is_a_mistake(machine: Machine, fault: str) -> None:
    path = machine.root / "b"
    if fault == "file":
        path.write_bytes(b"")
    else:
        path.mkdir()
        (path / OWNER_NAME).write_text(json.dumps({"disk_id": 1}))
    with pytest.raises(ConfigurationError, match="cannot be used"):
        machine.open("b")


def test_a_shortage_says_nothing_about_a_disk(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.open("b")
    machine.close()
    real = os.open

    def short(name: object, *more: object, **named: object) -> int:
        if str(name) == str(machine.root / "b" / "lock"):
            raise OSError(errno.EMFILE, "Too many open files")
        return real(name, *more, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", short)
    with pytest.raises(OutOfResourcesError):
        machine.open("b")


def test_an_index_elsewhere(tmp_path: Path) -> None:
    """An index that has been elsewhere since loses its entries of the past."""

    def open_with(index_dir: Path | None, node_id: int = 1, data: str = "data") -> DataFolder:
        return DataFolder.open(tmp_path / data, node_id, CLUSTER, index_dir=index_dir)

    folder = open_with(None)
    family = FAMILIES[0]
    folder.index.write([(family, b"key", b"old")])
    folder.close()
    folder = open_with(tmp_path / "ssd")
    assert folder.index.get(family, b"key") is None
    folder.index.write([(family, b"key", b"new")])
    with pytest.raises(ConfigurationError, match="in use"):
        open_with(tmp_path / "ssd", 2, "other")
    folder.close()
    with pytest.raises(WrongClusterError, match="belongs to node 1"):
        open_with(tmp_path / "ssd", 2, "other")
    folder = open_with(tmp_path / "ssd")
    assert folder.index.get(family, b"key") == b"new"
    folder.close()
    folder = open_with(None)
    assert folder.index.get(family, b"key") is None
    folder.close()
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ConfigurationError, match="index_dir"):
        open_with(tmp_path / "file")
