"""The end of files: what follows when a delete order is stored (R69).

The order is in the control store before anything here begins, so each step may be repeated, by a
later process too: let go of the log, keep the file for its blocks or unlink it, make that durable,
forget the index. One sync per folder and one of the index serve a whole group.
"""

from collections.abc import Callable, Sequence

from icecore.model import SegmentId
from icecore_node.ports import FileSystem
from icecore_node.storage.engine import SegmentIdentity
from icecore_node.storage.index import points
from icecore_node.storage.segment_engine.index_files import IndexFiles
from icecore_node.storage.segment_engine.recycle import FOLDER, RecyclePool
from icecore_node.storage.segment_engine.segment_log import SegmentLog
from icecore_node.storage.segment_engine.segment_names import (
    file_name,
    files_of,
    folder_name,
    unfinished_copy_name,
)


class Removal:
    """Removes files of logs whose deletion is stored; used by one thread at a time.

    Args:
        file_system: Of the data folder.
        index: Its entries go too.
        pool: Takes files whose blocks are worth keeping.
        sync_folder: Makes names durable; ends the process if that fails.
        forget: Takes a log out of use, if there is one.
        index_files: Those go too.
    """

    def __init__(
        self,
        file_system: FileSystem,
        index: points.EntryStore,
        pool: RecyclePool,
        sync_folder: Callable[[str], None],
        forget: Callable[[SegmentId], SegmentLog | None],
        index_files: IndexFiles,
    ) -> None:
        self._fs = file_system
        self._index = index
        self._pool = pool
        self._sync_folder = sync_folder
        self._forget = forget
        self._index_files = index_files

    def remove(self, identities: Sequence[SegmentIdentity]) -> None:
        """Remove files and index entries, durably.

        Raises StorageError when a file is in the way.
        """
        folders: dict[str, None] = {}
        try:
            for identity in identities:
                self._remove(identity, folders)
        finally:  # what is done is durable, also when one of them failed
            for folder in folders:
                self._sync_folder(folder)
        points.forget(self._index, *map(points.key_prefix, identities))

    def _remove(self, identity: SegmentIdentity, folders: dict[str, None]) -> None:
        """One log's file and what was set aside of it; adds the folders to sync."""
        folder, name = folder_name(identity), file_name(identity)
        log = self._forget(identity.segment_id)
        self._index_files.remove(identity)
        is_unread = log is not None and log.handle.close()
        if is_unread and self._pool.put(name, identity.segment_id):
            folders[folder] = folders[FOLDER] = None
        unfinished = unfinished_copy_name(identity)
        others = [unfinished] if self._fs.exists(unfinished) else []
        for each in files_of(self._fs, name) + others:
            folders[folder] = None
            self._fs.unlink(each)
