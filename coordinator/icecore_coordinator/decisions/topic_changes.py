"""Decisions about topics: create, grow, alter. Pure.

A topic's partitions get their records here but no segment: a partition without a tail is opened
by whoever finds it so, which makes creation and recovery the same path.
"""

from dataclasses import replace
from typing import Any

from icecore.codec.batch import BATCH_BYTES_CAP, RECORD_BYTES_CAP, UNCOMPRESSED_BYTES_CAP
from icecore.errors import (
    InvalidRequestError,
    NotEnoughReplicasError,
    UnsupportedError,
)
from icecore.model import (
    ENGINES,
    FILE_MODELS,
    KEEP_ALL,
    MEMORY_ENGINE,
    NO_LIMIT,
    NOT_TIERED,
    ON_FULL,
    ON_TOTAL_LOSS,
    OWN_FILE,
    RESTART_EMPTY,
    ROCKSDB_ENGINE,
    SEGMENT_ENGINE,
    SHARED_FILE,
    TIER_FORMATS,
    UNAVAILABLE_ON_LOSS,
    FlushMode,
    Retention,
    SegmentSettings,
    Tiering,
    check_indexed_headers,
    check_topic_name,
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

PARTITIONS_MAX = 10_000
DEFAULT_REPLICATION_FACTOR = 3
PARTITIONERS = ("xxh64", "custom")
STORAGE = {"engine": ENGINES, "file_model": FILE_MODELS, "on_total_loss": ON_TOTAL_LOSS}
OFFERED = (SEGMENT_ENGINE, f"{SEGMENT_ENGINE}/{SHARED_FILE}", ROCKSDB_ENGINE, MEMORY_ENGINE)
"""What active segments can be kept in."""
FLUSH_BOUNDS = {"flush_interval_ms": 3_600_000, "flush_bytes": 1 << 30}
"""Greatest values; beyond them nobody would mean what they say."""
SEGMENT_BYTES_MIN = 64 << 10
SEGMENT_AGE_MS_MIN = 1_000
SEGMENT_AGE_MS_MAX = 100 * 366 * 24 * 3600 * 1000
REPLICATION_FACTOR_MAX = 32
"""More is refused for good; more than nodes are up may be granted in a moment."""
BATCH_CAPS = {
    "record_bytes_max": RECORD_BYTES_CAP,
    "batch_bytes_max": BATCH_BYTES_CAP,
    "uncompressed_bytes_max": UNCOMPRESSED_BYTES_CAP,
}
RETENTION_MAX = 1 << 60
"""Of milliseconds, and of bytes."""
DELETE_GRACE_MS_MAX = 10 * 366 * 24 * 3600 * 1000


def check_partitions(partitions: int) -> None:
    """Raises InvalidRequestError."""
    if not 1 <= partitions <= PARTITIONS_MAX:
        raise InvalidRequestError(f"a topic has 1 to {PARTITIONS_MAX} partitions, not {partitions}")


def completed(settings: SegmentSettings, nodes: int) -> SegmentSettings:
    """Settings with the defaults that depend on the cluster, or on one another, filled in.

    Args:
        settings: ``replication_factor`` and ``min_insync`` may be 0 = not given, ``on_total_loss``
            empty.
        nodes: How many are up.
    """
    factor = settings.replication_factor or max(1, min(DEFAULT_REPLICATION_FACTOR, nodes))
    in_sync = settings.min_insync or (2 if factor >= DEFAULT_REPLICATION_FACTOR else 1)
    usual = RESTART_EMPTY if settings.engine == MEMORY_ENGINE else UNAVAILABLE_ON_LOSS
    return replace(
        settings,
        replication_factor=factor,
        min_insync=in_sync,
        on_total_loss=settings.on_total_loss or usual,
    )


def check_settings(settings: SegmentSettings, nodes: int) -> None:
    """Whether segments with these settings could be opened on ``nodes`` nodes.

    Raises:
        InvalidRequestError: the settings contradict each other or name what does not exist.
        UnsupportedError: storage that is not offered yet.
        NotEnoughReplicasError: fewer nodes are up than copies are wanted.
    """
    factor = settings.replication_factor
    check_storage(settings)
    if factor > REPLICATION_FACTOR_MAX:
        raise InvalidRequestError(
            f"replication_factor {factor} is more than {REPLICATION_FACTOR_MAX}"
        )
    if not SEGMENT_AGE_MS_MIN <= settings.segment_age_ms <= SEGMENT_AGE_MS_MAX:
        raise InvalidRequestError(
            f"segment_age_ms is {SEGMENT_AGE_MS_MIN} to {SEGMENT_AGE_MS_MAX}, not "
            f"{settings.segment_age_ms}"
        )
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
    check_batch_limits(settings)
    check_indexed_headers(settings.indexed_headers)
    if factor > nodes:
        raise NotEnoughReplicasError(
            f"replication_factor {factor} needs {factor} nodes that are up, there are {nodes}",
            nodes=nodes,
        )


def check_storage(settings: SegmentSettings) -> None:
    """Whether there is such storage. Raises InvalidRequestError, UnsupportedError."""
    for name, known in STORAGE.items():
        value = getattr(settings, name)
        if value not in known:
            raise InvalidRequestError(f"{name} {value[:64]!r} must be one of {', '.join(known)}")
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
    for name, greatest in FLUSH_BOUNDS.items():
        if not 1 <= getattr(settings, name) <= greatest:
            raise InvalidRequestError(f"{name} must be between 1 and {greatest}")
    if settings.active_engine not in OFFERED:
        raise UnsupportedError(f"storage {settings.active_engine} is not offered yet")


def check_batch_limits(settings: SegmentSettings) -> None:
    """Whether every reader can take what leaders would (R70). Raises InvalidRequestError."""
    for name, cap in BATCH_CAPS.items():
        if not 1 <= getattr(settings, name) <= cap:
            raise InvalidRequestError(f"{name} must be between 1 and {cap} bytes")
    for larger in ("batch_bytes_max", "uncompressed_bytes_max"):
        if settings.record_bytes_max > getattr(settings, larger):
            raise InvalidRequestError(f"record_bytes_max must not exceed {larger}")


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
    check_partitions(partitions)
    check_free(state, name)
    check_settings(settings, len(eligible_nodes(state, live)))
    check_grace(delete_grace_ms)
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


def check_grace(delete_grace_ms: int) -> None:
    """Raises InvalidRequestError."""
    if delete_grace_ms > DELETE_GRACE_MS_MAX:
        raise InvalidRequestError(
            f"delete_grace_ms is at most {DELETE_GRACE_MS_MAX} (ten years), not {delete_grace_ms}"
        )


def check_retention(retention: Retention, settings: SegmentSettings) -> None:
    """Whether segments of these settings can be kept so. Raises InvalidRequestError."""
    least = {"retention_ms": 1, "retention_bytes": settings.segment_bytes}
    for name, low in least.items():
        value = getattr(retention, name)
        if value != NO_LIMIT and not low <= value <= RETENTION_MAX:
            why = ", the segment_bytes: whole segments go" if name == "retention_bytes" else ""
            raise InvalidRequestError(
                f"{name} is -1 (no limit) or from {low} to {RETENTION_MAX}, not {value}{why}"
            )
    if retention.on_full not in ON_FULL:
        raise InvalidRequestError(
            f"on_full {retention.on_full[:64]!r} must be one of {', '.join(ON_FULL)}"
        )


def check_tiering(state: ClusterState, tiering: Tiering, retention: Retention) -> None:
    """Whether a topic that keeps this can be tiered so. Raises InvalidRequestError."""
    if tiering.tier_format not in TIER_FORMATS:
        raise InvalidRequestError(
            f"tier_format {tiering.tier_format[:64]!r} must be one of {', '.join(TIER_FORMATS)}"
        )
    if not 0 <= tiering.tier_after_ms <= RETENTION_MAX:
        raise InvalidRequestError(
            f"tier_after_ms is from 0 to {RETENTION_MAX}, not {tiering.tier_after_ms}"
        )
    for name in ("retention_ms", "retention_bytes"):
        local, total = getattr(tiering, f"local_{name}"), getattr(retention, name)
        if local != NO_LIMIT and not 0 <= local <= RETENTION_MAX:
            raise InvalidRequestError(
                f"local_{name} is -1 (no limit) or from 0 to {RETENTION_MAX}, not {local}"
            )
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
    check_partitions(partitions)
    if partitions < topic.partitions:
        raise InvalidRequestError(
            f"topic {name!r} has {topic.partitions} partitions and keeps them; asked for "
            f"{partitions}"
        )
    if partitions == topic.partitions:
        return Change()
    counts = (*topic.known_counts, partitions)
    return _altered(state, topic, partitions=partitions, partition_counts=counts)


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
    check_grace(grace_ms)
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
    return _altered(state, topic, **new)


def _altered(state: ClusterState, topic: TopicRecord, **changes: Any) -> Change:
    """The next version; what lies in object storage of its settings is behind by that, as is the
    table of the partition whose next commit brings them there."""
    topic_id, version = topic.topic_id, topic.settings_version + 1
    keys = ((topic_id, number) for number in range(topic.partitions))
    first = next((key for key in keys if state.tiers.published.get(key)), None)
    behind = () if first is None else next_revision(state, first)
    return Change((updated(topic, settings_version=version, **changes), *behind))
