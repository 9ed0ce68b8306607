"""Keys of the index that a cut of a log removes."""

from icecore_node.storage.index.points import BLOCK, KEY, RECENT, RUN, cut_ranges

LOG, END = 7, 10


def is_cut(kind: int, offset: int, log: int = LOG) -> bool:
    key = KEY.pack(log, kind, offset)
    return any(low <= key < high for low, high in cut_ranges(LOG, END))


def test_a_run_that_ends_behind_the_cut_goes_and_one_that_ends_at_it_stays() -> None:
    assert [is_cut(RUN, end) for end in (END - 1, END, END + 1, END + 2)] == [
        *(False, False, True, True)
    ]


def test_recent_entries_all_go_and_blocks_stay() -> None:
    assert all(is_cut(RECENT, offset) for offset in (0, END, END + 100))
    assert not any(is_cut(BLOCK, number) for number in (0, END, END + 100))


def test_other_logs_keep_theirs() -> None:
    assert not any(
        is_cut(kind, END + 1, log) for kind in (RECENT, RUN) for log in (LOG - 1, LOG + 1)
    )
