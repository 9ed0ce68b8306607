"""The backup file: whole or refused, and never in the place of something else."""

import gzip
import json
import os
from pathlib import Path

import pytest

from icecore.errors import ConfigurationError, IcecoreError, StorageError
from icecore.metadata_backup import Backup, BackupEntry, BackupHeader, BackupWriter
from tests.support import no_files

HEADER = BackupHeader(b"c" * 16, coordinator_epoch=3, revision=70, records=3, taken_at_ms=1_000)
ENTRIES = [
    BackupEntry("cluster", '{"cluster_id":"63"}', 1),
    BackupEntry("topic/ä", '{"name":"ä\\n\u2028"}', 7),
    BackupEntry("topic/b", "", (1 << 62) + 1),
]


def write(path: Path, header: BackupHeader = HEADER) -> int:
    writer = BackupWriter(path, header)
    writer.write(ENTRIES[:1])
    writer.write(ENTRIES[1:])
    return writer.finish()


def read(path: Path) -> list[BackupEntry]:
    return list(Backup(path).entries())


def lines(path: Path) -> list[bytes]:
    return gzip.decompress(path.read_bytes()).splitlines(keepends=True)


def test_it_comes_back_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "b"
    assert write(path) == path.stat().st_size
    assert Backup(path).header == HEADER
    assert read(path) == ENTRIES
    assert [each.name for each in tmp_path.iterdir()] == ["b"]


def test_no_part_of_it_passes_for_all(tmp_path: Path) -> None:
    path, part = tmp_path / "b", tmp_path / "part"
    write(path)
    whole = path.read_bytes()
    for end in range(len(whole)):
        part.write_bytes(whole[:end])
        with pytest.raises(IcecoreError, match=r"damaged|no backup"):
            read(part)


def test_no_changed_byte_goes_unnoticed(tmp_path: Path) -> None:
    """But for the few of gzip's own header, which say nothing of the contents."""
    path, other = tmp_path / "b", tmp_path / "other"
    write(path)
    whole = path.read_bytes()
    for index in range(10, len(whole)):
        other.write_bytes(whole[:index] + bytes([whole[index] ^ 0x10]) + whole[index + 1 :])
        with pytest.raises(IcecoreError, match=r"damaged|no backup|version"):
            read(other)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda all_: [*all_[:2], *all_[3:]], "is none"),
        (lambda all_: [*all_[:3], all_[2], *all_[4:]], "two records have the key"),
        (lambda all_: [*all_[:-1], b'{"sha256":"00"}\n'], "checksum"),
        (lambda all_: [*all_, b"\n"], "follows its end"),
        (lambda all_: [all_[0], b"[1,2]\n", *all_[2:]], "record 0 is none"),
        (lambda all_: [all_[0], b'["k",0,"v"]\n', *all_[2:]], "record 0 is none"),
        (lambda all_: [all_[0], b'["k",true,5]\n', *all_[2:]], "record 0 is none"),
        (lambda all_: [all_[0].replace(b":70", b":-1"), *all_[1:]], "revision is -1"),
        (lambda all_: [all_[0].replace(b":70", b":1e3"), *all_[1:]], "revision is"),
        (lambda all_: [all_[0].replace(b'"63', b'"zz'), *all_[1:]], "damaged"),
    ],
)
def test_lines_that_can_not_be(tmp_path: Path, change: object, why: str) -> None:
    path = tmp_path / "b"
    write(path)
    path.write_bytes(gzip.compress(b"".join(change(lines(path)))))  # type: ignore[operator]
    with pytest.raises(StorageError, match=why):
        read(path)


@pytest.mark.parametrize("content", [b"", b"PK\3\4", b"x" * 1_000_000, b"SQLite format 3\0"])
def test_another_file_is_none(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "b"
    path.write_bytes(content)
    with pytest.raises(IcecoreError, match=r"no backup|cut short"):
        Backup(path)
    path.write_bytes(gzip.compress(content))
    with pytest.raises(IcecoreError, match=r"damaged"):
        Backup(path)


def test_a_later_format_is_named(tmp_path: Path) -> None:
    path = tmp_path / "b"
    path.write_bytes(gzip.compress(b'{"format":"icecore-metadata","version":2}\n'))
    with pytest.raises(ConfigurationError, match=r"version 2.*reads version 1"):
        Backup(path)


def test_one_of_this_cluster_is_replaced_when_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "b"
    write(path)
    before = path.read_bytes()
    writer = BackupWriter(path, HEADER)
    writer.write(ENTRIES[:2])
    with pytest.raises(StorageError, match="2 records came, not 3"):
        writer.finish()
    writer.abandon()
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["b"]
    write(path, BackupHeader(b"c" * 16, 4, 71, 3, 2_000))
    assert Backup(path).header.revision == 71


def test_nothing_else_is_replaced(tmp_path: Path) -> None:
    notes, other = tmp_path / "notes.txt", tmp_path / "other"
    notes.write_text(json.dumps({"format": "icecore-metadata"}))
    write(other)
    for path, cluster_id in ((notes, b"c" * 16), (other, b"d" * 16), (tmp_path, b"c" * 16)):
        before = path.read_bytes() if path.is_file() else b""
        with pytest.raises(ConfigurationError, match="name another file"):
            BackupWriter(path, BackupHeader(cluster_id, 1, 1, 0, 0))
        assert not before or path.read_bytes() == before
    with pytest.raises(StorageError, match="can't be written"):
        BackupWriter(tmp_path / "no" / "b", HEADER)


def test_what_a_killed_writer_left_is_removed(tmp_path: Path) -> None:
    path, living = tmp_path / "b", f"b.partial-{os.getppid()}"
    for name in ("b.partial-999999999", living, "b.partial-mine", "c.partial-999999999"):
        (tmp_path / name).touch()
    write(path)
    assert {each.name for each in tmp_path.iterdir()} == {
        "b",
        living,
        "b.partial-mine",
        "c.partial-999999999",
    }


@pytest.mark.parametrize(("kind", "said"), no_files.KINDS.items())
def test_what_is_no_file_is_told_at_once(tmp_path: Path, kind: str, said: str) -> None:
    with pytest.raises(StorageError, match=said):
        Backup(no_files.make(tmp_path / "x", kind))
