"""The last reports of nodes outlive the coordinator, at a bounded cost, and are judged by."""

from dataclasses import replace

import pytest

from icecore.errors import InvalidRequestError
from icecore.v1 import coordinator_pb2 as pb
from icecore_coordinator.decisions.node_changes import (
    HeldReplica,
    Registration,
    register,
    shrunk_logs,
    unborn_segments,
)
from icecore_coordinator.decisions.segment_changes import seal, start_recovery
from icecore_coordinator.nodes import reported_state as room
from icecore_coordinator.nodes.reported_state import (
    LENGTH_BYTES_MAX,
    SLOTS_PER_STORE,
    ReportedState,
)
from icecore_coordinator.state.cluster_state import next_of
from icecore_coordinator.state.record_json import decode, encode
from icecore_coordinator.state.records import (
    NUMBER_JUMP_MAX,
    Change,
    NodeRecord,
    ReportedStateRecord,
)
from tests.support.cluster_states import ALL, Cluster, commit, sealing, started

LEADER = 1
"""The leader of segment 1."""


def heartbeat(
    counter: int = 0, led: dict[int, int] | None = None, ends: dict[int, int] | None = None
) -> pb.HeartbeatRequest:
    return pb.HeartbeatRequest(
        disk_counter=counter,
        led=[
            pb.LedHighWatermark(segment_id=id_, high_watermark=each)
            for id_, each in (led or {}).items()
        ],
        durable_ends=[
            pb.DurableEnd(segment_id=id_, durable_end_offset=each)
            for id_, each in (ends or {}).items()
        ],
    )


@pytest.fixture
def state() -> Cluster:
    return started()


@pytest.fixture
def heard(state: Cluster) -> ReportedState:
    return ReportedState(state)


def store(state: Cluster, heard: ReportedState) -> list[Change]:
    return [commit(state, decision(state)) for decision in heard.to_store()]


def restarted(state: Cluster) -> ReportedState:
    """The next coordinator's, from the stored form of what this one has stored."""
    for record in list(state.heard.values()):
        state.heard[record.slot] = decode(ReportedStateRecord, encode(record))
    found = ReportedState(state)
    found.load()
    return found


def test_the_next_coordinator_knows_what_this_one_stored(
    state: Cluster, heard: ReportedState
) -> None:
    heard.heartbeat(LEADER, heartbeat(0, {1: 40}))
    heard.heartbeat(2, heartbeat(7, {1: 99}, {1: 45}))  # only leaders know watermarks
    heard.heartbeat(3, heartbeat(4, {}, {1: 30}))
    assert len(store(state, heard)) == 2
    assert store(state, heard) == []
    later = restarted(state)
    assert (later.disk_counter(2), later.disk_counter(3), later.disk_counter(1)) == (7, 4, 0)
    assert later.high_watermark(1) == 40
    assert (later.ends_of_node(2), later.ends_of_node(3)) == ({1: 45}, {1: 30})


def test_numbers_only_grow(state: Cluster, heard: ReportedState) -> None:
    heard.heartbeat(LEADER, heartbeat(7, {1: 40}, {1: 45}))
    store(state, heard)
    heard.heartbeat(LEADER, heartbeat(6, {1: 39}, {1: 44}))
    assert (heard.disk_counter(LEADER), heard.high_watermark(1)) == (7, 40)
    assert heard.ends_of_node(LEADER) == {1: 45}
    assert store(state, heard) == []  # nothing new costs nothing


def test_sealed_segments_are_forgotten(state: Cluster, heard: ReportedState) -> None:
    heard.heartbeat(LEADER, heartbeat(0, {1: 10}, {1: 10}))
    store(state, heard)
    commit(state, seal(state, state.live, sealing(state), None, 0))
    heard.forget(1)
    heard.heartbeat(LEADER, heartbeat(0, {1: 10}, {1: 10}))  # said before it heard of the seal
    store(state, heard)
    later = restarted(state)
    assert later.high_watermark(1) is None and later.ends_of_node(LEADER) == {}
    assert all(not each.high_watermarks for each in state.heard.values())


def test_lengths_are_what_the_leader_said_last_until_the_seal(
    state: Cluster, heard: ReportedState
) -> None:
    def told(length_bytes: int) -> pb.HeartbeatRequest:
        return pb.HeartbeatRequest(
            led=[pb.LedHighWatermark(segment_id=1, length_bytes=length_bytes)]
        )

    assert heard.length_bytes(1) == 0
    heard.heartbeat(LEADER, told(800))
    heard.heartbeat(2, told(900))  # only leaders know
    heard.heartbeat(LEADER, told(LENGTH_BYTES_MAX + 1))  # and no log is that long
    assert heard.length_bytes(1) == 800
    commit(state, seal(state, state.live, sealing(state), None, 0))
    heard.forget(1)
    heard.heartbeat(LEADER, told(800))
    assert heard.length_bytes(1) == 0


