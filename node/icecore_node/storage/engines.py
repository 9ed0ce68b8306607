"""Which storage engines a node has. The one place that names them; another one is a line here."""

from typing import Final

from icecore.model import MEMORY_ENGINE, SEGMENT_ENGINE, SHARED_FILE
from icecore_node.ports import FileSystem, Index
from icecore_node.storage.control.control_store import ControlStore
from icecore_node.storage.engine import Engine
from icecore_node.storage.memory_engine.memory_budget import MemoryBudget
from icecore_node.storage.memory_engine.memory_engine import MemoryEngine
from icecore_node.storage.memory_engine.memory_remains import LogMemory
from icecore_node.storage.replica_store import ReplicaStore
from icecore_node.storage.segment_engine.segment_engine import SegmentEngine
from icecore_node.storage.segment_engine.segment_log import StoreSettings
from icecore_node.storage.shared_engine.shared_engine import SharedEngine

SHARED_ENGINE: Final = f"{SEGMENT_ENGINE}/{SHARED_FILE}"
"""``active_engine`` of settings with that file model."""
_DEFAULTS = StoreSettings()


def make_store(
    file_system: FileSystem,
    index: Index,
    control: ControlStore,
    cluster_id: bytes,
    settings: StoreSettings = _DEFAULTS,
    boot_id: str = "",
) -> ReplicaStore:
    """The store of one data folder, with all engines; call its ``start_up`` before anything else.

    Args:
        file_system: The data folder.
        index: For what engines derive from their bytes.
        control: What must never be forgotten.
        cluster_id: Empty before the first registration.
        settings: Sizes.
        boot_id: See ``LastStop``.

    Raises:
        StorageError: The folder can't be used.
    """
    memory = LogMemory(MemoryBudget(settings.memory_engine_bytes))
    files = SegmentEngine(file_system, index, settings, control.condemn)
    engines: dict[str, Engine] = {
        SEGMENT_ENGINE: files,
        SHARED_ENGINE: SharedEngine(file_system, files.derived_index, settings, control.condemn),
        MEMORY_ENGINE: MemoryEngine(memory, control.condemn),
    }
    return ReplicaStore(control, engines, cluster_id, boot_id, files.sealed_logs)
