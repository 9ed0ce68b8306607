"""Staged worlds of clients that begin at nodes (ADR 0011), while the coordinator is away, or the
node that is asked first has been cut off for long.

Everything else that begins in these worlds does so at nodes, too: producers, readers, the probe.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace

from icecore.client.admin.admin import Admin
from icecore.client.consume.consumer import Consumer
from icecore.client.produce.producer import Producer
from icecore.errors import IcecoreError
from icecore.model import Acks
from tests.simulation.cluster import COORDINATOR, World
from tests.simulation.directed import cut, plan, roles
from tests.simulation.faults import Fault, Kind, Scene
from tests.simulation.history import History, Outcome
from tests.simulation.observer import Observer
from tests.simulation.plan import TOPIC, Plan
from tests.simulation.readers import make_consumer
from tests.simulation.shells import NODE_PORT, coordinator_address

LIMIT_S = 15.0
"""Within so long who begins now must have done what it came for."""
ROUNDS = 3
OLD_S = 5.0
"""Longer than what a client takes for news."""
HEARD_S = 0.5
"""Nodes hear of topics a heartbeat later."""
COUNT = 20


def _plan(kind: str) -> Plan:
    calm = plan(kind, acks=(Acks.ALL,), begins_at_nodes=True)
    return replace(calm, partitions=2, knobs=replace(calm.knobs, segment_bytes=32 << 10))


# --- the coordinator is away ----------------------------------------------------------------------


def coordinator_away_plan(seed: int) -> Plan:
    """Segments are full now and then, before it goes."""
    return _plan("coordinator_away")


async def coordinator_away(scene: Scene, fault: Fault) -> None:
    """Producers and readers end and new ones begin, at nodes that hear less and less."""
    world = scene.world
    await roles(world)
    world.kill(COORDINATOR, kind="coordinator_killed")
    for number in range(ROUNDS):
        await asyncio.sleep(world.rng.uniform(0.2, 3.0))
        scene.traffic.replace_producer(world.rng)
        before = len(world.history.produces)
        await _must(world, _is_acked(world, before), "a producer that began at a node")
        reading = _reads_as_much(world, f"newcomer {number}")
        await _must(world, reading, "a consumer that began at a node")
    world.start(COORDINATOR)
    await asyncio.sleep(2.0)


async def _must(world: World, done: "asyncio.Future[None]", who: str) -> None:
    try:
        async with asyncio.timeout(LIMIT_S):
            await done
    except (TimeoutError, IcecoreError) as error:
        world.loop.failures.append(f"{who} came to nothing: {error!r}")


def _is_acked(world: World, since: int) -> "asyncio.Future[None]":
    """A record that was sent from now on is acknowledged, by a producer that has begun since."""
    known = {each.producer for each in world.history.produces[:since]}

    async def wait() -> None:
        while not any(  # noqa: ASYNC110
            each.outcome is Outcome.OK and each.producer not in known
            for each in world.history.produces[since:]
        ):
            await asyncio.sleep(0.02)

    return asyncio.ensure_future(wait())


def _reads_as_much(world: World, name: str) -> "asyncio.Future[None]":
    """A new consumer reads what has been acknowledged by now."""
    wanted = {
        (each.partition[1], each.offset)
        for each in world.history.produces
        if each.outcome is Outcome.OK
    }
    process, consumer = make_consumer(world, name, TOPIC, random.Random(f"{name} {world.seed}"))

    async def read() -> None:
        await consumer.start()
        async for each in consumer:
            wanted.discard((each.partition, each.offset))
            if not wanted:
                break
        await consumer.close()

    return process.spawn(read())


# --- the node was cut off -------------------------------------------------------------------------


def cut_off_bootstrap_plan(seed: int) -> Plan:
    """Nothing special."""
    return _plan("cut_off_bootstrap")


class RemadeTopic:
    """A topic made again. In the end it has its own records, twice by now, and nothing else."""

    name = "remade"

    async def finish(self, observer: Observer) -> list[str]:
        """Everything is healed by now."""
        history = History(produces=[])
        problems = await observer.read_everything(self.name, history)
        found = sorted(value for log in history.final.values() for _, value in log)
        wanted = sorted(2 * [b"new %d" % number for number in range(COUNT)])
        return problems if found == wanted else [*problems, f"{self.name} has {found}"]


async def cut_off_bootstrap(scene: Scene, fault: Fault) -> None:
    """A topic is deleted and made again while one node hears nothing. Then the coordinator goes,
    and clients begin at that node: they write to the topic that is there, and read nothing else."""
    world = scene.world
    world.fleeting.append(RemadeTopic())
    _, followers = await roles(world)
    lonely = followers[0]
    others = [name for name in (*world.hosts, COORDINATOR) if name != lonely]
    await _as_admin(world, "first life", _make)
    await _write(world, "of before", others[0], b"old")
    cut(world, lonely, others)
    world.count_fault("cut")
    await asyncio.sleep(OLD_S)
    await _as_admin(world, "second life", _remake)
    await asyncio.sleep(HEARD_S)
    await _write(world, "of now", others[0], b"new")
    world.kill(COORDINATOR, kind="coordinator_killed")
    await _write(world, "at the lonely one", lonely, b"new")
    values = await _read(world, lonely)
    if values != {b"new %d" % number for number in range(COUNT)}:
        world.loop.failures.append(f"who began at {lonely} read {sorted(values)}")
    world.network.heal_all()
    world.start(COORDINATOR)
    await asyncio.sleep(2.0)


async def _as_admin(world: World, name: str, work: Callable[[Admin], Awaitable[None]]) -> None:
    process, net, clock, rng = world.client(name)

    async def ask() -> None:
        address = coordinator_address(COORDINATOR)
        async with Admin(address, timeout_s=LIMIT_S, net=net, clock=clock, rng=rng) as admin:
            await work(admin)

    await _must(world, process.spawn(ask()), name)


async def _make(admin: Admin) -> None:
    await admin.create_topic("remade", partitions=1, replication_factor=2, min_insync_replicas=1)


async def _remake(admin: Admin) -> None:
    await admin.delete_topic("remade")
    await _make(admin)


async def _write(world: World, name: str, host: str, word: bytes) -> None:
    process, net, clock, rng = world.client(name)
    producer = Producer(f"{host}:{NODE_PORT}", linger_ms=0, net=net, clock=clock, rng=rng)

    async def write() -> None:
        await producer.start()
        for number in range(COUNT):
            await producer.send_and_wait("remade", word + b" %d" % number)
        await producer.close()

    await _must(world, process.spawn(write()), f"a producer at {host}")


async def _read(world: World, host: str) -> set[bytes]:
    process, net, clock, rng = world.client("reader of the remade")
    consumer = Consumer(
        f"{host}:{NODE_PORT}",
        "remade",
        start="earliest",
        stop_at_end=True,
        net=net,
        clock=clock,
        rng=rng,
    )
    values: set[bytes] = set()

    async def read() -> None:
        await consumer.start()
        async for each in consumer:
            values.add(each.value or b"")
        await consumer.close()

    await _must(world, process.spawn(read()), f"a consumer at {host}")
    return values


PLANS: dict[str, Callable[[int], Plan]] = {
    "coordinator_away": coordinator_away_plan,
    "cut_off_bootstrap": cut_off_bootstrap_plan,
}
KINDS = (
    Kind("coordinator_away", coordinator_away),
    Kind("cut_off_bootstrap", cut_off_bootstrap),
)
