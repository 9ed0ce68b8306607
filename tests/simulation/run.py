"""Run many simulated worlds (``python -m tests.simulation.run --seeds 100``) or one (``--seed K``).

Each seed runs twice and must give the same trace both times. The last line sums up; a seed that
fails prints what was wrong and the command that replays it. Hashes of strings are fixed, since
they order sets: without PYTHONHASHSEED=0 the run starts itself again with it.
"""

import argparse
import os
import sys
from collections import Counter
from multiprocessing import get_context
from pathlib import Path

from tests.simulation.scenarios import SCENARIOS, Report, run_seed

REGRESSIONS = Path(__file__).with_name("regressions.txt")
SUMMED = ("lost", "phantom", "duplicate", "gap")


def regressions() -> list[tuple[str, int]]:
    """(scenario, seed) pairs that failed once and must never again."""
    pairs: list[tuple[str, int]] = []
    for line in REGRESSIONS.read_text().splitlines():
        words = line.partition("#")[0].split()
        if words:
            pairs.append((words[0], int(words[1])))
    return pairs


def run_twice(job: tuple[str, int, bool]) -> Report:
    """One seed, and again to see that it is the same; the first report, with what differed."""
    scenario, seed, twice = job
    report = run_seed(scenario, seed)
    if twice:
        again = run_seed(scenario, seed)
        if again.trace_hash != report.trace_hash:
            report.problems.append("nondeterministic: the second run took another course")
            report.categories["nondeterministic"] = 1
    return report


def replay_command(report: Report) -> str:
    """What a developer types to see it again."""
    return f"python -m tests.simulation.run --scenario {report.scenario} --seed {report.seed}"


def summary(reports: list[Report]) -> str:
    """The last line."""
    categories: Counter[str] = Counter()
    for report in reports:
        categories.update(report.categories)
    other = sum(bool(report.problems) for report in reports)
    fields = {
        "seeds": len(reports),
        "events": sum(report.events for report in reports),
        "virtual_hours": f"{sum(report.virtual_s for report in reports) / 3600:.2f}",
        "faults": sum(report.faults for report in reports),
        "acks_checked": sum(report.acks_checked for report in reports),
        **{name: categories[name] for name in SUMMED},
        "nondeterministic": categories["nondeterministic"],
        "failed_seeds": other,
    }
    return "sim: " + " ".join(f"{name}={value}" for name, value in fields.items())


def show(report: Report) -> None:
    """Print a failing seed."""
    print(f"FAILED {report.scenario} seed {report.seed}:")
    for problem in report.problems[:20]:
        print(f"  {problem}")
    print(f"  replay: {replay_command(report)}", flush=True)


def main() -> int:
    """Exit status 1 when any seed failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.run", description=__doc__)
    parser.add_argument("--seeds", type=int, default=20, help="how many seeds, from --first on")
    parser.add_argument("--first", type=int, default=1, help="first seed")
    parser.add_argument("--seed", type=int, help="run this one seed and print its trace")
    parser.add_argument("--scenario", choices=sorted(SCENARIOS), default="swarm")
    parser.add_argument("--jobs", type=int, default=2, help="processes")
    parser.add_argument("--once", action="store_true", help="skip the second run of each seed")
    parser.add_argument("--trace", type=Path, help="with --seed: write the trace to this file")
    arguments = parser.parse_args()
    if os.environ.get("PYTHONHASHSEED") != "0":
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, "-m", "tests.simulation.run", *sys.argv[1:]])

    reports: list[Report] = []
    if arguments.seed is not None:
        report = run_seed(arguments.scenario, arguments.seed, keep_trace=True)
        if arguments.trace:
            arguments.trace.write_text("\n".join(report.trace) + "\n")
        reports.append(report)
        if report.problems:
            show(report)
    else:
        seeds = range(arguments.first, arguments.first + arguments.seeds)
        jobs = [(arguments.scenario, seed, not arguments.once) for seed in seeds]
        with get_context("spawn").Pool(arguments.jobs) as pool:
            for report in pool.imap(run_twice, jobs):
                reports.append(report)
                if report.problems:
                    show(report)
    print(summary(reports))
    return 1 if any(report.problems for report in reports) else 0


if __name__ == "__main__":
    sys.exit(main())
