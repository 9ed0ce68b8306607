"""The person behind a world: says what only a person may say, as somebody would who knows why."""

from typing import TYPE_CHECKING

from icecore.client.admin.admin import Admin
from icecore.errors import IcecoreError
from tests.simulation.shells import coordinator_address

if TYPE_CHECKING:
    from tests.simulation.cluster import World


def accept_disk(world: "World", node_id: int, coordinator: str) -> None:
    """The node's disk was really replaced: let it come (R67). When that fails, it asks again."""
    process, net, clock, rng = world.client(f"operator {node_id} {world.loop.time():.6f}")

    async def accept() -> None:
        admin = Admin(coordinator_address(coordinator), net=net, clock=clock, rng=rng)
        try:
            await admin.accept_disk(node_id)
        except IcecoreError:
            pass
        finally:
            await admin.close()

    process.spawn(accept())
