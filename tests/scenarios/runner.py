"""Runs a story and compares what is printed with what is written.

The folder of a story says which vocabulary it uses. With ``rewrite`` the file gets what is printed
now, and a person judges the difference as they judge any other change.
"""

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.scenarios.orders_commands import ORDERS
from tests.scenarios.placement_commands import PLACEMENT
from tests.scenarios.recovery_commands import RECOVERY
from tests.scenarios.replication_commands import REPLICATION
from tests.scenarios.storage_commands import STORAGE
from tests.scenarios.story import Story, StoryError, parse, told
from tests.scenarios.vocabulary import Vocabulary

FOLDER = Path(__file__).parent

VOCABULARIES: Mapping[str, Vocabulary[Any]] = {
    "orders": ORDERS,
    "placement": PLACEMENT,
    "recovery": RECOVERY,
    "replication": REPLICATION,
    "storage": STORAGE,
}
"""The commands of each folder, by its name."""


def stories() -> list[Path]:
    """All of them, in the order of their names."""
    return sorted(FOLDER.glob("*/*.txt"))


def read(path: Path) -> Story:
    """The story of a file. Raises StoryError."""
    return parse(f"{path.parent.name}/{path.name}", path.read_text())


def run(story: Story, vocabulary: Vocabulary[Any]) -> Story:
    """The story as it is told now. Raises StoryError: a command can't be carried out."""
    world = vocabulary.begin()
    try:
        return told(story, lambda command: vocabulary.carry_out(world, command))
    finally:
        vocabulary.end(world)


def difference(written: Story, now: Story) -> str:
    """As a unified diff; empty when there is none."""
    lines = difflib.unified_diff(
        written.text().splitlines(keepends=True),
        now.text().splitlines(keepends=True),
        f"{written.path} as it is written",
        f"{written.path} as it is told now",
    )
    return "".join(lines)


def check(path: Path, *, rewrite: bool) -> None:
    """Run the story of a file.

    Args:
        path: In a folder that names a vocabulary.
        rewrite: Write down what is printed rather than compare it.

    Raises:
        StoryError: It can't be carried out.
        AssertionError: It is told differently now; the message is the difference.
    """
    vocabulary = VOCABULARIES.get(path.parent.name)
    if vocabulary is None:
        raise StoryError(f"{path}: no vocabulary is named {path.parent.name!r}")
    written = read(path)
    now = run(written, vocabulary)
    if rewrite:
        path.write_text(now.text())
    else:
        found = difference(written, now)
        assert not found, f"{found}\nIf this is how it must be: pytest tests/scenarios --rewrite"
