"""Plans of buckets that lack something: a lost copy is a problem, or a hole if one says so, and a
lost index is neither."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from icecore.model import OFFSETS_LEFT_OUT, SegmentId
from icecore.tier_records import copy_name
from icecore_node.remote.format.manifest import StoredObject
from icecore_node.remote.format.parquet_object import raw_batches
from icecore_node.remote.verify.bucket import Bucket, FoundManifest, TopicObjects, objects_of
from icecore_node.remote.verify.restore_plan import RestoredTopic, plan_of
from icecore_node.remote.verify.table_look import TableLook
from tests.support.tiered import FACTS, encoded, flights, manifest_of, source_of, undecodable

COUNT = 50
"""Records of a copy."""


def copy(base: int) -> FoundManifest:
    source = source_of(flights(1, COUNT), base)
    _, made = encoded(source)
    facts = replace(source.facts, segment_id=SegmentId(77 + base))
    found = manifest_of(replace(source, facts=facts), made, b"")
    index = StoredObject(key=facts.key(found.attempt, ".idx"), size_bytes=9, sha256=b"i" * 32)
    return FoundManifest(replace(found, index=index), b"s" * 32)


def planned(
    bases: Sequence[int],
    lose: Callable[[TopicObjects], object],
    *,
    skip_gaps: bool = False,
    is_part: bool = False,
    more: Sequence[str] = (),
) -> RestoredTopic:
    """A plan of copies at these offsets, after something was lost."""
    copies = [copy(base) for base in bases]
    sizes = {one.key: one.size_bytes for each in copies for one in objects_of(each.manifest)}
    found = TopicObjects(FACTS.topic_id, sizes=sizes, has_table=True, manifests=copies)
    paths = frozenset([*(each.path for each in copies), *more])
    lose(found)
    bucket = Bucket(cluster_id=FACTS.cluster_id.hex(), topics={FACTS.topic_id: found})
    about = f"icecore cluster {bucket.cluster_id} topic t"
    table = TableLook("flights", about, paths, (0, 0, 0, 7))
    return plan_of(bucket, found, table, skip_gaps=skip_gaps, is_part=is_part)


def rows(at: int) -> Callable[[TopicObjects], object]:
    return lambda found: found.sizes.pop(found.manifests[at].manifest.parquet.key)


def bases(plan: RestoredTopic) -> list[int]:
    return [each.base_offset for each in plan.segments]


def test_what_is_whole_comes_back_without_a_word() -> None:
    plan = planned([0, 50, 100], lambda found: None)
    assert (bases(plan), plan.problems, plan.left_out) == ([0, 50, 100], [], [])


def test_a_lost_index_is_told_and_hinders_nobody() -> None:
    def lose(found: TopicObjects) -> None:
        gone, cut = (each.manifest.index for each in found.manifests[:2])
        assert gone is not None and cut is not None
        del found.sizes[gone.key]
        found.sizes[cut.key] = 3

    plan = planned([0, 50, 100], lose)
    assert (bases(plan), plan.problems) == ([0, 50, 100], [])
    said = ["is not there: look-ups read all", "has 3 bytes, not 9: look-ups read all"]
    assert all(one in each for one, each in zip(said, plan.left_out, strict=True))


@pytest.mark.parametrize(
    "lose",
    [
        rows(1),
        lambda found: found.sizes.update({found.manifests[1].manifest.parquet.key: 0}),
        lambda found: found.manifests.pop(1),
    ],
    ids=["gone", "empty", "manifest-gone"],
)
def test_a_lost_copy_is_a_problem_or_a_hole(lose: Callable[[TopicObjects], object]) -> None:
    plan = planned([0, 50, 100], lose)
    assert "--skip-gaps takes it for a hole" in plan.problems[0]
    plan = planned([0, 50, 100], lose, skip_gaps=True)
    assert (bases(plan), plan.problems) == ([100], [])
    assert "its records are left out" in plan.left_out[0]
    assert any("50..100 is missing" in each for each in plan.left_out)


def test_nodes_may_have_what_is_in_a_hole() -> None:
    """Both sides of it come back. A copy that is lost is a problem all the same: in front of a log
    or at its end nobody would miss it."""
    plan = planned([0, 100], lambda found: None, is_part=True)
    assert (bases(plan), plan.problems) == ([0, 100], [])
    plan = planned([0, 50, 100], rows(0), is_part=True)
    assert "--skip-gaps takes it for a hole" in plan.problems[0]
    plan = planned([0, 50, 100], rows(1), is_part=True, skip_gaps=True)
    assert (bases(plan), plan.problems) == ([0, 100], [])
    assert not planned([], lambda found: None, is_part=True).problems


def test_a_lost_end_takes_nothing_along() -> None:
    plan = planned([0, 50, 100], rows(2), skip_gaps=True)
    assert (bases(plan), plan.problems) == ([0, 50], [])


def test_no_offset_of_a_lost_copy_is_given_out_again() -> None:
    """A restored log goes on as far above its end as a copy is that lies behind such a hole."""
    plan = planned([0, 50 + OFFSETS_LEFT_OUT], rows(1), skip_gaps=True)
    assert "nothing that is behind it is there" in plan.problems[0]
    plan = planned([0, 50 + OFFSETS_LEFT_OUT], rows(0), skip_gaps=True)
    assert (bases(plan), plan.problems) == ([50 + OFFSETS_LEFT_OUT], [])


@pytest.mark.parametrize("skip_gaps", [False, True])
def test_an_object_of_another_program_is_a_problem(skip_gaps: bool) -> None:
    """The table lacks all that this object replaced, so to pass it would lose that, too."""
    more = ["part-00000-c000.snappy.parquet"]
    plan = planned([0], lambda found: None, skip_gaps=skip_gaps, more=more)
    assert f"{more[0]}: the table names it, and it is of another program" in plan.problems[0]


def name(base: int, attempt: int) -> str:
    """The path of a copy of which nothing else is left. All others are of attempt 4."""
    return f"{FACTS.partition}/{copy_name(base, 5, 0, attempt)}.parquet"


def test_sources_of_a_merged_segment_are_not_missed_by_a_table_that_is_behind() -> None:
    """Its last commit was lost, which took them out. Their records are there."""
    plan = planned([0, 50], lambda found: None, more=[name(0, 2), name(10, 3), name(60, 1)])
    assert (bases(plan), plan.problems, plan.left_out) == ([0, 50], [], [])


def test_a_lost_copy_that_came_after_those_in_its_place_is_a_problem() -> None:
    """It may be a merged segment that holds more than what is left of its sources."""
    plan = planned([0, 50], lambda found: None, more=[name(50, 7)])
    assert "the table names it" in plan.problems[0]


@pytest.mark.parametrize(("start", "problems"), [(49, 1), (50, 0), (70, 0)])
def test_a_copy_whose_records_are_all_deleted_is_not_missed(start: int, problems: int) -> None:
    def delete(found: TopicObjects) -> None:
        found.log_starts = (0,) * FACTS.partition + (start,)

    plan = planned([50, 100], delete, more=[name(0, 2)])
    assert (bases(plan), len(plan.problems)) == ([50, 100], problems)


@pytest.mark.parametrize("has_side", [True, False])
def test_a_vacuum_takes_no_records_of_a_copy_without_rows(has_side: bool) -> None:
    """Its Parquet object is in no table. Its batches lie beside it, below a name with an
    underscore."""
    source = source_of([undecodable(), undecodable()], 0)
    _, made = encoded(source)
    side = b"".join(raw_batches(source.runs, made.raw_batches))
    each = FoundManifest(manifest_of(source, made, side), b"s" * 32)
    assert each.manifest.side is not None and not each.manifest.row_groups
    sizes = {each.manifest.side.key: len(side)} if has_side else {}
    found = TopicObjects(FACTS.topic_id, sizes=sizes, manifests=[each])
    bucket = Bucket(cluster_id=FACTS.cluster_id.hex(), topics={FACTS.topic_id: found})
    plan = plan_of(bucket, found, None, skip_gaps=False)
    assert (len(plan.segments), len(plan.problems) == 0) == (int(has_side), has_side)
    assert ("is not there" in found.wrong_size(each.manifest)) != has_side
