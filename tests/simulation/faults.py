"""A fault is data, drawn from the seed before the world starts. So any subset of the faults of a
seed can be run again.

A fault names its victim by role ("leader 0" = who leads partition 0 when it strikes). What else it
needs of chance it draws from a source of its own, so that leaving out another fault changes nothing
about it. Faults overlap.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.simulation.cluster import World
    from tests.simulation.plan import Plan
    from tests.simulation.workload import Traffic


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of a schedule."""

    number: int
    """Position in the whole schedule of its seed."""
    kind: str
    at_s: float
    lasts_s: float
    target: str
    """``leader P``, ``follower P`` (of partition P, as it is then) or ``node N``."""

    def __str__(self) -> str:
        where = f"{self.number}: {self.kind} of {self.target}"
        return f"{where} at {self.at_s:.3f} s for {self.lasts_s:.3f} s"


@dataclass(slots=True)
class Scene:
    """The parts of a world that a fault may touch."""

    world: "World"
    plan: "Plan"
    traffic: "Traffic"

    def rng(self, fault: Fault) -> random.Random:
        """Chance of one fault."""
        return random.Random(f"{self.world.seed} {fault.number} {fault.kind}")

    def victim(self, fault: Fault) -> str:
        """The host that a target means now; any when nobody has that role."""
        world = self.world
        role, _, number = fault.target.partition(" ")
        if role == "node":
            return list(world.hosts)[int(number) % len(world.hosts)]
        leader = leader_of(world, int(number))
        others = [name for name in world.hosts if name != leader]
        if role == "leader" and leader:
            return leader
        return self.rng(fault).choice(others)

    def damaged(self, fault: Fault) -> str:
        """The host whose disk may be damaged. It is the same for a whole world, unless the world
        is one of those in which data may become unavailable: see Plan.is_damage_bounded."""
        world = self.world
        if self.plan.is_damage_bounded:
            world.damaged = world.damaged or self.victim(fault)
        name = world.damaged or self.victim(fault)
        world.suspects.add(name)
        return name


async def back_later(scene: Scene, name: str, down_s: float) -> None:
    """Start a host again after a while, unless somebody else did."""
    await asyncio.sleep(down_s)
    if not scene.world.is_up(name):
        scene.world.start(name)


def leader_of(world: "World", partition: int) -> str:
    """The process that leads a partition as far as nodes know; empty when none does."""
    for name in world.hosts:
        node = world.shells.get(name)
        if node is None or not world.is_up(name):
            continue
        for leader in node.leaders.all():
            if leader.segment.partition == partition:
                return name
    return ""


def always(plan: "Plan") -> bool:
    """Accept any plan, for kinds of faults that fit into any world."""
    return True


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of fault."""

    name: str
    run: Callable[[Scene, Fault], Awaitable[None]]
    lasts_s: tuple[float, float] = (0.05, 3.0)
    fits: "Callable[[Plan], bool]" = always
    """Whether a world may have it."""
    weight: int = 1
    """How often it is drawn, compared to others."""
