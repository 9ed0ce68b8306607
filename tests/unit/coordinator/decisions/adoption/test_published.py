"""Object storage has a word, too, when metadata are adopted (R109)."""

from dataclasses import replace
from typing import Any

import pytest

from icecore.errors import InvalidRequestError
from icecore.model import OFFSETS_LEFT_OUT, Segment, SegmentState
from icecore.tier_records import TierCopy, TierRecord, TierState, TierTopicRecord
from icecore.topic_settings import KEEP_ALL, NOT_TIERED, Retention, SegmentSettings, Tiering
from icecore_coordinator.decisions.adoption.adopt import NUMBER_LEAP, Adoption, AdoptionWish, adopt
from icecore_coordinator.decisions.adoption.partition_chain import (
    Adopted,
    PartitionChain,
    partition_chain,
)
from icecore_coordinator.decisions.adoption.published import ToldTopicCopies, copy_records
from icecore_coordinator.decisions.adoption.told import Evidence, ToldReplica
from icecore_coordinator.decisions.remote.imported import ImportedSegment, ImportedTopic
from icecore_coordinator.decisions.remote.tiering import COUNTER, SEGMENT_IDS
from icecore_coordinator.state.cluster_state import ClusterState
from icecore_coordinator.state.records import (
    Change,
    CounterRecord,
    DeletionRecord,
    PartitionRecord,
    SegmentRecord,
    TopicRecord,
)
from tests.support.cluster_states import TOPIC, Cluster, commit, roll, started
from tests.unit.coordinator.decisions.adoption.test_adopt import OTHER, after, node, put
from tests.unit.coordinator.decisions.adoption.test_adopt import copy as copy_of_topic
from tests.unit.coordinator.decisions.adoption.test_partition_chain import (
    SETTINGS,
    adopted,
    copy,
    digest_of,
    ends,
    sealed,
    segment,
)

NOTHING = AdoptionWish()


def there(segment_id: int, base: int, end: int, **fields: Any) -> ImportedSegment:
    """A copy in the bucket, of the same records as ``copy`` has them."""
    values: dict[str, Any] = {
        "topic_id": TOPIC,
        "state": SegmentState.SEALED,
        "epoch": 2,
        "base_offset": base,
        "end_offset": end,
        "seal_digest": digest_of(segment_id, end),
        "settings": SegmentSettings(indexed_headers=("h",)),
        **fields,
    }
    made = Segment(segment_id=segment_id, topic="events", partition=0, **values)
    facts = TierCopy(b"m" * 32, b"c" * 32, 777, end - base, "parquet")
    return ImportedSegment(made, 5, segment_id + 100, facts)


def chain(
    known: list[Segment],
    told: list[ToldReplica],
    bucket: list[ImportedSegment],
    shared: Adopted | None = None,
    **fields: Any,
) -> PartitionChain:
    found: dict[int, Evidence] = {}
    for each in told:
        found.setdefault(each.segment_id, Evidence(each.segment_id)).copies.append(each)
    records = [SegmentRecord(each, holders=each.replicas, since_ms=3) for each in known]
    partition = PartitionRecord(TOPIC, 0, version=4, **fields)
    published = {each.segment.segment_id: each for each in bucket}
    shared = shared or adopted(is_in_bucket=True)
    return partition_chain(shared, partition, records, found.values(), published)


def tail_on_nodes(segment_id: int, base: int, end: int) -> list[ToldReplica]:
    heard = segment(segment_id, base_offset=base, version=9)
    return [copy(each, segment_id, base, end, record=heard) for each in (1, 2, 3)]


