"""The pieces of an answer: where segments are named, each offset of them is searched or missing."""

from itertools import pairwise
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icecore.model import Epoch, Segment, SegmentId, SegmentState
from icecore.v1 import data_pb2
from icecore_node.registry.table import PartitionReplicas
from icecore_node.replica.life import Life
from icecore_node.serving.query.query_answer import PartitionAnswer, is_missing
from tests.support import rotation

TOPIC_ID = b"t" * 16
END = 60


def replica(segment_id: int, base: int, end: int, life: Life = Life.SEALED) -> Any:
    return SimpleNamespace(
        segment_id=SegmentId(segment_id),
        base_offset=base,
        sealed_end_offset=end,
        high_watermark=end,
        life=life,
        sealed=True,
        led_in_this_process=False,
    )


def stored(segment_id: int, base: int, end: int) -> Segment:
    """A segment in object storage."""
    return Segment(
        SegmentId(segment_id),
        TOPIC_ID,
        "t",
        0,
        SegmentState.SEALED,
        Epoch(4),
        base_offset=base,
        end_offset=end,
    )


class Searched(NamedTuple):
    """An answer's segments."""

    ranges: list[tuple[int, int, int]]
    """(segment id, from offset, end offset), in order."""
    missing: set[int]
    """Segments that the answer names as not searched."""
    high: int


def ask(
    replicas: list[Any], remote: list[Segment], *named: int, newest_first: bool = False
) -> Searched:
    held = PartitionReplicas(TOPIC_ID, 0)
    for each in replicas:
        held.place(each)
    request = data_pb2.QueryRequest(topic_id=TOPIC_ID, newest_first=newest_first)
    asked = data_pb2.QueryPartition(partition=0, to_offset=END, segment_ids=named)
    answer = PartitionAnswer(request, asked, held, remote, data_pb2.QueryPartitionResult())
    whole = answer.range_of(-1)
    found = Searched([], set(), whole[1])
    for piece in answer.pieces_of(whole, is_first=True):
        line = answer.describe(piece)
        # As ``Query`` tells a replica that it can't read.
        if is_missing(line) or (piece.replica and not piece.replica.life.is_intact):
            found.missing.add(line.segment_id)
        elif piece.from_offset < piece.end_offset:
            found.ranges.append((line.segment_id, piece.from_offset, piece.end_offset))
    return found


@pytest.mark.parametrize("newest_first", [False, True])
def test_a_source_that_is_still_here_hides_nothing_of_the_merged_segment(
    newest_first: bool,
) -> None:
    """Its order to go is on the way; the merged segment lies in object storage."""
    stale, merged = replica(2, 20, 40), stored(9, 0, 60)
    found = ask([stale], [merged], 9, newest_first=newest_first)
    assert found == Searched([(9, 0, 60)], set(), 60)


@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize("life", [Life.SEALED, Life.UNKNOWN, Life.GONE])
def test_sources_beside_replicas_that_are_named(newest_first: bool, life: Life) -> None:
    here = [replica(2, 20, 30, life), replica(3, 30, 40, life), replica(4, 40, 60)]
    found = ask(here, [stored(9, 0, 40)], 4, 9, newest_first=newest_first)
    assert sorted(found.ranges) == [(4, 40, 60), (9, 0, 40)] and not found.missing


@pytest.mark.parametrize("newest_first", [False, True])
def test_a_source_hides_nothing_of_a_replica_either(newest_first: bool) -> None:
    here = [replica(9, 0, 60), replica(2, 20, 40)]
    found = ask(here, [], 9, newest_first=newest_first)
    assert found == Searched([(9, 0, 60)], set(), 60)


# --- whatever is here -----------------------------------------------------------------------------

ENDS = st.lists(st.sampled_from([10, 20, 30, 40, 50]), unique=True, max_size=5).map(sorted)


@settings(max_examples=rotation.examples(400), deadline=None)
@given(st.data(), ENDS, st.booleans())
def test_each_offset_of_a_named_segment_is_searched_or_missing(
    data: st.DataObject, edges: list[int], newest_first: bool
) -> None:
    """Sources and the segments that they were merged into, here and in object storage."""
    borders = [0, *edges, END]
    sources = list(pairwise(borders))
    merged = data.draw(st.lists(st.sampled_from([0, *edges]), unique=True, max_size=3).map(sorted))
    chain = list(zip([0, *merged[1:]], [*merged[1:], END], strict=False))
    replicas, remote = [], []
    where: dict[int, tuple[int, int]] = {}
    for number, (base, end) in enumerate([*sources, *chain], 1):
        where[number] = base, end
        life = data.draw(st.sampled_from([None, Life.SEALED, Life.UNKNOWN, Life.GONE]))
        if life is not None and number <= len(sources):
            replicas.append(replica(number, base, end, life))
        if life is not Life.SEALED and data.draw(st.booleans()):
            remote.append(stored(number, base, end))
    number_of = list(where)
    named = data.draw(st.sets(st.sampled_from(number_of), min_size=1))
    # As ``described``: in object storage only what is named is looked up.
    remote = [each for each in remote if each.segment_id in named]
    if not remote and all(each.life is Life.GONE for each in replicas):
        return
    found = ask(replicas, remote, *named, newest_first=newest_first)
    looked_at = {offset for _, low, end in found.ranges for offset in range(low, end)}
    for number in named - found.missing:
        base, end = where[number]
        assert set(range(base, min(end, found.high))) <= looked_at, f"{number} is neither"
    assert all(number in named for number, _, _ in found.ranges)
    assert found.high >= max((where[each][1] for each in named - found.missing), default=0)
