"""Faults of disks, and the atlas that keeps them survivable.

Damage, which is what takes bytes away that were durable, hits one node of a world only, and only
where ``min_insync_replicas`` keeps another copy of everything: then any loss is a bug. In a few
worlds it may hit all of them; there data may become unavailable, but must not be missing without
being named.

An index may lag behind the file by a second after a power cut, and what was lost within that second
can't be told from a torn write. So damage comes after the index is durable, and a damaged node does
not lose its index; and what needs the index to be noticed hits one node only, always.
"""

import asyncio
import copy
import random
import sqlite3
from typing import NamedTuple

from icecore_node.storage.segment_engine.segment_header import FILE_HEADER_LENGTH
from icecore_node.storage.segment_engine.segment_names import file_name
from icecore_node.storage.shared_engine.shared_files import FOLDER
from tests.simulation.cluster import COORDINATOR, Host, World
from tests.simulation.disk import SimDisk
from tests.simulation.faults import Fault, Kind, Scene, back_later
from tests.simulation.index import SimIndexDisk
from tests.simulation.inode import Inode
from tests.simulation.plan import Plan
from tests.simulation.ports import memory_database
from tests.simulation.shared_logs import runs_in

CAPACITY_LEFT_BYTES = (0, 16 * 1024, 256 * 1024)


def keeps_other_copies(plan: Plan) -> bool:
    """Return whether every record is on a second disk, which is not damaged."""
    return plan.min_insync_replicas >= 2 and plan.is_damage_bounded


def survives_damage(plan: Plan) -> bool:
    """Return whether one damaged disk takes nothing away, or the world may lose access to data."""
    return plan.min_insync_replicas >= 2 or not plan.is_damage_bounded


# --- damage ---------------------------------------------------------------------------------------


async def fsync_error(scene: Scene, fault: Fault) -> None:
    """The next fsync of one disk fails. The first of a node: it must stop at once and trust none of
    its copies. A further one: what is there counts for nothing, and the node goes on (R83)."""
    host = scene.world.hosts[scene.damaged(fault)]
    disk = scene.rng(fault).choice(host.disks)
    disk.faults.failing_syncs = 1
    await asyncio.sleep(fault.lasts_s)
    disk.faults.failing_syncs = 0
    if disk is host.further and disk.faults.failed_syncs:
        disk.faults.failed_syncs, host.is_further_failed = 0, True
        scene.world.count_fault(fault.kind)


async def bit_rot_sealed(scene: Scene, fault: Fault) -> None:
    """A bit of a sealed file flips under a running node; a reader or the scrub finds it."""
    name, rng = scene.damaged(fault), scene.rng(fault)
    files = _files(scene, name, is_sealed=True)
    if files:
        _rot(scene, fault, scene.world.hosts[name], rng.choice(files), rng)


async def bit_rot_active(scene: Scene, fault: Fault) -> None:
    """A bit of a file that is being written flips; the node may or may not be started again."""
    name, rng = scene.damaged(fault), scene.rng(fault)
    files = _files(scene, name, is_sealed=False)
    if files:
        _rot(scene, fault, scene.world.hosts[name], rng.choice(files), rng)
        if rng.random() < 0.7:
            scene.world.kill(name)
            await back_later(scene, name, fault.lasts_s)


async def truncation(scene: Scene, fault: Fault) -> None:
    """The end of a file that was being written is gone when its node starts again."""
    name, rng, world = scene.damaged(fault), scene.rng(fault), scene.world
    files = _files(scene, name, is_sealed=False)
    if not files:
        return
    file = rng.choice(files)
    inode = _inode(world.hosts[name], file)
    world.kill(name)
    world.hosts[name].index.flush()
    start, end = _data_start(file), _data_end(inode)
    if end > start:
        inode.truncate(rng.randrange(start, end))
        inode.sync()
        world.count_fault(fault.kind)
    await back_later(scene, name, fault.lasts_s)


async def disk_replaced(scene: Scene, fault: Fault) -> None:
    """A node comes back with an empty folder on each disk."""
    name, world = scene.damaged(fault), scene.world
    world.kill(name)
    further = None if world.hosts[name].further is None else SimDisk()
    put_back(world.hosts[name], Saved(SimDisk(), further, SimIndexDisk(), memory_database()))
    world.count_fault(fault.kind)
    await back_later(scene, name, fault.lasts_s)


