"""Queries answer what a plain filter over all records answers, on every page and in both orders."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import asdict
from itertools import pairwise
from typing import Any, cast
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icecore.codec import picking, record
from icecore.codec.batch import Codec
from icecore.codec.columns import Record
from icecore.codec.hashes import key_hash
from icecore.codec.record_columns import columns_of
from icecore.codec.selection import Selection
from icecore.rpc.filters import selection_to_proto
from icecore.rpc.record_columns import from_proto
from icecore.v1 import common_pb2, data_pb2
from icecore_node.replica.life import Life
from icecore_node.serving.fetch import plain_sink
from icecore_node.serving.fetch.plain_records import (
    append_record,
    record_size,
    record_sizes,
    size_of,
)
from icecore_node.serving.query import log_search
from icecore_node.serving.query.query_request import PagePlace, checked_query, continuation
from icecore_node.storage.engine import ACTIVE_INDEX, IndexSummary
from icecore_node.storage.segment_engine.segment_header import FILE_HEADER_LENGTH
from icecore_node.storage.segment_engine.segment_names import file_name
from tests.conformance.log_builder import TOPIC
from tests.support import rotation
from tests.support.poison import garbage_in_frame
from tests.support.query_setup import (
    NothingKnown,
    QueryNode,
    Stored,
    StubRole,
    cut_gaps,
    records_of,
)

KEYS = (None, b"", b"a", b"b", b"\xff\xfe\x00", b"long" * 20_000)
TAGS = ("x", "y", "ü", "")
HEADERS = (("h", b"1"), ("h", b"2"), ("g", b"1"), ("none", None))
STORED = st.builds(
    Stored,
    value=st.sampled_from((None, b"", b"value")),
    key=st.sampled_from(KEYS),
    timestamp_ms=st.integers(-3, 12),
    tags=st.lists(st.sampled_from(TAGS), max_size=3).map(tuple),
    headers=st.lists(st.sampled_from(HEADERS), max_size=2).map(tuple),
)
SELECTIONS = st.builds(
    Selection,
    keys=st.frozensets(st.sampled_from([*KEYS[1:], b"nowhere"]), max_size=2),
    tags_any=st.frozensets(st.sampled_from((*TAGS, "nowhere")), max_size=2),
    tags_all=st.frozensets(st.sampled_from(TAGS), max_size=2),
    tags_none=st.frozensets(st.sampled_from(TAGS), max_size=1),
    headers=st.frozensets(st.sampled_from(HEADERS[:3]), max_size=2),
    from_timestamp_ms=st.one_of(st.none(), st.integers(-3, 5)),
    to_timestamp_ms=st.one_of(st.none(), st.integers(6, 12)),
)
SIMPLE = st.one_of(SELECTIONS, st.builds(Selection, keys=st.just(frozenset({b"a"}))))


def node_of(segments: list[list[list[Stored]]], rng: random.Random) -> QueryNode:
    """All but the last segment sealed; some batches compacted, some compressed."""
    node = QueryNode()
    for number, batches in enumerate(segments, 1):
        node.begin(number)
        start = node.end_offset
        for records in batches:
            deltas = [2 * at for at in range(len(records))] if rng.random() < 0.2 else None
            node.append(number, records, codec=rng.choice(list(Codec)), deltas=deltas)
            maintain(node, rng)
        node.index.gaps[number] = cut_gaps(rng, start, node.end_offset)
        if number < len(segments):
            node.seal(number)
            maintain(node, rng)
    return node


def maintain(node: QueryNode, rng: random.Random) -> None:
    """Some of the background work on the node's own index."""
    for _ in range(rng.choice([0, 0, 1, 5])):
        node.store.index.maintain()


def take_an_index(node: QueryNode, rng: random.Random) -> None:
    """One of a test, as bad as it gets; the node's own; or none."""
    node.index.collide = rng.random() < 0.3
    node.index.searched_max = rng.choice([1, 5, 1000])
    node.index = rng.choice([node.index, node.store.index, NothingKnown()])


def as_messages(records: list[Record]) -> list[Any]:
    part = data_pb2.QueryPartitionResult()
    for each in records:
        append_record(part, each)
    return list(part.records)


