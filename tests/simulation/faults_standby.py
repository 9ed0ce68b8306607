"""Faults of coordinators that stand by for each other, and of the etcd that they stand in.

Drawn by themselves, on top of what a seed has drawn so far.
"""

import asyncio
import random
from collections.abc import Iterable
from dataclasses import replace

from tests.simulation.cluster import COORDINATOR, World
from tests.simulation.coordinators import SESSION_S, Coordinators
from tests.simulation.faults import Fault, Kind, Scene, back_later
from tests.simulation.plan import Plan

STANDBYS = (1, 1, 2)
LATE_S = SESSION_S


def has_standbys(plan: Plan) -> bool:
    """Return whether coordinators stand by for each other."""
    return plan.standbys > 0


def standing(world: World) -> Coordinators:
    """The coordinators of a world that has standbys."""
    assert world.standing is not None
    return world.standing


def cut_from_nodes(world: World, name: str) -> None:
    """Both ways."""
    for node in world.hosts:
        world.network.cut(name, node)
        world.network.cut(node, name)


def heal_to_nodes(world: World, name: str) -> None:
    """Both ways."""
    for node in world.hosts:
        world.network.heal(name, node)
        world.network.heal(node, name)


# --- the one that acts ----------------------------------------------------------------------------


async def active_killed(scene: Scene, fault: Fault) -> None:
    """SIGKILL: another one acts when its session has ended."""
    name = scene.world.who(COORDINATOR)
    scene.world.kill(name, kind=fault.kind)
    await back_later(scene, name, fault.lasts_s)


async def active_stopped(scene: Scene, fault: Fault) -> None:
    """SIGTERM: it leaves the election before it ends."""
    scene.world.count_fault(fault.kind)
    standing(scene.world).terminate(scene.world.who(COORDINATOR))
    await asyncio.sleep(fault.lasts_s)


async def active_stands_still(scene: Scene, fault: Fault) -> None:
    """SIGSTOP, mostly for longer than a session: it comes back and believes that it acts."""
    name = scene.world.who(COORDINATOR)
    scene.world.pause(name, kind=fault.kind)
    await asyncio.sleep(fault.lasts_s)
    scene.world.resume(name)


async def active_cut_from_etcd(scene: Scene, fault: Fault) -> None:
    """Nodes hear it, and it hears nothing of the election."""
    links = standing(scene.world).links[scene.world.who(COORDINATOR)]
    scene.world.count_fault(fault.kind)
    links.cut()
    await asyncio.sleep(fault.lasts_s)
    links.heal()


async def active_cut_from_nodes(scene: Scene, fault: Fault) -> None:
    """It stays elected, and no node hears it."""
    name = scene.world.who(COORDINATOR)
    scene.world.count_fault(fault.kind)
    cut_from_nodes(scene.world, name)
    await asyncio.sleep(fault.lasts_s)
    heal_to_nodes(scene.world, name)


async def active_cut_from_both(scene: Scene, fault: Fault) -> None:
    """As a machine without a network."""
    name = scene.world.who(COORDINATOR)
    links = standing(scene.world).links[name]
    scene.world.count_fault(fault.kind)
    links.cut()
    cut_from_nodes(scene.world, name)
    await asyncio.sleep(fault.lasts_s)
    links.heal()
    heal_to_nodes(scene.world, name)


# --- etcd -----------------------------------------------------------------------------------------


async def etcd_away(scene: Scene, fault: Fault) -> None:
    """Nobody reaches etcd."""
    await _with_links(scene, fault, standing(scene.world).names, "is_cut", True)


async def etcd_lossy(scene: Scene, fault: Fault) -> None:
    """Calls of all are lost, or their answers are."""
    await _with_links(scene, fault, standing(scene.world).names, "loss", 0.2)


async def etcd_answers_late(scene: Scene, fault: Fault) -> None:
    """Answers to one come after up to a session."""
    names = standing(scene.world).names
    await _with_links(scene, fault, [scene.rng(fault).choice(names)], "slow_answers_s", LATE_S)


async def etcd_calls_late(scene: Scene, fault: Fault) -> None:
    """Calls of one take longer than a session, both ways."""
    names = standing(scene.world).names
    await _with_links(scene, fault, [scene.rng(fault).choice(names)], "latency_s", LATE_S)


async def watch_has_gaps(scene: Scene, fault: Fault) -> None:
    """A watch leaves changes out, as no etcd should."""
    await _with_links(scene, fault, standing(scene.world).names, "gaps", 0.1)


async def _with_links(
    scene: Scene, fault: Fault, names: Iterable[str], what: str, value: float
) -> None:
    scene.world.count_fault(fault.kind)
    links = [standing(scene.world).links[name] for name in names]
    for each in links:
        setattr(each, what, value)
    await asyncio.sleep(fault.lasts_s)
    for each in links:
        each.heal()


async def etcd_compacted(scene: Scene, fault: Fault) -> None:
    """History is shortened to nothing."""
    scene.world.count_fault(fault.kind)
    standing(scene.world).etcd.compact()


async def session_lost(scene: Scene, fault: Fault) -> None:
    """A person revokes a lease: two may take themselves for elected for a moment."""
    etcd = standing(scene.world).etcd
    if etcd.leases:
        scene.world.count_fault(fault.kind)
        etcd.end_lease(scene.rng(fault).choice(sorted(etcd.leases)))


LASTS_S = (0.3, 3 * SESSION_S)
KINDS = tuple(
    Kind(each.__name__, each, LASTS_S, has_standbys)
    for each in (
        *(active_killed, active_stopped, active_stands_still),
        *(active_cut_from_etcd, active_cut_from_nodes, active_cut_from_both),
        *(etcd_away, etcd_lossy, etcd_answers_late, etcd_calls_late),
        *(watch_has_gaps, etcd_compacted, session_lost),
    )
)


def draw_standbys(seed: int, plan: Plan) -> Plan:
    """One or two more coordinators, and what goes wrong with them."""
    rng = random.Random(f"standbys {seed}")
    plan = replace(plan, standbys=rng.choice(STANDBYS))
    number = max((each.number for each in plan.faults), default=-1) + 1
    end_s = max((each.at_s for each in plan.faults), default=1.0)
    drawn = []
    for at in range(rng.choice([3, 5, 8])):
        kind = rng.choice(KINDS)
        at_s, lasts_s = rng.uniform(0.2, end_s + 1.0), rng.uniform(*kind.lasts_s)
        drawn.append(Fault(number + at, kind.name, at_s, lasts_s, f"node {rng.randrange(3)}"))
    return replace(plan, faults=(*plan.faults, *drawn))
