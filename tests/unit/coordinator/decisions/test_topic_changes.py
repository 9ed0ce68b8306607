"""Decisions about nodes and topics: who may register, what a name may be, how topics grow."""

from dataclasses import replace
from typing import Any

import pytest

from icecore.errors import (
    InvalidRequestError,
    InvalidTopicNameError,
    NotEnoughReplicasError,
    SupersededError,
    TopicExistsError,
    WrongClusterError,
)
from icecore.model import NodeState, check_topic_name
from icecore.topic_settings import (
    BATCH_BYTES_CAP,
    ENGINES,
    MEMORY_ENGINE,
    RECORD_BYTES_CAP,
    SEGMENT_ENGINE,
    UNCOMPRESSED_BYTES_CAP,
    FlushBounds,
    FlushMode,
    SegmentSettings,
)
from icecore_coordinator.decisions.node_changes import (
    HeldReplica,
    Registration,
    activate,
    confirm_deletion,
    deletions_confirmed,
    register,
)
from icecore_coordinator.decisions.segment_changes import Opening, drop_prepared, seal
from icecore_coordinator.decisions.topic_changes import (
    add_partitions,
    alter_topic,
    completed,
    create_topic,
    missing_partitions,
)
from icecore_coordinator.state.record_json import decode, encode
from icecore_coordinator.state.records import Change, TopicRecord, updated
from tests.support.cluster_states import (
    SETTINGS,
    Cluster,
    commit,
    prepared_successor,
    sealing,
    segment,
    started,
)


@pytest.fixture
def state() -> Cluster:
    return started()


# --- nodes ----------------------------------------------------------------------------------------

ASKED = Registration(b"c" * 16, 2, bytes([2]), 12, "n2:9", "rack")


def test_register_alone_changes_nothing_that_counts(state: Cluster) -> None:
    change, is_unknown = register(state, state.live, ASKED)
    commit(state, change)
    assert not is_unknown
    assert (state.nodes[2].incarnation, state.nodes[2].issued_incarnation) == (12, 13)
    assert state.nodes[2].address == "n2:1"
    commit(state, activate(state, ASKED, 13))
    assert (state.incarnation(2), state.nodes[2].address) == (13, "n2:9")
    assert activate(state, ASKED, 13) == Change()


def test_only_the_newest_incarnation_activates(state: Cluster) -> None:
    commit(state, register(state, state.live, ASKED)[0])
    commit(state, register(state, state.live, ASKED)[0])
    with pytest.raises(SupersededError):
        activate(state, ASKED, 13)
    commit(state, activate(state, ASKED, 14))
    with pytest.raises(SupersededError):
        activate(state, ASKED, 12)


@pytest.mark.parametrize(
    ("changes", "is_unknown"),
    [
        ({}, False),
        ({"incarnation": 11}, True),  # restored from a snapshot
        ({"incarnation": 0}, True),
        ({"node_id": 9, "incarnation": 0}, False),
        ({"node_id": 9, "incarnation": 4}, True),
    ],
)
def test_disk_older_than_the_last_activation_is_unknown(
    state: Cluster, changes: dict[str, object], is_unknown: bool
) -> None:
    asked = replace(ASKED, **changes)  # type: ignore[arg-type]
    assert register(state, state.live, asked)[1] == is_unknown


def test_wrong_cluster_and_id_in_use(state: Cluster) -> None:
    with pytest.raises(WrongClusterError):
        register(state, state.live, replace(ASKED, cluster_id=b"x" * 16))
    with pytest.raises(WrongClusterError, match="in use"):
        register(state, state.live, replace(ASKED, disk_id=b"other"))
    state.live.note(2, is_connected=False)
    assert register(state, state.live, replace(ASKED, disk_id=b"other"))[1]
    with pytest.raises(InvalidRequestError):
        register(state, state.live, replace(ASKED, node_id=0))


def test_deletions_are_confirmed_by_the_inventory(state: Cluster) -> None:
    dropped = prepared_successor(state)
    commit(state, drop_prepared(state, [dropped, 1], 0))
    assert 1 in state.segments, "an ACTIVE segment is not abandoned"
    held = {dropped: HeldReplica(dropped, 0, False, True)}
    assert deletions_confirmed(state, 2, held) == []
    assert deletions_confirmed(state, 2, {}) == [dropped]
    commit(state, confirm_deletion(state, dropped, [2]))
    assert state.deleted[dropped].holders == (1, 3)
    assert confirm_deletion(state, dropped, [2]) == Change()


