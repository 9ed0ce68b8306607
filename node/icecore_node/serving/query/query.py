"""Query: records by key, tag, header or event time, a page at a time.

Partitions are answered in the order of the request, the segments of each by offset. A page ends
when it is full, or when it has read so much that others should have a turn; the continuation says
where the next one begins. A segment that could not be searched is named in the answer, and the
answer is then not complete.
"""

from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Final

from icecore.errors import IcecoreError, NotReplicaError, UnknownTopicError
from icecore.model import SegmentId
from icecore.rpc import convert, framing
from icecore.rpc.ports import CallContext, Received
from icecore.v1 import data_pb2
from icecore_node.context import NodeContext
from icecore_node.io.heavy_work import HeavyWork
from icecore_node.registry.table import PartitionReplicas, ReplicaTable
from icecore_node.replica.reading import ReplicaReading
from icecore_node.replica.replica import Replica
from icecore_node.serving.fetch.plain_sink import PlainSink
from icecore_node.serving.query.log_search import LogSearch
from icecore_node.serving.query.pieces import Piece, view_of
from icecore_node.serving.query.query_answer import (
    PartitionAnswer,
    estimate,
    fail,
    is_missing,
    tell,
)
from icecore_node.serving.query.query_request import (
    FROM_THE_START,
    PagePlace,
    QueryPlan,
    checked_query,
    continuation,
)
from icecore_node.serving.query.remote_query import RemoteSearches, described
from icecore_node.serving.query.steps_ahead import StepsAhead
from icecore_node.serving.remote_segments import RemoteSegments
from icecore_node.storage.engine import OffsetRange

PAGE_EFFORT_BYTES: Final = 32 << 20
"""Effort after which a page ends, full or not. The next page asks the index again, which is the
largest cost of a page with about a thousand keys."""
PAGE_MS: Final = 1000
PAGE_SEGMENTS: Final = 1000


@dataclass(slots=True)
class _Page:
    """Counts of one page: records, bytes, effort and segments so far."""

    plan: QueryPlan
    ends_ms: float
    count: int = 0
    size_bytes: int = 0
    read_bytes: int = 0
    effort_bytes: int = 0
    """Effort, as ``SearchWork.effort_bytes``, with the bytes read of indexes."""
    segments: int = 0
    is_full: bool = False

    def is_over(self, now_ms: float) -> bool:
        """Return whether the page must end now."""
        return (
            self.is_full
            or self.effort_bytes >= PAGE_EFFORT_BYTES
            or self.segments >= PAGE_SEGMENTS
            or now_ms >= self.ends_ms
        )

    def sink(self) -> PlainSink:
        """Return a sink with the room that is left on the page."""
        plan = self.plan
        return PlainSink(
            data_pb2.QueryPartitionResult(),
            plan.max_count - self.count,
            plan.max_bytes - self.size_bytes,
            is_first=not self.count,
            takes_columns=plan.takes_columns,
        )

    def take(self, found: PlainSink) -> None:
        """Count what was found."""
        self.count += found.count
        self.size_bytes += found.size_bytes
        self.is_full = found.is_full or self.count >= self.plan.max_count


