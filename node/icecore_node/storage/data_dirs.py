"""Further disks of a node (``data_dirs``): each opened for itself, refused, or left out.

Refused is what a person has to set right, before anything is written: a folder of somebody else, in
use, given twice, one in the other, one that can't be used although it is new, and one that is not
named any more although it has replicas. Left out is a disk that this node has had and that can't be
used now: gone, not mounted, read-only, or another one in its place. Its replicas are UNKNOWN, and
the node starts (R83).
"""

import errno
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Self

from icecore.errors import ConfigurationError, OutOfResourcesError, StorageError
from icecore_node.storage.control.disk_identity import FIRST_DISK, KnownDisk, disk_of
from icecore_node.storage.data_folder import (
    CONTROL_NAME,
    DataFolder,
    lock_folder,
    make_durable,
    new_disk_id,
)
from icecore_node.storage.disks import Disk
from icecore_node.storage.files.file_system import OsFileSystem
from icecore_node.storage.files.whole_sync import SyncFs
from icecore_node.storage.folder_owner import (
    FOR_SEGMENTS,
    FolderOwner,
    check_owner,
    read_owner,
    write_owner,
)

_SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})


class _LeftOutError(Exception):
    """A folder can't be used; whether that stops the start depends on what was there."""


@dataclass(slots=True)
class _Opened:
    """A folder that is ours and can be used."""

    disk: Disk
    files: OsFileSystem
    lock_fd: int
    is_mount: bool

    def close(self) -> None:
        self.files.close()
        os.close(self.lock_fd)


@dataclass(slots=True)
class DataDirs:
    """The disks of one node; ``close`` releases the further ones."""

    disks: list[Disk]
    """The data folder first."""
    _opened: list[_Opened] = field(default_factory=list)

    @classmethod
    def open(
        cls,
        paths: Sequence[Path],
        folder: DataFolder,
        *,
        syncfs: SyncFs = "auto",
        sync_threads: int = 2,
    ) -> Self:
        """Open what can be used, remember it, and leave out what was here once.

        Args:
            paths: ``data_dirs``; ``check_layout`` has seen them.
            folder: The data folder of the node, open.
            syncfs: See ``OsFileSystem``.
            sync_threads: See ``OsFileSystem``.

        Raises:
            ConfigurationError: A person must change something.
            WrongClusterError: A folder belongs to somebody else.
            OutOfResourcesError: No descriptors or memory; nothing is wrong with any folder.
        """
        path = folder.path
        dirs = cls([Disk(FIRST_DISK, str(path), folder.files, path.stat().st_dev)])
        opener = _Opener(folder, syncfs, sync_threads)
        try:
            problems = {each.resolve(): dirs._take(opener, each.resolve()) for each in paths}
            for each, problem in problems.items():  # a disk may be at the path of another one now
                opener.leave_out(each, problem, dirs)
            opener.check_all_named(dirs)
        except BaseException:
            dirs.close()
            raise
        return dirs

    def _take(self, opener: "_Opener", path: Path) -> str:
        """Open one; why that did not work, empty when it did."""
        try:
            opened = opener.open(path)
        except _LeftOutError as error:
            return str(error)
        self._opened.append(opened)
        for disk in self.disks:
            if disk.name == opened.disk.name:
                raise ConfigurationError(f"data_dirs: {path} is a copy of {disk.path}")
        self.disks.append(opened.disk)
        return ""

    def known(self) -> Iterator[tuple[str, KnownDisk]]:
        """Those that are open, as they are to be remembered."""
        for each in self._opened:
            yield each.disk.name, KnownDisk(each.disk.path, each.is_mount)

    def close(self) -> None:
        """Release files and locks. Close the store first."""
        for each in self._opened:
            each.close()
        self._opened.clear()


