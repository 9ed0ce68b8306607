"""Decisions about topics: create, grow, alter. Pure.

A topic's partitions get their records here but no segment: a partition without a tail is opened
by whoever finds it so, which makes creation and recovery the same path.
"""

from dataclasses import replace
from typing import Any

from icecore.errors import InvalidRequestError, NotEnoughReplicasError, UnsupportedError
from icecore.model import check_topic_name
from icecore.topic_settings import (
    KEEP_ALL,
    MEMORY_ENGINE,
    NO_LIMIT,
    NOT_TIERED,
    OWN_FILE,
    RESTART_EMPTY,
    ROCKSDB_ENGINE,
    SEGMENT_ENGINE,
    SETTINGS,
    SHARED_FILE,
    UNAVAILABLE_ON_LOSS,
    FlushMode,
    Retention,
    SegmentSettings,
    Tiering,
    check_indexed_headers,
    check_values,
)
from icecore_coordinator.state.cluster_state import (
    ClusterState,
    check_free,
    eligible_nodes,
    live_topics,
    next_revision,
)
from icecore_coordinator.state.liveness import Liveness
from icecore_coordinator.state.records import (
    DELETE_GRACE_MS,
    RECORDS_PER_CHANGE,
    Change,
    PartitionRecord,
    TopicRecord,
    updated,
)

DEFAULT_REPLICATION_FACTOR = 3
OFFERED = (SEGMENT_ENGINE, f"{SEGMENT_ENGINE}/{SHARED_FILE}", ROCKSDB_ENGINE, MEMORY_ENGINE)
"""Storage of active segments that this version has."""


def completed(settings: SegmentSettings, nodes: int) -> SegmentSettings:
    """Settings with the defaults that depend on the cluster, or on one another, filled in.

    Args:
        settings: ``replication_factor`` and ``min_insync_replicas`` may be 0 = not given,
            ``on_total_loss`` empty.
        nodes: How many are up.
    """
    factor = settings.replication_factor or max(1, min(DEFAULT_REPLICATION_FACTOR, nodes))
    in_sync = settings.min_insync_replicas or (2 if factor >= DEFAULT_REPLICATION_FACTOR else 1)
    usual = RESTART_EMPTY if settings.engine == MEMORY_ENGINE else UNAVAILABLE_ON_LOSS
    return replace(
        settings,
        replication_factor=factor,
        min_insync_replicas=in_sync,
        on_total_loss=settings.on_total_loss or usual,
    )


def check_settings(settings: SegmentSettings, nodes: int) -> None:
    """Refuse settings with which no segment could be opened on ``nodes`` nodes.

    Raises:
        InvalidRequestError: the settings contradict each other or name what does not exist.
        UnsupportedError: storage that is not offered yet.
        NotEnoughReplicasError: fewer nodes are up than copies are wanted.
    """
    factor = settings.replication_factor
    check_values(settings)
    check_storage(settings)
    if settings.min_insync_replicas > factor:
        raise InvalidRequestError(
            f"min_insync_replicas {settings.min_insync_replicas} is above "
            f"replication_factor {factor}: with fewer "
            "copies no acks=all could be answered"
        )
    for larger in ("batch_bytes_max", "uncompressed_bytes_max"):
        if settings.record_bytes_max > getattr(settings, larger):
            raise InvalidRequestError(
                f"record_bytes_max {settings.record_bytes_max} is above {larger} "
                f"{getattr(settings, larger)}: raise {larger}, too"
            )
    check_indexed_headers(settings.indexed_headers)
    if factor > nodes:
        raise NotEnoughReplicasError(
            f"replication_factor {factor} needs {factor} nodes that are up, there are {nodes}",
            nodes=nodes,
        )


def check_storage(settings: SegmentSettings) -> None:
    """Refuse storage that there is not. Raises InvalidRequestError, UnsupportedError."""
    if settings.file_model == SHARED_FILE and settings.engine != SEGMENT_ENGINE:
        raise InvalidRequestError(
            f"file_model {SHARED_FILE} is one of engine {SEGMENT_ENGINE}; engine "
            f"{settings.engine} keeps no files of active segments"
        )
    if settings.flush_mode is FlushMode.ASYNC and settings.active_engine != SEGMENT_ENGINE:
        raise InvalidRequestError(
            f"flush_mode async is one of engine {SEGMENT_ENGINE} with file_model {OWN_FILE}; "
            f"{settings.active_engine} has its own rule"
        )
    if settings.active_engine not in OFFERED:
        raise UnsupportedError(f"storage {settings.active_engine} is not offered yet")


