"""The recycle pool: files of deleted segments, kept for their blocks.

Overwriting a file whose blocks exist already costs a third of writing a new one: no allocation,
no zeroing, warm pages. A pool file still holds the batches of its former lives. They are told from
new ones by their segment id, so a file is only given to a segment with a *higher* id than any it
has served.
"""

from node.ports import FileSystem
from node.storage.segment_log import StoreSettings

FOLDER = "recycle"

_FREE_MIN = 0.2
"""Below this fraction of free space every byte goes back to the file system."""


class RecyclePool:
    """Names are ``<highest segment id served>.<number>``; used by one thread at a time."""

    def __init__(self, file_system: FileSystem, settings: StoreSettings) -> None:
        self._fs = file_system
        self._settings = settings
        file_system.make_dirs(FOLDER)
        self._files: list[tuple[int, str]] = []
        self._number = 0
        for name in file_system.list_dir(FOLDER):
            segment_id, _, number = name.partition(".")
            if segment_id.isdigit() and number.isdigit():
                self._files.append((int(segment_id), f"{FOLDER}/{name}"))
                self._number = max(self._number, int(number))

    def __len__(self) -> int:
        return len(self._files)

    def take(self, segment_id: int) -> str | None:
        """Name of a file to overwrite for ``segment_id``; the caller renames it."""
        for at, (served, name) in enumerate(self._files):
            if served < segment_id:
                del self._files[at]
                return name
        return None

    def put(self, name: str, segment_id: int, length: int) -> bool:
        """Move a file nobody reads into the pool, durably; False when it isn't worth keeping.

        Raises:
            StorageError: The rename or a directory sync failed.
        """
        used, free = self._fs.space()
        if free < _FREE_MIN * (used + free):
            self._give_back()
            return False
        is_worth = length >= self._settings.recycle_bytes_min
        if not is_worth or len(self._files) >= self._settings.recycle_files_max:
            return False
        self._number += 1
        new = f"{FOLDER}/{segment_id:020d}.{self._number}"
        self._fs.rename(name, new)
        self._fs.sync_dir(name.rpartition("/")[0])
        self._fs.sync_dir(FOLDER)
        self._files.append((segment_id, new))
        return True

    def _give_back(self) -> None:
        for _, name in self._files:
            self._fs.unlink(name)
        if self._files:
            self._fs.sync_dir(FOLDER)
        self._files.clear()
