"""A sync that fails ends the process at once (I21) and condemns the files it concerns (R53).

The kernel marks pages clean that it could not write, so that a second sync would succeed and prove
nothing; page cache and disk differ from then on, unseen. The next start therefore has to know which
logs may not be taken for whole. Those are the ones whose sync reported the error: a file that
nobody synced yet keeps its error for the sync that recovery begins with. A sync of folders that
fails while files are made concerns none: nobody has written to them.

Only the sync itself counts (SyncFailedError). A descriptor that could not be had to sync a folder
is raised as what it is, and nothing is lost.
"""

import logging
from collections.abc import Callable, Sequence

from icecore.errors import IcecoreError
from icecore.model import SegmentId
from icecore.process.log import event
from icecore_node.ports import DiskFailedError, SyncFailedError
from icecore_node.storage.engine import Condemn

_log = logging.getLogger(__name__)


class FailStop:
    """The only way to sync segment files and their folders.

    Args:
        condemn: Remembers the failure for the next start.
    """

    def __init__(self, condemn: Condemn) -> None:
        self._condemn = condemn

    def sync(self, segment_ids: Sequence[SegmentId], sync: Callable[[], None]) -> None:
        """Call ``sync``.

        Args:
            segment_ids: Whose log is in doubt if it fails.
            sync: Raises SyncFailedError when something did not become durable.

        Raises:
            DiskFailedError: The process must end.
        """
        try:
            sync()
        except SyncFailedError as error:
            event(_log, logging.CRITICAL, "sync_failed", segment_ids=segment_ids, error=error)
            try:
                self._condemn(dict.fromkeys(segment_ids, f"a sync had failed: {error}"))
            except IcecoreError as another:
                event(
                    _log,
                    logging.CRITICAL,
                    "failed_sync_not_stored",
                    segment_ids=segment_ids,
                    error=another,
                )
            # Even "no space" here means that pages are lost: never an OutOfSpaceError.
            raise DiskFailedError(f"sync failed, the process must end: {error}") from error
