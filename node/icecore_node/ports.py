"""The node's own ports: files, the index database, the I/O threads, reads of object storage.

Production stands in ``node/storage`` (files, index) and ``io/executor.py`` (threads); the
simulator has a disk that loses unsynced sectors, an index that loses its tail, and threads that
are turns of its event loop. Each pair passes one conformance suite (``tests/conformance``).
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeVar, TypeVarTuple

from icecore.errors import StorageError
from icecore.model import Incarnation

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
Buffer: TypeAlias = bytes | bytearray | memoryview


class SyncFailedError(StorageError):
    """An ``fsync``, ``fdatasync`` or ``syncfs`` itself failed, whatever its errno.

    Only this is the end of a process (``control/fail_stop.py``): a folder that could not be
    opened to sync it has lost nothing.
    """


class DiskFailedError(StorageError):
    """A sync failed: what the kernel shows and what is on disk differ from now on.

    Never caught by a request: the executor ends the process (fail-stop), and the logs it concerns
    are UNKNOWN from the next start on.
    """


class DiskLostError(StorageError):
    """A further disk of the node failed, or was not there at the start.

    Nothing on it counts any more and nothing is written there, but the node goes on: what it must
    never forget lies on its first disk.
    """


class File(Protocol):
    """One open file. Blocking; called from I/O workers and reader threads only.

    Raises OutOfSpaceError for ENOSPC, EDQUOT and EFBIG, OutOfResourcesError for descriptors and
    memory, SyncFailedError for a sync that failed, StorageError for any other failure.
    """

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> None:
        """Write all bytes at ``position`` (short writes are continued)."""
        ...

    def pread(self, length: int, position: int) -> bytes:
        """Up to ``length`` bytes; fewer only at the end of the file."""
        ...

    def start_write_back(self, position: int, length: int) -> None:
        """A hint: ``fdatasync`` will follow, the disk may begin. Promises nothing, never fails."""
        ...

    def fdatasync(self) -> None:
        """Make written bytes durable. Raises SyncFailedError: never trust the file again."""
        ...

    def drop_cached(self, position: int) -> None:
        """Read from the disk itself from ``position`` on, as far as nothing waits to be written.

        After ``fdatasync``: a sync that failed earlier, perhaps in another process, has left bytes
        in the page cache that are not on disk and count as written. Never fails; where the system
        can't do it, it does nothing.
        """
        ...

    def allocate(self, position: int, length: int) -> None:
        """Reserve space so that later writes there can't fail for lack of it."""
        ...

    def truncate(self, length: int) -> None:
        """Cut (or extend with zeros) to ``length`` bytes; durable after fdatasync."""
        ...

    def size(self) -> int:
        """Length in bytes."""
        ...

    def next_data(self, position: int) -> int:
        """The first position from here on that may hold anything but zeros; the size, if none.

        Space that was only reserved is passed over without reading it. Where the system doesn't
        know, it is ``position`` itself. After ``fdatasync``: of bytes that wait to be written not
        every file system tells the truth.
        """
        ...

    def close(self) -> None:
        """Close; idempotent."""
        ...


class FileSystem(Protocol):
    """A folder tree. Names are relative to the data folder, with ``/``.

    Creates, renames and removals are durable only after ``sync_dir`` of their folder. Raises as
    ``File`` does.
    """

    def open(self, name: str, *, create: bool = False) -> File:
        """Open for reading and writing. ``create`` demands that it does not exist yet."""
        ...

    def exists(self, name: str) -> bool:
        """Return whether the file or folder is there."""
        ...

    def make_dirs(self, *names: str) -> None:
        """Create folders and their parents, durably; fine when they exist. What many have in
        common is synced once for all of them."""
        ...

    def list_dir(self, name: str) -> list[str]:
        """Sorted names in a folder; empty when it does not exist."""
        ...

    def rename(self, old: str, new: str) -> None:
        """Atomic replace."""
        ...

    def unlink(self, name: str) -> None:
        """Remove a file."""
        ...

    def sync_dir(self, name: str) -> None:
        """Make creates, renames and removals in this folder durable.

        Raises SyncFailedError when the sync failed, anything else when it was never tried.
        """
        ...

    def sync_all(self) -> None:
        """One ``syncfs`` for everything written (only called where ``can_sync_all``).

        An error reaches every thread whose writes it concerns. Raises SyncFailedError.
        """
        ...

    @property
    def can_sync_all(self) -> bool:
        """Return whether ``sync_all`` is safe and reports errors here."""
        ...

    def space(self) -> tuple[int, int]:
        """(used, free) bytes of the file system that holds the folder."""
        ...

    def descriptors(self) -> tuple[int, int]:
        """(used, free) file descriptors of this process: files, sockets, all of them."""
        ...


