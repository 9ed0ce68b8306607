"""First steps of the searches of several logs, made together on one thread.

Most logs have nothing of what is looked for, and their index says so in microseconds. To change
threads and back for each of them would take longer than all those looks.
"""

from collections.abc import Awaitable, Callable, Sequence
from itertools import takewhile
from typing import Final, TypeAlias

from icecore.errors import IcecoreError
from icecore_node.replica.replica import Replica
from icecore_node.serving.clear_sink import ClearSink
from icecore_node.serving.log_search import STEP_BYTES, LogSearch
from icecore_node.serving.search_plan import Piece

LOGS_MAX: Final = 64
MakeSink: TypeAlias = Callable[[], ClearSink]
Together: TypeAlias = Callable[[Sequence[LogSearch], MakeSink], list[ClearSink]]
RunOnThread: TypeAlias = Callable[
    [Replica, Together, Sequence[LogSearch], MakeSink], Awaitable[list[ClearSink]]
]


class StepsAhead:
    """Those of one partition.

    Args:
        pieces: All that is to be searched, in order.
        begin: Makes the search of a piece that a replica holds.
        run: Calls on a thread, for the sake of a replica whose damage an error shows.
    """

    def __init__(
        self, pieces: Sequence[Piece], begin: Callable[[Piece], LogSearch], run: RunOnThread
    ) -> None:
        self._pieces = pieces
        self._begin = begin
        self._run = run
        self._made: dict[int, tuple[LogSearch, ClearSink]] = {}
        """By place of the piece."""

    async def first(self, at: int, make_sink: MakeSink) -> tuple[LogSearch, ClearSink]:
        """The search of a piece, and what its first step found.

        Raises:
            IcecoreError: The step failed.
        """
        if at not in self._made:
            replica = self._pieces[at].replica
            assert replica is not None
            ahead = takewhile(_is_searchable, self._pieces[at : at + LOGS_MAX])
            searches = [self._begin(piece) for piece in ahead]
            sinks = await self._run(replica, step_together, searches, make_sink)
            self._made = dict(enumerate(zip(searches, sinks, strict=False), at))
        return self._made.pop(at)


def step_together(searches: Sequence[LogSearch], make_sink: MakeSink) -> list[ClearSink]:
    """A step of each, until one finds something or has more to do; what they found.

    Raises:
        IcecoreError: The first one failed. Another one that fails is left to a step of its own.
    """
    sinks: list[ClearSink] = []
    read_bytes = 0
    for number, search in enumerate(searches):
        try:
            sink = search.step(make_sink)
        except IcecoreError:
            if number == 0:
                raise
            break
        sinks.append(sink)
        read_bytes += search.work.data_bytes + search.work.index_bytes
        if sink.count or sink.is_full or not search.is_done or read_bytes >= STEP_BYTES:
            break
    return sinks


def _is_searchable(piece: Piece) -> bool:
    return piece.replica is not None and piece.replica.life.is_intact
