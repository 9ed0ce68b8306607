"""Faults of single calls of ports: a read, a write, an open, a sync of a folder, an index, a store
of promises that fails once or for a while, or takes long; and death at any point of a start.

What fails for good, or is answered by giving a copy up, is damage: it hits the one node of a world
whose disk may be damaged (see ``faults_disk``). An index is derived, the other way round: what it
loses can be made again from sound files only, so its faults leave that node alone.
"""

import asyncio
import random

from tests.simulation.cluster import Host
from tests.simulation.faults import Fault, Kind, Scene, back_later
from tests.simulation.faults_disk import keeps_other_copies, survives_damage
from tests.simulation.machine import (
    CONTROL,
    INDEX_READS,
    INDEX_WRITES,
    NAMES,
    READS,
    SYNCS,
    WRITES,
    Trouble,
)

LASTING = 1_000_000
DEATHS_MAX = 4
OPERATIONS_OF_A_START = 60


async def _trouble(scene: Scene, fault: Fault, name: str, trouble: Trouble) -> None:
    """A trouble that lies in wait on a host for as long as the fault lasts."""
    machine = scene.world.hosts[name].machine
    machine.troubles.append(trouble)
    await asyncio.sleep(fault.lasts_s)
    if trouble in machine.troubles:
        machine.troubles.remove(trouble)


def _drawn(
    rng: random.Random,
    kind: str,
    operations: tuple[str, ...],
    *,
    names: str = "",
    partly: bool = False,
) -> Trouble:
    """One call that fails, a few, or all; at once or a little later."""
    times, skip = rng.choice([1, 1, 3, LASTING]), rng.choice([0, 0, 0, 3])
    return Trouble(kind, operations, times, skip, names, partly)


# --- files ----------------------------------------------------------------------------------------


async def read_error(scene: Scene, fault: Fault) -> None:
    """Reads of one node's files fail, and a copy that can't be read is given up."""
    name = scene.damaged(fault)
    trouble = _drawn(scene.rng(fault), fault.kind, READS, names="segments/")
    await _trouble(scene, fault, name, trouble)


async def bad_sector(scene: Scene, fault: Fault) -> None:
    """One file of one node can't be read any more, also when the node starts again."""
    name, rng, world = scene.damaged(fault), scene.rng(fault), scene.world
    host = world.hosts[name]
    names = {name for disk in host.disks for name in disk.names}
    files = sorted(name for name in names if name.endswith(".log"))
    if not files:
        return
    trouble = Trouble(fault.kind, READS, times=LASTING, names=rng.choice(files))
    host.machine.troubles.append(trouble)
    if rng.random() < 0.5:
        world.kill(name)
        await back_later(scene, name, fault.lasts_s)


async def write_error(scene: Scene, fault: Fault) -> None:
    """Writes of one node fail after a part of them, and nothing of them counts. A log that can't be
    cut at a start may be given up."""
    rng = scene.rng(fault)
    trouble = _drawn(rng, fault.kind, WRITES, partly=rng.random() < 0.7)
    await _trouble(scene, fault, scene.damaged(fault), trouble)


async def name_error(scene: Scene, fault: Fault) -> None:
    """Files of one node can't be opened, listed, renamed or removed for a while."""
    rng = scene.rng(fault)
    operations = tuple(rng.sample(NAMES, rng.randint(1, len(NAMES))))
    trouble = _drawn(rng, fault.kind, operations)
    await _trouble(scene, fault, scene.damaged(fault), trouble)


async def folder_sync_error(scene: Scene, fault: Fault) -> None:
    """The next sync of a folder of one node fails."""
    trouble = Trouble(fault.kind, ("sync_dir",), skip=scene.rng(fault).choice([0, 0, 1, 5]))
    await _trouble(scene, fault, scene.damaged(fault), trouble)


# --- index and control store ----------------------------------------------------------------------


def _indexed(scene: Scene, fault: Fault) -> str:
    """A node whose files are sound; empty when the fault would meet the other one."""
    name = scene.victim(fault)
    return "" if name == scene.world.damaged else name


