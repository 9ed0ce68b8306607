"""The course of a simulated world: traffic, faults, healing, and the verdict.

Every scenario has two phases. In the first, faults fall into traffic. In the second everything is
healed, and the cluster has a bounded virtual time to become whole again: a world that does not is
a failure too. Then every replica is read and the history is judged.
"""

import asyncio
import random
import re
import traceback
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

from icecore.errors import IcecoreError
from icecore.model import Acks, Segment, SegmentState
from icecore.topic_settings import MEMORY_ENGINE, SEGMENT_ENGINE, SHARED_FILE
from tests.simulation import (
    checkers,
    directed,
    directed_belief,
    directed_bootstrap,
    directed_clocks,
    directed_deletion,
    directed_disks,
    directed_engines,
    directed_forgotten,
    directed_jobs,
    directed_late,
    directed_lookups,
    directed_metadata,
    directed_overlap,
    directed_poison,
    directed_registry,
    directed_repeats,
    directed_restore,
    directed_retention,
    directed_shortage,
    directed_sink,
    directed_standby,
    directed_starts,
    directed_storage,
    directed_surplus,
    directed_tiering,
    invariants,
    marks,
    opening,
    schedule,
)
from tests.simulation.askers import make_asker
from tests.simulation.cluster import World
from tests.simulation.copies import false_copies, split_logs, surplus_copies
from tests.simulation.election import run_election
from tests.simulation.faults import Fault, Scene
from tests.simulation.faults_standby import draw_standbys
from tests.simulation.faults_store import draw_tier
from tests.simulation.history import Outcome
from tests.simulation.loop import SimulationError
from tests.simulation.losses import Losses
from tests.simulation.lost_cluster import lose_cluster
from tests.simulation.observer import Observer
from tests.simulation.plan import (
    TOPIC,
    Plan,
    data_dirs_of,
    draw_flush,
    draw_knobs,
    engine_of,
    file_model_of,
)
from tests.simulation.readers import read_whole
from tests.simulation.sink_queries import small_tasks
from tests.simulation.stored_logs import index_problems
from tests.simulation.workload import TailReader, Traffic, create_topic, small_requests

HEAL_S = 60.0
GIVEN_UP = "(on_total_loss)"
TOTAL_LOSS = re.compile(r'segment_id=(\d+) why="every copy is UNKNOWN')
"""In the alert about a segment without a whole copy; whether that is so is judged in ``losses``."""
WORLD_S = 900.0
LOOKUP_SWARM = "lookup_swarm"
STANDBY_SWARM = "standby_swarm"
ELECTION = "election"


@dataclass
class Report:
    """The outcome of one seed. ``problems`` empty = fine."""

    seed: int
    scenario: str
    problems: list[str] = field(default_factory=list)
    categories: Counter[str] = field(default_factory=Counter)
    """Violations by category."""
    events: int = 0
    virtual_s: float = 0.0
    schedule: tuple[Fault, ...] = ()
    """The faults that were planned."""
    faults: Counter[str] = field(default_factory=Counter)
    """Those that happened, by kind."""
    acks_checked: int = 0
    answers_checked: int = 0
    lookups_checked: int = 0
    """Those of them that were look-ups."""
    lost_by_leader_acks: int = 0
    unavailable: int = 0
    """Segments that nobody can read, and of which the coordinator says so."""
    waiting: set[int] = field(default_factory=set)
    """Their ids."""
    surplus: int = 0
    """Copies of sealed segments beyond the replication factor, when all is well."""
    marks: set[str] = field(default_factory=set)
    trace_hash: str = ""
    trace: list[str] = field(default_factory=list)


# --- scenarios ------------------------------------------------------------------------------------


def smoke_plan(seed: int) -> Plan:
    """Three nodes, a leader killed in the middle of traffic and restarted later."""
    rng = random.Random(f"smoke plan {seed}")
    return Plan(
        knobs=draw_knobs(rng),
        acks=(rng.choice([Acks.ALL, Acks.ALL, Acks.QUORUM]),),
        shuffle=rng.choice([0.0, 0.2]),
        faults=schedule.single("death_of_a_leader"),
        all_acked=True,
    )


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
        acks=(rng.choice([Acks.ALL, Acks.QUORUM]),),
        faults=schedule.single("three_blackouts"),
    )


