"""Simulated clusters under the production shells: every seed runs twice, nothing acked is lost."""

import pytest

from tests.simulation import directed_lookups
from tests.simulation.run import regressions, replay_command, run_twice

SMOKE_SEEDS = range(1, 13)
SWARM_SEEDS = range(1, 4)
AT_NODES_SEEDS = range(1, 3)


def check(scenario: str, seed: int) -> None:
    report = run_twice((scenario, seed, True))
    shown = "\n".join([*report.problems[:10], f"replay: {replay_command(report)}"])
    assert not report.problems, shown
    assert report.faults.total() > 0


@pytest.mark.parametrize("seed", SMOKE_SEEDS)
def test_a_killed_leader_loses_nothing(seed: int) -> None:
    check("smoke", seed)


@pytest.mark.parametrize("seed", SWARM_SEEDS)
def test_many_faults_lose_nothing(seed: int) -> None:
    check("swarm", seed)


@pytest.mark.parametrize("seed", AT_NODES_SEEDS)
@pytest.mark.parametrize("scenario", ["coordinator_away", "cut_off_bootstrap", "at_nodes_swarm"])
def test_clients_begin_at_nodes(scenario: str, seed: int) -> None:
    check(scenario, seed)


@pytest.mark.parametrize("scenario", directed_lookups.PLANS)
def test_look_ups_leave_nothing_out(scenario: str) -> None:
    check(scenario, 1)


@pytest.mark.parametrize(("scenario", "seed"), regressions())
def test_what_failed_once(scenario: str, seed: int) -> None:
    check(scenario, seed)
