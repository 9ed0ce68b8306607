"""Seeded mistakes in what brings topics back from a bucket alone; see ``mistakes``."""

from collections.abc import Iterator, Sequence
from typing import Any

from icecore_coordinator.decisions.adoption import adopt
from icecore_coordinator.decisions.remote import tier_import
from icecore_coordinator.state.cluster_state import ClusterState
from icecore_coordinator.state.records import Change
from icecore_node.remote.verify import behind_table, restore_choice
from icecore_node.remote.verify.bucket import FoundManifest
from tests.simulation.mistakes import Mistake, patch


def late_uploads_stay_away() -> Mistake:
    """R102: what a table does not name, and what does not follow it, was retired."""

    def wrong(*_: Any, **__: Any) -> Iterator[FoundManifest]:
        return iter(())

    return patch(behind_table, "_new", wrong)


def deleted_topics_come_back() -> Mistake:
    """R99: whatever is there comes back."""

    def wrong(*_: Any, **__: Any) -> str:
        return ""

    return patch(restore_choice, "_why_not", wrong)


def log_starts_are_not_read() -> Mistake:
    """R99: a log starts where its first copy does."""
    right = tier_import.missing_records

    def wrong(
        state: ClusterState, topic_id: bytes, table_revisions: Sequence[int], *_: Any
    ) -> Change:
        return right(state, topic_id, table_revisions)

    return patch(tier_import, "missing_records", wrong)


def restored_offsets_are_given_out_again() -> Mistake:
    """R96: a partition goes on where its last copy ends."""

    def wrong(end_offset: int, log_start: int) -> int:
        return max(end_offset, log_start)

    return patch(tier_import, "base_behind", wrong)


def adopted_copies_are_not_published() -> Mistake:
    """R109: segments that object storage has come back, and their copies are forgotten."""
    return patch(adopt, "copy_records", lambda *_: [])
