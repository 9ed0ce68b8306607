"""A search reads about as much as it must, in bounded steps; one that fails may be repeated."""

import random
from typing import Any, cast

import pytest

from icecore.codec.columns import Record
from icecore.codec.picking import Picks
from icecore.codec.selection import Selection
from icecore.errors import StorageError
from icecore.v1 import data_pb2
from icecore_node.serving.fetch.plain_sink import PlainSink
from icecore_node.serving.query import log_search
from icecore_node.serving.query.log_search import LogSearch, LogView
from icecore_node.serving.query.search_ports import StoredBatch
from tests.support.query_setup import HashIndex, NothingKnown, QueryNode, Stored

NOBODY = Selection(keys=frozenset({b"nobody"}))


class ListSink:
    """Takes so many records."""

    def __init__(self, room: int = 1 << 30) -> None:
        self.records: list[Record] = []
        self._room = room

    @property
    def is_full(self) -> bool:
        return len(self.records) >= self._room

    def take(self, found: StoredBatch, picks: Picks, places: Any) -> int:
        taken = places[: self._room - len(self.records)]
        self.records += picks.records_at(taken)
        return len(taken)

    def refuse(self, found: StoredBatch, error: Exception) -> bool:
        raise error


def node_with(sizes: list[int], value_bytes: int = 100) -> QueryNode:
    """One segment with batches of so many records."""
    node, rng = QueryNode(), random.Random(1)
    node.begin(1)
    for size in sizes:
        node.append(
            1, [Stored(rng.randbytes(value_bytes), key=b"k%d" % (at % 7)) for at in range(size)]
        )
    node.index = NothingKnown()
    return node


def view(node: QueryNode, reader: Any = None) -> LogView:
    return LogView(reader or node.store.reader, cast(Any, node), 1, node.end_offset)


@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize(
    "sizes",
    [[3000] * 8, [1] * 3000, [3000, *[1] * 1000, 3000, 3000, *[1] * 1000], [1]],
    ids=["large", "small", "mixed", "one"],
)
def test_everything_is_read_about_once(sizes: list[int], newest_first: bool) -> None:
    node = node_with(sizes)
    length = node.logs[1].tail.length_bytes
    search = LogSearch(view(node), NOBODY, (0, node.end_offset), newest_first=newest_first)
    steps = 0
    while not search.is_done:
        before = search.work.data_bytes
        assert not search.step(ListSink).records
        assert search.work.data_bytes - before <= 3 * log_search.STEP_BYTES
        steps += 1
    assert length <= search.work.data_bytes <= 2.5 * length
    assert steps <= 2 + 2.5 * length / log_search.STEP_BYTES


@pytest.mark.parametrize("newest_first", [False, True])
def test_a_step_that_fails_may_be_repeated(newest_first: bool) -> None:
    node = node_with([5] * 6)

    class Failing:
        """One read of a step fails: the first, the second or none."""

        fails_at = 0

        def read(self, *args: Any) -> Any:
            self.fails_at -= 1
            if not self.fails_at:
                raise StorageError("in a test")
            return node.store.reader.read(*args)

        def tail(self, *args: Any) -> Any:
            return node.store.reader.tail(*args)

    asked = 2, node.end_offset - 2
    reader = Failing()
    search = LogSearch(view(node, reader), Selection(), asked, newest_first=newest_first)
    found: list[int] = []
    while not search.is_done:
        for reader.fails_at in (1, 2, 0):
            left = search.left
            try:
                found += [each.offset for each in search.step(lambda: ListSink(4)).records]
            except StorageError:
                assert search.left == left
    assert found == sorted(range(*asked), reverse=newest_first)


@pytest.mark.parametrize("newest_first", [False, True])
def test_a_full_sink_ends_the_step_where_the_next_one_goes_on(newest_first: bool) -> None:
    node = node_with([1, 4, 9, 2])
    search = LogSearch(view(node), Selection(), (0, node.end_offset), newest_first=newest_first)
    found: list[int] = []
    while not search.is_done:
        step = search.step(lambda: ListSink(3)).records
        assert 0 < len(step) <= 3 or search.is_done
        found += [each.offset for each in step]
        left = set(range(*search.left))
        assert left.isdisjoint(found) and len(left) + len(found) == node.end_offset
    assert found == sorted(range(node.end_offset), reverse=newest_first)


def test_a_log_that_was_cut_is_not_searched_to_its_former_end() -> None:
    node = node_with([4, 4])
    search = LogSearch(view(node), Selection(), (0, 8))
    node.store.truncate(1, 4)
    with pytest.raises(log_search.NotReplicaError, match="segment 1 ends before 4"):
        while not search.is_done:
            search.step(ListSink)


def test_the_first_record_comes_whatever_its_size() -> None:
    node = node_with([3], value_bytes=1000)
    search = LogSearch(view(node), Selection(), (0, 3))

    def small(is_first: bool) -> PlainSink:
        return PlainSink(data_pb2.QueryPartitionResult(), 100, 1, is_first=is_first)

    assert search.step(lambda: small(is_first=True)).count == 1
    assert search.left == (1, 3)
    assert search.step(lambda: small(is_first=False)).count == 0
    assert search.left == (1, 3)


def test_a_step_makes_a_bounded_number_of_looks() -> None:
    node = node_with([5] * 100, value_bytes=10_000)
    node.index = HashIndex(node)
    search = LogSearch(view(node), Selection(keys=frozenset({b"k1"})), (0, node.end_offset))
    found: list[int] = []
    while not search.is_done:
        step = search.step(ListSink).records
        assert len(step) <= log_search.STEP_BYTES // (8 << 10)
        found += [each.offset for each in step]
    assert found == [at for at in range(node.end_offset) if at % 5 == 1]
