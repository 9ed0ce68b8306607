"""The clients that query a cluster beside its traffic: one in each world, for each costs a tenth of
it."""

from typing import TYPE_CHECKING, Protocol

from tests.simulation.lookup_client import LookupClient
from tests.simulation.plan import TOPIC, Plan
from tests.simulation.readers import Wanderer
from tests.simulation.searcher import Searcher

if TYPE_CHECKING:
    from tests.simulation.cluster import World


class Asker(Protocol):
    """Lives on while faults fall."""

    def start(self) -> None:
        """Begin."""
        ...

    def stop(self) -> None:
        """Ask no more."""
        ...


def make_asker(world: "World", plan: Plan) -> Asker:
    """The one of this world, which has not begun."""
    if plan.looks_up:
        return LookupClient(world, TOPIC, plan.partitions, world.history)
    if world.seed % 2:
        return Wanderer(world, TOPIC)
    return Searcher(world, TOPIC, plan.partitions)
