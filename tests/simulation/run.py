"""Run many simulated worlds (``python -m tests.simulation.run --seeds 100``) or one (``--seed K``).

One seed in ten runs twice and must give the same trace both times; after each ten of a swarm comes
one staged world, for what a swarm meets too rarely. One seed of seven is a ``standby_swarm``, and
one of three of the others a ``lookup_swarm``. The last line sums up, the one before it counts
faults by kind. A seed that fails prints what was wrong, the command that replays it, the few of its
faults that suffice, and the line for ``regressions.txt``. Hashes of strings are fixed, since they
order sets: without PYTHONHASHSEED=0 the run starts itself again with it.
"""

import argparse
import os
import sys
import time
import warnings
from collections import Counter
from collections.abc import Collection, Sequence
from multiprocessing import get_context
from pathlib import Path

from tests.simulation import marks
from tests.simulation.scenarios import (
    LOOKUP_SWARM,
    SCENARIOS,
    STAGED,
    STANDBY_SWARM,
    Report,
    run_seed,
)
from tests.simulation.shrink import shrink
from tests.simulation.tiered import STORE, TIERED

REGRESSIONS = Path(__file__).with_name("regressions.txt")
SUMMED = (
    *("lost", "phantom", "duplicate", "gap", "query_missed", "query_behind", "query_wrong"),
    "nondeterministic",
)
TWICE_EACH = 10
STAGED_EACH = 10
"""Seeds of a swarm per staged world."""
LOOKUPS_EACH = 3
"""In a swarm, one of this many seeds has a program that looks records up."""
STANDBYS_EACH = 7
"""In a swarm, one of this many seeds has coordinators that stand by for each other."""
PROGRESS_S = 5.0
SHRUNK_MAX = 3
"""Seeds of one run whose faults are shrunk; each takes up to 40 runs of its seed."""
MARKED_SEEDS_MIN = 100
"""Minimum number of seeds from which a run must hit every mark."""
DROPPED = ("simulated loop is closed", "no running event loop", "generator is already running")
"""Messages of tasks that are thrown away with their world."""


def regressions() -> list[tuple[str, int]]:
    """(scenario, seed) pairs that failed once and must never again."""
    pairs: list[tuple[str, int]] = []
    for line in REGRESSIONS.read_text().splitlines():
        words = line.partition("#")[0].split()
        if words:
            pairs.append((words[0], int(words[1])))
    return pairs


def hush() -> None:
    """Tasks of dead processes never end; Python says so for each one when a world is dropped."""
    warnings.filterwarnings("ignore", message="coroutine .* was never awaited")
    show_others = sys.unraisablehook

    def show(unraisable: "sys.UnraisableHookArgs") -> None:
        if not any(each in str(unraisable.exc_value) for each in DROPPED):
            show_others(unraisable)

    sys.unraisablehook = show


def run_twice(job: tuple[str, int, bool]) -> Report:
    """One seed, and again to see that it is the same; the first report, with what differed."""
    scenario, seed, twice = job
    report = run_seed(scenario, seed)
    if twice:
        again = run_seed(scenario, seed)
        if again.trace_hash != report.trace_hash:
            report.problems.append("nondeterministic: the second run took another course")
            report.categories["nondeterministic"] += 1
    return report


def replay_command(report: Report, faults: Sequence[int] | None = None) -> str:
    """Return the command that a developer types to see it again."""
    command = f"python -m tests.simulation.run --scenario {report.scenario} --seed {report.seed}"
    return command if faults is None else f"{command} --faults {','.join(map(str, faults))}"


def fault_kinds(reports: list[Report]) -> str:
    """Return how many faults of each kind there were, most first."""
    kinds: Counter[str] = Counter()
    for report in reports:
        kinds.update(report.faults)
    return "fault kinds: " + " ".join(f"{kind}={count}" for kind, count in kinds.most_common())


def unhit(reports: list[Report]) -> list[str]:
    """Marks that no seed met."""
    return [mark for mark in marks.ALL if not any(mark in report.marks for report in reports)]


def summary(reports: list[Report]) -> str:
    """The last line."""
    categories: Counter[str] = Counter()
    for report in reports:
        categories.update(report.categories)
    ran = Counter(
        "swarm" if report.scenario in (LOOKUP_SWARM, STANDBY_SWARM) else report.scenario
        for report in reports
    )
    [(_, seeds)] = ran.most_common(1)
    fields = {
        "seeds": seeds,
        "staged": len(reports) - seeds,
        "events": sum(report.events for report in reports),
        "virtual_hours": f"{sum(report.virtual_s for report in reports) / 3600:.2f}",
        "faults": sum(report.faults.total() for report in reports),
        "tiered_worlds": sum(bool(report.faults[TIERED]) for report in reports),
        "store_faults": sum(
            count
            for report in reports
            for kind, count in report.faults.items()
            if kind.startswith(STORE)
        ),
        "acks_checked": sum(report.acks_checked for report in reports),
        "answers_checked": sum(report.answers_checked for report in reports),
        "lookups_checked": sum(report.lookups_checked for report in reports),
        **{name: categories[name] for name in SUMMED},
        "unavailable": sum(report.unavailable for report in reports),
        "surplus": sum(report.surplus for report in reports),
        "marks": f"{len(marks.ALL) - len(unhit(reports))}/{len(marks.ALL)}",
        "failed_seeds": sum(bool(report.problems) for report in reports),
    }
    return "sim: " + " ".join(f"{name}={value}" for name, value in fields.items())


