"""Choose the disk on which a new log is made, and remember it (``disk_identity.py``)."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from icecore_node.storage.control.control_store import ReplicaRow
from icecore_node.storage.control.disk_identity import engine_of, location_of
from icecore_node.storage.disk_levels import DiskLevel, DiskLimits, disk_level
from icecore_node.storage.disks import Room
from icecore_node.storage.replica_catalog import ReplicaCatalog
from icecore_node.storage.segment_engine.segment_names import file_name, unfinished_copy_name


def choose_disk(rooms: Sequence[Room], limits: DiskLimits) -> str:
    """Return where a new log goes: to the most free bytes for each log that grows there.

    So logs are shared out by free bytes, also while none of them has grown yet. A disk beyond its
    watermark, or one that may just have been, gets one only where all are.
    """
    assert rooms, "a node has at least its first disk"

    def rank(room: Room) -> tuple[bool, float]:
        level = disk_level(room.used_bytes, room.free_bytes, limits, DiskLevel.READ_ONLY)
        return level is DiskLevel.ROOMY, room.free_bytes / (room.growing + 1)

    return max(rooms, key=rank).disk


class DiskChoice:
    """Chooses disks for new logs. All methods block."""

    def __init__(self, catalog: ReplicaCatalog) -> None:
        self._catalog = catalog
        self._disks = catalog.disks

    def placed(self, rows: Sequence[ReplicaRow]) -> list[ReplicaRow]:
        """New replicas, each with its location.

        Raises StorageError when the first disk can't say how full it is.
        """
        if self._disks.count == 1 or not rows:
            return list(rows)
        rooms = {room.disk: room for room in self._disks.rooms()}
        found = []
        for row in rows:
            disk = self._disk_of(row, rooms.values())
            rooms[disk] = replace(rooms[disk], growing=rooms[disk].growing + 1)
            found.append(replace(row, engine=location_of(engine_of(row.engine), disk)))
        return found

    def _disk_of(self, row: ReplicaRow, rooms: Iterable[Room]) -> str:
        """A crash may have left a file of this log that no record knows, or half a copy: it is made
        there again, so that its engine judges what that file had been."""
        engine = engine_of(row.engine)
        able = [room for room in rooms if location_of(engine, room.disk) in self._catalog.engines]
        identity = row.identity(self._catalog.cluster_id)
        for room in able:
            for name in (file_name(identity), unfinished_copy_name(identity)):
                if self._disks.has_file(room.disk, name):
                    return room.disk
        return choose_disk(able, self._disks.limits)
