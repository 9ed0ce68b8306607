"""Seeded mistakes in what becomes of copies that there are too many of; see ``mistakes``."""

from typing import Any

from icecore.model import Segment
from icecore_coordinator.decisions import sealed_copies
from icecore_coordinator.work.copies.surplus import SurplusCopies
from icecore_node.maintenance.file_deletions import FileDeletions
from tests.simulation.mistakes import Mistake, patch


def listed_is_enough() -> Mistake:
    """R93: a copy on a node that is down counts as one that is kept."""
    return patch(SurplusCopies, "_is_sound", lambda self, node_id, segment_id: True)


def strays_stay() -> Mistake:
    """R93: bytes that never counted as a copy are nobody's business."""
    return patch(sealed_copies, "strays", lambda record: [])


def dropped_for_ever() -> Mistake:
    """R93: who has dropped a copy takes none of that segment again."""
    drop = FileDeletions.drop_surplus

    def wrong(self: Any, record: Segment) -> None:
        self._orders.note_deleted(record.segment_id)
        drop(self, record)

    return patch(FileDeletions, "drop_surplus", wrong)