async def index_error(scene: Scene, fault: Fault) -> None:
    """Calls of one node's index fail for a while."""
    name, rng = _indexed(scene, fault), scene.rng(fault)
    if name:
        operations = rng.choice([INDEX_READS, INDEX_WRITES, (*INDEX_READS, *INDEX_WRITES)])
        await _trouble(scene, fault, name, _drawn(rng, fault.kind, operations))


async def index_rot(scene: Scene, fault: Fault) -> None:
    """A block of one node's index fails its checksum from now on; the node is started again."""
    name, rng, world = _indexed(scene, fault), scene.rng(fault), scene.world
    if not name or not _rot_index(world.hosts[name], rng):
        return
    world.count_fault(fault.kind)
    if rng.random() < 0.5:
        world.kill(name)
        await back_later(scene, name, fault.lasts_s)


def _rot_index(host: Host, rng: random.Random) -> bool:
    """Return whether there was anything to rot: a run of neighbouring keys of one family."""
    families = sorted(name for name, family in host.index.families.items() if family.keys)
    if not families:
        return False
    family = rng.choice(families)
    keys = host.index.families[family].keys
    first = rng.randrange(len(keys))
    host.index.rotten.update((family, key) for key in keys[first : first + 4])
    return True


async def control_error(scene: Scene, fault: Fault) -> None:
    """Transactions of one node's control store fail; some were carried out all the same."""
    rng = scene.rng(fault)
    trouble = _drawn(rng, fault.kind, CONTROL[1:], partly=rng.random() < 0.3)
    await _trouble(scene, fault, scene.damaged(fault), trouble)


async def control_full(scene: Scene, fault: Fault) -> None:
    """The control store of one node finds no space, its reserve is used up."""
    trouble = Trouble(fault.kind, ("control commit",), times=LASTING)
    await _trouble(scene, fault, scene.damaged(fault), trouble)


# --- time, and death at a start -------------------------------------------------------------------


async def slow_calls(scene: Scene, fault: Fault) -> None:
    """Some calls of one node's storage take very long, each of them."""
    world, rng = scene.world, scene.rng(fault)
    machine = world.hosts[scene.victim(fault)].machine
    operations = rng.choice([SYNCS, NAMES, INDEX_WRITES, CONTROL, ("sync_dir", "control commit")])
    world.count_fault(fault.kind)
    machine.raise_costs(operations, rng.choice([0.01, 0.05, 0.3]))
    await asyncio.sleep(fault.lasts_s)
    machine.usual_costs(world.knobs.thread_delay_s)


async def death_at_start(scene: Scene, fault: Fault) -> None:
    """One node dies while it recovers, registers or takes over its replicas, maybe several times
    in a row: by SIGKILL or without power, between any two operations of its storage."""
    name, rng, world = scene.victim(fault), scene.rng(fault), scene.world
    for _ in range(rng.randint(1, DEATHS_MAX)):
        world.kill(name, power_cut=rng.random() < 0.5)
        await asyncio.sleep(rng.uniform(0.01, 0.2))
        if world.is_up(name):
            return  # somebody else has started it
        world.start(name)
        operations = rng.randrange(rng.choice([5, OPERATIONS_OF_A_START]))
        world.kill_in_mid_write(name, operations, power_cut=rng.random() < 0.5, kind=fault.kind)
        await asyncio.sleep(rng.uniform(0.05, 0.5))
    world.kill(name)
    await back_later(scene, name, fault.lasts_s)


KINDS = (
    Kind("read_error", read_error, (1.0, 5.0), survives_damage),
    Kind("bad_sector", bad_sector, (0.05, 1.0), keeps_other_copies),
    Kind("write_error", write_error, (0.1, 1.0), survives_damage),
    Kind("name_error", name_error, (0.5, 4.0), survives_damage),
    Kind("folder_sync_error", folder_sync_error, (0.5, 3.0), survives_damage),
    Kind("index_error", index_error, (0.1, 1.0)),
    Kind("index_rot", index_rot, (0.05, 1.0)),
    Kind("control_error", control_error, (0.1, 1.0), survives_damage),
    Kind("control_full", control_full, (0.1, 2.0), survives_damage),
    Kind("slow_calls", slow_calls, (0.5, 5.0)),
    Kind("death_at_start", death_at_start, (0.05, 1.0), weight=2),
)