class _Opener:
    """Opens further folders of one node, which remembers those that it has had."""

    def __init__(self, folder: DataFolder, syncfs: SyncFs, sync_threads: int) -> None:
        self._folder = folder
        self._syncfs: SyncFs = syncfs
        self._sync_threads = sync_threads
        self._known = folder.control.known_disks.all()

    def open(self, path: Path) -> _Opened:
        """Raises _LeftOutError for what can't be used, and what ``DataDirs.open`` raises."""
        had = [known for known in self._known.values() if known.path == str(path)]
        try:
            if not had:
                make_durable(path)
            elif any(each.is_mount for each in had) and not os.path.ismount(path):
                raise _LeftOutError("nothing is mounted there")
            lock_fd = lock_folder(path)
        except OSError as error:
            raise _unusable(error) from error
        files: OsFileSystem | None = None
        try:
            disk_id = self._disk_id(path)
            files = OsFileSystem(path, syncfs=self._syncfs, sync_threads=self._sync_threads)
            for name in ("segments", "recycle"):
                files.make_dirs(name)
            files.sync_dir("")
            disk = Disk(disk_id, str(path), files, path.stat().st_dev)
            return _Opened(disk, files, lock_fd, os.path.ismount(path))
        except BaseException as error:
            if files is not None:
                files.close()
            os.close(lock_fd)
            if isinstance(error, OSError | StorageError | ValueError):
                raise _unusable(error) from error
            raise

    def _disk_id(self, path: Path) -> str:
        """Return the disk id of a folder that is ours; claim one without owner and segments."""
        folder = self._folder
        if (path / CONTROL_NAME).exists():
            raise ConfigurationError(f"{path} is the data folder of a node: it has a control store")
        found = read_owner(path)
        if found is None:
            if any(path.glob("segments/*/*/*")):
                raise ConfigurationError(f"{path} has segments, and nothing says whose they are")
            found = FolderOwner(
                disk_id=new_disk_id().hex(),
                node_id=folder.node_id,
                node_disk_id=folder.disk_id.hex(),
                used_for=FOR_SEGMENTS,
            )
            write_owner(path, found)
        check_owner(path, found, folder.node_id, folder.disk_id.hex(), FOR_SEGMENTS)
        return found.disk_id

    def leave_out(self, path: Path, problem: str, dirs: DataDirs) -> None:
        """The disks that were at this path and are not: the node starts without them.

        Raises ConfigurationError when none ever was: then the setting is wrong, not the disk.
        """
        had = [name for name, known in self._known.items() if known.path == str(path)]
        if problem and not had:
            raise ConfigurationError(f"data_dirs: {path} cannot be used: {problem}")
        here = {disk.name for disk in dirs.disks}
        why = problem or "another disk is in its place"
        with_replicas = {disk_of(row.engine) for row in self._folder.control.rows()}
        for name in had:
            if name not in here and (problem or name in with_replicas):
                dirs.disks.append(Disk(name, str(path), None, problem=why))

    def check_all_named(self, dirs: DataDirs) -> None:
        """Remember the disks there are. Raises ConfigurationError when one has replicas and is not
        named any more."""
        control = self._folder.control
        named = {disk.name for disk in dirs.disks}
        left: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for row in control.rows():
            if disk_of(row.engine) not in named:
                left[disk_of(row.engine)][row.topic_id.hex()] += 1
        for name, topics in left.items():
            known = self._known.get(name)
            where = known.path if known else "a place that nobody remembers"
            raise ConfigurationError(
                f"data_dirs lacks {where} (disk {name}), which has {topics.total()} replicas:"
                f" {', '.join(f'{count} of topic {topic}' for topic, count in topics.items())}."
                " Name it again; or, if these copies are not needed any more:"
                f" icecore-node forget-disk {self._folder.path} --disk {name} --yes"
            )
        kept = {name: known for name, known in self._known.items() if name in named}
        control.known_disks.keep({**kept, **dict(dirs.known())})


def _unusable(error: OSError | StorageError | ValueError) -> Exception:
    if isinstance(error, OSError) and error.errno in _SHORTAGES:
        return OutOfResourcesError(f"a data dir can't be opened now: {error}")
    return _LeftOutError(str(error))


def check_layout(data: Path, data_dirs: Sequence[Path], index_dir: Path | None) -> None:
    """Raises ConfigurationError when two of the folders are one, or one lies in another."""
    named = [("data", data), *(("data_dirs", each) for each in data_dirs)]
    if index_dir is not None:
        named.append(("index_dir", index_dir))
    for (setting, one), (other_setting, other) in combinations(named, 2):
        first, second = one.resolve(), other.resolve()
        if first == second or _is_same(first, second):
            raise ConfigurationError(f"{setting} {one} and {other_setting} {other} are one folder")
        if first in second.parents or second in first.parents:
            raise ConfigurationError(
                f"{setting} {one} and {other_setting} {other}: one lies in the other"
            )


def _is_same(first: Path, second: Path) -> bool:
    try:
        return first.samefile(second)
    except OSError:
        return False