def test_history_that_nodes_dropped_is_in_front_of_what_they_have() -> None:
    """Its log starts where its first copy begins: retention came so far."""
    shared = adopted(is_in_bucket=True)
    nodes = [copy(each, 3, 40, 60, is_sealed=True) for each in (1, 2)]
    bucket = [there(1, 10, 30), there(2, 30, 40), there(3, 40, 60)]
    made = chain([], [*nodes, *tail_on_nodes(4, 60, 70)], bucket, shared)
    assert ends(made)[:3] == [(1, 10, 30), (2, 30, 40), (3, 40, 60)]
    assert made.segments[3].segment.state is SegmentState.RECOVERING
    first, _, both, _ = (each.segment for each in made.segments)
    assert first.is_remote_only and first.settings == replace(SETTINGS, indexed_headers=("h",))
    assert both.is_tiered and both.replicas == (1, 2)
    assert made.partition.log_start_offset == 10
    assert not shared.findings


def test_copies_that_are_there_are_not_uploaded_again() -> None:
    state = Cluster()
    bucket = [there(1, 0, 30), there(2, 30, 40)]
    made = chain([], tail_on_nodes(3, 40, 50), bucket)
    by_id = {each.segment.segment_id: each for each in bucket}
    found = copy_records(state, made.segments, by_id)
    assert [(each.segment_id, each.state, each.attempt) for each in found] == [
        (1, TierState.PUBLISHED, 101),
        (2, TierState.PUBLISHED, 102),
    ]


def test_a_copy_proves_the_end_of_a_segment_that_no_node_knows_as_sealed() -> None:
    """Copies with its content count; one that is short, or has more, does not."""
    told = [copy(1, 1, 0, 30), copy(2, 1, 0, 20), copy(3, 1, 0, 40), *tail_on_nodes(2, 30, 40)]
    [first, _] = chain([], told, [there(1, 0, 30)]).segments
    assert (first.segment.state, first.segment.end_offset) == (SegmentState.SEALED, 30)
    assert (first.segment.replicas, first.holders) == ((1,), (1, 2, 3))


def test_nodes_win_and_a_person_is_told_where_lengths_differ() -> None:
    shared = adopted(is_in_bucket=True)
    told = [copy(1, 1, 0, 30, is_sealed=True), *tail_on_nodes(2, 30, 40)]
    made = chain([], told, [there(1, 0, 25)], shared)
    [finding] = shared.findings
    assert "object storage has offsets 0 to 25 of it, and nodes 1 have it sealed" in finding.why
    assert (finding.segment_id, finding.is_gap) == (1, False)
    assert ends(made)[0] == (1, 0, 30) and not made.segments[0].segment.is_tiered


def test_old_metadata_win_where_they_know_another_content() -> None:
    shared = adopted(is_in_bucket=True)
    known = [sealed(1, 0, 30, replicas=(1,))]
    made = chain(known, tail_on_nodes(2, 30, 40), [there(1, 0, 25)], shared)
    assert "the metadata have it with offsets 0 to 30" in shared.findings[0].why
    assert ends(made)[0] == (1, 0, 30)


def test_segments_that_were_merged_since_are_gone() -> None:
    shared = adopted(is_in_bucket=True)
    known = [
        sealed(each, each * 10 - 10, each * 10, replicas=(), is_tiered=True) for each in (1, 2)
    ]
    left = copy(3, 2, 10, 20, is_sealed=True)
    made = chain(known, [left, *tail_on_nodes(3, 20, 30)], [there(9, 0, 20)], shared)
    assert ends(made)[0] == (9, 0, 20) and len(made.segments) == 2
    assert [each.segment.segment_id for each in made.void] == [1, 2]
    [finding] = shared.findings
    assert "part of another segment; nodes 3 keep their copies" in finding.why


def test_what_retention_took_since_the_copy_does_not_come_back() -> None:
    shared = adopted(is_in_bucket=True)
    known = [sealed(1, 0, 10, replicas=(), is_tiered=True)]
    made = chain(known, tail_on_nodes(3, 20, 30), [there(2, 10, 20)], shared)
    assert ends(made)[0] == (2, 10, 20)
    assert made.partition.log_start_offset == 10
    assert [each.segment.segment_id for each in made.void] == [1]
    assert not shared.findings


