"""Arguments of the public API: wrong ones are refused at once, before anything is reserved or sent.

A wrong type is a TypeError; a value out of range is an InvalidRequestError, of a constructor a
ConfigurationError. Both say what was given and what is expected. Record fields come back in the
form in which they are kept: a caller may change its own lists afterwards.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from operator import index
from typing import Any, TypeAlias

from icecore.codec.batch import MAX_TIMESTAMP_MS, MIN_TIMESTAMP_MS
from icecore.errors import ConfigurationError, IcecoreError, InvalidRequestError
from icecore.model import check_topic_name
from icecore.topic_settings import check_indexed_headers

_Pairs: TypeAlias = tuple[tuple[str, bytes | None], ...]
HeadersLike: TypeAlias = Iterable[tuple[str, bytes | None]] | Mapping[str, bytes | None]
"""Pairs of a name and a nullable value, or a mapping of names to such values."""

TIME_MS_MIN, TIME_MS_MAX = -(1 << 63), (1 << 63) - 1
"""Range of times that are asked for: signed 64-bit milliseconds."""
_TAGS = "a sequence of strings"
_PAIR = {tuple}
_HEADERS = "a sequence of pairs (name, bytes or None), or a mapping of names to such values"
LABEL_BYTES = 8
"""Offset of a tag, or offsets of a header: what it takes in a batch beside its own bytes."""
UINT32_MAX, UINT64_MAX = (1 << 32) - 1, (1 << 64) - 1
OFFSET_MAX = (1 << 63) - 1
SIZE_BYTES_MAX = 1 << 62
DURATION_MS_MAX = 10**12
"""Thirty years: more is a mistake, and far more does not fit into a timer."""


def wrong_type(name: str, given: object, expected: str) -> TypeError:
    """The error for an argument of a wrong type."""
    shown = repr(given)
    shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
    return TypeError(f"{name} is {expected}, not {shown} ({type(given).__name__})")


def _is_text_or_mapping(given: object) -> bool:
    """It can be gone over, and is hardly meant so."""
    return isinstance(given, str | bytes | bytearray | memoryview | Mapping)


# --- one record ---------------------------------------------------------------------------------


def check_record(
    value: object,
    key: object,
    tags: object,
    headers: object,
    timestamp_ms: object,
    partition: object,
) -> tuple[tuple[str, ...], _Pairs, int]:
    """Tags and headers as they are kept, and the bytes of all. Raises as the functions below."""
    size_bytes = 0
    if value is not None:
        if type(value) is not bytes:
            raise wrong_type("value", value, "bytes or None")
        size_bytes += len(value)
    if key is not None:
        if type(key) is not bytes:
            raise wrong_type("key", key, "bytes or None")
        size_bytes += len(key)
    if timestamp_ms is not None:
        record_time_ms(timestamp_ms)
    if partition is not None:
        partition_number(partition)
    if tags == () and headers == ():
        return (), (), size_bytes
    kept_tags, kept_headers, extra = record_labels(tags, headers)
    return kept_tags, kept_headers, size_bytes + extra


def record_labels(tags: Any, headers: Any) -> tuple[tuple[str, ...], _Pairs, int]:
    """Tags and headers of one record as they are kept, and their bytes in a batch.

    Raises:
        TypeError: Tags are not strings, or headers not pairs of a string and bytes or None.
        InvalidRequestError: A text has no UTF-8 form.
    """
    size_bytes = 0
    if type(tags) is not tuple:
        tags = _tags(tags)
    for tag in tags:
        if type(tag) is not str:
            raise wrong_type("tags", tags, _TAGS)
        size_bytes += LABEL_BYTES + (len(tag) if tag.isascii() else _text_bytes("tag", tag))
    if type(headers) is not tuple or not {*map(type, headers)} <= _PAIR:
        headers = _pairs(headers)
    for pair in headers:
        if len(pair) != 2:
            raise wrong_type("headers", headers, _HEADERS)
        name, value = pair
        if type(name) is not str:
            raise wrong_type("the name of a header", name, "a string")
        size_bytes += LABEL_BYTES
        size_bytes += len(name) if name.isascii() else _text_bytes("header name", name)
        if value is not None:
            if type(value) is not bytes:
                raise wrong_type(f"the value of header {name!r}", value, "bytes or None")
            size_bytes += len(value)
    return tags, headers, size_bytes


def _tags(tags: Any) -> tuple[Any, ...]:
    if _is_text_or_mapping(tags) or not isinstance(tags, Iterable):
        raise wrong_type("tags", tags, _TAGS)
    return tuple(tags)


def _pairs(headers: Any) -> tuple[tuple[Any, ...], ...]:
    if isinstance(headers, Mapping):
        headers = headers.items()
    elif _is_text_or_mapping(headers) or not isinstance(headers, Iterable):
        raise wrong_type("headers", headers, _HEADERS)
    pairs = list(headers)
    if not all(isinstance(pair, tuple | list) for pair in pairs):
        raise wrong_type("headers", pairs, _HEADERS)
    return tuple(map(tuple, pairs))


def _text_bytes(what: str, text: str) -> int:
    try:
        return len(text.encode())
    except UnicodeEncodeError as error:
        raise InvalidRequestError(f"{what} {text!r} has no UTF-8 form: {error.reason}") from error


def record_time_ms(timestamp_ms: Any, name: str = "timestamp_ms") -> int:
    """An event time that a leader takes: it refuses a batch with any other, and so all of its
    records. Raises TypeError, InvalidRequestError."""
    expected = "int milliseconds since 1970 UTC, in the years 1 to 9999"
    low, high = MIN_TIMESTAMP_MS, MAX_TIMESTAMP_MS
    return whole(name, timestamp_ms, low, high, expected=expected)


def partition_number(partition: Any) -> int:
    """A number that a partition may have. Raises TypeError, InvalidRequestError."""
    return whole("partition", partition, 0, UINT32_MAX, expected="an int from 0 on")


# --- others -------------------------------------------------------------------------------------


def topic_name(name: Any) -> str:
    """A name that a topic may have. Raises TypeError, InvalidTopicNameError."""
    found = text("topic", name)
    check_topic_name(found)
    return found


def text(name: str, given: Any) -> str:
    """Raises TypeError."""
    if not isinstance(given, str):
        raise wrong_type(name, given, "a string")
    return given


def flag(name: str, given: Any) -> bool:
    """Raises TypeError."""
    if not isinstance(given, bool):
        raise wrong_type(name, given, "True or False")
    return given


def whole(
    name: str,
    given: Any,
    low: int,
    high: int,
    *,
    expected: str = "an int",
    error: type[IcecoreError] = InvalidRequestError,
) -> int:
    """An integer within ``[low, high]``, numpy's included, but no bool and no float."""
    try:
        number = index(given)
    except TypeError:
        raise wrong_type(name, given, expected) from None
    if isinstance(given, bool):
        raise wrong_type(name, given, expected)
    if not low <= number <= high:
        raise error(f"{name} is {expected} from {low} to {high}, not {_short(number)}")
    return number


