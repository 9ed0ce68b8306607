"""Topics that come and go under traffic, or lose their oldest records."""

import asyncio

from tests.simulation.expiring import ExpiringTopic
from tests.simulation.faults import Fault, Kind, Scene
from tests.simulation.fleeting import FleetingTopic
from tests.simulation.plan import Plan


def loses_nothing(plan: Plan) -> bool:
    """Return whether all data stays available, so that everything of every topic must be there."""
    return plan.is_damage_bounded


async def topic_made_again(scene: Scene, fault: Fault) -> None:
    """A topic is made, written and read, deleted, and made again under the same name."""
    world, rng = scene.world, scene.rng(fault)
    if world.fleeting:
        return
    topic = FleetingTopic(world, scene.plan, f"fleeting-{fault.number}")
    world.fleeting.append(topic)
    world.count_fault(fault.kind)
    # Longer than the fault, if the cluster is in no state to obey: it is healed meanwhile.
    world.keep(asyncio.create_task(topic.live(rng.randint(1, 2), fault.lasts_s)))
    await asyncio.sleep(fault.lasts_s)


async def topic_expires(scene: Scene, fault: Fault) -> None:
    """A topic is made that keeps little of what is written to it, until the world's end."""
    world = scene.world
    if world.fleeting:
        return
    topic = ExpiringTopic(world, scene.plan, f"expiring-{fault.number}")
    world.fleeting.append(topic)
    world.count_fault(fault.kind)
    world.keep(asyncio.create_task(topic.live()))
    await asyncio.sleep(fault.lasts_s)


KINDS = (
    Kind("topic_made_again", topic_made_again, (0.5, 3.0), loses_nothing, weight=3),
    Kind("topic_expires", topic_expires, (0.5, 3.0), loses_nothing, weight=3),
)
