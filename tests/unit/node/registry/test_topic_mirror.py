"""Pages about topics come in order, twice, late or from another one: the mirror never goes back."""

from icecore.v1 import admin_pb2, mirror_pb2
from icecore_node.registry.topic_mirror import MirrorPlace, TopicMirror

A, B = b"a" * 16, b"b" * 16


def topic(topic_id: bytes, name: str, **epochs: int) -> admin_pb2.TopicMetadata:
    """Epochs of the partitions that changed: ``p0=7``."""
    partitions = [
        admin_pb2.PartitionMetadata(partition=int(key[1:]), epoch=epoch)
        for key, epoch in epochs.items()
    ]
    return admin_pb2.TopicMetadata(name=name, topic_id=topic_id, partitions=partitions)


def page(
    version: int,
    *topics: admin_pb2.TopicMetadata,
    coordinator_epoch: int = 1,
    since: int = 0,
    after: int = 0,
    more: bool = False,
    gone: tuple[bytes, ...] = (),
) -> mirror_pb2.FollowTopicsResponse:
    return mirror_pb2.FollowTopicsResponse(
        coordinator_epoch=coordinator_epoch,
        since_version=since,
        after_version=after,
        version=version,
        more=more,
        topics=topics,
        gone_topic_ids=gone,
    )


def epochs(mirror: TopicMirror, name: str) -> list[int] | None:
    found = mirror.find(name)
    return None if found is None else [each.epoch for each in found.partitions]


def test_the_first_answer_is_shown_when_it_is_whole() -> None:
    mirror = TopicMirror()
    assert mirror.place == MirrorPlace(0, 0, 0)
    assert not mirror.take(page(3, topic(A, "a", p0=1), more=True))
    assert mirror.is_empty
    assert mirror.place == MirrorPlace(1, 0, 3)
    assert mirror.take(page(5, topic(B, "b", p1=2, p0=1), after=3))
    assert not mirror.is_empty
    assert (epochs(mirror, "a"), epochs(mirror, "b")) == ([1], [1, 2])
    assert mirror.place == MirrorPlace(1, 5, 0)


def test_changes_leave_what_they_do_not_mention() -> None:
    mirror = TopicMirror()
    mirror.take(page(5, topic(A, "a", p0=1, p1=1)))
    assert mirror.take(page(6, topic(A, "a", p1=4), since=5))
    assert epochs(mirror, "a") == [1, 4]


def test_a_page_that_comes_twice_or_late_changes_nothing() -> None:
    mirror = TopicMirror()
    mirror.take(first := page(5, topic(A, "a", p0=1)))
    mirror.take(second := page(6, topic(A, "a", p0=2), since=5))
    for late in (first, second, page(9, topic(A, "a", p0=9), since=8)):
        assert not mirror.take(late)
        assert (epochs(mirror, "a"), mirror.version) == ([2], 6)


def test_another_coordinator_begins_anew_and_what_it_lacks_is_gone() -> None:
    mirror = TopicMirror()
    mirror.take(page(50, topic(A, "a", p0=1), topic(B, "b", p0=1)))
    assert not mirror.take(page(3, topic(A, "a", p0=2), coordinator_epoch=2, more=True))
    assert epochs(mirror, "a") == [1]
    assert mirror.take(page(4, coordinator_epoch=2, after=3))
    assert (epochs(mirror, "a"), epochs(mirror, "b"), mirror.version) == ([2], None, 4)
    assert not mirror.take(page(60, topic(B, "b", p0=1)))  # of the one before
    assert (epochs(mirror, "b"), mirror.coordinator_epoch) == (None, 2)


def test_a_name_goes_to_the_topic_that_has_it_now() -> None:
    mirror = TopicMirror()
    mirror.take(page(5, topic(A, "t", p0=1)))
    mirror.take(page(7, topic(B, "t", p0=3), since=5, gone=(A,)))
    found = mirror.find("t")
    assert found is not None
    assert found.topic_id == B
    mirror.take(page(9, topic(B, "u"), since=7))
    assert (epochs(mirror, "t"), epochs(mirror, "u")) == (None, [3])
    assert list(mirror.names()) == [("u", B)]


def test_it_is_as_old_as_the_last_word_that_it_was_the_newest() -> None:
    mirror = TopicMirror()
    mirror.take(page(5))
    mirror.note_newest(1_000)
    mirror.note_newest(400)
    assert mirror.age_ms(1_250) == 250
