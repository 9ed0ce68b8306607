"""Indexed ranges of one log: covers in the order of their offsets, and the gaps between them.

A cover has every entry of the batches in its range. A range that no cover has is a *gap*. Each
failure of an index makes a gap (it lags, was lost, was damaged, had no memory), and the caller
reads the log there. So a cover must not claim a range of which it lacks entries, but may be left
out.

Readers take ``covers`` as they are at the moment. Code that changes them holds ``lock``, which is
never held during a wait for the disk.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

from icecore.codec.columns import UInt64s
from icecore.codec.index_entries import BatchEntries
from icecore_node.storage.engine import OffsetRange
from icecore_node.storage.files.locks import Lock
from icecore_node.storage.index.entries import Entries, UInt32s
from icecore_node.storage.index.recent_entries import EntryMemory, RecentEntries


class Cover(Protocol):
    """All entries of a range of offsets. Look-ups and walks raise DamagedIndexError."""

    @property
    def from_offset(self) -> int:
        """The first."""
        ...

    @property
    def end_offset(self) -> int:
        """Exclusive."""
        ...

    @property
    def entries(self) -> int:
        """Return the number of entries."""
        ...

    def find(self, wanted: UInt64s) -> tuple[list[UInt32s], int]:
        """For each wanted hash (ascending) its ordinals; and how many bytes were read."""
        ...

    def walk(self) -> Iterator[Entries]:
        """All entries, sorted, in parts."""
        ...

    def release(self) -> None:
        """It is not used any more."""
        ...


class Coverage:
    """The covers of one log."""

    __slots__ = ("_memory", "covers", "cuts", "is_closed", "is_loaded", "lock")

    def __init__(self, memory: EntryMemory, *, is_loaded: bool) -> None:
        """``is_loaded``: there is nothing in the database that is not here."""
        self._memory = memory
        self.lock = Lock()
        self.covers: tuple[Cover, ...] = ()
        self.is_loaded = is_loaded
        self.is_closed = False
        """The log is going away: nothing may be written for it any more."""
        self.cuts = 0
        """How often offsets were given out again: what was read before belongs to other records."""

    # --- by the writer of the log -------------------------------------------------------------

    def append(self, start: int, end_offset: int, found: BatchEntries) -> RecentEntries | None:
        """Entries of the newest batches. None, and a gap, when there is no memory for them."""
        with self.lock:
            if self.is_closed:
                return None
            last = self.covers[-1] if self.covers else None
            if last is not None and last.end_offset > start:
                return None
            if not isinstance(last, RecentEntries) or last.is_closed or last.end_offset != start:
                last = RecentEntries(start, self._memory)
                if not last.add(found, end_offset):
                    return None
                self.covers = (*self.covers, last)
            elif not last.add(found, end_offset):
                self.covers = self.covers[:-1]
                last.release()
                return None
            return last

    def cut(self, end_offset: int) -> None:
        """The log is about to end there. Entries in memory go, as those in the database do."""
        with self.lock:
            self.cuts += 1
            kept: list[Cover] = []
            for cover in self.covers:
                if cover.end_offset <= end_offset and not isinstance(cover, RecentEntries):
                    kept.append(cover)
                else:
                    cover.release()
            self.covers = tuple(kept)

    def close(self) -> None:
        """The log is going away."""
        with self.lock:
            self.is_closed = True
            for cover in self.covers:
                cover.release()
            self.covers = ()

    # --- by who maintains it ----------------------------------------------------------------------

    def load(self, covers: Sequence[Cover]) -> None:
        """Take over the covers of the database or a file, in order; only while none are loaded."""
        with self.lock:
            if self.is_closed or self.is_loaded:
                for cover in covers:
                    cover.release()
                return
            self.covers = tuple(covers)
            self.is_loaded = True

    def close_recent(self, recent: RecentEntries) -> bool:
        """Nothing is added to it any more; False when it is gone."""
        with self.lock:
            recent.is_closed = True
            return recent in self.covers

    def exchange(self, old: Sequence[Cover], new: Sequence[Cover]) -> bool:
        """Replace some by others of the same range, or fill a gap. The caller holds the lock.

        False, and nothing is changed, when one of the old is gone or the new ones overlap others.
        """
        kept = [cover for cover in self.covers if cover not in old]
        if self.is_closed or len(kept) + len(old) != len(self.covers):
            return False
        covers = sorted([*kept, *new], key=lambda cover: cover.from_offset)
        if any(covers[i].end_offset > covers[i + 1].from_offset for i in range(len(covers) - 1)):
            return False
        self.covers = tuple(covers)
        return True

    def drop(self, cover: Cover) -> bool:
        """It is damaged: a gap from now on. False when it was none any more."""
        with self.lock:
            if cover not in self.covers:
                return False
            self.covers = tuple(each for each in self.covers if each is not cover)
            cover.release()
            return True


def gaps_between(covers: Sequence[Cover], asked: OffsetRange) -> list[OffsetRange]:
    """Return the parts of a range that no cover has; ``covers`` are in order of their offsets."""
    at, end = asked
    gaps: list[OffsetRange] = []
    for cover in covers:
        stop = cover.end_offset  # once, for it may grow
        if stop <= at:
            continue
        start = min(cover.from_offset, end)
        if start > at:
            gaps.append((at, start))
        at = max(at, stop)
        if at >= end:
            return gaps
    if at < end:
        gaps.append((at, end))
    return gaps
