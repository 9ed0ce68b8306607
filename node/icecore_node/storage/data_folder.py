"""One node's data folder: whose it is, that only one process uses it, and what lies where.

Layout: ``lock``, ``control.db`` (and its reserve), ``segments/``, ``recycle/``, ``shared/`` and
``rocksdb/`` once topics have those, ``index/``, which may lie in a folder of its own
(``index_dir``). The folder carries a random cookie, its disk id: a node that comes back with
another one has lost its data, whatever else it claims.
"""

import errno
import fcntl
import logging
import os
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from icecore.errors import ConfigurationError, StorageError, WrongClusterError
from icecore.model import Incarnation, NodeId
from icecore.process.log import event
from icecore_node.storage.control.control_store import ControlStore
from icecore_node.storage.files.file_system import OsFileSystem
from icecore_node.storage.files.whole_sync import SyncFs
from icecore_node.storage.folder_owner import (
    FOR_INDEX,
    OWNER_NAME,
    FolderOwner,
    check_owner,
    read_owner,
    write_owner,
)
from icecore_node.storage.index.rocks import RocksIndex
from icecore_node.storage.rocksdb_engine.rocks_database import FOLDER, RocksLogDatabase

CONTROL_NAME = "control.db"
COORDINATOR_FILE = "metadata.sqlite3"
"""Only a coordinator's data folder has it."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class DataFolder:
    """An open data folder. ``close`` releases everything it holds."""

    path: Path
    node_id: NodeId
    cluster_id: bytes
    """Empty before the first registration."""
    disk_id: bytes
    """16 random bytes, made with the folder."""
    files: OsFileSystem
    index: RocksIndex
    log_database: RocksLogDatabase
    control: ControlStore
    _lock_fds: list[int]

    @classmethod
    def open(
        cls,
        path: Path,
        node_id: NodeId,
        cluster_id: bytes | None = None,
        *,
        syncfs: SyncFs = "auto",
        sync_threads: int = 2,
        index_files_max: int = 256,
        index_dir: Path | None = None,
    ) -> Self:
        """Lock, check and open a folder; create what a new one lacks.

        Args:
            path: The folder; created with its parents.
            node_id: Of this node, >= 1.
            cluster_id: 16 bytes when the configuration names the cluster.
            syncfs: See ``OsFileSystem``.
            sync_threads: See ``OsFileSystem``.
            index_files_max: Descriptors the index may hold; the database of active logs a quarter.
            index_dir: Where it lies; None = in the data folder.

        Raises:
            ConfigurationError: Another process uses it, or it cannot be written.
            WrongClusterError: It belongs to another node or cluster.
            StorageError: Its control store is damaged.
            OutOfResourcesError: No descriptors or memory to open it; nothing is wrong with it.
        """
        if (path / OWNER_NAME).exists():
            raise ConfigurationError(f"{path} is a data dir or an index dir, and no data folder")
        if (path / COORDINATOR_FILE).exists():
            raise ConfigurationError(
                f"{path} is the data folder of a coordinator: give --data the node's own folder"
            )
        try:
            make_durable(path)
            lock_fd = lock_folder(path)
        except OSError as error:
            raise ConfigurationError(
                f"data folder {path} cannot be used: {error.strerror or error}. Give --data a "
                "folder that this user may write"
            ) from error
        control: ControlStore | None = None
        files: OsFileSystem | None = None
        index_lock_fd = -1
        try:
            control = _open_control(path)
            found = _check_owner(control, path, node_id, cluster_id)
            disk_id = control.database.get("disk_id") or new_disk_id()
            control.database.put(node_id=node_id, disk_id=disk_id, cluster_id=found)
            files = OsFileSystem(path, syncfs=syncfs, sync_threads=sync_threads)
            for folder in ("segments", "recycle"):
                files.make_dirs(folder)
            files.sync_dir("")
            index_lock_fd = _own_index_dir(index_dir, node_id, disk_id.hex())
            index = _open_index(index_dir or path, control, index_files_max, index_dir)
            log_database = RocksLogDatabase(path / FOLDER, open_files_max=index_files_max // 4)
        except BaseException:
            if index_lock_fd >= 0:
                os.close(index_lock_fd)
            if control is not None:
                control.close()
            if files is not None:
                files.close()
            os.close(lock_fd)
            raise
        locks = [lock_fd, index_lock_fd]
        return cls(path, node_id, found or b"", disk_id, files, index, log_database, control, locks)

    @property
    def incarnation(self) -> Incarnation:
        """The last one persisted, 0 when none."""
        return self.control.disk.incarnation

    def join_cluster(self, cluster_id: bytes) -> None:
        """Bind the folder to a cluster at the first registration, durably.

        Raises:
            WrongClusterError: It is bound to another one.
        """
        self.control.disk.join_cluster(cluster_id)
        self.cluster_id = cluster_id

    @property
    def disk_counter(self) -> int:
        """The last one persisted, 0 when none."""
        return self.control.disk.disk_counter

    def keep_incarnation(self, incarnation: Incarnation, disk_counter: int) -> None:
        """Persist the incarnation and the counter that it begins with; before the first
        heartbeat."""
        self.control.disk.keep_incarnation(incarnation, disk_counter)

    @property
    def metadata_revision(self) -> int:
        """The last one persisted, 0 when none."""
        return self.control.disk.metadata_revision

    def raise_disk_counter(self, metadata_revision: int) -> int:
        """Persist the next counter and the revision heard of, and return the counter."""
        return self.control.disk.raise_disk_counter(metadata_revision)

    def close(self) -> None:
        """Release index, control store and lock. Close the store first."""
        self.index.close()
        self.log_database.close()
        self.control.close()
        self.files.close()
        for fd in self._lock_fds:
            if fd >= 0:
                os.close(fd)


def new_disk_id() -> bytes:
    """Return a random id for a folder that is used for the first time."""
    return os.urandom(16)


def make_durable(path: Path) -> None:
    """Create a folder with its parents, each of them durable in its own parent. Raises OSError."""
    if path.is_dir():
        return
    make_durable(path.parent)
    path.mkdir(exist_ok=True)
    fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def lock_folder(path: Path) -> int:
    """Be the only process that uses a data folder until the descriptor is closed.

    Raises ConfigurationError when another process uses it.
    """
    fd = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        owner = os.pread(fd, 32, 0).decode("ascii", "replace").strip()
        os.close(fd)
        raise ConfigurationError(
            f"data folder {path} is already in use by pid {owner or 'unknown'}"
        ) from error
    try:
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    except OSError as error:  # on a full disk it is locked all the same, without a name
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            os.close(fd)
            raise
    return fd


def _own_index_dir(index_dir: Path | None, node_id: NodeId, disk_id: str) -> int:
    """Lock a folder for the index of this node; -1 when there is none.

    Raises ConfigurationError, and WrongClusterError when it is somebody else's.
    """
    if index_dir is None:
        return -1
    try:
        make_durable(index_dir)
        lock_fd = lock_folder(index_dir)
        try:
            found = read_owner(index_dir)
            if found is None:
                found = FolderOwner(
                    disk_id=new_disk_id().hex(),
                    node_id=node_id,
                    node_disk_id=disk_id,
                    used_for=FOR_INDEX,
                )
                write_owner(index_dir, found)
            check_owner(index_dir, found, node_id, disk_id, FOR_INDEX)
        except BaseException:
            os.close(lock_fd)
            raise
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"index_dir {index_dir} cannot be used: {error}") from error
    return lock_fd


def _open_index(
    home: Path, control: ControlStore, files_max: int, index_dir: Path | None
) -> RocksIndex:
    """The index where it is now. What lies there from before it was elsewhere tells of logs as they
    were then, which is worse than nothing: it goes."""
    index = RocksIndex(home / "index", open_files_max=files_max)
    place = b"" if index_dir is None else str(index_dir.resolve()).encode()
    if (control.database.get("index_place") or b"") != place:
        event(_log, logging.WARNING, "index_moved", folder=home / "index")
        index.wipe()
        control.database.put(index_place=place)
    return index


def _open_control(path: Path) -> ControlStore:
    name = path / CONTROL_NAME
    if not name.exists() and any(path.glob("segments/*/*/*.log")):
        # Nothing is deleted and nothing is trusted: a new cookie makes it all UNKNOWN.
        event(_log, logging.ERROR, "control_store_missing", path=path)
    try:
        return ControlStore(name)
    except (StorageError, sqlite3.Error) as error:
        raise StorageError(
            f"the control store of {path} is damaged ({error}); restore it, or start this node "
            "with an empty folder: it will copy its data from the other replicas"
        ) from error


def _check_owner(
    control: ControlStore, path: Path, node_id: NodeId, cluster_id: bytes | None
) -> bytes | None:
    """The cluster the folder belongs to."""
    database = control.database
    stored_node, stored_cluster = database.get_number("node_id"), database.get("cluster_id")
    if stored_node and stored_node != node_id:
        raise WrongClusterError(
            f"data folder {path} belongs to node {stored_node}, this is node {node_id}"
        )
    if stored_cluster and cluster_id and stored_cluster != cluster_id:
        raise _wrong_cluster(path, stored_cluster, cluster_id)
    return stored_cluster or cluster_id


def _wrong_cluster(path: Path, stored: bytes, given: bytes) -> WrongClusterError:
    return WrongClusterError(
        f"data folder {path} belongs to cluster {stored.hex()}, not to {given.hex()}"
    )