def shared_smoke_plan(seed: int) -> Plan:
    """As smoke, with active segments in shared files."""
    return replace(smoke_plan(seed), file_model=SHARED_FILE)


def shared_blackout_plan(seed: int) -> Plan:
    """As blackout, with active segments in shared files."""
    return replace(blackout_plan(seed), file_model=SHARED_FILE)


def shared_swarm_plan(seed: int) -> Plan:
    """As a swarm, with active segments in shared files, whatever the seed has drawn of that."""
    plan = swarm_plan(seed)
    return replace(plan, engine=SEGMENT_ENGINE, file_model=SHARED_FILE, flush=None)


def shared_lagging_third_plan(seed: int) -> Plan:
    """As ``lagging_third``, with active segments in shared files."""
    return replace(directed.lagging_third_plan(seed), file_model=SHARED_FILE)


def swarm_plan(seed: int) -> Plan:
    """A random subset of all faults, again and again, in a random cluster."""
    rng = random.Random(f"swarm plan {seed}")
    replication_factor = rng.choice([1, 2, 3, 3, 3, 3, 3])
    plan = Plan(
        knobs=replace(
            draw_knobs(rng),
            segment_bytes=rng.choice([16, 32, 64, 128]) * 1024,
            thread_delay_s=rng.choice([0.0002, 0.001, 0.004]),
            lease_ms=rng.choice([1000, 2000]),
            heartbeat_ms=rng.choice([100, 200]),
        ),
        partitions=rng.choice([1, 2, 4]),
        replication_factor=replication_factor,
        min_insync_replicas=rng.choice([1, 2, 2]) if replication_factor == 3 else 1,
        nodes=rng.choice([3, 3, 4, 5]),
        producers=rng.choice([2, 3]),
        bursts=2_000,
        burst_max=20,
        pauses_s=(0.08, 0.15, 0.3),
        padding_bytes=(0, 10, 50, 200),
        batch_bytes=(300, 2_000, 8_000),
        acks=rng.choice(
            [(Acks.ALL,), (Acks.QUORUM,), (Acks.ALL, Acks.QUORUM), (Acks.ALL, Acks.LEADER)]
        ),
        shuffle=rng.choice([0.0, 0.0, 0.2]),
        is_damage_bounded=rng.random() < 0.92,
        file_model=file_model_of(seed),
        data_dirs=data_dirs_of(seed),
    )
    engine = engine_of(seed)
    # Each process that ends takes its copies with it, and a swarm ends several at once.
    is_bounded = plan.is_damage_bounded and engine != MEMORY_ENGINE
    plan = replace(plan, engine=engine, is_damage_bounded=is_bounded)
    plan = draw_flush(seed, replace(plan, faults=schedule.draw(rng, plan)))
    return draw_tier(seed, plan)


def at_nodes_swarm_plan(seed: int) -> Plan:
    """As a swarm, with clients that begin at nodes."""
    return replace(swarm_plan(seed), begins_at_nodes=True)


def lookup_swarm_plan(seed: int) -> Plan:
    """As a swarm, with a program that looks records up."""
    return replace(swarm_plan(seed), looks_up=True)


def standby_swarm_plan(seed: int) -> Plan:
    """As a swarm, with coordinators that stand by for each other, and what goes wrong with them."""
    return draw_standbys(seed, swarm_plan(seed))


