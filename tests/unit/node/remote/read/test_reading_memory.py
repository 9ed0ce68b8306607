"""Row groups of cold reads go when those end, and not when the garbage collector comes."""

import asyncio
import gc
from collections.abc import Callable, Coroutine, Iterator
from types import TracebackType
from typing import Any, TypeVar, TypeVarTuple, cast

import pytest

from icecore.errors import ObjectStoreBusyError
from icecore.model import SegmentId
from icecore.v1 import data_pb2
from icecore_node.remote.format.row_batches import RowBatches
from icecore_node.remote.read import remote_log
from icecore_node.remote.read.cache import ValueLease
from icecore_node.remote.read.remote_log import RawPart, RemoteLog
from icecore_node.remote.read.unread import Unread
from tests.conformance.log_builder import TOPIC
from tests.support.query_setup import QueryNode, Stored, records_of
from tests.support.remote_setup import RemoteNode

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
SEGMENTS = 6


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def alive(kind: type) -> int:
    """Return how many there are of a class."""
    return sum(type(each) is kind for each in gc.get_objects())


def cold_node(memory_bytes: int) -> RemoteNode:
    source = QueryNode()
    source.index = source.store.index
    for number in range(1, SEGMENTS + 1):
        source.begin(number)
        for at in range(6):
            source.append(number, [Stored(b"v%d" % at * 200, b"k%d" % at, at)])
        source.seal(number)
    while source.store.index.maintain():
        pass
    remote = RemoteNode(memory_bytes=memory_bytes)
    for number in source.logs:
        remote.publish(source, number, row_group_bytes=400)
    return remote


def all_segments() -> data_pb2.QueryPartition:
    return data_pb2.QueryPartition(segment_ids=range(1, SEGMENTS + 1))


def wanted(at: int) -> data_pb2.RecordFilter:
    return data_pb2.RecordFilter(keys=[b"k%d" % at])


@pytest.mark.parametrize("whole_bytes", [0, 1 << 20])
async def test_row_groups_go_with_their_search(
    monkeypatch: pytest.MonkeyPatch, whole_bytes: int
) -> None:
    monkeypatch.setattr(remote_log, "WHOLE_INDEX_BYTES", whole_bytes)
    remote = cold_node(memory_bytes=1)  # the cache keeps nothing
    before = alive(RowBatches), alive(RemoteLog), alive(TracebackType)
    for at in range(20):
        pages = await remote.node.pages(
            partitions=[all_segments()], filter=wanted(at % 6), max_count=2, max_bytes=1 << 20
        )
        assert len(records_of(pages)) == SEGMENTS
        await remote.node.fetch_entry(
            data_pb2.FetchPartition(topic_id=TOPIC, segment_id=1, filter=wanted(at % 6))
        )
    assert (alive(RowBatches), alive(RemoteLog), alive(TracebackType)) == before
    assert remote.cache.memory_bytes == 0


async def test_what_is_nowhere_leaves_nothing_behind() -> None:
    remote = cold_node(memory_bytes=1)
    before = alive(TracebackType), alive(RowBatches)
    for offset in range(20):
        entry = data_pb2.FetchPartition(topic_id=TOPIC, offset=offset, segment_id=77)
        result, _ = await remote.node.fetch_entry(entry)
        assert result.error.reason == "UNKNOWN_TOPIC_OR_PARTITION"
    assert (alive(TracebackType), alive(RowBatches)) == before


async def test_searches_and_cache_share_one_budget() -> None:
    """Searches that wait for their next step give back what there is no room for, and find the same
    as others."""
    remote = cold_node(memory_bytes=3_000)
    for at in range(6):
        pages = await remote.node.pages(
            partitions=[all_segments()], filter=wanted(at), max_count=1, max_bytes=1 << 20
        )
        assert len(records_of(pages)) == SEGMENTS
        assert remote.cache.memory_bytes <= 3_000


def one_look_up(remote: RemoteNode) -> Coroutine[Any, Any, object]:
    asked = data_pb2.QueryPartition(segment_ids=[1, 2])
    return remote.node.query(partitions=[asked], filter=wanted(3), max_count=9, max_bytes=1 << 20)


def one_filtered_fetch(remote: RemoteNode) -> Coroutine[Any, Any, object]:
    entry = data_pb2.FetchPartition(topic_id=TOPIC, segment_id=1, filter=wanted(3))
    return remote.node.fetch_entry(entry)


async def _slow_run(function: Callable[[*Ts], T], *args: *Ts) -> T:
    """As an executor, whose caller can leave before and after."""
    await asyncio.sleep(0)
    found = function(*args)
    await asyncio.sleep(0)
    return found


@pytest.mark.parametrize("ask", [one_look_up, one_filtered_fetch])
@pytest.mark.parametrize("between", range(4))
async def test_a_client_that_leaves_at_any_moment_leaves_nothing_behind(
    ask: Callable[[RemoteNode], Coroutine[Any, Any, object]], between: int
) -> None:
    """Its call may be cancelled a second time, while what it held is let go of."""
    remote, has_ended, turns = cold_node(memory_bytes=1), False, 0
    remote.executor.run = _slow_run  # type: ignore[method-assign]
    while not has_ended:
        turns += 1
        asking = asyncio.ensure_future(ask(remote))
        for _ in range(turns):
            await asyncio.sleep(0)
        has_ended = asking.done()
        asking.cancel()
        for _ in range(between):
            await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait({asking})
        while others := asyncio.all_tasks() - {asyncio.current_task()}:
            await asyncio.wait(others)
        assert remote.cache.memory_bytes == 0, f"left after {turns} turns of the loop"
        assert not remote.reading._resting
        assert remote.reading.is_idle_enough
    assert turns > 20


@pytest.mark.parametrize("ask", [one_look_up, one_filtered_fetch])
async def test_a_store_that_fails_at_any_request_leaves_nothing_behind(
    ask: Callable[[RemoteNode], Coroutine[Any, Any, object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    remote, asked, failed_at = cold_node(memory_bytes=1), 1, 1
    get_ranges = remote.store.get_ranges

    async def fail(*args: Any) -> list[bytes]:
        nonlocal asked
        asked += 1
        if asked >= failed_at:
            raise ObjectStoreBusyError("later")
        return await get_ranges(*args)

    monkeypatch.setattr(remote.store, "get_ranges", fail)
    while asked >= failed_at:
        failed_at, asked = failed_at + 1, 0
        await ask(remote)
        assert remote.cache.memory_bytes == 0, f"left when request {failed_at} failed"
    assert failed_at > 3


async def test_a_log_is_let_go_of_while_a_thread_reads_it() -> None:
    """The thread of a step whose caller has left moves parts between two that are closed."""
    remote = cold_node(memory_bytes=1 << 20)
    log = await remote.reading.open_log(SegmentId(1))
    groups = log.manifest.row_groups[:3]
    data, _ = await remote.reading.read(SegmentId(1), 0, 1)
    closed = []

    class Meddled:
        """In the place of a ``ValueLease``."""

        value = RawPart(b"".join(data))

        def close(self) -> None:
            closed.append(log.read(SegmentId(1), groups[0].base_offset, 1, groups[0].end_offset))

    for group in groups:
        log.take(group, cast(ValueLease[Any], Meddled()))
    log.release()
    assert closed == [Unread(groups[0])] * 3
