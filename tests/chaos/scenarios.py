"""The faults, one scenario each: a coroutine that makes them while the load runs.

A scenario uses its time for as many rounds as fit and leaves healing to the run, except where the
healing is part of it. Each round begins with a cluster that takes writes.
"""

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

from icecore.model import SegmentState
from tests.chaos import damage
from tests.chaos.cluster import LEASE_MS, NODES
from tests.chaos.control_scenarios import CONTROL_SCENARIOS
from tests.chaos.disks import fill
from tests.chaos.storage import OWN_FILES, SURVIVES_ONE_PROCESS, TIERED
from tests.chaos.store import FAULTS
from tests.chaos.world import Scenario, World, name_of

SILENCE_S = LEASE_MS / 1000 + 2.5
"""Longer than the lease, and than what follows its end."""


# --- processes ------------------------------------------------------------------------------------


async def kill_leader(world: World) -> None:
    """SIGKILL whoever leads, again after each full recovery."""
    while world.left_s > 0:
        victim = await world.leader()
        await world.kill(victim)
        await world.writes(600)
        await world.start(victim)
        await world.settled()


async def kill_all(world: World) -> None:
    """SIGKILL everything at the same moment, the coordinator too."""
    while world.left_s > 0:
        await world.writes()
        world.fault("kill_all")
        for node_id in world.cluster.addresses:
            world.cluster.node(node_id).process.kill()  # type: ignore[union-attr]
        await world.control.kill(world.control.coordinators)
        for node_id in world.cluster.addresses:
            await asyncio.to_thread(world.cluster.kill_node, node_id)  # waits for its end
        await asyncio.sleep(world.rng.random())
        await world.heal()
        await world.writes()
        await asyncio.sleep(2.0)


async def pause_leader(world: World) -> None:
    """SIGSTOP a leader for longer than its lease, then let it go on as if nothing had been."""
    while world.left_s > 0:
        victim = await world.leader()
        world.fault("pause", node=victim)
        world.cluster.node(victim).pause()
        await asyncio.sleep(SILENCE_S)
        world.cluster.node(victim).resume()
        await world.writes()
        await world.settled()


async def kill_coordinator_in_recovery(world: World) -> None:
    """SIGKILL a leader, and the coordinator at some moment of the recovery that follows."""
    while world.left_s > 0:
        victim = await world.leader()
        await world.kill(victim, "kill_during_coordinator_kill")
        await asyncio.sleep(world.rng.uniform(0.3, 1.2))
        active = await world.control.active()
        world.fault("kill_coordinator", name=active.name)
        await world.control.kill([active])
        await asyncio.sleep(world.rng.uniform(0.0, 1.0))
        await world.heal()
        await world.writes()
        await world.settled()


async def rolling_restart(world: World) -> None:
    """SIGTERM and start, one node after the other; nobody may notice more than a pause."""
    while world.left_s > 0:
        for node_id in NODES:
            world.fault("restart", node=node_id)
            await asyncio.to_thread(world.cluster.stop_node, node_id)
            await world.start(node_id)
            await world.settled()


async def clean_stop(world: World) -> None:
    """SIGTERM a leader and leave it down for a while."""
    while world.left_s > 0:
        victim = await world.leader()
        world.fault("stop", node=victim)
        await asyncio.to_thread(world.cluster.stop_node, victim)
        await world.writes(1500)
        await world.start(victim)
        await world.settled()


async def add_node(world: World) -> None:
    """A fourth node joins; it must get segments, and then survive being needed."""
    await world.writes()
    world.fault("add_node")
    added = await asyncio.to_thread(world.cluster.add_node)

    async def has_work() -> str:
        segments = await world.segments(SegmentState.ACTIVE)
        return "" if any(added in each.replicas for each in segments) else "it has no replica"

    await world.until("the new node gets work", has_work, 40.0)
    await world.settled()
    await world.kill(1, "kill_with_spare")
    await world.writes(1000)


# --- network --------------------------------------------------------------------------------------


async def one_way(world: World) -> None:
    """Nothing from a leader reaches the coordinator; then, the other way round."""
    is_towards = True
    while world.left_s > 0:
        name = name_of(await world.leader())
        world.fault("one_way", node=name, is_towards=is_towards)
        for each in world.control.names:
            world.network.cut(*((name, each) if is_towards else (each, name)))
        is_towards = not is_towards
        await asyncio.sleep(SILENCE_S)
        world.network.heal()
        await world.writes()
        await world.settled()


async def leader_without_followers(world: World) -> None:
    """A leader and its followers do not hear each other; the coordinator hears all."""
    while world.left_s > 0:
        leader = await world.leader()
        world.fault("no_followers", node=leader)
        world.network.separate([name_of(leader)], map(name_of, world.others(leader)))
        await asyncio.sleep(world.rng.uniform(3.0, 6.0))
        world.network.heal()
        await world.writes()
        await world.settled()


