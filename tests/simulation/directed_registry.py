"""Staged worlds of disks that go back, and of who may answer before that is known.

A leads, B follows, C lags; a quorum of A and B acks. All lose power, the coordinator too, and B
comes back with an older copy of its disk (of the whole of it, or of one log) while A is still
away. With B's short log and C's a quorum would decide. Roles are those of ``directed``.

In another world nodes hear late, twice or not at all what has changed of the others.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from unittest import mock

from icecore.model import Acks, SegmentState
from icecore.v1 import coordinator_pb2 as pb
from icecore_coordinator.nodes.node_pushes import Outbox, Pushes
from icecore_node.storage.segment_engine.segment_names import file_name
from tests.simulation.cluster import COORDINATOR, World
from tests.simulation.directed import LOOK_S, PATIENCE_S, cut, plan, record, roles, until
from tests.simulation.faults import Fault, Kind, Scene
from tests.simulation.faults_disk import copy_of, counter_of, put_back
from tests.simulation.plan import Plan

ACKED_MEANWHILE_S = 1.5
"""Between the copy and the power cut; several disk counters long."""


def _plan(kind: str) -> Plan:
    """C stays in the in-sync set however far it lags."""
    calm = plan(kind, acks=(Acks.QUORUM,))
    knobs = replace(calm.knobs, replica_lag_ms_max=60_000, latency_s=0.02, lease_ms=1_000)
    return replace(calm, knobs=knobs)


def early_fence_plan(seed: int) -> Plan:
    """As above."""
    return _plan("early_fence")


async def early_fence(scene: Scene, fault: Fault) -> None:
    """B's copy is of the incarnation before; a recovery knocks while B registers."""
    world = scene.world
    leader, (second, third) = await roles(world)
    world.kill(second)
    saved = copy_of(world.hosts[second])
    world.start(second)
    await asyncio.sleep(ACKED_MEANWHILE_S)
    await _all_but_third_go(world, leader, second, third)
    put_back(world.hosts[second], saved)
    world.count_fault("old_copy_restored")
    await asyncio.sleep(world.rng.uniform(0.2, 0.6))
    recovery = world.shells[COORDINATOR].recovery
    await until(lambda: bool(recovery.backoff._taken))  # a round begins
    await _second_then_leader(world, leader, second)


def live_snapshot_plan(seed: int) -> Plan:
    """As above."""
    return _plan("live_snapshot")


async def live_snapshot(scene: Scene, fault: Fault) -> None:
    """B's copy is of the incarnation that ran until the end."""
    world = scene.world
    leader, (second, third) = await roles(world)
    saved = copy_of(world.hosts[second])
    await asyncio.sleep(ACKED_MEANWHILE_S)
    await _all_but_third_go(world, leader, second, third)
    put_back(world.hosts[second], saved)
    world.count_fault("snapshot_restored")
    await _second_then_leader(world, leader, second)


def log_restored_plan(seed: int) -> Plan:
    """As above."""
    return _plan("log_restored")


async def log_restored(scene: Scene, fault: Fault) -> None:
    """Only one file of B's, and the index, are of before; its control store is the newest."""
    world = scene.world
    leader, (second, third) = await roles(world)
    host = world.hosts[second]
    file = file_name(world.shells[second].replicas.get(record(world).segment_id).identity)
    saved = copy_of(host)
    await asyncio.sleep(ACKED_MEANWHILE_S)
    await _all_but_third_go(world, leader, second, third)
    host.disk.names[file] = host.disk.durable_names[file] = saved.disk.names[file]
    host.index = saved.index
    world.count_fault("truncation")
    await _second_then_leader(world, leader, second)


def young_snapshot_plan(seed: int) -> Plan:
    """The coordinator may call a person: it knows that bytes are missing, not whose fault it is."""
    calm = _plan("young_snapshot")
    return replace(calm, is_damage_bounded=False)


