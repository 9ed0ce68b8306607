"""Records of the tests of a run, and the tables made of them. Pure but for reading lines."""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support import left_out as reasons

SLOWEST = 50


@dataclass(frozen=True, slots=True)
class Ended:
    """One test that has ended."""

    name: str
    outcome: str
    wall_s: float
    cpu_s: float
    reason: str = ""

    @property
    def kind(self) -> str:
        """The folder below ``tests``."""
        parts = self.name.split("/", 2)
        return parts[1] if len(parts) > 2 and parts[0] == "tests" else "other"


@dataclass(slots=True)
class Records:
    """All lines of one lane that have been written so far."""

    folder: Path
    collected: int = 0
    waiting: set[str] = field(default_factory=set)
    """Tests that wait for their turn in the rotation."""
    ended: list[Ended] = field(default_factory=list)
    running: dict[Path, str] = field(default_factory=dict)
    """The test that each process is at, by the process's file."""
    _read: dict[Path, int] = field(default_factory=dict)

    def refresh(self) -> list[Ended]:
        """Read what was added; return the tests that have ended since."""
        count = len(self.ended)
        for path in sorted(self.folder.glob("*.jsonl")):
            with path.open("rb") as lines:
                lines.seek(self._read.get(path, 0))
                for line in lines:
                    if not line.endswith(b"\n"):
                        break  # it is being written
                    self._read[path] = self._read.get(path, 0) + len(line)
                    self._take(path, json.loads(line))
        return self.ended[count:]

    def _take(self, path: Path, line: Mapping[str, object]) -> None:
        match line:
            case {"collected": int(count), "waiting": list(waiting)}:
                self.collected = max(self.collected, count)
                # Some processes know a test with its group behind the name: ``…::test@group``.
                self.waiting.update(re.sub(r"@[\w-]+$", "", name) for name in waiting)
            case {"began": str(name)}:
                self.running[path] = name
            case {"ended": str(name), "outcome": str(outcome)}:
                self.running.pop(path, None)
                wall_s, cpu_s = float(str(line["wall_s"])), float(str(line["cpu_s"]))
                reason = str(line.get("reason", ""))
                self.ended.append(Ended(name, outcome, wall_s, cpu_s, reason))

    def outcomes(self) -> Counter[str]:
        """Return the number of tests with each outcome."""
        return Counter(each.outcome for each in self.ended)


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Columns below each other; the first is text, the others are numbers."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def kinds_table(ended: Iterable[Ended]) -> list[str]:
    """Seconds by kind of test, the most expensive first."""
    by_kind = defaultdict[str, list[Ended]](list)
    for each in ended:
        by_kind[each.kind].append(each)
    rows = [["kind", "tests", "test seconds", "processor seconds"]]
    for kind, tests in sorted(by_kind.items(), key=lambda item: -sum(t.cpu_s for t in item[1])):
        wall_s, cpu_s = sum(t.wall_s for t in tests), sum(t.cpu_s for t in tests)
        rows.append([kind, f"{len(tests)}", f"{wall_s:.0f}", f"{cpu_s:.0f}"])
    return table(rows)


def steps_table(steps: Sequence[Mapping[str, object]]) -> list[str]:
    """Seconds by step: lanes, and what came before them."""
    rows = [["step", "wall seconds", "processor seconds"]]
    for step in steps:
        wall_s, cpu_s = float(str(step["wall_s"])), float(str(step["cpu_s"]))
        rows.append([str(step["name"]), f"{wall_s:.0f}", f"{cpu_s:.0f}"])
    return table(rows)


def slowest_table(ended: Iterable[Ended]) -> list[str]:
    """The slowest tests, by seconds from the start of their fixtures to the end of those."""
    slowest = sorted(ended, key=lambda each: -each.wall_s)[:SLOWEST]
    rows = [["test", "seconds", "processor seconds"]]
    rows += [[each.name, f"{each.wall_s:.1f}", f"{each.cpu_s:.1f}"] for each in slowest]
    return table(rows)


def left_out(ended: Iterable[Ended]) -> list[str]:
    """Reasons for which tests were skipped, with their number."""
    return reasons.lines(each.reason for each in ended if each.outcome == "skipped")


def closing_line(outcomes: Mapping[str, int]) -> str:
    """The last line of a run: what continuous integration reads."""
    passed = outcomes.get("passed", 0) + outcomes.get("xfailed", 0)
    line = f"{passed} passed, {outcomes.get('failed', 0)} failed"
    skipped = outcomes.get("skipped", 0)
    return f"{line}, {skipped} skipped" if skipped else line
