"""Unsynced bytes of a log: its worker adds to them, a sync takes them away.

Syncs of such a log run beside its appends (``io/put_off_syncs.py``). So a sync takes away only the
bytes that had been written when it began. Both are counts that only grow.
"""

from icecore_node.ports import DiskFailedError
from icecore_node.storage.files.locks import Lock


class Unsynced:
    """The unsynced bytes of one log.

    ``syncing`` is held during a sync of its file, and until a failure of that is stored. The kernel
    reports a write-back error once to all users of an open file. Without the lock a fence could
    sync right after a failure that is not stored yet, and succeed.
    """

    __slots__ = (
        "_due_at_bytes",
        "_synced_bytes",
        "failed",
        "is_writing",
        "syncing",
        "written_bytes",
    )

    def __init__(self) -> None:
        self.written_bytes = 0
        """All that was ever put off."""
        self._synced_bytes = 0
        """So many of them are on disk."""
        self._due_at_bytes = 0
        """How much had been written when a sync was last due."""
        self.is_writing = False
        """The worker has begun to write what is not counted yet."""
        self.failed: DiskFailedError | None = None
        self.syncing = Lock()

    @property
    def bytes(self) -> int:
        """So many are not on disk."""
        return self.written_bytes - self._synced_bytes

    def add(self, length_bytes: int) -> bool:
        """Written, and put off; whether there was nothing before."""
        was_synced = not self.bytes
        self.written_bytes += length_bytes
        return was_synced

    def is_due(self, after_bytes: int) -> bool:
        """Return whether so much was written since the last sync began, or since this was last
        true."""
        if self.written_bytes - max(self._due_at_bytes, self._synced_bytes) < after_bytes:
            return False
        self._due_at_bytes = self.written_bytes
        return True

    def take(self, written_bytes: int) -> bool:
        """Count bytes as synced or not needed any more; return whether they were the last ones.

        ``written_bytes`` is the value of that field when the sync began.
        """
        before = self.bytes
        self._synced_bytes = max(self._synced_bytes, written_bytes)
        return before > 0 and not self.bytes