def test_a_store_is_bounded_and_everything_has_its_turn(
    state: Cluster, heard: ReportedState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "SLOTS", 100)
    state.unsealed.update(dict.fromkeys(range(1, 10_001)))
    state.segments.update(dict.fromkeys(range(1, 10_001), state.segments[1]))
    everything = {segment_id: segment_id * 10 for segment_id in range(1, 10_001)}
    heard.heartbeat(1, heartbeat(0, everything))
    assert len(store(state, heard)) == SLOTS_PER_STORE
    heard.heartbeat(1, heartbeat(3, {id_: each + 1 for id_, each in everything.items()}))
    assert len(store(state, heard)) == SLOTS_PER_STORE
    assert restarted(state).disk_counter(1) == 3  # that never waits
    heard.heartbeat(1, heartbeat(3, {id_: each + 2 for id_, each in everything.items()}))
    assert len(store(state, heard)) == SLOTS_PER_STORE
    assert len(state.heard) == 101  # those that had waited went first
    while store(state, heard):
        pass
    later = restarted(state)
    assert [later.high_watermark(id_) for id_ in (1, 77, 10_000)] == [12, 772, 100_002]


def test_a_counter_that_no_disk_can_have_is_not_believed(
    state: Cluster, heard: ReportedState
) -> None:
    heard.heartbeat(2, heartbeat(7))
    for absurd in (7 + NUMBER_JUMP_MAX + 1, 2**64 - 1):
        heard.heartbeat(2, heartbeat(absurd))
        assert heard.disk_counter(2) == 7
    heard.heartbeat(2, heartbeat(7 + NUMBER_JUMP_MAX))
    assert heard.disk_counter(2) == 7 + NUMBER_JUMP_MAX
    store(state, heard)
    assert restarted(state).disk_counter(2) == 7 + NUMBER_JUMP_MAX


@pytest.mark.parametrize("incarnation", [ALL[2] + NUMBER_JUMP_MAX + 1, 2**64 - 2])
def test_an_incarnation_that_no_disk_can_have_is_refused(state: Cluster, incarnation: int) -> None:
    with pytest.raises(InvalidRequestError, match="too far beyond"):
        register(state, state.live, asked(5, incarnation), 5)


def test_another_disk_does_not_say_how_often_the_node_started(state: Cluster) -> None:
    stranger = replace(asked(5, ALL[2] + 1000), disk_id=b"another")
    state.live.note(2, is_connected=False)
    [record] = register(state, state.live, stranger, 5)[0].puts
    assert isinstance(record, NodeRecord) and record.issued_incarnation == ALL[2] + 1


def test_a_store_that_gave_out_fewer_segments_than_a_node_holds_is_noticed(
    state: Cluster,
) -> None:
    next_id = next_of(state, "segment_id").next_value
    assert unborn_segments(state, range(1, next_id)) == []
    assert unborn_segments(state, [1, next_id, next_id + 7]) == [next_id, next_id + 7]


def asked(counter: int, incarnation: int = ALL[2]) -> Registration:
    return Registration(b"c" * 16, 2, bytes([2]), incarnation, "n2:1", "", counter)


@pytest.mark.parametrize(
    ("registration", "known", "is_unknown"),
    [
        (asked(5), 5, False),
        (asked(6), 5, False),  # raised, and died before the heartbeat
        (asked(4), 5, True),  # a snapshot of the same incarnation
        (asked(6, ALL[2] - 1), 5, True),
        (asked(0), 0, False),  # of before there was a counter
    ],
)
def test_a_folder_behind_the_known_counter_counts_for_nothing(
    state: Cluster, registration: Registration, known: int, is_unknown: bool
) -> None:
    assert register(state, state.live, registration, known)[1] is is_unknown


def holding(end_offset: int, **changes: bool) -> dict[int, HeldReplica]:
    intact = changes.get("is_intact", True)
    return {1: HeldReplica(1, end_offset, is_sealed=False, is_intact=intact)}


def test_a_log_that_was_longer_once_is_found_out(state: Cluster) -> None:
    assert shrunk_logs(state, 2, holding(44), {1: 45}) == [1]
    assert shrunk_logs(state, 2, holding(45), {1: 45}) == []
    assert shrunk_logs(state, 2, holding(44, is_intact=False), {1: 45}) == []  # known already
    assert shrunk_logs(state, 9, holding(44), {1: 45}) == []  # no replica of it
    assert shrunk_logs(state, 2, {}, {1: 45}) == []  # missing: it is told when it is assigned
    commit(state, start_recovery(state, 1, state.segments[1].version))
    assert shrunk_logs(state, 2, holding(44), {1: 45}) == [1]


def test_an_ordered_cut_is_no_loss(state: Cluster, heard: ReportedState) -> None:
    heard.heartbeat(2, heartbeat(0, {}, {1: 45}))
    heard.forget_end(1, 2)
    assert heard.ends_of_node(2) == {}
