"""Seeded mistakes of nodes with several disks; see ``mistakes``."""

import contextlib
from collections.abc import Callable, Sequence

from icecore.model import SegmentId
from icecore_node.ports import SyncFailedError
from icecore_node.storage.control.fail_stop import FailStop
from tests.simulation.mistakes import Mistake, patch


def lost_disk_trusted() -> Mistake:
    """R83: a further disk goes on after a sync that failed there."""
    sync = FailStop.sync

    def wrong(self: FailStop, segment_ids: Sequence[SegmentId], call: Callable[[], None]) -> None:
        if self._loss is None:
            sync(self, segment_ids, call)
            return
        with contextlib.suppress(SyncFailedError):
            call()

    return patch(FailStop, "sync", wrong)