@settings(max_examples=rotation.examples(200))
@given(
    segments=st.lists(
        st.lists(st.lists(STORED, min_size=1, max_size=12), max_size=4), min_size=1, max_size=3
    ),
    selection=SIMPLE,
    newest_first=st.booleans(),
    max_count=st.integers(1, 9),
    seed=st.integers(0, 1 << 16),
)
def test_pages_hold_what_a_plain_filter_finds(
    segments: list[list[list[Stored]]],
    selection: Selection,
    newest_first: bool,
    max_count: int,
    seed: int,
) -> None:
    rng = random.Random(seed)
    many = rng.choice([1, 3, 8])
    with (
        patch.object(plain_sink, "MANY", many),
        patch.object(log_search, "MANY", many),
        patch.object(picking, "MANY", many),
    ):
        check_pages(segments, selection, newest_first, max_count, rng)


def check_pages(
    segments: list[list[list[Stored]]],
    selection: Selection,
    newest_first: bool,
    max_count: int,
    rng: random.Random,
) -> None:
    node = node_of(segments, rng)
    take_an_index(node, rng)
    low, high = sorted((rng.randint(0, node.end_offset + 2), rng.randint(0, node.end_offset + 2)))
    high = high if rng.random() < 0.5 else 0
    wanted = [
        each
        for each in node.all_records()
        if selection.wants(each) and each.offset >= low and (not high or each.offset < high)
    ]
    pages = asyncio.run(
        node.pages(
            partitions=[data_pb2.QueryPartition(from_offset=low, to_offset=high)],
            filter=selection_to_proto(selection),
            newest_first=newest_first,
            max_count=max_count,
            takes_columns=rng.random() < 0.7,
        )
    )
    assert records_of(pages, newest_first=newest_first) == as_messages(
        wanted[::-1] if newest_first else wanted
    )
    assert all(page.complete for page in pages)
    assert all(sum(each.records for each in _segments(page)) <= max_count for page in pages)
    ranges = [
        (each.searched_from_offset, each.searched_to_offset)
        for page in pages
        for each in page.partitions
    ]
    ranges = ranges[::-1] if newest_first else ranges
    assert all(a[1] == b[0] for a, b in pairwise(ranges))


def _segments(page: data_pb2.QueryResponse) -> list[data_pb2.SegmentSearch]:
    return [each for result in page.partitions for each in result.segments]


def keyed(*keys: bytes) -> list[Stored]:
    return [Stored(value=b"v%d" % at, key=key, timestamp_ms=at) for at, key in enumerate(keys)]


@pytest.fixture
def node() -> QueryNode:
    """Segments 1 (0..8) and 2 (8..16), sealed, and 3 (16..20)."""
    node = QueryNode()
    for number in (1, 2):
        node.begin(number)
        node.append(number, keyed(b"a", b"b", b"c", b"a"))
        node.append(number, keyed(b"b", b"b", b"d", b"a"))
        node.seal(number)
    node.begin(3)
    node.append(3, keyed(b"a", b"e", b"e", b"a"))
    return node


A = data_pb2.RecordFilter(keys=[b"a"])


@given(st.lists(STORED, min_size=1, max_size=12))
def test_the_size_of_columns_is_that_of_their_records(stored: list[Stored]) -> None:
    records = [Record(**asdict(each)) for each in stored]
    sizes = [record_size(each) for each in records]
    assert record_sizes(columns_of(records)).tolist() == sizes
    assert size_of(columns_of(records)) == sum(sizes)


async def test_many_records_come_as_columns_to_who_takes_them() -> None:
    node = QueryNode()
    node.begin(1)
    node.append(1, keyed(*[b"a", b"b"] * 20))
    asked: dict[str, Any] = {"filter": A, "max_count": 15}
    (plain,) = (await node.query(**asked)).partitions
    (result,) = (await node.query(takes_columns=True, **asked)).partitions
    assert len(plain.records) == 15
    assert not plain.columns
    (columns,) = result.columns
    assert not result.records
    assert from_proto(columns).offsets.tolist() == list(range(0, 30, 2))
    assert result.segments[0].records == 15
    pages = await node.pages(takes_columns=True, filter=A, max_bytes=100)
    assert offsets(*pages) == list(range(0, 40, 2))
    assert len(pages) == 10  # two records of 43 bytes a page


