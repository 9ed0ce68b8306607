"""Nodes count as down in time, and a coordinator that was late itself concludes nothing."""

import asyncio

import pytest

from icecore.errors import IcecoreError, UnavailableError
from icecore.model import NodeState
from icecore.v1 import coordinator_pb2 as pb
from icecore_coordinator.decisions.segment_changes import start_recovery
from icecore_coordinator.nodes.alerts import Alerts
from icecore_coordinator.nodes.copy_reports import CopyReports
from icecore_coordinator.nodes.fan_out import fan_out
from icecore_coordinator.nodes.node_pushes import Pushes
from icecore_coordinator.nodes.node_sessions import NodeSessions, Session
from icecore_coordinator.nodes.reported_state import ReportedState
from icecore_coordinator.state.cluster_state import ClusterState, eligible_nodes, next_of
from icecore_coordinator.state.records import Change
from tests.support.cluster_states import segment, started

LEASE_MS = 6_000
TICK_MS = 100


class FakeClock:
    """Moved by hand."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def now_ms(self) -> int:
        return int(self.now)

    def monotonic_ms(self) -> float:
        return self.now


class Watch:
    """Sessions of nodes 1 to 3, none connected yet, and time that passes in ticks."""

    def __init__(self) -> None:
        self.state: ClusterState = started()
        self.live = self.state.live
        for node_id in self.state.nodes:
            self.live.note(node_id, state=NodeState.DOWN, is_connected=False)
        self.clock = FakeClock()
        self.changes = 0
        self.heard = ReportedState(self.state)
        self.copies = CopyReports()
        self.alerts = Alerts(self.clock)
        self.pushes = Pushes(self.state, self.live, lambda: 1)
        self.sessions = NodeSessions(
            state=self.state,
            live=self.live,
            pushes=self.pushes,
            heard=self.heard,
            copies=self.copies,
            alerts=self.alerts,
            clock=self.clock,
            lease_ms=LEASE_MS,
            on_status=self.count,
        )
        self.sessions.start()

    def count(self) -> None:
        self.changes += 1

    def connect(self, node_id: int) -> Session:
        return self.sessions.connect(node_id, self.state.incarnation(node_id))

    def pass_ms(self, duration_ms: int, *beating: Session, tick_ms: int = TICK_MS) -> None:
        for _ in range(duration_ms // tick_ms):
            self.clock.now += tick_ms
            for session in beating:
                self.sessions.heartbeat(session, pb.HeartbeatRequest(sequence=1))
            self.sessions.tick()

    def up(self) -> list[int]:
        return [node_id for node_id in self.state.nodes if self.live.is_live(node_id)]


@pytest.fixture
def watch() -> Watch:
    return Watch()


def test_known_nodes_have_a_lease_to_come_after_a_start(watch: Watch) -> None:
    session = watch.connect(1)
    assert watch.up() == [1, 2, 3] and watch.live.is_settling
    assert [each.node_id for each in eligible_nodes(watch.state, watch.live)] == [1]
    watch.pass_ms(LEASE_MS - TICK_MS, session)
    assert watch.up() == [1, 2, 3]
    watch.pass_ms(TICK_MS, session)
    assert watch.up() == [1] and not watch.live.is_settling


def test_broken_stream_is_down_after_500_ms_also_right_after_a_start(watch: Watch) -> None:
    session = watch.connect(1)
    watch.sessions.disconnected(session)
    watch.pass_ms(400)
    assert 1 in watch.up()
    watch.pass_ms(100)
    assert 1 not in watch.up()
    watch.connect(1)
    assert 1 in watch.up()


def test_broken_stream_of_a_node_that_is_gone_is_down_at_once(watch: Watch) -> None:
    session = watch.connect(1)
    watch.sessions.note_gone(1)
    assert watch.up() == [1, 2, 3] and not watch.sessions.is_missing(1)  # it has its stream
    watch.sessions.disconnected(session)
    assert watch.sessions.is_missing(1)
    changes = watch.changes
    watch.sessions.note_gone(1)
    assert watch.up() == [2, 3] and watch.changes == changes + 1
    assert not watch.sessions.is_missing(1)
    watch.sessions.note_gone(1)  # said twice
    assert watch.changes == changes + 1


def test_news_of_a_dead_process_that_come_late_say_nothing_of_the_next_one(watch: Watch) -> None:
    watch.sessions.disconnected(watch.connect(1))
    session = watch.connect(1)
    watch.sessions.note_gone(1)
    watch.pass_ms(1_000, session)
    assert 1 in watch.up()


def test_stream_that_is_resumed_in_time_changes_nothing(watch: Watch) -> None:
    watch.sessions.disconnected(watch.connect(1))
    watch.pass_ms(400)
    session = watch.connect(1)
    watch.pass_ms(2_000, session)
    assert 1 in watch.up()


def test_end_of_a_replaced_stream_says_nothing(watch: Watch) -> None:
    old = watch.connect(1)
    new = watch.connect(1)
    assert old.is_closed
    watch.sessions.disconnected(old)
    watch.pass_ms(2_000, new)
    assert 1 in watch.up() and watch.live.is_eligible(1)


def test_silent_node_is_down_after_its_lease(watch: Watch) -> None:
    session = watch.connect(1)
    watch.pass_ms(LEASE_MS)
    assert 1 in watch.up()
    watch.pass_ms(TICK_MS)
    assert 1 not in watch.up() and session.is_closed


def test_late_coordinator_gives_everyone_a_lease(watch: Watch) -> None:
    one, two, three = (watch.connect(node_id) for node_id in (1, 2, 3))
    watch.pass_ms(10_000, tick_ms=10_000)
    assert watch.up() == [1, 2, 3]
    watch.sessions.disconnected(one)
    watch.pass_ms(LEASE_MS - TICK_MS, two, three)
    assert watch.up() == [1, 2, 3] and watch.live.is_settling
    watch.pass_ms(2 * TICK_MS, two, three)
    assert watch.up() == [2, 3]


def test_heartbeats_carry_state_and_high_watermarks(watch: Watch) -> None:
    session = watch.connect(1)
    watch.sessions.heartbeat(session, pb.HeartbeatRequest(sequence=1, draining=True))
    assert watch.live.state_of(1) == NodeState.DRAINING and not watch.live.is_eligible(1)
    led = [pb.LedHighWatermark(segment_id=1, high_watermark=7)]
    watch.sessions.heartbeat(session, pb.HeartbeatRequest(sequence=2, led=led))
    assert watch.live.state_of(1) == NodeState.UP
    led = [pb.LedHighWatermark(segment_id=1, high_watermark=5)]
    watch.sessions.heartbeat(session, pb.HeartbeatRequest(sequence=3, led=led))
    assert watch.heard.high_watermark(1) == 7


def test_high_watermark_of_a_sealed_segment_is_not_kept(watch: Watch) -> None:
    session = watch.connect(1)
    led = [pb.LedHighWatermark(segment_id=99, high_watermark=7)]
    watch.sessions.heartbeat(session, pb.HeartbeatRequest(sequence=1, led=led))
    assert watch.heard.high_watermark(1) is None


def test_divergences_are_paged_once_and_their_time_moves(watch: Watch) -> None:
    session = watch.connect(1)
    for _ in range(2):
        watch.sessions.heartbeat(session, pb.HeartbeatRequest(diverged_segment_ids=[7]))
        watch.clock.now += 1000
    [alert] = watch.alerts
    assert alert.segment_id == 7 and alert.last_at_ms - alert.first_at_ms == 1000


def test_clock_that_is_off_is_noticed_and_forgiven(watch: Watch) -> None:
    session = watch.connect(1)
    for off_ms, expected in ((5_000, False), (5_001, True), (-3_600_000, True), (-10, False)):
        now_ms = watch.clock.now_ms() + off_ms
        watch.sessions.heartbeat(session, pb.HeartbeatRequest(wall_clock_ms=now_ms))
        assert watch.live.of(1).is_clock_off is expected


def test_heartbeats_say_which_object_store_a_node_may_use(watch: Watch) -> None:
    session = watch.connect(1)
    told = [
        ({"store_id": b"a" * 16}, (b"a" * 16, "")),
        ({"store_problem": "it was emptied"}, (b"", "it was emptied")),
        ({"store_problem": "x" * 100_000}, (b"", "x" * 500)),
        ({"store_id": b"a" * 100_000}, (b"", "")),
        ({"store_id": b"b" * 16}, (b"b" * 16, "")),
        ({}, (b"", "")),
    ]
    for fields, expected in told:
        watch.sessions.heartbeat(session, pb.HeartbeatRequest(**fields))
        status = watch.live.of(1)
        assert (status.store_id, status.store_problem) == expected


def test_damage_is_remembered_until_a_copy_is_made_or_a_new_stream_tells_all(watch: Watch) -> None:
    session = watch.connect(1)
    watch.sessions.heartbeat(session, pb.HeartbeatRequest(sequence=1, unknown_segment_ids=[7, 8]))
    watch.sessions.heartbeat(session, pb.HeartbeatRequest(sequence=2, unknown_segment_ids=[9]))
    assert [each for each in range(12) if watch.copies.is_unknown(1, each)] == [7, 8, 9]
    assert not watch.copies.is_unknown(2, 7)
    watch.copies.copied(1, 8)
    assert not watch.copies.is_unknown(1, 8)
    watch.sessions.heartbeat(watch.connect(1), pb.HeartbeatRequest(unknown_segment_ids=[9]))
    assert [each for each in range(12) if watch.copies.is_unknown(1, each)] == [9]


def test_node_that_leaves_is_down_at_once_and_its_end_says_nothing_new(watch: Watch) -> None:
    session = watch.connect(1)
    watch.sessions.heartbeat(session, pb.HeartbeatRequest(sequence=1, draining=True, leaving=True))
    assert 1 not in watch.up() and not watch.live.is_eligible(1)
    changes = watch.changes
    watch.sessions.disconnected(session)
    watch.pass_ms(1_000)
    assert watch.changes == changes
    watch.connect(1)
    assert watch.live.is_eligible(1)


# --- patience with many nodes ---------------------------------------------------------------------


async def answer_after(delay_s: float, value: int) -> int:
    await asyncio.sleep(delay_s)
    if value < 0:
        raise UnavailableError("gone")
    return value


class LoopClock(FakeClock):
    def monotonic_ms(self) -> float:
        return asyncio.get_running_loop().time() * 1000


async def asked(
    delays: dict[int, tuple[float, int]], *, required: list[int], enough: int, patience_ms: float
) -> dict[int, int | IcecoreError]:
    return await fan_out(
        LoopClock(),
        {node_id: answer_after(*each) for node_id, each in delays.items()},
        required=required,
        patience_ms=patience_ms,
        is_enough=lambda good: len(good) >= enough,
    )


async def test_dead_nodes_are_not_waited_for_when_the_others_are_enough() -> None:
    delays = {1: (30.0, 1), 2: (0.0, 2), 3: (0.01, 3)}
    assert await asked(delays, required=[2, 3], enough=2, patience_ms=9_000) == {2: 2, 3: 3}


async def test_slow_nodes_are_waited_for_as_long_as_patience_lasts() -> None:
    delays = {1: (0.05, 1), 2: (0.0, 2), 3: (30.0, 3)}
    assert await asked(delays, required=[1, 2, 3], enough=1, patience_ms=200) == {1: 1, 2: 2}


async def test_too_few_answers_are_waited_for_beyond_patience() -> None:
    delays = {1: (0.2, 1), 2: (0.0, 2)}
    assert await asked(delays, required=[1, 2], enough=2, patience_ms=20) == {1: 1, 2: 2}


async def test_failures_are_answers_but_not_good_ones() -> None:
    found = await asked({1: (0.0, -1), 2: (0.01, 2)}, required=[1, 2], enough=2, patience_ms=50)
    assert isinstance(found[1], UnavailableError) and found[2] == 2


def test_only_a_leader_tells_of_watermarks(watch: Watch) -> None:
    leader = segment(watch.state).leader
    for node_id in (*sorted({1, 2, 3} - {leader}), leader):
        told = pb.LedHighWatermark(segment_id=1, high_watermark=100 * node_id)
        watch.sessions.heartbeat(
            watch.connect(node_id), pb.HeartbeatRequest(sequence=1, led=[told])
        )
    assert watch.heard.high_watermark(1) == 100 * leader


def test_who_leads_what_was_never_given_out_shows_an_old_metadata_store(watch: Watch) -> None:
    next_id = next_of(watch.state, "segment_id").next_value
    session = watch.connect(1)
    for segment_id, alerts in ((1, 0), (next_id, 1)):
        led = [pb.LedHighWatermark(segment_id=segment_id, high_watermark=5)]
        watch.sessions.heartbeat(session, pb.HeartbeatRequest(sequence=1, led=led))
        assert len(list(watch.alerts)) == alerts


def shut_out(watch: Watch) -> list[int]:
    return [each for each in (1, 99) if each in watch.copies.shut_out]


def test_a_promise_that_nobody_asked_for_is_noted_until_the_record_moves_on(watch: Watch) -> None:
    session = watch.connect(2)
    watch.sessions.heartbeat(session, pb.HeartbeatRequest(sequence=1, fenced_segment_ids=[1, 99]))
    assert shut_out(watch) == [1]
    watch.sessions.on_change(Change((watch.state.segments[1],)))
    assert shut_out(watch) == [1]  # the in-sync set may have changed
    change = start_recovery(watch.state, 1, segment(watch.state).version)
    watch.state.apply(change)
    watch.sessions.on_change(change)
    watch.sessions.heartbeat(session, pb.HeartbeatRequest(sequence=2, fenced_segment_ids=[1]))
    assert not shut_out(watch)  # its own recovery asked for it
