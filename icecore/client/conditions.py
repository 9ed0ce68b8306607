"""Conditions on records, as a program says them: arguments of look-ups and filtered consumers.

A wrong type is a TypeError, too much or a contradiction an InvalidRequestError. A condition that
is given and empty is refused: nobody can tell whether it means every record or none.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias, TypedDict

from icecore.client.checks import TIME_MS_MAX, TIME_MS_MIN, whole, wrong_type
from icecore.codec.selection import Selection
from icecore.errors import InvalidRequestError
from icecore.rpc.filters import HEADERS_MAX, KEYS_MAX, TAGS_MAX

TimeLike: TypeAlias = datetime | int
"""With a time zone, or milliseconds since 1970 UTC."""
HeaderValues: TypeAlias = Mapping[str, bytes] | Iterable[tuple[str, bytes]]
"""Names of headers and the values that are looked for."""


class SearchArguments(TypedDict, total=False):
    """Arguments of ``Lookup.find``, which says what they mean, for the other ways to ask."""

    keys: Iterable[bytes] | None
    tags_any: Iterable[str] | None
    tags_all: Iterable[str] | None
    tags_none: Iterable[str] | None
    headers: HeaderValues | None
    from_event_time: TimeLike | None
    to_event_time: TimeLike | None
    from_append_time: TimeLike | None
    to_append_time: TimeLike | None
    from_offset: int
    to_offset: int | None
    partitions: Sequence[int] | None
    newest_first: bool
    max_count: int
    continuation: bytes


CONDITION_BYTES_MAX: Final = 1 << 20
"""Maximum size of all keys, tags and headers together: each request carries them."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def selection_of(
    *,
    keys: Iterable[bytes] | None = None,
    tags_any: Iterable[str] | None = None,
    tags_all: Iterable[str] | None = None,
    tags_none: Iterable[str] | None = None,
    headers: HeaderValues | None = None,
    from_event_time: TimeLike | None = None,
    to_event_time: TimeLike | None = None,
) -> Selection:
    """The conditions as a value. Raises TypeError, InvalidRequestError."""
    selection = Selection(
        keys=_keys(keys),
        tags_any=_tags("tags_any", tags_any),
        tags_all=_tags("tags_all", tags_all),
        tags_none=_tags("tags_none", tags_none),
        headers=_headers(headers),
        from_timestamp_ms=time_ms("from_event_time", from_event_time),
        to_timestamp_ms=time_ms("to_event_time", to_event_time),
    )
    check_order(
        "from_event_time", selection.from_timestamp_ms, "to_event_time", selection.to_timestamp_ms
    )
    size_bytes = sum(map(len, selection.keys))
    for tags in (selection.tags_any, selection.tags_all, selection.tags_none):
        size_bytes += sum(len(tag.encode()) for tag in tags)
    size_bytes += sum(len(name.encode()) + len(value) for name, value in selection.headers)
    if size_bytes > CONDITION_BYTES_MAX:
        raise InvalidRequestError(
            f"keys, tags and headers have {size_bytes} bytes, at most {CONDITION_BYTES_MAX} are "
            "allowed: ask for fewer at a time"
        )
    return selection


def time_ms(name: str, given: Any) -> int | None:
    """The first millisecond that does not lie before a time. Raises as ``selection_of``."""
    if given is None:
        return None
    if not isinstance(given, datetime):
        expected = "a time with time zone, or int milliseconds since 1970 UTC"
        return whole(name, given, TIME_MS_MIN, TIME_MS_MAX, expected=expected)
    if given.tzinfo is None:
        raise InvalidRequestError(f"{name} {given!r} has no time zone")
    since = given - _EPOCH
    micros = (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds
    return -(-micros // 1000)


def check_order(low_name: str, low: int | None, high_name: str, high: int | None) -> None:
    """Raises InvalidRequestError when nothing lies between the two."""
    if low is not None and high is not None and low >= high:
        raise InvalidRequestError(f"{low_name} {low} is not before {high_name} {high}")


def _keys(given: Any) -> frozenset[bytes]:
    keys = _several("keys", given, KEYS_MAX, "a sequence of bytes")
    for key in keys:
        if type(key) is not bytes:
            raise wrong_type("a key", key, "bytes")
    return frozenset(keys)


def _tags(name: str, given: Any) -> frozenset[str]:
    tags = _several(name, given, TAGS_MAX, "a sequence of strings")
    for tag in tags:
        _check_text(f"a tag of {name}", tag)
    return frozenset(tags)


def _headers(given: Any) -> frozenset[tuple[str, bytes]]:
    expected = "a mapping of names to bytes, or a sequence of pairs of a name and bytes"
    pairs = given.items() if isinstance(given, Mapping) else given
    found = _several("headers", pairs, HEADERS_MAX, expected)
    for pair in found:
        if type(pair) is not tuple or len(pair) != 2:
            raise wrong_type("headers", given, expected)
        _check_text("the name of a header", pair[0])
        if type(pair[1]) is not bytes:
            raise wrong_type(f"the value of header {pair[0]!r}", pair[1], "bytes")
    return frozenset(found)


def _several(name: str, given: Any, limit: int, expected: str) -> set[Any]:
    if given is None:
        return set()
    if isinstance(given, str | bytes | bytearray | memoryview | Mapping):
        raise wrong_type(name, given, expected)
    try:
        found = set(given)
    except TypeError:
        raise wrong_type(name, given, expected) from None
    if not found:
        raise InvalidRequestError(f"{name} is empty: leave it out to set no such condition")
    if len(found) > limit:
        raise InvalidRequestError(
            f"{name} holds {len(found)} entries, at most {limit} are allowed: ask for fewer at a "
            "time"
        )
    return found


def _check_text(what: str, given: Any) -> None:
    if type(given) is not str:
        raise wrong_type(what, given, "a string")
    try:
        given.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequestError(f"{what}, {given!r}, has no UTF-8 form") from error
