"""Every story is told as it is written, and names a rule that there is."""

import re
from pathlib import Path

import pytest

from tests.scenarios.runner import FOLDER, VOCABULARIES, check, read, stories

PROTOCOL = FOLDER.parent.parent / "docs/design/protocol.md"
TITLE = re.compile(r"(?:(?P<rules>R\d+(?:, R\d+)*)|Placement|Group commit): [A-Z].*\.")
LINES_MAX = 80
"""Lines that fit on a screen. Split a longer scenario in two."""
WIDTH_MAX = 100

each_story = pytest.mark.parametrize(
    "path", stories(), ids=lambda path: f"{path.parent.name}/{path.stem}"
)


@each_story
def test_story(path: Path, rewrite: bool) -> None:
    check(path, rewrite=rewrite)


@each_story
def test_title_says_what_is_shown_and_by_which_rule(path: Path) -> None:
    story = read(path)
    found = TITLE.fullmatch(story.title)
    assert found, f"{story.path}: {story.title!r} is not like 'R5: What is shown.'"
    text = PROTOCOL.read_text()
    for rule in (found["rules"] or "").split(", "):
        assert not rule or f"**{rule} " in text, f"{story.path}: there is no {rule}"


@each_story
def test_story_is_short_and_written_as_it_is_rendered(path: Path) -> None:
    story = read(path)
    text = path.read_text()
    assert story.text() == text
    assert text.count("\n") <= LINES_MAX
    for step in story.steps:
        for line in (*step.remarks, *(command.text for command in step.commands)):
            assert len(line) <= WIDTH_MAX, f"{story.path}: {line}"


@pytest.mark.parametrize("folder", VOCABULARIES)
def test_every_command_is_used(folder: str) -> None:
    told = [read(path) for path in stories() if path.parent.name == folder]
    used = {command.name for story in told for step in story.steps for command in step.commands}
    assert VOCABULARIES[folder].names == used