async def test_tags_of_other_records_take_no_room_in_an_answer() -> None:
    node = QueryNode()
    node.begin(1)
    for batch in range(4):
        others = [Stored(tags=(f"{batch}-{at}-" + "t" * 40_000,)) for at in range(40)]
        node.append(1, [*keyed(*[b"a"] * 10), *others])
    page = await node.query(filter=A, takes_columns=True)
    assert sum(map(len, map(from_proto, page.partitions[0].columns))) == 40
    assert page.ByteSize() < 5_000


async def test_a_few_tags_of_many_batches_stay_a_few() -> None:
    node = QueryNode()
    node.begin(1)
    for batch in range(40):
        others = [Stored(tags=(f"{batch}-{at}",)) for at in range(40)]
        node.append(1, [*keyed(*[b"a"] * 10), *others])
    page = await node.query(filter=A, takes_columns=True, max_count=1000)
    (columns,) = page.partitions[0].columns
    assert len(from_proto(columns)) == 400
    assert len(columns.tag_names) <= 64


def offsets(*pages: data_pb2.QueryResponse) -> list[int]:
    return [each.offset for each in records_of(pages)]


def outcomes(page: data_pb2.QueryResponse) -> list[tuple[int, str]]:
    return [
        (each.segment_id, data_pb2.SearchOutcome.Name(each.outcome)[15:].lower())
        for result in page.partitions
        for each in result.segments
    ]


async def test_an_answer_says_what_was_searched(node: QueryNode) -> None:
    page = await node.query(filter=A)
    (result,) = page.partitions
    assert offsets(page) == [0, 3, 7, 8, 11, 15, 16, 19]
    assert page.complete and not page.continuation
    assert (result.searched_from_offset, result.searched_to_offset) == (0, 20)
    assert result.indexed_through_offset == result.high_watermark == 20
    assert outcomes(page) == [(1, "index"), (2, "index"), (3, "index")]
    assert [each.records for each in result.segments] == [3, 3, 2]
    assert [each.candidates for each in result.segments] == [3, 3, 2]
    assert [each.index for each in result.segments] == ["sealed", "sealed", "active"]
    assert all(each.index_bytes and each.data_bytes for each in result.segments)


async def test_segments_are_skipped_by_hash_and_by_time(node: QueryNode) -> None:
    page = await node.query(filter=data_pb2.RecordFilter(keys=[b"d"]))
    assert outcomes(page) == [(1, "index"), (2, "index"), (3, "skipped_hash")]
    page = await node.query(filter=data_pb2.RecordFilter(from_timestamp_ms=100))
    assert outcomes(page) == [(1, "skipped_time"), (2, "skipped_time"), (3, "scan")]
    node.index.gaps[3] = [(17, 18)]
    page = await node.query(filter=data_pb2.RecordFilter(keys=[b"d"]))
    assert outcomes(page)[2] == (3, "scan") and page.complete


async def test_newest_first_neither_misses_nor_repeats_while_records_arrive(
    node: QueryNode,
) -> None:
    asked: dict[str, Any] = {"filter": A, "newest_first": True, "max_count": 3}
    page = await node.query(**asked)
    found = [page]
    while page.continuation:
        node.append(3, keyed(b"a"))
        page = await node.query(**asked, continuation=page.continuation)
        found.append(page)
    assert offsets(*found) == [19, 16, 15, 11, 8, 7, 3, 0]


async def test_oldest_first_meets_what_arrives_meanwhile(node: QueryNode) -> None:
    page = await node.query(filter=A, max_count=7)
    node.append(3, keyed(b"a"))
    more = await node.query(filter=A, max_count=7, continuation=page.continuation)
    assert offsets(page, more) == [0, 3, 7, 8, 11, 15, 16, 19, 20]


async def test_a_segment_that_is_elsewhere_makes_the_answer_incomplete(node: QueryNode) -> None:
    node.lose(2)
    page = await node.query(filter=A)
    assert offsets(page) == [0, 3, 7, 16, 19]
    assert not page.complete
    assert outcomes(page) == [(1, "index"), (0, "elsewhere"), (3, "index")]
    gap = page.partitions[0].segments[1]
    assert (gap.base_offset, gap.end_offset) == (8, 16)
    back = await node.query(filter=A, newest_first=True)
    assert not back.complete and offsets(back) == [19, 16, 7, 3, 0]


