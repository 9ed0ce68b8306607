"""Reports of several nodes about a partition become one list, whose gaps are never hidden."""

from dataclasses import replace
from typing import Any, cast

from icecore.client.cluster.held_segments import is_gap, joined, list_segments
from icecore.client.types import PartitionMetadata, TopicMetadata
from icecore.model import OFFSETS_LEFT_OUT, Segment, SegmentState
from icecore.rpc import convert

TOPIC = b"t" * 16
PARTITION = PartitionMetadata(
    partition=0,
    log_start_offset=0,
    segment_id=4,
    epoch=4,
    leader=2,
    replicas=(2, 3),
    isr=(2, 3),
    tail_base_offset=30,
)
KNOWN = TopicMetadata("t", TOPIC, (PARTITION,), "xxh64", (), ())


def sealed(segment_id: int, base: int, end: int, **changes: Any) -> Segment:
    record = Segment(segment_id, TOPIC, "t", 0, SegmentState.SEALED, segment_id)  # type: ignore[arg-type]
    return record.changed(
        **({"base_offset": base, "end_offset": end, "replicas": (1, 2), "version": 3} | changes)
    )


def is_open(segment_id: int, base: int, **changes: Any) -> Segment:
    return sealed(
        segment_id,
        base,
        -1,
        **({"state": SegmentState.ACTIVE, "leader": 2, "version": 1} | changes),
    )


def ranges(found: list[Segment]) -> list[tuple[int, int, int]]:
    return [(each.segment_id, each.base_offset, each.end_offset) for each in found]


def join(*found: Segment, from_offset: int = 0) -> list[Segment]:
    return joined(KNOWN, PARTITION, found, from_offset)


def test_a_whole_chain_has_no_gap() -> None:
    found = join(is_open(4, 30), sealed(2, 10, 30), sealed(1, 0, 10), sealed(1, 0, 10))
    assert ranges(found) == [(1, 0, 10), (2, 10, 30), (4, 30, -1)]


def test_what_nobody_holds_is_a_gap_wherever_it_lies() -> None:
    assert ranges(join(sealed(2, 10, 20))) == [(0, 0, 10), (2, 10, 20), (0, 20, 30), (4, 30, -1)]
    found = join()
    assert ranges(found) == [(0, 0, 30), (4, 30, -1)]
    gap = found[0]
    assert (is_gap(gap), gap.holders, gap.is_lost, gap.is_skipped) == (True, (), False, False)


def test_a_partition_of_which_nobody_has_anything_and_that_has_no_tail_is_one_gap() -> None:
    without_tail = replace(PARTITION, segment_id=0, leader=0)
    assert ranges(joined(KNOWN, without_tail, [], 5)) == [(0, 5, 30)]
    assert joined(KNOWN, replace(without_tail, tail_base_offset=0), [], 0) == []


def test_the_tail_is_that_of_the_metadata_when_its_leader_said_nothing() -> None:
    *_, tail = join(sealed(1, 0, 30))
    assert (tail.segment_id, tail.leader, tail.state) == (4, 2, SegmentState.ACTIVE)


def test_of_two_records_the_newer_one_counts() -> None:
    for pair in ([is_open(1, 0), sealed(1, 0, 30)], [sealed(1, 0, 30), is_open(1, 0)]):
        assert ranges(join(*pair)) == [(1, 0, 30), (4, 30, -1)]


def test_a_segment_that_another_one_follows_has_ended() -> None:
    found = join(is_open(1, 0), sealed(2, 10, 30))
    assert ranges(found) == [(1, 0, 10), (2, 10, 30), (4, 30, -1)]
    assert found[0].state is SegmentState.SEALED


def test_where_it_ended_is_unknown_when_another_one_may_lie_between() -> None:
    found = join(is_open(1, 0), sealed(5, 20, 30))
    assert ranges(found)[:2] == [(0, 0, 20), (5, 20, 30)]
    assert is_gap(found[0])


def test_where_it_ended_is_unknown_when_offsets_were_left_out_behind_it() -> None:
    base = 20 + OFFSETS_LEFT_OUT
    found = join(is_open(1, 0), sealed(2, base, base + 10))
    assert ranges(found)[:2] == [(0, 0, base), (2, base, base + 10)]
    assert is_gap(found[0])


def test_nodes_may_know_more_than_the_metadata() -> None:
    found = join(sealed(1, 0, 30), sealed(4, 30, 50), is_open(7, 50))
    assert ranges(found) == [(1, 0, 30), (4, 30, 50), (7, 50, -1)]


def test_records_that_are_deleted_or_not_wanted_are_no_gap() -> None:
    late = sealed(2, 10, 30, log_start_offset=10)
    assert ranges(join(sealed(1, 0, 10), late)) == [(2, 10, 30), (4, 30, -1)]
    assert ranges(join(late, from_offset=15)) == [(2, 10, 30), (4, 30, -1)]


def test_segments_of_a_topic_of_before_do_not_count() -> None:
    found = join(sealed(1, 0, 30, topic_id=b"o" * 16))
    assert ranges(found) == [(0, 0, 30), (4, 30, -1)]


class Pages:
    """A connection on which a coordinator lists what it has at each call, two at a time."""

    def __init__(self, *states: list[Segment]) -> None:
        self.states = list(states)
        self.asked: list[tuple[int, str, int, int]] = []

    async def admin(self, _: str, request: Any, answer: Any, *, timeout_s: float) -> Any:
        assert timeout_s > 0
        self.asked.append(
            (
                request.after_segment_id,
                request.after_topic,
                request.after_partition,
                request.after_end_offset,
            )
        )
        known = self.states.pop(0)
        page = [each for each in known if not 0 <= each.end_offset <= request.after_end_offset]
        segments = [convert.segment_to_proto(each) for each in page[:2]]
        return answer(segments=segments, more=len(page) > 2)


async def test_segments_that_are_merged_between_two_pages_are_listed_once() -> None:
    small = [sealed(at, at * 10, at * 10 + 10) for at in range(1, 6)]
    merged = [small[0], sealed(9, 20, 50), small[4]]
    pages = Pages(small, merged)
    found = await list_segments(cast(Any, pages), "t")
    assert ranges(found) == ranges(merged)
    assert pages.asked[1] == (2, small[1].topic, small[1].partition, 30)
    pages = Pages(small, small, small)
    assert ranges(await list_segments(cast(Any, pages), "t")) == ranges(small)