async def young_snapshot(scene: Scene, fault: Fault) -> None:
    """B's copy is younger than the last counter that the coordinator stored, so B counts as
    intact; what it stored of A's watermark is all that tells."""
    world = scene.world
    leader, (second, third) = await roles(world)
    cut(world, leader, [third])
    host = world.hosts[second]
    before = counter_of(host.control)
    await until(lambda: counter_of(host.control) > before)
    saved = copy_of(host)
    heartbeats = world.knobs.heartbeat_ms / 1000
    await asyncio.sleep(3 * heartbeats)
    same = counter_of(host.control) == counter_of(saved.control)
    for name in (leader, second):
        world.kill(name, power_cut=True, kind="")
    await asyncio.sleep(1.0)  # the coordinator stores what it has heard
    for name in (COORDINATOR, third):
        world.kill(name, power_cut=True, kind="")
    world.network.heal_all()
    world.damaged = second
    if same:
        put_back(host, saved)
        world.count_fault("snapshot_restored")
    world.start(COORDINATOR)
    world.start(third)
    await _second_then_leader(world, leader, second)


async def _all_but_third_go(world: World, leader: str, second: str, third: str) -> None:
    """C lags, then all lose power; the coordinator and C are back, and a recovery has begun."""
    cut(world, leader, [third])
    await asyncio.sleep(0.6)
    for name in (COORDINATOR, leader, second, third):
        world.kill(name, power_cut=True, kind="")
    world.network.heal_all()
    world.damaged = second
    world.start(COORDINATOR)
    world.start(third)
    await asyncio.sleep(0.5)
    await until(lambda: record(world).state is SegmentState.RECOVERING)


async def _second_then_leader(world: World, leader: str, second: str) -> None:
    """B has time to be counted; then A, who has everything, is back."""
    await asyncio.sleep(LOOK_S)
    world.start(second)
    await asyncio.sleep(PATIENCE_S)
    world.start(leader)
    await asyncio.sleep(1.0)


def pushes_are_lost_plan(seed: int) -> Plan:
    """Nothing else goes wrong than what its faults do."""
    return plan("pushes_are_lost")


async def pushes_are_lost(scene: Scene, fault: Fault) -> None:
    """Each node is killed and comes back as another incarnation. One message in three about changed
    nodes is lost meanwhile, and another one comes twice."""
    world, real = scene.world, Pushes.next_message
    repeated: dict[int, pb.HeartbeatResponse] = {}
    count = 0

    def next_message(pushes: Pushes, outbox: Outbox) -> pb.HeartbeatResponse:
        nonlocal count
        again = repeated.pop(id(outbox), None)
        if again is not None:
            outbox.wake.set()
            return again
        message = real(pushes, outbox)
        if message.changed_nodes or message.gone_node_ids:
            count += 1
            if count % 3 == 0:
                world.count_fault("push_lost")
                outbox.wake.set()
                return real(pushes, outbox)
            if count % 3 == 1:
                world.count_fault("push_repeated")
                repeated[id(outbox)] = message
                outbox.wake.set()
        return message

    leader, followers = await roles(world)
    with mock.patch.object(Pushes, "next_message", next_message):
        for name in (*followers, leader):
            world.kill(name)
            await asyncio.sleep(PATIENCE_S)
            world.start(name)
            await asyncio.sleep(PATIENCE_S)


PLANS: dict[str, Callable[[int], Plan]] = {
    "early_fence": early_fence_plan,
    "live_snapshot": live_snapshot_plan,
    "log_restored": log_restored_plan,
    "young_snapshot": young_snapshot_plan,
    "pushes_are_lost": pushes_are_lost_plan,
}
KINDS = (
    Kind("early_fence", early_fence),
    Kind("live_snapshot", live_snapshot),
    Kind("log_restored", log_restored),
    Kind("young_snapshot", young_snapshot),
    Kind("pushes_are_lost", pushes_are_lost),
)