def create_topic(
    state: ClusterState,
    live: Liveness,
    name: str,
    topic_id: bytes,
    partitions: int,
    settings: SegmentSettings,
    delete_grace_ms: int = DELETE_GRACE_MS,
    retention: Retention = KEEP_ALL,
    tiering: Tiering = NOT_TIERED,
) -> Change:
    """The record of a new topic; ``missing_partitions`` adds its partitions.

    Raises:
        TopicExistsError: the name is taken.
        InvalidTopicNameError, InvalidRequestError, NotEnoughReplicasError: see the checks.
    """
    check_topic_name(name)
    SETTINGS["partitions"].check(partitions)
    check_free(state, name)
    check_settings(settings, len(eligible_nodes(state, live)))
    SETTINGS["delete_grace_ms"].check(delete_grace_ms)
    check_retention(retention, settings)
    check_tiering(state, tiering, retention)
    topic = TopicRecord(
        topic_id=topic_id,
        name=name,
        partitions=partitions,
        settings=settings,
        delete_grace_ms=delete_grace_ms,
        partition_counts=(partitions,),
        retention=retention,
        tiering=tiering,
        version=1,
    )
    return Change((topic,))


def check_retention(retention: Retention, settings: SegmentSettings) -> None:
    """Refuse limits that such segments can't have. Raises InvalidRequestError."""
    check_values(retention)
    if NO_LIMIT != retention.retention_bytes < settings.segment_bytes:
        raise InvalidRequestError(
            f"retention_bytes {retention.retention_bytes} is below segment_bytes "
            f"{settings.segment_bytes}: whole segments go; raise it, or make segments smaller"
        )


def check_tiering(state: ClusterState, tiering: Tiering, retention: Retention) -> None:
    """Refuse tiering that such a topic can't have. Raises InvalidRequestError."""
    check_values(tiering)
    for name in ("retention_ms", "retention_bytes"):
        local, total = getattr(tiering, f"local_{name}"), getattr(retention, name)
        if NO_LIMIT not in (local, total) and local > total:
            raise InvalidRequestError(
                f"local_{name} {local} is above {name} {total}: nodes keep nothing longer than the "
                "topic does"
            )
    if tiering.is_on and not any(each.tier_url for each in state.nodes.values()):
        raise InvalidRequestError(
            "tier=on needs nodes with an object store, and there is none: set tier_url in the "
            "settings of nodes"
        )


def missing_partitions(state: ClusterState) -> list[Change]:
    """Records of partitions that topics should have and do not, in changes of bounded size."""
    missing = [
        PartitionRecord(topic_id=topic.topic_id, partition=number, version=1)
        for topic in live_topics(state)
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
    SETTINGS["partitions"].check(partitions)
    if partitions < topic.partitions:
        raise InvalidRequestError(
            f"topic {name!r} has {topic.partitions} partitions and keeps them; asked for "
            f"{partitions}"
        )
    if partitions == topic.partitions:
        return Change()
    counts = (*topic.known_counts, partitions)
    return altered(state, topic, partitions=partitions, partition_counts=counts)


def alter_topic(
    state: ClusterState,
    live: Liveness,
    name: str,
    settings: SegmentSettings,
    delete_grace_ms: int | None = None,
    retention: Retention | None = None,
    tiering: Tiering | None = None,
) -> Change:
    """Replace the settings; those of segments hold from each partition's next segment on, the
    others at once.

    Raises:
        UnknownTopicError: no such topic.
        InvalidRequestError, NotEnoughReplicasError: see the checks.
    """
    topic = state.topic(name)
    grace_ms = topic.delete_grace_ms if delete_grace_ms is None else delete_grace_ms
    check_settings(settings, len(eligible_nodes(state, live)))
    SETTINGS["delete_grace_ms"].check(grace_ms)
    kept = topic.retention if retention is None else retention
    check_retention(kept, settings)
    tiered = topic.tiering if tiering is None else tiering
    if (tiered, kept) != (topic.tiering, topic.retention):
        check_tiering(state, tiered, kept)
    if settings.partitioner != topic.settings.partitioner:
        raise InvalidRequestError("the partitioner of a topic can't be changed")
    new = {
        "settings": settings,
        "delete_grace_ms": grace_ms,
        "retention": kept,
        "tiering": tiered,
    }
    if all(getattr(topic, name) == value for name, value in new.items()):
        return Change()
    return altered(state, topic, **new)


def altered(state: ClusterState, topic: TopicRecord, **changes: Any) -> Change:
    """The next version; what object storage says of the topic is behind by that, as is the table of
    the partition whose next commit brings it there. Without copies this is any partition, as long
    as something of the topic may lie there."""
    topic_id, version = topic.topic_id, topic.settings_version + 1
    keys = [each.partition_key for each in state.partitions_of(topic)]
    first = next((key for key in keys if state.tiers.published.get(key)), None)
    if first is None and topic_id in state.tiers.topics:
        first = next(iter(keys), None)
    behind = () if first is None else next_revision(state, first)
    return Change((updated(topic, settings_version=version, **changes), *behind))