def test_a_hole_of_the_bucket_is_no_gap_where_nodes_fill_it() -> None:
    shared = adopted(is_in_bucket=True)
    bucket = [there(1, 0, 10), there(3, 20, 30)]
    told = [copy(2, 2, 10, 20, is_sealed=True), *tail_on_nodes(4, 30, 40)]
    made = chain([], told, bucket, shared)
    assert [each[0] for each in ends(made)] == [1, 2, 3, 4]
    assert not shared.findings
    chain([], tail_on_nodes(4, 30, 40), bucket, shared)
    [gap] = shared.findings
    assert gap.why == "neither a node nor object storage has offsets 10 to 20" and gap.is_gap


def test_a_hole_that_was_left_on_purpose_is_passed_over() -> None:
    shared = adopted(is_in_bucket=True)
    far = 10 + OFFSETS_LEFT_OUT
    made = chain(
        [], tail_on_nodes(3, far + 5, far + 9), [there(1, 0, 10), there(2, far, far + 5)], shared
    )
    skipped = made.segments[1].segment
    assert skipped.is_skipped and not skipped.lossy
    assert not shared.findings


def test_where_a_node_is_missing_the_front_of_a_log_may_be_with_it() -> None:
    shared = adopted(is_in_bucket=True, is_complete=False)
    chain([], tail_on_nodes(2, 20, 30), [there(1, 10, 20)], shared)
    assert [each.why for each in shared.findings if each.is_gap] == [
        "neither a node nor object storage has offsets 0 to 10"
    ]


def test_a_log_whose_newest_part_is_on_no_node_goes_on_far_above() -> None:
    """Readers may have seen records behind the last copy (R96)."""
    made = chain([], [], [there(1, 0, 10)])
    assert made.partition.next_base_offset == 10 + OFFSETS_LEFT_OUT
    assert made.segments[-1].segment.is_skipped
    empty = chain([], [], [], adopted(is_in_bucket=True, bucket_start_offset=50))
    assert empty.partition.next_base_offset == 50 + OFFSETS_LEFT_OUT
    assert empty.partition.log_start_offset == 50 + OFFSETS_LEFT_OUT


# --- all of it ------------------------------------------------------------------------------------


def topic_there(
    topic_id: bytes, *segments: ImportedSegment, name: str = "history", **fields: Any
) -> ToldTopicCopies:
    stored = ImportedTopic(
        name=name,
        topic_id=topic_id,
        partitions=3,
        settings=SegmentSettings(replication_factor=2, min_insync_replicas=1),
        delete_grace_ms=77,
        retention=replace(KEEP_ALL, retention_ms=1234),
        tiering=replace(NOT_TIERED, is_on=True),
        partition_counts=(1, 3),
    )
    of_topic = (
        replace(each, segment=replace(each.segment, topic_id=topic_id)) for each in segments
    )
    values = {"segment_ids_max": 500, "attempts_max": 600, "table_revisions": (7, 8), **fields}
    return ToldTopicCopies(stored, tuple(of_topic), **values)


def adopt_with(state: ClusterState, *bucket: ToldTopicCopies, **nodes: Any) -> Adoption:
    return adopt(state, [node(1, **nodes), node(2), node(3)], NOTHING, bucket)


def test_a_topic_that_the_bucket_alone_has_comes_back_as_it_was() -> None:
    state = Cluster()
    found = adopt_with(state, topic_there(OTHER, there(1, 5, 10), there(2, 10, 20)))
    [finding] = found.findings
    assert "no node has a segment of it: it comes back from object storage alone" in finding.why
    assert (found.topics_found, found.segments_found) == (1, 2)
    going_on = after(state, found)
    topic = going_on.topics[OTHER]
    assert (topic.name, topic.partitions, topic.partition_counts) == ("history", 3, (1, 3))
    assert (topic.delete_grace_ms, topic.retention) == (77, Retention(retention_ms=1234))
    assert topic.tiering == Tiering(is_on=True)
    assert topic.settings_version >= NUMBER_LEAP
    assert going_on.tiers.segments.keys() == {1, 2}
    assert not going_on.tiers.untiered.get(OTHER)
    assert put(found, TierTopicRecord) == [TierTopicRecord(OTHER, version=1)]
    partition = going_on.partitions[(OTHER, 0)]
    assert partition.table_revision > 7 and partition.tier_revision == partition.table_revision + 1
    assert (partition.log_start_offset, partition.last_epoch > 2) == (5, True)
    counters = {each.name: each.next_value for each in put(found, CounterRecord)}
    assert counters[SEGMENT_IDS] > 500 + NUMBER_LEAP and counters[COUNTER] > 600 + NUMBER_LEAP


