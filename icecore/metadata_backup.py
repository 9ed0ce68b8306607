r"""The backup of a cluster's metadata: one file with all records of the store at one moment.

It is the same for every kind of metadata store, so it also moves a cluster from one to another. The
file is gzip; each line of the text is JSON::

    {"format": "icecore-metadata", "version": 1, "cluster_id": …, "revision": …, "records": 4711, …}
    ["topic/0a1b…", 3, "{\"name\":…}"]          key, version, stored form: 4711 such lines
    {"sha256": "…"}                             of all lines before this one

The last line proves that the file is whole. A file takes the place of an earlier one only when it
is complete and on the disk.
"""

import glob
import gzip
import hashlib
import json
import os
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from icecore.errors import ConfigurationError, StorageError
from icecore.process.system import check_file

FORMAT: Final = "icecore-metadata"
VERSION: Final = 1
LINE_BYTES_MAX: Final = 64 << 20
"""No record is larger: who reads a damaged or foreign file must not run out of memory."""
_PARTIAL: Final = ".partial-"
"""Begin of the suffix of a file that is being written; the pid of its writer follows."""
_FAST: Final = 3
"""Level of compression: a tenth is left, and the coordinator waits for nobody."""


class BackupEntry(NamedTuple):
    """One record of the metadata store."""

    key: str
    value: str
    version: int


@dataclass(frozen=True, slots=True)
class BackupHeader:
    """The first line: the cluster, and the moment."""

    cluster_id: bytes
    coordinator_epoch: int
    """The highest one that the store had given out."""
    revision: int
    """How often the store had been changed."""
    records: int
    taken_at_ms: int
    """By the wall clock of who took it."""


class BackupWriter:
    """Writes one backup. ``write``, then ``finish``; ``abandon`` leaves nothing behind.

    Args:
        path: Of the file.
        header: Says how many records follow.

    Raises:
        ConfigurationError: The path is something else than a backup of this cluster.
        StorageError: The file can't be written.
    """

    def __init__(self, path: Path, header: BackupHeader) -> None:
        _check_replaceable(path, header.cluster_id)
        self._path, self._header = path, header
        self._partial = path.with_name(f"{path.name}{_PARTIAL}{os.getpid()}")
        _remove_left_over(path)
        self._digest, self._records = hashlib.sha256(), 0
        with _storage_errors(path):
            self._raw = self._partial.open("wb")
            self._file = gzip.GzipFile("", "wb", _FAST, self._raw, 0)
        self._line(
            {
                "format": FORMAT,
                "version": VERSION,
                "cluster_id": header.cluster_id.hex(),
                "coordinator_epoch": header.coordinator_epoch,
                "revision": header.revision,
                "records": header.records,
                "taken_at_ms": header.taken_at_ms,
            }
        )

    def write(self, entries: Iterable[BackupEntry]) -> None:
        """Add records. Raises StorageError."""
        for each in entries:
            self._line([each.key, each.version, each.value])
            self._records += 1

    def finish(self) -> int:
        """Make the file durable under its name; its length in bytes. Raises StorageError."""
        if self._records != self._header.records:
            raise StorageError(
                f"{self._records} records came, not {self._header.records}: repeat the backup"
            )
        self._line({"sha256": self._digest.hexdigest()})
        with _storage_errors(self._path):
            self._file.close()
            self._raw.flush()
            os.fsync(self._raw.fileno())
            length_bytes = self._raw.tell()
            self._raw.close()
            self._partial.rename(self._path)
            folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        return length_bytes

    def abandon(self) -> None:
        """Remove what was written so far. Idempotent; nothing after ``finish``."""
        with suppress(OSError):
            self._raw.close()
            self._partial.unlink(missing_ok=True)

    def _line(self, value: object) -> None:
        line = json.dumps(value, separators=(",", ":")).encode() + b"\n"
        self._digest.update(line)
        with _storage_errors(self._path):
            self._file.write(line)


