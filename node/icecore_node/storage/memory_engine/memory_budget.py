"""Budget of all logs in memory: the most that they take together, and the levels from which
tails roll and producers wait. A log without room is refused as by a full disk.

Producers are refused before (``is_tight``), at a share of ``memory_engine_bytes``.
What other nodes lead may take as much again, and what a segment needs to be sealed is not bound at
all: a segment that is never sealed never makes room.
"""

from collections.abc import Mapping
from typing import Final, TypeVar

from icecore.errors import OutOfSpaceError
from icecore_node.storage.files.locks import Lock
from icecore_node.storage.port import HeldMemory

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


# --- levels ---------------------------------------------------------------------------------------

# How full the memory of active logs is, and which tails roll so that it does not get full. Pure.
#
# ``segment_bytes`` says when one segment is full, and knows nothing of the others: the tails of
# many partitions would take all of ``memory_engine_bytes`` before one of them is due. A log in
# memory that finds no room costs its partition the leader, so a node acts before: from half on
# tails roll, the largest first, and go to disk; near the end whoever produces has to wait.


ROLL_SHARE: Final = 0.5
"""So much of it all open tails together may take."""
TIGHT_SHARE: Final = 0.875
"""From here on producers wait, and leaders elsewhere are asked to roll."""
ROLLS_AT_ONCE: Final = 64

SPARE_SHARE: Final = 0.125
"""Up to here nobody counts, for no topic has so many replicas that it could be tight."""

Tail = TypeVar("Tail")


def is_tight(memory: HeldMemory, promised_bytes: int = 0) -> bool:
    """Return whether nothing more is taken in. What was promised to replicas counts if it is
    more."""
    return max(memory.used_bytes, promised_bytes) > TIGHT_SHARE * memory.bytes_max


def tails_to_roll(
    led_bytes: Mapping[Tail, int], promised_bytes: int, followed_bytes: int, bytes_max: int
) -> list[Tail]:
    """The tails to roll now, the largest first.

    Args:
        led_bytes: What each tail takes that is led here and was not asked yet.
        promised_bytes: What all copies of these take. Who leads most of what there is has to roll
            it, though memory elsewhere holds as much of it.
        followed_bytes: What tails take that are led elsewhere. Their leaders roll them: here as
            much goes as is our share of what is too much.
        bytes_max: Of all logs in memory.
    """
    own_bytes = sum(led_bytes.values())
    open_bytes = max(own_bytes + followed_bytes, promised_bytes)
    left_bytes = (open_bytes - ROLL_SHARE * bytes_max) * own_bytes / max(1, open_bytes)
    found: list[Tail] = []
    for tail in sorted(led_bytes, key=lambda each: -led_bytes[each])[:ROLLS_AT_ONCE]:
        if left_bytes <= 0:
            break
        found.append(tail)
        left_bytes -= led_bytes[tail]
    return found
