"""Filtered fetches give what others give, filtered by hand, and look at nothing twice."""

import asyncio
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icecore.codec import batch, record
from icecore.codec.batch import Codec
from icecore.codec.columns import Record
from icecore.codec.selection import Selection
from icecore.rpc.filters import selection_to_proto
from icecore.v1 import data_pb2
from icecore_node.serving.fetch import filtered_fetch
from tests.support import rotation
from tests.support.poison import garbage_in_frame
from tests.support.query_setup import NothingKnown, QueryNode, Stored
from tests.unit.node.serving.query.test_query import (
    SIMPLE,
    STORED,
    as_messages,
    node_of,
    take_an_index,
)

A = data_pb2.RecordFilter(keys=[b"a"])


def keyed(*keys: bytes) -> list[Stored]:
    return [Stored(value=b"v%d" % at, key=key, timestamp_ms=at) for at, key in enumerate(keys)]


def decoded(batches: bytes) -> list[Record]:
    """Return the records of whole batches, whose checksums must be right."""
    found: list[Record] = []
    for position, header in batch.iter_batches(batches):
        batch.verify_producer_crc(batches, position, header)
        found += record.decode(batches, position, header).to_records()
    return found


async def fetched(
    node: QueryNode, wanted: data_pb2.RecordFilter, **fields: Any
) -> tuple[list[Record], list[Any]]:
    """All there is, from the start: out of batches, and clear."""
    found: list[Record] = []
    clear: list[Any] = []
    offset = 0
    while offset < node.end_offset:
        result, batches = await node.fetch(offset, wanted, **fields)
        assert not result.HasField("error") and result.batches_length == len(batches)
        assert offset < result.next_offset <= node.end_offset
        found += [each for each in decoded(batches) if each.offset >= offset]
        clear += result.records
        offset = result.next_offset
    return found, clear


@settings(max_examples=rotation.examples(80))
@given(
    segments=st.lists(
        st.lists(st.lists(STORED, min_size=1, max_size=12), max_size=4), min_size=1, max_size=3
    ),
    selection=SIMPLE,
    max_bytes=st.sampled_from([1, 300, 1 << 20]),
    seed=st.integers(0, 1 << 16),
)
def test_what_comes_is_what_a_plain_filter_leaves(
    segments: list[list[list[Stored]]], selection: Selection, max_bytes: int, seed: int
) -> None:
    rng = random.Random(seed)
    node = node_of(segments, rng)
    take_an_index(node, rng)
    wanted = [each for each in node.all_records() if selection.wants(each)]
    message = selection_to_proto(selection)
    found, _ = asyncio.run(fetched(node, message, max_bytes=max_bytes))
    assert found == wanted
    _, clear = asyncio.run(fetched(node, message, max_bytes=max_bytes, as_records=True))
    assert clear == as_messages(wanted)


@pytest.fixture
def node() -> QueryNode:
    node = QueryNode()
    node.begin(1)
    node.append(1, keyed(b"a", b"b", b"c", b"a"), codec=Codec.ZSTD)
    node.append(1, keyed(b"b", b"b"))
    node.append(1, keyed(b"a", b"a"))
    return node


async def test_a_batch_with_some_matches_keeps_its_place_and_header(node: QueryNode) -> None:
    result, batches = await node.fetch(0, A)
    assert (result.next_offset, result.high_watermark) == (8, 8)
    stored = node.logs[1].batches
    (_, first), (at, _) = batch.iter_batches(batches)
    assert bytes(batches[at:]) == stored[2]  # all of it matches
    was = batch.parse_header(stored[0])
    kept = ("segment_id", "epoch", "base_offset", "end_offset", "append_timestamp_ms", "codec")
    assert [getattr(first, name) for name in kept] == [getattr(was, name) for name in kept]
    assert first.leader_flags == batch.LeaderFlag.COMPACTED and first.record_count == 2
    assert [(each.offset, each.value) for each in decoded(batches)] == [
        (0, b"v0"),
        (3, b"v3"),
        (6, b"v0"),
        (7, b"v1"),
    ]


async def test_a_poll_waits_until_something_matches(node: QueryNode) -> None:
    poll = asyncio.ensure_future(node.fetch(8, A, max_wait_ms=20_000))
    for _ in range(5):
        node.append(1, keyed(b"b", b"c"))
        for _ in range(5):
            await asyncio.sleep(0)
        assert not poll.done()
    assert node.index.asked == [(at, at + 2) for at in range(8, 18, 2)]  # each batch once
    node.append(1, keyed(b"c", b"a"))
    result, batches = await asyncio.wait_for(poll, 5)
    assert [each.offset for each in decoded(batches)] == [19]
    assert result.next_offset == 20


