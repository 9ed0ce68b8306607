"""A staged world of metadata that go back: the coordinator starts on a copy of its store (R94).

The copy is some seconds old; segments were sealed and opened since, and records acknowledged in
them. A person stops it and puts the newest store back, as the message of its end says.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from icecore.model import Acks
from icecore_coordinator.state.record_json import encode
from icecore_coordinator.state.snapshot import snapshot
from icecore_coordinator.stores.metadata_store import Stored
from icecore_coordinator.stores.sqlite_store import SqliteDatabase, SqliteStore
from tests.simulation.cluster import COORDINATOR
from tests.simulation.directed import lose_leader, plan, roles, until
from tests.simulation.faults import Fault, Kind, Scene
from tests.simulation.plan import Plan
from tests.simulation.shells import metadata_database

LEAST_NEW = 3
"""Segments that were given out after the copy was made."""
OLD_S = 4.0
"""The old store is in use for so long, by one coordinator after the other."""


def older_metadata_plan(seed: int) -> Plan:
    """Segments are full now and then."""
    calm = plan("older_metadata", acks=(Acks.ALL,))
    return replace(calm, knobs=replace(calm.knobs, segment_bytes=16 << 10))


async def older_metadata(scene: Scene, fault: Fault) -> None:
    """All nodes live on; one of them starts again while the old store is in use."""
    world = scene.world
    _, (second, _) = await roles(world)
    copy = SqliteDatabase(":memory:")
    world.metadata.connection.backup(copy.connection)
    newest = max(world.shells[COORDINATOR].ledger.state.segments)
    await until(lambda: max(world.shells[COORDINATOR].ledger.state.segments) >= newest + LEAST_NEW)
    world.kill(COORDINATOR, kind="")
    world.metadata, kept = copy, world.metadata
    world.count_fault("older_metadata")
    world.start(COORDINATOR)
    await asyncio.sleep(OLD_S / 2)
    world.kill(second)
    world.start(second)
    await asyncio.sleep(OLD_S / 2)
    world.kill(COORDINATOR, kind="")
    world.metadata = kept
    world.start(COORDINATOR)
    await asyncio.sleep(1.0)


def adopted_metadata_plan(seed: int) -> Plan:
    """The same. Every other time the store is lost as a whole, and an empty one takes its place."""
    calm = plan(("adopted_metadata", "adopted_nothing")[seed // 2 % 2], acks=(Acks.ALL,))
    return replace(calm, knobs=replace(calm.knobs, segment_bytes=16 << 10))


async def adopted_metadata(scene: Scene, fault: Fault) -> None:
    """The newest store is lost for good. A person lets a backup go on, while nodes serve on and one
    of them starts again; later the one that led dies."""
    await _adopted(scene, await _restored_backup(scene))


async def _restored_backup(scene: Scene) -> SqliteDatabase:
    """Take a backup of the coordinator that runs, and make a store of it."""
    world = scene.world
    state = world.shells[COORDINATOR].ledger.state
    taken = snapshot(state)
    puts = [Stored(each.key, encode(each), each.version) for each in taken.records]
    assert sorted(puts) == await SqliteStore(world.metadata).scan(""), "the backup has all of it"
    restored = SqliteDatabase(":memory:")
    store = SqliteStore(restored)
    await store.acquire_coordinator_epoch()
    await store.adopt(puts, [], taken.coordinator_epoch, taken.revision)
    return restored


async def adopted_nothing(scene: Scene, fault: Fault) -> None:
    """The same with an empty store."""
    await _adopted(scene, metadata_database())


async def _adopted(scene: Scene, store: SqliteDatabase) -> None:
    world = scene.world
    leader, (second, _) = await roles(world)
    newest = max(world.shells[COORDINATOR].ledger.state.segments)
    await until(lambda: max(world.shells[COORDINATOR].ledger.state.segments) >= newest + LEAST_NEW)
    world.adopts = True
    if world.rng.random() < 0.5:
        world.kill(second)
    world.kill(COORDINATOR, kind="")
    world.metadata = store
    world.count_fault("older_metadata")
    world.start(COORDINATOR)
    await asyncio.sleep(world.rng.uniform(0, OLD_S / 2))
    if world.rng.random() < 0.5:  # perhaps in the middle of it
        world.kill(COORDINATOR)
        world.start(COORDINATOR)
    await asyncio.sleep(OLD_S / 2)
    if not world.is_up(second):
        world.start(second)
    await until(lambda: world.faults["adopted"] > 0)
    await asyncio.sleep(2.0)
    await lose_leader(world, leader)


PLANS: dict[str, Callable[[int], Plan]] = {
    "older_metadata": older_metadata_plan,
    "adopted_metadata": adopted_metadata_plan,
}
KINDS = (
    Kind("older_metadata", older_metadata),
    Kind("adopted_metadata", adopted_metadata),
    Kind("adopted_nothing", adopted_nothing),
)
