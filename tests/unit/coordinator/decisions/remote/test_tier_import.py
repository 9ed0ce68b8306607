"""A topic that is made of copies in object storage: all of it or nothing, and as often as asked."""

from dataclasses import replace
from typing import Any

import pytest

from icecore.errors import (
    ConflictError,
    InvalidRequestError,
    TopicExistsError,
    UnknownTopicError,
)
from icecore.model import OFFSETS_LEFT_OUT, Epoch, Generation, Segment, SegmentId, SegmentState
from icecore.tier_records import TierCopy, TierState, TierTopicRecord
from icecore.topic_settings import KEEP_ALL, SegmentSettings, Tiering
from icecore_coordinator.decisions import topic_deletion
from icecore_coordinator.decisions.remote import tier_import
from icecore_coordinator.decisions.remote.imported import ImportedSegment, ImportedTopic
from icecore_coordinator.decisions.remote.tiering import gone_topics
from icecore_coordinator.state.cluster_state import ClusterState, ids_in, next_of, next_revision
from icecore_coordinator.state.records import RECORDS_PER_CHANGE, Change

TOPIC = ImportedTopic(
    name="flights",
    topic_id=b"t" * 16,
    partitions=2,
    settings=SegmentSettings(
        replication_factor=1, min_insync_replicas=1, on_total_loss="unavailable"
    ),
    delete_grace_ms=1000,
    retention=KEEP_ALL,
    tiering=Tiering(is_on=True),
)
COPY = TierCopy(b"m" * 32, b"\x01" + b"c" * 32, 700, 10, "parquet")


def segment(number: int, base: int, end: int, partition: int = 0, **facts: Any) -> ImportedSegment:
    found = Segment(
        segment_id=SegmentId(number),
        topic_id=TOPIC.topic_id,
        topic=TOPIC.name,
        partition=partition,
        state=SegmentState.SEALED,
        epoch=Epoch(number),
        generation=Generation(1),
        base_offset=base,
        end_offset=end,
        seal_digest=b"s" * 32,
        full_digest=b"\x01" + b"f" * 32,
    )
    return ImportedSegment(found.changed(**facts), 5, number + 100, COPY)


def begun(segment_ids_max: int = 50, attempts_max: int = 200) -> ClusterState:
    state = ClusterState()
    state.apply(tier_import.begin_import(state, TOPIC, nodes=1))
    state.apply(tier_import.raise_counters(state, segment_ids_max, attempts_max))
    return state


def add(state: ClusterState, *segments: ImportedSegment) -> None:
    state.apply(tier_import.add_segments(state, TOPIC.topic_id, segments))


def finish(state: ClusterState, revisions: tuple[int, ...] = ()) -> None:
    add_missing(state, revisions)
    state.apply(tier_import.show(state, TOPIC.topic_id))


def add_missing(state: ClusterState, revisions: tuple[int, ...] = ()) -> None:
    while (change := tier_import.missing_records(state, TOPIC.topic_id, revisions)).puts:
        state.apply(change)


def test_a_topic_comes_back_whole() -> None:
    state = begun()
    assert not tier_import.is_imported(state, TOPIC)
    add(state, segment(7, 30, 40), segment(3, 10, 30), segment(9, 0, 5, partition=1))
    assert "flights" not in state.topic_ids
    finish(state, (4,))
    assert tier_import.is_imported(state, TOPIC)
    first = state.partitions[TOPIC.topic_id, 0]
    goes_on = 40 + OFFSETS_LEFT_OUT
    assert (first.log_start_offset, first.next_base_offset, first.last_epoch) == (10, goes_on, 7)
    assert (first.table_revision, first.tier_revision) == (4, 5)
    assert state.segments[SegmentId(3)].segment.is_remote_only
    tier = state.tiers.segments[SegmentId(3)]
    assert (tier.state, tier.attempt, tier.copy) == (TierState.PUBLISHED, 103, COPY)
    assert TOPIC.topic_id in state.tiers.topics


