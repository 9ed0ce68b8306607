"""Texts with escapes: ``icecore fetch --format '%p %o %k %v\\n'`` lays records out, and what stands
between keys and values for ``icecore produce -k '\\t'``.

``%t`` topic, ``%p`` partition, ``%o`` offset, ``%k`` key, ``%v`` value, ``%T`` event time, ``%A``
append time, ``%g`` tags with commas between, ``%h`` headers as ``name=value`` with commas between,
``%%`` a percent sign; line ends, tabs, zero bytes, backslashes and bytes by their number are
written as in C. Keys and values are the bytes that they are; none of either is nothing.
"""

import re
from collections.abc import Callable
from typing import Final

import typer

from icecore.cli.records.times import iso_time
from icecore.codec.record import Record

_FIELDS: dict[str, Callable[[Record], bytes]] = {
    "t": lambda record: record.topic.encode(),
    "p": lambda record: b"%d" % record.partition,
    "o": lambda record: b"%d" % record.offset,
    "k": lambda record: record.key or b"",
    "v": lambda record: record.value or b"",
    "T": lambda record: iso_time(record.timestamp_ms).encode(),
    "A": lambda record: iso_time(record.append_timestamp_ms).encode(),
    "g": lambda record: ",".join(record.tags).encode(),
    "h": lambda record: b",".join(
        name.encode() + b"=" + (value or b"") for name, value in record.headers
    ),
}
_ESCAPES: Final = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_ESCAPE: Final = r"\\(x[0-9A-Fa-f]{2}|.?)"
_PART: Final = re.compile(rf"%(.?)|{_ESCAPE}|[^%\\]+", re.DOTALL)
_SEPARATOR_PART: Final = re.compile(rf"{_ESCAPE}|[^\\]+", re.DOTALL)

Part = bytes | Callable[[Record], bytes]


def parse_template(text: str) -> list[Part]:
    """Raises ValueError with a sentence for people."""
    parts: list[Part] = []
    for found in _PART.finditer(text):
        field, escape = found[1], found[2]
        if field is not None:
            if field != "%" and field not in _FIELDS:
                known = " ".join(f"%{name}" for name in _FIELDS)
                raise ValueError(f"%{field} is nothing that a record has; there are {known}")
            parts.append(b"%" if field == "%" else _FIELDS[field])
        else:
            parts.append(_bytes(found[0]) if escape is None else _escaped(escape))
    return parts


def fill(parts: list[Part], record: Record) -> bytes:
    """One record as the template lays it out."""
    return b"".join(each if isinstance(each, bytes) else each(record) for each in parts)


def parse_separator(text: str) -> str:
    """Between keys and values. Bytes that are no UTF-8 become surrogates, as Python gives those of
    an argument.

    Raises BadParameter.
    """
    found = _SEPARATOR_PART.finditer(text)
    try:
        parts = [_bytes(each[0]) if each[1] is None else _escaped(each[1]) for each in found]
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    return b"".join(parts).decode(errors="surrogateescape")


def _escaped(escape: str) -> bytes:
    """The byte that stands behind a backslash. Raises ValueError with a sentence for people."""
    if len(escape) > 1:
        return bytes.fromhex(escape[1:])
    if escape not in _ESCAPES:
        raise ValueError(f"\\{escape} is no escape; there are \\n \\t \\r \\0 \\xHH \\\\")
    return _ESCAPES[escape]


def _bytes(text: str) -> bytes:
    """Any bytes, as an argument."""
    return text.encode(errors="surrogateescape")
