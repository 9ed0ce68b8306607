"""Gates: ratios within one run, to the disk's limit, to a peer, to an earlier tree of ours.

    make bench-gates BASE=<commit>    # or: python -m benchmarks.gates --base <commit> [--runs 3]

Both sides of each ratio are measured in turns. A line for each gate ends with its verdict: ``red``
when the value lies below its band, ``ok`` inside, ``above`` when the band wants a new floor.
Figures without a band that binds are ``shown``, and what could not be measured is ``skipped``.
Nothing can be said where others use more than half of the machine: ``refused``. The exit status is
1 when a gate is red, and 2 when none is red and one is refused. ``--update-bands`` writes the bands
of this machine from the runs; those of ratios to the base only where both trees are the same
product.
"""

import argparse
import datetime
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks.cases import BASE
from benchmarks.figures import median_of
from benchmarks.gates import bands as band_file
from benchmarks.gates.bands import RED, REFUSED, RUNS_MIN, Bands, Judged, added, find, judge
from benchmarks.gates.base import BaseError, Tree, check_out, is_same_product
from benchmarks.gates.catalogue import SLOW_TURNS, choose
from benchmarks.gates.gate import TURNS, Group, Run
from benchmarks.gates.turns import measure_group
from benchmarks.lifetime import exit_with
from benchmarks.machine import describe
from benchmarks.runner import Runner, Times, progress

RUNS = 3
SECONDS, WARM_S = 1.5, 1.0
EXIT_RED, EXIT_REFUSED = 1, 2


@dataclass(slots=True)
class Results:
    """Of some groups, in order."""

    bands: Bands
    machine: str
    judged: list[Judged] = field(default_factory=list)
    measured: list[dict[str, Any]] = field(default_factory=list)
    """What the values are made of: a line for each measurement."""

    def take(self, group: Group, runs: Sequence[Run]) -> None:
        """What the runs of a group have brought. Values of its gates are printed."""
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
        """Of the process."""
        verdicts = {each.verdict for each in self.judged}
        if RED in verdicts:
            return EXIT_RED
        return EXIT_REFUSED if REFUSED in verdicts else 0


def measure(groups: Sequence[Group], runner: Runner, runs: int, results: Results) -> None:
    """Values of all gates, each printed as soon as it is known."""
    for group in groups:
        results.take(group, measure_group(runner, group, runs))


def updated(
    results: Results, commit: str, is_same_tree: bool, date: str
) -> tuple[dict[str, dict[str, band_file.Band]], list[str]]:
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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gates",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument(
        "--turns", type=int, help=f"of a run, default {TURNS}, {SLOW_TURNS} of slow ones"
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="gates")
    parser.add_argument("--base", metavar="COMMIT", help="an earlier tree of ours, beside this one")
    parser.add_argument(
        "--base-python", default=sys.executable, help="the interpreter it runs with"
    )
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of a measurement")
    parser.add_argument("--update-bands", action="store_true", help="write bands of this machine")
    parser.add_argument("--note", default="", help="about this run, for the file of results")
    parser.add_argument("--json", type=Path, help="append the results as JSON lines")
    parser.add_argument("--list", action="store_true", help="print the names of all gates and end")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    return parser


def main() -> int:
    """Entry point."""
    parser = _parser()
    options = parser.parse_args()
    if options.runs < 1 or options.seconds <= 0 or (options.turns or 1) < 1:
        parser.error("--runs, --turns and --seconds must be positive")
    try:
        groups = choose(options.only)
        base = _base(options)
    except (ValueError, BaseError) as error:
        parser.error(str(error))
    if options.list:
        print("\n".join(gate.name for group in groups for gate in group.gates))
        return 0
    if options.turns:
        groups = [replace(group, turns=options.turns) for group in groups]
    about = describe(options.folder)
    results = Results(band_file.read(), about["name"])
    times = Times(options.seconds, WARM_S)
    with Runner(options.folder, times, base, in_turns=True) as runner:
        measure(groups, runner, options.runs, results)
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    if options.json:
        compared = {"base": base.commit} if base else {}
        told = {"runs": options.runs, "date": today, "note": options.note, **compared}
        _append(options.json, results, {**told, **about})
    if options.update_bands:
        _update(results, about["revision"], base, today)
    return results.status()


def _base(options: argparse.Namespace) -> Tree | None:
    if not options.base:
        progress("no base: ratios to an earlier tree are skipped; BASE=<commit> names one")
        return None
    if options.list:
        return None
    base = check_out(options.base, options.base_python)
    base.check()
    progress(f"the base is {base.commit} in {base.root}")
    return base


def _update(results: Results, commit: str, base: Tree | None, today: str) -> None:
    is_same_tree = base is not None and is_same_product(base)
    bands, left = updated(results, commit, is_same_tree, today)
    band_file.write(bands)
    mine = bands[results.machine]
    gates = {each.gate.name: each.gate for each in results.judged}
    idle = sorted(name for name in gates.keys() & mine.keys() if not mine[name].binds(gates[name]))
    if idle:
        rule = f"of fewer than {RUNS_MIN} runs, or beside others with over half of the machine"
        progress(f"bands {rule}, bind nobody: {', '.join(idle)}")
    if left:
        progress(f"no bands, since the base is another product: {', '.join(left)}")


def _append(path: Path, results: Results, about: Mapping[str, Any]) -> None:
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


if __name__ == "__main__":
    exit_with(main)
