"""Records as text: lines and NDJSON in, NDJSON out.

What ``icecore fetch`` prints, ``icecore produce --format ndjson`` reads back without loss when the
fields are named: a value or key that is not UTF-8 is printed as base64 with ``"…_encoding":
"base64"`` beside it, and understood that way.
"""

import base64
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from icecore.cli.times import iso_time, parse_time_ms
from icecore.codec.record import Record
from icecore.errors import InvalidRequestError


@dataclass(frozen=True, slots=True)
class LineFormat:
    """Which part of a line is what. Field names are top-level keys of the JSON object."""

    is_ndjson: bool = False
    key_field: str = ""
    value_field: str = ""
    """Empty = the whole line is the value."""
    tag_fields: tuple[str, ...] = ()
    time_field: str = ""
    key_separator: str = ""
    """For plain lines: what stands between key and value."""


def parse_lines(
    lines: Iterable[bytes], source: str, form: LineFormat, first_number: int = 1
) -> Iterator[Record]:
    """One record per non-empty line; ``first_number`` is that of the first line.

    Raises InvalidRequestError naming ``source`` and the line number.
    """
    parse = _parse_ndjson if form.is_ndjson else _parse_plain
    for number, line in enumerate(lines, first_number):
        text = line.rstrip(b"\r\n")
        if not text:
            continue
        try:
            yield parse(text, form)
        except ValueError as error:
            raise InvalidRequestError(f"{source}, line {number}: {error}") from error


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
        record.headers = tuple(
            (each["name"], _bytes_of(each, "value")) for each in row.get("headers") or ()
        )
    if form.key_field:
        record.key = _bytes_of(row, form.key_field)
    if form.time_field:
        record.timestamp_ms = parse_time_ms(str(_field(row, form.time_field)))
    tags: list[str] = []
    for name in form.tag_fields:
        value = _field(row, name)
        tags += [str(tag) for tag in (value if isinstance(value, list) else [value])]
    record.tags = tuple(tag for tag in tags if tag)
    return record


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


def format_record(record: Record) -> str:
    """One line of NDJSON: partition, offset, timestamp, key, value, tags, headers."""
    row: dict[str, Any] = {
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
