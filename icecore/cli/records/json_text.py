"""JSON of which parts are taken as they were written.

A number that Python reads and writes again may be another one: it has fewer digits, or none. So
what is no string is kept as the text of the source. What JSON does not know (NaN, Infinity) is
refused, though Python reads it.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any, Final, NoReturn

_SPACE: Final = re.compile(r"[ \t\n\r]*")


class JsonNumber(str):
    """A number, as it was written."""

    __slots__ = ()


class _Members(list[Any]):
    """Names and values of an object."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class JsonPart:
    """A value inside of a JSON text."""

    value: Any
    """A string, ``JsonNumber``, True, False, None, a list, or an object as a list of pairs."""
    source: str = ""
    """A list or an object as it was written."""

    @property
    def is_number(self) -> bool:
        """Return whether it is a number."""
        return isinstance(self.value, JsonNumber)

    @property
    def is_string(self) -> bool:
        """Return whether it is a string."""
        return isinstance(self.value, str) and not self.is_number

    @property
    def is_object(self) -> bool:
        """Return whether it is an object."""
        return isinstance(self.value, _Members)

    @property
    def is_list(self) -> bool:
        """Return whether it is a list."""
        return isinstance(self.value, list) and not self.is_object

    def as_text(self) -> str | None:
        """The string itself; anything else as it was written; None of null."""
        if isinstance(self.value, str) or self.value is None:
            return None if self.value is None else str(self.value)
        return _BOOLEANS[self.value] if isinstance(self.value, bool) else self.source

    def shown(self) -> str:
        """It for a message."""
        text = repr(self.value) if self.is_string else self.as_text() or "null"
        return text if len(text) <= 60 else f"{text[:57]}..."


_BOOLEANS: Final = {True: "true", False: "false"}


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


_decoder: Final = json.JSONDecoder(
    parse_int=JsonNumber,
    parse_float=JsonNumber,
    parse_constant=_refuse,
    object_pairs_hook=_Members,
)
"""Numbers stay text: some are too large for Python, and all of them change in it."""


def check_object(text: str) -> list[tuple[str, Any]]:
    """Names and values of an object, as ``JsonPart`` has them.

    Raises:
        NotAnObjectError: The text is something else.
        ValueError: It is no JSON.
    """
    found = _decoder.decode(text)
    if not isinstance(found, _Members):
        raise NotAnObjectError
    return found


class NotAnObjectError(ValueError):
    """The text is JSON, but of another kind."""


def members_of(text: str) -> list[tuple[str, JsonPart]]:
    """Names and values of an object, in their order; a name that is there twice comes twice.

    Raises:
        NotAnObjectError: It is something else.
        ValueError: It is no JSON.
    """
    found = check_object(text)
    if any(isinstance(value, list) for _, value in found):  # where they stand says how
        return [(str(name), part) for name, part in _parts(text, is_object=True)]
    return [(name, JsonPart(value)) for name, value in found]


def items_of(text: str) -> list[JsonPart]:
    """The items of a list, which is known to be one."""
    return [part for _, part in _parts(text, is_object=False)]


def _parts(text: str, *, is_object: bool) -> Iterator[tuple[Any, JsonPart]]:
    """Those of a text that is valid: whatever stands between two of them is a comma."""
    at = _after_space(text, _after_space(text, 0) + 1)
    while text[at] not in "]}":
        name = None
        if is_object:
            name, at = scanstring(text, at + 1)
            at = _after_space(text, _after_space(text, at) + 1)
        value, end = _decoder.raw_decode(text, at)
        yield name, JsonPart(value, text[at:end])
        at = _after_space(text, end)
        if text[at] == ",":
            at = _after_space(text, at + 1)


def _after_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return at if found is None else found.end()
