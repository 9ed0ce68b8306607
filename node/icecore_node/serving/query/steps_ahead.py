"""First steps of the searches of several logs, made together on one thread.

Most logs have no wanted record, and their index shows that in microseconds. To change threads and
back for each of them would take longer than all those looks.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import islice, takewhile
from typing import Final, TypeAlias

from icecore.errors import IcecoreError
from icecore_node.replica.replica import Replica
from icecore_node.serving.fetch.plain_sink import PlainSink
from icecore_node.serving.query.log_search import STEP_BYTES, LogSearch
from icecore_node.serving.query.pieces import Piece

LOGS_MAX: Final = 64
MakeSink: TypeAlias = Callable[[], PlainSink]
Together: TypeAlias = Callable[[Sequence[LogSearch], MakeSink], list[PlainSink]]
RunOnThread: TypeAlias = Callable[
    [Replica, Together, Sequence[LogSearch], MakeSink], Awaitable[list[PlainSink]]
]


class StepsAhead(Iterator[Piece]):
    """The pieces of one partition, one after the other, and the first steps of their searches.

    Args:
        pieces: All that is to be searched, in order; taken as they are needed.
        begin: Makes the search of a piece that a replica holds.
        run: Calls on a thread, for the sake of a replica whose damage an error shows.
    """

    def __init__(
        self, pieces: Iterator[Piece], begin: Callable[[Piece], LogSearch], run: RunOnThread
    ) -> None:
        self._pieces = pieces
        self._begin = begin
        self._run = run
        self._waiting: deque[Piece] = deque()
        self._current: Piece | None = None
        self._made: deque[tuple[LogSearch, PlainSink]] = deque()
        """Searches with their first results: of the current piece, unless empty, and of the pieces
        behind it."""

    def __next__(self) -> Piece:
        if not self._waiting:
            self._waiting.extend(islice(self._pieces, LOGS_MAX))
        if not self._waiting:
            raise StopIteration
        self._current = self._waiting.popleft()
        return self._current

    @property
    def waiting(self) -> Sequence[Piece]:
        """Pieces behind the current one, as far as they were taken."""
        return self._waiting

    async def first(self, make_sink: MakeSink) -> tuple[LogSearch, PlainSink]:
        """The search of the piece that was taken last, and what its first step found.

        Raises:
            IcecoreError: The step failed.
        """
        if not self._made:
            assert self._current is not None and self._current.replica is not None
            ahead = [self._current, *takewhile(_is_searchable, self._waiting)]
            searches = [self._begin(piece) for piece in ahead]
            sinks = await self._run(self._current.replica, step_together, searches, make_sink)
            self._made.extend(zip(searches, sinks, strict=False))
        return self._made.popleft()


def step_together(searches: Sequence[LogSearch], make_sink: MakeSink) -> list[PlainSink]:
    """Make a step of each search, until one is full or has more to do. Return the sinks with the
    records found.

    Raises:
        IcecoreError: The first one failed. Another one that fails is left to a step of its own.
    """
    sinks: list[PlainSink] = []
    effort_bytes = 0
    for number, search in enumerate(searches):
        try:
            sink = search.step(sinks[-1].rest if sinks else make_sink)
        except IcecoreError:
            if number == 0:
                raise
            break
        sinks.append(sink)
        effort_bytes += search.work.effort_bytes + search.work.index_bytes
        if sink.is_full or not search.is_done or effort_bytes >= STEP_BYTES:
            break
    return sinks


def _is_searchable(piece: Piece) -> bool:
    return piece.replica is not None and piece.replica.life.is_intact
