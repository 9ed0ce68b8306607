"""Turns: the order of the sides, what is measured again, what is left out."""

import contextlib
from typing import Any, cast

import pytest

from benchmarks.cluster import Missing, PeerFailed
from benchmarks.gates import turns
from benchmarks.gates.gate import (
    COLD,
    FAILOVER,
    LEAST,
    LIMIT,
    LOOKUP,
    Gate,
    Group,
    Measurement,
    Run,
)
from benchmarks.harness.cases import BASE, Case

CASE = Case("produce")


class FakeRunner:
    """Says what it was asked for; every figure is 2, and 1 for the base."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.failing: dict[str, Exception] = {}
        self.deleted = self.ended = 0

    def topics(self) -> Any:
        return contextlib.nullcontext()

    def delete_topics(self, *, with_filled: bool = True) -> None:
        assert not with_filled
        self.deleted += 1

    def end_group(self) -> None:
        self.ended += 1

    def run(self, name: str, case: Case) -> dict[str, Any]:
        self.asked.append(name)
        if name in self.failing:
            raise self.failing[name]
        processes = {"node": {"cpu_s_per_gb": 1.5}, "client": {"cpu_s_per_gb": 2.0}}
        return {"figures": {"records_s": 1.0 if name == BASE else 2.0}, "processes": processes}

    def limit(self, rf: int, files: int) -> dict[str, float]:
        self.asked.append(f"limit {rf} {files}")
        return {"fresh_mb_s": 1.0}

    def least(self, rf: int) -> dict[str, float]:
        self.asked.append(f"least {rf}")
        return {"p50_ms": 1.0}

    def failover(self, partitions: int, is_base: bool) -> dict[str, float]:
        self.asked.append(f"failover {partitions} {is_base}")
        return {}

    def lookup(self, is_base: bool) -> dict[str, float]:
        self.asked.append(f"lookup {is_base}")
        return {}

    def cold_reads(self, is_base: bool) -> dict[str, float]:
        self.asked.append(f"cold {is_base}")
        return {}


@pytest.fixture
def shares(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Shares that other programs use beside each measurement; zero after the last."""
    found: list[float] = []

    class Busy:
        def share(self) -> float:
            return found.pop(0) if found else 0.0

    monkeypatch.setattr(turns, "Others", Busy)
    return found


def group(*names: str, turns: int = 4) -> Group:
    measurements = {name: Measurement(name, CASE, name == "base") for name in names}
    gates = tuple(Gate(f"g_{name}", "about", names[0], over=name) for name in names[1:])
    return Group(measurements, gates, turns)


def measured(runner: FakeRunner, of: Group, runs: int = 1) -> Any:
    found: list[Run] = []
    turns.measure_group(cast(Any, runner), of, runs, found)
    return found


def test_the_sides_take_turns_forwards_and_backwards(shares: list[float]) -> None:
    runner = FakeRunner()
    (run,) = measured(runner, group("icecore", "base"))
    assert runner.asked == ["icecore", BASE, BASE, "icecore"] * 2
    assert [each["base"].figures for each in run] == [{"records_s": 1.0, "cpu_s_per_gb": 3.5}] * 4
    assert (runner.deleted, runner.ended) == (8, 1)


def test_a_turn_that_hit_one_side_is_measured_again(shares: list[float]) -> None:
    shares += [0.1, 0.5]
    runner = FakeRunner()
    of = group("icecore", "kafka", turns=4)
    (run,) = measured(runner, of)
    assert len(run) == 5
    assert len(of.gates[0].chosen(run, 4)) == 4 and run[0] not in of.gates[0].chosen(run, 4)


def test_a_machine_that_is_always_busy_gets_an_answer(shares: list[float]) -> None:
    shares += [0.1, 0.5] * 99
    (run,) = measured(FakeRunner(), group("icecore", "kafka", turns=4))
    assert len(run) == 8


def test_a_machine_that_is_evenly_busy_is_not_asked_again(shares: list[float]) -> None:
    shares += [0.6, 0.5] * 99
    (run,) = measured(FakeRunner(), group("icecore", "kafka", turns=4))
    assert len(run) == 4 and run[0]["kafka"].others_share == 0.5


def test_slow_measurements_are_not_made_again(shares: list[float]) -> None:
    shares += [0.1, 0.9] * 99
    (run,) = measured(FakeRunner(), group("icecore", "kafka", turns=2))
    assert len(run) == 2


def test_what_is_missing_is_asked_for_once(shares: list[float]) -> None:
    runner = FakeRunner()
    runner.failing["kafka"] = Missing("java")
    runs = measured(runner, group("icecore", "kafka"), runs=2)
    assert runner.asked.count("kafka") == 1
    assert [len(run) for run in runs] == [4, 4]


def test_a_peer_that_fails_costs_its_turn_and_ours_that_fails_all(shares: list[float]) -> None:
    runner = FakeRunner()
    runner.failing["kafka"] = PeerFailed("kafka: no leader")
    (run,) = measured(runner, group("icecore", "kafka", turns=2))
    assert [list(each) for each in run] == [["icecore"], ["icecore"]]
    runner.failing = {"icecore": RuntimeError("no result in time")}
    with pytest.raises(RuntimeError, match="no result in time"):
        measured(runner, group("icecore", "kafka"))
    assert runner.ended == 2


def test_what_is_no_system_is_asked_for_by_its_own_method(shares: list[float]) -> None:
    runner = FakeRunner()
    measurements = {
        name: Measurement(name, Case("single", partitions=48, rf=1), is_base)
        for name, is_base in (
            (LIMIT, False),
            (LEAST, False),
            (FAILOVER, True),
            (LOOKUP, False),
            (COLD, True),
        )
    }
    measured(runner, Group(measurements, (), turns=1))
    assert runner.asked == [
        "limit 1 48",
        "least 1",
        "failover 48 True",
        "lookup False",
        "cold True",
    ]


def test_an_interrupt_keeps_the_runs_that_are_whole(shares: list[float]) -> None:
    runner, found = FakeRunner(), list[Run]()
    whole = turns.measure_run

    def once(*arguments: Any) -> Run:
        if found:
            raise KeyboardInterrupt
        return whole(*arguments)

    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(turns, "measure_run", once)
        turns.measure_group(cast(Any, runner), group("icecore", "base"), 3, found)
    assert len(found) == 1 and runner.ended == 1