def milliseconds(name: str, given: object, least: int) -> int:
    """A whole number of them that fits its field in a message. Raises as ``whole``."""
    return whole(name, given, least, UINT32_MAX, error=ConfigurationError)


def size_bytes(name: str, given: Any, high: int = SIZE_BYTES_MAX) -> int:
    """A size of a constructor. Raises TypeError, ConfigurationError."""
    return whole(name, given, 1, high, error=ConfigurationError)


def duration(
    name: str,
    given: Any,
    low: float,
    high: float = DURATION_MS_MAX,
    error: type[IcecoreError] = ConfigurationError,
) -> float:
    """A number within ``[low, high]``. Raises TypeError, ConfigurationError."""
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise wrong_type(name, given, "a number")
    if not low <= given <= high or math.isnan(given):
        raise error(f"{name} is a number from {low:g} to {high:g}, not {_short(given)}")
    return given


def timeout(name: str, given: Any) -> float | None:
    """Seconds to wait, None for as long as it takes. Raises TypeError, InvalidRequestError."""
    if given is None:
        return None
    return duration(name, given, 0, DURATION_MS_MAX / 1000, InvalidRequestError)


def _short(number: float) -> str:
    return "a far larger number" if abs(number) >= 1 << 128 else str(number)


def names(name: str, given: Any) -> tuple[str, ...]:
    """Several topic names. Raises TypeError, InvalidTopicNameError."""
    if _is_text_or_mapping(given) or not isinstance(given, Iterable):
        raise wrong_type(name, given, "a sequence of topic names")
    return tuple(topic_name(each) for each in given)


def header_names(name: str, given: Any) -> tuple[str, ...]:
    """Several names of headers. Raises TypeError, InvalidRequestError."""
    if _is_text_or_mapping(given) or not isinstance(given, Iterable):
        raise wrong_type(name, given, "a sequence of header names")
    found = tuple(text(name, each) for each in given)
    check_indexed_headers(found)
    return found


def partitions(given: Any) -> tuple[int, ...] | None:
    """Several numbers of partitions, None for all. Raises TypeError, InvalidRequestError."""
    if given is None:
        return None
    if _is_text_or_mapping(given) or not isinstance(given, Iterable):
        raise wrong_type("partitions", given, "a sequence of ints, or None for all")
    return tuple(dict.fromkeys(partition_number(each) for each in given))


def segment_ids(name: str, given: Any) -> tuple[int, ...]:
    """Several ids of segments. Raises TypeError, InvalidRequestError."""
    if _is_text_or_mapping(given) or not isinstance(given, Sequence):
        raise wrong_type(name, given, "a sequence of segment ids")
    return tuple(whole(name, each, 1, UINT64_MAX) for each in given)


def node_ids(name: str, given: Any) -> tuple[int, ...]:
    """Several ids of nodes. Raises TypeError, InvalidRequestError."""
    if _is_text_or_mapping(given) or not isinstance(given, Sequence):
        raise wrong_type(name, given, "a sequence of node ids")
    return tuple(whole(name, each, 1, UINT32_MAX) for each in given)


def columns(name: str, given: Any, expected: str) -> Sequence[Any]:
    """A column of records: it has a length, an order and slices. Raises TypeError."""
    if isinstance(given, list | tuple):
        return given
    if _is_text_or_mapping(given):
        raise wrong_type(name, given, expected)
    try:
        return list(given)
    except TypeError:
        raise wrong_type(name, given, expected) from None
