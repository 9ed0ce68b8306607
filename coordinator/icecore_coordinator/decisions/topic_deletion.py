"""Decisions about deleted topics: hide, count the grace, bring back, let go. Pure.

A deleted topic is kept whole, but for its name and its tails, until its grace is used up. Grace is
time that coordinators have counted while they ran; what they counted is taken off the record now
and then. So neither a wall clock nor a restart shortens it (R68).

A topic that is being imported is no deleted topic: it has no grace and can't be brought back. It
can be discarded. By that its records go, and no object does.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Any

from icecore.errors import InvalidRequestError, UnknownTopicError
from icecore.model import check_topic_name
from icecore.tier_records import TierTopicRecord
from icecore_coordinator.decisions.remote.tiering import drop_tiered, records_per_drop
from icecore_coordinator.decisions.topic_changes import altered
from icecore_coordinator.state.cluster_state import (
    ClusterState,
    check_free,
    stored_version,
)
from icecore_coordinator.state.records import (
    RECORDS_PER_CHANGE,
    Change,
    Record,
    TopicRecord,
    updated,
)


def kept_topics(state: ClusterState) -> list[TopicRecord]:
    """Those that are deleted and may come back, by name, last deleted first."""
    kept = [record for record in state.topics.values() if record.is_kept]
    return sorted(kept, key=lambda record: (record.name, -record.deleted_at_ms))


def delete_topic(
    state: ClusterState, name: str, topic_id: bytes, now_ms: int, *, is_now: bool = False
) -> Change:
    """Hide a topic and free its name; with ``is_now`` it goes for good, hidden before or not.

    Args:
        state: The cluster.
        name: Of a live topic; unless there is a ``topic_id``.
        topic_id: Of the topic, or empty.
        now_ms: Wall clock.
        is_now: Without any grace.

    Raises:
        UnknownTopicError: no such topic, or it is deleted already.
        InvalidRequestError: the id is that of a topic with another name, or of an import that is
            not to go now.
    """
    topic = _asked(state, name, topic_id)
    if topic.is_import and not is_now:
        raise InvalidRequestError(
            f"topic {topic.name!r} is being imported: repeat its restore, or discard the import by "
            f"`icecore topic delete --now --topic-id {topic.topic_id.hex()}`, which keeps its "
            "objects"
        )
    if topic.is_deleting or (topic.is_deleted and not is_now):
        raise UnknownTopicError(f"topic {topic.name!r} is deleted already", topic=topic.name)
    is_final = is_now or topic.delete_grace_ms == 0
    if topic.is_deleted:  # it only loses its grace
        return _for_good(state, topic)
    at_ms = max(1, now_ms)
    if is_final:
        return _for_good(state, topic, is_deleted=True, deleted_at_ms=at_ms)
    return altered(
        state,
        topic,
        is_deleted=True,
        deleted_at_ms=at_ms,
        grace_left_ms=topic.delete_grace_ms,
    )


def _for_good(state: ClusterState, topic: TopicRecord, **changes: Any) -> Change:
    """The topic goes. Its partitions go soon, and orders for their tables with them; so its prefix
    is noted to be marked, unless that is not its own."""
    version = topic.settings_version + 1
    gone = updated(topic, is_deleting=True, grace_left_ms=0, settings_version=version, **changes)
    noted = None if gone.is_import else state.tiers.topics.get(topic.topic_id)
    marked = () if noted is None else (updated(noted, gone_version=stored_version(state, gone)),)
    return Change((gone, *marked))


def to_mark(state: ClusterState) -> list[TierTopicRecord]:
    """Return the topics that are deleted for good while nothing in object storage says so."""
    return [
        each
        for topic_id, each in state.tiers.topics.items()
        if each.gone_version and (topic_id not in state.topics or _is_going(state, topic_id))
    ]


def _is_going(state: ClusterState, topic_id: bytes) -> bool:
    return state.topics[topic_id].is_deleting


def marked(state: ClusterState, asked: TierTopicRecord) -> Change:
    """Object storage says that the topic is deleted."""
    known = state.tiers.topics.get(asked.topic_id)
    if known is None or known.gone_version != asked.gone_version:
        return Change()
    return Change((updated(known, gone_version=0),))


def _asked(state: ClusterState, name: str, topic_id: bytes) -> TopicRecord:
    """By id, else by name. Raises UnknownTopicError, InvalidRequestError."""
    if not topic_id:
        return state.topic(name)
    topic = state.topics.get(topic_id)
    if topic is None:
        raise UnknownTopicError(f"no topic has the id {topic_id.hex()}", topic=name)
    if name and name != topic.name:
        raise InvalidRequestError(f"topic {topic_id.hex()} is called {topic.name!r}, not {name!r}")
    return topic


def undelete_topic(
    state: ClusterState, name: str, topic_id: bytes, new_name: str = ""
) -> tuple[Change, bytes]:
    """Bring back a topic with everything it had; its partitions are opened by who finds them so.

    Args:
        state: The cluster.
        name: That it had; unless there is a ``topic_id``.
        topic_id: Of the topic, or empty.
        new_name: What to call it from now on; empty = as before.

    Returns:
        The change and the topic's id.

    Raises:
        UnknownTopicError: no such topic is deleted and kept.
        InvalidRequestError: several were called so, or the id is that of another one.
        TopicExistsError: the name is taken.
        InvalidTopicNameError: the new name is not allowed.
    """
    topic = _kept(state, name, topic_id)
    new_name = new_name or topic.name
    check_topic_name(new_name)
    check_free(state, new_name)
    back = altered(state, topic, name=new_name, is_deleted=False, deleted_at_ms=0, grace_left_ms=0)
    return back, topic.topic_id


def _kept(state: ClusterState, name: str, topic_id: bytes) -> TopicRecord:
    if topic_id:
        topic = _asked(state, name, topic_id)
        if topic.is_import:
            raise UnknownTopicError(
                f"topic {topic_id.hex()} was not deleted, it is being imported: repeat its restore",
                topic=topic.name,
            )
        found = [topic] if topic.is_kept else []
    else:
        found = [each for each in kept_topics(state) if each.name == name]
    if len(found) > 1:
        ids = ", ".join(each.topic_id.hex() for each in found)
        raise InvalidRequestError(
            f"{len(found)} deleted topics were called {name!r}: give the topic id of one of {ids}"
        )
    if not found:
        raise UnknownTopicError(f"no deleted topic {name or topic_id.hex()!r} is kept", topic=name)
    return found[0]


def spend_grace(state: ClusterState, topic_id: bytes, version: int, spent_ms: int) -> Change:
    """Take time off a deleted topic's grace; without any left it goes for good.

    Nothing happens when the record is not the one the time was counted for.
    """
    topic = state.topics.get(topic_id)
    if topic is None or not topic.is_kept or topic.version != version:
        return Change()
    left_ms = max(0, topic.grace_left_ms - spent_ms)
    if not left_ms:
        return _for_good(state, topic)
    return Change((updated(topic, grace_left_ms=left_ms),))


def continue_delete(state: ClusterState, topic_id: bytes, now_ms: int) -> Change:
    """The next bounded step of letting a topic go for good; empty when it is gone.

    Segments become deletion records first, then partitions and saved positions go, then the topic.
    """
    topic = state.topics.get(topic_id)
    if topic is None or not topic.is_deleting:
        return Change()
    if topic.is_import:
        return _discard(state, topic)
    change, per_drop = Change(), records_per_drop(state, topic_id)
    for partition in state.partitions_of(topic):
        segments = state.segments_in(partition.partition_key)
        room = (RECORDS_PER_CHANGE - len(change.puts) - len(change.deletes)) // per_drop
        if room <= 0:
            return change
        change = change + drop_tiered(state, segments[:room], now_ms, is_topic_gone=True)
        if len(segments) <= room:
            change = change + Change(deletes=(partition,))
    if any(True for _ in state.partitions_of(topic)):
        return change
    positions = state.positions.part_of(topic_id, RECORDS_PER_CHANGE - 1)
    is_all = len(positions) == len(state.positions.of_topic.get(topic_id, ()))
    return Change(deletes=(*positions, topic) if is_all else positions)


def _discard(state: ClusterState, topic: TopicRecord) -> Change:
    """The next bounded step of discarding an import.

    Segments leave no deletion records, so that the same ones may be imported again. Nothing is
    retired, so that nobody sweeps their objects.
    """
    most = RECORDS_PER_CHANGE - 2
    some = (*islice(_imported(state, topic), most),)
    if len(some) == most:
        return Change(deletes=some)
    # Earlier versions noted the prefix when an import began.
    noted = state.tiers.topics.get(topic.topic_id)
    return Change(deletes=(*some, *((noted,) if noted else ()), topic))


def _imported(state: ClusterState, topic: TopicRecord) -> Iterator[Record]:
    for number in range(topic.partitions):
        key = (topic.topic_id, number)
        for segment_id in state.segments_of_partition.get(key, ()):
            yield state.segments[segment_id]
            if tier := state.tiers.segments.get(segment_id):
                yield tier
        if partition := state.partitions.get(key):
            yield partition