def test_numbers_are_never_given_out_again() -> None:
    state = begun(50, 200)
    assert next_of(state, "segment_id").next_value == 51
    assert next_of(state, "tier_attempt").next_value == 201
    assert not tier_import.raise_counters(state, 20, 20).puts
    for numbers in ((1 << 62, 0), (1 << 47, 0), (0, 1 << 47)):
        with pytest.raises(InvalidRequestError, match="nobody has counted so far"):
            tier_import.raise_counters(state, *numbers)
    assert tier_import.raise_counters(state, (1 << 47) - 1, 0).puts


def test_every_step_may_be_repeated() -> None:
    state = begun()
    add(state, segment(3, 10, 30))
    assert not tier_import.begin_import(state, TOPIC, nodes=1).puts
    assert not tier_import.add_segments(state, TOPIC.topic_id, [segment(3, 10, 30)]).puts
    assert tier_import.missing_records(state, TOPIC.topic_id, ()).puts
    finish(state)
    assert tier_import.is_imported(state, TOPIC)


@pytest.mark.parametrize(
    "second", [segment(7, 31, 40), segment(7, 29, 40)], ids=["hole", "overlap"]
)
def test_a_partition_that_is_not_whole_is_not_shown(second: ImportedSegment) -> None:
    state = begun()
    add(state, segment(3, 10, 30), second)
    with pytest.raises(InvalidRequestError, match="segments end at 30"):
        tier_import.missing_records(state, TOPIC.topic_id, ())


@pytest.mark.parametrize(
    "bad",
    [
        segment(3, 10, 10),
        segment(3, -1, 10),
        segment(3, 0, 10, partition=2),
        segment(51, 0, 10),
        segment(3, 0, 10, full_digest=b"short"),
        replace(segment(3, 0, 10), attempt=0),
        replace(segment(3, 0, 10), attempt=201),
        replace(segment(3, 0, 10), copy=replace(COPY, manifest_sha256=b"")),
        replace(segment(3, 0, 10), copy=replace(COPY, content_digest=b"")),
    ],
)
def test_what_is_no_segment_with_a_copy_is_refused(bad: ImportedSegment) -> None:
    state = begun()
    with pytest.raises(InvalidRequestError):
        add(state, bad)
    assert not state.segments


def test_ids_of_others_are_respected() -> None:
    state = begun()
    add(state, segment(3, 10, 30))
    with pytest.raises(ConflictError, match="is another one"):
        add(state, segment(3, 10, 31))
    other = replace(segment(3, 10, 30), copy=replace(COPY, manifest_sha256=b"x" * 32))
    with pytest.raises(ConflictError, match="is another one"):
        add(state, other)


def test_a_topic_that_is_there_stays_as_it_is() -> None:
    state = begun()
    add(state, segment(3, 10, 30))
    finish(state)
    with pytest.raises(TopicExistsError):
        tier_import.is_imported(state, replace(TOPIC, partitions=3))
    with pytest.raises(TopicExistsError):
        tier_import.begin_import(state, replace(TOPIC, topic_id=b"u" * 16), nodes=1)
    with pytest.raises(ConflictError, match="not being imported"):
        add(state, segment(4, 30, 31))
    renamed = replace(TOPIC, name="others")
    with pytest.raises(TopicExistsError):
        tier_import.begin_import(state, renamed, nodes=1)
    with pytest.raises(TopicExistsError, match="does not change a topic"):
        tier_import.begin_import(state, replace(TOPIC, name="others"), nodes=1)


def discard(state: ClusterState) -> int:
    """Number of steps."""
    state.apply(topic_deletion.delete_topic(state, "", TOPIC.topic_id, 7, is_now=True))
    steps = 0
    while change := topic_deletion.continue_delete(state, TOPIC.topic_id, 7):
        if not change.deletes:
            break
        state.apply(change)
        steps += 1
    return steps


