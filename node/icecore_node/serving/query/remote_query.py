"""Searches of segments that lie in object storage, for one partition of one page of a query.

Most segments have nothing of what is looked for, and all that takes time is a request or two for
their index. So the first steps of several are made at once. Each of these has the room that the
page had when it began; where the page has less by then, the step is made again, of what is in the
cache.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import TYPE_CHECKING, TypeAlias

from icecore.codec.selection import Selection
from icecore.errors import IcecoreError, ThrottledError
from icecore.model import Segment, SegmentId
from icecore.v1 import data_pb2
from icecore_node.remote.read.tally import Tally
from icecore_node.serving.fetch.plain_sink import PlainSink
from icecore_node.serving.query.log_search import LogSearch
from icecore_node.serving.query.pieces import Piece
from icecore_node.serving.remote_segments import RemoteSegments, view_of_remote

if TYPE_CHECKING:  # for nodes with an object store
    from icecore_node.remote.read.remote_log import RemoteLog

MakeSink: TypeAlias = Callable[[], PlainSink]

AHEAD_MAX = 16


@dataclass(slots=True)
class RemoteSearch:
    """One search that was begun."""

    log: "RemoteLog"
    search: LogSearch
    tally: Tally = field(default_factory=Tally)

    def tell(self, done: data_pb2.SegmentSearch) -> None:
        """Add the number and bytes of the search's requests to object storage to the answer."""
        done.remote_requests, done.remote_bytes = self.tally.requests, self.tally.length_bytes


class RemoteSearches:
    """Loop only; ``close`` it when the page is over.

    Args:
        segments: Segments in object storage.
        selection: The records wanted.
        newest_first: The order of the search.
    """

    def __init__(
        self, segments: RemoteSegments, selection: Selection, *, newest_first: bool
    ) -> None:
        self._segments = segments
        self._selection = selection
        self._newest_first = newest_first
        self._begun: dict[SegmentId, asyncio.Task[tuple[RemoteSearch, PlainSink]]] = {}
        self._open: set[RemoteLog] = set()

    async def first(
        self, ahead: list[Piece], make_sink: MakeSink
    ) -> tuple[RemoteSearch, PlainSink]:
        """The search of the first of these pieces, and what its first step found.

        Args:
            ahead: The first piece and those behind it.
            make_sink: Makes a sink with the room that the page has left.

        Raises:
            IcecoreError: The step failed.
        """
        piece = ahead[0]
        is_idle = self._segments.reading.is_idle_enough
        near = islice(takewhile(_is_remote, ahead), AHEAD_MAX if is_idle else 1)
        for each in near:
            if each.segment_id not in self._begun:
                work = self._begin(each, make_sink)
                self._begun[each.segment_id] = asyncio.get_running_loop().create_task(work)
        task = self._begun.pop(piece.segment_id)
        try:
            begun, found = await task
        except asyncio.CancelledError:
            task.cancel()
            raise
        except ThrottledError:  # when it was begun nobody needed it yet
            return await self._begin(piece, make_sink)
        finally:
            del task  # it has an error, which has this frame: neither would go by itself
        room = make_sink()
        if found.count > room.max_count or found.size_bytes > room.max_bytes:
            self.end(begun)
            return await self._begin(piece, make_sink, begun.tally)
        return begun, found

    async def step(self, begun: RemoteSearch, make_sink: MakeSink) -> PlainSink:
        """One more step."""
        begun.tally.begin()
        return await self._segments.reading.step(begun.log, begun.search.try_step, make_sink)

    def end(self, begun: RemoteSearch) -> None:
        """Let go of what was read for a search."""
        self._open.discard(begun.log)
        self._segments.reading.close_log(begun.log)

    async def opened(self, piece: Piece) -> RemoteSearch:
        """A search of which no step was made; only the manifest is read for it."""
        tally = Tally()
        tally.begin()
        return await self._opened(piece, tally)

    async def close(self) -> None:
        """Cancel first steps that were begun ahead and are not needed any more, and let go of all
        that was read for searches."""
        for task in self._begun.values():
            task.cancel()
        try:
            await asyncio.gather(*self._begun.values(), return_exceptions=True)
        finally:  # also where the client leaves just now
            self._begun.clear()
            while self._open:
                self._segments.reading.close_log(self._open.pop())

    async def _begin(
        self, piece: Piece, make_sink: MakeSink, tally: Tally | None = None
    ) -> tuple[RemoteSearch, PlainSink]:
        tally = tally or Tally()
        tally.begin()
        begun = await self._opened(piece, tally)
        return begun, await self.step(begun, make_sink)

    async def _opened(self, piece: Piece, tally: Tally) -> RemoteSearch:
        segment = piece.remote
        assert segment is not None, "only called for remote segments"
        log = await self._segments.reading.open_log(segment.segment_id)
        self._open.add(log)
        view = view_of_remote(log, segment, log.quiet(self._selection))
        asked = piece.from_offset, piece.end_offset
        search = LogSearch(view, self._selection, asked, newest_first=self._newest_first)
        return RemoteSearch(log, search, tally)


def _is_remote(piece: Piece) -> bool:
    return piece.remote is not None


async def described(
    segments: RemoteSegments, request: data_pb2.QueryRequest, asked: data_pb2.QueryPartition
) -> list[Segment]:
    """Return those segments named in a query that lie in object storage and that no intact replica
    here can answer for."""
    named = [each for each in asked.segment_ids if not segments.is_held(each)]
    found = await asyncio.gather(
        *(segments.named(request.topic_id, request.topic, asked.partition, each) for each in named),
        return_exceptions=True,
    )
    published: list[Segment] = []
    for each in found:
        if isinstance(each, Segment):
            published.append(each)
        elif isinstance(each, BaseException) and not isinstance(each, IcecoreError):
            raise each
    return published
