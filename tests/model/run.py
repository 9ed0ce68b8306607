"""``make model``: exhaust every configuration, then show that every seeded mistake is found.

Configurations and mutants share two processes. With names of configurations or mutants as
arguments only those run, one after the other, and traces are printed. The last line is
``model: configs=… states=… violations=… mutants=… killed=…``; the exit status is 0 only if nothing
is violated and every mutant was killed.
"""

import argparse
import gc
import multiprocessing
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from time import perf_counter

from tests.model import retention, tiering, tokens
from tests.model.checker import Result, search
from tests.model.configs import CONFIGS, Config
from tests.model.mutants import MUTANTS, Mutant
from tests.model.rules import Rules
from tests.model.steps import Protocol

PROCESSES = 2

Job = tuple[str, str]
"""("config" or "mutant" or "world", name): everything else is looked up where it runs."""


def worlds() -> dict[str, Config]:
    """Return the unmutated worlds of the mutants, by the text of their bounds.

    Each must be clean, or its kills prove nothing. The text is the key because some bounds differ
    in one number only.
    """
    return {str(replace(mutant.config, name="")): mutant.config for mutant in MUTANTS}


def run(job: Job) -> tuple[Job, Result]:
    """One search."""
    kind, name = job
    rules = Rules()
    if kind == "mutant":
        mutant = next(each for each in MUTANTS if each.name == name)
        config, rules = mutant.config, mutant.rules
    elif kind == "world":
        config = worlds()[name]
    else:
        config = next(each for each in CONFIGS if each.name == name)
    return job, search(Protocol(config, rules))


def describe(job: Job, result: Result) -> str:
    """A progress line."""
    kind, name = job
    figures = f"states={result.states} cpu_seconds={result.cpu_seconds:.1f}"
    if kind != "mutant":
        return f"{kind} {name!r} {figures} {result.violation or 'clean'}"
    mutant: Mutant = next(each for each in MUTANTS if each.name == name)
    verdict = f"killed steps={len(result.trace)} {result.violation}" if result.trace else "SURVIVED"
    return f"mutant {name} rule={mutant.rule!r} {figures} {verdict}"


def jobs(names: Sequence[str]) -> list[Job]:
    """The largest first, so that the processes end together."""
    largest = sorted(CONFIGS, key=lambda c: (-c.nodes, -c.crashes - c.losses - c.records))
    everything = [
        *[("config", config.name) for config in largest],
        *[("world", key) for key in worlds()],
        *[("mutant", mutant.name) for mutant in MUTANTS],
    ]
    return [job for job in everything if not names or job[1] in names]


def results(wanted: Sequence[Job], in_parallel: bool) -> Iterator[tuple[Job, Result]]:
    """Yield each job with its result, as the jobs end."""
    if not in_parallel:
        yield from map(run, wanted)
        return
    # No garbage collection: of millions of tuples none is in a cycle, and looking takes long.
    with multiprocessing.Pool(PROCESSES, gc.disable, maxtasksperchild=1) as pool:
        yield from pool.imap_unordered(run, wanted)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and report; returns the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("name", nargs="*", help="only these configurations or mutants, with traces")
    names = parser.parse_args(arguments).name
    wanted = jobs(names)
    if unknown := set(names) - {name for _, name in wanted}:
        parser.error(f"unknown: {sorted(unknown)}")
    started = perf_counter()
    counts = {"config": 0, "mutant": 0}
    states = violations = killed = 0
    for job, result in results(wanted, in_parallel=not names):
        is_bad = bool(result.violation) == (job[0] != "mutant")
        if job[0] != "world" or is_bad:
            print(describe(job, result), flush=True)
        if result.trace and (names or is_bad):
            print(*[f"    {step}" for step in result.trace], sep="\n", flush=True)
        states += result.states
        counts[job[0]] = counts.get(job[0], 0) + 1
        violations += job[0] != "mutant" and bool(result.violation)
        killed += job[0] == "mutant" and bool(result.violation)
    if not names:  # what has a model of its own has its mutants in its tests
        for name, (found, wrong) in {
            "retention": retention.explore(retention.Rules()),
            "tiering": tiering.explore(tiering.Rules()),
            **{
                f"tokens, {name}": tokens.explore(tokens.Rules(), bounds)
                for name, bounds in tokens.WORLDS.items()
            },
        }.items():
            print(f"config {name!r} states={found} {wrong or 'clean'}", flush=True)
            counts["config"] += 1
            states += found
            violations += bool(wrong)
    print(
        f"took {perf_counter() - started:.0f} s, worlds of mutants clean: {counts.get('world', 0)}"
    )
    print(
        f"model: configs={counts['config']} states={states} violations={violations}"
        f" mutants={counts['mutant']} killed={killed}"
    )
    return int(violations > 0 or killed < counts["mutant"])


if __name__ == "__main__":
    sys.exit(main())
