"""A staged world with a stranger who produces what nobody can decode, among everybody's traffic.

Checksums and lengths are right, so only looking into a batch tells (R70). Whatever is taken stops
every reader of the partition. Roles are those of ``directed``.
"""

import asyncio
import contextlib
from collections.abc import Callable

import zstandard

from icecore.codec.batch import HEADER_LENGTH, Codec, assemble, parse_header
from icecore.codec.record import encode_columns
from icecore.errors import IcecoreError
from icecore.rpc import framing
from icecore.v1 import data_pb2
from tests.simulation.cluster import World
from tests.simulation.directed import lose_leader, plan, roles
from tests.simulation.faults import Fault, Kind, Scene
from tests.simulation.plan import TOPIC, Plan
from tests.simulation.shells import NODE_PORT

REQUESTS = 30
PAYLOAD_BYTES = 48 * 1024
"""Four of them are more than a node inflates on its loop."""


def poisoned_plan(seed: int) -> Plan:
    """Nothing special."""
    return plan("poisoned", min_insync_replicas=1 + seed % 2)


async def poisoned(scene: Scene, fault: Fault) -> None:
    """The stranger sends to A again and again; A dies in the middle of it."""
    world = scene.world
    leader, _ = await roles(world)
    stranger = asyncio.ensure_future(_send(world, leader))
    await asyncio.sleep(world.rng.uniform(0.2, 0.6))
    await lose_leader(world, leader, 1.0)
    await stranger


async def _send(world: World, leader: str) -> None:
    process, net, _, _ = world.client("stranger")

    async def send() -> None:
        for number in range(REQUESTS):
            batches = [_poison(number % 2 == 0)] * 4
            entries = [
                data_pb2.ProducePartition(topic=TOPIC, batch_length=len(each)) for each in batches
            ]
            header = data_pb2.ProduceHeader(partitions=entries, timeout_ms=1000)
            body = framing.frame_bulk(header.SerializeToString(), batches)
            with contextlib.suppress(IcecoreError):  # when A is down
                await net.call(
                    f"{leader}:{NODE_PORT}", "/icecore.v1.DataService/Produce", body, timeout_s=1.0
                )
            await asyncio.sleep(0.02)

    await process.spawn(send())


def _poison(is_frame: bool) -> bytes:
    """One record in a frame with something behind it, or in no frame at all."""
    good = encode_columns(values=[bytes(4000)] * 12, timestamps_ms=[1] * 12, codec=Codec.ZSTD)
    header = parse_header(good)
    end = HEADER_LENGTH + header.index_length
    payload = zstandard.ZstdCompressor().compress(bytes(PAYLOAD_BYTES)) if is_frame else b"noise"
    fields = (
        *(header.producer_flags, Codec.ZSTD, 12, header.index_length, PAYLOAD_BYTES, 1, 1),
        *(0, 0, 0, 0, len(payload)),
    )
    return assemble(fields, [good[HEADER_LENGTH:end], payload, bytes(-len(payload) & 7)])


PLANS: dict[str, Callable[[int], Plan]] = {"poisoned": poisoned_plan}
KINDS = (Kind("poisoned", poisoned),)
