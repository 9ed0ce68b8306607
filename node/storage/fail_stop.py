"""A sync that fails ends the process (I21): page cache and disk may differ from then on, unseen.

The kernel marks pages clean that it could not write, so that a second sync would succeed and prove
nothing. The next start therefore has to know: no log that was open is taken for whole.
"""

import logging
from collections.abc import Callable, Sequence

from icecore.errors import StorageError
from node.ports import DiskFailedError
from node.storage.control_store import ControlStore

_log = logging.getLogger(__name__)


class FailStop:
    """The only way to sync segment files and their folders.

    Args:
        control: Remembers the failure for the next start.
    """

    def __init__(self, control: ControlStore) -> None:
        self._control = control

    def sync(self, segment_ids: Sequence[int], sync: Callable[[], None]) -> None:
        """Call ``sync``.

        Args:
            segment_ids: Whose files it makes durable, for the log.
            sync: Raises StorageError when that is not so.

        Raises:
            DiskFailedError: The process must end.
        """
        try:
            sync()
        except StorageError as error:
            _log.critical("sync failed for segments %s: %s", list(segment_ids), error)
            try:
                self._control.put(poisoned=str(error).encode())
            except StorageError as another:
                _log.critical("and that could not be stored: %s", another)
            # Even "no space" here means that pages are lost: never an OutOfSpaceError.
            raise DiskFailedError(f"sync failed, the process must end: {error}") from error
