"""Simulated clusters under the production shells: nothing that was acknowledged is lost.

The rotation chooses the worlds (``turns.py``), and which of them run twice to show that a seed
decides everything.
"""

import os

import pytest

from tests.simulation import turns
from tests.simulation.run import replay_command, run_twice
from tests.simulation.turns import World


def check(world: World) -> None:
    report = run_twice((*world, world in turns.TWICE))
    shown = "\n".join([*report.problems[:10], f"replay: {replay_command(report)}"])
    if os.environ.get("PYTHONHASHSEED") != "0":
        shown += "\nHashes were random here and are fixed there: run with PYTHONHASHSEED=0."
    assert not report.problems, shown
    assert report.faults.total() > 0


def each(worlds: list[World]) -> pytest.MarkDecorator:
    names = [f"{scenario}-{seed}" for scenario, seed in worlds]
    return pytest.mark.parametrize("world", worlds, ids=names)


@each(turns.SMOKE)
def test_a_killed_leader_loses_nothing(world: World) -> None:
    check(world)


@each(turns.SWARMS)
def test_many_faults_lose_nothing(world: World) -> None:
    check(world)


@each(turns.BEGIN_AT_NODES)
def test_clients_begin_at_nodes(world: World) -> None:
    check(world)


@each(turns.SINKS)
def test_a_write_that_is_run_again_writes_nothing_twice(world: World) -> None:
    check(world)


@each(turns.JOBS)
def test_a_job_that_is_run_again_goes_on_where_it_was(world: World) -> None:
    check(world)


@each(turns.LOOKUPS)
def test_look_ups_leave_nothing_out(world: World) -> None:
    check(world)


@each(turns.STANDBYS)
def test_coordinators_stand_by_for_each_other(world: World) -> None:
    check(world)


@each(turns.REGRESSIONS)
def test_what_failed_once(world: World) -> None:
    check(world)


def test_one_world_of_five_runs_twice() -> None:
    assert len(turns.TWICE) * turns.TWICE_EACH >= len(turns.WORLDS)
