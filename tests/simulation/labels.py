"""Keys and tags of simulated records: they follow from the value, so that judges know them."""

KEYS = 5
TAGS = 3


def key_of(value: bytes) -> bytes:
    """Few keys, each of many records."""
    return b"key %d" % (_number(value) % KEYS)


def tags_of(value: bytes) -> tuple[str, ...]:
    """None, one or two."""
    number = _number(value)
    even = () if number % 2 else ("even",)
    return (*even, f"tag {number % TAGS}")[: number % 4]


def _number(value: bytes) -> int:
    """That of a record among those of its producer: ``producer-1 17 xxx``."""
    return int(value.split(b" ", 2)[1])
