"""Runs of a log in the database: which ones to merge, written in small steps, put in the
place of what they are made of.

Each function is a walk that yields between two short writes, so that whoever drives it may stop in
between. Blocks are written first; the directory, which makes a run of them, comes last and only if
nothing of it has changed meanwhile: the log was not cut, the database not begun anew. What goes
wrong leaves blocks that nobody knows, and ``StoredEntries.drop_leftovers`` finds them.
"""

from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import numpy as np

from icecore_node.storage.engine import OffsetRange
from icecore_node.storage.index.coverage import Cover
from icecore_node.storage.index.entries import Entries, joined, sorted_entries
from icecore_node.storage.index.posting_blocks import DamagedIndexError, encode_blocks
from icecore_node.storage.index.recent_entries import RecentEntries
from icecore_node.storage.index.runs import ENTRIES_PER_BLOCK, Directory, merge
from icecore_node.storage.index.stored_entries import StoredEntries, StoredRun
from icecore_node.storage.segment_engine.segment_log import SegmentLog

Walk: TypeAlias = Generator[None, None, bool]
"""Returns whether it came to its end."""

BLOCKS_PER_WRITE: Final = 4
"""About 50 KiB: the database, and an append that waits for it, are held for so long."""


class CoverDamagedError(Exception):
    """The entries of a cover can't be read; its range is a gap."""

    def __init__(self, cover: Cover, why: DamagedIndexError) -> None:
        super().__init__(str(why))
        self.cover = cover


@dataclass(frozen=True, slots=True)
class RunPlan:
    """A run that is to be made."""

    span: OffsetRange
    old: Sequence[Cover]
    """Covers that the run replaces."""
    level: int
    cuts: int
    """``Coverage.cuts`` of the log before anything of it was read."""


class IndexRuns:
    """Makes runs; used by one thread at a time."""

    def __init__(self, stored: StoredEntries) -> None:
        self._stored = stored

    def of_recent(self, log: SegmentLog, recents: Sequence[RecentEntries]) -> Walk:
        """Neighbours that follow each other without a gap become one run."""
        cuts = log.coverage.cuts
        for recent in recents:
            if not log.coverage.close_recent(recent):
                return False
        entries = sorted_entries(joined([recent.read() for recent in recents]))
        span = (recents[0].from_offset, recents[-1].end_offset)
        return (yield from self.write(log, RunPlan(span, recents, 0, cuts), [entries]))

    def merged(self, log: SegmentLog) -> Walk:
        """Merge neighbours until there are few."""
        while True:
            cuts = log.coverage.cuts
            runs = last_runs(log.coverage.covers)
            levels = [run.run.directory.level for run in runs]
            start = to_merge(levels)
            if start is None:
                return True
            old = runs[start:]
            span = (old[0].from_offset, old[-1].end_offset)
            parts = merge([walked(run) for run in old])
            plan = RunPlan(span, old, levels[start] + 1, cuts)
            if not (yield from self.write(log, plan, parts)):
                return False

    def write(self, log: SegmentLog, plan: RunPlan, parts: Iterable[Entries]) -> Walk:
        """Make a run of sorted parts."""
        stored, life = self._stored, self._stored.life
        number = 0  # of one without blocks
        first_hashes: list[int] = []
        lengths: list[int] = []
        waiting: list[bytes] = []
        counts = [0]
        for first_hash, block in encode_blocks(_counted(parts, counts), ENTRIES_PER_BLOCK):
            number = number or stored.next_number(log.prefix)
            first_hashes.append(first_hash)
            lengths.append(len(block))
            waiting.append(block)
            if len(waiting) == BLOCKS_PER_WRITE:
                if not self._write_blocks(log, plan, number, len(lengths), waiting, life):
                    return False
                waiting = []
                yield
        if waiting and not self._write_blocks(log, plan, number, len(lengths), waiting, life):
            return False
        directory = Directory(
            *plan.span,
            counts[0],
            np.array(first_hashes, "<u8"),
            np.array(lengths, "<u4"),
            plan.level,
        )
        run = stored.stored_run(log.prefix, number, directory)
        if not self._publish(log, plan, run, life):
            return False
        yield
        self._clean(log, plan, run)
        return True

    def _write_blocks(
        self,
        log: SegmentLog,
        plan: RunPlan,
        number: int,
        end: int,
        blocks: Sequence[bytes],
        life: int,
    ) -> bool:
        with log.coverage.lock:
            if not _is_valid(log, plan):
                return False
            first = end - len(blocks)
            return self._stored.write_blocks(log.prefix, number, first, blocks, life)

    def _publish(self, log: SegmentLog, plan: RunPlan, run: StoredRun, life: int) -> bool:
        """From here on the run counts, and what it was made of does not."""
        coverage = log.coverage
        with coverage.lock:
            before = coverage.covers
            if not _is_valid(log, plan) or not coverage.exchange(plan.old, [run]):
                return False
            is_written = False
            try:
                is_written = self._stored.write_directory(
                    log.prefix, run.number, run.run.directory, life
                )
            finally:
                if not is_written:
                    coverage.covers = before
            return is_written

    def _clean(self, log: SegmentLog, plan: RunPlan, run: StoredRun) -> None:
        """Delete what it was made of, and entries that were stored and found no memory."""
        coverage = log.coverage
        for old in plan.old:
            old.release()
        with coverage.lock:
            if not _is_valid(log, plan):
                return
            self._stored.drop_recent(log.prefix, *plan.span)
            for old in plan.old:
                if isinstance(old, StoredRun):
                    is_overwritten = old.end_offset == run.end_offset
                    self._stored.drop_run(log.prefix, old, with_directory=not is_overwritten)


