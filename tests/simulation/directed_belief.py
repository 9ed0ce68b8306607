"""Staged worlds with somebody who lies: messages as a forger or a broken peer would send them.

Each world has honest traffic, and a stranger who knows all that anybody may ask for. Whatever it
says, nothing that was acked may be lost and the cluster becomes whole by itself; a call for help is
what is wanted, not a problem. Roles are those of ``directed``.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from icecore.errors import IcecoreError
from icecore.model import SegmentState
from icecore.v1 import coordinator_pb2 as pb
from tests.simulation.cluster import COORDINATOR, World
from tests.simulation.directed import plan
from tests.simulation.faults import Fault, Kind, Scene
from tests.simulation.plan import TOPIC, Plan
from tests.simulation.shells import coordinator_address
from tests.stranger import FORGED, Known, Stranger

TIMES = 6
PAUSE_S = 0.7
ABSURD = (1 << 63) - 1
FAR = 10**9

Lie = Callable[[World, Stranger], Awaitable[None]]


def lying_plan(kind: str) -> Callable[[int], Plan]:
    """Segments are full now and then, and records are acked by all and by quorums."""

    def make(seed: int) -> Plan:
        calm = plan(kind, may_page=True)
        return replace(calm, knobs=replace(calm.knobs, segment_bytes=(8 + seed % 3 * 24) << 10))

    return make


def lies(lie: Lie) -> Callable[[Scene, Fault], Awaitable[None]]:
    """The stranger, at work in a world."""

    async def strike(scene: Scene, fault: Fault) -> None:
        world = scene.world
        await asyncio.sleep(1.0)
        process, net, _, _ = world.client("stranger")
        stranger = Stranger(net, coordinator_address(COORDINATOR))
        await process.spawn(lie(world, stranger))
        await asyncio.sleep(1.0)

    return strike


async def forged_seal(world: World, stranger: Stranger) -> None:
    """In the leader's name: the segment ends behind its first record, or where it is by now."""
    for number in range(TIMES):
        known = await stranger.look(TOPIC)
        end_offset = known.segment.base_offset + 1
        if number % 2 and world.history.produces:
            end_offset = max(end_offset, len(world.history.produces) - number)
        try:
            await stranger.seal(known, end_offset)
        except IcecoreError:
            continue  # a recovery was faster
        await asyncio.sleep(PAUSE_S)


async def forged_digests(world: World, stranger: Stranger) -> None:
    """In the name of all replicas: the full digest of what was just sealed is this one."""
    for _ in range(8 * TIMES):
        known = await stranger.look(TOPIC)
        for segment in [each for each in known.sealed if not each.full_digest]:
            for node_id in segment.replicas:
                await stranger.report_digests(known, segment.segment_id, node_id)
        await asyncio.sleep(PAUSE_S / 8)


async def forged_write_back(world: World, stranger: Stranger) -> None:
    """In the coordinator's name, to everybody: sealed segments are something else, and the one that
    takes appends ends behind its first batch, whose digest is right."""
    for _ in range(TIMES):
        known = await stranger.look(TOPIC)
        for sealed in known.sealed[-2:]:
            await _rewrite(stranger, known, sealed, sealed.base_offset + 1, FORGED)
        with_first = await _first_batch(stranger, known)
        if with_first is not None:
            tail = pb.SegmentAssignment()
            tail.CopyFrom(known.segment)
            tail.state = SegmentState.RECOVERING  # type: ignore[assignment]
            await _rewrite(stranger, known, tail, *with_first)
        await asyncio.sleep(PAUSE_S)


async def _first_batch(stranger: Stranger, known: Known) -> tuple[int, bytes] | None:
    try:
        return await stranger.first_batch(known, known.leader.address)
    except (IcecoreError, KeyError):
        return None  # it is empty, or led by nobody


async def _rewrite(
    stranger: Stranger, known: Known, segment: pb.SegmentAssignment, end_offset: int, digest: bytes
) -> None:
    claim = pb.SegmentAssignment()
    claim.CopyFrom(segment)
    if claim.state == SegmentState.SEALED:
        claim.end_offset, claim.seal_digest = end_offset, digest
    for node in known.nodes.values():
        await stranger.write_back(
            known,
            node.address,
            claim,
            end_offset=end_offset,
            seal_digest=digest,
            donor_address=known.nodes[min(known.nodes)].address,
            seal=claim.state == SegmentState.SEALED,
        )


async def forged_fence(world: World, stranger: Stranger) -> None:
    """In the coordinator's name, to everybody: promise the next epoch, or one far ahead."""
    for number in range(TIMES):
        known = await stranger.look(TOPIC)
        epoch = known.segment.epoch + (1, 1_000, 1 << 20, 1 << 62)[number % 4]
        for node in known.nodes.values():
            await stranger.fence(known, node.address, epoch=epoch)
        await asyncio.sleep(2 * PAUSE_S)


