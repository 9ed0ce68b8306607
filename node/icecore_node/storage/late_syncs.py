"""Logs that are synced later than they are written (``flush_mode=async``), as engines see them.

An engine that knows nothing of it syncs each append, which is as good.
"""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from icecore.model import SegmentId


@runtime_checkable
class LateSyncs(Protocol):
    """An engine that may put off the syncs of a log with ``flush`` bounds.

    It says so in ``AppendRequest.sync_within_ms``. What was written then counts as if it were
    durable: it outlives the process. Whether it outlived a power cut the caller asks nobody; it
    takes such a log for lost (R80), so an index may tell of more than the disk has.
    """

    def sync(self, segment_ids: Sequence[SegmentId], *, from_now_on: bool = False) -> None:
        """Make durable what was put off so far. Logs that are not here, or sealed, have nothing.

        Their worker may append meanwhile, on another thread.

        Args:
            segment_ids: Of any logs.
            from_now_on: Put off nothing more of these logs. The caller is their worker.

        Raises:
            DiskFailedError: As ``Engine.append_group``.
        """
        ...