@pytest.mark.parametrize("is_of_earlier_version", [False, True])
def test_an_import_that_is_given_up_leaves_its_objects(is_of_earlier_version: bool) -> None:
    state = begun()
    if is_of_earlier_version:
        state.apply(Change((TierTopicRecord(TOPIC.topic_id, version=1),)))
    assert not gone_topics(state)
    add(state, segment(3, 10, 30), segment(9, 0, 5, partition=1))
    add_missing(state)
    assert (TOPIC.topic_id in state.tiers.topics) == is_of_earlier_version
    assert discard(state) == 1
    assert not state.topics and not state.partitions and not state.segments
    assert not state.tiers.segments and not state.tiers.topics
    assert not gone_topics(state), "nobody empties the prefix"
    assert not state.deleted, "the same segments may be imported again"


def test_a_restore_may_be_repeated_once_its_import_was_discarded() -> None:
    state = begun(1000, 1000)
    many = [segment(number, 10 * number, 10 * number + 10) for number in range(1, 120)]
    for at in range(0, len(many), 50):
        add(state, *many[at : at + 50])
    with pytest.raises(TopicExistsError, match="restore it so, or discard the import"):
        tier_import.begin_import(state, replace(TOPIC, partitions=3), nodes=1)
    state.apply(topic_deletion.delete_topic(state, "", TOPIC.topic_id, 7, is_now=True))
    with pytest.raises(ConflictError, match="is being discarded, repeat the restore later"):
        tier_import.begin_import(state, TOPIC, nodes=1)
    with pytest.raises(ConflictError, match="not being imported"):
        add(state, segment(500, 10, 30))
    state.apply(topic_deletion.continue_delete(state, TOPIC.topic_id, 7))
    assert state.topics, "a change has a bound"
    while TOPIC.topic_id in state.topics:
        state.apply(topic_deletion.continue_delete(state, TOPIC.topic_id, 7))
    state.apply(tier_import.begin_import(state, replace(TOPIC, partitions=3), nodes=1))
    add(state, *many[:50])
    assert len(state.segments) == 50


def test_a_repeated_restore_goes_on_where_it_stopped() -> None:
    state = begun()
    add(state, segment(3, 10, 30))
    state.apply(tier_import.begin_import(state, TOPIC, nodes=1))
    add(state, segment(3, 10, 30), segment(7, 30, 40))
    finish(state)
    assert not tier_import.show(state, TOPIC.topic_id).puts
    assert sorted(state.segments) == [3, 7, 51]
    hole = state.segments[SegmentId(51)].segment
    assert (hole.base_offset, hole.end_offset) == (40, 40 + OFFSETS_LEFT_OUT)
    assert hole.is_skipped and not hole.is_lost


def test_what_was_left_out_before_stays_left_out() -> None:
    state, base = begun(), 30 + OFFSETS_LEFT_OUT + 5
    add(state, segment(3, 10, 30), segment(7, base, base + 10))
    finish(state)
    spans = [
        (each.base_offset, each.end_offset)
        for each in (record.segment for record in state.segments.values())
        if each.is_skipped
    ]
    assert spans == [(30, base), (base + 10, base + 10 + OFFSETS_LEFT_OUT)]
    assert [*ids_in(state, (TOPIC.topic_id, 0))] == [3, 51, 7, 52]


def test_a_topic_of_many_partitions_comes_back_in_changes_of_bounded_size() -> None:
    state, count = ClusterState(), 400
    topic = replace(TOPIC, partitions=count)
    state.apply(tier_import.begin_import(state, topic, nodes=1))
    state.apply(tier_import.raise_counters(state, count, 1000))
    for at in range(1, count + 1, 100):
        some = [segment(each, 0, 5, partition=each - 1) for each in range(at, at + 100)]
        state.apply(tier_import.add_segments(state, TOPIC.topic_id, some))
    sizes = []
    while (change := tier_import.missing_records(state, TOPIC.topic_id, ())).puts:
        sizes.append(len(change.puts))
        state.apply(change)
    assert len(state.partitions) == count and len(sizes) > 1
    assert max(sizes) <= RECORDS_PER_CHANGE + 3
    assert next_of(state, "segment_id").next_value == 2 * count + 1