async def forged_coordinator_epoch(world: World, stranger: Stranger) -> None:
    """In the name of a coordinator of the far future. Later all nodes start again."""
    known = await stranger.look(TOPIC)
    for node in known.nodes.values():
        await stranger.fence(known, node.address, coordinator_epoch=ABSURD)
        await stranger.fence(
            known, node.address, coordinator_epoch=ABSURD, epoch=known.segment.epoch + 1
        )
    await asyncio.sleep(PAUSE_S)
    for name in world.hosts:
        world.kill(name)
        world.start(name)
        await asyncio.sleep(PAUSE_S)


async def forged_loss(world: World, stranger: Stranger) -> None:
    """In the coordinator's name, to everybody: a person has given up all but the first batch of the
    tail, whose digest is right; its end is not decided yet, or is already."""
    for number in range(2 * TIMES):
        known = await stranger.look(TOPIC)
        with_first = await _first_batch(stranger, known)
        if with_first is not None:
            end_offset, digest = with_first
            claim = pb.SegmentAssignment()
            claim.CopyFrom(known.segment)
            is_sealed = bool(number % 2)
            claim.state = (SegmentState.RECOVERING, SegmentState.SEALED)[is_sealed]  # type: ignore[assignment]
            claim.lossy, claim.end_offset, claim.seal_digest = True, end_offset, digest
            for node in known.replicas:
                await stranger.write_back(
                    known,
                    node.address,
                    claim,
                    end_offset=end_offset,
                    seal_digest=digest,
                    seal=is_sealed,
                )
        await asyncio.sleep(PAUSE_S)


async def used_ids(world: World, stranger: Stranger) -> None:
    """In the coordinator's name, to everybody: open the next segments, of another topic."""
    known = await stranger.look(TOPIC)
    request = pb.OpenRequest(cluster_id=known.cluster_id, coordinator_epoch=known.coordinator_epoch)
    for number in range(1_000):
        item = request.segments.add()
        item.segment.CopyFrom(known.segment)
        item.segment.segment_id += 1 + number
        item.segment.topic_id = FORGED[:16]
        item.segment.state = SegmentState.PREPARED  # type: ignore[assignment]
    for node in known.nodes.values():
        await stranger.say(node.address, "NodeService/Open", request)


async def next_coordinator(world: World, stranger: Stranger) -> None:
    """In the name of the coordinator that might come next: fence the tail."""
    for _ in range(TIMES):
        known = await stranger.look(TOPIC)
        for node in known.nodes.values():
            await stranger.fence(
                known,
                node.address,
                coordinator_epoch=known.coordinator_epoch + 1,
                epoch=known.segment.epoch + 1,
            )
        await asyncio.sleep(PAUSE_S)


async def forged_heartbeats(world: World, stranger: Stranger) -> None:
    """In the names of all nodes: watermarks, ends, counters and wishes far beyond the true ones.
    Later all nodes start again."""
    for _ in range(TIMES):
        known = await stranger.look(TOPIC)
        segment_id = known.segment.segment_id
        for node in known.nodes.values():
            await stranger.heartbeat(
                known,
                node.node_id,
                node.incarnation,
                disk_id=FORGED[:16],
                led=[pb.LedHighWatermark(segment_id=segment_id, high_watermark=FAR)],
                durable_ends=[pb.DurableEnd(segment_id=segment_id, durable_end_offset=FAR)],
                disk_counter=1_000_000,
            )
        await asyncio.sleep(PAUSE_S)
    for name in world.hosts:
        world.kill(name)
    for name in world.hosts:
        world.start(name)


async def foreign_disk(world: World, stranger: Stranger) -> None:
    """While all nodes are down, somebody comes under their names, with disks of its own."""
    known = await stranger.look(TOPIC)
    for name in world.hosts:
        world.kill(name)
    await asyncio.sleep(3.0)
    for node_id in known.nodes:
        incarnation, error = await stranger.register(known, node_id)
        if error is None:
            await stranger.heartbeat(known, node_id, incarnation)
    for name in world.hosts:
        world.start(name)


WORLDS: dict[str, Lie] = {
    "forged_seal": forged_seal,
    "forged_digests": forged_digests,
    "forged_write_back": forged_write_back,
    "forged_fence": forged_fence,
    "forged_coordinator_epoch": forged_coordinator_epoch,
    "forged_loss": forged_loss,
    "used_ids": used_ids,
    "next_coordinator": next_coordinator,
    "forged_heartbeats": forged_heartbeats,
    "foreign_disk": foreign_disk,
}
PLANS: dict[str, Callable[[int], Plan]] = {name: lying_plan(name) for name in WORLDS}
KINDS = tuple(Kind(name, lies(lie)) for name, lie in WORLDS.items())
