"""Seeded mistakes of the index of records; see ``mistakes``.

Most of what can go wrong with it only makes a gap, and a gap is read: a range deletion that is too
wide costs time and no record. These say more than they know.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

from icecore_node.storage.index import runs
from icecore_node.storage.index.coverage import Coverage
from icecore_node.storage.index.entries import Entries
from icecore_node.storage.index.stored_entries import StoredEntries
from tests.simulation.mistakes import Mistake, patch


def index_ahead_of_data() -> Mistake:
    """R55: an index says that it has the entries of one record more than was appended."""
    append = Coverage.append

    def wrong(self: Coverage, start: int, end_offset: int, *entries: Any) -> Any:
        return append(self, start, end_offset + 1, *entries)

    return patch(Coverage, "append", wrong)


@contextmanager
def cut_keeps_entries() -> Iterator[None]:
    """R55: a log is cut, its index is not, and the log grows again."""
    with (
        patch(Coverage, "cut", lambda self, end_offset: None),
        mock.patch("icecore_node.storage.index.points.cut_ranges", lambda *_: []),
    ):
        yield


def entries_lost_in_merge() -> Mistake:
    """R55: a merged run says that it has all, and has not what its oldest part had."""
    merge = runs.merge

    def wrong(walks: Sequence[Iterable[Entries]]) -> Iterator[Entries]:
        return merge(walks[1:] if len(walks) > 1 else walks)

    return mock.patch("icecore_node.storage.segment_engine.index_runs.merge", wrong)


def entries_lost_at_seal() -> Mistake:
    """R55: the index file of a sealed log has not what its newest cover had."""
    merge = runs.merge

    def wrong(walks: Sequence[Iterable[Entries]]) -> Iterator[Entries]:
        return merge(walks[:-1])

    return mock.patch("icecore_node.storage.segment_engine.index_upkeep.merge", wrong)


def range_delete_too_wide() -> Mistake:
    """R55: with the entries that became a run all newer ones are deleted. They are gaps then, and
    records are found all the same; who looks for gaps finds this."""
    drop = StoredEntries.drop_recent

    def wrong(self: StoredEntries, prefix: int, start: int, end_offset: int) -> None:
        drop(self, prefix, start, 1 << 62)

    return patch(StoredEntries, "drop_recent", wrong)


def number_used_twice() -> Mistake:
    """R55: a run gets the number of another one, whose blocks it overwrites."""
    return patch(StoredEntries, "next_number", lambda self, prefix: 1)
