"""How the process before this one ended, and what that says of bytes that were never synced (R80).

Such bytes are all there if the process synced them and said so (a *clean stop*), or if the page
cache has outlived it: the kernel's boot id is the one that the process had stored. Otherwise
nobody knows which of them the disk has.
"""

import logging

from icecore.errors import IcecoreError
from icecore.process.log import event
from icecore_node.storage.control.control_database import ControlDatabase

_log = logging.getLogger(__name__)


class LastStop:
    """The facts about the previous process that one data folder has stored."""

    def __init__(self, database: ControlDatabase) -> None:
        self._database = database

    def kept_all(self, boot_id: str) -> bool:
        """Whether all that the process before wrote is there.

        Args:
            boot_id: Of the machine as it runs now; empty when nobody can tell.
        """
        stored = (self._database.get("boot_id") or b"").decode("ascii", "replace")
        return self._database.get("clean_stop") is not None or stored == boot_id != ""

    def begin(self, boot_id: str) -> None:
        """From now on something may be written that is not synced. Durable before any of it is, and
        after what ``kept_all`` says was acted on: a crash in between must find the same answer."""
        self._database.put(clean_stop=None, boot_id=boot_id.encode())

    def end(self) -> None:
        """Everything is synced and nothing more will be written. A marker that can't be stored
        makes an unclean stop of this one."""
        try:
            self._database.put(clean_stop=1)
        except IcecoreError as error:
            event(_log, logging.WARNING, "clean_stop_not_stored", error=error)
