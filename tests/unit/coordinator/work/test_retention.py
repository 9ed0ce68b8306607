"""Retention looks where something is due, moves starts first, and deletes later (R73-R75)."""

from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from icecore.errors import IcecoreError, InvalidRequestError, OffsetOutOfRangeError
from icecore.model import OFFSETS_LEFT_OUT, SegmentId
from icecore.topic_settings import Retention as Kept
from icecore_coordinator.decisions.node_changes import confirm_deletion
from icecore_coordinator.decisions.segment_changes import Opening, seal
from icecore_coordinator.decisions.topic_changes import alter_topic
from icecore_coordinator.decisions.topic_deletion import continue_delete, delete_topic
from icecore_coordinator.nodes.alerts import Alerts
from icecore_coordinator.nodes.copy_reports import CopyReports
from icecore_coordinator.nodes.node_sessions import Usage
from icecore_coordinator.nodes.reported_state import ReportedState
from icecore_coordinator.state.cluster_state import ClusterState
from icecore_coordinator.state.liveness import Liveness
from icecore_coordinator.state.records import Change
from icecore_coordinator.timing import Timing
from icecore_coordinator.work.counted_time import COUNTER, STORE_EVERY_MS, CountedTime
from icecore_coordinator.work.reclaiming import Reclaimer
from icecore_coordinator.work.record_deletion import RecordDeletion
from icecore_coordinator.work.remote.verified_copies import LocalCopies
from icecore_coordinator.work.retention import RetentionScheduler
from tests.support.cluster_states import (
    ALL,
    KEY,
    SETTINGS,
    commit,
    prepared_successor,
    roll,
    sealing,
    started,
)
from tests.unit.coordinator.nodes.test_node_sessions import FakeClock

GIB = 1 << 30


class World:
    """A ledger without a store, and everything that retention works with; rolls are only noted."""

    def __init__(self) -> None:
        self.state = started()
        self.state.counted_ms = 0
        self.clock = FakeClock()
        self.heard = ReportedState(self.state)
        self.commits: list[Change] = []
        self.listeners: list[Callable[[Change], None]] = []
        self.rolled: list[tuple[int, str]] = []
        self.wanted = {1: 0, 2: 0, 3: 0}
        self.heartbeats = 0
        self.alerts = Alerts(self.clock)
        self._count: Callable[[], None] = lambda: None
        ports = cast(
            Any,
            SimpleNamespace(
                ledger=self,
                heard=self.heard,
                clock=self.clock,
                live=self.state.live,
                copies=CopyReports(),
                timing=Timing(heartbeat_ms=10),
                alerts=self.alerts,
            ),
        )
        self.retention = RetentionScheduler(ports, cast(Any, self))
        verifier = SimpleNamespace(verify=self.verify, is_due=lambda _: True)
        nothing_tiered = LocalCopies(ports, cast(Any, verifier))
        self.reclaimer = Reclaimer(ports, cast(Any, self), self.usage, nothing_tiered.free, 4 * GIB)
        self.records = RecordDeletion(ports)
        self.retention.start()

    # --- as the verifier of copies --------------------------------------------------------------

    async def verify(self, segment_ids: Iterable[SegmentId]) -> dict[SegmentId, int]:
        assert not [*segment_ids]
        return {}

    # --- as a ledger ----------------------------------------------------------------------------

    def subscribe(self, listener: Callable[[Change], None]) -> None:
        self.listeners.append(listener)

    def count_by(self, count: Callable[[], None]) -> None:
        self._count = count

    async def decide(self, decision: Callable[[ClusterState], Change]) -> Change:
        self._count()
        change = decision(self.state)
        if change.puts or change.deletes:
            self.apply(change)
        return change

    async def decide_each(
        self, items: Iterable[Any], decision: Callable[[ClusterState, Any], Change]
    ) -> list[Change]:
        return [await self.decide(lambda state, each=item: decision(state, each)) for item in items]  # type: ignore[misc]

    def apply(self, change: Change) -> None:
        commit(self.state, change)
        self.commits.append(change)
        for listener in self.listeners:
            listener(change)

    # --- as others ------------------------------------------------------------------------------

    async def roll(self, tails: Iterable[Any], why: str) -> None:
        self.rolled += [(each.segment_id, why) for each in tails]

    def usage(self, node_id: int) -> Any:
        return Usage(0, 1 << 40, self.wanted[node_id], stream=1, heartbeat=self.heartbeats)

    async def carry_out(self) -> None:
        """All nodes delete what is below log starts."""
        await self.retention.look()
        for segment_id, deleted in list(self.state.deleted.items()):
            if deleted.holders:
                self.apply(confirm_deletion(self.state, segment_id, deleted.holders))

    async def look(self) -> None:
        """A heartbeat comes, and the reclaimer looks."""
        self.heartbeats += 1
        await self.reclaimer.look()

    def fill(self, *, length_bytes: int = 100, appended_ms: int = 0) -> int:
        """The tail is sealed and another one opened."""
        segment_id = roll(self.state, length_bytes, appended_ms)
        for listener in self.listeners:
            listener(Change((self.state.segments[segment_id],)))
        return segment_id

    def keep(self, **limits: Any) -> None:
        kept = Kept(**limits)
        self.apply(alter_topic(self.state, self.state.live, "events", SETTINGS, None, kept))

    @property
    def start(self) -> int:
        return self.state.partitions[KEY].log_start_offset

    def tell(self, length_bytes: int, high_watermark: int) -> None:
        """The leader of the tail says how far it is."""
        tail = self.state.partitions[KEY].tail_segment_id
        led = SimpleNamespace(
            segment_id=tail, high_watermark=high_watermark, length_bytes=length_bytes
        )
        heartbeat = SimpleNamespace(disk_counter=0, led=[led], durable_ends=[])
        self.heard.heartbeat(self.state.segments[tail].segment.leader, cast(Any, heartbeat))


