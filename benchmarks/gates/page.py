"""The page of figures: its text is ``page.md``, its table the newest line of each gate."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gates.bands import SKIPPED, Band, number
from benchmarks.gates.catalogue import GROUPS

PAGE = Path(__file__).with_name("page.md")
HEAD = "| gate | what | value | interval | band | runs | others |\n|---|---|---|---|---|---|---|\n"
ABSENT = (
    "gates were not measured on this machine so far; `python -m benchmarks.gates --list` names all."
)
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
    about = machines[0]
    found: dict[str, Line] = {}
    for line in lines:
        if line["benchmark"] == "machine":
            about = line
        is_known = line["benchmark"] == "gate" and line["verdict"] != SKIPPED
        if is_known and about["name"] == last["name"]:
            kept = found.get(line["name"])
            if kept is None or kept["date"] <= about["date"]:
                found[line["name"]] = {**line, "date": about["date"]}
    return last, found


def document(lines: Sequence[Line], bands: Mapping[str, Mapping[str, Band]]) -> str:
    """All of docs/performance.md.

    Args:
        lines: Results, as ``results.py`` writes them. bands: Bands in force, by machine and gate.
        Those that the runs of a line have made are newer
            than the line.
    """
    machine, found = newest(lines)
    in_force = bands.get(str(machine["name"]), {})
    names = [gate.name for group in GROUPS for gate in group.gates]
    rows = "".join(_row(found[name], in_force.get(name)) for name in names if name in found)
    absent = sum(name not in found for name in names)
    page = PAGE.read_text()
    for mark, text in (
        ("@MACHINE@", _machine(machine)),
        ("@TABLE@\n", HEAD + rows),
        ("@ABSENT@", _wrapped(f"{absent} of {len(names)} {ABSENT}") if absent else ""),
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


def _row(line: Line, in_force: Band | None) -> str:
    unit = "" if line["unit"] == "ratio" else f" {line['unit']}"
    low, high = (number(each) for each in line["interval"])
    ends = line["band"] if in_force is None else (in_force.low, in_force.high)
    band = "–" if ends is None else "{} to {}".format(*map(number, ends))
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