def _is_valid(log: SegmentLog, plan: RunPlan) -> bool:
    return not log.coverage.is_closed and log.coverage.cuts == plan.cuts


def _counted(parts: Iterable[Entries], counts: list[int]) -> Iterator[Entries]:
    for part in parts:
        counts[0] += len(part.hashes)
        yield part


def walked(cover: Cover) -> Iterator[Entries]:
    """All entries of a cover. Raises CoverDamagedError."""
    try:
        yield from cover.walk()
    except DamagedIndexError as error:
        raise CoverDamagedError(cover, error) from error


def last_runs(covers: Sequence[Cover]) -> list[StoredRun]:
    """The runs at the end of a log, before its recent entries, that follow each other without a
    gap: these may be merged."""
    runs: list[StoredRun] = []
    for cover in reversed(covers):
        if isinstance(cover, StoredRun) and (not runs or cover.end_offset == runs[-1].from_offset):
            runs.append(cover)
        elif runs or not isinstance(cover, RecentEntries):
            break
    return runs[::-1]


def idle_recents(covers: Sequence[Cover]) -> list[list[RecentEntries]]:
    """Recent entries of an unsealed log to which nothing is added any more, neighbours together."""
    groups: list[list[RecentEntries]] = []
    for cover in covers[:-1]:
        if not isinstance(cover, RecentEntries):
            continue
        if groups and groups[-1][-1].end_offset == cover.from_offset:
            groups[-1].append(cover)
        else:
            groups.append([cover])
    return groups


# --- which runs to merge --------------------------------------------------------------------------

# Which runs to merge, so that a look-up touches few and little is written twice. Pure.
#
# A run has a *level*: how often its oldest entries were written again. When there is one run too
# many, the newest ones are merged back to the first whose level is below its older neighbour's,
# and the result is one level higher. Sizes of equal runs then follow the combinatorial number
# system: k runs and level a hold C(k + a, k) of them, and nothing that keeps k runs writes less
# (Mathieu, Staelin, Young, Yousefi: Bigtable Merge Compaction, 2014).


RUNS_MAX: Final = 8
"""More than these are merged: with the recent entries a look-up touches at most nine places."""


def to_merge(levels: Sequence[int], runs_max: int = RUNS_MAX) -> int | None:
    """The first of the runs to merge with all newer ones; None while there are few.

    The merged run has the level of that first one, plus one.

    Args:
        levels: Of each run, in the order of their offsets; 0 for one that was never merged.
        runs_max: How many may stay.
    """
    if len(levels) <= runs_max:
        return None
    start = len(levels) - 2
    while start > 0 and levels[start] >= levels[start - 1]:
        start -= 1
    return start
