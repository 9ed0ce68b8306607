"""The invariants of a hand-over, checked with each step of it: one whole log is always on disk, and
the record of the replica names its location (I17, I20)."""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any

from icecore.topic_settings import MEMORY_ENGINE, ROCKSDB_ENGINE
from icecore_node.storage.control.control_store import ReplicaRow
from icecore_node.storage.engine import LogEnd, SegmentIdentity
from icecore_node.storage.engines import SHARED_ENGINE
from icecore_node.storage.hand_over import HandOver
from icecore_node.storage.memory_engine.memory_engine import MemoryEngine
from icecore_node.storage.rocksdb_engine.rocksdb_engine import RocksdbEngine
from icecore_node.storage.segment_engine.segment_names import file_name
from icecore_node.storage.shared_engine.shared_engine import SharedEngine
from tests.simulation.process import PROCESS
from tests.simulation.stored_logs import files_to_delete, identity_of, replica_rows

if TYPE_CHECKING:
    from tests.simulation.cluster import Host, World


class HandOverInvariants:
    """Knows what is on disk, whatever a node remembers of it.

    Args:
        world: All hosts of it.
        note: Told of each thing that must not be.
    """

    def __init__(self, world: "World", note: Callable[[str], None]) -> None:
        self._world = world
        self._note = note

    def _host(self) -> "Host | None":
        """Return the host of the process that runs; None outside of one."""
        process = PROCESS.get()
        return None if process is None else self._world.hosts.get(process.name)

    def on_remembered(self, row: ReplicaRow, end: LogEnd) -> None:
        """A record is about to name a file: all of it is durable, under its name."""
        host = self._host()
        if host is None:
            return
        inode = host.durable_file(file_name(identity_of(host, row)))
        if inode is None or not inode.is_durable(end.position):
            self._note(f"I17: segment {row.segment_id} is handed over and not durable in its file")

    def on_dropped(self, location: str, identities: Sequence[SegmentIdentity]) -> None:
        """An engine lets go of logs: somebody else keeps them, or they are to be deleted."""
        host = self._host()
        if host is None:
            return
        ordered = files_to_delete(host)
        for identity in identities:
            for row in replica_rows(host, identity.segment_id):
                is_kept_here = (row.engine, row.generation) == (location, identity.generation)
                if is_kept_here and file_name(identity_of(host, row)) not in ordered:
                    self._note(f"I17: {location} lets go of segment {row.segment_id} and keeps it")


Watched = tuple[type, str, Callable[[Any], Any]]


def watched(seen: HandOverInvariants) -> list[Watched]:
    """Each function that is looked at, and what replaces it."""
    engines = (
        (SHARED_ENGINE, SharedEngine),
        (ROCKSDB_ENGINE, RocksdbEngine),
        (MEMORY_ENGINE, MemoryEngine),
    )
    return [
        (HandOver, "_remember", _remembering(seen)),
        *((engine, "drop", _dropping(seen, location)) for location, engine in engines),
    ]


def _remembering(seen: HandOverInvariants) -> Callable[[Any], Any]:
    def replace(original: Callable[..., None]) -> Callable[..., None]:
        @wraps(original)
        def remember(self: HandOver, copying: Any, end: LogEnd) -> None:
            seen.on_remembered(copying.row, end)
            original(self, copying, end)

        return remember

    return replace


def _dropping(seen: HandOverInvariants, location: str) -> Callable[[Any], Any]:
    def replace(original: Callable[..., None]) -> Callable[..., None]:
        @wraps(original)
        def drop(self: Any, identities: Sequence[SegmentIdentity]) -> None:
            seen.on_dropped(location, identities)
            original(self, identities)

        return drop

    return replace