# --- topics ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "é", "a\n", "x" * 250])
def test_bad_names(name: str) -> None:
    with pytest.raises(InvalidTopicNameError):
        check_topic_name(name)


@pytest.mark.parametrize("name", ["a", "A.b_c-9", "...", "x" * 249])
def test_good_names(name: str) -> None:
    check_topic_name(name)


@pytest.mark.parametrize(
    ("nodes", "asked", "factor", "in_sync"),
    [
        (1, 0, 1, 1),
        (2, 0, 2, 1),
        (3, 0, 3, 2),
        (9, 0, 3, 2),
        (9, 5, 5, 2),
        (9, 1, 1, 1),
        (0, 0, 1, 1),
    ],
)
def test_defaults(nodes: int, asked: int, factor: int, in_sync: int) -> None:
    settings = completed(SegmentSettings(replication_factor=asked, min_insync_replicas=0), nodes)
    assert (settings.replication_factor, settings.min_insync_replicas) == (factor, in_sync)


def test_create_topic_conflicts(state: Cluster) -> None:
    other = b"u" * 16
    with pytest.raises(TopicExistsError):
        create_topic(state, state.live, "events", other, 1, SETTINGS)
    with pytest.raises(InvalidRequestError):
        create_topic(state, state.live, "new", other, 10_001, SETTINGS)
    with pytest.raises(InvalidRequestError):
        create_topic(state, state.live, "new", other, 1, replace(SETTINGS, min_insync_replicas=4))
    with pytest.raises(NotEnoughReplicasError, match="there are 3"):
        create_topic(state, state.live, "new", other, 1, replace(SETTINGS, replication_factor=4))
    state.live.note(3, state=NodeState.DOWN)
    with pytest.raises(NotEnoughReplicasError, match="there are 2"):
        create_topic(state, state.live, "new", other, 1, SETTINGS)


def test_altered_settings_hold_from_the_next_segment(state: Cluster) -> None:
    commit(
        state, alter_topic(state, state.live, "events", replace(SETTINGS, min_insync_replicas=3))
    )
    assert segment(state).settings.min_insync_replicas == 2
    successor = prepared_successor(state)
    assert segment(state, successor).settings.min_insync_replicas == 3
    with pytest.raises(NotEnoughReplicasError):
        seal(state, state.live, sealing(state), Opening(successor, {1: 11, 2: 12}), 0)
    with pytest.raises(InvalidRequestError):
        alter_topic(state, state.live, "events", replace(SETTINGS, partitioner="custom"))


@pytest.mark.parametrize(
    "limits",
    [
        {"record_bytes_max": RECORD_BYTES_CAP + 1, "batch_bytes_max": BATCH_BYTES_CAP},
        {"batch_bytes_max": BATCH_BYTES_CAP + 1},
        {"uncompressed_bytes_max": UNCOMPRESSED_BYTES_CAP + 1},
        {"record_bytes_max": 2000, "batch_bytes_max": 1000},
        {"record_bytes_max": 2000, "uncompressed_bytes_max": 1000},
        {"record_bytes_max": 0},
    ],
)
def test_no_topic_allows_what_some_reader_cannot_take(
    state: Cluster, limits: dict[str, int]
) -> None:
    settings = replace(SETTINGS, **limits)
    with pytest.raises(InvalidRequestError, match=r"_bytes_max (\d+ is above|is 1 to)"):
        create_topic(state, state.live, "new", b"u" * 16, 1, settings)
    with pytest.raises(InvalidRequestError, match=r"_bytes_max (\d+ is above|is 1 to)"):
        alter_topic(state, state.live, "events", settings)


def test_limits_of_batches_are_pinned_in_each_segment(state: Cluster) -> None:
    most = replace(
        SETTINGS,
        record_bytes_max=RECORD_BYTES_CAP,
        batch_bytes_max=BATCH_BYTES_CAP,
        uncompressed_bytes_max=UNCOMPRESSED_BYTES_CAP,
    )
    commit(state, alter_topic(state, state.live, "events", most))
    assert segment(state).settings.batch_bytes_max == SETTINGS.batch_bytes_max
    assert segment(state, prepared_successor(state)).settings == most


def test_partitions_only_grow(state: Cluster) -> None:
    commit(state, add_partitions(state, "events", 250))
    for change in missing_partitions(state):
        assert len(change.puts) <= 100
        commit(state, change)
    assert len(list(state.partitions_of(state.topic("events")))) == 250
    assert missing_partitions(state) == []
    with pytest.raises(InvalidRequestError):
        add_partitions(state, "events", 249)
    assert add_partitions(state, "events", 250) == Change()