async def old_copy_restored(scene: Scene, fault: Fault) -> None:
    """A node comes back with its folder as it was some seconds ago."""
    name, world = scene.damaged(fault), scene.world
    host = world.hosts[name]
    disk = host.disk
    world.kill(name)
    if host.control.in_transaction:
        host.control.rollback()
    saved = copy_of(host)
    await back_later(scene, name, 0.1)
    await asyncio.sleep(fault.lasts_s)
    world.kill(name)
    if host.disk is disk:
        put_back(host, saved)
        world.count_fault(fault.kind)
    await back_later(scene, name, 0.2)


async def snapshot_restored(scene: Scene, fault: Fault) -> None:
    """A node comes back with its folder as it was some seconds ago, while the same incarnation ran.

    Only where the coordinator has stored that the node was further already: what is younger than
    that nobody can tell from the disk of before (R58).
    """
    name, world = scene.damaged(fault), scene.world
    host = world.hosts[name]
    disk = host.disk
    if not world.is_up(name) or host.control.in_transaction:
        return
    saved = copy_of(host)
    await asyncio.sleep(fault.lasts_s)
    world.kill(name)
    if host.disk is disk and stored_counter(world, host.node_id) > counter_of(saved.control):
        put_back(host, saved)
        world.count_fault(fault.kind)
    await back_later(scene, name, 0.2)


class Saved(NamedTuple):
    """A copy of everything on a disk."""

    disk: SimDisk
    further: SimDisk | None
    index: SimIndexDisk
    control: sqlite3.Connection


def copy_of(host: Host) -> Saved:
    """The folder of a node as it is now, as a volume snapshot takes it."""
    control = memory_database()
    host.control.backup(control)
    further = None if host.further is None else _copy_of_disk(host.further)
    return Saved(_copy_of_disk(host.disk), further, copy.deepcopy(host.index), control)


def _copy_of_disk(disk: SimDisk) -> SimDisk:
    saved = SimDisk()
    saved.names, saved.durable_names, saved.folders, saved.database = copy.deepcopy(
        (disk.names, disk.durable_names, disk.folders, disk.database)
    )
    return saved


def put_back(host: Host, saved: Saved) -> None:
    """A stopped node's disks are that copy; their faults stay."""
    saved.disk.faults = host.disk.faults
    if saved.further is not None and host.further is not None:
        saved.further.faults = host.further.faults
    host.disk, host.further, host.index, host.control = saved


def counter_of(control: sqlite3.Connection) -> int:
    """The disk counter in a data folder."""
    row = control.execute("SELECT value FROM meta WHERE key = 'disk_counter'").fetchone()
    return int(row[0]) if row else 0


def stored_counter(world: World, node_id: int) -> int:
    """The highest one that the running coordinator has stored of a node, 0 without one."""
    coordinator = world.shells.get(COORDINATOR)
    if coordinator is None:
        return 0
    heard = coordinator.ledger.state.heard.values()
    counters = (pair for record in heard for pair in record.disk_counters)
    return max((counter for id_, counter in counters if id_ == node_id), default=0)


def _files(scene: Scene, name: str, *, is_sealed: bool) -> list[str]:
    """Files of a node that hold batches, sealed or being written."""
    node = scene.world.shells.get(name)
    if node is None:
        return []
    host = scene.world.hosts[name]
    found: list[str] = []
    for replica in node.replicas:
        if replica.life.is_intact and replica.sealed == is_sealed:
            own = file_name(replica.identity)
            shared = runs_in(host, replica.segment_id, node.context.store)
            found += [own] if host.file(own) is not None else shared
    return [file for file in found if _data_end(_inode(host, file)) > _data_start(file)]


def _inode(host: Host, file: str) -> Inode:
    """Return the inode of one of a host's files, which must exist."""
    inode = host.file(file)
    assert inode is not None
    return inode


def _rot(scene: Scene, fault: Fault, host: Host, file: str, rng: random.Random) -> None:
    """Flip one bit within the batches."""
    host.index.flush()
    inode = _inode(host, file)
    position = rng.randrange(_data_start(file), _data_end(inode))
    inode.flip_bit(position, rng.randrange(8))
    scene.world.loop.trace(f"bit rot in {file} at {position}")
    scene.world.count_fault(fault.kind)


