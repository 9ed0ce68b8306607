"""``icecore fetch --format '%p %o %k %v\\n'``: records as text that the caller lays out.

``%t`` topic, ``%p`` partition, ``%o`` offset, ``%k`` key, ``%v`` value, ``%T`` event time, ``%A``
append time, ``%g`` tags with commas between, ``%h`` headers as ``name=value`` with commas between,
``%%`` a percent sign; line ends, tabs, zero bytes and backslashes are written as in C. Keys and
values are the bytes that they are; none of either is nothing.
"""

import re
from collections.abc import Callable

from icecore.cli.times import iso_time
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
_ESCAPES = {"n": b"\n", "t": b"\t", "r": b"\r", "0": b"\0", "\\": b"\\"}
_PART = re.compile(r"%(.?)|\\(.?)|[^%\\]+", re.DOTALL)

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
        elif escape is not None:
            if escape not in _ESCAPES:
                raise ValueError(f"\\{escape} is no escape; there are \\n \\t \\r \\0 \\\\")
            parts.append(_ESCAPES[escape])
        else:
            parts.append(found[0].encode())
    return parts


def fill(parts: list[Part], record: Record) -> bytes:
    """One record as the template lays it out."""
    return b"".join(each if isinstance(each, bytes) else each(record) for each in parts)
