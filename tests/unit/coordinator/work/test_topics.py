"""Acts on topics commit, wake whoever does the work, and wait; they do none of it themselves."""

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import pytest

from icecore.errors import IcecoreError, NotEnoughReplicasError, NotLeaderError, UnavailableError
from icecore.model import NodeState, Segment, SegmentId, SegmentState
from icecore.process.system import SystemRng
from icecore.topic_settings import KEEP_ALL, SegmentSettings
from icecore_coordinator.decisions.segment_changes import (
    Opening,
    open_tail,
    prepare,
    seal,
    start_recovery,
)
from icecore_coordinator.decisions.topic_deletion import continue_delete
from icecore_coordinator.ledger import Ledger
from icecore_coordinator.nodes.copy_reports import CopyReports
from icecore_coordinator.nodes.node_calls import RollAnswer
from icecore_coordinator.state.cluster_state import ClusterState, Placement
from icecore_coordinator.state.liveness import Liveness
from icecore_coordinator.state.records import Change, PartitionKey
from icecore_coordinator.stores.sqlite_store import SqliteDatabase, SqliteStore
from icecore_coordinator.timing import Timing
from icecore_coordinator.work.backoff import KeyedBackoff
from icecore_coordinator.work.recovery.lossy_acts import LossyActs
from icecore_coordinator.work.topics import TopicActs
from icecore_coordinator.work.worker_ports import WorkerPorts
from tests.support.cluster_states import ALL, SETTINGS, registered, sealing
from tests.unit.coordinator.nodes.test_node_sessions import FakeClock


