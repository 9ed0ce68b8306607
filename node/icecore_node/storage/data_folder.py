"""One node's data folder: whose it is, that only one process uses it, and what lies where.

Layout: ``lock``, ``control.db`` (and its reserve), ``segments/``, ``recycle/``, ``index/``, and
``rocksdb/`` once a topic has that engine. The
folder carries a random cookie, its disk id: a node that comes back with another one has lost its
data, whatever else it claims.
"""

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
from icecore_node.storage.index.rocks import RocksIndex
from icecore_node.storage.rocksdb_engine.rocks_database import FOLDER, RocksLogDatabase

CONTROL_NAME = "control.db"

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
    _lock_fd: int

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
    ) -> Self:
        """Lock, check and open a folder; create what a new one lacks.

        Args:
            path: The folder; created with its parents.
            node_id: Of this node, >= 1.
            cluster_id: 16 bytes when the configuration names the cluster.
            syncfs: See ``OsFileSystem``.
            sync_threads: See ``OsFileSystem``.
            index_files_max: Descriptors the index may hold; the database of active logs a quarter.

        Raises:
            ConfigurationError: Another process uses it, or it cannot be written.
            WrongClusterError: It belongs to another node or cluster.
            StorageError: Its control store is damaged.
            OutOfResourcesError: No descriptors or memory to open it; nothing is wrong with it.
        """
        try:
            _make_durable(path)
            lock_fd = lock_folder(path)
        except OSError as error:
            raise ConfigurationError(f"data folder {path} cannot be used: {error}") from error
        control: ControlStore | None = None
        files: OsFileSystem | None = None
        try:
            control = _open_control(path)
            found = _check_owner(control, path, node_id, cluster_id)
            disk_id = control.database.get("disk_id") or os.urandom(16)
            control.database.put(node_id=node_id, disk_id=disk_id, cluster_id=found)
            files = OsFileSystem(path, syncfs=syncfs, sync_threads=sync_threads)
            for folder in ("segments", "recycle"):
                files.make_dirs(folder)
            files.sync_dir("")
            log_database = RocksLogDatabase(path / FOLDER, open_files_max=index_files_max // 4)
            index = RocksIndex(path / "index", open_files_max=index_files_max)
        except BaseException:
            if control is not None:
                control.close()
            if files is not None:
                files.close()
            os.close(lock_fd)
            raise
        return cls(
            path, node_id, found or b"", disk_id, files, index, log_database, control, lock_fd
        )

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
        """Persist the incarnation and the counter that it begins with; before the first beat."""
        self.control.disk.keep_incarnation(incarnation, disk_counter)

    def raise_disk_counter(self) -> int:
        """Persist the next counter, and return it."""
        return self.control.disk.raise_disk_counter()

    def close(self) -> None:
        """Release index, control store and lock. Close the store first."""
        self.index.close()
        self.log_database.close()
        self.control.close()
        self.files.close()
        os.close(self._lock_fd)


def _make_durable(path: Path) -> None:
    """Create a folder with its parents, each of them durable in its own parent. Raises OSError."""
    if path.is_dir():
        return
    _make_durable(path.parent)
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
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    return fd


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
