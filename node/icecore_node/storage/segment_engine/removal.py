"""The end of files: what follows when a delete order is stored (R69).

The intent is in the control store before anything here begins, so each step may be repeated, by a
later process too: let go of the log, keep the file for its blocks or unlink it, make that durable,
forget the index, forget the replica. One commit and one sync per folder serve a whole group.
"""

from collections.abc import Callable, Sequence

from icecore_node.ports import FileSystem
from icecore_node.storage.control.control_store import ControlStore, DeleteIntent
from icecore_node.storage.index import points
from icecore_node.storage.segment_engine.recycle import FOLDER, RecyclePool
from icecore_node.storage.segment_engine.segment_log import SegmentLog
from icecore_node.storage.segment_engine.segment_names import files_of


class Removal:
    """Removes files of replicas whose deletion is stored; used by one thread at a time.

    Args:
        file_system: Of the data folder.
        index: Its entries go too.
        control: Holds the intents.
        pool: Takes files whose blocks are worth keeping.
        sync_folders: Makes names durable; ends the process if that fails.
        forget: Takes a replica's log out of use, if it has one.
    """

    def __init__(
        self,
        file_system: FileSystem,
        index: points.EntryStore,
        control: ControlStore,
        pool: RecyclePool,
        sync_folders: Callable[[Sequence[str]], None],
        forget: Callable[[int], SegmentLog | None],
    ) -> None:
        self._fs = file_system
        self._index = index
        self._control = control
        self._pool = pool
        self._sync_folders = sync_folders
        self._forget = forget

    def finish(self, intents: Sequence[DeleteIntent]) -> None:
        """Carry out stored intents and forget them.

        Raises StorageError when a file is in the way; the intents stay.
        """
        folders: dict[str, None] = {}
        try:
            for intent in intents:
                self._remove(intent, folders)
        finally:  # what is done is durable, also when one of them failed
            self._sync_folders(list(folders))
        for intent in intents:
            prefix = points.prefix_of(intent.segment_id, intent.generation)
            points.forget(self._index, prefix)
        self._control.finish_intents([each.segment_id for each in intents])

    def _remove(self, intent: DeleteIntent, folders: dict[str, None]) -> None:
        """One replica's file and what was set aside of it; adds the folders to sync."""
        folder = intent.name.rpartition("/")[0]
        log = self._forget(intent.segment_id)
        is_unread = log is not None and log.handle.close()
        if is_unread and self._pool.put(intent.name, intent.segment_id):
            folders[folder] = folders[FOLDER] = None
        for name in files_of(self._fs, intent.name):
            folders[folder] = None
            self._fs.unlink(name)
