"""The storage engines of a node. This is the one place that names them; another one is a line here.

The segment engine works on every disk, one of it for each; all others on the first disk.
"""

from dataclasses import replace
from typing import Final

from icecore.errors import SHORTAGES, IcecoreError
from icecore.topic_settings import MEMORY_ENGINE, ROCKSDB_ENGINE, SEGMENT_ENGINE, SHARED_FILE
from icecore_node.ports import DiskFailedError, FileSystem, Index
from icecore_node.storage.control.control_store import ControlStore
from icecore_node.storage.control.disk_identity import FIRST_DISK, location_of
from icecore_node.storage.disk_levels import DiskLimits
from icecore_node.storage.disks import Disk, Disks
from icecore_node.storage.engine import Engine
from icecore_node.storage.memory_engine.memory_budget import MemoryBudget
from icecore_node.storage.memory_engine.memory_engine import MemoryEngine
from icecore_node.storage.memory_engine.memory_remains import LogMemory
from icecore_node.storage.replica_store import ReplicaStore
from icecore_node.storage.rocksdb_engine.log_database import LogDatabase
from icecore_node.storage.rocksdb_engine.rocksdb_engine import RocksdbEngine
from icecore_node.storage.segment_engine.segment_engine import SegmentEngine
from icecore_node.storage.segment_engine.segment_log import LogSettings
from icecore_node.storage.shared_engine.shared_engine import SharedEngine

SHARED_ENGINE: Final = f"{SEGMENT_ENGINE}/{SHARED_FILE}"
"""``active_engine`` of settings with that file model."""
_DEFAULTS = LogSettings()


def make_store(
    file_system: FileSystem,
    index: Index,
    control: ControlStore,
    cluster_id: bytes,
    settings: LogSettings = _DEFAULTS,
    boot_id: str = "",
    disks: Disks | None = None,
    log_database: LogDatabase | None = None,
) -> ReplicaStore:
    """The store of one data folder, with all engines; call its ``start_up`` before anything else.

    Args:
        file_system: The data folder.
        index: For what engines derive from their bytes.
        control: What must never be forgotten.
        cluster_id: Empty before the first registration.
        settings: Sizes, for all disks together.
        disks: The data folder, and others; None = there is only that one.
        boot_id: See ``LastStop``.
        log_database: For active logs; without one there is no engine ``rocksdb``.

    Raises:
        StorageError: The folder can't be used.
    """
    disks = disks or Disks(control, [Disk(FIRST_DISK, "", file_system)], DiskLimits())
    settings = _share_of_each(settings, disks.count)
    files = SegmentEngine(file_system, index, settings, control.condemn)
    further: dict[str, SegmentEngine] = {}
    for disk in disks.further():
        try:
            further[location_of(SEGMENT_ENGINE, disk.name)] = SegmentEngine(
                disk.mounted,
                index,
                settings,
                control.condemn,
                loss=disks.loss_of(disk.name),
                beside=files,
            )
        except (DiskFailedError, *SHORTAGES):
            raise
        except IcecoreError as error:
            disks.loss_of(disk.name).leave_out(f"it can't be used: {error}")
    disks.memory = memory = LogMemory(MemoryBudget(settings.memory_engine_bytes))
    engines: dict[str, Engine] = {
        SEGMENT_ENGINE: files,
        **further,
        SHARED_ENGINE: SharedEngine(file_system, files.derived_index, settings, control.condemn),
        MEMORY_ENGINE: MemoryEngine(memory, control.condemn),
    }
    if log_database is not None:
        engines[ROCKSDB_ENGINE] = RocksdbEngine(
            log_database, settings.group_bytes_max, control.condemn
        )
    further_sealed_logs = {name: each.sealed_logs for name, each in further.items()}
    return ReplicaStore(
        control, engines, cluster_id, boot_id, files.sealed_logs, disks, further_sealed_logs
    )


def _share_of_each(settings: LogSettings, disks: int) -> LogSettings:
    """Divide the limits of a node equally among its disks, whose engines do not share them."""
    if disks == 1:
        return settings
    return replace(
        settings,
        open_files_max=max(1, settings.open_files_max // disks),
        recycle_bytes_max=settings.recycle_bytes_max // disks,
        recent_entries_bytes_max=settings.recent_entries_bytes_max // disks,
        open_indexes_max=max(1, settings.open_indexes_max // disks),
    )