STAGED: dict[str, Callable[[int], Plan]] = {
    **directed_disks.PLANS,
    **directed_storage.PLANS,
    **directed_engines.PLANS,
    **directed_deletion.PLANS,
    **directed_late.PLANS,
    **directed_poison.PLANS,
    **directed_repeats.PLANS,
    **directed_overlap.PLANS,
    **directed_registry.PLANS,
    **directed_retention.PLANS,
    **directed_tiering.PLANS,
    **directed_restore.PLANS,
    **directed.PLANS,
    **directed_belief.PLANS,
    **directed_bootstrap.PLANS,
    **directed_forgotten.PLANS,
    **directed_shortage.PLANS,
    **directed_starts.PLANS,
    **directed_surplus.PLANS,
    **directed_lookups.PLANS,
    **directed_metadata.PLANS,
    **directed_clocks.PLANS,
    **directed_sink.PLANS,
    **directed_jobs.PLANS,
    **directed_standby.PLANS,
}
SCENARIOS: dict[str, Callable[[int], Plan]] = {
    "smoke": smoke_plan,
    "blackout": blackout_plan,
    "swarm": swarm_plan,
    "shared_smoke": shared_smoke_plan,
    "shared_blackout": shared_blackout_plan,
    "shared_swarm": shared_swarm_plan,
    "shared_lagging_third": shared_lagging_third_plan,
    "at_nodes_swarm": at_nodes_swarm_plan,
    LOOKUP_SWARM: lookup_swarm_plan,
    STANDBY_SWARM: standby_swarm_plan,
    **STAGED,
}


# --- running one ----------------------------------------------------------------------------------


def run_seed(
    scenario: str, seed: int, *, keep_trace: bool = False, only: Collection[int] | None = None
) -> Report:
    """One world from its seed to its verdict; never raises for what the world does.

    Args:
        scenario: Of ``SCENARIOS``, or ``election``, a world without nodes.
        seed: Decides everything.
        keep_trace: Keep every event as text.
        only: Numbers of the faults that happen; None = all.
    """
    if scenario == ELECTION:
        return Report(seed, scenario, problems=run_election(seed))
    plan = SCENARIOS[scenario](seed)
    if only is not None:
        plan = replace(plan, faults=tuple(each for each in plan.faults if each.number in only))
    lost = lose_cluster(seed, plan) if plan.is_restored else None
    world = World(
        seed,
        plan.knobs,
        nodes=plan.nodes,
        has_store=plan.has_store,
        lost=lost,
        shuffle=plan.shuffle,
        data_dirs=plan.data_dirs,
        begins_at_nodes=plan.begins_at_nodes,
        standbys=plan.standbys,
    )
    report = Report(seed, scenario, schedule=plan.faults)
    if keep_trace:
        world.loop.trace_log = report.trace
    waits_for_all = Acks.QUORUM not in plan.acks
    watching = invariants.watch(world, waits_for_all=waits_for_all)
    with small_requests(), small_tasks(), marks.watch() as hit, watching as seen:
        try:
            world.run(lambda world: _run(world, plan, report, seen.losses))
        except (SimulationError, TimeoutError, IcecoreError) as error:
            report.problems.append(f"stuck in {_where(error)}: {error!r}")
    report.marks = hit
    report.problems += seen.broken
    _judge(world, plan, report)
    return report


def _where(error: BaseException) -> str:
    """The function of the simulator in which it ended."""
    frames = traceback.extract_tb(error.__traceback__)
    return [frame.name for frame in frames if "simulation" in frame.filename][-1]


async def _run(world: World, plan: Plan, report: Report, losses: Losses) -> None:
    async with asyncio.timeout(WORLD_S):
        world.start_all()
        await create_topic(world, TOPIC, plan)
        watching = asyncio.create_task(world.watch())
        traffic = Traffic(world, TOPIC, plan)
        reader = TailReader(world, TOPIC, plan)
        asker = make_asker(world, plan)
        traffic.start()
        reader.start()
        asker.start()
        await schedule.inject(Scene(world, plan, traffic), plan.faults)
        world.heal()
        await asyncio.sleep(0.5)
        await traffic.finish(HEAL_S)
        asker.stop()
        await world.kept()
        # A coordinator that was just restarted believes for a lease what it last knew.
        await asyncio.sleep(plan.knobs.lease_ms / 1000 + 1)
        observer = Observer(world.client("observer")[1], world.coordinator_address)
        missing = await traffic.probe(HEAL_S)
        missing = missing or await _settle(world, observer)
        unread = await observer.read_everything(TOPIC, world.history)
        if unread and not missing:  # damage that nobody had read before: it is repaired now
            missing = await _settle(world, observer)
            unread = await observer.read_everything(TOPIC, world.history)
        report.problems += opening.wrong_starts(world)
        if missing or unread:
            await _explain(world, plan, observer, report, missing, losses)
        else:
            if not world.history.given_up:  # else what it has read and what there is may differ
                await reader.finish()
            await read_whole(world, TOPIC)
            for topic in world.fleeting:
                report.problems += await topic.finish(observer)
            report.problems += _look_at_a_disk(world)
            report.problems += split_logs(world)
            report.surplus = surplus_copies(world)
        watching.cancel()