class World:
    """Three nodes that are up, a ledger, and no worker: the test is the worker."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.live = Liveness()
        self.clock = FakeClock()
        self.tails: KeyedBackoff[PartitionKey] = KeyedBackoff(self.clock, 200, 5_000)
        self.recoveries: KeyedBackoff[int] = KeyedBackoff(self.clock, 200, 5_000)
        self.topics = TopicActs(self.ports(), self.tails, SystemRng())
        self.lossy = LossyActs(self.ports(), self.recoveries)

    def ports(self, **waits: int) -> WorkerPorts:
        unused = cast(Any, None)
        return WorkerPorts(
            ledger=self.ledger,
            calls=unused,
            live=self.live,
            heard=unused,
            copies=CopyReports(),
            alerts=unused,
            clock=self.clock,
            timing=Timing(**waits),
        )

    @property
    def state(self) -> ClusterState:
        return self.ledger.state

    async def start(self) -> None:
        nodes = tuple(registered(*node) for node in ALL.items())
        await self.ledger.decide(lambda _: Change(nodes))
        for node_id in ALL:
            self.live.note(node_id, state=NodeState.UP, is_connected=True)

    async def open_next(self) -> int:
        """Open a segment in the first partition that has none."""
        key = next(key for key, each in self.state.partitions.items() if not each.tail_segment_id)
        place = (key, Placement((1, 2, 3), 1))
        change = await self.ledger.decide(lambda state: prepare(state, [place]))
        segment_id = cast(Any, change.puts[-1]).segment.segment_id
        opening = Opening(segment_id, ALL)
        await self.ledger.decide(lambda state: open_tail(state, self.live, opening))
        return int(segment_id)


@pytest.fixture
def database() -> Iterator[SqliteDatabase]:
    database = SqliteDatabase(":memory:")
    yield database
    database.close()


@pytest.fixture
async def world(database: SqliteDatabase) -> World:
    world = World(Ledger(SqliteStore(database), SystemRng()))
    await world.ledger.open()
    await world.start()
    return world


async def made(world: World, factor: int = 0) -> int:
    """Make a topic: its replication factor; 0 = it waits."""
    asked = replace(SETTINGS, replication_factor=factor, min_insync_replicas=min(factor, 1))
    making = asyncio.create_task(world.topics.create("new", 1, asked, 0, KEEP_ALL))
    await settled()
    topics = [each for each in world.state.topics.values() if each.name == "new"]
    if topics:
        await world.open_next()
        await making
    else:
        making.cancel()
    return topics[0].settings.replication_factor if topics else 0


async def test_a_coordinator_that_has_just_begun_waits_for_nodes(world: World) -> None:
    """It would make a topic of one replica for ever, since it has heard of one node yet."""
    for node_id in (2, 3):
        world.live.note(node_id, is_connected=False)
    world.live.is_settling = True
    assert await made(world) == 0
    making = asyncio.create_task(world.topics.create("t", 1, _default(), 0, KEEP_ALL))
    await settled()
    assert not world.state.topics
    for node_id in (2, 3):
        world.live.note(node_id, is_connected=True)
    world.ledger.note_news()
    await settled()
    [topic] = world.state.topics.values()
    assert topic.settings.replication_factor == 3
    await world.open_next()
    await making


async def test_a_topic_that_needs_no_more_nodes_waits_for_none(world: World) -> None:
    world.live.note(3, is_connected=False)
    world.live.is_settling = True
    assert await made(world, 2) == 2


async def test_when_nobody_comes_back_a_topic_has_what_there_is(world: World) -> None:
    world.live.note(3, is_connected=False)
    assert await made(world) == 2


def _default() -> SegmentSettings:
    return replace(SETTINGS, replication_factor=0, min_insync_replicas=0)


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_creation_waits_until_its_last_partition_is_open(world: World) -> None:
    creating = asyncio.create_task(world.topics.create("events", 2, SETTINGS, 0, KEEP_ALL))
    await settled()
    assert len(world.state.partitions) == 2 and world.tails.is_waiting
    await world.open_next()
    await settled()
    assert not creating.done()
    await world.open_next()
    topic = await creating
    assert topic.name == "events" and not world.tails.is_waiting


async def test_a_creation_that_takes_too_long_is_done_all_the_same(world: World) -> None:
    topics = TopicActs(world.ports(topic_open_wait_ms=1), world.tails, SystemRng())
    topic = await topics.create("events", 1, SETTINGS, 0, KEEP_ALL)
    assert not world.state.partitions[topic.topic_id, 0].tail_segment_id


@pytest.mark.parametrize("has_partitions", [False, True])
async def test_a_creation_that_another_coordinator_ends_is_not_refused(
    world: World,
    database: SqliteDatabase,
    has_partitions: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The topic is stored: who asks the next coordinator must know that it may be its own."""
    decide_each = world.ledger.decide_each

    async def too_late(*given: Any) -> Any:
        await Ledger(SqliteStore(database), SystemRng()).open()
        return await decide_each(*given)

    if not has_partitions:
        monkeypatch.setattr(world.ledger, "decide_each", too_late)
    creating = asyncio.create_task(world.topics.create("events", 2, SETTINGS, 0, KEEP_ALL))
    await settled()
    assert len(world.state.partitions) == (2 if has_partitions else 0)
    world.ledger.lose()
    with pytest.raises(UnavailableError) as caught:
        await creating
    assert caught.value.indeterminate and world.state.topic("events")


async def test_a_deletion_for_good_waits_for_whoever_carries_it_through(world: World) -> None:
    creating = asyncio.create_task(world.topics.create("events", 1, SETTINGS, 0, KEEP_ALL))
    await settled()
    await world.open_next()
    topic = await creating
    deleting = asyncio.create_task(world.topics.delete("events", b"", is_now=True))
    await settled()
    assert not deleting.done() and world.state.topics[topic.topic_id].is_deleting
    for _ in range(2):
        await world.ledger.decide(lambda state: continue_delete(state, topic.topic_id, 0))
    assert (await deleting).topic_id == topic.topic_id and not world.state.topics


async def test_an_unclean_recovery_is_hurried_and_waited_for(world: World) -> None:
    creating = asyncio.create_task(world.topics.create("events", 1, SETTINGS, 0, KEEP_ALL))
    await settled()
    segment_id = await world.open_next()
    await creating
    version = world.state.segments[segment_id].version
    await world.ledger.decide(lambda state: start_recovery(state, segment_id, version))
    world.recoveries.take([segment_id])
    world.recoveries.release(segment_id, is_done=False)
    impatient = LossyActs(world.ports(unclean_wait_ms=1), world.recoveries)
    with pytest.raises(NotEnoughReplicasError, match="the permission is kept"):
        await impatient.recover_unclean("events", 0, segment_id)
    recovering = asyncio.create_task(world.lossy.recover_unclean("events", 0, segment_id))
    await settled()
    assert not recovering.done() and world.recoveries.is_due(segment_id)
    record = world.state.segments[segment_id]
    assert record.is_unclean_allowed
    end = sealing(world.state, segment_id=segment_id, version=record.version)
    await world.ledger.decide(lambda state: seal(state, world.live, end, None, 0))
    sealed = await recovering
    assert sealed is not None and sealed.segment.state is SegmentState.SEALED


