"""What happens in a simulated world: traffic, faults, healing, and the verdict.

Every scenario has two phases. In the first, faults fall into traffic. In the second everything is
healed, and the cluster has a bounded virtual time to become whole again: a world that does not is
a failure too. Then every replica is read and the history is judged.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

from icecore.errors import IcecoreError
from icecore.model import Acks
from tests.simulation import checkers, shells
from tests.simulation.cluster import COORDINATOR, World
from tests.simulation.history import Outcome
from tests.simulation.loop import SimulationError
from tests.simulation.observer import Observer
from tests.simulation.shells import Knobs
from tests.simulation.workload import TailReader, Traffic, create_topic

TOPIC = "events"
HEAL_S = 60.0
WORLD_S = 600.0


@dataclass
class Report:
    """The outcome of one seed. ``problems`` empty = fine."""

    seed: int
    scenario: str
    problems: list[str] = field(default_factory=list)
    categories: dict[str, int] = field(default_factory=dict)
    """Violations by category."""
    events: int = 0
    virtual_s: float = 0.0
    faults: int = 0
    acks_checked: int = 0
    lost_by_leader_acks: int = 0
    trace_hash: str = ""
    trace: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Plan:
    """What a scenario does with a world, drawn from the seed before it starts."""

    knobs: Knobs
    partitions: int = 2
    replication_factor: int = 3
    min_insync: int = 2
    nodes: int = 3
    producers: int = 1
    records: int = 300
    """At most, per producer; they send as long as there are faults."""
    acks: Acks = Acks.ALL
    shuffle: float = 0.0
    inject: Callable[[World, "Plan"], Awaitable[None]] | None = None
    all_acked: bool = False
    """The faults are so few that every record must be acknowledged in the end."""


def draw_knobs(rng: random.Random) -> Knobs:
    """Small sizes and short times, different for each seed."""
    return Knobs(
        segment_bytes=rng.choice([4, 8, 16, 64]) * 1024,
        group_items_max=rng.choice([1, 4, 16]),
        allocation_step_bytes=rng.choice([4, 16, 64]) * 1024,
        records_per_point=rng.choice([1, 3, 5]),
        bytes_per_point=rng.choice([512, 4096]),
        io_workers=rng.choice([1, 2, 3]),
        replica_lag_ms_max=rng.choice([300, 1000]),
        lease_ms=rng.choice([500, 1000, 2000]),
        heartbeat_ms=rng.choice([50, 100]),
        recovery_wait_ms=rng.choice([100, 500]),
        roll_up_wait_ms=rng.choice([300, 1500]),
        thread_delay_s=rng.choice([0.0002, 0.001, 0.01]),
        slow_node=rng.choice([0, 0, 1, 2, 3]),
        latency_s=rng.choice([0.001, 0.005, 0.02]),
        tail_cache_bytes=rng.choice([8, 64, 256]) * 1024,
        credit_bytes=rng.choice([16, 64, 256]) * 1024,
    )


# --- scenarios ------------------------------------------------------------------------------------


def smoke_plan(seed: int) -> Plan:
    """Three nodes, a leader killed in the middle of traffic and restarted later."""
    rng = random.Random(f"smoke plan {seed}")
    return Plan(
        knobs=draw_knobs(rng),
        acks=rng.choice([Acks.ALL, Acks.ALL, Acks.QUORUM]),
        shuffle=rng.choice([0.0, 0.2]),
        inject=kill_a_leader,
        all_acked=True,
    )


async def kill_a_leader(world: World, plan: Plan) -> None:
    """SIGKILL, power cut, or death in the middle of a write; back after a while. Sometimes its
    followers hear nothing of its last moments."""
    rng = world.rng
    await asyncio.sleep(rng.uniform(0.2, 1.0))
    name = leader_of(world, rng.randrange(plan.partitions)) or rng.choice(list(world.hosts))
    power_cut = rng.random() < 0.5
    others = [other for other in world.hosts if other != name]
    if rng.random() < 0.5:
        for other in others:
            world.network.cut(name, other)
        await asyncio.sleep(rng.uniform(0.02, 0.5))
    if rng.random() < 0.4:
        world.kill_in_mid_write(name, rng.randint(0, 12), power_cut=power_cut)
        await asyncio.sleep(rng.uniform(0.1, 0.5))
    world.kill(name, power_cut=power_cut)
    for other in others:
        world.network.heal(name, other)
    await asyncio.sleep(rng.uniform(0.05, 4.0))
    if not world.is_up(name):
        world.start(name)
    await asyncio.sleep(rng.uniform(0.5, 2.0))


def blackout_plan(seed: int) -> Plan:
    """The whole cluster loses power in mid-traffic, thrice, and comes back piece by piece."""
    rng = random.Random(f"blackout plan {seed}")
    # Slow disks and fast links: much is acknowledged or reported that could just not be durable.
    knobs = replace(
        draw_knobs(rng),
        thread_delay_s=rng.choice([0.004, 0.01]),
        slow_node=rng.randint(0, 3),
        latency_s=0.001,
    )
    return Plan(
        knobs=knobs,
        producers=2,
        acks=rng.choice([Acks.ALL, Acks.QUORUM]),
        inject=black_out,
    )


async def black_out(world: World, plan: Plan) -> None:
    """Power cuts everywhere at once, some of them in the middle of a write. One node comes back
    much later than the others, or much earlier."""
    rng = world.rng
    for _ in range(3):
        await asyncio.sleep(rng.uniform(0.2, 0.8))
        names = list(world.hosts)
        rng.shuffle(names)
        leader = leader_of(world, rng.randrange(plan.partitions))
        if leader and rng.random() < 0.5:
            names.sort(key=lambda name: name == leader)
        if rng.random() < 0.5:
            for name in world.hosts:
                world.kill_in_mid_write(name, rng.randint(0, 10), power_cut=True)
            await asyncio.sleep(rng.uniform(0.0, 0.05))
        for name in (COORDINATOR, *names):
            world.kill(name, power_cut=True)
        world.start(COORDINATOR)
        alone = rng.choice([0, 1])
        for position, name in enumerate(names):
            world.start(name)
            await asyncio.sleep(4.0 if position == alone else rng.uniform(0.01, 0.2))
        await asyncio.sleep(plan.knobs.lease_ms / 1000)


def swarm_plan(seed: int) -> Plan:
    """A random subset of all faults, again and again, in a random cluster."""
    rng = random.Random(f"swarm plan {seed}")
    replication_factor = rng.choice([1, 2, 3, 3, 3])
    return Plan(
        knobs=draw_knobs(rng),
        partitions=rng.choice([1, 2, 4]),
        replication_factor=replication_factor,
        min_insync=rng.randint(1, max(1, replication_factor - 1)),
        nodes=rng.choice([3, 4, 5]),
        producers=rng.choice([1, 2, 3]),
        records=rng.choice([150, 300]),
        acks=rng.choice([Acks.ALL, Acks.ALL, Acks.QUORUM, Acks.LEADER]),
        shuffle=rng.choice([0.0, 0.0, 0.2]),
        inject=swarm,
    )


async def swarm(world: World, plan: Plan) -> None:
    """Faults drawn from the subset of this seed, some at the same time, all healed at the end."""
    rng = world.rng
    actions = rng.sample(FAULTS, rng.randint(1, 5))
    world.network.faults.slow = rng.choice([0.0, 0.0, 0.02])
    if rng.random() < 0.3:
        world.network.faults.request_loss = 0.005
        world.network.faults.reply_loss = 0.005
    for _ in range(rng.randint(2, 8)):
        await asyncio.sleep(rng.expovariate(1.0))
        await rng.choice(actions)(world, plan)


def leader_of(world: World, partition: int) -> str:
    """The process that leads a partition as far as nodes know; empty when none does."""
    for name in world.hosts:
        node = world.shells.get(name)
        if node is None or not world.is_up(name):
            continue
        for leader in node.context.replicas.leaders():
            if leader.segment.partition == partition:
                return name
    return ""


def _victim(world: World, plan: Plan) -> str:
    """Often a leader, sometimes anyone."""
    if world.rng.random() < 0.5:
        name = leader_of(world, world.rng.randrange(plan.partitions))
        if name:
            return name
    return world.rng.choice(list(world.hosts))


async def fault_kill(world: World, plan: Plan) -> None:
    """One node, by signal or by power cut, back a little later."""
    name = _victim(world, plan)
    world.kill(name, power_cut=world.rng.random() < 0.5)
    await asyncio.sleep(world.rng.expovariate(1.0))
    if not world.is_up(name):
        world.start(name)


async def fault_kill_in_mid_write(world: World, plan: Plan) -> None:
    """One node between two disk operations."""
    name = _victim(world, plan)
    power_cut = world.rng.random() < 0.5
    world.kill_in_mid_write(name, world.rng.randint(0, 20), power_cut=power_cut)
    await asyncio.sleep(world.rng.uniform(0.2, 2.0))
    if not world.is_up(name):
        world.start(name)


async def fault_power_cut_everywhere(world: World, plan: Plan) -> None:
    """The whole cluster at once, coordinator included."""
    for name in (*world.hosts, COORDINATOR):
        world.kill(name, power_cut=True)
    await asyncio.sleep(world.rng.uniform(0.1, 1.0))
    names = [*world.hosts, COORDINATOR]
    world.rng.shuffle(names)
    for name in names:
        world.start(name)
        await asyncio.sleep(world.rng.uniform(0.0, 0.3))


async def fault_pause(world: World, plan: Plan) -> None:
    """SIGSTOP, maybe for longer than the lease."""
    name = _victim(world, plan)
    world.pause(name)
    await asyncio.sleep(world.rng.uniform(0.05, 4.0))
    world.resume(name)


async def fault_coordinator(world: World, plan: Plan) -> None:
    """Kill or pause the coordinator."""
    if world.rng.random() < 0.5:
        world.pause(COORDINATOR)
        await asyncio.sleep(world.rng.uniform(0.1, 3.0))
        world.resume(COORDINATOR)
        return
    world.kill(COORDINATOR)
    await asyncio.sleep(world.rng.uniform(0.05, 3.0))
    if not world.is_up(COORDINATOR):
        world.start(COORDINATOR)


async def fault_cut(world: World, plan: Plan) -> None:
    """One direction, or both, between two hosts, or around one host."""
    rng = world.rng
    world.faults += 1
    victim = _victim(world, plan)
    everybody = [*world.hosts, COORDINATOR]
    others = [name for name in everybody if name != victim]
    peers = others if rng.random() < 0.4 else rng.sample(others, rng.randint(1, 2))
    directions = rng.choice(["out", "in", "both"])
    for peer in peers:
        if directions in ("out", "both"):
            world.network.cut(victim, peer)
        if directions in ("in", "both"):
            world.network.cut(peer, victim)
    await asyncio.sleep(rng.uniform(0.1, 5.0))
    for peer in peers:
        world.network.heal(victim, peer)
        world.network.heal(peer, victim)


async def fault_clog(world: World, plan: Plan) -> None:
    """Links that deliver nothing for a while."""
    rng = world.rng
    world.faults += 1
    everybody = [*world.hosts, COORDINATOR]
    for _ in range(rng.randint(1, 6)):
        source, target = rng.sample(everybody, 2)
        world.network.clog(source, target, rng.uniform(0.05, 1.5))


async def fault_fsync(world: World, plan: Plan) -> None:
    """The next fsync of one node fails: it must stop at once and trust none of its copies. Once
    per world, and only where ``min_insync`` keeps another copy of everything."""
    if plan.min_insync < 2 or world.damaged_disks:
        return
    name = _victim(world, plan)
    world.faults += 1
    world.damaged_disks += 1
    world.loop.trace(f"fsync will fail on {name}")
    world.hosts[name].disk.faults.failing_syncs = 1
    await asyncio.sleep(world.rng.uniform(0.2, 1.0))
    world.hosts[name].disk.faults.failing_syncs = 0


Fault = Callable[[World, Plan], Awaitable[None]]
FAULTS: list[Fault] = [
    *(fault_kill, fault_kill_in_mid_write, fault_power_cut_everywhere, fault_pause),
    *(fault_coordinator, fault_cut, fault_clog, fault_fsync),
]
SCENARIOS: dict[str, Callable[[int], Plan]] = {
    "smoke": smoke_plan,
    "blackout": blackout_plan,
    "swarm": swarm_plan,
}


# --- running one ----------------------------------------------------------------------------------


def run_seed(scenario: str, seed: int, *, keep_trace: bool = False) -> Report:
    """One world from its seed to its verdict; never raises for what the world does."""
    plan = SCENARIOS[scenario](seed)
    world = World(seed, plan.knobs, nodes=plan.nodes, shuffle=plan.shuffle)
    report = Report(seed, scenario)
    if keep_trace:
        world.loop.trace_log = report.trace
    try:
        world.run(lambda world: _run(world, plan, report))
    except (SimulationError, TimeoutError, IcecoreError) as error:
        report.problems.append(f"stuck: {error!r}")
    _judge(world, plan, report)
    return report


async def _run(world: World, plan: Plan, report: Report) -> None:
    async with asyncio.timeout(WORLD_S):
        world.start_all()
        await create_topic(world, TOPIC, plan)
        watching = asyncio.create_task(world.watch())
        traffic = Traffic(world, TOPIC, plan)
        reader = TailReader(world, TOPIC, plan)
        traffic.start()
        reader.start()
        if plan.inject is not None:
            await plan.inject(world, plan)
        world.heal()
        await asyncio.sleep(0.5)
        await traffic.finish(HEAL_S)
        # A coordinator that was just restarted believes for a lease what it last knew.
        await asyncio.sleep(plan.knobs.lease_ms / 1000 + 1)
        await traffic.probe(HEAL_S)
        observer = Observer(world.client("observer")[1], shells.coordinator_address(COORDINATOR))
        missing = await _settle(world, observer)
        if missing:
            report.problems.append(f"not whole {HEAL_S} s after the last fault: {missing}")
        report.problems += await observer.read_everything(TOPIC, world.history)
        await reader.finish()
        watching.cancel()


async def _settle(world: World, observer: Observer) -> str:
    """Wait until nothing is missing; what is, when time is up."""
    deadline_s = world.loop.time() + HEAL_S
    missing = "never asked"
    while world.loop.time() < deadline_s:
        try:
            missing = await observer.settled(TOPIC, len(world.hosts))
        except IcecoreError as error:
            missing = repr(error)
        if not missing:
            return ""
        await asyncio.sleep(0.25)
    return missing


def _judge(world: World, plan: Plan, report: Report) -> None:
    """Fill the report from the history."""
    history = world.history
    report.problems += world.loop.failures
    if plan.all_acked:
        for produce in history.produces:
            if produce.outcome is not Outcome.OK:
                report.problems.append(f"never acknowledged: {produce}"[:300])
    if history.final:
        for violation in checkers.check(history):
            report.problems.append(str(violation))
            counts = report.categories
            counts[violation.category] = counts.get(violation.category, 0) + 1
        report.acks_checked = checkers.acks_checked(history)
        report.lost_by_leader_acks = checkers.lost_by_leader_acks(history)
    report.events = world.loop.events
    report.virtual_s = world.loop.time()
    report.faults = world.faults
    report.trace_hash = world.loop.trace_hash()
