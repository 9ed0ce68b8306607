"""The person behind a world: says what only a person may say, as somebody would who knows why."""

import asyncio
import contextlib
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from icecore.client.admin.admin import Admin
from icecore.errors import ConflictError, IcecoreError
from icecore_node.remote.verify.bucket import read_bucket
from icecore_node.remote.verify.restore_plan import plan_of, without_remains
from tests.simulation.object_store import SimObjectStore
from tests.simulation.process import SimProcess
from tests.simulation.topic_table import SimTopicTable

if TYPE_CHECKING:
    from tests.simulation.cluster import World

ASK_S = 0.5
"""Between two times that a command is given."""


def accept_disk(world: "World", node_id: int) -> None:
    """The node's disk was really replaced: let it come (R67). When that fails, it asks again."""
    process, net, clock, rng = world.client(f"operator {node_id} {world.loop.time():.6f}")

    async def accept() -> None:
        admin = Admin(world.coordinator_address, net=net, clock=clock, rng=rng)
        try:
            await admin.accept_disk(node_id)
        except IcecoreError:
            pass
        finally:
            await admin.close()

    process.spawn(accept())


def adopt(world: "World", adopted: asyncio.Event) -> None:
    """The newest store is lost: let these metadata go on, as soon as all nodes have told (R109)."""
    process, net, clock, rng = world.client(f"operator adopts {world.loop.time():.6f}")

    async def ask() -> None:
        admin = Admin(world.coordinator_address, net=net, clock=clock, rng=rng)
        try:
            while not adopted.is_set():
                with contextlib.suppress(IcecoreError):
                    topics = await _inventory(world, process) if world.has_store else None
                    await admin.adopt_metadata(bucket=topics)
                await asyncio.sleep(ASK_S)
        finally:
            await admin.close()

    process.spawn(ask())


async def _inventory(world: "World", process: SimProcess) -> list[dict[str, Any]]:
    """Return what the bucket has, read by the functions of the command. Raises IcecoreError, also
    where a topic is not whole: a listing may be late, so the command is given again."""
    bucket = await read_bucket(SimObjectStore(world.bucket, process), (), counts_all=True)
    found = []
    for topic in bucket.topics.values():
        cluster_id = bytes.fromhex(bucket.cluster_id)
        table = SimTopicTable(world.bucket, process, cluster_id, topic.topic_id).look()
        part = without_remains(plan_of(bucket, topic, table, skip_gaps=False, is_part=True))
        if part.problems:
            raise ConflictError("; ".join(part.problems))
        found.append(asdict(part))
    return found
