"""First steps of searches: together while they find nothing, alone where one fails."""

from types import SimpleNamespace
from typing import Any

import pytest

from icecore.errors import StorageError
from icecore_node.serving.query.log_search import STEP_BYTES
from icecore_node.serving.query.pieces import Piece
from icecore_node.serving.query.steps_ahead import StepsAhead, step_together


class Search:
    """Finds ``count`` records in its first step, or fails."""

    def __init__(self, count: int = 0, *, fails: int = 0, read: int = 0, done: bool = True) -> None:
        self.count, self.fails, self.is_done = count, fails, done
        self.work = SimpleNamespace(effort_bytes=read, index_bytes=0)
        self.steps = 0

    def step(self, make_sink: Any) -> Any:
        self.steps += 1
        if self.steps <= self.fails:
            raise StorageError("damaged")
        sink = make_sink()
        sink.count = min(self.count, sink.room)
        sink.is_full = sink.count == sink.room
        return sink


def sink(room: int = 100) -> Any:
    made = SimpleNamespace(count=0, is_full=False, room=room)
    made.rest = lambda: sink(made.room - made.count)
    return made


def together(*searches: Search) -> list[int]:
    return [each.count for each in step_together(searches, sink)]  # type: ignore[arg-type]


def test_they_go_on_until_one_is_full() -> None:
    searches = [Search(), Search(60), Search(70), Search()]
    assert together(*searches) == [0, 60, 40]
    assert [each.steps for each in searches] == [1, 1, 1, 0]


def test_they_stop_behind_one_that_has_more_to_do_or_read_much() -> None:
    assert together(Search(), Search(done=False), Search()) == [0, 0]
    assert together(Search(read=STEP_BYTES), Search()) == [0]


def test_one_that_fails_is_left_to_a_step_of_its_own() -> None:
    assert together(Search(), Search(fails=1), Search()) == [0]
    with pytest.raises(StorageError):
        together(Search(fails=1), Search())


def piece(number: int, *, intact: bool = True) -> Piece:
    life = SimpleNamespace(is_intact=intact)
    replica: Any = SimpleNamespace(segment_id=number, life=life)
    return Piece(replica, number, number + 1)


async def test_each_piece_gets_its_own_search_and_no_thread_without_need() -> None:
    searches = [Search(), Search(), Search(1), Search(fails=2), Search()]
    pieces = [piece(number) for number in range(5)]
    calls: list[int] = []

    async def run(replica: Any, call: Any, *args: Any) -> Any:
        calls.append(replica.segment_id)
        return call(*args)

    ahead = StepsAhead(iter(pieces), lambda each: searches[each.from_offset], run)  # type: ignore[arg-type,return-value]
    for at in range(3):
        assert next(ahead) is pieces[at]
        search, found = await ahead.first(sink)
        assert (search, found.count) == (searches[at], searches[at].count)
    next(ahead)
    with pytest.raises(StorageError):
        await ahead.first(sink)
    assert (await ahead.first(sink))[0] is searches[3]
    next(ahead)
    assert (await ahead.first(sink))[0] is searches[4]
    assert list(ahead) == []
    assert calls == [0, 3, 3]


async def test_a_damaged_replica_ends_what_is_made_together() -> None:
    pieces = [piece(0), piece(1, intact=False), piece(2)]
    begun: list[int] = []

    def begin(each: Piece) -> Any:
        begun.append(each.from_offset)
        return Search()

    async def run(_: Any, call: Any, *args: Any) -> Any:
        return call(*args)

    ahead = StepsAhead(iter(pieces), begin, run)
    next(ahead)
    await ahead.first(sink)
    assert begun == [0]
    assert [next(ahead), next(ahead)] == pieces[1:]
    await ahead.first(sink)
    assert begun == [0, 2]
