"""Staged worlds of records that go: because they expire, while clocks jump, the leader dies and the
coordinator is another, or because disks are nearly full, or seem so.

Each is survivable and must be clean; see ``expiring``. Roles are those of ``directed``.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from icecore.topic_settings import DELETE_OLDEST
from tests.simulation.cluster import COORDINATOR, World
from tests.simulation.directed import PATIENCE_S, plan, roles
from tests.simulation.expiring import ExpiringTopic
from tests.simulation.faults import Fault, Kind, Scene
from tests.simulation.plan import Plan

SEGMENT_BYTES = 16 * 1024
ROUNDS = 2
USED_SHARE = 0.82
"""A little more than where room is asked for, much less than where nodes stop following."""
GOES_SHARE = 2
"""At most one part in so many goes for a disk that seems full: a step is a quarter."""
YEAR_MS = 366 * 24 * 3600 * 1000


def records_expire_plan(seed: int) -> Plan:
    """Little traffic beside it."""
    return plan("records_expire", producers=1)


async def records_expire(scene: Scene, fault: Fault) -> None:
    """Both clocks that could matter jump by a year, forward and back; then processes die."""
    world = scene.world
    topic = ExpiringTopic(world, scene.plan, "expiring")
    world.fleeting.append(topic)
    await topic.live()
    leader, _ = await roles(world)
    for name in (COORDINATOR, leader):
        for skew_ms in (YEAR_MS, -YEAR_MS, 0):
            world.set_clock(name, skew_ms)
            await asyncio.sleep(1.0)
    world.count_fault("clock_jump")
    world.kill(COORDINATOR, kind="coordinator_killed")
    world.start(COORDINATOR)
    await asyncio.sleep(PATIENCE_S)
    world.kill(leader, power_cut=True)
    await asyncio.sleep(PATIENCE_S)
    world.start(leader)
    await asyncio.sleep(PATIENCE_S)


def disks_fill_plan(seed: int) -> Plan:
    """Two topics, of which one gives room, on disks that are never so full that nodes wait."""
    calm = plan("disks_fill", producers=1, padding_bytes=(200,), data_dirs=1 + seed % 2)
    return replace(calm, knobs=replace(calm.knobs, segment_bytes=SEGMENT_BYTES))


async def disks_fill(scene: Scene, fault: Fault) -> None:
    """Disks are full beyond the level at which room is asked for, until some was made; again and
    again. The leader dies meanwhile."""
    world = scene.world
    topic = ExpiringTopic(world, scene.plan, "giving", {"on_full": DELETE_OLDEST})
    world.fleeting.append(topic)
    await topic.live()
    leader, _ = await roles(world)
    for number in range(ROUNDS):
        await asyncio.sleep(PATIENCE_S)
        world.count_fault("disk_full")
        for disk in [disk for host in world.hosts.values() for disk in host.disks]:
            disk.limit(int(disk.used_bytes() / USED_SHARE))
        if number:
            world.kill(leader, power_cut=True)
        await asyncio.sleep(PATIENCE_S)
        for disk in [disk for host in world.hosts.values() for disk in host.disks]:
            disk.limit(None)
        if not world.is_up(leader):
            world.start(leader)


def disk_seems_full_plan(seed: int) -> Plan:
    """Nearly all that nodes hold is of the topic that gives room. Somebody is called for help."""
    calm = plan("disk_seems_full", producers=1, pauses_s=(0.5,), may_page=True)
    knobs = replace(calm.knobs, segment_bytes=SEGMENT_BYTES, reclaim_slack_bytes=SEGMENT_BYTES)
    return replace(calm, knobs=knobs)


class SealedRecords:
    """The sealed bytes of a topic, and what must not be with them."""

    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self.name = name
        self._problems: list[str] = []

    def length_bytes(self) -> int:
        segments = self._world.shells[COORDINATOR].ledger.state.segments.values()
        return sum(
            each.segment.length_bytes for each in segments if each.segment.topic == self.name
        )

    async def most_stays(self, before: int, within_s: float) -> None:
        """Deleting makes no room, so it ends soon, and a person hears why."""
        await asyncio.sleep(within_s)
        left = self.length_bytes()
        if not 0 < before - left <= before / GOES_SHARE:
            self._problems.append(f"R105: {left} of {before} bytes stay on a disk that seems full")
        if not any("that made no room" in each for each in self._world.log.alerts):
            self._problems.append("R105: nobody is told that deleting makes no room")

    async def finish(self, _: object) -> list[str]:
        """As a topic that comes and goes is asked at the end."""
        return self._problems


async def disk_seems_full(scene: Scene, fault: Fault) -> None:
    """The disk of a follower shows the same room, whatever goes: what fills it is not ours."""
    world = scene.world
    topic = ExpiringTopic(world, scene.plan, "giving", {"on_full": DELETE_OLDEST})
    records = SealedRecords(world, topic.name)
    world.fleeting += [topic, records]
    await topic.live()
    _, followers = await roles(world)
    await asyncio.sleep(3 * PATIENCE_S)
    topic.stop_sending()
    await asyncio.sleep(1.0)
    before = records.length_bytes()
    world.count_fault("disk_full")
    [disk] = world.hosts[followers[0]].disks
    used = 1_000 * disk.used_bytes()
    disk.faults.stuck_space = used, int(used / USED_SHARE) - used
    await records.most_stays(before, 2 * PATIENCE_S)
    disk.faults.stuck_space = None


PLANS: dict[str, Callable[[int], Plan]] = {
    "records_expire": records_expire_plan,
    "disks_fill": disks_fill_plan,
    "disk_seems_full": disk_seems_full_plan,
}
KINDS = (
    Kind("records_expire", records_expire),
    Kind("disks_fill", disks_fill),
    Kind("disk_seems_full", disk_seems_full),
)
