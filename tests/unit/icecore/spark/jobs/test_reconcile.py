"""Findings of reconcile, from metadata and counts that are made up."""

from collections.abc import Sequence
from typing import Any

import pytest

pytest.importorskip("pyspark")

from icecore.model import Segment, SegmentState
from icecore.spark.jobs.reconcile import (
    BLOCK,
    differing,
    miscounted,
    problems_of,
    skipped_spans,
    tiered_spans,
)
from icecore.spark.plan import PartitionSnapshot, SegmentSpan, Snapshot

TOPIC_ID = b"t" * 16


def segment(number: int, base: int, end: int, **given: Any) -> Segment:
    is_sealed = end >= 0
    digest = b"d" if is_sealed else b""
    kept = {"replicas": (1,), "full_digest": digest, "seal_digest": digest} | given
    state = SegmentState.SEALED if is_sealed else SegmentState.ACTIVE
    return Segment(number, TOPIC_ID, "t", 0, state, 1, base_offset=base, end_offset=end, **kept)  # type: ignore[arg-type]


def snapshot(start: int, end: int, spans: Sequence[SegmentSpan] = ()) -> Snapshot:
    return Snapshot("t", TOPIC_ID, {0: PartitionSnapshot(start, end, tuple(spans))})


GOOD = [segment(1, 0, 10), segment(2, 10, 30), segment(3, 30, -1)]


def test_nothing_is_wrong_where_offsets_were_left_out() -> None:
    hole = segment(2, 10, 30, replicas=(), full_digest=b"", seal_digest=b"")
    assert not list(problems_of(snapshot(0, 40), [GOOD[0], hole, GOOD[2]]))
    assert skipped_spans([hole]) == {0: [(10, 30)]}


def test_nothing_is_wrong() -> None:
    assert not list(problems_of(snapshot(0, 40), GOOD))
    assert not list(problems_of(snapshot(5, 40), GOOD))  # retention has come that far
    assert not list(problems_of(snapshot(10, 40), GOOD))
    assert not list(problems_of(snapshot(0, 0), []))


@pytest.mark.parametrize(
    ("segments", "said"),
    [
        ([GOOD[0], GOOD[2]], "no segment has offsets 10 to 30"),
        (GOOD[1:], "no segment has offsets 0 to 10"),
        (GOOD[:2], "no segment has offsets 30 to 40"),
        ([], "no segment has offsets 0 to 40"),
        ([GOOD[0], segment(2, 7, 30), GOOD[2]], "offsets 7 to 10 are in two segments"),
        ([segment(1, 0, 10, replicas=()), *GOOD[1:]], "segment 1: nobody holds it"),
        ([segment(1, 0, 10, replicas=(), lossy=True), *GOOD[1:]], "was declared lost"),
        (
            [segment(1, 0, 10, full_digest=b"", is_tiered=True), *GOOD[1:]],
            "tiered without a digest",
        ),
    ],
)
def test_what_is_wrong(segments: list[Segment], said: str) -> None:
    (found,) = problems_of(snapshot(0, 40), segments)
    assert said in found
    assert found.startswith("t/0")


def test_tiered_spans_are_put_together() -> None:
    spans = [
        SegmentSpan(1, 0, 10, True),
        SegmentSpan(2, 10, 30, True),
        SegmentSpan(3, 30, 40, False),
        SegmentSpan(4, 40, 60, True),
    ]
    assert tiered_spans(PartitionSnapshot(5, 50, tuple(spans))) == [(5, 30), (40, 50)]
    assert tiered_spans(PartitionSnapshot(60, 60, tuple(spans))) == []


def counted(*offsets: Sequence[int]) -> dict[Any, Any]:
    found: dict[Any, Any] = {}
    for each in offsets:
        places = [offset % BLOCK for offset in each]
        squares = sum(place * place for place in places)
        kept = {"records": len(places), "places": sum(places), "squares": squares}
        found[0, each[0] // BLOCK] = kept
    return found


def test_counts() -> None:
    end = BLOCK + 100
    first, second = range(BLOCK), range(BLOCK, end)
    assert not list(miscounted(counted(first, second), snapshot(0, end), {}))
    assert not list(miscounted(counted(first[7:], second), snapshot(7, end), {}))
    lost = skipped_spans([segment(1, 10, 30, replicas=(), lossy=True)])
    kept = [*first[:10], *first[30:]]
    assert not list(miscounted(counted(kept, second), snapshot(0, end), lost))
    (missing,) = miscounted(counted(first, second[:-1]), snapshot(0, end), {})
    assert f"offsets {BLOCK} to {end}: 99 records were read, not 100" in missing
    assert len(list(miscounted({}, snapshot(0, end), {}))) == 2
    twice = [BLOCK + 1, *second[1:]]
    (doubled,) = miscounted(counted(first, twice), snapshot(0, end), {})
    assert "100 records were read, not 100, or some twice" in doubled
    same_sum = [BLOCK, BLOCK + 2, BLOCK + 2, BLOCK + 2, *second[4:]]  # 0+1+2+3 is 0+2+2+2
    assert sum(same_sum) == sum(second)
    assert len(list(miscounted(counted(first, same_sum), snapshot(0, end), {}))) == 1


def test_contents() -> None:
    ours = {(0, 0): {"remote_records": 5, "low_sum": 1, "high_sum": 2}}
    assert not list(differing(ours, {(0, 0): dict(ours[0, 0])}))
    hot_only = {(0, 1): {"remote_records": 0, "low_sum": None, "high_sum": None}}
    assert not list(differing(ours | hot_only, ours))
    (fewer,) = differing(ours, {(0, 0): ours[0, 0] | {"remote_records": 4}})
    assert "the table has 4 tiered records, the cluster 5" in fewer
    (other,) = differing(ours, {(0, 0): ours[0, 0] | {"high_sum": 3}})
    assert "differ" in other
    assert len(list(differing(ours, {}))) == 1
    assert len(list(differing({}, ours))) == 1
