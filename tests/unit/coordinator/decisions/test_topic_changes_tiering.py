"""The tiering settings of a topic: the ones that are accepted, and the changes they cause."""

import pytest

from icecore.errors import InvalidRequestError
from icecore.topic_settings import Retention, Tiering
from icecore_coordinator.decisions.node_changes import (
    Registration,
    activate,
    issued_by,
    register,
)
from icecore_coordinator.decisions.remote.tiering import committed
from icecore_coordinator.decisions.topic_changes import add_partitions, alter_topic, create_topic
from icecore_coordinator.state.record_json import decode, encode
from icecore_coordinator.state.records import Change, TopicRecord, updated
from tests.support.cluster_states import SETTINGS, TOPIC, Cluster, commit, started
from tests.support.tier_states import published, tier, tiered_topic

ON = Tiering(is_on=True)


@pytest.fixture
def state() -> Cluster:
    made = started()
    with_store = updated(made.nodes[2], tier_url="s3://bucket/prefix")
    commit(made, Change((with_store,)))
    return made


def alter(state: Cluster, tiering: Tiering, kept: Retention | None = None) -> Change:
    change = alter_topic(state, state.live, "events", SETTINGS, None, kept, tiering)
    return commit(state, change)


def test_it_is_stored_and_survives(state: Cluster) -> None:
    wanted = Tiering(True, "segment", 1, 2, 3)
    alter(state, wanted)
    record = state.topics[TOPIC]
    assert record.tiering == wanted
    assert decode(TopicRecord, encode(record)) == record
    assert alter_topic(state, state.live, "events", SETTINGS) == Change(), "what is not said stays"
    commit(state, create_topic(state, state.live, "new", b"u" * 16, 1, SETTINGS, tiering=ON))
    assert state.topics[b"u" * 16].tiering == ON


def test_an_alteration_goes_to_where_the_copies_are() -> None:
    state = tiered_topic()
    assert state.topics[TOPIC].settings_version == 1
    assert not state.tiers.stale_tables, "nothing lies there"
    published(state)
    [key] = state.tiers.stale_tables
    commit(state, committed(state, key, state.partitions[key].tier_revision))
    tier(state, tier_after_ms=9)
    assert [*state.tiers.stale_tables] == [key]
    commit(state, committed(state, key, state.partitions[key].tier_revision))
    assert alter_topic(state, state.live, "events", SETTINGS) == Change()
    commit(state, add_partitions(state, "events", state.topics[TOPIC].partitions + 1))
    assert [*state.tiers.stale_tables] == [key]
    assert state.topics[TOPIC].settings_version == 3


@pytest.mark.parametrize(
    ("tiering", "kept", "why"),
    [
        (Tiering(tier_format="orc"), Retention(), "tier_format 'orc' must be one of parquet, seg"),
        (Tiering(tier_after_ms=-1), Retention(), "tier_after_ms is 0 to"),
        (Tiering(local_retention_ms=-2), Retention(), "local_retention_ms is -1"),
        (Tiering(local_retention_bytes=1 << 61), Retention(), "local_retention_bytes is -1"),
        (Tiering(local_retention_ms=9), Retention(retention_ms=8), "9 is above retention_ms 8"),
        (
            Tiering(local_retention_bytes=(1 << 30) + 1),
            Retention(retention_bytes=1 << 30),
            "is above retention_bytes",
        ),
    ],
)
def test_what_can_not_be(state: Cluster, tiering: Tiering, kept: Retention, why: str) -> None:
    with pytest.raises(InvalidRequestError, match=why):
        alter(state, tiering, kept)
    with pytest.raises(InvalidRequestError, match=why):
        create_topic(
            state, state.live, "new", b"u" * 16, 1, SETTINGS, retention=kept, tiering=tiering
        )
    assert state.topics[TOPIC].version == 1


def test_total_retention_can_not_be_set_below_the_local_one(state: Cluster) -> None:
    alter(state, Tiering(local_retention_ms=9))
    with pytest.raises(InvalidRequestError, match="local_retention_ms 9 is above retention_ms 8"):
        commit(state, alter_topic(state, state.live, "events", SETTINGS, None, Retention(8)))


def test_without_an_object_store_it_can_not_be_on() -> None:
    state = started()
    with pytest.raises(InvalidRequestError, match="set tier_url"):
        alter(state, ON)
    alter(state, Tiering(tier_format="segment"))


def test_a_topic_that_is_on_takes_other_changes_while_no_node_has_a_store(state: Cluster) -> None:
    alter(state, ON)
    commit(state, Change((updated(state.nodes[2], tier_url=""),)))
    commit(state, alter_topic(state, state.live, "events", SETTINGS, 5))
    assert state.topics[TOPIC].tiering == ON


def test_a_node_brings_the_url_of_its_store(state: Cluster) -> None:
    url = "s3://other/prefix"
    asked = Registration(b"c" * 16, 2, bytes([2]), 12, "n2:9", "rack", tier_url=url)
    change, _ = register(state, state.live, asked)
    commit(state, change)
    assert state.nodes[2].tier_url == "s3://bucket/prefix", "only the first heartbeat counts"
    commit(state, activate(state, asked, 13))
    assert state.nodes[2].tier_url == url
    fresh = Registration(b"", 7, b"7", 0, "n7:1", "", tier_url=url)
    change, _ = register(state, state.live, fresh)
    commit(state, change)
    assert 7 not in state.nodes and 7 not in state.tiers.urls
    commit(state, activate(state, fresh, issued_by(change)))
    assert state.nodes[7].tier_url == state.tiers.urls[7] == url