@pytest.fixture
def world() -> World:
    return World()


async def test_the_start_moves_first_and_files_go_a_look_later(world: World) -> None:
    world.keep(retention_ms=1_000)
    first = world.fill()
    await world.retention.look()
    commits = len(world.commits)
    await world.retention.look()
    assert len(world.commits) == commits, "nothing is due"
    world.state.counted_ms = 1_000
    await world.retention.look()
    assert world.start == 10 and first in world.state.segments
    await world.retention.look()
    assert first in world.state.deleted and world.state.deleted[first].holders == (1, 2, 3)


async def test_a_tail_that_grows_makes_more_expire(world: World) -> None:
    world.keep(retention_bytes=SETTINGS.segment_bytes)
    world.fill(length_bytes=10)
    await world.retention.look()
    world.tell(SETTINGS.segment_bytes - 1, 15)
    await world.retention.look()
    assert world.start == 0
    world.tell(SETTINGS.segment_bytes, 16)
    await world.retention.look()
    assert world.start == 10


async def test_altered_limits_hold_at_once_for_what_is_there(world: World) -> None:
    for _ in range(3):
        world.fill()
    world.state.counted_ms = 10_000
    await world.retention.look()
    assert world.start == 0
    world.keep(retention_ms=5_000)
    await world.retention.look()
    assert world.start == 30 and world.rolled == []
    world.tell(9, 31)
    world.state.counted_ms += 60_000
    await world.retention.look()
    tail = world.state.partitions[KEY].tail_segment_id
    assert world.rolled == [(tail, "retention")]