async def test_only_the_named_segments_are_searched(node: QueryNode) -> None:
    asked = data_pb2.QueryPartition(segment_ids=[1, 3])
    page = await node.query(filter=A, partitions=[asked])
    assert offsets(page) == [0, 3, 7, 16, 19] and page.complete
    asked.segment_ids.append(9)
    page = await node.query(filter=A, partitions=[asked])
    assert outcomes(page) == [(9, "elsewhere"), (1, "index"), (3, "index")]
    assert not page.complete


async def test_damage_makes_the_answer_incomplete_and_the_replica_unknown(
    node: QueryNode,
) -> None:
    node.index = NothingKnown()
    name = file_name(node.logs[2].identity)
    node.disk.flip_bit(name, 8 * (FILE_HEADER_LENGTH + 200))
    page = await node.query(filter=A)
    assert not page.complete and node.damaged
    assert outcomes(page) == [(1, "scan"), (2, "unavailable"), (3, "scan")]
    assert page.partitions[0].segments[1].error.reason == "NOT_REPLICA"
    assert offsets(page) == [0, 3, 7, 16, 19]
    again = await node.query(filter=A)
    assert outcomes(again)[1] == (2, "unavailable") and not again.complete


@pytest.mark.parametrize("newest_first", [False, True])
async def test_nothing_is_said_of_what_lies_behind_the_segments_that_were_named(
    node: QueryNode, newest_first: bool
) -> None:
    """The caller knows the second segment as the last one, and this node knows the third."""
    asked = [data_pb2.QueryPartition(segment_ids=[1, 2])]
    for max_count in (100, 2):
        pages = await node.pages(
            filter=A, partitions=asked, newest_first=newest_first, max_count=max_count
        )
        assert sorted(offsets(*pages)) == [0, 3, 7, 8, 11, 15]
        for page in pages:
            assert page.partitions[0].indexed_through_offset == 16
            assert page.partitions[0].searched_to_offset <= 16
            assert page.partitions[0].high_watermark == 20


@pytest.mark.parametrize("newest_first", [False, True])
async def test_nothing_is_searched_where_all_named_segments_lie_below_the_range(
    node: QueryNode, newest_first: bool
) -> None:
    """The caller takes the second segment for the one that takes appends."""
    asked = [data_pb2.QueryPartition(segment_ids=[1, 2], from_offset=17)]
    page = await node.query(filter=A, partitions=asked, newest_first=newest_first)
    (result,) = page.partitions
    assert not offsets(page) and not result.segments
    assert result.searched_to_offset == result.indexed_through_offset == 17
    assert result.high_watermark == 20


@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize("known", [8, 13])
async def test_a_named_segment_that_ends_here_before_the_next_begins_is_missing(
    node: QueryNode, newest_first: bool, known: int
) -> None:
    """This node followed the second segment and leads the third; the seal of the second waits, and
    its last watermark was never heard here."""
    followed = node.replicas[2]
    followed.sealed_end_offset, followed.life = None, Life.LED
    followed.role = cast(Any, StubRole(known))
    asked = data_pb2.QueryPartition(segment_ids=[1, 2, 3])
    page = await node.query(filter=A, partitions=[asked], newest_first=newest_first)
    assert sorted(outcomes(page)) == [(1, "index"), (2, "unavailable"), (3, "index")]
    assert not page.complete and sorted(offsets(page)) == [0, 3, 7, 16, 19]
    asked.to_offset = known
    page = await node.query(filter=A, partitions=[asked], newest_first=newest_first)
    assert page.complete, "what was asked for is known here"


@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize("known", [16, 20])
async def test_only_who_led_a_named_segment_knows_how_far_it_goes(
    node: QueryNode, newest_first: bool, known: int
) -> None:
    """A leader that was restarted has all of it, and does not know what it had acknowledged."""
    node.append(3, keyed(b"a"))
    restarted = node.replicas[3]
    restarted.led_in_this_process = False
    restarted.role = cast(Any, StubRole(known))
    asked = data_pb2.QueryPartition(segment_ids=[2, 3])
    page = await node.query(filter=A, partitions=[asked], newest_first=newest_first)
    assert sorted(outcomes(page)) == [(2, "index"), (3, "unavailable")]
    assert page.partitions[0].segments[0].error.reason == "NOT_REPLICA"
    assert not page.complete and sorted(offsets(page)) == [8, 11, 15]
    asked.to_offset = known
    assert (await node.query(filter=A, partitions=[asked], newest_first=newest_first)).complete
    del asked.segment_ids[:]
    asked.to_offset = 0
    page = await node.query(filter=A, partitions=[asked], newest_first=newest_first)
    assert page.complete, "who names none is told what is known here"
    assert page.partitions[0].indexed_through_offset == known


