"""Worlds and mutants that the rotation takes.

A run takes new seeds of the common scenarios, and a part of the lists that stay: regressions,
staged look-ups, mutants. One world of five runs twice and must take the same course; in each
rotation other ones do.
"""

from tests.simulation import directed_jobs, directed_lookups, directed_sink, directed_standby
from tests.simulation.mutants import MUTANTS, Mutant
from tests.simulation.run import regressions
from tests.support import rotation

World = tuple[str, int]
"""Scenario and seed."""

AT_NODES = ("coordinator_away", "cut_off_bootstrap", "at_nodes_swarm")
REGRESSIONS_A_RUN = 9
MUTANTS_A_RUN = 3
TWICE_EACH = 5


def _named(world: World) -> str:
    return f"{world[0]} {world[1]}"


SMOKE: list[World] = [
    ("smoke", seed) for seed in rotation.fresh_seeds("simulation: smoke seeds", 4, 12)
]
SWARMS: list[World] = [
    ("swarm", seed) for seed in rotation.fresh_seeds("simulation: swarm seeds", 3, 3)
]
BEGIN_AT_NODES: list[World] = [
    (scenario, seed)
    for scenario in AT_NODES
    for seed in rotation.fresh_seeds(f"simulation: {scenario} seeds", 1, 2)
]
SINKS: list[World] = [
    (scenario, seed)
    for scenario in directed_sink.PLANS
    for seed in rotation.fresh_seeds(f"simulation: {scenario} seeds", 1, 1)
]
JOBS: list[World] = [
    (scenario, seed)
    for scenario in directed_jobs.PLANS
    for seed in rotation.fresh_seeds(f"simulation: {scenario} seeds", 2, 2)
]
LOOKUPS: list[World] = rotation.take(
    "simulation: staged look-ups",
    [(scenario, 1) for scenario in directed_lookups.PLANS],
    1,
    show=_named,
)
STANDBYS: list[World] = rotation.take(
    "simulation: standbys",
    [(scenario, 1) for scenario in ("standby_swarm", *directed_standby.PLANS)],
    2,
    show=_named,
)
REGRESSIONS: list[World] = [
    world
    for world in rotation.take(
        "simulation: regressions", regressions(), REGRESSIONS_A_RUN, show=_named
    )
    if world not in [*SMOKE, *SWARMS]  # a new seed of this number
]
WORLDS = [*SMOKE, *SWARMS, *BEGIN_AT_NODES, *SINKS, *JOBS, *LOOKUPS, *STANDBYS, *REGRESSIONS]
_TURNS = len(WORLDS) // -(-len(WORLDS) // TWICE_EACH)
"""Turns differ in length by one world, and also the shortest one has to have a fifth."""
TWICE: list[World] = rotation.take(
    "simulation: worlds that run twice", WORLDS, -(-len(WORLDS) // _TURNS), show=_named
)
HUNTED: list[Mutant] = rotation.take(
    "simulation: mutants",
    [mutant for mutant in MUTANTS if not mutant.is_rare],
    MUTANTS_A_RUN,
    show=lambda mutant: mutant.name,
)
CLEAN: list[World] = sorted({(mutant.scenario, mutant.first) for mutant in HUNTED} - {*WORLDS})
"""Worlds that must be clean without the mutants of this run, and do not run as such."""
