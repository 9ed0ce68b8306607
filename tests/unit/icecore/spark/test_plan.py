"""Ranges of a snapshot: each offset once, ends where segments change places, never too few."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icecore.errors import ConfigurationError, OffsetOutOfRangeError
from icecore.spark.plan import (
    RANGE_RECORDS_MAX,
    PartitionSnapshot,
    SegmentSpan,
    Snapshot,
    ranges,
    resolve,
)


def snapshot(*partitions: list[tuple[int, bool]], start: int = 0) -> Snapshot:
    """Each partition as lengths of its segments, and whether they are tiered."""
    found = {}
    for number, segments in enumerate(partitions):
        at, spans = start, []
        for length, is_tiered in segments:
            spans.append(SegmentSpan(len(spans) + 1, at, at + length, is_tiered))
            at += length
        found[number] = PartitionSnapshot(start, at, tuple(spans))
    return Snapshot("t", b"", found)


SEGMENTS = st.lists(st.tuples(st.integers(1, 500), st.booleans()), max_size=12)


@given(st.lists(SEGMENTS, min_size=1, max_size=4), st.integers(0, 40), st.data())
def test_each_offset_is_in_one_range(
    partitions: list[list[tuple[int, bool]]], min_partitions: int, data: st.DataObject
) -> None:
    whole = snapshot(*partitions, start=10)
    starts, ends = {}, {}
    for number, each in whole.partitions.items():
        bounds = st.integers(each.log_start_offset, each.high_watermark)
        starts[number], ends[number] = sorted((data.draw(bounds), data.draw(bounds)))
    found = ranges(whole, starts, ends, min_partitions)
    for number, each in whole.partitions.items():
        mine = [one for one in found if one.partition == number]
        offsets = [n for one in mine for n in range(one.start_offset, one.end_offset)]
        assert offsets == list(range(starts[number], ends[number]))
        for one in mine:
            held = [span for span in each.segments if span.segment_id in one.segment_ids]
            assert one.start_offset < one.end_offset
            assert held[0].base_offset <= one.start_offset < held[0].end_offset
            assert held[-1].base_offset < one.end_offset <= held[-1].end_offset
            assert one.is_tiered == all(span.is_tiered for span in held)
            assert one.is_tiered or not any(span.is_tiered for span in held)
    total = sum(ends[number] - start for number, start in starts.items())
    assert len(found) >= min(min_partitions, total)


def test_cuts_fall_on_borders_that_are_near() -> None:
    whole = snapshot([(90, False), (110, False), (100, False)])
    found = ranges(whole, {0: 0}, {0: 300}, 3)
    assert [(each.start_offset, each.end_offset) for each in found] == [
        (0, 90),
        (90, 200),
        (200, 300),
    ]
    assert [each.segment_ids for each in found] == [(1,), (2,), (3,)]


def test_large_partitions_are_split_unasked() -> None:
    whole = snapshot([(3 * RANGE_RECORDS_MAX, False)])
    assert len(ranges(whole, {0: 0}, {0: 3 * RANGE_RECORDS_MAX})) == 3
    assert ranges(whole, {0: 5}, {0: 5}) == []


def test_ten_thousand_segments() -> None:
    whole = snapshot([(100, n % 2 == 0) for n in range(10_000)])
    assert len(ranges(whole, {0: 0}, {0: 1_000_000}, 50)) == 10_000


def test_resolve() -> None:
    partitions = snapshot([(100, False)], [(50, False)], start=10).partitions

    def found(places: object, *, strict: bool = True) -> dict[int, int]:
        return resolve("startingOffsets", places, partitions, fail_on_data_loss=strict)  # type: ignore[arg-type]

    assert found("earliest") == {0: 10, 1: 10}
    assert found("latest") == {0: 110, 1: 60}
    assert found({0: 110, 1: "earliest"}) == {0: 110, 1: 10}
    assert found({0: 0, 1: 999}, strict=False) == {0: 10, 1: 60}
    for place in (9, 61):
        with pytest.raises(OffsetOutOfRangeError, match=r"\[10, 60\].* --allow-data-loss"):
            found({0: 50, 1: place})
    for places in ({0: 50}, {0: 50, 1: 50, 2: 50}):
        with pytest.raises(ConfigurationError, match="the topic has 0, 1"):
            found(places)
