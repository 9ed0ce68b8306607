"""The person behind a world: says what only a person may say, as somebody would who knows why."""

import asyncio
import contextlib
from typing import TYPE_CHECKING

from icecore.client.admin.admin import Admin
from icecore.errors import IcecoreError

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
                    await admin.adopt_metadata()
                await asyncio.sleep(ASK_S)
        finally:
            await admin.close()

    process.spawn(ask())
