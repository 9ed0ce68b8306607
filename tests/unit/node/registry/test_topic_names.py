"""The topic that a name means on a node, and the topics that clients may not ask for."""

import pytest

from icecore.errors import UnknownTopicError
from icecore_node.registry.topic_names import TopicNames

OLD, NEW = b"o" * 16, b"n" * 16


@pytest.fixture
def names() -> TopicNames:
    names = TopicNames()
    names.note(OLD, "events")
    return names


def test_a_deleted_topic_is_refused_by_id_and_forgotten_by_name(names: TopicNames) -> None:
    assert names.id_for_client(b"", "events") == OLD
    names.note_deleted(OLD, is_deleted=True)
    with pytest.raises(UnknownTopicError, match="is deleted"):
        names.id_for_client(OLD, "")
    assert names.id_for_client(b"", "events") == b""


def test_a_kept_topic_never_takes_its_name_back_from_a_new_one(names: TopicNames) -> None:
    names.note_deleted(OLD, is_deleted=True)
    names.note(NEW, "events")
    names.note(OLD, "")  # what deleted topics are called
    names.note_deleted(OLD, is_deleted=True)
    assert names.id_for_client(b"", "events") == NEW


def test_undeleted_under_another_name(names: TopicNames) -> None:
    names.note_deleted(OLD, is_deleted=True)
    names.note(NEW, "events")
    names.note(OLD, "older")
    names.note_deleted(OLD, is_deleted=False)
    assert names.id_for_client(b"", "older") == names.id_for_client(OLD, "") == OLD
    assert names.id_for_client(b"", "events") == NEW


def test_the_deletion_was_not_heard_only_the_new_name(names: TopicNames) -> None:
    names.note(OLD, "older")
    assert names.id_for_client(b"", "events") == b""
    names.note(NEW, "events")
    assert names.id_for_client(b"", "events") == NEW