class RolledNode:
    """In the place of ``NodeCalls``: a leader that answers what it is told to, one after the
    other."""

    def __init__(self, *errors: IcecoreError | None) -> None:
        self.errors = list(errors)
        self.asked: list[int] = []

    async def roll(self, _: int, segments: list[Segment], *__: object) -> list[RollAnswer]:
        self.asked += [each.segment_id for each in segments]
        return [RollAnswer(self.errors.pop(0)) for _ in segments]


def not_led() -> IcecoreError:
    return NotLeaderError("not led here")


async def topic_of_two(world: World, calls: RolledNode) -> tuple[TopicActs, list[int]]:
    """Return the acts with these calls, and the tails of a topic ``events``."""
    creating = asyncio.create_task(world.topics.create("events", 2, SETTINGS, 0, KEEP_ALL))
    await settled()
    tails = [await world.open_next() for _ in range(2)]
    await creating
    ports = replace(world.ports(retry_ms=1), calls=cast(Any, calls))
    return TopicActs(ports, world.tails, SystemRng()), tails


async def test_a_leader_that_does_not_know_yet_is_asked_to_roll_again(world: World) -> None:
    calls = RolledNode(not_led(), None, not_led(), None)
    topics, (first, second) = await topic_of_two(world, calls)
    assert await topics.roll("events", "test") == [None, None]
    assert calls.asked == [first, second, first, first]


async def test_other_refusals_of_a_roll_are_told_at_once(world: World) -> None:
    calls = RolledNode(None, UnavailableError("no room"))
    topics, tails = await topic_of_two(world, calls)
    done, refused = await topics.roll("events", "test")
    assert done is None and isinstance(refused, UnavailableError)
    assert (refused.metadata["partition"], calls.asked) == ("1", tails)


async def test_a_leader_that_never_leads_is_asked_for_a_while(world: World) -> None:
    class Slow(RolledNode):
        async def roll(self, *given: Any) -> list[RollAnswer]:
            world.clock.now += 6_000
            return await super().roll(*given)

    calls = Slow(*[not_led() for _ in range(10)])
    topics, tails = await topic_of_two(world, calls)
    errors = await topics.roll("events", "test")
    assert [type(each) for each in errors] == [NotLeaderError, NotLeaderError]
    assert calls.asked == [*tails, *tails]


async def test_a_segment_that_its_leader_has_sealed_meanwhile_is_rolled(world: World) -> None:
    class Sealing(RolledNode):
        async def roll(self, *given: Any) -> list[RollAnswer]:
            first = SegmentId(tails[0])
            version = world.state.segments[first].version
            end = sealing(world.state, segment_id=first, version=version)
            await world.ledger.decide(lambda state: seal(state, world.live, end, None, 0))
            return await super().roll(*given)

    calls = Sealing(not_led(), None)
    topics, tails = await topic_of_two(world, calls)
    assert await topics.roll("events", "test") == [None, None]
    assert calls.asked == tails


async def test_an_altered_topic_without_a_leader_is_altered(world: World) -> None:
    """Its next segment has the settings; a person who repeats the command would gain nothing."""
    topics, (first, _) = await topic_of_two(world, RolledNode(UnavailableError("no room")))
    version = world.state.segments[SegmentId(first)].version
    await world.ledger.decide(lambda state: start_recovery(state, SegmentId(first), version))
    other = replace(SETTINGS, min_insync_replicas=1)
    errors = await topics.alter(
        "events",
        lambda _: other,
        lambda topic: topic.delete_grace_ms,
        lambda topic: topic.retention,
        lambda topic: topic.tiering,
    )
    assert [type(each) for each in errors] == [UnavailableError]
    assert world.state.topic("events").settings == other
