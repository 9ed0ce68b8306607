"""Searches the demo by index: one aircraft's year by key, a carrier's flights by tag.

Both are compared with the source, flight by flight. While the data is there a search may only be
slow, never wrong, so an incomplete page counts as a mismatch, too.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from examples.flights import Departure
from examples.flights_check import ROW_HEADER
from icecore import Lookup
from icecore.codec.record import Record

PAGE_RECORDS: Final = 5_000


@dataclass(slots=True)
class Found:
    """The results of the searches."""

    key: bytes = b""
    key_hits: int = 0
    tag: str = ""
    tag_hits: int = 0
    mismatches: int = 0
    problems: list[str] = field(default_factory=list)


async def search(lookup: Lookup, source: Sequence[Departure]) -> Found:
    """Look for the aircraft that flew most, and for the carrier with the median of flights."""
    found = Found()
    aircraft = Counter(each.key for each in source if each.key is not None)
    found.key = max(aircraft, key=lambda key: (aircraft[key], key))
    carriers = Counter(each.tags[0] for each in source)
    found.tag = sorted(carriers, key=lambda tag: (carriers[tag], tag))[len(carriers) // 2]
    flown = {row for row, each in enumerate(source) if each.key == found.key}
    found.key_hits = await _compare(lookup, found, flown, keys=[found.key])
    carried = {row for row, each in enumerate(source) if found.tag in each.tags}
    found.tag_hits = await _compare(lookup, found, carried, tags_any=[found.tag])
    return found


async def _compare(lookup: Lookup, found: Found, expected: set[int], **conditions: Any) -> int:
    """Count hits, and what is missing, too much, twice, or not known to be complete."""
    rows: Counter[int] = Counter()
    async for page in lookup.pages(max_count=PAGE_RECORDS, **conditions):
        if not page.complete:
            found.mismatches += 1
            found.problems.append(f"a page of {conditions} is not complete")
        rows.update(map(_row, page.records))
    wrong = rows.keys() ^ expected
    twice = [row for row, count in rows.items() if count > 1]
    found.mismatches += len(wrong) + len(twice)
    if wrong or twice:
        what = f"{len(wrong)} missing or too much, {len(twice)} twice"
        found.problems.append(f"{conditions}: {what} of {len(expected)}")
    return rows.total()


def _row(record: Record) -> int:
    return int(dict(record.headers).get(ROW_HEADER) or b"-1")