async def minority(world: World) -> None:
    """A leader is alone with the clients; the others have the coordinator."""
    while world.left_s > 0:
        leader = await world.leader()
        world.fault("minority", node=leader)
        rest = [*world.control.names, *map(name_of, world.others(leader))]
        world.network.separate([name_of(leader)], rest)
        await world.writes(within_s=SILENCE_S + 30.0)
        await asyncio.sleep(SILENCE_S)
        world.network.heal()
        await world.settled()


async def majority_cut_off(world: World) -> None:
    """Two of three nodes are cut off from the coordinator and the third; nobody has a quorum."""
    while world.left_s > 0:
        leader = await world.leader()
        cut_off = [leader, world.rng.choice(world.others(leader))]
        rest = [each for each in world.cluster.addresses if each not in cut_off]
        world.fault("majority", nodes=cut_off)
        others = [*world.control.names, *map(name_of, rest)]
        world.network.separate(map(name_of, cut_off), others)
        await asyncio.sleep(SILENCE_S)
        world.network.heal()
        await world.writes(within_s=40.0)
        await world.settled()


async def flapping(world: World) -> None:
    """One direction of one link between nodes comes and goes."""
    while world.left_s > 0:
        leader = await world.leader()
        ends = [name_of(leader), name_of(world.rng.choice(world.others(leader)))]
        world.rng.shuffle(ends)
        for _ in range(4):
            world.fault("flap", source=ends[0], target=ends[1])
            world.network.cut(*ends)
            await asyncio.sleep(world.rng.uniform(0.2, 1.2))
            world.network.heal()
            await asyncio.sleep(world.rng.uniform(0.2, 0.8))
        await world.writes()
    await world.settled()


# --- disks ----------------------------------------------------------------------------------------


async def one_disk_full(world: World) -> None:
    """A leader's disk has no room any more, and later has it again."""
    while world.left_s > 0:
        await world.writes()
        await _fill_and_free(world, [await world.leader()], works=True)
        await world.settled()


async def all_disks_full(world: World) -> None:
    """No disk has room; when there is some again, writing goes on by itself."""
    while world.left_s > 0:
        await world.writes()
        await _fill_and_free(world, list(world.cluster.addresses), works=False)
        await world.settled()


async def _fill_and_free(world: World, node_ids: list[int], *, works: bool) -> None:
    world.fault("disk_full", nodes=node_ids)
    ballasts: set[Path] = set()

    async def fill_all() -> None:
        for node_id in node_ids:
            folder = world.cluster.data_folder(node_id)
            ballasts.add(await asyncio.to_thread(fill, folder, 64 << 10))

    async def stands_still() -> str:
        await fill_all()  # who was refused gives back what it had reserved, and goes on with that
        return await world.stands_still()

    try:
        await fill_all()
        if works:
            await world.writes(6000, within_s=40.0)
        else:
            await world.until("no writes without space", stands_still, 120.0)
    finally:
        for ballast in ballasts:
            ballast.unlink()
    await world.writes(within_s=60.0)


async def _damage(
    world: World,
    kind: str,
    state: SegmentState,
    how: Callable[[Path, Random], bool],
    *,
    leader: bool,
) -> None:
    """Kill a node, damage its replicas in this state, start it again."""
    victim = await world.leader()
    if not leader:
        victim = world.rng.choice(world.others(victim))
    segments = [each for each in await world.segments(state) if victim in each.replicas]
    world.rng.shuffle(segments)
    await world.kill(victim, kind)
    count = 0
    for segment in segments[:3]:
        path = damage.segment_file(world.cluster.data_folder(victim), segment)
        if path is not None and await asyncio.to_thread(how, path, world.rng):
            count += 1
            where = {"segment": segment.segment_id, "partition": segment.partition}
            world.recorder.write("damaged", kind=kind, node=victim, **where)
    if not count:
        print("    (nothing to damage)", flush=True)
    await world.writes()
    await world.start(victim)
    await world.settled()
    await world.writes()


async def flip_sealed(world: World) -> None:
    """Bits rot in sealed segments of a node that is down."""
    while world.left_s > 0:
        await world.writes(2000)
        await _damage(world, "flip_sealed", SegmentState.SEALED, damage.flip_bit, leader=False)


async def flip_active(world: World) -> None:
    """Bits rot in active segments, of a follower and of a leader in turn."""
    leader = False
    while world.left_s > 0:
        await world.writes(600)
        await _damage(world, "flip_active", SegmentState.ACTIVE, damage.flip_bit, leader=leader)
        leader = not leader


