"""Every offset of a range belongs to one piece, and every one that may matter is read once."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icecore.model import Segment, SegmentId, SegmentState
from icecore_node.replica.life import Life
from icecore_node.serving.query.pieces import Piece, filled, pieces
from icecore_node.serving.query.search_plan import Look, Read, Scan, hashes_of, outside_of, reads_of
from icecore_node.storage.engine import Candidates


def replica(base: int, end: int, *, sealed: bool = True, life: Life = Life.SEALED) -> Any:
    return SimpleNamespace(
        base_offset=base,
        high_watermark=end,
        sealed_end_offset=end if sealed else None,
        life=life,
        segment_id=base,
    )


def listed(
    replicas: list[Any], asked: tuple[int, int], *, newest_first: bool = False
) -> list[tuple[int | None, int, int]]:
    return [
        (
            None if each.replica is None else each.replica.base_offset,
            each.from_offset,
            each.end_offset,
        )
        for each in pieces(cast(Any, replicas), asked, newest_first=newest_first)
    ]


HERE = [replica(0, 10), replica(10, 20), replica(30, 40), replica(40, 45, sealed=False)]


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ((0, 45), [(0, 0, 10), (10, 10, 20), (None, 20, 30), (30, 30, 40), (40, 40, 45)]),
        ((5, 12), [(0, 5, 10), (10, 10, 12)]),
        ((22, 25), [(None, 22, 25)]),
        ((20, 31), [(None, 20, 30), (30, 30, 31)]),
        ((42, 42), []),
    ],
)
def test_pieces_in_both_orders(asked: tuple[int, int], found: list[Any]) -> None:
    assert listed(HERE, asked) == found
    assert listed(HERE, asked, newest_first=True) == found[::-1]


def test_a_replica_that_lags_leaves_a_gap_before_its_successor() -> None:
    lagging = [replica(0, 6, sealed=False, life=Life.FENCED), replica(10, 20)]
    assert listed(lagging, (0, 20)) == [(0, 0, 6), (None, 6, 10), (10, 10, 20)]


def test_where_two_overlap_the_newer_one_counts() -> None:
    overlapping = [replica(0, 12, sealed=False, life=Life.FENCED), replica(10, 20)]
    assert listed(overlapping, (0, 20)) == [(0, 0, 10), (10, 10, 20)]


def test_a_damaged_one_stands_for_its_segment_and_one_that_is_gone_for_nothing() -> None:
    replicas = [
        replica(0, 10, life=Life.UNKNOWN),
        replica(10, 12, sealed=False, life=Life.UNKNOWN),
        replica(20, 30, life=Life.GONE),
        replica(30, 40),
    ]
    found = [(0, 0, 10), (10, 10, 20), (None, 20, 30), (30, 30, 40)]
    assert listed(replicas, (0, 40)) == found
    assert listed(replicas, (0, 40), newest_first=True) == found[::-1]


@given(
    sizes=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 5), st.booleans()), max_size=8),
    asked=st.tuples(st.integers(0, 60), st.integers(0, 60)).map(sorted),
)
def test_every_offset_is_in_one_piece(sizes: list[tuple[int, int, bool]], asked: list[int]) -> None:
    replicas, at = [], 0
    for gap, size, is_gone in sizes:
        at += gap
        life = Life.GONE if is_gone else Life.SEALED
        replicas.append(replica(at, at + size, life=life))
        at += size
    low, high = asked
    found = listed(replicas, (low, high))
    assert found == listed(replicas, (low, high), newest_first=True)[::-1]
    covered = [offset for _, start, end in found for offset in range(start, end)]
    assert covered == list(range(low, high))
    for base, start, end in found:
        if base is not None:
            assert any(
                each.base_offset == base <= start < end <= each.high_watermark
                and each.life is not Life.GONE
                for each in replicas
            )


RANGES = st.lists(st.integers(0, 30), max_size=6, unique=True).map(
    lambda edges: list(zip(sorted(edges)[::2], sorted(edges)[1::2], strict=False))
)
OFFSETS = st.frozensets(st.integers(0, 29), max_size=10)


@given(known=st.lists(OFFSETS, min_size=4, max_size=4), gaps=RANGES, newest_first=st.booleans())
def test_reads_are_the_gaps_and_the_candidates_between_them(
    known: list[frozenset[int]], gaps: list[tuple[int, int]], newest_first: bool
) -> None:
    groups = ((1, 2), (3,), (4, 1))
    assert hashes_of(groups) == (1, 2, 3, 4)
    lists = tuple(np.array(sorted(each), np.int64) for each in known)
    found = Candidates((0, 30), lists, tuple(gaps), 0)
    reads = reads_of(found, groups, newest_first=newest_first)
    in_gaps = {offset for low, high in gaps for offset in range(low, high)}
    named = (known[0] | known[1]) & known[2] & (known[3] | known[0])
    looked = [
        offset for each in reads if isinstance(each, Look) for offset in each.offsets.tolist()
    ]
    scanned = [
        offset
        for each in reads
        if isinstance(each, Scan)
        for offset in range(each.from_offset, each.end_offset)
    ]
    assert sorted(looked) == sorted(named - in_gaps)
    assert sorted(scanned) == sorted(in_gaps)
    starts = [
        each.from_offset if isinstance(each, Scan) else int(each.offsets[0]) for each in reads
    ]
    assert starts == sorted(starts, reverse=newest_first)


def offsets_in(reads: list[Read]) -> set[int]:
    found: set[int] = set()
    for each in reads:
        match each:
            case Scan(low, high):
                found |= set(range(low, high))
            case Look(offsets):
                found |= set(offsets.tolist())
    return found


@given(named=OFFSETS, gaps=RANGES, quiet=RANGES, newest_first=st.booleans())
def test_what_is_quiet_is_not_read_and_the_rest_is(
    named: frozenset[int],
    gaps: list[tuple[int, int]],
    quiet: list[tuple[int, int]],
    newest_first: bool,
) -> None:
    found = Candidates((0, 30), (np.array(sorted(named), np.int64),), tuple(gaps), 0)
    reads = reads_of(found, ((1,),), newest_first=newest_first)
    left = outside_of(reads, quiet, newest_first=newest_first)
    hidden = {offset for low, high in quiet for offset in range(low, high)}
    assert offsets_in(left) == offsets_in(reads) - hidden
    starts = [each.from_offset if isinstance(each, Scan) else int(each.offsets[0]) for each in left]
    assert starts == sorted(starts, reverse=newest_first)
    assert all(not isinstance(each, Scan) or each.from_offset < each.end_offset for each in left)


def remote_segment(base: int, end: int) -> Segment:
    return Segment(
        SegmentId(100 + base),
        b"t",
        "t",
        0,
        SegmentState.SEALED,
        1,
        base_offset=base,
        end_offset=end,
    )


@pytest.mark.parametrize("newest_first", [False, True])
def test_object_storage_fills_what_nobody_here_can_search(newest_first: bool) -> None:
    remote = [remote_segment(0, 10), remote_segment(10, 20), remote_segment(25, 30)]

    def edges(piece: Piece) -> list[tuple[int, int, int]]:
        found = filled(piece, remote, newest_first=newest_first)
        places = [(each.from_offset, each.end_offset, each.segment_id) for each in found]
        return places[::-1] if newest_first else places

    parts = [(5, 10, 100), (10, 20, 110), (20, 25, 0), (25, 30, 125), (30, 40, 0)]
    assert edges(Piece(None, 5, 40)) == parts
    assert edges(Piece(None, 21, 24)) == [(21, 24, 0)]
    assert edges(Piece(None, 0, 0, SegmentId(7))) == [(0, 0, 7)]
    damaged = Piece(replica(0, 20, life=Life.UNKNOWN), 0, 20)
    assert edges(damaged) == [(0, 10, 100), (10, 20, 110)]
    intact = Piece(replica(0, 20), 0, 20)
    assert filled(intact, remote, newest_first=newest_first) == (intact,)