class Backup:
    """A backup that is read. Nothing of it is believed before ``entries`` came to its end.

    Args:
        path: Of the file.

    Raises:
        ConfigurationError: It is no backup, or one of a later version.
        StorageError: It can't be read, or its beginning is damaged.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with _open(path) as file:
            self.header = _header(path, _read_line(path, file))

    def entries(self) -> Iterator[BackupEntry]:
        """All records. Raises StorageError where the file is cut short or damaged."""
        path, digest, keys = self._path, hashlib.sha256(), set[str]()
        with _open(path) as file:
            digest.update(_read_line(path, file))
            for number in range(self.header.records):
                line = _read_line(path, file)
                digest.update(line)
                entry = _entry(path, number, line)
                if entry.key in keys:
                    raise _damaged(path, f"two records have the key {entry.key!r}")
                keys.add(entry.key)
                yield entry
            end = _value(path, _read_line(path, file))
            if end != {"sha256": digest.hexdigest()}:
                raise _damaged(path, "its checksum differs")
            if _read(path, file, 1):
                raise _damaged(path, "something follows its end")


def _open(path: Path) -> gzip.GzipFile:
    with _storage_errors(path, "read"):
        check_file(path)
        return gzip.GzipFile(path, "rb")


def _read_line(path: Path, file: gzip.GzipFile) -> bytes:
    line = _read(path, file, LINE_BYTES_MAX, is_line=True)
    if not line.endswith(b"\n"):
        raise _damaged(path, "it is cut short")
    return line


def _read(path: Path, file: gzip.GzipFile, size: int, *, is_line: bool = False) -> bytes:
    try:
        return file.readline(size) if is_line else file.read(size)
    except EOFError as error:
        raise _damaged(path, "it is cut short") from error
    except gzip.BadGzipFile as error:
        if file.tell():
            raise _damaged(path, str(error)) from error
        raise _foreign(path) from error
    except (OSError, zlib.error) as error:
        raise _damaged(path, str(error)) from error


def _header(path: Path, line: bytes) -> BackupHeader:
    found = _value(path, line)
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise _foreign(path)
    if found.get("version") != VERSION:
        raise ConfigurationError(
            f"{path} has version {found.get('version')!r} of the backup format, and this program "
            f"reads version {VERSION}: use the program of the cluster that made it, or a newer one"
        )
    try:
        return BackupHeader(
            cluster_id=bytes.fromhex(found["cluster_id"]),
            coordinator_epoch=_number(found, "coordinator_epoch"),
            revision=_number(found, "revision"),
            records=_number(found, "records"),
            taken_at_ms=_number(found, "taken_at_ms"),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(path, f"its first line says {error}") from error


def _number(found: dict[str, Any], name: str) -> int:
    value = found[name]
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise ValueError(f"{name} is {value!r}")
    return value


def _entry(path: Path, number: int, line: bytes) -> BackupEntry:
    match _value(path, line):
        case [str(key), int(version), str(value)] if version > 0:
            return BackupEntry(key, value, version)
    raise _damaged(path, f"record {number} is none")


def _value(path: Path, line: bytes) -> object:
    try:
        return json.loads(line)
    except ValueError as error:
        raise _damaged(path, f"a line is no JSON: {error}") from error


def _foreign(path: Path) -> ConfigurationError:
    return ConfigurationError(
        f"{path} is no backup of metadata: `icecore cluster backup` makes one"
    )


def _damaged(path: Path, why: str) -> StorageError:
    return StorageError(f"the backup {path} is damaged: {why}. Take another one")


def _check_replaceable(path: Path, cluster_id: bytes) -> None:
    """Raises ConfigurationError when something is there that a backup must not replace."""
    if not path.exists():
        return
    with suppress(ConfigurationError, StorageError):
        if Backup(path).header.cluster_id == cluster_id:
            return
    raise ConfigurationError(
        f"{path} is there, and is no backup of this cluster: name another file"
    )


def _remove_left_over(path: Path) -> None:
    """Remove what killed writers of the same backup have left behind."""
    for each in path.parent.glob(f"{glob.escape(path.name)}{_PARTIAL}*"):
        pid = each.name.rpartition("-")[2]
        if pid.isdecimal() and not Path(f"/proc/{pid}").exists():
            with suppress(OSError):
                each.unlink()


class _storage_errors:
    """Turns the errors of the file system into StorageError with the path."""

    def __init__(self, path: Path, verb: str = "written") -> None:
        self._what = f"the backup {path} can't be {verb}"

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, OSError):
            raise StorageError(f"{self._what}: {error.strerror or error}") from error
