"""Every offset that may matter is read once, and no other."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from icecore_node.serving.search_plan import Look, Scan, hashes_of, reads_of
from icecore_node.storage.engine import Candidates

RANGES = st.lists(st.integers(0, 30), max_size=6, unique=True).map(
    lambda edges: list(zip(sorted(edges)[::2], sorted(edges)[1::2], strict=False))
)
OFFSETS = st.frozensets(st.integers(0, 29), max_size=10)


@given(known=st.lists(OFFSETS, min_size=4, max_size=4), gaps=RANGES, newest_first=st.booleans())
def test_reads_are_the_gaps_and_the_candidates_between_them(
    known: list[frozenset[int]], gaps: list[tuple[int, int]], newest_first: bool
) -> None:
    groups = ((1, 2), (3,), (4, 1))
    assert hashes_of(groups) == [1, 2, 3, 4]
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