def show(report: Report, *, shrinks: bool) -> None:
    """Print a failing seed, and which of its faults suffice."""
    print(f"FAILED {report.scenario} seed {report.seed}:")
    for problem in report.problems[:20]:
        print(f"  {problem[:1000]}")
    print(f"  replay: {replay_command(report)}", flush=True)
    if shrinks and len(report.schedule) > 1:

        def fails(numbers: Sequence[int]) -> bool:
            return bool(run_seed(report.scenario, report.seed, only=numbers).problems)

        left = shrink([fault.number for fault in report.schedule], fails)
        print(f"  {len(left)} of {len(report.schedule)} faults suffice:")
        for fault in report.schedule:
            if fault.number in left:
                print(f"    {fault}")
        print(f"  replay: {replay_command(report, left)}")
    print(f"  regressions.txt: {report.scenario} {report.seed}  # why", flush=True)


def run_one(scenario: str, seed: int, only: Collection[int] | None, trace: Path | None) -> Report:
    """One seed, with its trace."""
    report = run_seed(scenario, seed, keep_trace=True, only=only)
    if trace:
        trace.write_text("\n".join(report.trace) + "\n")
    for fault in report.schedule:
        print(f"planned {fault}")
    if report.problems:
        show(report, shrinks=only is None)
    return report


def run_many(jobs: list[tuple[str, int, bool]], processes: int) -> list[Report]:
    """All seeds; failures and progress are printed as they come."""
    reports: list[Report] = []
    began_s = shown_s = time.monotonic()
    failed = 0
    with get_context("spawn").Pool(processes, initializer=hush) as pool:
        for report in pool.imap_unordered(run_twice, jobs):
            reports.append(report)
            if report.problems:
                failed += 1
                show(report, shrinks=failed <= SHRUNK_MAX)
            now_s = time.monotonic()
            if now_s - shown_s >= PROGRESS_S:
                shown_s = now_s
                done = f"{len(reports)}/{len(jobs)} seeds, {failed} failed"
                print(f"{done}, {now_s - began_s:.0f} s", file=sys.stderr, flush=True)
    return reports


def jobs_of(scenario: str, seeds: Sequence[int], *, once: bool) -> list[tuple[str, int, bool]]:
    """Return the jobs for ``run_twice``, in the order of a run."""
    jobs: list[tuple[str, int, bool]] = []
    kinds = list(STAGED)
    for number, seed in enumerate(seeds):
        jobs.append((swarm_of(scenario, seed), seed, not once and number % TWICE_EACH == 0))
        if scenario == "swarm" and seed % STAGED_EACH == 0:
            turn, kind = divmod(seed // STAGED_EACH - 1, len(kinds))
            jobs.append((kinds[kind], turn + 1, False))
    return jobs


def swarm_of(scenario: str, seed: int) -> str:
    """The scenario of a seed: some seeds of a swarm have more than others."""
    if scenario == "swarm" and seed % STANDBYS_EACH == 0:
        return STANDBY_SWARM
    return LOOKUP_SWARM if scenario == "swarm" and seed % LOOKUPS_EACH == 0 else scenario


def main() -> int:
    """Exit status 1 when any seed failed, or a long run missed a mark."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.run", description=__doc__)
    parser.add_argument("--seeds", type=int, default=20, help="how many seeds, from --first on")
    parser.add_argument("--first", type=int, default=1, help="first seed")
    parser.add_argument("--seed", type=int, help="run this one seed")
    parser.add_argument("--faults", help="with --seed: only these faults, as 0,3,7")
    parser.add_argument("--scenario", choices=sorted(SCENARIOS), default="swarm")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--once", action="store_true", help="skip all second runs")
    parser.add_argument("--trace", type=Path, help="with --seed: write the trace to this file")
    arguments = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation.run", *sys.argv[1:]])

    hush()
    scenario = arguments.scenario
    if arguments.seed is not None:
        faults = arguments.faults
        only = None if faults is None else [int(each) for each in faults.split(",") if each]
        reports = [run_one(scenario, arguments.seed, only, arguments.trace)]
    else:
        seeds = range(arguments.first, arguments.first + arguments.seeds)
        reports = run_many(jobs_of(scenario, seeds, once=arguments.once), arguments.jobs)
    print(fault_kinds(reports))
    missed = unhit(reports)
    if missed and len(reports) > 1:
        print(f"marks that no seed hit: {' '.join(missed)}")
    print(summary(reports))
    is_long = len(reports) >= MARKED_SEEDS_MIN
    return 1 if (missed and is_long) or any(report.problems for report in reports) else 0


if __name__ == "__main__":
    sys.exit(main())
