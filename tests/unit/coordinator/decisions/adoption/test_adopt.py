"""Old or empty metadata go on above all that nodes tell (R109)."""

from dataclasses import replace
from typing import Any

import pytest

from icecore.errors import ConflictError
from icecore.model import Segment, SegmentState
from icecore.tier_records import ClosedAttempt, TierRecord, TierState, TierTopicRecord
from icecore_coordinator.decisions.adoption.adopt import (
    COORDINATOR_EPOCH_LEAP,
    INCARNATION_LEAP,
    NUMBER_LEAP,
    PRODUCER_EPOCH_LEAP,
    Adoption,
    AdoptionWish,
    adopt,
    is_blank,
    missing_nodes,
)
from icecore_coordinator.decisions.adoption.told import ToldNode, ToldReplica, ToldTopic
from icecore_coordinator.decisions.node_changes import INCARNATIONS
from icecore_coordinator.decisions.producer_changes import NAMED_IDS
from icecore_coordinator.nodes.reported_state import COUNTERS
from icecore_coordinator.state.cluster_state import ClusterState
from icecore_coordinator.state.record_json import encode
from icecore_coordinator.state.records import (
    Change,
    ClusterRecord,
    CounterRecord,
    NodeRecord,
    ProducerRecord,
    Record,
    TopicRecord,
)
from tests.support.cluster_states import SETTINGS, TOPIC, Cluster, commit, records, roll, started

CLUSTER = b"c" * 16
OTHER = b"o" * 16
NOTHING = AdoptionWish()


def node(node_id: int, incarnation: int = 20, **fields: Any) -> ToldNode:
    """A node that told what it holds: nothing, unless the fields say so."""
    values: dict[str, Any] = {
        "cluster_id": CLUSTER,
        "disk_counter": 50,
        "coordinator_epoch": 30,
        "metadata_revision": 900,
        **fields,
    }
    record = NodeRecord(
        node_id, disk_id=bytes([node_id]), address=f"m{node_id}:1", incarnation=incarnation
    )
    return ToldNode(node=record, **values)


def copy(node_id: int, segment_id: int, topic_id: bytes = TOPIC, **fields: Any) -> ToldReplica:
    values: dict[str, Any] = {
        "partition": 0,
        "generation": 0,
        "base_offset": 0,
        "epoch": 4,
        "promised_epoch": 4,
        "durable_end_offset": 10,
        "is_sealed": True,
        "is_intact": True,
        "digest": b"d" * 32,
        **fields,
    }
    return ToldReplica(node_id=node_id, segment_id=segment_id, topic_id=topic_id, **values)


def put(found: Adoption, kind: type[Record]) -> list[Any]:
    return [each for each in found.puts if isinstance(each, kind)]


def after(state: ClusterState, found: Adoption) -> ClusterState:
    """The metadata as the next coordinator reads them: whatever is stored has its version."""
    stored = {each.key: each for each in records(state)}
    for each in found.deletes:
        del stored[each.key]
    stored |= {each.key: each for each in found.puts}
    again = ClusterState()
    again.load((type(each), encode(each), each.version) for each in stored.values())
    return again


def test_every_number_goes_above_all_that_was_told() -> None:
    state = started()
    commit(state, Change((ProducerRecord("billing", 7, 3, version=1),)))
    state.metadata_revision, state.coordinator_epoch = 100, 5
    told = node(1, copies=(copy(1, 80, base_offset=10, durable_end_offset=12),))
    found = adopt(state, [told, node(2), node(3)], NOTHING)
    counters = {each.name: each.next_value for each in put(found, CounterRecord)}
    assert counters["segment_id"] >= 81 + NUMBER_LEAP
    assert counters.pop(INCARNATIONS) > 20 + INCARNATION_LEAP
    counted = {"segment_id", "tier_attempt", "producer_id", NAMED_IDS, "position_version"}
    assert counters.keys() == counted
    assert all(each > NUMBER_LEAP for each in counters.values())
    assert found.revision == 900 + NUMBER_LEAP
    assert found.coordinator_epoch == 30 + COORDINATOR_EPOCH_LEAP
    [producer] = put(found, ProducerRecord)
    assert producer.producer_epoch == 3 + PRODUCER_EPOCH_LEAP
    going_on = after(state, found)
    assert dict(going_on.heard[COUNTERS].disk_counters) == {1: 50, 2: 50, 3: 50}


