"""Results of the gates: verdicts, the lines of the results file, and new bands."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gates.bands import RED, REFUSED, Band, Bands, Judged, added, find, judge
from benchmarks.gates.gate import Group, Run
from benchmarks.harness.cases import BASE
from benchmarks.harness.figures import median_of

EXIT_RED, EXIT_REFUSED = 1, 2


@dataclass(slots=True)
class Results:
    """The results of some groups, in order."""

    bands: Bands
    machine: str
    judged: list[Judged] = field(default_factory=list)
    measured: list[dict[str, Any]] = field(default_factory=list)
    """One line for each measurement behind the values."""

    def take(self, group: Group, runs: Sequence[Run]) -> None:
        """Add the runs of a group, and print the values of its gates."""
        for name, measurement in group.measurements.items():
            found = [turn[name] for run in runs for turn in run if name in turn]
            if not found:
                continue
            on = BASE if measurement.is_base else measurement.on
            self.measured.append(
                {
                    "benchmark": "measured",
                    "name": name,
                    "on": on,
                    "case": measurement.case.label,
                    "figures": median_of([each.figures for each in found]),
                    "turns": len(found),
                }
            )
        for gate in group.gates:
            found_band = find(self.bands, self.machine, gate)
            self.judged.append(judge(gate, runs, group.turns, found_band))
            print(self.judged[-1].line(), flush=True)

    def status(self) -> int:
        """The exit status of the process."""
        verdicts = {each.verdict for each in self.judged}
        if RED in verdicts:
            return EXIT_RED
        return EXIT_REFUSED if REFUSED in verdicts else 0


def updated(
    results: Results, commit: str, is_same_tree: bool, date: str
) -> tuple[dict[str, dict[str, Band]], list[str]]:
    """All bands with those of these results, and the names of gates that got none.

    Args:
        results: Of this machine.
        commit: That was measured.
        is_same_tree: Whether the base is the same product: else its ratios are no noise.
        date: Of today.
    """
    bands = {machine: dict(gates) for machine, gates in results.bands.items()}
    mine, left = bands.setdefault(results.machine, {}), []
    for each in results.judged:
        gate = each.gate
        if not gate.is_ratio or not each.by_run:
            continue
        if gate.is_over_base and not is_same_tree:
            left.append(gate.name)
            continue
        mine[gate.name] = added(mine.get(gate.name), each, date, commit)
    return bands, left


def append(path: Path, results: Results, about: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as out:
        out.write(json.dumps({"benchmark": "machine", **about}) + "\n")
        for line in results.measured:
            out.write(json.dumps(line) + "\n")
        for each in results.judged:
            out.write(json.dumps(gate_line(each)) + "\n")


def gate_line(judged: Judged) -> dict[str, Any]:
    """For the file of results."""
    rounded = [round(value, 4) for value in (*judged.by_run, judged.low, judged.high)]
    *by_run, low, high = rounded
    return {
        "benchmark": "gate",
        "name": judged.gate.name,
        "about": judged.gate.about,
        "unit": judged.gate.unit,
        "value": None if judged.value is None else round(judged.value, 4),
        "by_run": by_run,
        "interval": [low, high],
        "band": [judged.band.low, judged.band.high] if judged.band else None,
        "others_share": round(judged.others_share, 3),
        "verdict": judged.verdict,
    }
