"""Gates: ratios within one run, to the disk's limit, to a peer, to an earlier tree of ours.

    make bench-gates BASE=<commit>    # or: python -m benchmarks.gates --base <commit> [--runs 3]

Both sides of each ratio are measured in turns. A line for each gate ends with its verdict: ``red``
when the value lies below its band, ``ok`` inside, ``above`` when the band wants a new floor.
Figures without a band that binds are ``shown``, and what could not be measured is ``skipped``.
Nothing can be said where others use more than half of the machine: ``refused``. The exit status is
1 when a gate is red, and 2 when none is red and one is refused. ``--update-bands`` writes the bands
of this machine from the runs; those of ratios to the base only where both trees are the same
product. Ctrl-C keeps the runs that are whole.
"""

import argparse
import datetime
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.gates import bands as band_file
from benchmarks.gates.bands import RUNS_MIN
from benchmarks.gates.base import BaseError, Tree, check_out, is_same_product
from benchmarks.gates.catalogue import SLOW_TURNS, choose
from benchmarks.gates.gate import TURNS, Group, Run
from benchmarks.gates.results import Results, append, updated
from benchmarks.gates.turns import measure_group
from benchmarks.harness.lifetime import INTERRUPTED, exit_with
from benchmarks.harness.machine import describe
from benchmarks.harness.runner import Runner, Times, progress

RUNS = 3
SECONDS, WARM_S = 1.5, 1.0


def measure(groups: Sequence[Group], runner: Runner, count: int, results: Results) -> None:
    """Values of all gates, each printed as soon as it is known; so many runs of each group."""
    for group in groups:
        runs: list[Run] = []
        try:
            measure_group(runner, group, count, runs)
        finally:
            results.take(group, runs)


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
    turns = TURNS if options.turns is None else options.turns
    if options.runs < 1 or options.seconds <= 0 or turns < 1:
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
    is_interrupted = False
    try:
        with Runner(options.folder, times, base, in_turns=True) as runner:
            measure(groups, runner, options.runs, results)
    except KeyboardInterrupt:
        is_interrupted = True  # whole runs have been measured, and stay
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    if options.json:
        compared = {"base": base.commit} if base else {}
        told = {"runs": options.runs, "date": today, "note": options.note, **compared}
        append(options.json, results, {**told, **about})
    if options.update_bands:
        commit = about["revision"].removesuffix("-dirty")  # the file of bands changes itself
        _update(results, commit, base, today)
    return INTERRUPTED if is_interrupted else results.status()


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
    mine = bands[results.machine]
    if mine:
        band_file.write(bands)
    gates = {each.gate.name: each.gate for each in results.judged}
    idle = sorted(name for name in gates.keys() & mine.keys() if not mine[name].binds(gates[name]))
    if idle:
        rule = f"of fewer than {RUNS_MIN} runs, or beside others with over half of the machine"
        progress(f"bands {rule}, bind nobody: {', '.join(idle)}")
    if left:
        progress(f"no bands, since the base is another product: {', '.join(left)}")


if __name__ == "__main__":
    exit_with(main)