def test_processes_of_nodes_go_on_as_they_are() -> None:
    state = started()  # knows incarnations 11, 12 and 13
    going_on = after(state, adopt(state, [node(1), node(2, 12), node(4)], NOTHING))
    found = {each.node_id: (each.incarnation, each.address) for each in going_on.nodes.values()}
    assert found == {1: (20, "m1:1"), 2: (12, "m2:1"), 3: (13, "n3:1"), 4: (20, "m4:1")}
    issued = {each.node_id: each.issued_incarnation for each in going_on.nodes.values()}
    assert issued == {each: found[each][0] + INCARNATION_LEAP for each in (1, 2, 3, 4)}
    unknown = going_on.nodes[4]
    assert unknown.disk_since_segment_id > NUMBER_LEAP, "nobody knows since when it has this disk"


def test_a_topic_that_metadata_do_not_know_comes_back_with_the_settings_of_its_segments() -> None:
    heard = Segment(
        segment_id=9,
        topic_id=OTHER,
        topic="new",
        partition=2,
        state=SegmentState.SEALED,
        epoch=4,
        settings=SETTINGS,
        base_offset=0,
        end_offset=10,
        seal_digest=b"d" * 32,
        version=4,
    )
    held = copy(1, 9, OTHER, partition=2, record=heard)
    topics = (ToldTopic(OTHER, "new", 4),)
    state = started()
    found = adopt(state, [node(1, copies=(held,), topics=topics), node(2), node(3)], NOTHING)
    going_on = after(state, found)
    topic = going_on.topic("new")
    assert (topic.topic_id, topic.partitions, topic.settings) == (OTHER, 4, SETTINGS)
    assert topic.retention.retention_ms < 0
    assert not topic.tiering.is_on
    assert going_on.partitions[(OTHER, 2)].next_base_offset == 10
    assert found.topics_found == 1
    assert "Alter it" in found.findings[0].why


def test_a_topic_whose_name_nobody_heard_can_be_renamed() -> None:
    state = started()
    nodes = [node(each, copies=(copy(each, 9, OTHER),)) for each in (1, 2, 3)]
    found = adopt(state, nodes, NOTHING)
    [topic] = [each for each in after(state, found).topics.values() if each.topic_id == OTHER]
    assert topic.name == "topic.found-6f6f6f6f"
    advice = found.findings[0].why
    assert f"icecore topic delete {topic.name}" in advice
    assert f"undelete --topic-id {OTHER.hex()} --as NAME" in advice
    assert topic.settings.replication_factor == 3


def test_the_newest_word_says_which_topic_has_a_name() -> None:
    """The old one was deleted since, as far as anybody knows; it stays, under another name."""
    state = started()
    nodes = [
        node(1, copies=(copy(1, 9, OTHER),), topics=(ToldTopic(OTHER, "events", 1),)),
        node(2),
        node(3),
    ]
    going_on = after(state, adopt(state, nodes, NOTHING))
    assert going_on.topic("events").topic_id == OTHER
    assert going_on.topics[TOPIC].name == f"events.found-{TOPIC.hex()[:8]}"
    assert going_on.topics[TOPIC].is_live


def test_partitions_that_were_added_since_come_back() -> None:
    state = started()
    told = node(1, topics=(ToldTopic(TOPIC, "events", 3),))
    topic = after(state, adopt(state, [told, node(2), node(3)], NOTHING)).topics[TOPIC]
    assert (topic.partitions, topic.known_counts) == (3, (0, 3))


def test_records_of_before_stay_and_nothing_is_ordered_away() -> None:
    state = started()
    roll(state)
    found = adopt(state, [node(1), node(2), node(3)], NOTHING)
    going_on = after(state, found)
    assert going_on.segments.keys() == state.segments.keys()
    assert not going_on.deleted
    assert going_on.segments[1].segment.replicas == (1, 2, 3), "the last word on it stays"
    assert [each.segment_id for each in found.findings] == [1]


def test_a_segment_that_was_deleted_by_these_metadata_stays_deleted() -> None:
    state = started()
    roll(state)
    gone = copy(1, 1)
    state.deleted[1] = None  # type: ignore[assignment]
    found = adopt(state, [node(1, copies=(gone,)), node(2), node(3)], NOTHING)
    assert found.segments_found == 0


