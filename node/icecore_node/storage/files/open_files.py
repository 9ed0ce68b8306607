"""The open files of all logs: opened when they are needed, closed when others need the room (R54).

A node holds far more replicas than it may have descriptors, so a log's file, sealed or not, is open
only while it is used and for as long as it is among the most recently used. A file in use is never
closed under its users; that covers writers, who hold it until their bytes are synced: the error of
a write-back is reported to whoever has the file open. A file of a replica that is gone is closed
when its last user has left, so that it is never recycled under somebody who still reads it.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Self

from icecore.errors import NotReplicaError, OutOfResourcesError
from icecore.model import SegmentId
from icecore_node.ports import File
from icecore_node.storage.files.locks import Lock

_ROOM = 8
"""Files that are closed at once when a descriptor is missing."""


class OpenFiles:
    """Bounds the descriptors held by logs: the least recently used file goes first."""

    def __init__(self, files_max: int, open_file: Callable[[str], File]) -> None:
        """
        Args:
            files_max: Kept open beyond their use.
            open_file: Opens a file by name.
        """
        self._files_max = files_max
        self._open_file = open_file
        self._files: OrderedDict[LogFile, None] = OrderedDict()
        """Open files, the most recently used one last."""
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._files)

    def open(self, name: str) -> File:
        """Open a file, at the cost of others when no descriptor is left."""
        try:
            return self._open_file(name)
        except OutOfResourcesError:
            if not self.make_room(_ROOM):
                raise
        return self._open_file(name)

    def used(self, file: "LogFile") -> None:
        """Put a file at the recent end, because it was opened or is about to be used."""
        with self._lock:
            self._files[file] = None
            self._files.move_to_end(file)
            excess = len(self._files) - self._files_max
        if excess > 0:
            self.make_room(excess)

    def make_room(self, count: int) -> int:
        """Close up to this many files that nobody uses, the least recently used first.

        Returns how many were closed."""
        closed, left = 0, len(self._files)
        while closed < count and left > 0:
            with self._lock:
                oldest = list(islice(self._files, count - closed))
            left -= len(oldest)
            if not oldest:
                break
            for file in oldest:
                if file.release():
                    closed += 1
                else:
                    self._pass_over(file)
        return closed

    def _pass_over(self, file: "LogFile") -> None:
        """It is in use, so it counts as used now: who looks next does not meet it again."""
        with self._lock:
            if file in self._files:
                self._files.move_to_end(file)

    def forget(self, file: "LogFile") -> None:
        """Forget a file that was closed."""
        with self._lock:
            self._files.pop(file, None)


class LogFile:
    """The file of one log. Closed at first, and whenever it is not needed."""

    __slots__ = ("_closing", "_file", "_files", "_lock", "_segment_id", "_users", "name")

    def __init__(self, segment_id: SegmentId, name: str, files: OpenFiles) -> None:
        self.name = name
        self._segment_id = segment_id
        self._files = files
        self._file: File | None = None
        self._users = 0
        self._closing = False
        self._lock = Lock()

    @property
    def file(self) -> File:
        """The open file; only between ``hold`` and ``leave``."""
        assert self._file is not None, "the file is not held"
        return self._file

    def hold(self) -> File:
        """Open the file if need be, and keep it open until ``leave``.

        Raises:
            NotReplicaError: The replica is going away.
            OutOfResourcesError: There is no descriptor, and no other file could be closed.
            StorageError: It is not there, or does not open.
        """
        with self._lock:
            if self._closing:
                raise NotReplicaError(
                    f"segment {self._segment_id} is closed", segment_id=self._segment_id
                )
            if self._file is None:
                self._file = self._files.open(self.name)
            file = self._file
            self._users += 1
        self._files.used(self)
        return file

    def leave(self) -> None:
        """Give up what ``hold`` took, once for each ``hold``."""
        with self._lock:
            self._users -= 1
            if self._closing and self._users == 0:
                self._close()

    def using(self) -> "LogFile":
        """To hold the file for the length of a ``with``; raises as ``hold``."""
        return self

    def __enter__(self) -> File:
        return self.hold()

    def __exit__(self, *_: object) -> None:
        self.leave()

    def release(self) -> bool:
        """Give the descriptor back unless somebody uses the file; whether it was given back."""
        # Never waits: who holds the lock uses the file, or is about to.
        if not self._lock.acquire(blocking=False):
            return False
        try:
            if self._users or self._file is None:
                return False
            self._close()
            return True
        finally:
            self._lock.release()

    def close(self) -> bool:
        """Refuse new users; close the file now, or when the last user leaves.

        Returns:
            Whether it is closed already, so that nobody can read its bytes any more.
        """
        with self._lock:
            self._closing = True
            if self._users == 0:
                self._close()
            return self._users == 0

    def _close(self) -> None:
        """Close the file. The caller holds the lock, so that nobody opens it in between."""
        file, self._file = self._file, None
        if file is not None:
            file.close()
            self._files.forget(self)


# --- shares of the descriptors --------------------------------------------------------------------


_INDEX_FILES_MAX = 256
_SEGMENT_FILES_MAX = 65_536
_LEAST = 16
_OTHERS = 64
"""Control store, locks, event loop, gRPC's own, folders that are synced."""


@dataclass(frozen=True, slots=True)
class DescriptorBudget:
    """Shares of one limit. Connections get what is left: at least as much as segment files."""

    index_files_max: int
    segment_files_max: int

    @classmethod
    def of(cls, limit: int, reserve: int) -> Self:
        """
        Args:
            limit: Of the process.
            reserve: What new replicas must leave free.
        """
        index = max(_LEAST, min(_INDEX_FILES_MAX, limit // 8))
        segments = (limit - reserve - index - _OTHERS) // 2
        return cls(index, max(_LEAST, min(_SEGMENT_FILES_MAX, segments)))