class QueryHandler:
    """The handler of ``DataService/Query``."""

    def __init__(
        self,
        context: NodeContext,
        table: ReplicaTable,
        reading: ReplicaReading,
        heavy_work: HeavyWork,
        remote: RemoteSegments,
    ) -> None:
        self._context = context
        self._table = table
        self._reading = reading
        self._heavy_work = heavy_work
        self._remote = remote

    async def query(self, body: Received, _: CallContext) -> bytes:
        """``QueryRequest`` to ``QueryResponse``, both as bytes."""
        context = self._context
        request = framing.parse(data_pb2.QueryRequest, body)
        context.identity.check_cluster(request.cluster_id)
        plan = checked_query(request, self._topic_id(request))
        started_ms, metrics = context.clock.monotonic_ms(), context.metrics
        page = _Page(plan, started_ms + PAGE_MS)
        answer = data_pb2.QueryResponse(complete=True)
        place = plan.start
        while place.number < len(plan.partitions):
            if page.is_over(context.clock.monotonic_ms()):
                answer.continuation = continuation(plan, place)
                break
            asked = plan.partitions[place.number]
            result = answer.partitions.add(partition=asked.partition)
            left: int | None = None
            try:
                work = await self._begin(request, asked, result)
                left = await self._search(work, place.offset, page)
            except IcecoreError as error:
                result.error.CopyFrom(convert.error_to_proto(error))
            lacks = result.HasField("error") or any(map(is_missing, result.segments))
            answer.complete = answer.complete and not lacks
            if left is not None:
                answer.continuation = continuation(plan, PagePlace(place.number, left))
                break
            place = PagePlace(place.number + 1)
        metrics.query_requests.inc()
        metrics.query_records.inc(page.count)
        metrics.query_read_bytes.inc(page.read_bytes)
        metrics.query_latency_seconds.observe((context.clock.monotonic_ms() - started_ms) / 1000)
        return answer.SerializeToString()

    def _topic_id(self, request: data_pb2.QueryRequest) -> bytes:
        try:
            return self._table.names.id_for_client(request.topic_id, request.topic)
        except UnknownTopicError:
            return b""  # each partition says so

    async def _begin(
        self,
        request: data_pb2.QueryRequest,
        asked: data_pb2.QueryPartition,
        result: data_pb2.QueryPartitionResult,
    ) -> PartitionAnswer:
        """Begin the answer of one partition, from the replicas here and the segments in object
        storage."""
        remote = await described(self._remote, request, asked)
        topic = request.topic_id, request.topic, asked.partition
        if not remote:
            held = self._table.partition(*topic)
        else:
            found = self._table.find_partition(*topic)
            held = found or PartitionReplicas(remote[0].topic_id, asked.partition)
        return PartitionAnswer(request, asked, held, remote, result)

    async def _search(self, work: PartitionAnswer, offset: int, page: _Page) -> int | None:
        """Search one partition from the offset where the page before ended. Return the offset where
        the next page begins, or None."""
        newest_first, result = work.newest_first, work.result
        low, high = work.range_of(offset)
        result.high_watermark = work.high_watermark
        result.indexed_through_offset = work.visible_end
        left = low, high
        pieces = work.pieces_of((low, high), is_first=offset == FROM_THE_START)
        ahead = self._ahead(work, pieces, page)
        remote = RemoteSearches(self._remote, page.plan.selection, newest_first=newest_first)
        try:
            for piece in ahead:
                if page.is_over(self._context.clock.monotonic_ms()):
                    break
                page.segments += 1
                rest = await self._search_piece(work, piece, page, ahead, remote)
                if rest is not None:
                    left = (low, rest[1]) if newest_first else (rest[0], high)
                    break
                if piece.from_offset < piece.end_offset:
                    left = (low, piece.from_offset) if newest_first else (piece.end_offset, high)
            else:
                left = (low, low) if newest_first else (high, high)
        finally:
            await remote.close()
        result.searched_from_offset = left[1] if newest_first else low
        result.searched_to_offset = high if newest_first else left[0]
        if left[0] >= left[1]:
            return None
        return left[1] if newest_first else left[0]

    def _ahead(self, work: PartitionAnswer, pieces: Iterator[Piece], page: _Page) -> StepsAhead:
        store, selection = self._context.store, page.plan.selection

        def begin(piece: Piece) -> LogSearch:
            assert piece.replica is not None
            view, asked = view_of(store, piece.replica), (piece.from_offset, piece.end_offset)
            return LogSearch(view, selection, asked, newest_first=work.newest_first)

        return StepsAhead(pieces, begin, partial(self._reading.inflate, self._heavy_work))

    async def _search_piece(
        self,
        work: PartitionAnswer,
        piece: Piece,
        page: _Page,
        ahead: StepsAhead,
        remote: RemoteSearches,
    ) -> OffsetRange | None:
        """Search a piece, held by one replica or in object storage. Return the offsets left when
        the page is over."""
        done = work.describe(piece)
        replica = piece.replica
        if piece.remote is not None:
            return await self._search_remote(work, [piece, *ahead.waiting], page, done, remote)
        if replica is None:
            return None
        if not replica.life.is_intact:
            what = f"segment {replica.segment_id} is damaged here"
            fail(done, NotReplicaError(what, segment_id=replica.segment_id))
            return None
        if work.is_short(replica):
            what = f"others know more of segment {replica.segment_id}, which is not sealed here yet"
            fail(done, NotReplicaError(what, segment_id=replica.segment_id))
            return None
        try:
            if work.explain_only:
                await self._explain(work, replica, piece, page, done)
                return None
            search, found = await ahead.first(page.sink)
            inflate = partial(self._reading.inflate, self._heavy_work, replica)
            step = partial(inflate, search.step, page.sink)
            return await self._go_on(work, page, done, search, found, step)
        except IcecoreError as error:
            fail(done, error)
            return None

    async def _search_remote(
        self,
        work: PartitionAnswer,
        ahead: list[Piece],
        page: _Page,
        done: data_pb2.SegmentSearch,
        remote: RemoteSearches,
    ) -> OffsetRange | None:
        try:
            if work.explain_only:
                begun = await remote.opened(ahead[0])
                log, segment_id = begun.log, SegmentId(done.segment_id)
                estimate(done, begun.search, log.summary(segment_id), log.tail(segment_id))
                begun.tell(done)
                remote.end(begun)
                return None
            begun, found = await remote.first(ahead, page.sink)
            try:
                step = partial(remote.step, begun, page.sink)
                return await self._go_on(work, page, done, begun.search, found, step)
            finally:
                begun.tell(done)
                remote.end(begun)
        except IcecoreError as error:
            fail(done, error)
            return None

    async def _explain(
        self,
        work: PartitionAnswer,
        replica: Replica,
        piece: Piece,
        page: _Page,
        done: data_pb2.SegmentSearch,
    ) -> None:
        context, asked = self._context, (piece.from_offset, piece.end_offset)
        summary = await context.executor.run(context.store.index.summary, replica.segment_id)
        search = LogSearch(
            view_of(context.store, replica),
            page.plan.selection,
            asked,
            newest_first=work.newest_first,
        )
        estimate(done, search, summary, replica.log.tail)

    async def _go_on(
        self,
        work: PartitionAnswer,
        page: _Page,
        done: data_pb2.SegmentSearch,
        search: LogSearch,
        found: PlainSink,
        step: Callable[[], Awaitable[PlainSink]],
    ) -> OffsetRange | None:
        """Go on from the first step's result until the page is over, or all of the piece was
        searched."""
        read_before, effort_before = page.read_bytes, page.effort_bytes
        while True:
            page.take(found)
            cost = search.work
            page.read_bytes = read_before + cost.data_bytes + cost.index_bytes
            page.effort_bytes = effort_before + cost.effort_bytes + cost.index_bytes
            done.records = done.records + found.count
            if found.count:
                work.result.MergeFromString(found.encoded())
            if found.undecodable is not None:
                fail(done, found.undecodable)
            if search.is_done or page.is_over(self._context.clock.monotonic_ms()):
                break
            found = await step()
        tell(done, search)
        return None if search.is_done else search.left
