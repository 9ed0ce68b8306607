"""Several partitions searched as one: their records in the order of append time, page by page.

Within a partition append times never go back, so the first record of each partition tells which one
is next. A partition is asked again only when that needs to be known: a page that is full asks for
nothing more.
"""

import asyncio
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from typing import Final, TypeAlias

from icecore.client import lookup_token
from icecore.client.partition_search import PartitionSearch
from icecore.client.types import LookupPage, SearchOutcome, SegmentOutcome
from icecore.codec.record import Record

REQUESTS_MAX: Final = 8
"""Under way at a time."""
_Place: TypeAlias = tuple[int, int, int]


class MergedSearch:
    """One look-up.

    Args:
        parts: One for each partition.
        question: Its fingerprint, for continuations.
        newest_first: From the newest record down.
    """

    def __init__(
        self, parts: Sequence[PartitionSearch], question: int, *, newest_first: bool
    ) -> None:
        self._parts = parts
        self._question = question
        self._newest_first = newest_first
        self._places = asyncio.Semaphore(REQUESTS_MAX)

    @property
    def is_over(self) -> bool:
        """Whether there is no further page."""
        return all(part.standing is None for part in self._parts)

    async def next_page(self, max_count: int) -> LookupPage:
        """At most so many records, and what was done to find them.

        Raises:
            IcecoreError: As ``PartitionSearch.more``.
        """
        records: list[Record] = []
        heads: list[tuple[_Place, PartitionSearch]] = []
        await self._fill(self._parts, max_count)
        for part in self._parts:
            self._push(heads, part)
        while heads and len(records) < max_count:
            _, part = heappop(heads)
            records.append(part.found.popleft())
            if not part.found and len(records) < max_count:
                await self._fill([part], max_count - len(records), others=len(heads))
            self._push(heads, part)
        return self._page(records)

    def _push(self, heads: list[tuple[_Place, PartitionSearch]], part: PartitionSearch) -> None:
        if part.found:
            first = part.found[0]
            place = first.append_timestamp_ms, part.partition, first.offset
            if self._newest_first:
                place = -place[0], -place[1], -place[2]
            heappush(heads, (place, part))

    async def _fill(
        self, parts: Sequence[PartitionSearch], max_count: int, *, others: int = 0
    ) -> None:
        """Find the next record of each, with as many more as are likely to be needed."""
        lacking = [part for part in parts if not part.found and not part.is_over]
        count = -(-max_count // max(1, len(lacking) + others))
        await _all_of(self._more(part, count) for part in lacking)

    async def _more(self, part: PartitionSearch, count: int) -> None:
        async with self._places:
            await part.more(count)

    def _page(self, records: list[Record]) -> LookupPage:
        outcomes: list[SegmentOutcome] = []
        for part in self._parts:
            outcomes += part.take_outcomes()
        outcomes.sort(key=lambda each: (each.partition, each.base_offset))
        left = [standing for part in self._parts if (standing := part.standing) is not None]
        return LookupPage(
            records=tuple(records),
            complete=all(each.outcome is not SearchOutcome.UNAVAILABLE for each in outcomes),
            indexed_through={part.partition: part.indexed_through for part in self._parts},
            segments=tuple(outcomes),
            continuation=lookup_token.encode(self._question, left),
        )


async def _all_of(coroutines: Iterable[object]) -> None:
    """Run them together; the first failure ends the others and is raised."""
    tasks = [asyncio.ensure_future(each) for each in coroutines]  # type: ignore[call-overload]
    if not tasks:
        return
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
    finally:
        running = [task for task in tasks if not task.done()]
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)
