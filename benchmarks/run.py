"""The runner: cases in, JSON lines out, and a table of them at the end.

    python -m benchmarks.run --preset short                     # `make bench`
    python -m benchmarks.run --preset matrix --only rf=3 acks=all partitions=16,1024
    python -m benchmarks.run --preset peers --systems icecore kafka nats --out peers.jsonl

The first line is about the machine. Then one line per case and system: the median of all runs and
each of them, settings, what each process has cost in the last run, how much of the machine others
used meanwhile, in how many runs a peer failed, and ratios: to what disk and transport allow,
measured once per replication factor right before, and to the other systems, within each run. Ctrl-C
ends everything and keeps the lines so far; so does a failure of ours, and a peer's is left out.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.cluster import Missing, PeerFailed
from benchmarks.harness.cases import OURS, PRESETS, Case
from benchmarks.harness.figures import bound_ratios, median_of
from benchmarks.harness.lifetime import exit_with
from benchmarks.harness.machine import describe
from benchmarks.harness.others import OTHERS_SHARE_MAX, Others
from benchmarks.harness.report import table
from benchmarks.harness.runner import Runner, Times, progress
from benchmarks.harness.systems import PEERS
from icecore.errors import IcecoreError

SYSTEMS = (*OURS, *PEERS)
SHORT = Times(seconds=1.5, warm_s=1.0)
RUNS = 3
EXTRA_S = 1.5
"""Seconds of a run beside warm-up and measuring, as a guess."""

Emit = Callable[[Mapping[str, Any]], None]


def choose(preset: str, only: Iterable[str]) -> Iterator[Case]:
    """Cases of a preset whose fields have one of the values: ``rf=3``, ``partitions=16,256``.

    Raises:
        AttributeError: A case has no such field.
        ValueError: No case of the preset has this value.
    """
    chosen = everything = list(PRESETS[preset]())
    for condition in only:
        name, _, values = condition.partition("=")
        wanted, there = values.split(","), {str(getattr(case, name)) for case in everything}
        if unknown := [value for value in wanted if value not in there]:
            known = ", ".join(sorted(there))
            raise ValueError(f"{name} is never {unknown[0]} in {preset}: it is one of {known}")
        chosen = [case for case in chosen if str(getattr(case, name)) in wanted]
    yield from chosen


def measure(
    runner: Runner, cases: Sequence[Case], systems: Sequence[str], runs: int, emit: Emit
) -> None:
    """All cases, one after the other."""
    bounds: dict[int, dict[str, float]] = {}
    for case in cases:
        if case.rf not in bounds:
            bounds[case.rf] = runner.bounds(case.rf)
        with runner.topics():
            by_run = [_one_run(runner, case, systems) for _ in range(runs)]
        for result in results(case, by_run, bounds[case.rf]):
            emit(result)


def _one_run(runner: Runner, case: Case, systems: Sequence[str]) -> dict[str, dict[str, Any]]:
    found = {}
    for name in systems:
        others = Others()
        try:
            found[name] = runner.run(name, case)
        except Missing as error:
            progress(f"{name} is skipped: missing {error}")
        except PeerFailed as error:
            progress(f"{name} is left out of this run: {error}")
        else:
            share = found[name]["others_share"] = round(others.share(), 3)
            if share > OTHERS_SHARE_MAX:
                progress(f"others used {share:.0%} of the machine meanwhile")
    return found


def results(
    case: Case, by_run: Sequence[Mapping[str, Mapping[str, Any]]], bounds: Mapping[str, float]
) -> Iterator[dict[str, Any]]:
    """One line per system, of the runs that it did not fail in."""
    names = list(dict.fromkeys(name for run in by_run for name in run))
    for name in names:
        mine = [run[name] for run in by_run if name in run]
        runs = [each["figures"] for each in mine]
        median = median_of(runs)
        ratios = bound_ratios(case, median, bounds)
        for other in names:
            both = [run for run in by_run if name in run and other in run]
            if other != name and both:
                of_runs = [_over(run[name]["figures"], run[other]["figures"]) for run in both]
                ratios |= {f"{figure}_to_{other}": v for figure, v in median_of(of_runs).items()}
        yield {
            "benchmark": case.kind,
            "system": name,
            **case.settings(),
            **median,
            **ratios,
            "bounds": bounds,
            "runs": runs,
            "failed_runs": len(by_run) - len(runs),
            "others_share": [each["others_share"] for each in mine],
            "processes": mine[-1]["processes"],
        }


def _over(figures: Mapping[str, float], others: Mapping[str, float]) -> dict[str, float]:
    shared = ("records_s", "p50_ms", "p99_ms", "p999_ms")
    return {
        name: round(figures[name] / others[name], 3)
        for name in shared
        if name in figures and others.get(name)
    }


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--preset", choices=PRESETS, default="short")
    parser.add_argument("--only", nargs="+", default=[], metavar="FIELD=VALUE,…")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=["icecore"])
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--seconds", type=float, help="of each run")
    parser.add_argument("--out", type=Path, help="append the lines to this file as well")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    options = parser.parse_args()
    times = SHORT if options.preset == "short" else Times()
    if options.seconds:
        times = Times(options.seconds, times.warm_s)
    try:
        cases = list(choose(options.preset, options.only))
    except AttributeError as error:
        parser.error(f"a case has no field {error.name}")
    except ValueError as error:
        parser.error(str(error))
    if not cases:
        parser.error(f"no case of {options.preset} fits {' '.join(options.only)}")
    each_s = times.seconds + times.warm_s + EXTRA_S
    minutes = len(cases) * options.runs * len(options.systems) * each_s / 60
    progress(f"{len(cases)} cases, about {minutes:.0f} minutes")
    lines: list[Mapping[str, Any]] = []

    def emit(line: Mapping[str, Any]) -> None:
        lines.append(line)
        print(json.dumps(line), flush=True)
        if options.out:
            with options.out.open("a") as out:
                out.write(json.dumps(line) + "\n")

    emit({"benchmark": "machine", **describe(options.folder)})
    try:
        with Runner(options.folder, times) as runner:
            measure(runner, cases, options.systems, options.runs, emit)
    except (RuntimeError, IcecoreError, OSError) as error:
        progress(f"ended early: {error}")
        return 1
    finally:
        print(table(lines), file=sys.stderr)
    return 0


if __name__ == "__main__":
    exit_with(main)
