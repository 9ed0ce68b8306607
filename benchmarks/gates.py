"""The figures that must hold, each the median of some runs, each ratio within one run.

    make bench-gates    # or: python -m benchmarks.gates --runs 5 [--only NAME …] [--json FILE]

One line per gate: ``gate: <name> value=… floor=… unit=… ok|short``; the file also gets what was
measured for them, a line for each measurement of each run. A bound that must not be
exceeded is a ``ceiling``; a figure without a bound is ``shown``; one whose system is absent is
``skipped``, and what is missing is said. A measurement beside which others used more than 15 % of
the machine is made again, and refused the third time. Exit status 1 when a gate is short.
"""

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.cases import OURS
from benchmarks.cluster import Missing
from benchmarks.gate_list import COLD, FAILOVER, GROUPS, LIMIT, LOOKUP, Gate, Group
from benchmarks.lifetime import exit_with
from benchmarks.machine import describe
from benchmarks.others import OTHERS_SHARE_MAX, Others
from benchmarks.runner import Runner, Times, progress

RUNS = 5
TRIES = 3
"""Of a measurement, until others leave the machine to it."""


def run_group(runner: Runner, group: Group, runs: int) -> list[dict[str, Mapping[str, float]]]:
    """By run, the figures of each measurement that could be made."""
    return [_run_once(runner, group) for _ in range(runs)]


def _run_once(runner: Runner, group: Group) -> dict[str, Mapping[str, float]]:
    """With topics of its own: what earlier runs have written would fill the page cache."""
    figures: dict[str, Mapping[str, float]] = {}
    with runner.topics():
        for name in group.measurements:
            try:
                figures[name] = _measure(runner, group, name)
            except Missing as error:
                progress(f"{name} is skipped: missing {error}")
            except RuntimeError as error:
                if group.measurements[name][0] in OURS:
                    raise
                progress(f"{name} is left out of this run: {error}")
    return figures


def _measure(runner: Runner, group: Group, name: str) -> Mapping[str, float]:
    """Raises Missing when the system is absent, or others never leave the machine to us."""
    for _ in range(TRIES):
        others = Others()
        figures = _measure_once(runner, group, name)
        share = others.share()
        if share <= OTHERS_SHARE_MAX:
            return figures
        progress(f"{name} is refused: others used {share:.0%} of the machine")
    raise Missing(f"a machine of which others use less than {OTHERS_SHARE_MAX:.0%}")


def _measure_once(runner: Runner, group: Group, name: str) -> Mapping[str, float]:
    system, case = group.measurements[name]
    if name == LIMIT:
        return runner.limit(case.rf, case.partitions)
    if name == FAILOVER:
        return runner.failover(case.partitions)
    if name == LOOKUP:
        return runner.lookup()
    if name == COLD:
        return runner.cold_reads()
    result = runner.run(system, case)
    figures: dict[str, float] = result["figures"]
    progress("  " + " ".join(f"{key}={value}" for key, value in figures.items()))
    return figures


@dataclass(frozen=True, slots=True)
class Results:
    """Of some groups, in order."""

    gates: list[tuple[Gate, float | None]] = field(default_factory=list)
    measured: list[dict[str, Any]] = field(default_factory=list)
    """What the values are made of: a line for each measurement."""

    def take(self, group: Group, by_run: Sequence[Mapping[str, Mapping[str, float]]]) -> None:
        """What the runs of a group have brought. Values of its gates are printed."""
        for run, found in enumerate(by_run):
            for name, figures in found.items():
                system, case = group.measurements[name]
                about = {"name": name, "run": run, "on": system, "case": case.label}
                self.measured.append({"benchmark": "measured", **about, "figures": dict(figures)})
        for gate in group.gates:
            value = gate.over_runs(by_run)
            self.gates.append((gate, value))
            print(gate.line(value), flush=True)


def measure(groups: Sequence[Group], folder: Path, runs: int, times: Times) -> Results:
    """Values of all gates, each printed as soon as it is known."""
    results = Results()
    with Runner(folder, times) as runner:
        for group in groups:
            results.take(group, run_group(runner, group, runs))
    return results


def choose(only: Sequence[str]) -> list[Group]:
    """The groups of these gates with these gates only; all without names.

    Raises:
        ValueError: There is no such gate.
    """
    known = {gate.name for group in GROUPS for gate in group.gates}
    if unknown := set(only) - known:
        raise ValueError(f"no gate {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    chosen = [group.only(only) if only else group for group in GROUPS]
    return [group for group in chosen if group.gates]


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="gates")
    parser.add_argument("--seconds", type=float, default=Times().seconds, help="of a measurement")
    parser.add_argument("--json", type=Path, help="append the results as JSON lines")
    parser.add_argument("--list", action="store_true", help="print the names of all gates and end")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    options = parser.parse_args()
    try:
        groups = choose(options.only)
    except ValueError as error:
        parser.error(str(error))
    if options.list:
        print("\n".join(gate.name for group in groups for gate in group.gates))
        return 0
    results = measure(groups, options.folder, options.runs, Times(options.seconds))
    if options.json:
        _append(options.json, results, {"runs": options.runs, **describe(options.folder)})
    return int(any(gate.verdict(value) == "short" for gate, value in results.gates))


def _append(path: Path, results: Results, about: dict[str, Any]) -> None:
    with path.open("a") as out:
        out.write(json.dumps({"benchmark": "machine", **about}) + "\n")
        for line in results.measured:
            out.write(json.dumps(line) + "\n")
        for gate, value in results.gates:
            line = {"benchmark": "gate", "name": gate.name, "value": value, "unit": gate.unit}
            out.write(json.dumps({**line, "verdict": gate.verdict(value)}) + "\n")


if __name__ == "__main__":
    exit_with(main)
