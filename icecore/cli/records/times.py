"""Points in time and in a partition as people write them on a command line."""

import re
from datetime import UTC, datetime, timedelta
from typing import Final

import typer

from icecore.codec.batch import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS

_WHOLE: Final = re.compile(r"\s*[+-]?[0-9]{1,30}\s*")
"""Python reads more as a number: ``1_000``, and digits of other scripts."""
_DAY: Final = re.compile(r"\s*[0-9]{4}-")
_HOURS: Final = re.compile(r"\s*[0-9]{1,2}:[0-9]{2}")
_MIDNIGHT: Final = re.compile(r"[T\s]24:00(:00)?([.,]0*)?(Z|[+-][0-9:]+)?\s*$", re.IGNORECASE)
"""Python 3.14 reads it, those before do not."""


def parse_time_ms(text: str) -> int:
    """Milliseconds since 1970 UTC of an ISO 8601 time or of such a number itself.

    A time without an offset is UTC. Raises ValueError with a sentence for people.
    """
    if _WHOLE.fullmatch(text):
        value = int(text)
    else:
        try:
            moment = datetime.fromisoformat(text.strip().upper())  # RFC 3339 allows t and z
        except ValueError as error:
            raise ValueError(_no_time(text, error)) from error
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        since = moment - datetime(1970, 1, 1, tzinfo=UTC)
        value = (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000
    if not MIN_TIMESTAMP_MS <= value <= MAX_TIMESTAMP_MS:
        raise ValueError(f"{text!r} is not between the years 1 and 9999")
    return value


def _no_time(text: str, error: ValueError) -> str:
    """Return why it can't be read, for people."""
    shown = text if len(text) <= 60 else f"{text[:57]}..."
    if _HOURS.match(text):
        return f"{shown!r} has no day: write one before it, as in 2026-01-31T10:00"
    if not _DAY.match(text) or "isoformat" in str(error):  # it has no form of a time at all
        return f"{shown!r} is neither an ISO 8601 time nor milliseconds"
    if _MIDNIGHT.search(text):
        return f"{shown!r} is the next day's 00:00: write it so"
    return f"{shown!r} is no time that there is: {error}"


def iso_time(timestamp_ms: int) -> str:
    """ISO 8601 in UTC with milliseconds; :func:`parse_time_ms` reads it back exactly."""
    moment = datetime.fromtimestamp(timestamp_ms // 1000, UTC)
    seconds = moment.replace(tzinfo=None).isoformat(timespec="seconds")
    return f"{seconds}.{timestamp_ms % 1000:03d}Z"


def duration(length_ms: int) -> str:
    """A length of time in its two largest units: ``1 d 3 h``, ``59 min``, ``2.5 s``."""
    if length_ms < 60_000:
        return f"{length_ms / 1000:g} s"
    minutes = length_ms // 60_000
    parts = [(minutes // 1440, "d"), (minutes // 60 % 24, "h"), (minutes % 60, "min")]
    first = next(at for at, (count, _) in enumerate(parts) if count)
    return " ".join(f"{count} {unit}" for count, unit in parts[first : first + 2] if count)


def parse_position(text: str) -> tuple[str, int]:
    """Parse ``--from`` into ("earliest", 0), ("latest", 0), ("last", n), ("offset", n) or ("time",
    ms).

    A bare number is an offset, with a minus the last so many records; ``@`` before it makes it
    milliseconds since 1970.
    """
    if text in ("earliest", "latest"):
        return text, 0
    if _is_digits(text):
        return "offset", _offset(text)
    if text.startswith("-"):
        if not _is_digits(text[1:]) or not (count := _offset(text[1:])):
            raise typer.BadParameter(f"{text[:60]!r} is not -N: the last N records")
        return "last", count
    try:
        return "time", parse_time_ms(text.removeprefix("@"))
    except ValueError as error:
        if _DAY.match(text) or _HOURS.match(text):
            raise typer.BadParameter(str(error)) from error
        raise typer.BadParameter(
            f"{text!r} is not earliest, latest, an offset, -N, an ISO 8601 time or @milliseconds"
        ) from error


def position_of(kind: str, value: int) -> "int | str | datetime":
    """The same as clients take it."""
    match kind:
        case "offset":
            return value
        case "last":
            return -value
        case "time":
            return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=value)
    return kind


def _is_digits(text: str) -> bool:
    return text.isascii() and text.isdecimal()


def _offset(digits: str) -> int:
    if len(digits) > 19 or int(digits) >= 1 << 63:
        raise typer.BadParameter(f"{digits[:60]!r} is larger than any offset")
    return int(digits)
