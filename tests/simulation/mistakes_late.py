"""Seeded mistakes about logs that are synced late, and about copies that are given up; see
``mistakes``."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from icecore.model import NodeId, Segment
from icecore_coordinator.decisions import lossy_changes, segment_changes
from icecore_coordinator.state.records import Change
from icecore_coordinator.work.recovery import decided_case, total_loss
from icecore_node.replica.replica_log import ReplicaLog
from icecore_node.storage.control.disk_identity import LastStop
from icecore_node.storage.segment_engine.segment_engine import SegmentEngine
from icecore_replication.recovery import FenceReply
from tests.simulation.mistakes import Mistake, patch


def async_replica_counts_after_crash() -> Mistake:
    """R80: what is found counts, whatever may be missing behind it."""

    def wrong(self: LastStop, boot_id: str) -> bool:
        return True

    return patch(LastStop, "kept_all", wrong)


def stale_clean_marker() -> Mistake:
    """R80: the marker of a clean stop stays."""

    def wrong(self: LastStop, boot_id: str) -> None:
        self._database.put(boot_id=boot_id.encode())

    return patch(LastStop, "begin", wrong)


def late_seal_not_synced() -> Mistake:
    """R81: what a log ends with is told before it is synced."""

    async def wrong(self: ReplicaLog) -> None:
        pass

    return patch(ReplicaLog, "stay_synced", wrong)


def stop_without_sync() -> Mistake:
    """R80: a stop calls itself clean, and has synced nothing."""

    def wrong(self: SegmentEngine, segment_ids: object, *, from_now_on: bool = False) -> None:
        pass

    return patch(SegmentEngine, "sync", wrong)


@contextmanager
def restart_empty_too_early() -> Iterator[None]:
    """R82: who does not answer counts for nothing."""

    def wrong(replies: Mapping[NodeId, FenceReply], segment: Segment) -> bool:
        return bool(replies) and not any(reply.intact for reply in replies.values())

    with patch(lossy_changes, "is_total_loss", wrong), patch(total_loss, "is_total_loss", wrong):
        yield


@contextmanager
def offsets_are_given_out_again() -> Iterator[None]:
    """R96: a partition goes on at the end that nothing proves."""

    def wrong(end_offset: int, seen_end_offset: int) -> int:
        return end_offset

    def nothing(*_: object) -> Change:
        return Change()

    with (
        patch(segment_changes, "base_behind", wrong),
        patch(decided_case, "base_behind", wrong),
        patch(segment_changes, "left_out", nothing),
    ):
        yield
