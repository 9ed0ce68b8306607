"""Staged worlds of a metadata store that goes back (R94), or loses an answer (R18).

The coordinator starts on a copy of its store. The copy is some seconds old; segments were sealed
and opened since, and records acknowledged in them. A person stops it and puts the newest store
back, as the message of its end says. In another world the store keeps who is in sync, and nobody
hears that it did.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

from icecore.errors import StorageError
from icecore.model import Acks
from icecore_coordinator.coordinator import Coordinator
from icecore_coordinator.state.record_json import encode
from icecore_coordinator.state.snapshot import snapshot
from icecore_coordinator.stores.metadata_store import Compare, Stored
from icecore_coordinator.stores.sqlite_store import SqliteDatabase, SqliteStore
from tests.simulation.cluster import COORDINATOR
from tests.simulation.directed import cut, heal, lose_leader, plan, record, roles, until
from tests.simulation.faults import Fault, Kind, Scene
from tests.simulation.plan import Plan
from tests.simulation.ports import SimMetadataStore
from tests.simulation.shells import metadata_database
from tests.simulation.tiered import TieredTopic

LEAST_NEW = 3
"""Segments that were given out after the copy was made."""
LAST_WORDS_S = 0.01
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


def adopted_from_bucket_plan(seed: int) -> Plan:
    """Segments are full now and then; nodes have an object store."""
    calm = plan("adopted_from_bucket", producers=1, has_store=True, acks=(Acks.ALL,))
    return replace(calm, knobs=replace(calm.knobs, segment_bytes=16 << 10))


async def adopted_from_bucket(scene: Scene, fault: Fault) -> None:
    """All metadata are lost. Nodes have the newest segments of a topic, and the bucket alone has
    those before."""
    world = scene.world
    topic = TieredTopic(world, scene.plan, "tiered", merges=world.seed % 2 == 0)
    world.fleeting.append(topic)
    await topic.live()
    await until(topic.is_in_bucket_alone)
    topic.lose_metadata()
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


def lost_answer_plan(seed: int) -> Plan:
    """With ``min_insync_replicas`` 1 A goes on alone, and whoever joins counts from then on."""
    return plan("lost_answer", min_insync_replicas=1, acks=(Acks.ALL,))


async def lost_answer(scene: Scene, fault: Fault) -> None:
    """B and C join A's in-sync set. The store keeps that and loses its answer: the coordinator says
    so to A and ends. A is alone again, and dies before another one can tell it who has joined."""
    world = scene.world
    with mock.patch.object(Coordinator, "run", _with_last_words(Coordinator.run)):
        world.kill(COORDINATOR, kind="")
        world.start(COORDINATOR)
        leader, followers = await roles(world)
    cut(world, leader, followers)
    await until(lambda: len(record(world).isr) == 1)
    await asyncio.sleep(0.1)
    with _answers_lost() as lost:
        heal(world, leader, followers)
        await until(lambda: bool(lost))
        await asyncio.sleep(LAST_WORDS_S)
    cut(world, leader, [*followers, COORDINATOR])
    world.count_fault("store_ambiguous")
    await asyncio.sleep(0.3)
    await lose_leader(world, leader)


def _with_last_words(run: Callable[[Coordinator], Awaitable[None]]) -> Any:
    """A coordinator that ends answers the calls that run, as production's does when it stops."""

    async def answering(self: Coordinator) -> None:
        try:
            await run(self)
        finally:
            await asyncio.sleep(LAST_WORDS_S)

    return answering


@contextmanager
def _answers_lost() -> Iterator[list[str]]:
    """The store carries out what lets somebody join an in-sync set, and says that it failed."""
    carry_out = SimMetadataStore.txn
    lost: list[str] = []

    async def txn(
        self: SimMetadataStore,
        compares: Sequence[Compare],
        puts: Sequence[tuple[str, str]],
        deletes: Sequence[str] = (),
    ) -> bool:
        done = await carry_out(self, compares, puts, deletes)
        lost.extend(key for key, value in puts if len(_in_sync(value)) > 1)
        if lost:
            raise StorageError("simulated: the answer of the transaction was lost")
        return done

    with mock.patch.object(SimMetadataStore, "txn", txn):
        yield lost


def _in_sync(value: str) -> list[int]:
    """The in-sync set of a stored segment; empty for other records."""
    found: list[int] = json.loads(value).get("segment", {}).get("isr", [])
    return found


PLANS: dict[str, Callable[[int], Plan]] = {
    "older_metadata": older_metadata_plan,
    "adopted_metadata": adopted_metadata_plan,
    "adopted_from_bucket": adopted_from_bucket_plan,
    "lost_answer": lost_answer_plan,
}
KINDS = (
    Kind("older_metadata", older_metadata),
    Kind("adopted_metadata", adopted_metadata),
    Kind("adopted_nothing", adopted_nothing),
    Kind("adopted_from_bucket", adopted_from_bucket),
    Kind("lost_answer", lost_answer),
)
