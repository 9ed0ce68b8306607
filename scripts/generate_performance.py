"""Write `docs/PERFORMANCE.md` from `benchmarks/results/`, or check that what is committed is fresh.

The newest line of each gate counts, of the machine that was measured last. The prose of the page is
`performance_page.md` beside this script.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # benchmarks are no installed package

from benchmarks.gates.bands import SKIPPED, number  # noqa: E402
from benchmarks.gates.catalogue import GROUPS  # noqa: E402

TARGET = ROOT / "docs" / "PERFORMANCE.md"
PAGE = Path(__file__).with_name("performance_page.md")
RESULTS = ROOT / "benchmarks" / "results"
HEAD = "| gate | what | value | interval | band | runs | others |\n|---|---|---|---|---|---|---|\n"
WIDTH = 118

Line = Mapping[str, Any]


def newest(lines: Sequence[Line]) -> tuple[Line, dict[str, Line]]:
    """The machine that was measured last, and by gate its newest line with the date of it.

    Raises:
        ValueError: There are no results.
    """
    machines = [line for line in lines if line["benchmark"] == "machine"]
    if not machines:
        raise ValueError("there are no results; `make bench-gates OUT=FILE` writes some")
    last = max(machines, key=lambda line: str(line["date"]))
    about, found = machines[0], {}
    for line in lines:
        if line["benchmark"] == "machine":
            about = line
        is_known = line["benchmark"] == "gate" and line["verdict"] != SKIPPED
        if is_known and about["name"] == last["name"]:
            kept = found.get(line["name"])
            if kept is None or kept["date"] <= about["date"]:
                found[line["name"]] = {**line, "date": about["date"]}
    return last, found


def document(lines: Sequence[Line]) -> str:
    """All of docs/PERFORMANCE.md."""
    machine, found = newest(lines)
    names = [gate.name for group in GROUPS for gate in group.gates]
    rows = "".join(_row(found[name]) for name in names if name in found)
    absent = ", ".join(name for name in names if name not in found)
    page = PAGE.read_text()
    for mark, text in (
        ("@MACHINE@", _machine(machine)),
        ("@TABLE@\n", HEAD + rows),
        ("@ABSENT@", _wrapped(f"Not measured on this machine so far: {absent}.") if absent else ""),
    ):
        assert page.count(mark) == 1, mark
        page = page.replace(mark, text)
    return page.replace("\n\n\n", "\n\n")


def _machine(machine: Line) -> str:
    memory = f"{round(machine['memory_mib'] / 1024)} GiB of memory"
    software = f"Linux {str(machine['kernel']).split('-')[0]}, Python {machine['python']}"
    about = (
        f"{machine['name']}, {memory}, {software}; {machine['date']}, tree {machine['revision']}"
    )
    note = f" {machine['note'][:1].upper()}{machine['note'][1:]}." if machine["note"] else ""
    return _wrapped(f"Machine: {about}.{note}")


def _row(line: Line) -> str:
    unit = "" if line["unit"] == "ratio" else f" {line['unit']}"
    low, high = (number(each) for each in line["interval"])
    band = "–" if line["band"] is None else "{} to {}".format(*map(number, line["band"]))
    cells = [line["name"], line["about"], f"{number(line['value'])}{unit}", f"{low} to {high}"]
    cells += [band, str(len(line["by_run"])), f"{line['others_share']:.0%}"]
    return "| " + " | ".join(cells) + " |\n"


def _wrapped(text: str) -> str:
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) >= WIDTH:
            lines.append("")
        lines[-1] += f" {word}" if lines[-1] else word
    return "\n".join(lines)


def main() -> None:
    """Bring the file up to date, or with --check exit 1 if it is not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if stale")
    files = sorted(RESULTS.glob("*.jsonl"))
    lines = [json.loads(line) for path in files for line in path.read_text().splitlines()]
    fresh = document(lines)
    if parser.parse_args().check:
        if not TARGET.exists() or TARGET.read_text() != fresh:
            sys.exit(f"{TARGET.name} is stale, run `make references`")
        return
    TARGET.write_text(fresh)


if __name__ == "__main__":
    main()
