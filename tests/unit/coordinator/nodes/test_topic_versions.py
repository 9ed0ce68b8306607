"""A follower of topics hears each change once, and each removal. It begins anew when it must."""

import pytest

from icecore_coordinator.nodes import topic_versions
from icecore_coordinator.nodes.topic_versions import TopicVersions
from icecore_coordinator.state.records import Change, TopicRecord, updated
from tests.support.cluster_states import KEY, TOPIC, commit, roll, started


def test_all_that_there_is_comes_first_and_nothing_twice() -> None:
    state = started()
    versions = TopicVersions(state)
    versions.load()
    assert [each for each, _ in versions.topics_since(0)] == [TOPIC]
    assert versions.partitions_since(TOPIC, 0) == {KEY[1]}
    assert versions.known_since(versions.version) == versions.version
    assert not versions.topics_since(versions.version)


def test_what_is_not_known_here_begins_anew() -> None:
    versions = TopicVersions(started())
    versions.load()
    assert versions.known_since((1 << 64) - 1) == 0
    assert versions.known_since(versions.version + 1) == 0


def test_a_roll_is_a_change_of_its_partition() -> None:
    state = started()
    versions = TopicVersions(state)
    versions.load()
    before = versions.version
    roll(state)
    partition = state.partitions[KEY]
    versions.on_change(Change((partition,)))
    assert versions.topics_since(before) == [(TOPIC, versions.version)]
    assert versions.partitions_since(TOPIC, before) == {KEY[1]}


def deleted(topic: TopicRecord, *, is_deleted: bool) -> TopicRecord:
    return updated(topic, is_deleted=is_deleted)


def test_a_topic_that_went_is_told_and_comes_back_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    state = started()
    versions = TopicVersions(state)
    versions.load()
    before = versions.version
    topic = state.topics[TOPIC]
    gone = commit(state, Change((deleted(topic, is_deleted=True),)))
    versions.on_change(gone)
    assert [each for each, _ in versions.topics_since(before)] == [TOPIC]
    assert not versions.topics_since(0)
    assert not versions.partitions_since(TOPIC, before)
    middle = versions.version
    back = commit(state, Change((deleted(state.topics[TOPIC], is_deleted=False),)))
    versions.on_change(back)
    assert versions.partitions_since(TOPIC, middle) == {KEY[1]}
    monkeypatch.setattr(topic_versions, "GONE_MAX", 0)
    versions.on_change(commit(state, Change((deleted(state.topics[TOPIC], is_deleted=True),))))
    assert versions.known_since(before) == 0  # it would never hear that the topic went
