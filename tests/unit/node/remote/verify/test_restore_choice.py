"""Topics that a restore brings back, and those that it leaves out, each with a word."""

from collections.abc import Sequence
from uuid import UUID

import pytest

from icecore_node.remote.format.manifest import Manifest
from icecore_node.remote.verify.bucket import FoundManifest, TopicObjects
from icecore_node.remote.verify.restore_choice import Found, choose_topics
from icecore_node.remote.verify.restore_plan import NOTHING, RestoredTopic
from tests.support.tiered import FACTS, encoded, flights, manifest_of, source_of


def manifest(attempt: int) -> FoundManifest:
    source = source_of(flights(1), 0)
    _, made = encoded(source)
    found: Manifest = manifest_of(source, made, b"", attempt)
    assert found.facts.topic_id == FACTS.topic_id
    return FoundManifest(found, b"s" * 32)


def topic(
    letter: str,
    name: str = "t",
    attempt: int = 0,
    *,
    is_deleted: bool = False,
    problems: Sequence[str] = (),
) -> Found:
    topic_id = letter.encode() * 16
    manifests = [manifest(attempt)] if attempt else []
    found = TopicObjects(topic_id, is_deleted=is_deleted, manifests=manifests)
    plan = RestoredTopic(topic_id=topic_id.hex(), topic=name, partitions=1, problems=[*problems])
    return found, plan


def uuid(letter: str) -> str:
    return str(UUID(bytes=letter.encode() * 16))


def choose(
    *found: Found, asked: Sequence[str] = (), with_deleted: bool = False
) -> tuple[str, dict[str, str]]:
    """The first letters of the ids that come back, and why others do not."""
    chosen, left = choose_topics(found, asked, with_deleted=with_deleted)
    assert len(chosen) + len(left) == len(found), "nothing is left out without a word"
    letters = "".join(chr(int(each.topic_id[:2], 16)) for each in chosen)
    return letters, {chr(int(each.topic_id[:2], 16)): each.why for each in left}


def test_deleted_topics_stay_deleted_unless_somebody_wants_them() -> None:
    found = topic("a", "one"), topic("b", "two", is_deleted=True)
    letters, left = choose(*found)
    assert letters == "a" and left["b"].startswith("it is deleted; --with-deleted or --topic ")
    assert uuid("b") in left["b"]
    assert choose(found[1], asked=["two"])[0] == "", "a name means one that is there"
    assert choose(*found, with_deleted=True) == ("ab", {})
    assert choose(found[1], asked=[uuid("b")]) == ("b", {})


def test_of_one_name_the_one_that_is_not_deleted_comes_back() -> None:
    found = topic("a", attempt=9, is_deleted=True), topic("b", attempt=5)
    assert choose(*found)[0] == "b"
    letters, left = choose(*found, with_deleted=True)
    assert letters == "b" and "the same name, which is not deleted" in left["a"]
    assert uuid("b") in left["a"] and f"--topic {uuid('a')} alone" in left["a"]
    letters, left = choose(*found, asked=["t", uuid("a")])
    assert letters == "a" and "which was asked for" in left["b"]


@pytest.mark.parametrize("is_deleted", [False, True])
@pytest.mark.parametrize("order", [1, -1])
def test_else_the_newest_comes_back(order: int, is_deleted: bool) -> None:
    """As in buckets of earlier versions, which say of no topic that it is deleted."""
    found = [
        topic("a", attempt=5, is_deleted=is_deleted),
        topic("b", attempt=60, is_deleted=is_deleted),
        topic("c", is_deleted=is_deleted),
    ]
    letters, left = choose(*found[::order], with_deleted=True)
    assert letters == "b" and left.keys() == {"a", "c"}
    assert all("which is newer" in each for each in left.values())


def test_what_is_gone_for_good_stops_nobody() -> None:
    swept = topic("a", "gone", is_deleted=True, problems=["x: the table names it, no manifest"])
    assert choose(topic("b"), swept)[0] == "b"
    letters, left = choose(topic("b"), swept, with_deleted=True)
    assert letters == "b" and "not all of it is there: x: the table" in left["a"]
    assert choose(swept, asked=[uuid("a")])[0] == "a", "who wants this one hears its problem"


def test_a_topic_without_a_copy_stops_nobody() -> None:
    empty = topic("a", "", problems=[NOTHING])
    assert choose(topic("b"), empty) == ("b", {"a": NOTHING})
    assert choose(empty, asked=[uuid("a")])[0] == "a"
    assert choose(topic("a", problems=[NOTHING]), asked=["t"])[0] == "a"
    damaged = topic("a", problems=[NOTHING])
    damaged[0].unreadable["x.manifest.json"] = "it is damaged"
    assert choose(damaged)[0] == "a", "there was one"
    assert choose(topic("a", problems=["a hole"]))[0] == "a", "its problem stops the restore"
