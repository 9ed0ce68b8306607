"""Keys and tags of records that tests send. They follow from the value, so that judges know."""

import re

KEYS = 5
TAGS = ("tag 0", "tag 1", "tag 2", "even", "nobody's")
"""All that are asked for; the last is on no record."""
_NUMBER = re.compile(rb"[^ /]+(?: |/\d+/)(\d+)")
"""Pattern of a record's number among those of its producer: ``producer-1 17 xxx`` or
``all-1/0/17``."""


def key_of(value: bytes) -> bytes:
    """Few keys, each of many records; a value that nobody sent has one that nobody asks for."""
    number = _number(value)
    return b"" if number is None else b"key %d" % (number % KEYS)


def tags_of(value: bytes) -> tuple[str, ...]:
    """None, one or two."""
    number = _number(value) or 0
    even = () if number % 2 else ("even",)
    return (*even, f"tag {number % 3}")[: number % 4]


def _number(value: bytes) -> int | None:
    found = _NUMBER.match(value)
    return None if found is None else int(found[1])
