"""Choose how the topic of a scenario is stored: in a way that promises to survive it.

Each is drawn with the scenario, and named in its line; what is checked is the same for all of them.
A log in memory survives one process at a time, all others any number (docs/topics.md). Scenarios
that damage the files of active segments, fill small disks, or let no error surface have files of
their own, synced with each append.
"""

from typing import Any, Final

from icecore.topic_settings import MEMORY_ENGINE, ROCKSDB_ENGINE, SHARED_FILE, FlushMode

STORAGE: Final[dict[str, dict[str, Any]]] = {
    "files": {},
    "shared": {"file_model": SHARED_FILE},
    "rocksdb": {"engine": ROCKSDB_ENGINE},
    "async": {"flush_mode": FlushMode.ASYNC, "flush_interval_ms": 200},
    "memory": {"engine": MEMORY_ENGINE},
    "tiered": {"tier": "on", "local_retention_ms": 1_000},
}
"""Settings of the topic, by the name of the way it is stored."""
OWN_FILES: Final = ("files",)
TIERED: Final = ("tiered",)
"""Segments leave the nodes a second after their upload: the cluster has an object store."""
SURVIVES_PROCESSES: Final = ("files", "shared", "rocksdb", "async")
SURVIVES_ONE_PROCESS: Final = (*SURVIVES_PROCESSES, "memory")
