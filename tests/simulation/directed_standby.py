"""Staged worlds of coordinators that stand by for each other: one takes over in the middle of what
another one does.

The one that acts is killed, stands still, is cut off, or is late, while it recovers a segment,
seals one, makes a topic, has a segment uploaded, or evens out the nodes. It comes back when another
one acts.
Each world is survivable and must be clean. Roles are those of ``directed``.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from icecore.client.admin.admin import Admin
from icecore.errors import IcecoreError
from icecore.model import Acks, SegmentState
from icecore_coordinator.state.cluster_state import ClusterState
from tests.simulation.cluster import COORDINATOR, World
from tests.simulation.coordinators import SESSION_S
from tests.simulation.directed import plan, roles, until
from tests.simulation.faults import Fault, Kind, Scene
from tests.simulation.faults_standby import (
    cut_from_nodes,
    heal_to_nodes,
    standing,
)
from tests.simulation.fleeting import FleetingTopic
from tests.simulation.plan import TOPIC, Plan
from tests.simulation.tiered import TieredTopic

AWAY_S = 2.5 * SESSION_S
"""Another one is elected by then, and has begun."""
ROUNDS = 3
WAYS = ("killed", "stands_still", "cut_from_etcd", "cut_from_both", "its_calls_are_late")
LATE_S = 0.6 * AWAY_S
"""A change that it has sent arrives when another one acts."""
OLD_S = 4.0
"""An old store is in use for so long."""
LEAST_NEW = 3
"""Segments that were given out after the copy was made."""


def standby_plan(kind: str) -> Callable[[int], Plan]:
    """Two coordinators or three; segments are full now and then."""

    def make(seed: int) -> Plan:
        calm = plan(kind, acks=(Acks.ALL,), standbys=1 + seed % 2)
        is_tiered = kind == "standby_in_tiering"
        knobs = replace(calm.knobs, segment_bytes=16 << 10)
        return replace(calm, knobs=knobs, producers=1, has_store=is_tiered)

    return make


def acting_state(world: World) -> ClusterState | None:
    """State of the coordinator that acts."""
    coordinator = world.shells.get(COORDINATOR)
    return None if coordinator is None else coordinator.ledger.state


async def take_over_in(scene: Scene, holds: Callable[[ClusterState], bool], way: str = "") -> None:
    """Wait for a moment, and take away who acts; it comes back when another one acts.

    Args:
        scene: The world.
        holds: The moment.
        way: Of ``WAYS``; empty = any.
    """
    world = scene.world

    def is_now() -> bool:
        state = acting_state(world)
        return state is not None and holds(state)

    if await until(is_now):
        world.count_fault("taken_over_in_the_middle")
    name, all_ = world.who(COORDINATOR), standing(world)
    links, way = all_.links[name], way or all_.rng.choice(WAYS)
    world.loop.trace(f"{name} {way}")
    before = all_.take_overs
    match way:
        case "killed":
            world.kill(name, kind=way)
        case "stands_still":
            world.pause(name, kind=way)
        case "cut_from_etcd":
            world.count_fault(way)
            links.cut()
        case "its_calls_are_late":
            world.count_fault(way)
            links.latency_s = LATE_S
            size = all_.rng.choice([12, 20, 24]) << 10
            _ask(world, "alterer", lambda admin: admin.alter_topic(TOPIC, segment_bytes=size))
        case _:
            world.count_fault(way)
            links.cut()
            cut_from_nodes(world, name)
    await asyncio.sleep(AWAY_S)
    if all_.take_overs == before:
        world.loop.failures.append(f"nobody takes over from {name}, which was {way}")
    links.heal()
    heal_to_nodes(world, name)
    world.resume(name)
    if not world.is_up(name):
        world.start(name)
    await asyncio.sleep(SESSION_S)


# --- the moments ----------------------------------------------------------------------------------


def is_recovering(state: ClusterState) -> bool:
    """Return whether a segment is being recovered."""
    found = (state.segments[each].segment.state for each in state.unsealed)
    return SegmentState.RECOVERING in found


def is_sealing(state: ClusterState) -> bool:
    """Return whether a successor is prepared."""
    return bool(state.prepared)


def is_opening(state: ClusterState) -> bool:
    """Return whether a partition has no segment yet."""
    return any(not each.tail_segment_id for each in state.partitions.values())


def is_uploading(state: ClusterState) -> bool:
    """Return whether a node was asked to upload a segment."""
    return bool(state.tiers.under_way)


async def standby_in_recovery(scene: Scene, fault: Fault) -> None:
    """A leader dies, and while its segments are recovered the coordinator goes."""
    world = scene.world
    for _ in range(ROUNDS):
        leader, _ = await roles(world)
        world.kill(leader, power_cut=True)
        await take_over_in(scene, is_recovering)
        world.start(leader)
        await asyncio.sleep(1.0)


async def standby_in_seal(scene: Scene, fault: Fault) -> None:
    """While segments roll."""
    await roles(scene.world)
    for _ in range(ROUNDS):
        rolling = _ask(scene.world, "roller", lambda admin: admin.roll_topic(TOPIC))
        await take_over_in(scene, is_sealing)
        await rolling


async def standby_in_creation(scene: Scene, fault: Fault) -> None:
    """While a topic is made; it is deleted and made again later."""
    world = scene.world
    await roles(world)
    topic = FleetingTopic(world, scene.plan, "fleeting")
    world.fleeting.append(topic)
    world.keep(asyncio.create_task(topic.live(2, 4 * SESSION_S)))
    for _ in range(ROUNDS):
        await take_over_in(scene, is_opening)


async def standby_in_tiering(scene: Scene, fault: Fault) -> None:
    """While nodes are asked to upload."""
    world = scene.world
    await roles(world)
    topic = TieredTopic(world, scene.plan, "tiered", {"tier_format": "segment"})
    world.fleeting.append(topic)
    await topic.live()
    world.bucket.faults.request_s = 0.02
    for _ in range(ROUNDS - 1):
        await take_over_in(scene, is_uploading)
    world.bucket.faults.heal()


async def standby_in_balance(scene: Scene, fault: Fault) -> None:
    """While leaders and copies move to a node that is new."""
    world = scene.world
    await roles(world)
    for _ in range(ROUNDS - 1):
        world.start(world.add_host())
        await asyncio.sleep(2.0)  # it is ripe by then
        balancing = _ask(world, "balancer", lambda admin: admin.balance_cluster())
        await take_over_in(scene, is_sealing)
        await balancing


async def standby_late_change(scene: Scene, fault: Fault) -> None:
    """A change is on its way to etcd while another one takes over."""
    await roles(scene.world)
    for _ in range(ROUNDS - 1):
        await take_over_in(scene, lambda _: True, "its_calls_are_late")


def _ask(
    world: World, who: str, what: Callable[[Admin], Awaitable[object]]
) -> "asyncio.Task[None]":
    """Have an operator ask for something, who does not hear of its end perhaps."""
    process, net, clock, rng = world.client(f"{who} {world.loop.time():.6f}")

    async def ask() -> None:
        address = world.coordinator_address
        async with Admin(address, timeout_s=8.0, net=net, clock=clock, rng=rng) as admin:
            try:
                await what(admin)
            except IcecoreError as error:
                world.loop.trace(f"{who}: {error.reason}")

    return process.spawn(ask())


# --- a store that goes back -----------------------------------------------------------------------


async def standby_older_etcd(scene: Scene, fault: Fault) -> None:
    """A person puts an old snapshot of etcd back, and the newest one when the coordinators say that
    theirs is old (R94). Nodes live on; one of them starts again meanwhile."""
    world, etcd = scene.world, standing(scene.world).etcd
    _, (second, _) = await roles(world)
    old = etcd.records()
    newest = _newest(world)
    await until(lambda: _newest(world) >= newest + LEAST_NEW)
    kept = await _restore(world, old)
    world.count_fault("older_metadata")
    await asyncio.sleep(OLD_S / 2)
    world.kill(second)
    world.start(second)
    await asyncio.sleep(OLD_S / 2)
    await _restore(world, kept)
    await asyncio.sleep(SESSION_S)


def _newest(world: World) -> int:
    state = acting_state(world)
    return 0 if state is None else max(state.segments)


async def _restore(world: World, rows: dict[bytes, object]) -> dict[bytes, object]:
    """Stop all coordinators, put a copy of etcd back, start them; the one of before."""
    for name in world.coordinators:
        world.kill(name, kind="")
    etcd = standing(world).etcd
    kept = etcd.records()
    etcd.restore(rows)
    await asyncio.sleep(0.1)
    world.start(COORDINATOR)
    return kept


_WORLDS = (
    *(standby_in_recovery, standby_in_seal, standby_in_creation),
    *(standby_in_tiering, standby_in_balance, standby_late_change, standby_older_etcd),
)
PLANS: dict[str, Callable[[int], Plan]] = {
    each.__name__: standby_plan(each.__name__) for each in _WORLDS
}
KINDS = tuple(Kind(each.__name__, each) for each in _WORLDS)
