"""Records as text: lines and NDJSON in, NDJSON out.

What ``icecore fetch`` prints, ``icecore produce --format records`` reads back without loss: a value
or key that is not UTF-8 is printed as base64 with ``"…_encoding": "base64"`` beside it, and
understood that way.
"""

import base64
import codecs
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import MAX_PREC, ROUND_FLOOR, Context, Decimal, InvalidOperation
from enum import StrEnum
from typing import Any, Final

from icecore.cli.records.json_text import (
    JsonPart,
    NotAnObjectError,
    check_object,
    items_of,
    members_of,
)
from icecore.cli.records.times import iso_time, parse_time_ms
from icecore.codec.batch import MAX_TIMESTAMP_MS
from icecore.codec.record import Record
from icecore.errors import InvalidRequestError


class TimeUnit(StrEnum):
    """Unit of times that are numbers."""

    S = "s"
    MS = "ms"
    US = "us"
    NS = "ns"


_PER_MS = {
    TimeUnit.S: Decimal(1000),
    TimeUnit.MS: Decimal(1),
    TimeUnit.US: Decimal("0.001"),
    TimeUnit.NS: Decimal("0.000001"),
}
_OTHER_FIELDS_BYTES: Final = 1 << 20
_NAMES_MAX: Final = 200
"""Characters of names in a message."""
_DIGITS_MAX: Final = 30
_EXACT: Final = Context(prec=MAX_PREC)


@dataclass(frozen=True, slots=True)
class LineFormat:
    """The meaning of each part of a line. Field names are top-level keys of the JSON object."""

    is_ndjson: bool = False
    key_field: str = ""
    value_field: str = ""
    """Empty = the whole line is the value."""
    tag_fields: tuple[str, ...] = ()
    headers_field: str = ""
    """An object of names and values, or a list of objects with ``name`` and ``value``."""
    time_field: str = ""
    time_unit: TimeUnit = TimeUnit.MS
    """Unit of times that are numbers."""
    has_partition: bool = False
    """``partition`` is that of the record."""
    has_encodings: bool = False
    """A field beside a text may say that the text is base64, and an empty tag is a tag."""
    key_separator: str = ""
    """For plain lines: what stands between key and value."""

    def line_bytes_max(self, record_bytes_max: int) -> int:
        """Longest line that may be a record: JSON escapes a byte by six, and has fields that are
        not taken."""
        if self.value_field:
            return 8 * record_bytes_max + _OTHER_FIELDS_BYTES
        return record_bytes_max + len(self.key_separator.encode(errors="replace")) + 2

    @property
    def has_fields(self) -> bool:
        """Return whether anything but the whole line is taken."""
        fields = self.key_field, self.value_field, self.headers_field, self.time_field
        return self.has_partition or any(fields) or bool(self.tag_fields)


RECORDS = LineFormat(
    is_ndjson=True,
    key_field="key",
    value_field="value",
    tag_fields=("tags",),
    headers_field="headers",
    time_field="timestamp",
    has_partition=True,
    has_encodings=True,
)
"""Format that :func:`format_record` writes."""


def parse_lines(
    lines: Iterable[bytes], source: str, form: LineFormat, first_number: int = 1
) -> Iterator[tuple[int, Record]]:
    """One record per non-empty line, and its number; ``first_number`` is that of the first line.

    Raises InvalidRequestError naming ``source`` and the line number.
    """
    parse = _parse_ndjson if form.is_ndjson else _parse_plain
    for number, line in enumerate(lines, first_number):
        text = line.removesuffix(b"\n").removesuffix(b"\r")
        if not text:
            continue
        try:
            record = parse(text, form)
        except UnicodeEncodeError as error:  # JSON can escape what no UTF-8 can have
            half = ascii(error.object[error.start]).strip("'")
            why = f"a text in it has {half}, half of a character: it can't be written in UTF-8"
            raise InvalidRequestError(f"{source}, line {number}: {why}") from error
        except (ValueError, RecursionError) as error:
            raise InvalidRequestError(f"{source}, line {number}: {error}") from error
        yield number, record


def _parse_plain(line: bytes, form: LineFormat) -> Record:
    if not form.key_separator:
        return Record(line)
    # Python gives bytes of an argument that are no UTF-8 as surrogates.
    key, separator, value = line.partition(form.key_separator.encode(errors="surrogateescape"))
    if not separator:
        raise ValueError(f"no key separator {form.key_separator!r} in it")
    return Record(value, key=key)


def _parse_ndjson(line: bytes, form: LineFormat) -> Record:
    line = line.removeprefix(codecs.BOM_UTF8)  # files that were put together have some inside
    try:
        text = line.decode()
        if not form.has_fields:
            check_object(text)
            return Record(line)
        row = _Row(members_of(text))
    except NotAnObjectError as error:
        raise ValueError("not a JSON object") from error
    except ValueError as error:
        raise ValueError(f"not valid JSON: {error}") from error
    record = Record(line)
    if form.value_field:
        record.value = _bytes_of(row, form.value_field, form)
    if form.key_field:
        record.key = _bytes_of(row, form.key_field, form)
    if form.headers_field:
        record.headers = _headers_of(row.part(form.headers_field), form)
    if form.has_partition:
        record.partition = _partition_of(row)
    if form.time_field:
        record.timestamp_ms = _time_of(row.part(form.time_field), form.time_unit)
    tags = [tag for name in form.tag_fields for tag in _tags_of(row.part(name))]
    record.tags = tuple(tag for tag in tags if tag or form.has_encodings)
    "".join(record.tags).encode()  # half of a surrogate pair is no text
    return record


