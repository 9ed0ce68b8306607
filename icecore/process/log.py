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

A process has one line per event on stderr (``set_up``): the time as RFC 3339 in UTC, the level, the
logger and that line. With ``json`` it is an object with ``time``, ``level``, ``logger``, ``event``
and the keys of the event, whose values are numbers, truth values, null or strings.
"""

import json
import logging
import math
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from enum import Enum
from functools import lru_cache
from typing import Final, Literal, TypeAlias

LogFormat: TypeAlias = Literal["text", "json"]
OTHERS_EVERY_S: Final = 1.0
_EVENT: Final = "icecore_event"
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
        given = {_EVENT: (name, fields)}
        log.log(level, line(name, **fields), exc_info=exc_info, stacklevel=2, extra=given)


def line(name: str, /, **fields: object) -> str:
    """The text of one event."""
    return " ".join([f"event={name}", *(f"{key}={_written(fields[key])}" for key in fields)])


def _written(value: object) -> str:
    if type(value) is int:  # most are
        return str(value)
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


# --- how a process writes them ------------------------------------------------------------------


def set_up(level: str, form: LogFormat) -> None:
    """Log to stderr from ``level`` on, in text or as JSON. Once, at the start of a process.

    A line has neither the place in the code nor the thread, so nobody looks for them, which is a
    third of what it costs (as the logging HOWTO of Python says under "Optimization").
    """
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(OthersSeldom())
    handler.setFormatter(_Json() if form == "json" else _Text())
    logging.basicConfig(level=level.upper(), handlers=[handler])


class OthersSeldom(logging.Filter):
    """Lets through what is ours, and of each other logger and level one record a second, which says
    how many were left out before it: gRPC logs a traceback for each compressed call, so a stranger
    could fill the disk with them.

    Args:
        now_s: A clock that never goes back.
    """

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._now_s = now_s
        self._last_s: dict[tuple[str, int], float] = {}
        self._left_out: Counter[tuple[str, int]] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether this one is written."""
        if record.name.startswith("icecore"):
            return True
        kind, now_s = (record.name, record.levelno), self._now_s()
        if now_s - self._last_s.get(kind, -math.inf) < OTHERS_EVERY_S:
            self._left_out[kind] += 1
            return False
        self._last_s[kind] = now_s
        if left_out := self._left_out.pop(kind, 0):
            record.msg, record.args = f"{record.getMessage()} (left out before: {left_out})", ()
        return True


def rfc3339(seconds: float) -> str:
    """``2026-11-21T23:27:17.134Z``."""
    whole = int(seconds // 1)
    return f"{_second(whole)}.{int((seconds - whole) * 1000):03d}Z"


@lru_cache(maxsize=8)
def _second(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


class _Text(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        return rfc3339(record.created)


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        name, fields = getattr(record, _EVENT, ("", {"message": record.getMessage()}))
        found = {key: _json_value(value) for key, value in fields.items()}
        if record.exc_info:
            found["traceback"] = self.formatException(record.exc_info)
        # These are the log's own, whatever an event calls its keys.
        found |= {
            "time": rfc3339(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": name,
        }
        order = ("time", "level", "logger", "event")
        return json.dumps({key: found[key] for key in (*order, *found)}, ensure_ascii=True)


def _json_value(value: object) -> object:
    if isinstance(value, Enum):
        return value.name.lower()
    if isinstance(value, BaseException):
        return str(value) or type(value).__name__
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return _written(value).strip('"') if isinstance(value, bytes) else _joined(value)


def _joined(value: object) -> str:
    if isinstance(value, Iterable):
        return ",".join(str(_json_value(each)) for each in value)
    return str(value)