async def test_a_topic_may_go_for_good_while_its_old_tail_is_looked_at(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error there would be the end of the coordinator."""
    world.keep(retention_ms=1_000)
    await world.retention.look()
    world.tell(9, 9)
    world.state.counted_ms = 60_000
    move = world.retention._move

    async def meanwhile(keys: Any) -> None:
        world.apply(delete_topic(world.state, "events", b"", 0, is_now=True))
        while (change := continue_delete(world.state, KEY[0], 0)) != Change():
            world.apply(change)
        await move(keys)

    monkeypatch.setattr(world.retention, "_move", meanwhile)
    await world.retention.look()
    assert world.rolled == [] and not world.state.topics


async def test_a_new_coordinator_goes_on(world: World) -> None:
    world.keep(retention_ms=1_000)
    world.fill()
    world.state.counted_ms = 1_000
    await world.retention.look()
    world.listeners.clear()
    ports = SimpleNamespace(ledger=world, heard=world.heard, clock=world.clock)
    again = RetentionScheduler(cast(Any, ports), cast(Any, world))
    again.start()
    await again.look()
    assert len(world.state.deleted) == 1


# --- counted time ---------------------------------------------------------------------------------


async def test_only_the_monotonic_time_of_coordinators_counts(world: World) -> None:
    counted = CountedTime(cast(Any, world), world.state.live, world.clock)
    counted.start()
    began = world.state.counted_ms
    world.clock.now += STORE_EVERY_MS - 1
    await counted.store()
    assert world.state.counted_ms == began + STORE_EVERY_MS - 1
    assert COUNTER not in world.state.counters
    world.clock.now += 1
    await counted.store()
    stored = world.state.counters[COUNTER].next_value
    world.clock.now += 30_000  # it dies, and takes this along
    world.state.counted_ms = 0
    world.clock.now += 10**9  # nobody runs
    CountedTime(cast(Any, world), world.state.live, world.clock).start()
    assert world.state.counted_ms == stored


async def test_an_old_copy_that_no_node_calls_does_not_grow(world: World) -> None:
    counted = CountedTime(cast(Any, world), Liveness(), world.clock)
    counted.start()
    world.clock.now += 100 * STORE_EVERY_MS
    await counted.store()
    assert world.state.counted_ms >= 100 * STORE_EVERY_MS, "time goes on"
    assert COUNTER not in world.state.counters, "the revision does not"


# --- by hand --------------------------------------------------------------------------------------


async def test_records_are_deleted_below_what_a_leader_has_told(world: World) -> None:
    first = world.fill()
    world.tell(5, 14)
    [would] = await world.records.delete("events", {0: 14}, is_dry_run=True)
    assert world.start == 0 and [each.segment_id for each in would.segments] == [first]
    [done] = await world.records.delete("events", {0: 14}, is_dry_run=False)
    assert (done.from_offset, done.log_start_offset, world.start) == (0, 14, 14)
    wrong: tuple[tuple[dict[int, int], type[IcecoreError]], ...] = (
        ({0: 15}, OffsetOutOfRangeError),
        ({0: -1}, InvalidRequestError),
        ({1: 0}, InvalidRequestError),
    )
    for offsets, why in wrong:
        with pytest.raises(why):
            await world.records.delete("events", offsets, is_dry_run=False)
    assert world.start == 14


async def test_records_are_deleted_up_to_the_end_of_it(world: World) -> None:
    ended = sealing(world.state, 10, is_lossy=True)
    successor = prepared_successor(world.state)
    opening = Opening(successor, ALL)
    world.apply(seal(world.state, world.state.live, ended, opening, 9))
    end = 10 + OFFSETS_LEFT_OUT
    world.tell(successor, end)
    [done] = await world.records.delete("events", {0: 12}, is_dry_run=False)
    assert done.log_start_offset == world.start == end


# --- when a disk is nearly full -------------------------------------------------------------------


async def test_as_much_goes_as_a_node_asks_for_and_no_more(world: World) -> None:
    world.keep(on_full="delete_oldest")
    for number in range(8):
        world.fill(length_bytes=GIB, appended_ms=number)
    await world.look()
    assert world.start == 0
    world.wanted[2] = GIB + 1
    await world.look()
    await world.reclaimer.look()
    assert world.start == 0, "one heartbeat is not enough, however often it is looked at"
    await world.look()
    assert world.start == 20, "whole segments, until it is enough"
    await world.look()
    assert world.start == 20, "they are still going"
    await world.retention.look()
    await world.look()
    assert (world.start, len(world.state.deleted)) == (20, 2), "ordered, and not carried out yet"
    assert world.rolled == []


async def test_tails_are_sealed_when_nothing_else_is_left(world: World) -> None:
    world.keep(on_full="delete_oldest")
    world.fill(length_bytes=10)
    world.wanted[1] = GIB
    await world.look()
    await world.look()
    assert world.start == 10 and world.rolled == [], "an empty one frees nothing"
    world.tell(7, 12)
    await world.look()
    assert world.rolled == [], "a step is under way"
    await world.carry_out()
    world.wanted[1] -= 10
    await world.look()
    tail = world.state.partitions[KEY].tail_segment_id
    assert world.rolled == [(tail, "disk_full")]


async def test_what_others_keep_is_never_touched(world: World) -> None:
    world.fill(length_bytes=GIB)
    world.tell(7, 12)
    world.wanted[1] = GIB
    await world.look()
    await world.look()
    assert world.start == 0 and world.rolled == []


async def test_room_that_deleting_does_not_make_costs_a_part_and_an_alert(world: World) -> None:
    """As where ``statvfs`` is broken: the wish stays, whatever goes."""
    world.keep(on_full="delete_oldest")
    for number in range(16):
        world.fill(length_bytes=GIB, appended_ms=number)
    world.wanted[1] = 20 * GIB
    for _ in range(8):
        await world.look()
        await world.carry_out()
    assert world.start == 40, "a quarter of sixteen"
    [alert] = world.alerts
    assert "node 1 asks for" in alert.why and "df" in alert.why
    world.wanted[1] = 0
    await world.look()
    world.wanted[1] = GIB
    await world.look()
    await world.look()
    assert world.start == 50, "a wish that ends is forgotten"