class _Row:
    """The fields of a JSON object."""

    def __init__(self, members: list[tuple[str, JsonPart]]) -> None:
        self._parts = dict(members)
        self._twice: set[str] = set()
        if len(self._parts) < len(members):
            names = Counter(name for name, _ in members)
            self._twice = {name for name, count in names.items() if count > 1}

    def part(self, name: str) -> JsonPart:
        """The value of a field. Raises ValueError unless there is exactly one of that name."""
        if name in self._twice:
            raise ValueError(f"field {name!r} is in it more than once")
        if name not in self._parts:
            known = ", ".join(sorted(self._parts)) or "none"
            shown = known if len(known) <= _NAMES_MAX else f"{known[:_NAMES_MAX]}..."
            raise ValueError(f"no field {name!r} in it; there are {shown}")
        return self._parts[name]

    def is_base64(self, name: str) -> bool:
        """Return whether a field beside it says so."""
        beside = self._parts.get(f"{name}_encoding")
        return beside is not None and beside.as_text() == "base64"

    def __contains__(self, name: str) -> bool:
        return name in self._parts


def _tags_of(part: JsonPart) -> list[str]:
    """A list has several; null is none."""
    parts = items_of(part.source) if part.is_list else [part]
    return [text for each in parts if (text := each.as_text()) is not None]


def _time_of(part: JsonPart, unit: TimeUnit) -> int:
    """A number, also in a string, is of ``unit``; anything else is ISO 8601."""
    if not isinstance(part.value, str):
        raise ValueError(f"the time is {part.shown()}, neither a text nor a number")
    text = part.value.strip()
    if not text.isascii() or "_" in text:  # Python reads digits of other scripts, and 1_000
        return parse_time_ms(text)
    try:
        number = Decimal(text)
    except InvalidOperation:
        return parse_time_ms(text)
    # Very large exponents would become very many digits.
    is_near = number.is_finite() and number.adjusted() <= _DIGITS_MAX
    scaled = _EXACT.multiply(number, _PER_MS[unit]) if is_near else number
    if not is_near or abs(scaled) > MAX_TIMESTAMP_MS:
        shown = text if len(text) <= 60 else f"{text[:57]}..."
        raise ValueError(f"{shown!r} is not between the years 1 and 9999")
    return parse_time_ms(str(int(scaled.to_integral_value(ROUND_FLOOR))))


def _partition_of(row: _Row) -> int:
    if "partition" not in row:
        return -1
    part = row.part("partition")
    if not (part.is_number and part.value.removeprefix("-").isdecimal() and len(part.value) < 20):
        raise ValueError(f"partition is {part.shown()}, no number")
    return int(part.value)


def _headers_of(part: JsonPart, form: LineFormat) -> tuple[tuple[str, bytes | None], ...]:
    if part.value is None:
        return ()
    if part.is_object:
        return tuple((_header_name(name), _encoded(each)) for name, each in members_of(part.source))
    items = items_of(part.source) if part.is_list else []
    if part.is_list and all(each.is_object for each in items):
        rows = [_Row(members_of(each.source)) for each in items]
        return tuple((_named(row), _bytes_of(row, "value", form)) for row in rows)
    raise ValueError("headers are an object, or a list of objects with name and value")


def _named(row: _Row) -> str:
    name = row.part("name")
    if not name.is_string:
        raise ValueError(f"the name of a header is {name.shown()}, no string")
    return _header_name(name.value)


def _header_name(name: str) -> str:
    name.encode()
    return name


def _encoded(part: JsonPart) -> bytes | None:
    text = part.as_text()
    return None if text is None else text.encode()


def _bytes_of(row: _Row, name: str, form: LineFormat) -> bytes | None:
    part = row.part(name)
    if form.has_encodings and part.is_string and row.is_base64(name):
        return base64.b64decode(part.value, validate=True)
    return _encoded(part)


def format_record(record: Record, *, with_topic: bool = False) -> str:
    """One line of NDJSON: partition, offset, timestamp, key, value, tags, headers."""
    row: dict[str, Any] = {
        **({"topic": record.topic} if with_topic else {}),
        "partition": record.partition,
        "offset": record.offset,
        "timestamp": iso_time(record.timestamp_ms),
        "append_timestamp": iso_time(record.append_timestamp_ms),
        **_text_of("key", record.key),
        **_text_of("value", record.value),
        "tags": list(record.tags),
        "headers": [{"name": name, **_text_of("value", value)} for name, value in record.headers],
    }
    return json.dumps(row, ensure_ascii=False)


def _text_of(name: str, value: bytes | None) -> dict[str, str | None]:
    if value is None:
        return {name: None}
    try:
        return {name: value.decode()}
    except UnicodeDecodeError:
        return {name: base64.b64encode(value).decode(), f"{name}_encoding": "base64"}
