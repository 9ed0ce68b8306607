"""Lookup: finds records of a topic by key, tag, header, time or offset, wherever they lie.

A page says whether it is complete: whether everything that it has looked at could be searched.
Which node searches what is in ``partition_search.py``, how partitions become one answer in
``merged_search.py``.
"""

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal, NoReturn, Self, TypeVar, Unpack

from icecore.client import checks
from icecore.client.cluster.connection import Connection
from icecore.client.cluster.metadata import Metadata
from icecore.client.cluster.offsets import OffsetLookup
from icecore.client.conditions import (
    HeaderValues,
    SearchArguments,
    TimeLike,
    check_order,
    selection_of,
    time_ms,
)
from icecore.client.lookup import continuations
from icecore.client.lookup.continuations import OPEN, SearchCursor, fingerprint
from icecore.client.lookup.merged_search import MergedSearch
from icecore.client.lookup.partition_search import Cluster, PartitionSearch
from icecore.client.lookup.search_answer import Question
from icecore.client.lookup.segment_chains import SegmentChains
from icecore.client.options import stays
from icecore.client.retries import OnRetry
from icecore.client.types import LookupPage, OffsetResult, TopicMetadata
from icecore.codec.record import Record, partition_for_key
from icecore.codec.selection import Selection
from icecore.errors import (
    InvalidRequestError,
    RequestTimeoutError,
    UnavailableError,
)
from icecore.rpc.addresses import Transport
from icecore.rpc.filters import selection_to_proto
from icecore.rpc.ports import Clock, Net, Rng

_T = TypeVar("_T")

