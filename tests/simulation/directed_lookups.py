"""Staged worlds of look-ups that ask a node which knows less of a segment than there is, or whose
plan ends with a segment that its leader has left behind.

Each is survivable and must be clean. Roles are those of ``directed``.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any

from icecore.client.admin.admin import Admin
from icecore.model import SegmentId, SegmentState
from tests.simulation.cluster import COORDINATOR
from tests.simulation.directed import plan, record, roles, until
from tests.simulation.faults import Fault, Kind, Scene
from tests.simulation.plan import TOPIC, Plan
from tests.simulation.shells import coordinator_address

ROLLS = 4
DEATHS = 3
LATE_S = 1.5
"""For longer than a client believes what it knows of the newest segments."""


def seals_are_late_plan(seed: int) -> Plan:
    """Nothing special, but for the look-ups."""
    return plan("seals_are_late", looks_up=True)


async def seals_are_late(scene: Scene, fault: Fault) -> None:
    """A's segment rolls and A leads the next one, while something else on A has the earlier one for
    itself, as a shortage or a crowd of seals does: it is not sealed there before that has ended."""
    world = scene.world
    await roles(world)
    process, net, clock, rng = world.client("operator")
    address = coordinator_address(COORDINATOR)
    admin = Admin(address, timeout_s=8.0, net=net, clock=clock, rng=rng)
    for _ in range(ROLLS):
        earlier = record(world)
        leader = f"node-{earlier.leader}"
        holding = world.processes[leader].spawn(_hold(world.shells[leader], earlier.segment_id))
        await process.spawn(admin.roll_topic(TOPIC))
        rolled = await until(partial(_is_followed, scene, earlier.segment_id))
        assert rolled, "the next segment is led while the earlier one waits"
        world.count_fault("seal_is_late")
        await holding
        await asyncio.sleep(world.rng.uniform(0.0, 1.0))


def successors_lead_first_plan(seed: int) -> Plan:
    """Nothing special, but for the look-ups."""
    return plan("successors_lead_first", looks_up=True)


async def successors_lead_first(scene: Scene, fault: Fault) -> None:
    """A dies, and B leads the next segment before the earlier one is sealed there: of that it has
    all, and has not heard how far A had acknowledged it."""
    world = scene.world
    await roles(world)
    for _ in range(DEATHS):
        earlier = record(world)
        leader = f"node-{earlier.leader}"
        world.kill(leader)
        sealed = await until(partial(_is_sealed, scene, earlier.segment_id))
        assert sealed, "two of three decide"
        for name in set(world.hosts) - {leader}:
            world.processes[name].spawn(_hold(world.shells[name], earlier.segment_id))
        await asyncio.sleep(LATE_S)
        world.start(leader)
        await asyncio.sleep(world.rng.uniform(1.0, 2.0))


def leaders_are_restarted_plan(seed: int) -> Plan:
    """Nothing special, but for the look-ups."""
    return plan("leaders_are_restarted", looks_up=True)


async def leaders_are_restarted(scene: Scene, fault: Fault) -> None:
    """A dies and is back at once, while the others stand still, so that nobody can decide where its
    segment ends: A is still named as its leader, and does not know what it had acknowledged."""
    world = scene.world
    await roles(world)
    for _ in range(DEATHS):
        leader = f"node-{record(world).leader}"
        others = set(world.hosts) - {leader}
        for name in others:
            world.pause(name)
        world.kill(leader)
        world.start(leader)
        await asyncio.sleep(LATE_S)
        for name in others:
            world.resume(name)
        await asyncio.sleep(world.rng.uniform(1.5, 2.5))


async def _hold(node: Any, segment_id: SegmentId) -> None:
    async with node.orders.alone(segment_id):
        await asyncio.sleep(LATE_S)


def _is_sealed(scene: Scene, segment_id: SegmentId) -> bool:
    found = scene.world.stored_segment(segment_id)
    return found is not None and found.state is SegmentState.SEALED


def _is_followed(scene: Scene, segment_id: SegmentId) -> bool:
    now = record(scene.world)
    return now.segment_id != segment_id and now.state is SegmentState.ACTIVE


PLANS: dict[str, Callable[[int], Plan]] = {
    "seals_are_late": seals_are_late_plan,
    "successors_lead_first": successors_lead_first_plan,
    "leaders_are_restarted": leaders_are_restarted_plan,
}
KINDS = (
    Kind("seals_are_late", seals_are_late),
    Kind("successors_lead_first", successors_lead_first),
    Kind("leaders_are_restarted", leaders_are_restarted),
)