async def test_a_damaged_active_segment_is_named_though_nobody_knows_its_end(
    node: QueryNode,
) -> None:
    node.condemn(node.replicas[3], "in a test")
    page = await node.query(filter=A)
    assert not page.complete and (3, "unavailable") in outcomes(page)
    assert offsets(page) == [0, 3, 7, 8, 11, 15]
    assert page.partitions[0].indexed_through_offset == 16


@pytest.mark.parametrize("newest_first", [False, True])
async def test_what_has_no_place_in_the_range_moves_no_page(
    node: QueryNode, newest_first: bool
) -> None:
    node.condemn(node.replicas[3], "in a test")
    asked = [data_pb2.QueryPartition(segment_ids=[1, 2, 3, 9])]
    pages = await node.pages(filter=A, partitions=asked, newest_first=newest_first, max_count=1)
    assert offsets(*pages) == sorted([0, 3, 7, 8, 11, 15], reverse=newest_first)
    assert outcomes(pages[0])[:2] == [(9, "elsewhere"), (3, "unavailable")]
    assert [page.complete for page in pages] == [False] + [True] * (len(pages) - 1)


async def test_a_batch_nobody_can_decode_is_named_and_the_rest_is_found(node: QueryNode) -> None:
    node.append(3, [], raw=garbage_in_frame(Codec.ZSTD))
    behind = node.end_offset
    node.append(3, keyed(b"a"))
    node.index = NothingKnown()
    page = await node.query(filter=data_pb2.RecordFilter())
    assert not page.complete
    assert page.partitions[0].segments[2].error.reason == "CORRUPT_BATCH"
    assert offsets(page)[-1] == behind


async def test_another_key_with_the_same_hash_is_not_found(node: QueryNode) -> None:
    node.append(3, [], raw=_with_hash_of(b"a", b"other"))
    node.index = NothingKnown()
    assert offsets(await node.query(filter=A)) == [0, 3, 7, 8, 11, 15, 16, 19]
    page = await node.query(filter=data_pb2.RecordFilter(keys=[b"other", b"a"]))
    assert page.complete


def _with_hash_of(key: bytes, other: bytes) -> bytes:
    return record.encode_columns(
        values=[b"v"], keys=[other], key_hashes=[key_hash(key)], timestamps_ms=[1]
    )


async def test_many_tags_and_large_records(node: QueryNode) -> None:
    tags = tuple(f"tag-{number}" for number in range(1000))
    node.append(3, [Stored(value=bytes(2 << 20), tags=tags), Stored(value=b"small", tags=tags[:1])])
    page = await node.query(
        filter=data_pb2.RecordFilter(tags_all=["tag-0", "tag-999"]), max_bytes=10
    )
    assert offsets(page) == [20] and len(records_of([page])[0].tags) == 1000
    pages = await node.pages(filter=data_pb2.RecordFilter(tags_any=["tag-0"]), max_bytes=10)
    assert offsets(*pages) == [20, 21]


