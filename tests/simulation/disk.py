"""A disk that forgets: what the page cache shows, what is durable, and what a power cut leaves.

``SimDisk`` outlives processes; each life of a process mounts it and gets a ``SimFileSystem`` that
stops working with that life. A SIGKILL leaves the page cache alone. A power cut decides for each
unsynced 512-byte sector whether it is kept, dropped or garbled, for each unsynced size whether it
is the old or the new one, for each unsynced create, rename and unlink whether it happened, and for
each folder whose parent was not synced whether it is there at all.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from icecore.errors import OutOfResourcesError, OutOfSpaceError, StorageError
from icecore_node.ports import Buffer, File, SyncFailedError
from tests.simulation.inode import BLOCK_BYTES, Inode
from tests.simulation.log_disk import SimLogDisk
from tests.simulation.machine import Machine, io_error
from tests.simulation.process import ProcessKilled, SimProcess

UNLIMITED_BYTES = 1 << 40
UNLIMITED_DESCRIPTORS = 1 << 20


@dataclass(frozen=True, slots=True)
class NameChange:
    """One create (``old`` empty), rename, or unlink (``new`` empty) that is not durable yet."""

    old: str
    new: str
    inode: Inode


@dataclass
class DiskFaults:
    """The disk faults that are about to happen; the world sets these."""

    capacity_bytes: int = UNLIMITED_BYTES
    stuck_space: tuple[int, int] | None = None
    """(used, free) bytes that it shows whatever is deleted; None = those that are true."""
    failing_syncs: int = 0
    """Number of the next fdatasync calls that fail, with the pages marked clean."""
    failed_syncs: int = 0
    """Number of fdatasync calls that failed."""
    opens_left: int | None = None
    """Number of files and folders that can still be opened; then there are no descriptors. None =
    any."""
    failed_opens: int = 0
    """Number of files and folders that could not be opened."""
    operations_to_live: int | None = None
    """Number of changing operations after which the process dies in the middle of one."""
    on_mid_death: Callable[[], None] | None = field(default=None, repr=False)


class SimDisk:
    """One disk: a tree of names over inodes, and what of it is durable."""

    def __init__(self) -> None:
        self.names: dict[str, Inode] = {}
        self.durable_names: dict[str, Inode] = {}
        self.folders: set[str] = {""}
        self.new_folders: set[str] = set()
        """Those whose parent was not synced since they were made."""
        self.pending: list[NameChange] = []
        self.faults = DiskFaults()
        self.database = SimLogDisk()
        """The database of active logs, in a folder of its own."""
        self.syncs = 0
        self.can_sync_all = False

    def power_cut(self, rng: random.Random) -> None:
        """Lose what was not synced. The caller has killed the process that had this mounted."""
        gone = [folder for folder in sorted(self.new_folders) if rng.random() < 0.5]
        self.new_folders.clear()
        self.folders = {each for each in self.folders if not _is_in(each, gone)}
        names = {n: inode for n, inode in self.durable_names.items() if not _is_in(n, gone)}
        for change in self.pending:
            if rng.random() < 0.5 and not _is_in(change.new, gone):
                self._apply(names, change)
        self.names = names
        self.durable_names = dict(names)
        self.pending.clear()
        for inode in dict.fromkeys(names[name] for name in sorted(names)):
            inode.power_cut(rng)
        self.database.power_cut(rng)

    def changed(self, change: NameChange) -> None:
        self._apply(self.names, change)
        self.pending.append(change)

    @staticmethod
    def _apply(names: dict[str, Inode], change: NameChange) -> None:
        if change.old:
            names.pop(change.old, None)
        if change.new:
            names[change.new] = change.inode

    def sync_names(self, folder: str | None) -> None:
        """Make changes in one folder durable, or in all. A rename between folders is atomic, and no
        change of a name overtakes an earlier one of it."""
        kept: list[NameChange] = []
        due: list[NameChange] = []
        names: set[str] = set()
        for change in reversed(self.pending):
            mine = {name for name in (change.old, change.new) if name}
            if folder is None or folder in map(_folder, mine) or mine & names:
                due.append(change)
                names |= mine
            else:
                kept.append(change)
        for change in reversed(due):
            self._apply(self.durable_names, change)
        self.pending = kept[::-1]
        is_kept = folder is not None
        self.new_folders = {new for new in self.new_folders if is_kept and _folder(new) != folder}

    def named(self, suffix: str) -> Inode | None:
        """The file whose name ends so."""
        return next((inode for name, inode in self.names.items() if name.endswith(suffix)), None)

    def limit(self, capacity_bytes: int | None) -> None:
        """Return how much there is room for; None = plenty."""
        self.faults.capacity_bytes = UNLIMITED_BYTES if capacity_bytes is None else capacity_bytes

    def used_bytes(self) -> int:
        inodes = dict.fromkeys(self.names.values())
        return sum(inode.used_bytes() for inode in inodes)

    def charge(self, inode: Inode, first_byte: int, end_byte: int) -> None:
        """Give blocks to a file. Raises OutOfSpaceError before anything changed."""
        wanted = range(first_byte // BLOCK_BYTES, (end_byte + BLOCK_BYTES - 1) // BLOCK_BYTES)
        missing = [number for number in wanted if number not in inode.allocated]
        limit = self.faults.capacity_bytes
        limited = missing and limit < UNLIMITED_BYTES
        if limited and self.used_bytes() + len(missing) * BLOCK_BYTES > limit:
            raise OutOfSpaceError("simulated disk is full")
        inode.allocated.update(missing)

    def changing(self) -> None:
        """Count one changing operation; maybe the process dies right here."""
        faults = self.faults
        if faults.operations_to_live is None:
            return
        faults.operations_to_live -= 1
        if faults.operations_to_live < 0:
            faults.operations_to_live = None
            if faults.on_mid_death is not None:
                faults.on_mid_death()
            raise ProcessKilled("died in the middle of a disk operation")

    def opening(self) -> None:
        """Take a descriptor. Raises OutOfResourcesError before anything changed."""
        faults = self.faults
        if faults.opens_left is None:
            return
        if faults.opens_left == 0:
            faults.failed_opens += 1
            raise OutOfResourcesError("simulated: too many open files")
        faults.opens_left -= 1

    def flip_bit(self, name: str, bit: int) -> None:
        """Rot one durable bit of a file."""
        position, offset = divmod(bit, 8)
        self.durable_names[name].flip_bit(position, offset)


class SimFile:
    """icecore_node.ports.File over one inode."""

    def __init__(self, system: "SimFileSystem", inode: Inode, name: str) -> None:
        self._system = system
        self._inode = inode
        self._name = name
        self._closed = False

    def _use(self) -> Inode:
        self._system.check()
        if self._closed:
            raise StorageError(f"{self._name}: file is closed")
        return self._inode

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> None:
        """Write all, or die in between."""
        inode = self._use()
        disk = self._system.disk
        total = sum(memoryview(buffer).nbytes for buffer in buffers)
        trouble = self._system.machine.begin("pwritev", self._name)
        disk.charge(inode, position, position + total)
        if trouble is not None:
            first = memoryview(buffers[0]).cast("B") if buffers else b""
            inode.write(first[: len(first) // 2 * trouble.partly], position)
            raise io_error("pwritev", self._name)
        for buffer in buffers:
            disk.changing()
            inode.write(buffer, position)
            position += memoryview(buffer).nbytes

    def pread(self, length: int, position: int) -> bytes:
        """From the page cache."""
        inode = self._use()
        self._system.machine.check("pread", self._name)
        return inode.read(length, position)

    def start_write_back(self, position: int, length: int) -> None:
        """Promises nothing: what was not synced may be lost all the same."""
        self._use()

    def fdatasync(self) -> None:
        """Make the content and size durable, or fail as disks do."""
        inode = self._use()
        disk = self._system.disk
        self._system.machine.begin("fdatasync")
        disk.changing()
        disk.syncs += 1
        if disk.faults.failing_syncs > 0:
            disk.faults.failing_syncs -= 1
            disk.faults.failed_syncs += 1
            inode.forget_dirty()
            raise SyncFailedError(f"{self._name}: fdatasync: simulated I/O error")
        inode.sync()

    def drop_cached(self, position: int) -> None:
        """Show pages that a failed sync left as if clean as they are on disk."""
        self._use().drop_lost(position)

    def allocate(self, position: int, length: int) -> None:
        """Reserve blocks; the size grows as with posix_fallocate."""
        inode = self._use()
        disk = self._system.disk
        self._system.machine.check("allocate", self._name)
        disk.charge(inode, position, position + length)
        disk.changing()
        inode.size = max(inode.size, position + length)

    def truncate(self, length: int) -> None:
        """Durable after fdatasync."""
        inode = self._use()
        self._system.machine.check("truncate", self._name)
        self._system.disk.changing()
        inode.truncate(length)

    def size(self) -> int:
        """As the page cache knows it."""
        return self._use().size

    def next_data(self, position: int) -> int:
        """Return the next position with data, by blocks; reserved blocks have none."""
        return self._use().next_data(position)

    def close(self) -> None:
        """Idempotent; makes nothing durable."""
        self._closed = True


class SimFileSystem:
    """icecore_node.ports.FileSystem: one mount of a disk by one life of a process."""

    def __init__(
        self, disk: SimDisk, process: SimProcess | None, machine: Machine | None = None
    ) -> None:
        self.disk = disk
        self.machine = machine or Machine()
        self._process = process

    def check(self) -> None:
        """Raise ProcessKilled for zombies."""
        if self._process is not None:
            self._process.check()

    def open(self, name: str, *, create: bool = False) -> File:
        """As node.ports."""
        self.check()
        name = _clean(name)
        self.disk.opening()
        self.machine.check("open", name)
        inode = self.disk.names.get(name)
        if create:
            if inode is not None:
                raise StorageError(f"{name}: exists already")
            if _folder(name) not in self.disk.folders:
                raise StorageError(f"{name}: no such folder")
            self.disk.changing()
            inode = Inode()
            self.disk.changed(NameChange("", name, inode))
        elif inode is None:
            raise StorageError(f"{name}: no such file")
        return SimFile(self, inode, name)

    def exists(self, name: str) -> bool:
        """File or folder."""
        self.check()
        return _clean(name) in self.disk.names or _clean(name) in self.disk.folders

    def make_dirs(self, *names: str) -> None:
        """Durable on return, as the port demands; not before."""
        self.check()
        folders = dict.fromkeys(folder for name in names for folder in _parents(_clean(name)))
        for folder in folders:
            if folder not in self.disk.folders:
                self.disk.changing()
                self.disk.folders.add(folder)
                self.disk.new_folders.add(folder)
        for folder in folders:
            if folder in self.disk.new_folders:
                self.sync_dir(_folder(folder))

    def list_dir(self, name: str) -> list[str]:
        """Sorted."""
        self.check()
        folder = _clean(name)
        self.machine.check("list_dir", folder)
        everything = [*self.disk.names, *(other for other in self.disk.folders if other)]
        return sorted(path.rpartition("/")[2] for path in everything if _folder(path) == folder)

    def rename(self, old: str, new: str) -> None:
        """Atomic, replaces; durable after sync_dir."""
        self.check()
        old, new = _clean(old), _clean(new)
        inode = self.disk.names.get(old)
        if inode is None:
            raise StorageError(f"{old}: no such file")
        self.machine.check("rename", old)
        self.disk.changing()
        self.disk.changed(NameChange(old, new, inode))

    def unlink(self, name: str) -> None:
        """Durable after sync_dir."""
        self.check()
        name = _clean(name)
        inode = self.disk.names.get(name)
        if inode is None:
            raise StorageError(f"{name}: no such file")
        self.machine.check("unlink", name)
        self.disk.changing()
        self.disk.changed(NameChange(name, "", inode))

    def sync_dir(self, name: str) -> None:
        """Names of one folder."""
        self.check()
        self.disk.opening()
        self.machine.check("sync_dir", _clean(name))
        self.disk.changing()
        self.disk.sync_names(_clean(name))

    def sync_all(self) -> None:
        """Everything."""
        self.check()
        self.machine.begin("sync_all")
        self.disk.changing()
        self.disk.syncs += 1
        if self.disk.faults.failing_syncs > 0:
            self.disk.faults.failing_syncs -= 1
            self.disk.faults.failed_syncs += 1
            raise SyncFailedError("syncfs: simulated I/O error")
        for inode in dict.fromkeys(self.disk.names.values()):
            inode.sync()
        self.disk.sync_names(None)

    @property
    def can_sync_all(self) -> bool:
        """A knob of the run."""
        return self.disk.can_sync_all

    def space(self) -> tuple[int, int]:
        """(used, free) bytes."""
        if self.disk.faults.stuck_space is not None:
            return self.disk.faults.stuck_space
        used = self.disk.used_bytes()
        return used, max(0, self.disk.faults.capacity_bytes - used)

    def descriptors(self) -> tuple[int, int]:
        """(used, free): another process may use up what the machine has, unseen from here."""
        return 0, UNLIMITED_DESCRIPTORS


def _clean(name: str) -> str:
    return "/".join(part for part in name.split("/") if part not in ("", "."))


def _folder(name: str) -> str:
    return name.rpartition("/")[0] if name else "/"


def _is_in(name: str, folders: Sequence[str]) -> bool:
    """Return whether a name is one of these folders, or lies in one."""
    return any(name == folder or name.startswith(f"{folder}/") for folder in folders)


def _parents(name: str) -> Iterator[str]:
    parts = name.split("/")
    for count in range(len(parts) + 1):
        yield "/".join(parts[:count])