def test_an_empty_store_takes_the_cluster_of_the_nodes() -> None:
    state = Cluster()
    commit(state, Change((ClusterRecord(b"new" * 5 + b"!", version=1),)))
    assert is_blank(state)
    nodes = [node(each, copies=(copy(each, 9, OTHER),)) for each in (1, 2)]
    going_on = after(state, adopt(state, nodes, NOTHING))
    assert going_on.cluster_id == CLUSTER
    assert going_on.segments[9].segment.replicas == (1, 2)


def test_nodes_of_other_clusters_are_refused() -> None:
    state = started()
    with pytest.raises(ConflictError, match="belong to cluster"):
        adopt(state, [node(1, cluster_id=OTHER)], NOTHING)
    with pytest.raises(ConflictError, match="several clusters"):
        adopt(state, [node(1), node(2, cluster_id=OTHER)], NOTHING)
    with pytest.raises(ConflictError, match="start the nodes"):
        adopt(state, [], NOTHING)


def test_every_node_that_anybody_knows_has_to_tell() -> None:
    state = started()
    nodes = [node(1, peers=(1, 2, 3, 9)), node(2)]
    assert missing_nodes(state, nodes, NOTHING) == [3, 9]
    assert missing_nodes(state, nodes, replace(NOTHING, without_nodes=frozenset({9}))) == [3]


def test_it_may_be_repeated_from_what_it_made() -> None:
    """Power goes, and the same nodes tell the same once more."""
    state = started()
    held = tuple(copy(1, each, base_offset=0) for each in (80,))
    nodes = [node(1, copies=held), node(2), node(3)]
    once = after(state, adopt(state, nodes, NOTHING))
    twice = after(once, adopt(once, nodes, NOTHING))
    for each in once.segments.values():
        again = twice.segments[each.segment.segment_id].segment
        assert (again.base_offset, again.end_offset) == (
            each.segment.base_offset,
            each.segment.end_offset,
        )


def test_an_upload_that_was_under_way_is_forgotten_and_never_swept() -> None:
    """It may have been published since, and be all that is left of its segment."""
    state = started()
    roll(state)
    tier = TierRecord(
        segment_id=1,
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
        closed_attempts=(ClosedAttempt(3, 0),),
        version=1,
    )
    merger = replace(tier, segment_id=70, attempt=6, sources=(1,))
    commit(state, Change((tier, merger, TierTopicRecord(TOPIC, version=1))))
    found = adopt(state, [node(1), node(2), node(3)], NOTHING)
    going_on = after(state, found)
    assert going_on.tiers.segments.keys() == {1}
    forgotten = going_on.tiers.segments[1]
    assert (forgotten.attempt, forgotten.closed_attempts) == (0, (ClosedAttempt(3, 0),))
    assert going_on.topics[TOPIC].settings_version >= NUMBER_LEAP
    assert "icecore cluster adopt --bucket" in found.findings[-1].why


def test_tables_get_higher_revisions_than_any_they_have() -> None:
    state = started()
    partition = replace(state.partitions[(TOPIC, 0)], tier_revision=4, table_revision=4)
    state.partitions[(TOPIC, 0)] = partition
    told = node(1, copies=(copy(1, 9, OTHER),))
    going_on = after(state, adopt(state, [told, node(2), node(3)], NOTHING))
    known, new = going_on.partitions[(TOPIC, 0)], going_on.partitions[(OTHER, 0)]
    assert (known.tier_revision, known.table_revision) == (4 + NUMBER_LEAP, 4)
    assert (new.tier_revision, new.table_revision) == (NUMBER_LEAP, NUMBER_LEAP)


def test_copies_that_nodes_dropped_since_are_in_object_storage_alone() -> None:
    state = started()
    roll(state)
    known = state.segments[1]
    state.segments[1] = replace(known, segment=known.segment.changed(is_tiered=True))
    found = adopt(state, [node(1), node(2), node(3)], NOTHING)
    assert after(state, found).segments[1].segment.is_remote_only
    assert not [each for each in found.findings if "no node has" in each.why]


def test_an_import_that_was_under_way_gets_its_partitions_by_its_last_step() -> None:
    state = started()
    hidden = TopicRecord(OTHER, "coming", 2, SETTINGS, is_deleted=True, version=1)
    commit(state, Change((hidden,)))
    going_on = after(state, adopt(state, [node(1), node(2), node(3)], NOTHING))
    assert not [each for each in going_on.partitions if each[0] == OTHER]
