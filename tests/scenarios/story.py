"""The format of a story: a text file of steps, each of which is commands and what they print.

```
# R5: What is shown, in one sentence.
#
# Why it matters, for who reads this first.

segment replicas=(1, 2, 3) min_insync_replicas=2
produce acks=quorum records=10
----
1: append [100, 110) for request 1
```

Lines that begin with ``#`` are for the reader and may stand before any step. The lines of a step
above ``----`` are commands, which are carried out in order; the lines below, up to an empty line or
the end of the file, are all that they print, ``(nothing)`` when they print nothing. A command is
some words, then arguments as ``name=value``: a number, a word, ``"several words"``, or ``(1, 2)``.
This module reads and writes that; what a command does is its vocabulary's business.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

NOTHING = "(nothing)"
SEPARATOR = "----"

_ARGUMENT = re.compile(r'(?P<name>\w+)=(?P<value>\([^()]*\)|"[^"]*"|[^\s"()]+)(?=\s|$)')
_NAME = re.compile(r"[a-z]+( [a-z]+)*")


class StoryError(Exception):
    """A story that can't be carried out: the message begins with its file and line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One line above ``----``."""

    name: str
    """Its words."""
    arguments: Mapping[str, str]
    """As they are written, without quotes."""
    text: str
    where: str
    """``file:line``, for messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Commands that are carried out in order, and what they print together."""

    remarks: tuple[str, ...]
    """The lines before it, as they are: remarks and empty lines."""
    commands: tuple[Command, ...]
    output: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """One file."""

    path: str
    steps: tuple[Step, ...]
    epilogue: tuple[str, ...]
    """The lines after the last step."""

    @property
    def title(self) -> str:
        """The first line without its ``#``; empty when there is none."""
        first = self.steps[0].remarks[:1] if self.steps else ()
        return first[0].removeprefix("#").strip() if first else ""

    def text(self) -> str:
        """The file: ``parse(path, story.text()) == story``, but for empty lines at its end."""
        lines: list[str] = []
        for step in self.steps:
            lines += step.remarks
            lines += [command.text for command in step.commands]
            lines += [SEPARATOR, *(step.output or (NOTHING,))]
        lines += self.epilogue
        return "\n".join(lines).rstrip("\n") + "\n"


def told(story: Story, carry_out: Callable[[Command], Sequence[str]]) -> Story:
    """The same commands with what they print now.

    Args:
        story: As it is written.
        carry_out: Called for each command in order; returns what it prints, a line each.
    """
    steps = []
    for step in story.steps:
        output: list[str] = []
        for command in step.commands:
            output += carry_out(command)
        steps.append(replace(step, output=tuple(output)))
    return replace(story, steps=tuple(steps))


def parse(path: str, text: str) -> Story:
    """Read a story. Raises StoryError, with the path as it is given."""
    steps: list[Step] = []
    remarks: list[str] = []
    commands: list[Command] = []
    lines = text.splitlines()
    position = 0
    while position < len(lines):
        line = lines[position]
        position += 1
        where = f"{path}:{position}"
        if line == SEPARATOR:
            if not commands:
                raise StoryError(f"{where}: no command stands above {SEPARATOR}")
            stop = position
            while stop < len(lines) and lines[stop]:
                stop += 1
            output = tuple(lines[position:stop])
            steps.append(
                Step(
                    remarks=tuple(remarks),
                    commands=tuple(commands),
                    output=() if output == (NOTHING,) else output,
                )
            )
            remarks, commands, position = [], [], stop
        elif not line or line.startswith("#"):
            if commands:
                raise StoryError(f"{where}: the step above has no {SEPARATOR}")
            remarks.append(line)
        else:
            commands.append(_command(line, where))
    if commands:
        raise StoryError(f"{path}:{len(lines)}: the last step has no {SEPARATOR}")
    return Story(path=path, steps=tuple(steps), epilogue=tuple(remarks))


def _command(line: str, where: str) -> Command:
    words = line.split("=", 1)[0].rpartition(" ")[0] if "=" in line else line
    if not _NAME.fullmatch(words):
        raise StoryError(
            f"{where}: a command is words in small letters, then name=value …: {line!r}"
        )
    arguments: dict[str, str] = {}
    position = len(words)
    while position < len(line):
        found = _ARGUMENT.match(line, position + 1)
        if found is None or line[position] != " ":
            raise StoryError(f"{where}: not an argument, name=value: {line[position:].strip()!r}")
        name = found["name"]
        if name in arguments:
            raise StoryError(f"{where}: {name} is given twice")
        arguments[name] = found["value"].strip('"')
        position = found.end()
    return Command(name=words, arguments=arguments, text=line, where=where)
