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


@dataclass(frozen=True, slots=True)
class JsonPart:
    """A value inside of a JSON text."""

    value: Any
    """A string, True, False, None, a list or a dict; a number is the string of its digits."""
    text: str
    """It as it was written."""

    @property
    def is_number(self) -> bool:
        """Return whether it is a number."""
        return isinstance(self.value, str) and not self.is_string

    @property
    def is_string(self) -> bool:
        """Return whether it is a string."""
        return self.text.startswith('"')

    def as_text(self) -> str | None:
        """The string itself; anything else as it was written; None of null."""
        if self.value is None:
            return None
        return str(self.value) if self.is_string else self.text

    def shown(self) -> str:
        """It for a message."""
        return self.text if len(self.text) <= 60 else f"{self.text[:57]}..."


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


_decoder: Final = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=_refuse)
"""Numbers stay text: some are too large for Python, and all of them change in it."""


def check_object(text: str) -> None:
    """Raises ValueError when the text is no JSON object."""
    if not isinstance(_decoder.decode(text), dict):
        raise NotAnObjectError


class NotAnObjectError(ValueError):
    """The text is JSON, but of another kind."""


def members_of(text: str) -> list[tuple[str, JsonPart]]:
    """Names and values of an object, in their order; a name that is there twice comes twice.

    Raises:
        NotAnObjectError: It is something else.
        ValueError: It is no JSON.
    """
    check_object(text)
    return [(str(name), part) for name, part in _parts(text, is_object=True)]


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
