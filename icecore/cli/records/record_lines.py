"""Records as text: lines and NDJSON in, NDJSON out.

What ``icecore fetch`` prints, ``icecore produce --format records`` reads back without loss: a value
or key that is not UTF-8 is printed as base64 with ``"…_encoding": "base64"`` beside it, and
understood that way.
"""

import base64
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Decimal, InvalidOperation
from enum import StrEnum
from typing import Any

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


@dataclass(frozen=True, slots=True)
class LineFormat:
    """Which part of a line is what. Field names are top-level keys of the JSON object."""

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
    """Whether ``partition`` is that of the record."""
    key_separator: str = ""
    """For plain lines: what stands between key and value."""


RECORDS = LineFormat(
    is_ndjson=True,
    key_field="key",
    value_field="value",
    tag_fields=("tags",),
    headers_field="headers",
    time_field="timestamp",
    has_partition=True,
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
        text = line.rstrip(b"\r\n")
        if not text:
            continue
        try:
            record = parse(text, form)
        except (ValueError, RecursionError) as error:
            raise InvalidRequestError(f"{source}, line {number}: {error}") from error
        yield number, record


def _parse_plain(line: bytes, form: LineFormat) -> Record:
    if not form.key_separator:
        return Record(line)
    key, separator, value = line.partition(form.key_separator.encode())
    if not separator:
        raise ValueError(f"no key separator {form.key_separator!r} in it")
    return Record(value, key=key)


def _parse_ndjson(line: bytes, form: LineFormat) -> Record:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise ValueError(f"not valid JSON: {error}") from error
    if not isinstance(row, dict):
        raise ValueError("not a JSON object")
    record = Record(line)
    if form.value_field:
        record.value = _bytes_of(row, form.value_field)
    if form.key_field:
        record.key = _bytes_of(row, form.key_field)
    if form.headers_field:
        record.headers = _headers_of(_field(row, form.headers_field))
    if form.has_partition:
        record.partition = _partition_of(row)
    if form.time_field:
        record.timestamp_ms = _time_of(_field(row, form.time_field), form.time_unit)
    tags: list[str] = []
    for name in form.tag_fields:
        value = _field(row, name)
        tags += [str(tag) for tag in (value if isinstance(value, list) else [value])]
    record.tags = tuple(tag for tag in tags if tag)
    "".join(record.tags).encode()  # half of a surrogate pair is no text
    return record


def _time_of(value: object, unit: TimeUnit) -> int:
    """A number, also in a string, is of ``unit``; anything else is ISO 8601."""
    text = str(value).strip()
    try:
        number = Decimal(text)
    except InvalidOperation:
        return parse_time_ms(text)
    scaled = number * _PER_MS[unit]
    if not scaled.is_finite() or abs(scaled) > MAX_TIMESTAMP_MS:
        raise ValueError(f"{text!r} is not between the years 1 and 9999")
    return parse_time_ms(str(int(scaled.to_integral_value(ROUND_FLOOR))))


def _partition_of(row: dict[str, Any]) -> int:
    value = row.get("partition", -1)
    if type(value) is not int:
        raise ValueError(f"partition is {value!r}, no number")
    return value


def _headers_of(value: object) -> tuple[tuple[str, bytes | None], ...]:
    if isinstance(value, dict):
        return tuple(
            (_header_name(name), _bytes_of({name: each}, name)) for name, each in value.items()
        )
    if isinstance(value, list) and all(isinstance(each, dict) for each in value):
        return tuple(
            (_header_name(_field(each, "name")), _bytes_of(each, "value")) for each in value
        )
    raise ValueError("headers are an object, or a list of objects with name and value")


def _header_name(name: object) -> str:
    if not isinstance(name, str):
        raise ValueError(f"the name of a header is {name!r}, no string")
    name.encode()
    return name


def _field(row: dict[str, Any], name: str) -> Any:
    if name not in row:
        raise ValueError(f"no field {name!r} in it; there are {', '.join(sorted(row))}")
    return row[name]


def _bytes_of(row: dict[str, Any], name: str) -> bytes | None:
    value = _field(row, name)
    if value is None:
        return None
    if not isinstance(value, str):
        return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
    if row.get(f"{name}_encoding") == "base64":
        return base64.b64decode(value, validate=True)
    return value.encode()


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
