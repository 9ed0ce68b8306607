"""Several partitions searched as one, page by page in the order of append time; is a page complete?

Within a partition append times never go back, so the first record of each partition tells which one
is next. A partition is asked again only when that needs to be known: a page that is full asks for
nothing more.
"""

import asyncio
from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Final, TypeAlias

from icecore.client.cluster.connection import all_of
from icecore.client.lookup import continuations
from icecore.client.lookup.partition_search import PartitionSearch
from icecore.client.types import LookupPage, SearchOutcome, SegmentOutcome
from icecore.codec.record import Record

REQUESTS_MAX: Final = 8
"""Under way at a time."""
_OrderKey: TypeAlias = tuple[int, int, int]


class MergedSearch:
    """One look-up.

    Args:
        parts: One for each partition.
        fingerprint: Of the question, for continuations.
        newest_first: From the newest record down.
        planned_age_ms: How old what it is planned on is by now.
    """

    def __init__(
        self,
        parts: Sequence[PartitionSearch],
        fingerprint: int,
        *,
        newest_first: bool,
        planned_age_ms: Callable[[], int],
    ) -> None:
        self._parts = parts
        self._fingerprint = fingerprint
        self._newest_first = newest_first
        self._planned_age_ms = planned_age_ms
        self._requests = asyncio.Semaphore(REQUESTS_MAX)

    @property
    def is_over(self) -> bool:
        """Return whether there is no further page."""
        return all(part.cursor is None for part in self._parts)

    async def next_page(self, max_count: int, until_ms: float) -> LookupPage:
        """At most so many records, and what was done to find them. A page ends, full or not, when
        a moment of the monotonic clock has come.

        Raises:
            IcecoreError: As ``PartitionSearch.more``.
        """
        records: list[Record] = []
        heads: list[tuple[_OrderKey, PartitionSearch]] = []
        await self._fill(self._parts, max_count, until_ms)
        if any(part.is_lacking for part in self._parts):
            return self._page(records)  # whose record comes first is not known yet
        for part in self._parts:
            self._push(heads, part)
        while heads and len(records) < max_count:
            _, part = heappop(heads)
            self._take(part, heads[0][0] if heads else None, records, max_count)
            if not part.found and len(records) < max_count:
                await self._fill([part], max_count - len(records), until_ms, others=len(heads))
                if part.is_lacking:
                    break
            self._push(heads, part)
        return self._page(records)

    def _push(self, heads: list[tuple[_OrderKey, PartitionSearch]], part: PartitionSearch) -> None:
        if part.found:
            heappush(heads, (self._order_key(part.found[0]), part))

    def _order_key(self, record: Record) -> _OrderKey:
        place = record.append_timestamp_ms, record.partition, record.offset
        return (-place[0], -place[1], -place[2]) if self._newest_first else place

    def _take(
        self, part: PartitionSearch, until: _OrderKey | None, records: list[Record], max_count: int
    ) -> None:
        """Its first record, and those behind it up to the first one of another partition."""
        found = part.found
        if until is None and len(found) <= max_count - len(records):
            records += found
            found.clear()
            return
        records.append(found.popleft())
        while found and len(records) < max_count:
            if until is not None and self._order_key(found[0]) > until:
                break
            records.append(found.popleft())

    async def _fill(
        self,
        parts: Sequence[PartitionSearch],
        max_count: int,
        until_ms: float,
        *,
        others: int = 0,
    ) -> None:
        """Find the next record of each, with as many more as are likely to be needed."""
        lacking = [part for part in parts if part.is_lacking]
        count = -(-max_count // max(1, len(lacking) + others))
        await all_of(self._more(part, count, until_ms) for part in lacking)

    async def _more(self, part: PartitionSearch, count: int, until_ms: float) -> None:
        async with self._requests:
            await part.more(count, until_ms)

    def _page(self, records: list[Record]) -> LookupPage:
        outcomes: list[SegmentOutcome] = []
        for part in self._parts:
            outcomes += part.take_outcomes()
        outcomes.sort(key=lambda each: (each.partition, each.base_offset))
        left = [cursor for part in self._parts if (cursor := part.cursor) is not None]
        return LookupPage(
            records=tuple(records),
            complete=all(each.outcome is not SearchOutcome.UNAVAILABLE for each in outcomes),
            indexed_through={part.partition: part.indexed_through for part in self._parts},
            segments=tuple(outcomes),
            continuation=continuations.encode(self._fingerprint, left),
            planned_age_ms=self._planned_age_ms(),
        )