def test_a_topic_may_sync_later_within_bounds(state: Cluster) -> None:
    settings = replace(SETTINGS, flush_mode=FlushMode.ASYNC, flush_bytes=1)
    commit(state, alter_topic(state, state.live, "events", settings))
    assert segment(state).settings.flush is None  # as it was opened
    opened_later = segment(state, prepared_successor(state)).settings
    assert opened_later.flush == FlushBounds(1_000, 1)


@pytest.mark.parametrize("name", ["flush_interval_ms", "flush_bytes"])
@pytest.mark.parametrize("value", [0, -1, 1 << 31])
def test_bounds_that_nobody_can_mean_are_refused(state: Cluster, name: str, value: int) -> None:
    settings = replace(SETTINGS, **{name: value})  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match=f"{name} is 1 to"):
        create_topic(state, state.live, "fast", bytes(16), 1, settings)


@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_is_chosen_for_the_segments_that_come(state: Cluster, engine: str) -> None:
    commit(state, alter_topic(state, state.live, "events", replace(SETTINGS, engine=engine)))
    assert segment(state).settings.engine == SEGMENT_ENGINE
    assert segment(state, prepared_successor(state)).settings.engine == engine


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"engine": "paper"}, "engine 'paper' must be one of segment, rocksdb, memory"),
        ({"engine": ""}, "must be one of"),
        ({"engine": MEMORY_ENGINE, "file_model": "shared"}, "is one of engine segment"),
        ({"engine": MEMORY_ENGINE, "flush_mode": FlushMode.ASYNC}, "has its own rule"),
        ({"file_model": "shared", "flush_mode": FlushMode.ASYNC}, "has its own rule"),
        ({"on_total_loss": "weep"}, "must be one of unavailable, restart_empty"),
        ({"replication_factor": 100}, "replication_factor is 1 to 32, not 100"),
        ({"segment_age_ms": 1}, "segment_age_ms is 1000 to"),
        ({"segment_age_ms": 1 << 63}, "segment_age_ms is 1000 to"),
    ],
)
def test_storage_that_there_is_not(state: Cluster, wrong: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidRequestError, match=why):
        create_topic(state, state.live, "new", b"u" * 16, 1, replace(SETTINGS, **wrong))
    with pytest.raises(InvalidRequestError, match=why):
        alter_topic(state, state.live, "events", replace(SETTINGS, **wrong))


def test_headers_are_indexed_from_the_next_segment_on(state: Cluster) -> None:
    settings = replace(SETTINGS, indexed_headers=("order", "customer"))
    commit(state, alter_topic(state, state.live, "events", settings))
    assert segment(state).settings.indexed_headers == ()
    assert segment(state, prepared_successor(state)).settings.indexed_headers == (
        *("order", "customer"),
    )


@pytest.mark.parametrize(
    ("names", "why"),
    [
        (("a", "a"), "twice"),
        (("",), "1 to 249 bytes"),
        (("ä" * 125,), "not 250"),
        (tuple(str(number) for number in range(17)), "at most 16"),
    ],
)
def test_names_of_indexed_headers_are_checked(
    state: Cluster, names: tuple[str, ...], why: str
) -> None:
    settings = replace(SETTINGS, indexed_headers=names)
    with pytest.raises(InvalidRequestError, match=why):
        create_topic(state, state.live, "new", b"u" * 16, 1, settings)
    with pytest.raises(InvalidRequestError, match=why):
        alter_topic(state, state.live, "events", settings)


def test_all_numbers_of_partitions_are_remembered(state: Cluster) -> None:
    commit(state, create_topic(state, state.live, "new", b"u" * 16, 2, SETTINGS))
    for count in (3, 7):
        commit(state, add_partitions(state, "new", count))
    assert state.topic("new").known_counts == (2, 3, 7)


def test_numbers_that_were_not_written_down_are_said_to_be_unknown(state: Cluster) -> None:
    topic = state.topic("events")
    text = encode(topic).replace('"partition_counts"', '"gone"')
    before = decode(TopicRecord, text)
    commit(state, Change((updated(before),)))
    count = topic.partitions
    assert state.topic("events").known_counts == (0, count)
    commit(state, add_partitions(state, "events", count + 1))
    assert state.topic("events").known_counts == (0, count, count + 1)
