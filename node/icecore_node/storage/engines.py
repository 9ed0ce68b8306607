"""Which storage engines a node has. The one place that names them; another one is a line here."""

from icecore.model import MEMORY_ENGINE, ROCKSDB_ENGINE, SEGMENT_ENGINE
from icecore_node.ports import FileSystem, Index
from icecore_node.storage.control.control_store import ControlStore
from icecore_node.storage.engine import Engine
from icecore_node.storage.memory_engine.memory_budget import MemoryBudget
from icecore_node.storage.memory_engine.memory_engine import LogMemory, MemoryEngine
from icecore_node.storage.replica_store import ReplicaStore
from icecore_node.storage.rocksdb_engine.log_database import LogDatabase
from icecore_node.storage.rocksdb_engine.rocksdb_engine import RocksdbEngine
from icecore_node.storage.segment_engine.segment_engine import SegmentEngine
from icecore_node.storage.segment_engine.segment_log import StoreSettings

_DEFAULTS = StoreSettings()


def make_store(
    file_system: FileSystem,
    index: Index,
    control: ControlStore,
    cluster_id: bytes,
    settings: StoreSettings = _DEFAULTS,
    log_database: LogDatabase | None = None,
) -> ReplicaStore:
    """The store of one data folder, with all engines; call its ``start_up`` before anything else.

    Args:
        file_system: The data folder.
        index: For what engines derive from their bytes.
        control: What must never be forgotten.
        cluster_id: Empty before the first registration.
        settings: Sizes.
        log_database: For active logs; without one there is no engine ``rocksdb``.

    Raises:
        StorageError: The folder can't be used.
    """
    memory = LogMemory(MemoryBudget(settings.memory_engine_bytes))
    engines: dict[str, Engine] = {
        SEGMENT_ENGINE: SegmentEngine(file_system, index, settings, control.condemn),
        MEMORY_ENGINE: MemoryEngine(memory, control.condemn),
    }
    if log_database is not None:
        engines[ROCKSDB_ENGINE] = RocksdbEngine(
            log_database, settings.group_bytes_max, control.condemn
        )
    return ReplicaStore(control, engines, cluster_id)
