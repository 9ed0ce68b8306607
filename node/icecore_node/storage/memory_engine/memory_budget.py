"""How much logs in memory may take together; what finds no room is refused as by a full disk.

Producers are refused before (``storage/memory_levels.py``), at a share of ``memory_engine_bytes``.
What other nodes lead may take as much again, and what a segment needs to be sealed is not bound at
all: a segment that is never sealed never makes room.
"""

from typing import Final

from icecore.errors import OutOfSpaceError
from icecore_node.storage.files.locks import Lock

BATCH_BYTES: Final = 256
"""Memory that a batch takes besides its bytes: an object and its position."""
COPIES_SHARE: Final = 2
"""Times ``memory_engine_bytes``: from there on appends fail, but for what ends a segment."""


class MemoryBudget:
    """A bound that all logs of a node share; used by all I/O workers.

    Args:
        bytes_max: Setting ``memory_engine_bytes``.
    """

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used_bytes = 0
        self._lock = Lock()

    def take(self, size_bytes: int, batches: int, *, is_bound: bool = True) -> None:
        """Count batches that come. Raises OutOfSpaceError, and counts nothing, when they are bound
        by a limit that they exceed."""
        need = size_bytes + batches * BATCH_BYTES
        with self._lock:
            if is_bound and self.used_bytes + need > COPIES_SHARE * self.bytes_max:
                raise OutOfSpaceError(
                    f"active segments in memory take {self.used_bytes} bytes, {need} more are "
                    f"beyond {COPIES_SHARE} times memory_engine_bytes {self.bytes_max}"
                )
            self.used_bytes += need

    def give_back(self, size_bytes: int, batches: int) -> None:
        """Count batches that went."""
        with self._lock:
            self.used_bytes -= size_bytes + batches * BATCH_BYTES