class Folder(Protocol):
    """Durable facts of the data folder: its cluster, disk id, incarnation and disk counter
    (``storage/data_folder.py``)."""

    cluster_id: bytes
    """Empty before the first registration."""
    disk_id: bytes

    @property
    def incarnation(self) -> Incarnation:
        """The last one persisted, 0 when none."""
        ...

    @property
    def disk_counter(self) -> int:
        """The last one persisted, 0 when none."""
        ...

    def join_cluster(self, cluster_id: bytes) -> None:
        """Bind the folder to a cluster. Raises WrongClusterError when it is bound to another."""
        ...

    def keep_incarnation(self, incarnation: Incarnation, disk_counter: int) -> None:
        """Persist the incarnation, and a counter above all that were heard of before."""
        ...

    @property
    def metadata_revision(self) -> int:
        """The last revision of the metadata store persisted, 0 when none."""
        ...

    def raise_disk_counter(self, metadata_revision: int) -> int:
        """Persist the next counter and the revision heard of, and return the counter."""
        ...


class Index(Protocol):
    """An ordered key-value store with column families; derived data, rebuilt when damaged.

    Thread-safe. Raises StorageError when damaged, OutOfSpaceError when full, OutOfResourcesError
    for descriptors and memory.
    """

    def write(self, puts: Iterable[tuple[str, bytes, bytes]]) -> None:
        """One atomic, unsynced batch of (family, key, value)."""
        ...

    def get(self, family: str, key: bytes) -> bytes | None:
        """The value of a key."""
        ...

    def floor(self, family: str, key: bytes, lower: bytes) -> tuple[bytes, bytes] | None:
        """The last (key, value) with ``lower`` <= its key <= ``key``."""
        ...

    def scan(self, family: str, lower: bytes, upper: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Pairs with ``lower`` <= key < ``upper``, in order."""
        ...

    def delete_range(self, family: str, lower: bytes, upper: bytes) -> None:
        """Forget all keys in [lower, upper)."""
        ...

    def flush(self) -> None:
        """Make all batches durable (done about once a second, off the hot path)."""
        ...

    def wipe(self) -> None:
        """Throw everything away and begin empty: what is left of a damaged one is worth nothing.

        No other call may be under way but ``flush``.
        """
        ...

    def close(self) -> None:
        """Close cleanly."""
        ...


class WorkerQueue(Protocol[T]):
    """A queue drained in groups by one I/O thread (in the simulator: by turns of the loop)."""

    @property
    def is_idle(self) -> bool:
        """Return whether it is open, and the results of all that was submitted have been
        delivered."""
        ...

    def submit(self, item: T) -> None:
        """Enqueue from the loop; never blocks (callers bound what they submit)."""
        ...

    def run_here(self, group: list[T]) -> None:
        """Process a group and deliver its result before this returns, on the loop's own thread.

        Only while the queue is idle, so that no two threads ever process at once; a failure ends
        the process as it does on the worker's thread.
        """
        ...

    def close(self) -> None:
        """Process what is queued, then end the thread."""
        ...


class Runner(Protocol):
    """Threads for functions that block."""

    def run(self, function: Callable[[*Ts], T], *args: *Ts) -> Awaitable[T]:
        """Run a blocking function on a pool of reader threads."""
        ...


class Executor(Runner, Protocol):
    """Threads."""

    def worker(
        self,
        name: str,
        process: Callable[[list[T]], object],
        deliver: Callable[[object], None],
        *,
        group_items_max: int,
    ) -> WorkerQueue[T]:
        """A thread that blocks for the first item, drains what else is there, calls ``process``
        with the group on the thread, then ``deliver`` with its result on the loop: one loop
        call per group. An exception from ``process`` ends the process (fail-stop)."""
        ...

    def run_first(self, function: Callable[[*Ts], T], *args: *Ts) -> Awaitable[T]:
        """Run a short function like ``run``, on threads of its own. Heartbeats and promises use it,
        which must not wait behind long work."""
        ...

    def close(self) -> None:
        """End all threads."""
        ...


# --- reads of object storage ----------------------------------------------------------------------

# Ports that a node needs for reads of object storage. Light to import: most nodes have none.


@dataclass(frozen=True, slots=True)
class RemotePorts:
    """Ports of one node's remote reads."""

    executor: Executor
    """Threads for these alone: no read of a local disk waits behind them."""
    files: FileSystem
    """File system in which the disk cache keeps its folder."""