def test_an_import_is_no_deleted_topic() -> None:
    state = begun()
    add(state, segment(3, 10, 30))
    topic = state.topics[TOPIC.topic_id]
    assert not topic.is_live and not topic_deletion.kept_topics(state)
    assert not topic_deletion.spend_grace(state, TOPIC.topic_id, topic.version, 1 << 60).puts
    for name, topic_id in (("", TOPIC.topic_id), ("flights", b"")):
        with pytest.raises(UnknownTopicError):
            topic_deletion.undelete_topic(state, name, topic_id)
    with pytest.raises(InvalidRequestError, match=r"--now --topic-id .* keeps its objects"):
        topic_deletion.delete_topic(state, "", TOPIC.topic_id, 7)


def test_a_deleted_topic_is_no_import() -> None:
    state = begun()
    add(state, segment(3, 10, 30))
    finish(state)
    state.apply(topic_deletion.delete_topic(state, "flights", b"", 0))
    assert topic_deletion.kept_topics(state), "also where the clock stands at 0"
    with pytest.raises(TopicExistsError, match="icecore topic undelete"):
        tier_import.begin_import(state, TOPIC, nodes=1)
    with pytest.raises(ConflictError, match="not being imported"):
        tier_import.show(state, TOPIC.topic_id)
    state.apply(topic_deletion.delete_topic(state, "", TOPIC.topic_id, 0, is_now=True))
    with pytest.raises(TopicExistsError, match="its objects go with it"):
        tier_import.begin_import(state, TOPIC, nodes=1)
    while TOPIC.topic_id in state.topics:
        state.apply(topic_deletion.continue_delete(state, TOPIC.topic_id, 7))
    assert TOPIC.topic_id in state.tiers.topics, "the sweeper has it now"


@pytest.mark.parametrize(
    ("told", "known"),
    [
        ((), (0, 2)),
        ((2,), (2,)),
        ((1, 2), (1, 2)),
        ((0, 2), (0, 2)),
        ((1,), (0, 2)),  # settings in the bucket were behind
        ((1, 3), (0, 2)),
        ((2, 1, 2), (0, 2)),
    ],
)
def test_look_ups_ask_all_partitions_where_earlier_numbers_are_not_known(
    told: tuple[int, ...], known: tuple[int, ...]
) -> None:
    state = ClusterState()
    topic = replace(TOPIC, partition_counts=told)
    state.apply(tier_import.begin_import(state, topic, nodes=1))
    assert state.topics[TOPIC.topic_id].known_counts == known


def test_segments_have_the_index_that_their_manifests_say() -> None:
    state = ClusterState()
    topic = replace(TOPIC, settings=replace(TOPIC.settings, indexed_headers=("carrier",)))
    state.apply(tier_import.begin_import(state, topic, nodes=1))
    state.apply(tier_import.raise_counters(state, 50, 200))
    settings = SegmentSettings(indexed_headers=("carrier",))
    add(state, segment(3, 10, 30), segment(7, 30, 40, settings=settings))
    found = [state.segments[SegmentId(each)].segment.settings for each in (3, 7)]
    assert [each.indexed_headers for each in found] == [(), ("carrier",)]
    assert found[0].replication_factor == 1, "all else is as the topic has it"
    with pytest.raises(InvalidRequestError, match="twice"):
        add(state, segment(8, 40, 50, settings=SegmentSettings(indexed_headers=("x", "x"))))


def test_the_table_of_an_empty_partition_goes_on_behind_its_revision() -> None:
    state = begun()
    add(state, segment(9, 0, 5, partition=1))
    finish(state, (7, 3))
    empty, other = (state.partitions[TOPIC.topic_id, number] for number in (0, 1))
    assert (empty.table_revision, empty.tier_revision) == (7, 7)
    assert (empty.log_start_offset, empty.next_base_offset) == (OFFSETS_LEFT_OUT,) * 2
    assert (other.table_revision, other.tier_revision) == (3, 4)
    [after] = next_revision(state, (TOPIC.topic_id, 0))
    assert after.tier_revision == 8
