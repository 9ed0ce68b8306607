"""Checking a data folder from the outside: what is intact, what is damaged, and what is changed."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from icecore.errors import ConfigurationError
from icecore.model import CoordinatorEpoch
from icecore_node.storage import inspect
from icecore_node.storage.data_dirs import DataDirs
from icecore_node.storage.data_folder import CONTROL_NAME, DataFolder
from icecore_node.storage.disk_levels import DiskLimits
from icecore_node.storage.disks import Disks
from icecore_node.storage.engines import SHARED_ENGINE, make_store
from icecore_node.storage.files.file_system import OsFile
from icecore_node.storage.inspect import ReplicaReport, verify_folder
from icecore_node.storage.segment_engine.sealed_index import (
    Points,
    SealedIndex,
    write_sealed_index,
)
from icecore_node.storage.segment_engine.segment_header import FILE_HEADER_LENGTH
from icecore_node.storage.segment_engine.segment_names import file_name, index_file_name
from tests.conformance.log_builder import CLUSTER, LogBuilder, identity
from tests.conformance.store_harness import append, opened
from tests.support.index_oracle import keyed

BATCHES = 4
SEALED, UNSEALED = 1, 2


class Inspected:
    """A folder with a sealed and an unsealed replica, whose node has stopped."""

    def __init__(self, path: Path) -> None:
        self.path = path
        folder = DataFolder.open(path, 1, CLUSTER)
        store = make_store(folder.files, folder.index, folder.control, CLUSTER)
        store.start_up()
        self.logs: list[LogBuilder] = []
        for segment_id in (SEALED, UNSEALED):
            log = opened(store, segment_id)
            for number in range(BATCHES):
                log.add(keyed([b"key %d" % number, None], [["tag"], []]))
            assert store.append_group([log.request_of(0, BATCHES)])[0].error is None
            self.logs.append(log)
        sealed = self.logs[0].tail
        store.seal(SEALED, sealed.end_offset, sealed.digest)
        self.full_digest = store.reader.full_digest(SEALED)
        while store.index.maintain():
            pass
        store.close()
        folder.close()

    def reports(self) -> list[ReplicaReport]:
        return verify_folder(self.path)

    def file(self, segment_id: int) -> Path:
        return self.path / file_name(identity(segment_id))

    def flip(self, segment_id: int, batch: int) -> None:
        """Damage the last byte of a batch."""
        lengths = [len(each) for each in self.logs[segment_id - 1].batches[: batch + 1]]
        data = bytearray(self.file(segment_id).read_bytes())
        data[FILE_HEADER_LENGTH + sum(lengths) - 1] ^= 1
        self.file(segment_id).write_bytes(data)

    def remember(self, full_digest: bytes) -> None:
        """The node has stored this digest of the sealed replica."""
        folder = DataFolder.open(self.path, 1, CLUSTER)
        folder.control.change_row(SEALED, full_digest=full_digest)
        folder.close()


@pytest.fixture
def folder(tmp_path: Path) -> Inspected:
    return Inspected(tmp_path / "data")


def test_intact_replicas_are_described(folder: Inspected) -> None:
    sealed, unsealed = folder.reports()
    for found, log in zip((sealed, unsealed), folder.logs, strict=True):
        assert (found.problem, found.batches) == ("", BATCHES)
        assert found.end_offset == log.tail.end_offset
        assert found.seal_digest == log.tail.digest.hex()
        assert found.bytes == sum(map(len, log.batches))
    assert (sealed.full_digest, unsealed.full_digest) == (folder.full_digest.hex(), "")


def test_damage_is_found_and_told_where(folder: Inspected) -> None:
    folder.flip(SEALED, 2)
    folder.flip(UNSEALED, 1)
    for number, found in zip((2, 1), folder.reports(), strict=True):
        assert "damaged at position" in found.problem
        assert (found.batches, found.full_digest) == (number, "")


def test_what_was_ordered_to_go_is_no_damage(folder: Inspected) -> None:
    """Also where its disk is lost, which is why it is still there."""
    opened_folder = DataFolder.open(folder.path, 1, CLUSTER)
    opened_folder.control.condemn({SEALED: "its disk is lost"})
    assert [each.problem for each in folder.reports()] == ["its disk is lost", ""]
    opened_folder.control.put_intents([SEALED], CoordinatorEpoch(1))
    opened_folder.close()
    assert [(each.problem, each.state) for each in folder.reports()] == [
        ("", "deleting"),
        ("", "confirmed"),
    ]


def test_an_index_file_is_compared_with_the_batches(folder: Inspected) -> None:
    """Damage of it is told, and is none of the replica."""
    name = folder.path / index_file_name(identity(SEALED))
    assert [each.index for each in folder.reports()] == ["ok", ""]
    data = name.read_bytes()
    for at in (0, 9, 200, 260, len(data) - 1):
        name.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        found = folder.reports()[0]
        assert (found.index.partition(":")[0], found.problem) == ("damaged", "")
    name.write_bytes(data + b"more")
    assert "bytes, not" in folder.reports()[0].index
    name.unlink()
    assert folder.reports()[0].index == "none"


def test_an_index_file_that_lacks_entries_is_told(folder: Inspected) -> None:
    """Its checksums are right, and its entries are those of no batch."""
    name = folder.path / index_file_name(identity(SEALED))
    file = OsFile(os.open(name, os.O_RDWR), name.name)
    facts = SealedIndex(file.pread).facts
    nothing = np.empty(0, np.int64)
    file.truncate(0)
    write_sealed_index(file, facts, [], 0, Points(nothing, nothing, nothing), b"")
    file.close()
    assert "not those of the segment's batches" in folder.reports()[0].index


def test_a_torn_tail_of_an_unsealed_log_is_no_damage(folder: Inspected) -> None:
    folder.flip(UNSEALED, BATCHES - 1)
    assert [(each.problem, each.batches) for each in folder.reports()] == [("", 4), ("", 3)]


def test_a_digest_is_compared_with_one_of_its_format(folder: Inspected) -> None:
    folder.remember(bytes(32))
    assert folder.reports()[0].problem == ""
    folder.remember(folder.full_digest[:-1] + b"?")
    assert folder.reports()[0].problem.startswith("full digest is ")


def test_nothing_is_changed(folder: Inspected) -> None:
    names = (CONTROL_NAME, file_name(identity(SEALED)), file_name(identity(UNSEALED)))
    before = [(folder.path / name).read_bytes() for name in names]
    files = sorted(folder.path.rglob("*"))
    folder.reports()
    assert [(folder.path / name).read_bytes() for name in names] == before
    assert sorted(folder.path.rglob("*")) == files


def test_the_command(folder: Inspected, capsys: pytest.CaptureFixture[str]) -> None:
    assert inspect.main([str(folder.path)]) == 0
    assert capsys.readouterr().out.endswith("2 replicas, 0 damaged\n")
    folder.flip(SEALED, 0)
    assert inspect.main([str(folder.path), "--json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["damaged"], len(found["replicas"])) == (1, 2)


def test_another_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError):
        verify_folder(tmp_path)


def test_replicas_in_shared_files(tmp_path: Path) -> None:
    folder = DataFolder.open(tmp_path, 1, CLUSTER)
    folder.control.database.put(cluster_id=CLUSTER)
    store = make_store(folder.files, folder.index, folder.control, CLUSTER)
    store.start_up()
    logs = [LogBuilder(number, engine=SHARED_ENGINE) for number in (SEALED, UNSEALED)]
    starts = {log.identity.segment_id: (b"", 0) for log in logs}
    assert store.creation.create([log.identity for log in logs], starts) == [None] * 2
    assert [one.error for one in store.append_group([log.request(3) for log in logs])] == [None] * 2
    store.seal(SEALED, logs[0].tail.end_offset, logs[0].tail.digest)
    full_digest = store.reader.full_digest(SEALED).hex()
    folder.close()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    sealed, unsealed = verify_folder(tmp_path)
    assert {path: path.read_bytes() for path in before} == before
    assert (sealed.problem, sealed.full_digest, sealed.index) == ("", full_digest, "none")
    for report, log in zip((sealed, unsealed), logs, strict=True):
        assert (report.problem, report.batches, report.end_offset) == ("", 3, 3)
        assert (report.bytes, report.seal_digest) == (
            log.tail.length_bytes,
            log.tail.digest.hex(),
        )
    [file] = (tmp_path / "shared").glob("*.log")
    data = file.read_bytes()
    at = data.index(logs[1].batches[2]) + len(logs[1].batches[2]) - 20
    file.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    sealed, unsealed = verify_folder(tmp_path)
    assert not sealed.problem and unsealed.end_offset == 2 and not unsealed.problem
    at = data.index(logs[0].batches[1]) + 200
    file.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
    sealed, unsealed = verify_folder(tmp_path)
    assert sealed.problem and not unsealed.problem


def test_replicas_of_all_disks_are_checked(tmp_path: Path) -> None:
    folder = DataFolder.open(tmp_path / "data", 1, CLUSTER)
    dirs = DataDirs.open([tmp_path / "other"], folder)
    disks = Disks(folder.control, dirs.disks, DiskLimits())
    store = make_store(folder.files, folder.index, folder.control, CLUSTER, disks=disks)
    store.start_up()
    for segment_id in (1, 2):
        append(store, opened(store, segment_id), 3)
    assert [disks.on(1), disks.on(2)] == ["", dirs.disks[1].name]
    store.close()
    dirs.close()
    folder.close()

    def problems() -> list[str]:
        return [each.problem for each in verify_folder(tmp_path / "data")]

    assert problems() == ["", ""]
    (tmp_path / "other").rename(tmp_path / "elsewhere")
    assert problems() == ["", f"disk {dirs.disks[1].name} is not at {tmp_path / 'other'}"]
    (tmp_path / "elsewhere").rename(tmp_path / "other")
    (tmp_path / "other" / file_name(identity(2))).unlink()
    assert [bool(each) for each in problems()] == [False, True]
