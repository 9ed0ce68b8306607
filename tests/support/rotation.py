"""One number chooses what a run takes of the lists that are too long for every run.

The number stands in ``tests/rotation.txt``, and each submitted change raises it by one: what passed
at home is what CI runs. ``ICECORE_ROTATION=17`` replays the run of another number, and
``ICECORE_ROTATION=all`` leaves nothing out. ``python -m tests.support.rotation`` prints what the
number in force takes of each list.

A list of ``m`` items of which a run takes at most ``n`` has ``ceil(m / n)`` turns. After so many
numbers in a row each item was taken once. Neighbours in a list are often alike, so a turn takes
every so-manieth item, not a block.
"""

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

import pytest

Item = TypeVar("Item")

VARIABLE = "ICECORE_ROTATION"
ALL = "all"
TESTS = Path(__file__).parents[1]
FILE = TESTS / "rotation.txt"
EXAMPLES_SHARE = 3
"""A run tries one of so many hypothesis examples."""
SHOWN_MAX = 12


@dataclass(frozen=True)
class Rotation:
    """The number in force, and whether a run takes everything."""

    number: int
    is_all: bool = False

    def part(self, items: Sequence[Item], count: int) -> list[Item]:
        """At most ``count`` of the items: those whose turn it is."""
        if count < 1:
            raise ValueError(f"a turn takes {count} items: give at least 1")
        if self.is_all or not items:
            return list(items)
        turns = -(-len(items) // count)
        return list(items[self.number % turns :: turns])

    def has_turn(self, every: int, turn: int) -> bool:
        """Return whether a test with the turn ``turn`` of ``every`` runs now."""
        return self.is_all or self.number % every == turn % every

    def __str__(self) -> str:
        return f"{self.number}, everything" if self.is_all else str(self.number)


@dataclass(frozen=True)
class Taken:
    """The part of one list that this run takes."""

    name: str
    names: tuple[str, ...]
    of: int | None
    """How many items the list has; None = without end."""

    def __str__(self) -> str:
        shown = ", ".join(self.names[:SHOWN_MAX])
        more = len(self.names) - SHOWN_MAX
        rest = f" and {more} more" if more > 0 else ""
        count = f"{len(self.names)} new" if self.of is None else f"{len(self.names)} of {self.of}"
        return f"{self.name}: {count}: {shown}{rest}"


_taken: dict[str, Taken] = {}


def parse(text: str, source: str) -> int:
    """The number in a text; comments and empty lines do not count.

    Raises:
        ValueError: The text is no whole number from 0 on.
    """
    lines = [line.partition("#")[0].strip() for line in text.splitlines()]
    words = " ".join(line for line in lines if line)
    if not (words.isascii() and words.isdecimal()):
        raise ValueError(
            f"{source} holds {words!r}, which is no rotation number: write a whole number from 0 on"
            f" (or {ALL!r}, in {VARIABLE})"
        )
    return int(words)


def read(given: str | None, file: Path = FILE) -> Rotation:
    """The rotation that the variable names, or else the file.

    Raises:
        ValueError: The variable is neither a number nor ``all``, or the file holds no number.
    """
    if given is None or given == "":
        return Rotation(parse(file.read_text(), str(file)))
    if given == ALL:
        return Rotation(parse(file.read_text(), str(file)), is_all=True)
    return Rotation(parse(given, VARIABLE))


@lru_cache(maxsize=1)
def current() -> Rotation:
    """The rotation of this process."""
    return read(os.environ.get(VARIABLE))


def take(
    name: str,
    items: Sequence[Item],
    count: int,
    *,
    always: Sequence[Item] = (),
    show: Callable[[Item], str] = str,
) -> list[Item]:
    """Those of the items that this run takes.

    Args:
        name: The name of the list in the report.
        items: All that take turns.
        count: A run takes so many of them at most.
        always: Items that run in each rotation, before the others.
        show: The name of an item in the report.
    """
    chosen = [*always, *current().part([each for each in items if each not in always], count)]
    whole = len(always) + sum(each not in always for each in items)
    _taken[name] = Taken(name, tuple(show(each) for each in chosen), whole)
    return chosen


def fresh_seeds(name: str, count: int, whole: int) -> list[int]:
    """Seeds that no other number takes; with ``all`` the first ``whole`` ones besides."""
    rotation = current()
    first = 1 + rotation.number * count
    new = list(range(first, first + count))
    chosen = sorted({*range(1, 1 + whole), *new}) if rotation.is_all else new
    _taken[name] = Taken(name, tuple(map(str, chosen)), None)
    return chosen


def examples(whole: int) -> int:
    """Return how many hypothesis examples a test tries that has ``whole`` in a full run."""
    return whole if current().is_all else -(-whole // EXAMPLES_SHARE)


def users() -> list[str]:
    """Names of the test modules that take a part of a list."""
    here = Path(__file__)
    return sorted(
        ".".join(path.relative_to(TESTS.parent).with_suffix("").parts)
        for path in TESTS.rglob("*.py")
        if path != here and path.parent.name != "tidy" and _takes(path.read_text())
    )


def _takes(text: str) -> bool:
    return "rotation.take(" in text or "rotation.fresh_seeds(" in text


def report() -> list[str]:
    """Describe the part of each list that this run takes, one line per list."""
    unknown = []
    for module in users():
        try:
            importlib.import_module(module)
        except pytest.skip.Exception as error:
            unknown.append(f"{module} is not known here: {error}")
    rotation = current()
    share = "all" if rotation.is_all else f"one in {EXAMPLES_SHARE}"
    return [
        f"rotation: {rotation}",
        *(str(_taken[name]) for name in sorted(_taken)),
        f"hypothesis examples: {share}, from seed {rotation.number}",
        *_whole_tests(),
        *unknown,
    ]


def _whole_tests() -> list[str]:
    """A line about the tests that carry ``@pytest.mark.every``."""
    from tests.support import rotation_marks  # which needs this module

    marked = [
        each
        for path in sorted(TESTS.rglob("test_*.py"))
        if "pytest.mark.every(" in path.read_text() and path.parent.name != "tidy"
        for each in rotation_marks.marked_tests(path)
    ]
    due = [
        key
        for key, every, turn in marked
        if current().has_turn(every, rotation_marks.turn_of(key, every, turn))
    ]
    return [str(Taken("whole tests in turns", tuple(due), len(marked)))]


def main() -> int:
    """Print the report."""
    try:
        print(*report(), sep="\n")
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    # The test modules import this one by its name: that copy has what they took.
    from tests.support import rotation

    sys.exit(rotation.main())
