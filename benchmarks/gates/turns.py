"""Measures groups of gates in turns: every side once in each turn, forwards and then backwards.

A disturbance that lasts longer than a turn hits all sides of a ratio. One that is shorter hits one
side: then others used more of the machine beside it than beside the other side, and the turn is
measured again. The least disturbed turns of a run count, so a machine that is always busy still
gives an answer.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from benchmarks.cluster import Missing
from benchmarks.gates.gate import (
    COLD,
    FAILOVER,
    LEAST,
    LIMIT,
    LOOKUP,
    PROCESSOR_TIME,
    TURNS,
    Group,
    Measurement,
    Outcome,
    Run,
    Turn,
)
from benchmarks.harness.cases import BASE, is_ours
from benchmarks.harness.others import Others
from benchmarks.harness.runner import Runner, progress

DISTURBANCE_MAX: Final = 0.15
"""Largest difference between the two sides of a turn, as a share of the processors."""


def measure_group(runner: Runner, group: Group, count: int, runs: list[Run]) -> None:
    """So many runs, each of some turns.

    Args:
        runner: What measures.
        group: What is measured.
        count: How many runs.
        runs: Each is added when it is whole, so that an interrupt loses the one that it hits alone.
    """
    missing: set[str] = set()
    try:
        while len(runs) < count:
            runs.append(measure_run(runner, group, missing))
    finally:
        runner.end_group()


def measure_run(runner: Runner, group: Group, missing: set[str]) -> Run:
    """Turns until enough of them are undisturbed, or twice as many as are needed.

    Args:
        runner: What measures.
        group: What is measured.
        missing: Measurements that can't be made here; what is found missing is added.
    """
    turns: list[Turn] = []
    most = 2 * group.turns if group.turns >= TURNS else group.turns  # slow ones are not repeated
    with runner.topics():
        while len(turns) < most and not is_enough(group, turns):
            names = [name for name in group.measurements if name not in missing]
            turns.append(
                _turn(runner, group, names if len(turns) % 2 == 0 else names[::-1], missing)
            )
    return turns


def is_enough(group: Group, turns: Sequence[Turn]) -> bool:
    """Return whether each gate with values has enough undisturbed ones."""
    if len(turns) < group.turns:
        return False
    for gate in group.gates:
        known = [turn for turn in turns if gate.value(turn) is not None]
        calm = [turn for turn in known if gate.disturbance(turn) <= DISTURBANCE_MAX]
        if known and len(calm) < group.turns:
            return False
    return True


def _turn(runner: Runner, group: Group, names: Iterable[str], missing: set[str]) -> Turn:
    """Each with topics of its own: what others have written would fill the page cache."""
    found: dict[str, Outcome] = {}
    for name in names:
        measurement = group.measurements[name]
        others = Others()
        try:
            figures = _measure(runner, measurement)
        except Missing as error:
            progress(f"{name} is skipped: missing {error}")
            missing.add(name)
            continue
        except RuntimeError as error:
            if is_ours(measurement.on):
                raise
            progress(f"{name} is left out of this turn: {error}")
            continue
        found[name] = Outcome(figures, round(others.share(), 3))
        runner.delete_topics(with_filled=False)
        told = {**figures, "others": found[name].others_share}
        progress("  " + " ".join(f"{key}={value}" for key, value in told.items()))
    return found


def _measure(runner: Runner, measurement: Measurement) -> dict[str, float]:
    on, case, is_base = measurement.on, measurement.case, measurement.is_base
    if on == LIMIT:
        return runner.limit(case.rf, case.partitions)
    if on == LEAST:
        return runner.least(case.rf)
    if on == FAILOVER:
        return runner.failover(case.partitions, is_base)
    if on == LOOKUP:
        return runner.lookup(is_base)
    if on == COLD:
        return runner.cold_reads(is_base)
    result = runner.run(BASE if is_base else on, case)
    spent = sum(each[PROCESSOR_TIME] for each in result["processes"].values())
    return {**result["figures"], PROCESSOR_TIME: round(spent, 2)}
