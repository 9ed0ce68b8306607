"""Plans of buckets that lack something: a lost copy is a problem, or a hole if one says so, and a
lost index is neither."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from icecore.model import OFFSETS_LEFT_OUT, SegmentId
from icecore_node.remote.format.manifest import StoredObject
from icecore_node.remote.verify.bucket import Bucket, FoundManifest, TopicObjects, objects_of
from icecore_node.remote.verify.restore_plan import RestoredTopic, plan_of
from icecore_node.remote.verify.table_look import TableLook
from tests.support.tiered import FACTS, encoded, flights, manifest_of, source_of

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
    return plan_of(
        bucket, found, TableLook("flights", about, paths, (0, 0, 0, 7)), skip_gaps=skip_gaps
    )


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
