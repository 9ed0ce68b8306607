"""The newest entries of a log, in memory in the order of its batches; bounded over all logs.

Append-only for the one writer of the log. Readers look at any moment: they see a count that was
true once, and what they have been shown is never edited in place.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np

from icecore.codec.columns import UInt64s
from icecore.codec.index_entries import BatchEntries
from icecore_node.storage.files.locks import Lock
from icecore_node.storage.index.entries import (
    Entries,
    UInt32s,
    find_unsorted,
    sorted_entries,
)

HASH_BYTES: Final = 8
ORDINAL_BYTES: Final = 4
ENTRY_BYTES: Final = HASH_BYTES + ORDINAL_BYTES
_ROOM_MIN = 64
"""Entries; then it doubles."""


class EntryMemory:
    """The limit on the memory of recent entries, which all logs of a node share."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.used_bytes = 0
        self._lock = Lock()

    @property
    def is_scarce(self) -> bool:
        """Return whether somebody should make room before the rest is used, too."""
        return 2 * self.used_bytes > self.bytes_max

    def take(self, entries: int) -> bool:
        """Room for so many; False when there is none."""
        with self._lock:
            if self.used_bytes + entries * ENTRY_BYTES > self.bytes_max:
                return False
            self.used_bytes += entries * ENTRY_BYTES
            return True

    def give(self, entries: int) -> None:
        """Back."""
        with self._lock:
            self.used_bytes -= entries * ENTRY_BYTES


class RecentEntries:
    """A ``Cover``: all entries from an offset on, as far as the log was indexed."""

    __slots__ = (
        "_columns",
        "_memory",
        "_room",
        "end_offset",
        "from_offset",
        "is_closed",
        "stored_end_offset",
    )

    def __init__(self, from_offset: int, memory: EntryMemory) -> None:
        self.from_offset = self.end_offset = self.stored_end_offset = from_offset
        """The last: how far the database has been told."""
        self.is_closed = False
        """Nothing is added any more."""
        self._memory = memory
        self._room = 0
        self._columns = (bytearray(), bytearray(), 0)
        """Hashes, ordinals, and how many of both count; replaced in one step."""

    @property
    def entries(self) -> int:
        """Return the number of entries."""
        return self._columns[2]

    def add(self, found: BatchEntries, end_offset: int) -> bool:
        """More of them, of the batches up to there; False when there is no memory for them."""
        added = len(found.ordinals) // ORDINAL_BYTES
        if added and not self._add(found, added):
            return False
        self.end_offset = end_offset
        return True

    def _add(self, found: BatchEntries, added: int) -> bool:
        hashes, ordinals, count = self._columns
        total = count + added
        if total > self._room:
            room = max(_ROOM_MIN, 2 * self._room, total)
            if not self._memory.take(room - self._room):
                return False
            more = bytes((room - self._room) * HASH_BYTES)
            hashes = hashes + more
            ordinals = ordinals + more[: (room - self._room) * ORDINAL_BYTES]
            self._room = room
        # Of the same length, so that whoever has a view of them does no harm.
        hashes[count * HASH_BYTES : total * HASH_BYTES] = found.hashes
        ordinals[count * ORDINAL_BYTES : total * ORDINAL_BYTES] = found.ordinals
        self._columns = (hashes, ordinals, total)
        return True

    def read(self) -> Entries:
        """All of them as they are now, in the order of batches."""
        hashes, ordinals, count = self._columns
        return Entries(
            np.frombuffer(hashes, "<u8", count),
            np.frombuffer(ordinals, "<u4", count),
        )

    def find(self, wanted: UInt64s) -> tuple[list[UInt32s], int]:
        """See ``Cover.find``."""
        found = find_unsorted(self.read(), wanted)
        if len(wanted) == 1:  # a tag may be there twice
            found = [np.unique(found[0])]
        return found, 0

    def walk(self) -> Iterator[Entries]:
        """See ``Cover.walk``."""
        entries = self.read()
        if len(entries.hashes):
            yield sorted_entries(entries)

    def release(self) -> None:
        """Nobody will look here any more but who does so now."""
        self._memory.give(self._room)
        self._room = 0
