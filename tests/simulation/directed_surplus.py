"""A staged world of copies that there are one too many of: who was away for long comes back.

A fourth machine gets copies of what is sealed while B is down for longer than anybody waits. B
returns with all it had: one copy of each segment goes, and what B has of segments that were sealed
without it. Then the same happens with C, so that who
has dropped a copy gets one again. Roles are those of ``directed``.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace

from icecore.model import Acks, NodeId, SegmentState
from icecore_coordinator.state.records import strays
from tests.simulation.cluster import COORDINATOR, World
from tests.simulation.directed import plan, roles
from tests.simulation.faults import Fault, Kind, Scene
from tests.simulation.plan import Plan

AWAY_S = 8.0
"""Longer than copies on a node that is down count, and repair takes."""
WITHIN_S = 20.0
LOOK_S = 0.05


def one_too_many_plan(seed: int) -> Plan:
    """There are some sealed segments."""
    calm = plan("one_too_many", acks=(Acks.ALL,), producers=2, pauses_s=(0.02,))
    knobs = replace(calm.knobs, segment_bytes=16384, roll_up_wait_ms=1_000)
    return replace(calm, knobs=knobs)


class Copies:
    """The number of copies, and what was wrong with it."""

    name = "copies"

    def __init__(self, world: World) -> None:
        self._world = world
        self._problems: list[str] = []

    def _wrong(self) -> list[str]:
        records = self._world.shells[COORDINATOR].ledger.state.segments.values()
        found = []
        for record in records:
            segment = record.segment
            if segment.state is not SegmentState.SEALED:
                continue
            copies, others = self._up(segment.replicas), self._up(strays(record))
            if segment.surplus or others or copies != segment.settings.replication_factor:
                found.append(
                    f"R93: segment {segment.segment_id} has copies on {segment.replicas}, "
                    f"{segment.surplus} drop it, {strays(record)} have bytes that do not count"
                )
        return found

    def _up(self, nodes: Iterable[NodeId]) -> int:
        return sum(self._world.is_up(f"node-{each}") for each in nodes)

    async def become_right(self) -> None:
        """All segments have as many as they should on nodes that are up, soon."""
        for _ in range(int(WITHIN_S / LOOK_S)):
            if not self._wrong():
                return
            await asyncio.sleep(LOOK_S)
        self._problems += self._wrong()

    async def finish(self, _: object) -> list[str]:
        """As a topic that comes and goes is asked at the end."""
        return self._problems


async def one_too_many(scene: Scene, fault: Fault) -> None:
    """B, then C, is away and returns."""
    world = scene.world
    _, followers = await roles(world)
    copies = Copies(world)
    world.fleeting.append(copies)
    world.start(world.add_host())
    for name in followers:
        await asyncio.sleep(1.0)
        world.kill(name)
        await asyncio.sleep(AWAY_S)
        await copies.become_right()
        world.start(name)
        await copies.become_right()


PLANS: dict[str, Callable[[int], Plan]] = {"one_too_many": one_too_many_plan}
KINDS = (Kind("one_too_many", one_too_many),)
