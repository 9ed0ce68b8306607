"""A micro-batch takes a part of the waiting records: within its limits, fairly, and never
nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icecore.model import OFFSETS_LEFT_OUT
from icecore.spark.admission import Limits, admitted, by_records
from icecore.spark.plan import PartitionSnapshot, SegmentSpan, Snapshot, ranges


def topic(*partitions: list[tuple[int, int]]) -> Snapshot:
    """Each partition as (records, bytes) of its segments; ids alternate between partitions."""
    found = {}
    for number, segments in enumerate(partitions):
        at, spans = 0, []
        for index, (records, size) in enumerate(segments):
            segment_id = 1 + index * len(partitions) + number
            spans.append(SegmentSpan(segment_id, at, at + records, False, size))
            at += records
        found[number] = PartitionSnapshot(0, at, tuple(spans))
    return Snapshot("t", b"", found)


@given(
    st.lists(st.tuples(st.integers(0, 99), st.integers(0, 300)), min_size=1), st.integers(1, 500)
)
def test_records(partitions: list[tuple[int, int]], limit: int) -> None:
    starts = {number: start for number, (start, _) in enumerate(partitions)}
    ends = {number: start + count for number, (start, count) in enumerate(partitions)}
    found = by_records(without_segments(ends), starts, ends, limit)
    assert sum(found.values()) - sum(starts.values()) == min(
        limit, sum(ends.values()) - sum(starts.values())
    )
    assert all(starts[n] <= end <= ends[n] for n, end in found.items())


def without_segments(ends: dict[int, int], *left_out: tuple[int, int]) -> Snapshot:
    found = {number: PartitionSnapshot(0, end, (), left_out) for number, end in ends.items()}
    return Snapshot("t", b"", found)


HOLE = (100, 100 + OFFSETS_LEFT_OUT)
BEHIND = HOLE[1]


@pytest.mark.parametrize(
    ("start", "limit", "end"),
    [
        (40, 50, 90),
        (40, 60, 100),
        (40, 61, BEHIND + 1),
        (100, 5, BEHIND + 5),
        (BEHIND - 7, 5, BEHIND + 5),
        (BEHIND, 5, BEHIND + 5),
        (40, 1000, BEHIND + 9),
    ],
)
def test_offsets_that_were_left_out_are_no_records(start: int, limit: int, end: int) -> None:
    snapshot = without_segments({0: BEHIND + 9}, HOLE)
    assert by_records(snapshot, {0: start}, {0: BEHIND + 9}, limit) == {0: end}


@pytest.mark.parametrize("start", [40, 100, 100 + 7])
def test_a_query_passes_a_hole_with_which_the_log_ends(start: int) -> None:
    snapshot = without_segments({0: BEHIND}, HOLE)
    assert by_records(snapshot, {0: start}, {0: BEHIND}, 1_000) == {0: BEHIND}


@given(
    st.lists(st.integers(0, 60), max_size=8),
    st.integers(0, 60),
    st.integers(0, 60),
    st.integers(1, 30),
    st.integers(1, 9),
)
def test_steps_over_holes_read_each_record_once(
    edges: list[int], start: int, count: int, limit: int, tasks: int
) -> None:
    """However it is cut into micro-batches, and these into tasks."""
    marks = sorted(set(edges))
    holes = tuple(zip(marks[::2], marks[1::2], strict=False))
    end, at, read = start + count, start, list[int]()
    snapshot = without_segments({0: end}, *holes)
    while at < end:
        until = by_records(snapshot, {0: at}, {0: end}, limit)[0]
        planned = ranges(snapshot, {0: at}, {0: until}, tasks)
        taken = [n for each in planned for n in range(each.start_offset, each.end_offset)]
        assert until > at and len(taken) <= limit
        read += taken
        at = until
    assert read == [n for n in range(start, end) if not any(a <= n < b for a, b in holes)]


def ends_of(snapshot: Snapshot) -> dict[int, int]:
    return {number: each.high_watermark for number, each in snapshot.partitions.items()}


def test_segments_go_by_age_over_all_partitions() -> None:
    snapshot = topic([(10, 1)] * 3, [(100, 1)] * 3)
    ends = ends_of(snapshot)
    assert admitted(snapshot, {0: 0, 1: 0}, ends, Limits(segments=3)) == {0: 20, 1: 100}
    assert admitted(snapshot, {0: 5, 1: 250}, ends, Limits(segments=2)) == {0: 20, 1: 250}
    assert admitted(snapshot, {0: 5, 1: 250}, ends, Limits(segments=9)) == ends


def test_bytes_are_shared_out_by_what_waits() -> None:
    snapshot = topic([(10, 1_000), (10, 3_000)], [(100, 4_000)])
    ends = ends_of(snapshot)
    assert admitted(snapshot, {0: 0, 1: 0}, ends, Limits(size_bytes=4_000)) == {0: 13, 1: 50}
    assert admitted(snapshot, {0: 20, 1: 0}, ends, Limits(size_bytes=40)) == {0: 20, 1: 1}
    assert admitted(snapshot, {0: 0, 1: 0}, ends, Limits(size_bytes=8_000)) == ends
    assert admitted(snapshot, {0: 0, 1: 0}, ends, Limits(size_bytes=1)) == {0: 1, 1: 0}


def test_all_limits_count() -> None:
    snapshot = topic([(10, 1_000)] * 4)
    limits = Limits(records=100, size_bytes=2_500, segments=3)
    assert admitted(snapshot, {0: 0}, {0: 40}, limits) == {0: 25}
    assert admitted(snapshot, {0: 0}, {0: 40}, Limits(7, 2_500, 3)) == {0: 7}
    assert admitted(snapshot, {0: 0}, {0: 40}, Limits(7, 2_500, 0)) == {0: 7}
    assert admitted(snapshot, {0: 0}, {0: 40}, Limits()) == {0: 40}


SEGMENTS = st.lists(st.tuples(st.integers(1, 50), st.integers(0, 5_000)), max_size=5)


@given(st.lists(SEGMENTS, min_size=1, max_size=4), st.data())
def test_everything_is_read_in_the_end(
    partitions: list[list[tuple[int, int]]], data: st.DataObject
) -> None:
    snapshot = topic(*partitions)
    number = st.integers(0, 2_000)
    limits = Limits(data.draw(number), data.draw(number), data.draw(st.integers(0, 3)))
    at, ends = dict.fromkeys(snapshot.partitions, 0), ends_of(snapshot)
    while at != ends:
        found = admitted(snapshot, at, ends, limits)
        assert all(at[each] <= found[each] <= ends[each] for each in ends)
        assert sum(found.values()) > sum(at.values())
        if limits.records:
            assert sum(found.values()) - sum(at.values()) <= limits.records
        at = found
