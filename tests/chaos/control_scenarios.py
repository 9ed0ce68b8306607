"""Faults of the control plane: coordinators that stand by for each other, and the etcd behind them.

Records go on in each of them, and no producer hears of it. Each kind of fault hits one process,
then a majority, then all; what comes back needs nobody.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final
from uuid import uuid4

from icecore import Admin, Consumer, Producer
from icecore.errors import IcecoreError
from icecore.process.members import Member
from icecore.topic_settings import TopicSettings
from tests.chaos.cluster import SESSION_MS
from tests.chaos.links import ETCD
from tests.chaos.storage import OWN_FILES, SURVIVES_ONE_PROCESS
from tests.chaos.world import TOPIC, Scenario, World

ROOMY_BYTES: Final = 16 << 20
"""Segments of this size take records for as long as nobody can open the next one."""
OUTLIVED_S: Final = SESSION_MS / 1000 + 1.0
"""Longer than the session of a coordinator."""
MADE_PARTITIONS: Final = 20
IMPORTED_PARTITIONS: Final = 4
IMPORTED_SEGMENTS: Final = 3000
IMPORTED_FROM: Final = 1 << 40
"""Ids of segments that no run comes to."""


async def _rounds(world: World, one: Callable[[int], Awaitable[None]]) -> None:
    """One process, a majority, all of them, as often as there is time; each once at least."""
    count = 0
    while world.left_s > 0 or count < len(ETCD):
        await world.writes()
        await one(count % len(ETCD) + 1)
        count += 1


# --- etcd -----------------------------------------------------------------------------------------


async def etcd_kill(world: World) -> None:
    """SIGKILL members of etcd."""

    async def one(count: int) -> None:
        await _without_members(world, "etcd_kill", count, world.control.kill_etcd)

    await _rounds(world, one)


async def etcd_pause(world: World) -> None:
    """SIGSTOP members of etcd: their connections stay, and nothing is answered."""

    async def one(count: int) -> None:
        await _without_members(world, "etcd_pause", count, world.control.pause_etcd)

    await _rounds(world, one)


async def etcd_partition(world: World) -> None:
    """Members of etcd are cut off from each other and from coordinators, both ways or one way."""

    async def one(count: int) -> None:
        cut = world.rng.choice((world.control.isolate, world.control.silence))
        kind = f"etcd_{cut.__name__}"
        await _without_members(world, kind, count, lambda number: cut([ETCD[number]]))

    await _rounds(world, one)


async def _without_members(
    world: World, kind: str, count: int, begin: Callable[[int], None]
) -> None:
    victims = world.rng.sample(range(len(ETCD)), count)
    world.fault(kind, members=victims)
    for number in victims:
        begin(number)
    if count == 1:
        await world.control.changed()
    else:
        await world.until("etcd is missed", world.control.says_why, 60.0)
        await world.writes(1200)
    await world.heal()
    await world.control.changed()
    await world.settled()


# --- coordinators ---------------------------------------------------------------------------------


async def coordinator_kill(world: World) -> None:
    """SIGKILL the coordinator that acts, and standbys with it."""

    async def one(count: int) -> None:
        await _without_coordinators(world, "coordinator_kill", count, world.control.kill)

    await _rounds(world, one)


async def coordinator_pause(world: World) -> None:
    """SIGSTOP them for longer than a session, then let them go on as if nothing had been."""

    async def pause(members: Sequence[Member]) -> None:
        for each in members:
            each.pause()

    async def one(count: int) -> None:
        await _without_coordinators(world, "coordinator_pause", count, pause)

    await _rounds(world, one)


async def coordinator_partition(world: World) -> None:
    """They are cut off from etcd, from nodes and from each other, both ways or one way."""

    async def one(count: int) -> None:
        cut = world.rng.choice((world.control.isolate, world.control.silence))

        async def begin(members: Sequence[Member]) -> None:
            cut(each.name for each in members)

        await _without_coordinators(world, f"coordinator_{cut.__name__}", count, begin)

    await _rounds(world, one)


async def _without_coordinators(
    world: World, kind: str, count: int, begin: Callable[[Sequence[Member]], Awaitable[None]]
) -> None:
    active, standbys = await world.control.active(), await world.control.standbys()
    victims = [active, *standbys[: count - 1]]
    world.fault(kind, names=[each.name for each in victims])
    await begin(victims)
    if count < len(ETCD):
        await world.control.taken_over()
    else:
        await asyncio.sleep(OUTLIVED_S)
        await world.writes(1200)
    await world.heal()
    for each in world.control.coordinators:
        await world.control.stands_by(each)
    await world.control.changed()
    await world.settled()


# --- in the middle of something -------------------------------------------------------------------


async def take_over_in_recovery(world: World) -> None:
    """SIGKILL a leader, and the coordinator at some moment of the recovery: another one ends it."""
    while world.left_s > 0:
        victim, active = await world.leader(), await world.control.active()
        await world.kill(victim, "kill_node_before_coordinator")
        await asyncio.sleep(world.rng.uniform(0.3, 1.5))
        await _lose(world, active, "in_recovery")
        await world.writes(600)
        await world.heal()
        await world.settled()


async def take_over_in_seal(world: World) -> None:
    """SIGKILL the coordinator at some moment of a roll of all partitions."""
    while world.left_s > 0:
        await world.writes()
        active = await world.control.active()
        async with Admin(world.cluster.bootstrap) as admin:
            rolling = asyncio.create_task(admin.roll_topic(TOPIC))
            await asyncio.sleep(world.rng.uniform(0.0, 0.15))
            await _lose(world, active, "in_seal")
            await asyncio.wait([rolling])
        _note(world, "a roll", rolling)
        await world.writes(600)
        await world.heal()
        await world.settled()


async def take_over_in_creation(world: World) -> None:
    """SIGKILL the coordinator at some moment of a creation: the topic is whole, or made again."""
    number = 0
    while world.left_s > 0:
        number += 1
        name, active = f"whole-{number}", await world.control.active()
        async with Admin(world.cluster.bootstrap) as admin:
            made = asyncio.create_task(admin.create_topic(name, partitions=MADE_PARTITIONS))
            await asyncio.sleep(world.rng.uniform(0.0, 0.5))
            await _lose(world, active, "in_creation")
            await asyncio.wait([made])
            _note(world, "a creation", made)
            [found] = await admin.describe_topics([name])
        if len(found.partitions) != MADE_PARTITIONS:
            world.control.problems.append(f"{name} has {len(found.partitions)} partitions")
        await _takes_records(world, name)
        await world.heal()
        await world.settled()


async def _takes_records(world: World, name: str) -> None:
    """Each partition gives back what it takes."""
    values = [b"%d" % number for number in range(MADE_PARTITIONS)]
    async with Producer(world.cluster.bootstrap) as producer:
        sent = [producer.send(name, each, partition=int(each)) for each in values]
        await asyncio.gather(*sent)
    async with Consumer(world.cluster.bootstrap, name, stop_at_end=True) as consumer:
        read = sorted([each.value or b"" async for each in consumer], key=int)
    if read != values:
        world.control.problems.append(f"{name} gives back {read}")


async def take_over_in_import(world: World) -> None:
    """SIGKILL the coordinator at some moment of an import: the same calls go on with it."""
    number = 0
    while world.left_s > 0:
        number += 1
        plan = import_plan(f"imported-{number}", IMPORTED_FROM * number)
        settings = TopicSettings(partitions=IMPORTED_PARTITIONS, replication_factor=1)
        active = await world.control.active()
        async with Admin(world.cluster.bootstrap, timeout_s=60.0) as admin:
            importing = asyncio.create_task(admin.import_tiered(plan, settings))
            await asyncio.sleep(world.rng.uniform(0.0, 1.0))
            await _lose(world, active, "in_import")
            await asyncio.wait([importing])
            _note(world, "an import", importing)
            await admin.import_tiered(plan, settings)
            found = await admin.list_segments(plan["topic"])
        ids = {each.segment_id for each in found}
        if missing := {each["segment_id"] for each in plan["segments"]} - ids:
            world.control.problems.append(f"{len(missing)} imported segments are missing")
        await world.heal()
        await world.settled()


def import_plan(name: str, first_id: int) -> dict[str, Any]:
    """A topic as a bucket would have it. Nobody reads its records: they are nowhere."""
    by_partition = IMPORTED_SEGMENTS // IMPORTED_PARTITIONS
    segments = [
        {
            "segment_id": first_id + partition * by_partition + number,
            "partition": partition,
            "generation": 0,
            "epoch": 1,
            "base_offset": number * 100,
            "end_offset": number * 100 + 100,
            "seal_digest": "11" * 32,
            "full_digest": "",
            "max_append_timestamp_ms": 1,
            "attempt": first_id + partition * by_partition + number,
            "manifest_sha256": "22" * 32,
            "content_digest": "33" * 32,
            "length_bytes": 1000,
            "records": 100,
            "tier_format": "parquet",
        }
        for partition in range(IMPORTED_PARTITIONS)
        for number in range(by_partition)
    ]
    highest = first_id + IMPORTED_SEGMENTS
    return {
        "topic": name,
        "topic_id": uuid4().hex,
        "segments": segments,
        "segment_ids_max": highest,
        "attempts_max": highest,
        "table_revisions": [0] * IMPORTED_PARTITIONS,
    }


async def _lose(world: World, active: Member, where: str) -> None:
    world.fault(f"kill_coordinator_{where}", name=active.name)
    await world.control.kill([active])
    await world.control.taken_over()


def _note(world: World, what: str, task: "asyncio.Task[Any]") -> None:
    """A definite refusal of what a coordinator was in the middle of is wrong."""
    error = task.exception()
    if isinstance(error, IcecoreError) and error.indeterminate:
        print(f"    {what} has no known outcome: {error!r}", flush=True)
    elif error is not None:
        world.control.problems.append(f"{what} was refused: {error!r}")


CONTROL_SCENARIOS: Final[dict[str, Scenario]] = {
    **{
        each.__name__: Scenario(
            each,
            is_smooth=True,
            stored_as=OWN_FILES,
            needs_etcd=True,
            segment_bytes=ROOMY_BYTES,
        )
        for each in (
            etcd_kill,
            etcd_pause,
            etcd_partition,
            coordinator_kill,
            coordinator_pause,
            coordinator_partition,
        )
    },
    **{
        each.__name__: Scenario(each, is_smooth=True, stored_as=OWN_FILES, needs_etcd=True)
        for each in (take_over_in_seal, take_over_in_creation, take_over_in_import)
    },
    "take_over_in_recovery": Scenario(
        take_over_in_recovery, stored_as=SURVIVES_ONE_PROCESS, needs_etcd=True
    ),
}
