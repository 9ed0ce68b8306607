"""Seeded mistakes about time; see ``mistakes``."""

from icecore_coordinator.work.segments import segment_opening
from icecore_replication.producers import starting_without_mark
from tests.simulation.mistakes import Mistake, patch


def append_times_expire_producers() -> Mistake:
    """R97: who is forgotten follows append times, which one wrong clock moves."""

    def unmarked(snapshot: bytes, batches_kept: int, mark_ms: int) -> bytes:
        return starting_without_mark(snapshot, batches_kept, 0)

    return patch(segment_opening, "starting", unmarked)