COUNT_MAX: Final = 10_000
METADATA_AGE_MS: Final = 1_000.0
"""How old may be what is known of nodes and of the number of partitions."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """Checked arguments of one look-up."""

    selection: Selection
    partitions: tuple[int, ...] | None
    offsets: tuple[int, int]
    """From, and to, which is ``OPEN`` unless given."""
    append_ms: tuple[int | None, int | None]
    newest_first: bool

    def fingerprint(self, topic_id: bytes) -> int:
        """Return the fingerprint of all arguments that the pages of one look-up share."""
        rest = (self.partitions, self.offsets, self.append_ms, self.newest_first)
        conditions = selection_to_proto(self.selection).SerializeToString(deterministic=True)
        return fingerprint(topic_id, conditions, repr(rest).encode())


class Lookup:
    """Finds records. ``async with Lookup(bootstrap, topic) as lookup: await lookup.find(keys=…)``.

    Answers are exact, whatever state the indexes are in: an index only says where to look. All
    methods belong to one event loop; ``icecore.blocking.Lookup`` is for threads.

    Args:
        bootstrap: Addresses of coordinators or nodes, ``host:port``, separated by commas.
        topic: Its name.
        timeout_s: Seconds for one page, or one other answer. A page ends after half of them, full
            or not, with a continuation.
        patience_s: Seconds that replicas, or a new leader, of a segment are waited for until it
            counts as unavailable.
        transport: ``auto`` = native to nodes that have it, ``grpc`` = never. Unless given, the
            environment says so: ``ICECORE_CLIENT__TRANSPORT``.
        on_retry: Called with whatever is tried again (``icecore.Retry``), which the log ``icecore``
            tells as well, a line per reason at a time. It must not wait.
        net: Made here unless given.
        clock: Of the system unless given.
        rng: Of the system unless given.

    Raises:
        ConfigurationError: A value is unknown or out of range.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        *,
        timeout_s: float = 30.0,
        patience_s: float = 3.0,
        transport: Transport | None = None,
        on_retry: OnRetry | None = None,
        net: Net | None = None,
        clock: Clock | None = None,
        rng: Rng | None = None,
    ) -> None:
        longest_s = checks.DURATION_MS_MAX / 1000
        self._topic = checks.topic_name(topic)
        self._timeout_s = checks.duration("timeout_s", timeout_s, 0, longest_s)
        self._patience_s = checks.duration("patience_s", patience_s, 0, longest_s)
        self._connection = Connection(bootstrap, net, clock, rng, transport, on_retry)
        self._metadata = Metadata(self._connection)
        self._chains = SegmentChains(self._connection, self._metadata, topic)
        self._asked_ms = -METADATA_AGE_MS

    def __reduce__(self) -> NoReturn:
        raise stays(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._metadata.close()
        await self._connection.close()

    async def find(
        self,
        *,
        keys: Iterable[bytes] | None = None,
        tags_any: Iterable[str] | None = None,
        tags_all: Iterable[str] | None = None,
        tags_none: Iterable[str] | None = None,
        headers: HeaderValues | None = None,
        from_event_time: TimeLike | None = None,
        to_event_time: TimeLike | None = None,
        from_append_time: TimeLike | None = None,
        to_append_time: TimeLike | None = None,
        from_offset: int = 0,
        to_offset: int | None = None,
        partitions: Sequence[int] | None = None,
        newest_first: bool = False,
        max_count: int = 100,
        continuation: bytes = b"",
    ) -> LookupPage:
        """One page of the records that fulfil all conditions, in the order of append time, then
        partition, then offset. Ends of ranges are exclusive.

        Args:
            keys: One of these; at most 1,000.
            tags_any: At least one of these; at most 100, as of the other kinds.
            tags_all: All of these.
            tags_none: None of these.
            headers: At least one of these names with this value. Without an index
                (``TopicSettings.indexed_headers``) all records are read for it.
            from_event_time, to_event_time: The producer's time.
            from_append_time, to_append_time: When the leader took the records in.
            from_offset, to_offset: In each partition.
            partitions: Unless given: with keys those where the partitioner has ever put them, else
                all. Records that a producer sent to a partition of its own choice are found
                where they are when that one is given.
            newest_first: From the newest record down.
            max_count: Of the page, 1 to 10,000. What takes long comes in pages with fewer records,
                or none; the last page is the one without a continuation.
            continuation: Of the page before; the other arguments must be the same, but for
                ``max_count``.

        Raises:
            TypeError, InvalidRequestError: An argument is wrong, or the continuation is forged, or
                belongs to another question.
            UnknownTopicError: There is no such topic.
            RequestTimeoutError: There is no page within ``timeout_s``.
            IcecoreError: No coordinator answered.
        """
        return await self._first_page(
            False,
            max_count,
            keys=keys,
            tags_any=tags_any,
            tags_all=tags_all,
            tags_none=tags_none,
            headers=headers,
            from_event_time=from_event_time,
            to_event_time=to_event_time,
            from_append_time=from_append_time,
            to_append_time=to_append_time,
            from_offset=from_offset,
            to_offset=to_offset,
            partitions=partitions,
            newest_first=newest_first,
            continuation=continuation,
        )

    async def pages(self, **arguments: Unpack[SearchArguments]) -> AsyncIterator[LookupPage]:
        """All pages, from a ``continuation`` on if there is one. Arguments, errors as ``find``."""
        max_count = _count(arguments.pop("max_count", 1_000))
        search = await self._in_time(self._search(False, **arguments))
        while True:
            self._connection.check_open()
            yield await self._in_time(search.next_page(max_count, self._page_end_ms()))
            if search.is_over:
                return

    async def explain(self, **arguments: Unpack[SearchArguments]) -> LookupPage:
        """Describe which segments ``find`` would search, by which index, and how many bytes it
        would read. Nothing is read. Arguments and errors as ``find``."""
        rest: dict[str, Any] = {**arguments}
        _count(rest.pop("max_count", 1))
        return await self._first_page(True, 1, **rest)

    async def record(self, partition: int, offset: int) -> Record | None:
        """The record with this id; None when there is none, or retention has deleted it.

        Raises:
            UnavailableError: Its segment can't be read at the moment.
            IcecoreError: As ``find``.
        """
        numbers = [checks.partition_number(partition)]
        first = checks.whole("offset", offset, 0, checks.OFFSET_MAX - 1)
        async for page in self.pages(
            partitions=numbers, from_offset=first, to_offset=first + 1, max_count=1
        ):
            if page.records:
                return page.records[0]
            for each in page.unavailable:
                raise UnavailableError(
                    f"{self._topic}/{partition}: segment {each.segment_id} with offset {offset} "
                    f"can't be read at the moment: {each.error}",
                    segment_id=each.segment_id,
                )
        return None

    async def offset_at(
        self,
        append_time: TimeLike,
        *,
        boundary: Literal["lower", "upper"] = "lower",
        partitions: Sequence[int] | None = None,
    ) -> dict[int, OffsetResult]:
        """Look up an append time in each partition and return its offset.

        Args:
            append_time: When leaders took records in.
            boundary: ``lower``: the first record appended at that time or later; ``upper``: behind
                the last one appended at that time or earlier. The high watermark when there is no
                later record.
            partitions: All unless given.

        Raises:
            TypeError, InvalidRequestError: An argument is wrong.
            IcecoreError: As ``find``.
        """
        moment_ms = time_ms("append_time", append_time)
        if moment_ms is None:
            raise checks.wrong_type("append_time", append_time, "a time with time zone, or int")
        if boundary not in ("lower", "upper"):
            raise InvalidRequestError(f"boundary is lower or upper, not {boundary!r}")
        wanted = checks.partitions(partitions)
        topic = await self._known_topic()
        numbers = self._partitions(topic, wanted, frozenset())
        if boundary == "upper":
            moment_ms = _after(append_time, moment_ms)
        return await self._in_time(self._offsets_at(numbers, moment_ms))

    # --- one look-up ----------------------------------------------------------------------------

    async def _first_page(self, is_explained: bool, max_count: int, **arguments: Any) -> LookupPage:
        count = _count(max_count)

        async def ask() -> LookupPage:
            end_ms = math.inf if is_explained else self._page_end_ms()
            search = await self._search(is_explained, **arguments)
            return await search.next_page(count, end_ms)

        return await self._in_time(ask())

    def _page_end_ms(self) -> float:
        """When a page that goes over much ends with what it has: there is a next one."""
        return self._connection.deadline_ms(self._timeout_s / 2)

    async def _search(
        self, is_explained: bool, continuation: bytes = b"", **arguments: Any
    ) -> MergedSearch:
        asked = _asked(**arguments)
        if type(continuation) is not bytes:
            raise checks.wrong_type("continuation", continuation, "bytes")
        topic = await self._known_topic()
        numbers = self._partitions(topic, asked.partitions, asked.selection.keys)
        fingerprint = asked.fingerprint(topic.topic_id)
        if continuation:
            cursors = continuations.decode(continuation, fingerprint)
            self._partitions(topic, [each.partition for each in cursors], frozenset())
            numbers = tuple(each.partition for each in cursors)
        await self._chains.refresh(
            topic.topic_id, numbers, is_whole=False, timeout_s=self._timeout_s
        )
        if not continuation:
            cursors = await self._cursors(asked, numbers)
        refresh = partial(self._refresh, topic.topic_id)
        cluster = Cluster(self._connection, self._metadata, self._chains, refresh, self._patience_s)
        question = Question(
            self._topic, topic.topic_id, asked.selection, asked.newest_first, is_explained
        )
        parts = [
            PartitionSearch(question, each, cluster, _seen_end(asked, each) if continuation else 0)
            for each in cursors
        ]
        return MergedSearch(
            parts,
            fingerprint,
            newest_first=asked.newest_first,
            planned_age_ms=partial(self._planned_age_ms, parts),
        )

    def _planned_age_ms(self, parts: Sequence[PartitionSearch]) -> int:
        moments = [self._metadata.newest_ms, *(each.planned_ms for each in parts)]
        return max(0, round(self._connection.clock.monotonic_ms() - min(moments)))

    async def _cursors(self, asked: _Asked, partitions: Sequence[int]) -> list[SearchCursor]:
        """Return where the first page begins and ends. Append times become offsets here, once."""
        (low, high), (from_ms, to_ms) = asked.offsets, asked.append_ms
        lows = dict.fromkeys(partitions, low)
        highs = dict.fromkeys(partitions, high)
        if from_ms is not None:
            found = await self._offsets_at(partitions, from_ms)
            lows = {each: max(low, found[each].offset) for each in partitions}
        if to_ms is not None:
            found = await self._offsets_at(partitions, to_ms)
            ends = {each: found[each].offset for each in partitions}
            highs = {each: end if high == OPEN else min(high, end) for each, end in ends.items()}
        if asked.newest_first:
            return [SearchCursor(each, highs[each], lows[each]) for each in partitions]
        return [SearchCursor(each, lows[each], highs[each]) for each in partitions]

    async def _offsets_at(
        self, partitions: Sequence[int], append_ms: int
    ) -> dict[int, OffsetResult]:
        lookup = OffsetLookup(
            self._connection, self._metadata, self._topic, timeout_s=self._timeout_s
        )
        return {each: await lookup.first_since(each, append_ms) for each in partitions}

    # --- the cluster ----------------------------------------------------------------------------

    async def _known_topic(self) -> TopicMetadata:
        now_ms = self._connection.clock.monotonic_ms()
        is_old = now_ms - self._asked_ms >= METADATA_AGE_MS
        found = await self._metadata.topic(self._topic, timeout_s=self._timeout_s, is_fresh=is_old)
        if is_old:
            self._asked_ms = self._connection.clock.monotonic_ms()
        return found

    def _partitions(
        self, topic: TopicMetadata, wanted: Sequence[int] | None, keys: frozenset[bytes]
    ) -> tuple[int, ...]:
        """Return the partitions to search. Raises InvalidRequestError when there is no such one."""
        count = len(topic.partitions)
        if wanted is not None:
            if any(each >= count for each in wanted):
                raise InvalidRequestError(f"{self._topic} has partitions 0 to {count - 1}")
            return tuple(wanted)
        counts = {*topic.earlier_partitions, count}
        if not keys or topic.partitioner != "xxh64" or 0 in counts:
            return tuple(range(count))
        return tuple(sorted({partition_for_key(key, each) for key in keys for each in counts}))

    async def _refresh(self, topic_id: bytes, partition: int) -> None:
        """Something was not where it should be."""
        await self._metadata.refresh()
        if (error := self._metadata.recreated(self._topic, topic_id)) is not None:
            raise error
        await self._chains.refresh(topic_id, [partition], is_whole=True, timeout_s=self._timeout_s)

    async def _in_time(self, answer: Awaitable[_T]) -> _T:
        try:
            async with asyncio.timeout(self._timeout_s):
                return await answer
        except TimeoutError as error:
            raise RequestTimeoutError(
                f"{self._topic} could not be searched within {self._timeout_s:g} s: ask for fewer "
                "partitions or a smaller range, or give it more time (timeout_s)"
            ) from error


def _asked(
    *,
    from_append_time: TimeLike | None = None,
    to_append_time: TimeLike | None = None,
    from_offset: int = 0,
    to_offset: int | None = None,
    partitions: Sequence[int] | None = None,
    newest_first: bool = False,
    **conditions: Any,
) -> _Asked:
    """Raises TypeError, InvalidRequestError."""
    from_ms = time_ms("from_append_time", from_append_time)
    to_ms = time_ms("to_append_time", to_append_time)
    check_order("from_append_time", from_ms, "to_append_time", to_ms)
    low = checks.whole("from_offset", from_offset, 0, checks.OFFSET_MAX)
    high = OPEN
    if to_offset is not None:
        high = checks.whole("to_offset", to_offset, 1, checks.OFFSET_MAX)
        check_order("from_offset", low, "to_offset", high)
    wanted = checks.partitions(partitions)
    if wanted == ():
        raise InvalidRequestError("partitions is empty: leave it out to search all of them")
    return _Asked(
        selection_of(**conditions),
        wanted,
        (low, high),
        (from_ms, to_ms),
        checks.flag("newest_first", newest_first),
    )


def _count(max_count: Any) -> int:
    return checks.whole("max_count", max_count, 1, COUNT_MAX)


def _seen_end(asked: _Asked, cursor: SearchCursor) -> int:
    """Return the highest end that an earlier page has seen; 0 = the cursor holds no such end.
    Bounds from the question do not count: records up to there need not exist."""
    low, high = asked.offsets
    if asked.newest_first:
        return 0 if cursor.offset in (OPEN, high) else cursor.offset
    if cursor.limit not in (OPEN, high):
        return cursor.limit
    return 0 if cursor.offset == low else cursor.offset


def _after(append_time: TimeLike, moment_ms: int) -> int:
    """The first millisecond behind a time; ``moment_ms`` is the first that is not before it."""
    is_between = not isinstance(append_time, int) and append_time.microsecond % 1000 != 0
    return moment_ms if is_between else moment_ms + 1
