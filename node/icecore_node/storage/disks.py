"""The disks of a node: which of them count, how full they are, and where a new log goes.

The first one has the control store, and the node does not outlive it. A further one that fails, or
is not there at the start, takes its replicas with it and nothing else: they are UNKNOWN, the
cluster makes others, and the node goes on (R83).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from icecore.errors import IcecoreError
from icecore.model import SegmentId
from icecore_node.ports import DiskLostError, FileSystem
from icecore_node.storage.control.control_store import ControlStore
from icecore_node.storage.control.disk_identity import FIRST_DISK, disk_of
from icecore_node.storage.control.fail_stop import DiskLoss
from icecore_node.storage.disk_levels import DiskLimits
from icecore_node.storage.port import NO_MEMORY, DiskSpace, HeldMemory

_OnLost = Callable[[Sequence[SegmentId], str], object]


@dataclass(frozen=True, slots=True)
class Disk:
    """One folder of the node; ``files`` is None where it can't be used."""

    name: str
    """``FIRST_DISK``, or its id in hexadecimal."""
    path: str
    files: FileSystem | None
    device: int = 0
    """Folders with the same one share their space."""
    problem: str = ""
    """Why it can't be used."""

    @property
    def mounted(self) -> FileSystem:
        """The files of a disk that can be used."""
        assert self.files is not None, f"{self.path}: {self.problem}"
        return self.files


@dataclass(frozen=True, slots=True)
class Room:
    """The space of a disk and its growing logs, to choose where a new log goes."""

    disk: str
    used_bytes: int
    free_bytes: int
    growing: int
    """Logs there that are not sealed."""


class Disks:
    """``StoredDisks``. Thread-safe.

    Args:
        control: Remembers what was on them.
        disks: The first one, then the others.
        limits: A disk beyond them gets no new logs while others do.
    """

    def __init__(self, control: ControlStore, disks: Sequence[Disk], limits: DiskLimits) -> None:
        self._control = control
        self._disks = {disk.name: disk for disk in disks}
        self.limits = limits
        self.memory: HeldMemory = NO_MEMORY
        """See ``StoredDisks.memory``; whoever makes engines without a disk sets it."""
        self._losses = {
            disk.name: DiskLoss(disk.path, partial(self._lost, disk.name))
            for disk in disks
            if disk.name != FIRST_DISK
        }
        self._on_lost: _OnLost = lambda segment_ids, why: None
        for disk in disks:
            if disk.problem:
                self._losses[disk.name].leave_out(disk.problem)

    def tell(self, on_lost: _OnLost) -> None:
        """See ``StoredDisks.tell``."""
        self._on_lost = on_lost

    def further(self) -> list[Disk]:
        """Those that can be used, but for the first one."""
        return [
            disk
            for disk in self._disks.values()
            if disk.name != FIRST_DISK and not self._losses[disk.name].why
        ]

    def loss_of(self, disk: str) -> DiskLoss:
        """Return the ``DiskLoss`` of a further disk."""
        return self._losses[disk]

    @property
    def count(self) -> int:
        """Return how many there are, usable or not."""
        return len(self._disks)

    def problem(self, location: str) -> str:
        """Return why the disk of a location does not count; empty when it does."""
        disk = disk_of(location)
        if disk == FIRST_DISK:
            return ""
        loss = self._losses.get(disk)
        return f"this node has no disk {disk}" if loss is None else loss.why

    def check(self, location: str) -> None:
        """Raises DiskLostError when the disk of a location does not count."""
        if why := self.problem(location):
            raise DiskLostError(f"disk {disk_of(location)}: {why}")

    def _lost(self, disk: str, why: str) -> None:
        """UNKNOWN first, durably, then everybody on this node hears of it."""
        ids = [row.segment_id for row in self._control.rows() if disk_of(row.engine) == disk]
        self._control.condemn(dict.fromkeys(ids, f"its disk is lost: {why}"))
        self._on_lost(ids, f"its disk is lost: {why}")

    # --- space --------------------------------------------------------------------------------

    def usage(self) -> list[DiskSpace]:
        """See ``StoredDisks.usage``."""
        found = []
        for disk in self._disks.values():
            used, free, problem = 0, 0, self.problem(f"@{disk.name}")
            if not problem and disk.files is not None:
                try:
                    used, free = disk.files.space()
                except IcecoreError as error:
                    if disk.name == FIRST_DISK:
                        raise
                    problem = error.message
            found.append(DiskSpace(disk.name, disk.path, used, free, problem))
        return found

    def space(self) -> tuple[int, int]:
        """See ``StoredDisks.space``."""
        by_device = {
            self._disks[each.name].device: (each.used_bytes, each.free_bytes)
            for each in self.usage()
            if not each.problem
        }
        used, free = zip(*by_device.values(), strict=True)
        return sum(used), sum(free)

    def on(self, segment_id: SegmentId) -> str:
        """See ``StoredDisks.on``."""
        row = self._control.row(segment_id)
        return FIRST_DISK if row is None else disk_of(row.engine)

    # --- where a new log goes -------------------------------------------------------------------

    def rooms(self) -> list[Room]:
        """Return the room on each disk that counts."""
        growing = dict.fromkeys(self._disks, 0)
        for row in self._control.rows():
            if row.end_offset < 0 and disk_of(row.engine) in growing:
                growing[disk_of(row.engine)] += 1
        return [
            Room(each.name, each.used_bytes, each.free_bytes, growing[each.name])
            for each in self.usage()
            if not each.problem
        ]

    def has_file(self, disk: str, name: str) -> bool:
        """Return whether such a file is there."""
        files = self._disks[disk].files
        return files is not None and files.exists(name)
