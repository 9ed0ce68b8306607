"""Rule R97: who is forgotten follows the coordinator's marks, and no wall clock."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icecore.codec.batch import crc32c
from icecore.errors import OutOfOrderSequenceError, StorageError
from icecore_replication import producers
from icecore_replication.producers import (
    BATCHES_KEPT,
    EXPIRY_MS,
    FORGOTTEN_AFTER_MS,
    Duplicate,
    ProducerTable,
    starting,
    starting_without_mark,
)
from tests.support import rotation

DAY_MS = 24 * 3600 * 1000


def begun(table: ProducerTable, mark_ms: int) -> ProducerTable:
    """The table of the next segment."""
    return ProducerTable(starting(table.snapshot(), BATCHES_KEPT, mark_ms))


def first(mark_ms: int = 1) -> ProducerTable:
    return ProducerTable(starting(b"", BATCHES_KEPT, mark_ms))


def known(table: ProducerTable, *producer_ids: int) -> list[int]:
    return [each for each in producer_ids if table.last_sequence(each)]


@pytest.mark.parametrize("off_ms", [8 * DAY_MS, 365 * DAY_MS, -8 * DAY_MS])
def test_one_wrong_clock_makes_nobody_unknown(off_ms: int) -> None:
    now_ms = 400 * DAY_MS
    table = first()
    table.apply(1, 0, 0, 5, 0, now_ms)
    table.apply(2, 0, 0, 1, 5, now_ms + off_ms)
    table = begun(table, 60_000)
    assert table.check(1, 0, 0, 5) == Duplicate(0, 5)
    table.apply(3, 0, 0, 1, 6, now_ms)
    assert known(begun(table, 120_000), 1, 2, 3) == [1, 2, 3]


def test_who_was_not_heard_between_marks_is_forgotten_late_and_never_early() -> None:
    """A producer that wrote in a segment counts as heard when the next one begins."""
    table = first(5)
    table.apply(1, 0, 0, 1, 0, 0)
    table = begun(table, 90 * DAY_MS)  # the segment lasted for long
    table.apply(2, 0, 0, 1, 1, 0)
    table = begun(table, 90 * DAY_MS + FORGOTTEN_AFTER_MS)
    assert known(table, 1, 2) == [1, 2]
    table.apply(2, 0, 1, 1, 2, 0)
    table = begun(table, 90 * DAY_MS + FORGOTTEN_AFTER_MS + 1)
    assert known(table, 1, 2) == [2]
    assert table.check(1, 0, 0, 1) == producers.Accepted()


def test_nobody_is_forgotten_within_a_segment_nor_by_a_seal() -> None:
    table = first(5)
    table.apply(1, 0, 0, 1, 0, 0)
    for offset in range(1, 40):
        table.apply(2, 0, offset - 1, 1, offset, offset * DAY_MS)
    assert known(table, 1) == known(ProducerTable(table.snapshot()), 1) == [1]


def test_a_mark_that_went_back_counts_as_the_one_before() -> None:
    """A coordinator that dies takes less than a minute of counted time along."""
    table = first(50_000)
    table.apply(1, 0, 0, 1, 0, 0)
    table = begun(table, 50_000)
    table.apply(2, 0, 0, 1, 1, 0)
    table = begun(table, 1)
    assert known(begun(table, 50_000 + FORGOTTEN_AFTER_MS), 1, 2) == [1, 2]
    assert known(begun(table, 50_001 + FORGOTTEN_AFTER_MS), 1, 2) == []


@pytest.mark.parametrize("kept", [5, 32])
def test_a_state_of_before_gets_marks_and_loses_nobody(kept: int) -> None:
    table = ProducerTable(starting_without_mark(b"", kept, 0))
    table.apply(1, 0, 0, 1, 0, 0)
    table.apply(2, 3, 0, 1, 1, EXPIRY_MS)
    marked = begun(table, 77)
    assert known(marked, 1, 2) == [1, 2]
    assert marked.check(2, 3, 0, 1) == Duplicate(1, 2)
    marked.apply(2, 3, 1, 1, 2, 400 * EXPIRY_MS)
    assert known(begun(marked, 77 + FORGOTTEN_AFTER_MS), 1, 2) == [1, 2]
    assert known(begun(marked, 78 + FORGOTTEN_AFTER_MS), 1, 2) == [2]


@pytest.mark.parametrize(("kept", "version"), [(5, b"\1\0\0\0"), (32, b"\2\0\x20\0")])
def test_nodes_of_before_get_a_state_that_they_can_read(kept: int, version: bytes) -> None:
    table = first()
    table.apply(1, 0, 0, 1, 0, 1)
    table.apply(2, 0, 0, 1, 1, 2)
    given = starting_without_mark(begun(table, 50).snapshot(), kept, 9 * DAY_MS)
    assert given[4:8] == version
    plain = ProducerTable(given)
    plain.apply(3, 0, 0, 1, 2, 9 * DAY_MS + EXPIRY_MS)
    assert known(ProducerTable(plain.snapshot()), 1, 2, 3) == [1, 2, 3]
    plain.apply(3, 0, 1, 1, 3, 9 * DAY_MS + EXPIRY_MS + 1)
    assert known(ProducerTable(plain.snapshot()), 1, 2, 3) == [3]


def test_golden_states() -> None:
    table = first(0x55)
    table.apply(7, 1, 40, 2, 9, 1234)
    sealed = table.snapshot()
    assert sealed == bytes.fromhex(
        "69637074 0300 2000 01000000 0000000000000000"  # magic, version, kept, count, no mark
        "0700000000000000 01000000 01000000 0000000000000000"  # id, epoch, batches, no mark yet
        "2800000000000000 02000000 0900000000000000"  # sequence, count, offset
        "76a9f86b"
    )
    started = starting(sealed, 32, 0x55)
    assert (started[:12], started[12:20], started[20:-4]) == (
        sealed[:12],
        b"\x55" + bytes(7),
        sealed[20:-4],
    )
    assert ProducerTable(started).snapshot()[36:44] == b"\x55" + bytes(7)


def test_states_that_cannot_be_are_refused() -> None:
    table = first()
    table.apply(7, 1, 40, 2, 9, 1234)
    good = table.snapshot()
    for at, value in ((4, b"\4\0"), (6, b"\0\0"), (12, b"\xff" * 8), (36, b"\xff" * 8)):
        changed = bytearray(good[:-4])
        changed[at : at + len(value)] = value
        with pytest.raises(StorageError):
            ProducerTable(bytes(changed) + crc32c(changed).to_bytes(4, "little"))
    for cut in (b"snapshot", good[:20], good[:-1]):
        for kept in (5, 32):
            with pytest.raises(StorageError):
                starting(cut, kept, 1)
        with pytest.raises(StorageError):
            starting_without_mark(cut, 32, 1)


# --- any history ----------------------------------------------------------------------------------

Batches = list[tuple[int, int]]
SEGMENTS = st.lists(
    st.tuples(
        st.lists(st.tuples(st.integers(1, 6), st.integers(0, 2**45)), max_size=8),
        st.sampled_from([0, 1, 60_000, DAY_MS, 4 * DAY_MS, FORGOTTEN_AFTER_MS, 30 * DAY_MS]),
    ),
    max_size=12,
)
"""Segments: (producer, append time by whatever clock) of their batches, and the counted time that
goes by until the next one is prepared."""


@settings(max_examples=rotation.examples(150), deadline=None)
@given(SEGMENTS)
def test_any_history(segments: list[tuple[Batches, int]]) -> None:
    """Known is who wrote in the segment, or in one whose next segment began seven days and an hour
    before this one at the most. All ways to the same table lead to the same bytes."""
    state, mark_ms, offset = b"", 1, 0
    heard: dict[int, int | None] = {}
    sequences: dict[int, int] = {}
    for batches, lasts_ms in segments:
        start = starting(state, BATCHES_KEPT, mark_ms)
        leader, follower = ProducerTable(start), ProducerTable(start)
        heard = {each: mark_ms if at is None else at for each, at in heard.items()}
        for each, at in list(heard.items()):
            if at is not None and at < mark_ms - FORGOTTEN_AFTER_MS:
                del heard[each], sequences[each]
        assert known(leader, *range(1, 7)) == sorted(heard)
        for each, append_timestamp_ms in batches:
            sequence = sequences.setdefault(each, 0)
            if sequence == 0 and each not in heard:
                assert leader.check(each, 0, 0, 1) == producers.Accepted()
                with pytest.raises(OutOfOrderSequenceError):
                    leader.check(each, 0, 1, 1)
            for table in (leader, follower):
                table.apply(each, 0, sequence, 1, offset, append_timestamp_ms)
            # A replica that starts anew in the middle knows the same.
            follower = ProducerTable(follower.snapshot())
            heard[each], sequences[each], offset = None, sequence + 1, offset + 1
            assert leader.check(each, 0, sequence, 1) == Duplicate(offset - 1, offset)
        assert leader.digest() == follower.digest()
        state, mark_ms = leader.snapshot(), mark_ms + lasts_ms