def test_a_deleted_topic_is_named_and_comes_back_only_with_what_nodes_have() -> None:
    gone = topic_there(OTHER, there(1, 0, 10), name="gone", is_deleted=True)
    found = adopt_with(Cluster(), gone)
    assert not found.topics_found and not put(found, SegmentRecord)
    assert "it is deleted, and no node has it: it stays away" in found.findings[0].why
    held = copy_of_topic(1, 2, OTHER, base_offset=10, durable_end_offset=20)
    found = adopt_with(Cluster(), gone, copies=(held,))
    assert "Delete it again: icecore topic delete gone" in found.findings[0].why
    assert [each.segment.segment_id for each in put(found, SegmentRecord)][:2] == [1, 2]


def test_an_upload_that_ended_since_the_copy_is_published() -> None:
    """The record of it is not forgotten, and its attempt not repeated."""
    state = started()
    roll(state, 10)
    [record] = [each for each in state.segments.values() if each.segment.end_offset == 10]
    old = record.segment
    tier = TierRecord(
        segment_id=old.segment_id,
        topic_id=TOPIC,
        partition=0,
        generation=0,
        base_offset=0,
        end_offset=10,
        state=TierState.UPLOADING,
        tier_format="parquet",
        attempt=5,
        owner=1,
        owner_incarnation=11,
        version=1,
    )
    commit(state, Change((tier, TierTopicRecord(TOPIC, version=1))))
    copied = there(old.segment_id, 0, 10, seal_digest=old.seal_digest)
    told = topic_there(TOPIC, copied, name=state.topics[TOPIC].name)
    going_on = after(state, adopt_with(state, told))
    found = going_on.tiers.segments[old.segment_id]
    assert (found.state, found.attempt, found.owner) == (TierState.PUBLISHED, copied.attempt, 0)
    assert found.version == 2
    assert going_on.segments[old.segment_id].segment.is_tiered


def test_what_these_metadata_deleted_stays_deleted() -> None:
    state = started()
    commit(state, Change((DeletionRecord(77, (), 5, version=1),)))
    told = topic_there(TOPIC, there(77, 0, 10), name=state.topics[TOPIC].name)
    assert 77 not in after(state, adopt_with(state, told)).segments


def test_whoever_did_not_look_is_told_where() -> None:
    def looked(bucket: list[ToldTopicCopies] | None) -> list[str]:
        nodes = [node(1), node(2), node(3)]
        nodes[0] = replace(nodes[0], node=replace(nodes[0].node, tier_url="s3://b"))
        return [each.why for each in adopt(started(), nodes, NOTHING, bucket).findings]

    [why] = looked(None)
    assert "icecore cluster adopt --bucket s3://b" in why
    assert not looked([])


@pytest.mark.parametrize(
    "wrong",
    [
        there(1, 10, 10),
        there(0, 0, 10),
        there(1, 0, 1 << 63),
        replace(there(1, 0, 10), copy=TierCopy()),
        there(1, 0, 10, full_digest=b"x"),
    ],
)
def test_a_copy_that_proves_nothing_changes_nothing(wrong: ImportedSegment) -> None:
    with pytest.raises(InvalidRequestError):
        adopt_with(Cluster(), topic_there(OTHER, wrong))


def test_names_of_live_topics_are_unique() -> None:
    state = started()
    name = state.topics[TOPIC].name
    found = adopt_with(state, topic_there(OTHER, there(1001, 0, 10), name=name))
    names = {each.topic_id: each.name for each in put(found, TopicRecord)}
    assert names[OTHER] == f"{name}.found-{OTHER.hex()[:8]}"
