"""One line per event, in one dialect, so that a person and a program read the same log.

A line is ``event=NAME key=value key=value …``:

- ``event=`` comes first. NAME is a word of ``a-z``, digits and ``_``. It says what happened, and is
  the same for every line of its kind: what differs from line to line is a value.
- Identifiers have one spelling everywhere: ``segment_id=``, ``topic_id=``, ``node_id=``,
  ``partition=``. Units come last (``free_bytes=``, ``late_ms=``).
- A value that is empty or holds a space, ``=``, a quote or anything that is not printable stands in
  double quotes, with the escapes of JSON: nobody's text can begin a line or a key of its own.
- An error always stands in quotes: ``error="no space left"``.
- None is ``none``, truth is ``true`` or ``false``, bytes are hexadecimal digits, the member of an
  enum is its name in small letters, and a collection is its values with commas between them.

Time, level and logger are in front of that line as the process has set up ``logging``.
"""

import json
import logging
import re
from collections.abc import Iterable
from enum import Enum
from typing import Final

_PLAIN: Final = re.compile(r"[^\s\"'=\\]+")


def event(
    log: logging.Logger,
    level: int,
    name: str,
    /,
    *,
    exc_info: BaseException | bool | None = None,
    **fields: object,
) -> None:
    """Log one event; nothing is written out when nobody listens at that level.

    Args:
        log: The logger of the file: ``_log = logging.getLogger(__name__)``.
        level: As in ``logging``: ``logging.WARNING``.
        name: What happened, in words joined by ``_``.
        exc_info: An error whose traceback follows the line; True for the one being handled.
        fields: Keys and values in the order in which the line has them.
    """
    if log.isEnabledFor(level):
        log.log(level, line(name, **fields), exc_info=exc_info, stacklevel=2)


def line(name: str, /, **fields: object) -> str:
    """The text of one event."""
    return " ".join([f"event={name}", *(f"{key}={_written(fields[key])}" for key in fields)])


def _written(value: object) -> str:
    if isinstance(value, BaseException):
        return _quoted(str(value) or type(value).__name__)
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Enum):
        return value.name.lower()
    if isinstance(value, bytes):
        return value.hex() or '""'
    if isinstance(value, Iterable) and not isinstance(value, str):
        return ",".join(map(_written, value)) or '""'
    text = str(value)
    is_plain = _PLAIN.fullmatch(text) is not None and text.isprintable()
    return text if is_plain else _quoted(text)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=not text.isprintable())
