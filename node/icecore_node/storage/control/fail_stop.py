"""A sync that fails ends the process at once (I21) and condemns the files it concerns (R53).

The kernel marks pages clean that it could not write, so that a second sync would succeed and prove
nothing; page cache and disk differ from then on, unseen. The next start therefore has to know which
logs may not be taken for whole. Those are the ones whose sync reported the error: a file that
nobody synced yet keeps its error for the sync that recovery begins with. A sync of folders that
fails while files are made concerns none: nobody has written to them.

On a further disk (``data_dirs``) it ends the disk instead of the process: what must be remembered
of it lies on the first one. From that moment on no sync there succeeds, not even one that was under
way in another thread, so that nothing is acknowledged that rests on this disk (``DiskLoss``).

Only the sync itself counts (SyncFailedError). A descriptor that could not be had to sync a folder
is raised as what it is, and nothing is lost.
"""

import logging
from collections.abc import Callable, Sequence

from icecore.errors import IcecoreError
from icecore.model import SegmentId
from icecore.process.log import event
from icecore_node.ports import DiskFailedError, DiskLostError, SyncFailedError
from icecore_node.storage.engine import Condemn
from icecore_node.storage.files.locks import Lock

_log = logging.getLogger(__name__)


class DiskLoss:
    """The verdict on a further disk: it counts, or no longer.

    Args:
        path: Of the disk.
        on_lost: Condemns all that lies there, durably, and tells the node; called once, with why.
    """

    def __init__(self, path: str, on_lost: Callable[[str], None]) -> None:
        self._path = path
        self._on_lost = on_lost
        self._lock = Lock()
        self.why = ""
        """Empty while it counts; never empty again."""

    def check(self) -> None:
        """Raises DiskLostError once it is lost."""
        if self.why:
            raise DiskLostError(f"disk {self._path} is lost: {self.why}")

    def lose(self, why: str) -> None:
        """From now on it counts no more.

        Raises:
            IcecoreError: That could not be stored; nothing succeeds there all the same.
        """
        with self._lock:
            is_first, self.why = not self.why, self.why or why
        if is_first:
            event(_log, logging.CRITICAL, "disk_lost", disk=self._path, why=why)
            self._on_lost(why)

    def leave_out(self, why: str) -> None:
        """At the start: it can't be used in this life of the node. Nothing is condemned, for what
        is there may be as it was when it comes back."""
        self.why = why
        event(_log, logging.CRITICAL, "disk_left_out", disk=self._path, why=why)


class FailStop:
    """The only way to sync segment files and their folders.

    Args:
        condemn: Remembers the failure for the next start.
        loss: Of a further disk; None on the first one, with which the process ends.
    """

    def __init__(self, condemn: Condemn, loss: DiskLoss | None = None) -> None:
        self._condemn = condemn
        self._loss = loss

    def sync(self, segment_ids: Sequence[SegmentId], sync: Callable[[], None]) -> None:
        """Call ``sync``.

        Args:
            segment_ids: Whose log is in doubt if it fails.
            sync: Raises SyncFailedError when something did not become durable.

        Raises:
            DiskFailedError: The process must end.
            DiskLostError: Of a further disk: nothing there counts any more.
        """
        loss = self._loss
        if loss is not None:
            loss.check()
        try:
            sync()
        except SyncFailedError as error:
            event(_log, logging.CRITICAL, "sync_failed", segment_ids=segment_ids, error=error)
            try:
                if loss is None:
                    self._condemn(dict.fromkeys(segment_ids, f"a sync had failed: {error}"))
                else:
                    loss.lose(f"a sync had failed: {error}")
            except IcecoreError as another:
                event(
                    _log,
                    logging.CRITICAL,
                    "failed_sync_not_stored",
                    segment_ids=segment_ids,
                    error=another,
                )
            else:
                if loss is not None:
                    loss.check()
            # Even "no space" here means that pages are lost: never an OutOfSpaceError.
            raise DiskFailedError(f"sync failed, the process must end: {error}") from error
        if loss is not None:
            loss.check()