async def test_a_poll_that_ends_says_how_far_it_has_looked(node: QueryNode) -> None:
    poll = asyncio.ensure_future(node.fetch(8, A, max_wait_ms=500))
    await asyncio.sleep(0)
    node.append(1, keyed(b"b", b"c"))
    result, batches = await asyncio.wait_for(poll, 5)
    assert not batches and result.next_offset == 10


async def test_a_sealed_end_is_told_at_once(node: QueryNode) -> None:
    node.append(1, keyed(b"b"))
    node.seal(1)
    result, batches = await asyncio.wait_for(node.fetch(8, A, max_wait_ms=20_000), 5)
    assert not batches and result.next_offset == result.sealed_end_offset == 9


@pytest.mark.parametrize("limit", ["LOOK_BYTES_MAX", "LOOK_MS_MAX"])
async def test_a_fetch_that_has_looked_at_much_answers(
    node: QueryNode, limit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.index = NothingKnown()
    for _ in range(8):
        node.append(1, [Stored(value=bytes(100 << 10), key=b"b")])
    monkeypatch.setattr(filtered_fetch, limit, 1)
    if limit == "LOOK_MS_MAX":
        real = node.store.reader.read

        def slow(*args: Any) -> Any:
            node.clock.ms += 10
            return real(*args)

        monkeypatch.setattr(node.context.store, "reader", node.store.reader)
        monkeypatch.setattr(type(node.store.reader), "read", lambda _, *args: slow(*args))
    nobody = data_pb2.RecordFilter(keys=[b"nobody"])
    result, batches = await asyncio.wait_for(node.fetch(0, nobody, max_wait_ms=20_000), 5)
    assert not batches and 0 < result.next_offset < node.end_offset


async def test_a_fetch_with_an_index_reads_only_what_it_names(node: QueryNode) -> None:
    for _ in range(20):
        node.append(1, [Stored(value=bytes(100 << 10), key=b"b")])
    node.append(1, keyed(b"z"))
    read = []
    real = node.store.reader.read

    def counted(*args: Any) -> Any:
        read.append(args)
        return real(*args)

    node.context.store.reader = type("Reader", (), {"read": staticmethod(counted)})()
    result, batches = await node.fetch(0, data_pb2.RecordFilter(keys=[b"z"]))
    assert len(decoded(batches)) == 1 and result.next_offset == node.end_offset
    assert len(read) == 1


async def test_a_batch_nobody_can_decode(node: QueryNode) -> None:
    """As a filter that can't tell passes it on; plain records end in front of it (R71)."""
    node.index = NothingKnown()
    node.append(1, [], raw=garbage_in_frame(Codec.LZ4))
    node.append(1, keyed(b"a"))
    everybody = data_pb2.RecordFilter(from_timestamp_ms=0)
    result, batches = await node.fetch(0, everybody)
    assert node.logs[1].batches[3] in batches and result.next_offset == 12
    result, _ = await node.fetch(0, everybody, as_records=True)
    assert len(result.records) == 8 and result.next_offset == 8
    result, _ = await node.fetch(8, everybody, as_records=True)
    assert result.error.reason == "CORRUPT_BATCH" and result.next_offset == 11
    result, _ = await node.fetch(11, everybody, as_records=True)
    assert len(result.records) == 1 and result.next_offset == 12


async def test_a_wrong_filter_is_refused(node: QueryNode) -> None:
    wrong = data_pb2.RecordFilter(from_timestamp_ms=5, to_timestamp_ms=5)
    result, _ = await node.fetch(0, wrong)
    assert result.error.reason == "INVALID_REQUEST"
    result, _ = await node.fetch(0, data_pb2.RecordFilter(keys=[b"%d" % n for n in range(1001)]))
    assert "1001 keys" in result.error.message


async def test_header_hashes_stay_with_their_records(node: QueryNode) -> None:
    raw = record.encode_columns(
        values=[b"x", b"y", b"z"],
        keys=[b"a", b"b", b"a"],
        timestamps_ms=[1, 2, 3],
        headers=[[("h", b"1")], [], [("h", b"3"), ("i", None)]],
        header_hashes=[[11], [], [33, 34]],
    )
    node.append(1, [], raw=raw)
    node.index = NothingKnown()
    _, batches = await node.fetch(8, A)
    hashes = record.decode(batches, 0, batch.parse_header(batches)).index.header_hashes
    assert hashes is not None
    assert (hashes.lists.tolist(), hashes.items.tolist()) == ([0, 1, 3], [11, 33, 34])