def _look_at_a_disk(world: World) -> list[str]:
    """Check the disk of one sound host, another one in each world: all of them would take long."""
    sound = [name for name in world.hosts if not world.is_suspect(name)]
    if not sound:
        return []
    name = sound[world.seed % len(sound)]
    return [*index_problems(world.hosts[name]), *false_copies(world, name)]


async def _settle(world: World, observer: Observer, excused: Collection[int] = ()) -> str:
    """Wait until nothing is missing; what is, when time is up."""
    deadline_s = world.loop.time() + HEAL_S
    missing = "never asked"
    while world.loop.time() < deadline_s:
        try:
            missing = await observer.settled(TOPIC, len(world.hosts), excused)
        except IcecoreError as error:
            missing = repr(error)
        if not missing:
            return ""
        await asyncio.sleep(0.25)
    return missing


async def _explain(
    world: World, plan: Plan, observer: Observer, report: Report, missing: str, losses: Losses
) -> None:
    """Not everything is well. That is allowed only where damage was not bounded, or of a topic that
    syncs late, and only of what the coordinator itself calls undecided or damaged for good."""
    if not missing:
        missing = await _settle(world, observer)
    found = [] if plan.is_damage_bounded else await _unavailable(world, observer)
    if plan.is_damage_bounded and plan.flush is not None:
        undecided = await _unavailable(world, observer)
        found = [each for each in undecided if losses.may_be_undecided(each)]
    for segment in found:
        is_sealed = segment.state is SegmentState.SEALED
        span = (segment.base_offset, segment.end_offset if is_sealed else float("inf"))
        partition = (TOPIC, segment.partition)
        world.history.unavailable.setdefault(partition, []).append(span)
    if found:
        missing = await _settle(world, observer, {each.segment_id for each in found})
    report.unavailable = len(found)
    report.waiting = {each.segment_id for each in found}
    report.problems += directed_engines.needless_losses(world, plan, found)
    if missing:
        report.problems.append(f"not whole {HEAL_S} s after the last fault: {missing}")
    report.problems += await observer.read_everything(TOPIC, world.history)


async def _unavailable(world: World, observer: Observer) -> list[Segment]:
    return await observer.unavailable(TOPIC, world.log.undecided)


def _is_due(alert: str, report: Report) -> bool:
    """Return whether a person had to be called: a loss that the topic allows, or a segment that
    waits where the world's faults explain that."""
    waits = TOTAL_LOSS.search(alert)
    return GIVEN_UP in alert or (waits is not None and int(waits[1]) in report.waiting)


def _judge(world: World, plan: Plan, report: Report) -> None:
    """Fill the report from the history."""
    history = world.history
    report.problems += world.loop.failures
    if plan.is_damage_bounded and not plan.may_page:
        report.problems += [each for each in world.log.alerts if not _is_due(each, report)]
    if plan.all_acked:
        for produce in history.produces:
            if produce.outcome is not Outcome.OK:
                report.problems.append(f"never acknowledged: {produce}"[:300])
    if history.final:
        for violation in checkers.check(history):
            report.problems.append(str(violation))
            report.categories[violation.category] += 1
        report.acks_checked = checkers.acks_checked(history)
        report.answers_checked = checkers.answers_checked(history)
        report.lookups_checked = checkers.lookups_checked(history) + world.lookups_elsewhere
        report.lost_by_leader_acks = checkers.lost_by_leader_acks(history)
    report.events = world.loop.events
    report.virtual_s = world.loop.time()
    report.faults = world.faults
    report.trace_hash = world.loop.trace_hash()
