"""The runner itself: what differs is shown, and what can't be carried out is named by its line."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from icecore.errors import ConflictError
from icecore.model import Acks
from tests.scenarios.runner import check, difference, run
from tests.scenarios.story import StoryError, parse
from tests.scenarios.vocabulary import Vocabulary

STORY = """\
# R5: A story.
#
# For whoever reads it.

add numbers=(1, 2) by=3
say text="two words" acks=quorum loudly=yes
----
sum 6
TWO WORDS QUORUM

# Nothing is printed here.
say text=""
----
(nothing)

# The end.
"""

SUMS: Vocabulary[list[int]] = Vocabulary(list)


@SUMS.command
def add(world: list[int], *, numbers: tuple[int, ...], by: int | None = None) -> Iterable[str]:
    world += [*numbers, *([by] if by is not None else [])]
    yield f"sum {sum(world)}"


@SUMS.command
def say(
    world: list[int], *, text: str, acks: Acks | None = None, loudly: bool = False
) -> list[str]:
    words = [text, *([acks.name] if acks else [])]
    line = " ".join(word for word in words if word)
    return [line.upper() if loudly else line] if line else []


@SUMS.command
def fail_twice(world: list[int]) -> list[str]:
    raise ConflictError("version 1 is not 2\nand more")


@SUMS.command
def break_a_rule(world: list[int]) -> list[str]:
    raise AssertionError("I4: went back")


@SUMS.command
def look_up(world: list[int]) -> list[str]:
    return [str(world[0])]


@SUMS.command
def print_badly(world: list[int]) -> list[str]:
    return ["two\nlines"]


def test_a_story_is_read_and_rendered_as_it_is() -> None:
    story = parse("a.txt", STORY)
    assert story.title == "R5: A story."
    assert [len(step.commands) for step in story.steps] == [2, 1]
    assert story.steps[0].commands[1].where == "a.txt:6"
    assert story.text() == STORY
    assert not difference(story, run(story, SUMS))


def test_a_story_with_another_output_fails_with_the_difference() -> None:
    story = parse("a.txt", STORY.replace("sum 6", "sum 7"))
    found = difference(story, run(story, SUMS)).splitlines()
    assert found[:2] == ["--- a.txt as it is written", "+++ a.txt as it is told now"]
    assert [line for line in found[3:] if line[0] in "-+"] == ["-sum 7", "+sum 6"]


@pytest.mark.parametrize(
    ("before", "after"), [("(nothing)", "something"), ("sum 6\n", ""), ("\nTWO WORDS QUORUM", "")]
)
def test_a_line_too_many_or_too_few_is_a_difference(before: str, after: str) -> None:
    story = parse("a.txt", STORY.replace(before, after))
    assert difference(story, run(story, SUMS))


def test_a_file_is_compared_or_rewritten(tmp_path: Path) -> None:
    path = tmp_path / "replication" / "roll.txt"
    path.parent.mkdir()
    text = "# R25: Nothing rolls that is empty.\n\nsegment\nroll why=age\n----\n"
    path.write_text(text + "something else\n")
    with pytest.raises(AssertionError, match=r"\n-something else\n\+\(nothing\)\n"):
        check(path, rewrite=False)
    assert path.read_text() == text + "something else\n"
    check(path, rewrite=True)
    assert path.read_text() == text + "(nothing)\n"
    check(path, rewrite=False)


def test_a_file_in_a_strange_folder_has_no_vocabulary(tmp_path: Path) -> None:
    with pytest.raises(StoryError, match="no vocabulary"):
        check(tmp_path / "story.txt", rewrite=False)


def test_an_error_of_the_product_is_printed() -> None:
    story = parse("a.txt", "fail twice\n----\nerror CONFLICT: version 1 is not 2\n")
    assert not difference(story, run(story, SUMS))


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("sing", "there is no command 'sing'; there are add, "),
        ("add numbers=1 too=2", "add takes numbers, by, not 'too'"),
        ("fail twice now=yes", "fail twice takes no arguments, not 'now'"),
        ("add by=1", "add needs numbers="),
        ("add numbers=one", "numbers=one: invalid literal"),
        ("say text=a acks=some", "acks=some: one of all, quorum, leader"),
        ("say text=a loudly=true", "loudly=true: yes or no"),
        ("break a rule", "break a rule: AssertionError('I4: went back')"),
        ("look up", "look up: IndexError('list index out of range')"),
        ("print badly", "which is not one line"),
    ],
)
def test_what_cant_be_carried_out_is_named_by_its_line(line: str, why: str) -> None:
    story = parse("a.txt", f"# R5: A story.\n\n{line}\n----\n(nothing)\n")
    with pytest.raises(StoryError) as found:
        run(story, SUMS)
    assert str(found.value).startswith("a.txt:3: ") and why in str(found.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("----\n", "a.txt:1: no command stands above ----"),
        ("add numbers=1\n", "a.txt:1: the last step has no ----"),
        ("add numbers=1\n\nsay text=a\n----\n", "a.txt:2: the step above has no ----"),
        ("add numbers=1\n# Why.\n----\n", "a.txt:2: the step above has no ----"),
        ("Add numbers=1\n----\n", "a.txt:1: a command is words in small letters"),
        ("add numbers=1 numbers=2\n----\n", "a.txt:1: numbers is given twice"),
        ("add numbers=1 and more\n----\n", "a.txt:1: not an argument, name=value: 'and more'"),
        ("add numbers=(1\n----\n", "a.txt:1: not an argument, name=value: 'numbers=(1'"),
        ("say text=a, acks=all\n----\nx\n\n----\n", "a.txt:5: no command stands above ----"),
    ],
)
def test_what_is_no_story_is_named_by_its_line(text: str, message: str) -> None:
    with pytest.raises(StoryError) as found:
        parse("a.txt", text)
    assert str(found.value).startswith(message)
