"""Lists that go in several messages because one message would be too large.

What makes them large are the producer states of segments: with many short-lived producers, those
of a group of segments outgrow the limit of one message, and no repetition makes them smaller.
"""

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

T = TypeVar("T")

PART_BYTES_MAX: Final = 32 << 20
"""Half of what one message may have, which leaves room for the small fields of each item."""


def in_parts(
    items: Sequence[T], bytes_of: Callable[[T], int], count_max: int | None = None
) -> list[Sequence[T]]:
    """The items in order, in parts that fit one message each; a part holds at least one item.

    Args:
        items: What is to be sent.
        bytes_of: How much of a message an item takes.
        count_max: How many items a part may hold; any number when None.
    """
    found: list[Sequence[T]] = []
    begin, used = 0, 0
    for at, item in enumerate(items):
        size = bytes_of(item)
        if at > begin and (used + size > PART_BYTES_MAX or at - begin == count_max):
            found.append(items[begin:at])
            begin, used = at, 0
        used += size
    if begin < len(items):
        found.append(items[begin:])
    return found
