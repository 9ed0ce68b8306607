"""Entries of unsealed logs in the database: recent ones as they were appended, and sorted runs.

Their keys are in ``index/points.py``. The values:

    recent    i64 end offset, u32 count n, u64 hashes[n], u32 ordinals[n]; of the first offset
    run       u64 number, then the directory (``index/runs.py``)
    block     ``index/posting_blocks.py``

Each recent value and each directory says of itself which offsets it is complete for, so that
one that was lost is a gap and nothing else. A number is never used twice while blocks of it may be
left: blocks without a directory are what a crash left. Directories lie under their ends, so that
those beyond the end of a log that is cut go in one range.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from icecore.codec.columns import UInt64s
from icecore.codec.index_entries import BatchEntries
from icecore_node.storage.files.locks import Lock
from icecore_node.storage.index.derived_index import DerivedIndex
from icecore_node.storage.index.entries import Entries, UInt32s
from icecore_node.storage.index.points import (
    BLOCK,
    BLOCK_KEY,
    FAMILY,
    KEY,
    PREFIX,
    RECENT,
    RUN,
    Put,
    all_of,
)
from icecore_node.storage.index.posting_blocks import DamagedIndexError
from icecore_node.storage.index.recent_entries import (
    ENTRY_BYTES,
    HASH_BYTES,
    EntryMemory,
    RecentEntries,
)
from icecore_node.storage.index.runs import Directory, Run, decode_directory

_PAGE: Final = 64
"""Pairs read at once: the database is held for so long."""

_RECENT = struct.Struct("<qI")
_NUMBER = struct.Struct("<Q")


def recent_put(prefix: int, start: int, end_offset: int, found: BatchEntries) -> Put:
    """Entries of the batches from an offset to another."""
    count = len(found.hashes) // HASH_BYTES
    value = b"".join((_RECENT.pack(end_offset, count), found.hashes, found.ordinals))
    return FAMILY, KEY.pack(prefix, RECENT, start), value


@dataclass(frozen=True, slots=True)
class StoredRun:
    """A ``Cover`` in the database."""

    number: int
    run: Run

    @property
    def from_offset(self) -> int:
        """See ``Cover``."""
        return self.run.directory.from_offset

    @property
    def end_offset(self) -> int:
        """See ``Cover``."""
        return self.run.directory.end_offset

    @property
    def entries(self) -> int:
        """See ``Cover``."""
        return self.run.directory.entries

    def find(self, wanted: UInt64s) -> tuple[list[UInt32s], int]:
        """See ``Cover.find``."""
        return self.run.find(wanted)

    def walk(self) -> Iterator[Entries]:
        """See ``Cover.walk``."""
        return self.run.walk()

    def release(self) -> None:
        """See ``Cover.release``: its blocks are deleted by who replaces it."""


@dataclass(slots=True)
class Loaded:
    """The covers of one log, loaded from the database."""

    runs: list[StoredRun] = field(default_factory=list)
    recents: list[RecentEntries] = field(default_factory=list)

    @property
    def covers(self) -> list[StoredRun | RecentEntries]:
        """In the order of their offsets."""
        return sorted([*self.runs, *self.recents], key=lambda cover: cover.from_offset)


class StoredEntries:
    """Entries of all logs in the database. Raises shortages; any other failure makes a gap."""

    def __init__(self, index: DerivedIndex, memory: EntryMemory) -> None:
        self._index = index
        self._memory = memory
        self._lock = Lock()
        """Over the next; readers load logs, too."""
        self._last_number = 0
        """The highest that was met or given out in this process: somebody may still read of a run
        that was deleted since."""

    @property
    def life(self) -> int:
        """Another number each time that everything was lost."""
        return self._index.rebuilds

    # --- reading ------------------------------------------------------------------------------

    def load(self, prefix: int, base_offset: int, end_offset: int) -> Loaded:
        """Covers of a log that ends there, without overlaps: of two the larger run counts.

        What is beyond the end is not of this log any more, and is deleted, durably.
        """
        loaded = Loaded(runs=self._runs(prefix))
        stored = list(self._recent(prefix))
        ends = [run.end_offset for run in loaded.runs] + [each[1] for each in stored]
        if max(ends, default=end_offset) > end_offset:
            self.forget(prefix)
            self._index.flush()
            return Loaded()
        loaded.runs = _largest(loaded.runs, base_offset)
        self._join(stored, loaded)
        return loaded

    def _runs(self, prefix: int) -> list[StoredRun]:
        runs: list[StoredRun] = []
        for _, value in self._pairs(*all_of(prefix, RUN)):
            try:
                (number,) = _NUMBER.unpack_from(value)
                self._met(number)
                runs.append(self.stored_run(prefix, number, decode_directory(value[8:])))
            except (DamagedIndexError, struct.error):
                continue  # its offsets are a gap
        return runs

    def stored_run(self, prefix: int, number: int, directory: Directory) -> StoredRun:
        """A run whose blocks are under this number."""
        return StoredRun(number, Run(directory, self._source(prefix, number)))

    def _source(self, prefix: int, number: int) -> Callable[[int, int], list[bytes]]:
        def blocks(first: int, end: int) -> list[bytes]:
            lower, upper = (BLOCK_KEY.pack(prefix, BLOCK, number, at) for at in (first, end))
            found = [value for _, value in self._pairs(lower, upper)]
            if len(found) != end - first:
                raise DamagedIndexError(f"{len(found)} of the blocks {first} to {end} are there")
            return found

        return blocks

    def _recent(self, prefix: int) -> Iterator[tuple[int, int, BatchEntries]]:
        """(first offset, end offset, entries)."""
        for key, value in self._pairs(*all_of(prefix, RECENT)):
            _, _, start = KEY.unpack(key)
            if len(value) < _RECENT.size:
                continue
            end_offset, count = _RECENT.unpack_from(value)
            at = _RECENT.size + count * HASH_BYTES
            if len(value) == _RECENT.size + count * ENTRY_BYTES and start <= end_offset:
                yield start, end_offset, BatchEntries(value[_RECENT.size : at], value[at:])

    def _join(self, stored: Sequence[tuple[int, int, BatchEntries]], loaded: Loaded) -> None:
        """Entries that follow each other without a gap, and are in no run, become one cover."""
        recent: RecentEntries | None = None
        for start, end_offset, found in stored:
            if any(run.from_offset < end_offset and start < run.end_offset for run in loaded.runs):
                continue
            if recent is None or recent.end_offset != start:
                if recent is not None and start < recent.end_offset:
                    continue
                recent = RecentEntries(start, self._memory)
                loaded.recents.append(recent)
            if not recent.add(found, end_offset):
                loaded.recents.remove(recent)
                recent.release()
                recent = None
        for each in loaded.recents:
            each.is_closed = True
            each.stored_end_offset = each.end_offset

    def _pairs(self, lower: bytes, upper: bytes) -> Iterator[tuple[bytes, bytes]]:
        """In pages, so that nobody waits for the database for long."""
        while True:
            page = self._index.page(FAMILY, lower, upper, _PAGE)
            yield from page
            if len(page) < _PAGE:
                return
            lower = page[-1][0] + b"\0"

    # --- writing ------------------------------------------------------------------------------

    def next_number(self, prefix: int) -> int:
        """Return the number for a new run, above those of all blocks in the database."""
        lower, upper = all_of(prefix, BLOCK)
        found = self._index.floor(FAMILY, upper, lower)
        if found is not None and len(found[0]) == BLOCK_KEY.size:
            self._met(BLOCK_KEY.unpack(found[0])[2])
        with self._lock:
            self._last_number += 1
            return self._last_number

    def _met(self, number: int) -> None:
        with self._lock:
            self._last_number = max(self._last_number, number)

    def write_blocks(
        self, prefix: int, number: int, first: int, blocks: Sequence[bytes], life: int
    ) -> bool:
        """False when the database that the others are in is gone."""
        puts = [
            (FAMILY, BLOCK_KEY.pack(prefix, BLOCK, number, at), block)
            for at, block in enumerate(blocks, first)
        ]
        return self._index.write_now(puts, life)

    def write_directory(self, prefix: int, number: int, directory: Directory, life: int) -> bool:
        """From now on there is this run; False when the database with its blocks is gone."""
        key = KEY.pack(prefix, RUN, directory.end_offset)
        value = _NUMBER.pack(number) + directory.encode()
        return self._index.write_now([(FAMILY, key, value)], life)

    def drop_recent(self, prefix: int, start: int, end_offset: int) -> None:
        """Forget entries that a run has now."""
        self._drop(prefix, RECENT, start, end_offset)

    def drop_run(self, prefix: int, run: StoredRun, *, with_directory: bool) -> None:
        """Forget one run; not the directory where another one lies under the same end."""
        if with_directory:
            self._drop(prefix, RUN, run.end_offset, run.end_offset + 1)
        self._drop(prefix, BLOCK, run.number, run.number + 1)

    def _drop(self, prefix: int, kind: int, low: int, high: int) -> None:
        self._index.delete_range(FAMILY, KEY.pack(prefix, kind, low), KEY.pack(prefix, kind, high))

    def drop_leftovers(self, prefix: int, runs: Sequence[StoredRun]) -> None:
        """Forget blocks of other runs than these: what a crash left."""
        at = 0
        for number in [*sorted(run.number for run in runs), None]:
            lower, upper = KEY.pack(prefix, BLOCK, at), all_of(prefix, BLOCK)[1]
            if number is not None:
                upper = KEY.pack(prefix, BLOCK, number)
            if self._index.floor(FAMILY, upper, lower) is not None:
                self._index.delete_range(FAMILY, lower, upper)
            at = 0 if number is None else number + 1

    def holds(self, prefix: int) -> bool:
        """Return whether there is anything of this log."""
        lower, upper = PREFIX.pack(prefix), PREFIX.pack(prefix + 1)
        return self._index.floor(FAMILY, upper, lower) is not None

    def forget(self, prefix: int) -> None:
        """All of a log, in one range."""
        self._index.delete_range(FAMILY, PREFIX.pack(prefix), PREFIX.pack(prefix + 1))


def _largest(runs: Sequence[StoredRun], base_offset: int) -> list[StoredRun]:
    """Without overlaps; one that has others in it was made of them."""
    kept: list[StoredRun] = []
    at = base_offset
    for run in sorted(runs, key=lambda run: (run.from_offset, -run.end_offset, -run.number)):
        if run.from_offset >= at:
            kept.append(run)
            at = run.end_offset
    return kept
