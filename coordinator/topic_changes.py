"""Decisions about topics: create, grow, alter, delete. Pure.

A topic's partitions get their records here but no segment: a partition without a tail is opened
by whoever finds it so, which makes creation and recovery the same path.
"""

from coordinator.cluster_state import (
    Change,
    ClusterState,
    PartitionRecord,
    TopicRecord,
    updated,
)
from coordinator.segment_changes import drop
from icecore.errors import (
    InvalidRequestError,
    NotEnoughReplicasError,
    TopicExistsError,
    UnsupportedError,
)
from icecore.model import FlushMode, SegmentSettings, check_topic_name

PARTITIONS_MAX = 10_000
DEFAULT_REPLICATION_FACTOR = 3
PARTITIONERS = ("xxh64", "custom")
SEGMENT_BYTES_MIN = 64 << 10
RECORDS_PER_CHANGE = 100
"""etcd allows 128 operations in a transaction."""


def check_partitions(partitions: int) -> None:
    """Raises InvalidRequestError."""
    if not 1 <= partitions <= PARTITIONS_MAX:
        raise InvalidRequestError(f"a topic has 1 to {PARTITIONS_MAX} partitions, not {partitions}")


def completed(settings: SegmentSettings, nodes: int) -> SegmentSettings:
    """Settings with the defaults that depend on the cluster filled in.

    Args:
        settings: ``replication_factor`` and ``min_insync`` may be 0 = not given.
        nodes: How many are up.
    """
    factor = settings.replication_factor or max(1, min(DEFAULT_REPLICATION_FACTOR, nodes))
    in_sync = settings.min_insync or (2 if factor >= DEFAULT_REPLICATION_FACTOR else 1)
    return SegmentSettings(
        replication_factor=factor,
        min_insync=in_sync,
        flush_mode=settings.flush_mode,
        segment_bytes=settings.segment_bytes,
        segment_age_ms=settings.segment_age_ms,
        engine=settings.engine,
        file_model=settings.file_model,
        recovery_rule=settings.recovery_rule,
        partitioner=settings.partitioner,
    )


def check_settings(settings: SegmentSettings, nodes: int) -> None:
    """Whether segments with these settings could be opened on ``nodes`` nodes.

    Raises:
        InvalidRequestError: the settings contradict each other or name what does not exist.
        UnsupportedError: a flush mode that no engine has yet.
        NotEnoughReplicasError: fewer nodes are up than copies are wanted.
    """
    factor = settings.replication_factor
    if settings.flush_mode is not FlushMode.SYNC:
        raise UnsupportedError("flush_mode async is not offered yet: every ack means fsynced")
    if not 1 <= settings.min_insync <= factor:
        raise InvalidRequestError(
            f"min_insync {settings.min_insync} must be between 1 and replication_factor {factor}"
        )
    if settings.partitioner not in PARTITIONERS:
        raise InvalidRequestError(
            f"partitioner {settings.partitioner!r} must be one of {', '.join(PARTITIONERS)}"
        )
    if settings.segment_bytes < SEGMENT_BYTES_MIN:
        raise InvalidRequestError(f"segment_bytes must be at least {SEGMENT_BYTES_MIN}")
    if factor > nodes:
        raise NotEnoughReplicasError(
            f"replication_factor {factor} needs {factor} nodes that are up, there are {nodes}",
            nodes=nodes,
        )


def create_topic(
    state: ClusterState, name: str, topic_id: bytes, partitions: int, settings: SegmentSettings
) -> Change:
    """The record of a new topic; ``missing_partitions`` adds its partitions.

    Raises:
        TopicExistsError: the name is taken.
        InvalidTopicNameError, InvalidRequestError, NotEnoughReplicasError: see the checks.
    """
    check_topic_name(name)
    check_partitions(partitions)
    if name in state.topic_ids:
        is_deleting = state.topics[state.topic_ids[name]].is_deleting
        raise TopicExistsError(f"topic {name!r} {'is being deleted' if is_deleting else 'exists'}")
    check_settings(settings, len(state.eligible_nodes()))
    return Change((TopicRecord(topic_id, name, partitions, settings, version=1),))


def missing_partitions(state: ClusterState) -> list[Change]:
    """Records of partitions that topics should have and do not, in changes of bounded size."""
    missing = [
        PartitionRecord(topic.topic_id, number, version=1)
        for topic in state.live_topics()
        for number in range(topic.partitions)
        if (topic.topic_id, number) not in state.partitions
    ]
    return [
        Change(tuple(missing[start : start + RECORDS_PER_CHANGE]))
        for start in range(0, len(missing), RECORDS_PER_CHANGE)
    ]


def add_partitions(state: ClusterState, name: str, partitions: int) -> Change:
    """Raise the number of partitions.

    Raises:
        UnknownTopicError: no such topic.
        InvalidRequestError: the number is no larger than it was, or too large.
    """
    topic = state.topic(name)
    check_partitions(partitions)
    if partitions < topic.partitions:
        raise InvalidRequestError(
            f"topic {name!r} has {topic.partitions} partitions and keeps them; asked for "
            f"{partitions}"
        )
    if partitions == topic.partitions:
        return Change()
    return Change((updated(topic, partitions=partitions),))


def alter_topic(state: ClusterState, name: str, settings: SegmentSettings) -> Change:
    """Replace the settings; they hold from each partition's next segment on.

    Raises:
        UnknownTopicError: no such topic.
        InvalidRequestError, NotEnoughReplicasError: see ``check_settings``.
    """
    topic = state.topic(name)
    check_settings(settings, len(state.eligible_nodes()))
    if settings.partitioner != topic.settings.partitioner:
        raise InvalidRequestError("the partitioner of a topic can't be changed")
    return Change() if settings == topic.settings else Change((updated(topic, settings=settings),))


def start_delete(state: ClusterState, name: str) -> Change:
    """Mark a topic as going: it takes no new segments. Raises UnknownTopicError."""
    return Change((updated(state.topic(name), is_deleting=True),))


def continue_delete(state: ClusterState, topic_id: bytes, now_ms: int) -> Change:
    """The next bounded step of a deletion; empty when the topic is gone.

    Segments become tombstones first, then partitions go, then the topic and its name.
    """
    topic = state.topics.get(topic_id)
    if topic is None or not topic.is_deleting:
        return Change()
    change = Change()
    for partition in state.partitions_of(topic):
        segments = state.segments_in(partition.partition_key)
        room = (RECORDS_PER_CHANGE - len(change.puts) - len(change.deletes)) // 2
        if room <= 0:
            return change
        change = change + drop(segments[:room], now_ms)
        if len(segments) <= room:
            change = change + Change(deletes=(partition,))
    if any(True for _ in state.partitions_of(topic)):
        return change
    return Change(deletes=(topic,))