async def truncate_active(world: World) -> None:
    """The ends of active segments are gone, of a follower and of a leader in turn."""
    leader = False
    while world.left_s > 0:
        await world.writes(600)
        await _damage(world, "truncate_active", SegmentState.ACTIVE, damage.truncate, leader=leader)
        leader = not leader


async def replace_disk(world: World) -> None:
    """A node comes back with an empty data folder."""
    while world.left_s > 0:
        await world.writes(600)
        victim = world.rng.choice(NODES)
        await world.kill(victim, "replace_disk")
        await asyncio.to_thread(shutil.rmtree, world.cluster.data_folder(victim))
        await world.writes()
        await world.start(victim)
        await world.settled()


# --- object storage -------------------------------------------------------------------------------


async def store_fails(world: World) -> None:
    """The object store fails in each of its ways, while segments go there and are read there; and
    whoever leads, and so uploads, is killed in the middle of it."""
    store, round_ = world.store, 0
    assert store is not None
    while world.left_s > 0 or round_ < len(FAULTS):
        fault = FAULTS[round_ % len(FAULTS)]
        world.fault(fault)
        store.begin(fault)
        await world.until(f"met {fault}", store.has_struck, 60.0)
        if round_ % 2:
            victim = await world.leader()
            await world.kill(victim)
            await world.writes(300)
            await world.start(victim)
        store.heal()
        await world.settled()
        round_ += 1
    await world.until("read from the store alone", lambda: _none_remote(world), 60.0)
    print(f"    requests met: {dict(store.struck)}")


async def _none_remote(world: World) -> str:
    sealed = await world.segments(SegmentState.SEALED)
    return "" if any(each.is_remote_only for each in sealed) else "nodes still have copies of all"


# --- everything at once ---------------------------------------------------------------------------


async def storm(world: World) -> None:
    """Kills, pauses and cuts on top of each other, without waiting for anything to recover."""
    cluster, rng = world.cluster, world.rng
    paused: set[int] = set()
    names = [*world.control.names, *map(name_of, NODES)]
    while world.left_s > 0:
        node_id = rng.choice(NODES)
        match rng.randrange(6):
            case 0 if cluster.node(node_id).is_running:
                await world.kill(node_id, "storm_kill")
                paused.discard(node_id)
            case 1 if cluster.node(node_id).is_running and node_id not in paused:
                world.fault("storm_pause", node=node_id)
                cluster.node(node_id).pause()
                paused.add(node_id)
            case 2:
                victim = rng.choice(world.control.coordinators)
                world.fault("storm_kill_coordinator", name=victim.name)
                await world.control.kill([victim])
            case 3 | 4:
                source, target = rng.sample(names, 2)
                world.fault("storm_cut", source=source, target=target)
                world.network.cut(source, target)
            case _:
                await world.heal()
                paused.clear()
        await asyncio.sleep(rng.uniform(0.2, 2.0))


SCENARIOS: dict[str, Scenario] = {
    "kill_leader": Scenario(kill_leader, stored_as=SURVIVES_ONE_PROCESS),
    "kill_all": Scenario(kill_all),
    "pause_leader": Scenario(pause_leader, stored_as=SURVIVES_ONE_PROCESS),
    "one_way": Scenario(one_way, stored_as=SURVIVES_ONE_PROCESS),
    "leader_without_followers": Scenario(leader_without_followers, stored_as=SURVIVES_ONE_PROCESS),
    "minority": Scenario(minority, stored_as=SURVIVES_ONE_PROCESS),
    "majority_cut_off": Scenario(majority_cut_off, stored_as=SURVIVES_ONE_PROCESS),
    "flapping": Scenario(flapping, stored_as=SURVIVES_ONE_PROCESS),
    "one_disk_full": Scenario(one_disk_full, small_disks=NODES, stored_as=OWN_FILES),
    "all_disks_full": Scenario(all_disks_full, small_disks=NODES, stored_as=OWN_FILES),
    "flip_sealed": Scenario(flip_sealed),
    "flip_active": Scenario(flip_active, stored_as=OWN_FILES),
    "truncate_active": Scenario(truncate_active, stored_as=OWN_FILES),
    "replace_disk": Scenario(replace_disk),
    "kill_coordinator_in_recovery": Scenario(
        kill_coordinator_in_recovery, stored_as=SURVIVES_ONE_PROCESS
    ),
    "rolling_restart": Scenario(rolling_restart, is_smooth=True, stored_as=OWN_FILES),
    "clean_stop": Scenario(clean_stop, is_smooth=True, stored_as=OWN_FILES),
    "add_node": Scenario(add_node),
    "store_fails": Scenario(store_fails, stored_as=TIERED),
    "storm": Scenario(storm),
    **CONTROL_SCENARIOS,
}
