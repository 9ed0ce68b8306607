"""The recycle pool: files of deleted segments, kept for their blocks.

Overwriting a file whose blocks exist already costs a third of writing a new one: no allocation,
no zeroing, warm pages. A pool file still holds the batches of its former lives. They are told from
new ones by their segment id, so a file is only given to a segment with a *higher* id than any it
has served.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from icecore.errors import OutOfResourcesError, StorageError
from icecore.model import SegmentId
from icecore.process.log import event
from icecore_node.ports import FileSystem
from icecore_node.storage.segment_engine.segment_log import LogSettings

FOLDER = "recycle"

_FREE_MIN = 0.2
"""Below this fraction of free space every byte goes back to the file system."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Kept:
    """One file of the pool."""

    name: str
    served: int
    """The highest segment id whose batches it may hold."""
    length_bytes: int


class RecyclePool:
    """Names are ``<highest segment id served>.<number>``; used by one thread at a time."""

    def __init__(
        self,
        file_system: FileSystem,
        settings: LogSettings,
        sync_folder: Callable[[str], None],
    ) -> None:
        """Take over what an earlier process kept, as far as there is room for it now.

        A file that can't be opened is left where it is: it holds nothing that anybody misses.

        Raises:
            StorageError: The folder cannot be read or changed.
        """
        self._fs = file_system
        self._settings = settings
        self._sync_folder = sync_folder
        file_system.make_dirs(FOLDER)
        self._files: list[_Kept] = []
        self._number = 0
        excess: list[str] = []
        for own_name in file_system.list_dir(FOLDER):
            served, _, number = own_name.partition(".")
            if not (served.isdigit() and number.isdigit()):
                continue
            name = f"{FOLDER}/{own_name}"
            self._number = max(self._number, int(number))
            try:
                length = self._length(name)
            except (StorageError, OutOfResourcesError) as error:
                event(_log, logging.WARNING, "not_recycled", file=name, error=error)
                continue
            if self._has_room(length):
                self._files.append(_Kept(name, int(served), length))
            else:
                excess.append(name)
        self._remove(excess)

    def _length(self, name: str) -> int:
        file = self._fs.open(name)
        try:
            return file.size()
        finally:
            file.close()

    def _has_room(self, length_bytes: int) -> bool:
        kept = sum(file.length_bytes for file in self._files)
        return kept + length_bytes <= self._settings.recycle_bytes_max

    def take(self, segment_id: SegmentId) -> str | None:
        """Name of a file to overwrite for ``segment_id``; the caller renames it."""
        for at, file in enumerate(self._files):
            if file.served < segment_id:
                del self._files[at]
                return file.name
        return None

    def put(self, name: str, segment_id: SegmentId) -> bool:
        """Move a file nobody reads into the pool; False when it isn't worth keeping.

        Durable once the caller has synced the folder it was in, and the pool's, which it does
        before anybody can take the file.

        Raises:
            StorageError: The rename failed.
        """
        used, free = self._fs.space()
        if free < _FREE_MIN * (used + free):
            self._remove([file.name for file in self._files])
            self._files.clear()
            return False
        length = self._length(name)
        if length < self._settings.recycle_bytes_min or not self._has_room(length):
            return False
        self._number += 1
        new = f"{FOLDER}/{segment_id:020d}.{self._number}"
        self._fs.rename(name, new)
        self._files.append(_Kept(new, segment_id, length))
        return True

    def _remove(self, names: list[str]) -> None:
        for name in names:
            self._fs.unlink(name)
        if names:
            self._sync_folder(FOLDER)
