"""A micro-batch takes a part of the waiting records: within its limits, fairly, and never
nothing."""

from hypothesis import given
from hypothesis import strategies as st

from icecore.spark.admission import Limits, admitted, by_records
from icecore.spark.plan import PartitionSnapshot, SegmentSpan, Snapshot


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
    found = by_records(starts, ends, limit)
    assert sum(found.values()) - sum(starts.values()) == min(
        limit, sum(ends.values()) - sum(starts.values())
    )
    assert all(starts[n] <= end <= ends[n] for n, end in found.items())


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