async def test_a_page_that_has_cost_much_ends(
    node: QueryNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("icecore_node.serving.query.query.PAGE_EFFORT_BYTES", 1)
    node.index = NothingKnown()
    nobody = data_pb2.RecordFilter(keys=[b"nobody"])
    for newest_first in (False, True):
        pages = await node.pages(filter=nobody, newest_first=newest_first)
        assert len(pages) == 3 and not records_of(pages)
        assert all(page.complete for page in pages)


async def test_looks_cost_less_than_what_they_read(
    node: QueryNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a thousand keys would be many pages, each of which asks the index for all of them."""
    monkeypatch.setattr("icecore_node.serving.query.query.PAGE_EFFORT_BYTES", 1 << 20)
    for _ in range(24):  # more than one step looks at
        node.append(3, [Stored(bytes(256 << 10)), Stored(b"", b"small")])
    (page,) = await node.pages(filter=data_pb2.RecordFilter(keys=[b"small"]))
    assert len(records_of([page])) == 24
    assert sum(each.data_bytes for each in page.partitions[0].segments) > 6 << 20


async def test_a_page_that_takes_long_ends(node: QueryNode) -> None:
    def late(*args: Any, **named: Any) -> Any:
        node.clock.ms += 2000
        return found(*args, **named)

    found: Callable[..., Any] = node.index.candidates
    node.index.candidates = late
    pages = await node.pages(filter=A)
    assert len(pages) == 3
    assert offsets(*pages) == [0, 3, 7, 8, 11, 15, 16, 19]


async def test_explain_reads_nothing(node: QueryNode, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(*_: Any) -> Any:
        raise AssertionError("a log was read")

    monkeypatch.setattr(node.context.store, "reader", node.store.reader)
    monkeypatch.setattr(type(node.store.reader), "read", read)
    page = await node.query(filter=A, explain_only=True)
    assert not records_of([page]) and not node.index.calls
    assert outcomes(page) == [(1, "index"), (2, "index"), (3, "index")]
    assert all(each.data_bytes and each.index_bytes for each in page.partitions[0].segments)
    page = await node.query(filter=data_pb2.RecordFilter(from_timestamp_ms=2), explain_only=True)
    assert {name for _, name in outcomes(page)} == {"scan"}


async def test_partitions_are_answered_in_order_and_one_that_is_not_here_says_so(
    node: QueryNode,
) -> None:
    asked = [data_pb2.QueryPartition(partition=7), data_pb2.QueryPartition()]
    page = await node.query(partitions=asked, filter=A)
    assert [each.partition for each in page.partitions] == [7, 0]
    assert page.partitions[0].error.reason == "UNKNOWN_TOPIC_OR_PARTITION"
    assert not page.complete and len(records_of([page])) == 8
    page = await node.query(topic_id=bytes(16))
    assert page.partitions[0].error.reason == "UNKNOWN_TOPIC_OR_PARTITION"


async def test_headers_are_found_by_the_index_where_the_segment_indexes_them(
    node: QueryNode,
) -> None:
    node.append(3, [Stored(headers=(("h", b"1"), ("g", b"1"))), Stored(headers=(("h", b"2"),))])
    one = data_pb2.RecordFilter(headers=[common_pb2.Header(name="h", value=b"1")])
    page = await node.query(filter=one)
    assert offsets(page) == [20]
    assert outcomes(page) == [(1, "skipped_hash"), (2, "skipped_hash"), (3, "index")]
    one.headers.add(name="g", value=b"1")
    page = await node.query(filter=one)
    assert offsets(page) == [20] and outcomes(page)[2] == (3, "scan")


@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize("max_count", range(1, 6))
async def test_a_page_may_end_in_a_gap_within_a_batch(newest_first: bool, max_count: int) -> None:
    node = QueryNode()
    node.begin(1)
    node.append(1, keyed(*[b"a"] * 8))
    node.index.gaps[1] = [(2, 4), (5, 7)]
    pages = await node.pages(filter=A, newest_first=newest_first, max_count=max_count)
    assert offsets(*pages) == sorted(range(8), reverse=newest_first)


async def test_what_retention_has_dropped_is_not_asked_for(node: QueryNode) -> None:
    node.table.of(TOPIC, 0).note_start(8)
    page = await node.query(filter=A)
    assert offsets(page) == [8, 11, 15, 16, 19] and page.complete
    assert page.partitions[0].searched_from_offset == 8


async def test_times_of_an_active_segment_are_not_believed(node: QueryNode) -> None:
    """They may be those of before the last append."""
    node.index.summary = lambda _: IndexSummary(ACTIVE_INDEX, 1000, 10, 3, (0, 1))
    page = await node.query(filter=data_pb2.RecordFilter(from_timestamp_ms=3))
    assert offsets(page) == [each.offset for each in node.all_records() if each.timestamp_ms >= 3]


@pytest.mark.parametrize("newest_first", [False, True])
async def test_a_forged_token_leads_nowhere_outside_of_what_was_asked(
    node: QueryNode, newest_first: bool
) -> None:
    asked: dict[str, Any] = {
        "partitions": [data_pb2.QueryPartition(from_offset=4, to_offset=12)],
        "filter": A,
        "newest_first": newest_first,
    }
    plan = checked_query(data_pb2.QueryRequest(topic_id=TOPIC, **asked), TOPIC)
    for offset in (0, 1 << 40):
        page = await node.query(continuation=continuation(plan, PagePlace(0, offset)), **asked)
        assert set(offsets(page)) <= {7, 8, 11} and not page.continuation
