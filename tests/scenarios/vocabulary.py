"""The commands of one kind of scenario: plain functions, found by name.

A function ``fence_answer(world, *, on: int, end: int = 0)`` is the command ``fence answer on=2``.
Its signature says which arguments there are, which of them are needed and how they are read, so
that a story with a wrong one fails with its line. What the function returns is printed, a line
each. Errors of the product are part of a story: they are printed, too.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from functools import lru_cache
from types import UnionType
from typing import Any, Generic, TypeVar, get_args, get_origin, get_type_hints

from icecore.errors import IcecoreError
from tests.scenarios.story import Command, StoryError

W = TypeVar("W")
F = TypeVar("F", bound=Callable[..., Iterable[str]])


class Vocabulary(Generic[W]):
    """The commands of one kind of story.

    Args:
        begin: Makes the world that a story begins with.
        end: Gives back what that world holds, however the story ends.
    """

    def __init__(self, begin: Callable[[], W], end: Callable[[W], None] | None = None) -> None:
        self.begin = begin
        self.end = end or (lambda _: None)
        self._commands: dict[str, Callable[..., Iterable[str]]] = {}

    def command(self, function: F) -> F:
        """Decorator: this function is the command of its name, with spaces for ``_``."""
        self._commands[function.__name__.replace("_", " ")] = function
        return function

    @property
    def names(self) -> frozenset[str]:
        """Return the names of all commands."""
        return frozenset(self._commands)

    def carry_out(self, world: W, command: Command) -> list[str]:
        """Carry out a command, and return what it prints. Raises StoryError: there is no such
        command or argument."""
        function = self._commands.get(command.name)
        if function is None:
            known = ", ".join(sorted(self._commands))
            raise StoryError(
                f"{command.where}: there is no command {command.name!r}; there are {known}"
            )
        arguments = _arguments(function, command)
        try:
            lines = list(function(world, **arguments))
        except IcecoreError as error:
            return [f"error {error.reason}: {error.message.splitlines()[0]}"]
        except (AssertionError, AttributeError, LookupError) as error:
            raise StoryError(f"{command.where}: {command.text}: {error!r}") from error
        for line in lines:
            if not line.strip() or "\n" in line:
                raise StoryError(f"{command.where}: it prints {line!r}, which is not one line")
        return lines


@lru_cache
def _types(function: Callable[..., object]) -> Mapping[str, Any]:
    """The type of each named argument."""
    hints = get_type_hints(function)
    parameters = inspect.signature(function).parameters.values()
    return {each.name: hints[each.name] for each in parameters if each.kind is each.KEYWORD_ONLY}


def _arguments(function: Callable[..., object], command: Command) -> dict[str, object]:
    types = _types(function)
    for name in command.arguments:
        if name not in types:
            known = ", ".join(types) or "no arguments"
            raise StoryError(f"{command.where}: {command.name} takes {known}, not {name!r}")
    parameters = inspect.signature(function).parameters
    for name in types:
        if parameters[name].default is inspect.Parameter.empty and name not in command.arguments:
            raise StoryError(f"{command.where}: {command.name} needs {name}=…")
    read: dict[str, object] = {}
    for name, text in command.arguments.items():
        try:
            read[name] = _read(text, types[name])
        except ValueError as error:
            raise StoryError(f"{command.where}: {name}={text}: {error}") from error
    return read


def _read(text: str, wanted: Any) -> object:
    """A value of this type. Raises ValueError."""
    if isinstance(wanted, UnionType):  # what may be left out
        [wanted] = [each for each in get_args(wanted) if each is not type(None)]
    if get_origin(wanted) is tuple:
        of = get_args(wanted)[0]
        inner = text.removeprefix("(").removesuffix(")")
        return tuple(_read(each.strip(), of) for each in inner.split(",") if each.strip())
    if wanted is bool:
        if text not in ("yes", "no"):
            raise ValueError("yes or no")
        return text == "yes"
    if wanted is int:
        return int(text)
    if isinstance(wanted, type) and issubclass(wanted, Enum):
        names = {each.name.lower().replace("_", "-"): each for each in wanted}
        if text not in names:
            raise ValueError(f"one of {', '.join(names)}")
        return names[text]
    assert wanted is str, wanted
    return text