def _data_start(file: str) -> int:
    """Behind what tells whose file it is; a shared one tells that all along."""
    return 0 if file.startswith(f"{FOLDER}/") else FILE_HEADER_LENGTH


def _data_end(inode: Inode) -> int:
    """Return the position where the written part ends. Files are allocated ahead, with zeros."""
    return len(inode.read(inode.size, 0).rstrip(b"\0"))


# --- no damage ------------------------------------------------------------------------------------


async def disk_full(scene: Scene, fault: Fault) -> None:
    """A disk runs out of space, and gets some again."""
    rng, host = scene.rng(fault), scene.world.hosts[scene.victim(fault)]
    left, disk = rng.choice(CAPACITY_LEFT_BYTES), rng.choice(host.disks)
    disk.limit(disk.used_bytes() + left)
    scene.world.count_fault(fault.kind)
    await asyncio.sleep(fault.lasts_s)
    disk.limit(None)


async def out_of_descriptors(scene: Scene, fault: Fault) -> None:
    """Nothing more can be opened on a node, soon; what is open can be used."""
    host, rng = scene.world.hosts[scene.victim(fault)], scene.rng(fault)
    faults = [disk.faults for disk in host.disks]
    for each in faults:
        each.opens_left = rng.randrange(8)
    scene.world.count_fault(fault.kind)
    await asyncio.sleep(fault.lasts_s)
    for each in faults:
        each.opens_left = None


async def disk_stall(scene: Scene, fault: Fault) -> None:
    """Nothing that touches the disk goes on for a while."""
    world = scene.world
    host = world.hosts[scene.victim(fault)]
    host.stalled_until_s = max(host.stalled_until_s, world.loop.time() + fault.lasts_s)
    world.count_fault(fault.kind)
    await asyncio.sleep(fault.lasts_s)


async def slow_disk(scene: Scene, fault: Fault) -> None:
    """Everything that touches the disk takes ten times as long."""
    host = scene.world.hosts[scene.victim(fault)]
    host.slowness *= 10.0
    scene.world.count_fault(fault.kind)
    await asyncio.sleep(fault.lasts_s)
    host.slowness /= 10.0


async def index_lost(scene: Scene, fault: Fault) -> None:
    """The index database is gone when a node starts again."""
    await _lose_index(scene, fault, is_whole=True)


async def index_log_lost(scene: Scene, fault: Fault) -> None:
    """The unsynced end of the index is gone, the file is not."""
    await _lose_index(scene, fault, is_whole=False)


async def _lose_index(scene: Scene, fault: Fault, *, is_whole: bool) -> None:
    name, world = scene.victim(fault), scene.world
    if name == world.damaged:
        return
    world.kill(name)
    index = world.hosts[name].index
    if is_whole:
        index.wipe()
    else:
        index.power_cut(scene.rng(fault))
    world.count_fault(fault.kind)
    await back_later(scene, name, fault.lasts_s)


KINDS = (
    Kind("fsync_error", fsync_error, (0.2, 1.0), survives_damage, weight=3),
    Kind("bit_rot_sealed", bit_rot_sealed, fits=survives_damage, weight=4),
    Kind("bit_rot_active", bit_rot_active, (0.05, 1.0), keeps_other_copies, weight=4),
    Kind("truncation", truncation, (0.05, 1.0), keeps_other_copies, weight=4),
    Kind("disk_replaced", disk_replaced, (0.05, 2.0), survives_damage, weight=3),
    Kind("old_copy_restored", old_copy_restored, (1.0, 4.0), survives_damage, weight=3),
    Kind("snapshot_restored", snapshot_restored, (1.0, 4.0), survives_damage, weight=3),
    Kind("disk_full", disk_full, (0.5, 6.0)),
    Kind("out_of_descriptors", out_of_descriptors, (0.2, 4.0)),
    Kind("disk_stall", disk_stall, (0.5, 30.0)),
    Kind("slow_disk", slow_disk, (0.5, 6.0)),
    Kind("index_lost", index_lost, (0.05, 1.0), weight=2),
    Kind("index_log_lost", index_log_lost, (0.05, 1.0), weight=2),
)
