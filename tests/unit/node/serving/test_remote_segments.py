"""A node without a replica answers from object storage what a sealed replica answers."""

import random
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icecore.codec import batch, record
from icecore.codec.batch import Codec
from icecore.codec.columns import Record
from icecore.codec.selection import Selection
from icecore.errors import CorruptBatchError
from icecore.rpc.filters import selection_to_proto
from icecore.v1 import data_pb2
from icecore_node.remote.read import remote_log
from tests.conformance.log_builder import TOPIC
from tests.simulation.disk import SimDisk
from tests.support import rotation
from tests.support.poison import garbage
from tests.support.query_setup import CALL, QueryNode, Stored, records_of
from tests.support.remote_setup import RemoteNode

KEYS = (None, b"", b"a", b"b", b"\xff\x00")
TAGS = ("x", "y", "ü", "")
HEADERS = (("h", b"1"), ("h", b"2"), ("g", b"1"), ("none", None))
STORED = st.builds(
    Stored,
    value=st.sampled_from((None, b"", b"value", b"v" * 700)),
    key=st.sampled_from(KEYS),
    timestamp_ms=st.integers(-3, 12),
    tags=st.lists(st.sampled_from(TAGS), max_size=3).map(tuple),
    headers=st.lists(st.sampled_from(HEADERS), max_size=2).map(tuple),
)
SELECTIONS = st.builds(
    Selection,
    keys=st.frozensets(st.sampled_from([*KEYS[1:], b"nowhere"]), max_size=2),
    tags_any=st.frozensets(st.sampled_from((*TAGS, "nowhere")), max_size=2),
    tags_none=st.frozensets(st.sampled_from(TAGS), max_size=1),
    headers=st.frozensets(st.sampled_from(HEADERS[:3]), max_size=2),
    from_timestamp_ms=st.one_of(st.none(), st.integers(-3, 5)),
    to_timestamp_ms=st.one_of(st.none(), st.integers(6, 12)),
)
BATCHES = st.lists(st.lists(STORED, min_size=1, max_size=6), min_size=1, max_size=6)


def sealed_node(segments: list[list[list[Stored]]], rng: random.Random) -> QueryNode:
    """Every codec, compacted batches, and some that nobody can decode; all segments sealed."""
    node = QueryNode()
    node.index = node.store.index
    for number, batches in enumerate(segments, 1):
        node.begin(number)
        for records in batches:
            deltas = [2 * at for at in range(len(records))] if rng.random() < 0.3 else None
            node.append(number, records, codec=rng.choice(list(Codec)), deltas=deltas)
            if rng.random() < 0.2:
                node.append(number, (), raw=garbage(Codec.ZSTD))
        node.seal(number)
        if rng.random() < 0.8:
            while node.store.index.maintain():
                pass
    return node


def remote_of(source: QueryNode, rng: random.Random, disk: SimDisk | None = None) -> RemoteNode:
    remote = RemoteNode(disk)
    for number in source.logs:
        as_rows = rng.random() < 0.8
        size = rng.choice([1, 500, 1 << 20])
        remote.publish(source, number, row_group_bytes=size, as_rows=as_rows)
    return remote


def decoded(data: bytes) -> list[Record | bytes]:
    """Records, and what nobody can decode."""
    found: list[Record | bytes] = []
    for position, header in batch.iter_batches(data):
        try:
            found += record.decode(data, position, header).to_records()
        except CorruptBatchError:
            found.append(data[position : position + header.batch_length])
    return found


async def fetched(node: QueryNode, number: int, **fields: Any) -> list[Record | bytes]:
    """All of a segment, answer by answer."""
    log, found = node_logs[number], list[Record | bytes]()
    offset = log[0]
    while offset < log[1]:
        result, data = await fetch_of(node, number, offset, **fields)
        assert not result.HasField("error"), result.error
        assert result.next_offset > offset and result.sealed_end_offset == log[1]
        found += [each for each in decoded(data) if not is_before(each, offset)]
        offset = result.next_offset
    return found


node_logs: dict[int, tuple[int, int]] = {}
"""First offset and end of each segment of the test that runs."""


def is_before(each: Record | bytes, offset: int) -> bool:
    return isinstance(each, Record) and each.offset < offset


async def fetch_of(
    node: QueryNode, number: int, offset: int, **fields: Any
) -> tuple[data_pb2.FetchPartitionResult, bytes]:
    filter_ = fields.pop("filter_", None)
    entry = data_pb2.FetchPartition(
        topic_id=TOPIC, offset=offset, segment_id=number, filter=filter_
    )
    return await node.fetch_entry(entry, **fields)


def remember(source: QueryNode) -> None:
    node_logs.clear()
    for number, log in source.logs.items():
        node_logs[number] = log.identity.base_offset, log.tail.end_offset


@settings(max_examples=rotation.examples(40))
@given(st.lists(BATCHES, min_size=1, max_size=3), SELECTIONS, st.randoms(use_true_random=False))
async def test_answers_are_those_of_a_replica(
    segments: list[list[list[Stored]]], selection: Selection, rng: random.Random
) -> None:
    source = sealed_node(segments, rng)
    remember(source)
    with mock.patch.object(remote_log, "WHOLE_INDEX_BYTES", rng.choice([0, 1 << 20])):
        await compare(source, remote_of(source, rng, rng.choice([None, SimDisk()])), selection, rng)


async def compare(
    source: QueryNode, remote: RemoteNode, selection: Selection, rng: random.Random
) -> None:
    """Fetches, filtered and not, look-ups by time, and queries."""
    end = source.end_offset
    wanted = selection_to_proto(selection)
    for number in source.logs:
        size = rng.choice([1, 1000, 1 << 20])
        for filter_ in (None, wanted):
            here = await fetched(source, number, filter_=filter_, max_bytes=size)
            there = await fetched(remote.node, number, filter_=filter_, max_bytes=size)
            assert there == here
        for time_ms in (0, 1000 + rng.randrange(end + 1), 1000 + end):
            here_at = await time_of(source, number, time_ms)
            there_at = await time_of(remote.node, number, time_ms)
            assert there_at.found == here_at.found
            assert there_at.append_timestamp_ms == here_at.append_timestamp_ms
            assert first_from(source, there_at.offset) == first_from(source, here_at.offset)
    low, high = sorted((rng.randint(0, end), rng.randint(0, end)))
    partition = data_pb2.QueryPartition(
        from_offset=low, to_offset=high, segment_ids=list(source.logs)
    )
    for newest_first in (False, True):
        for count in (2, 100):
            fields: dict[str, Any] = {
                "filter": wanted,
                "partitions": [partition],
                "max_count": count,
                "newest_first": newest_first,
            }
            here_pages, there_pages = (
                await source.pages(**fields),
                await remote.node.pages(**fields),
            )
            assert records_of(there_pages) == records_of(here_pages)
            lacks = [all(page.complete for page in pages) for pages in (here_pages, there_pages)]
            assert lacks[0] == lacks[1]
    assert not remote.unexpected


def first_from(node: QueryNode, offset: int) -> Record | None:
    return next((each for each in node.all_records() if each.offset >= offset), None)


async def time_of(node: QueryNode, number: int, time_ms: int) -> data_pb2.ListOffsetsResult:
    request = data_pb2.ListOffsetsRequest(
        partitions=[
            data_pb2.ListOffsetsPartition(topic_id=TOPIC, timestamp_ms=time_ms, segment_id=number)
        ]
    )
    body = await node.fetches.list_offsets(request.SerializeToString(), CALL)
    (found,) = data_pb2.ListOffsetsResponse.FromString(body).partitions
    assert not found.HasField("error"), found.error
    return found


def small(count: int = 3) -> QueryNode:
    """Segments of five batches with a key of their own each."""
    node = QueryNode()
    node.index = node.store.index
    for number in range(1, count + 1):
        node.begin(number)
        for at in range(5):
            key = b"k%d-%d" % (number, at)
            node.append(number, [Stored(b"v" * 900, key, at), Stored(b"w", b"all", at)])
        node.seal(number)
    while node.store.index.maintain():
        pass
    remember(node)
    return node


@pytest.mark.parametrize(("whole_bytes", "reads"), [(0, 2), (1 << 20, 1)])
async def test_a_key_is_found_by_two_reads_of_the_index_and_one_row_group(
    monkeypatch: pytest.MonkeyPatch, whole_bytes: int, reads: int
) -> None:
    monkeypatch.setattr(remote_log, "WHOLE_INDEX_BYTES", whole_bytes)
    source, remote = small(), RemoteNode()
    for number in source.logs:
        remote.publish(source, number, row_group_bytes=1000)
    page = await remote.node.query(
        filter=data_pb2.RecordFilter(keys=[b"k2-3"]),
        partitions=[data_pb2.QueryPartition(segment_ids=list(source.logs))],
    )
    assert page.complete and [each.key for each in records_of([page])] == [b"k2-3"]
    first, second, third = page.partitions[0].segments
    assert first.remote and second.remote and third.remote
    assert first.outcome == data_pb2.SEARCH_OUTCOME_SKIPPED_HASH
    assert second.outcome == data_pb2.SEARCH_OUTCOME_INDEX
    assert first.remote_requests == reads + 1  # the index, and the manifest
    assert second.remote_requests == reads + 1 + 2  # the footer and one row group, too
    assert second.remote_bytes > first.remote_bytes > 0
    told = sum(each.remote_requests for each in (first, second, third))
    assert told == remote.store.requests, "no request is left out"
    assert remote.store.by_key["idx"] == 3 * reads
    assert remote.store.by_key["parquet"] == 2
    before = remote.store.requests
    await remote.node.query(
        filter=data_pb2.RecordFilter(keys=[b"k2-3"]),
        partitions=[data_pb2.QueryPartition(segment_ids=[2])],
    )
    assert remote.store.by_key["parquet"] == 2, "the row group is in memory"
    assert remote.store.requests - before <= 2


async def test_times_choose_row_groups() -> None:
    source, remote = small(1), RemoteNode()
    remote.publish(source, 1, row_group_bytes=1000)
    page = await remote.node.query(
        filter=data_pb2.RecordFilter(from_timestamp_ms=3, to_timestamp_ms=4),
        partitions=[data_pb2.QueryPartition(segment_ids=[1])],
    )
    assert len(records_of([page])) == 2 and page.complete
    assert remote.store.by_key["parquet"] == 2  # the footer, one row group


async def test_explained_without_reading_rows() -> None:
    source, remote = small(1), RemoteNode()
    remote.publish(source, 1)
    page = await remote.node.query(
        filter=data_pb2.RecordFilter(keys=[b"all"]),
        partitions=[data_pb2.QueryPartition(segment_ids=[1])],
        explain_only=True,
    )
    (segment,) = page.partitions[0].segments
    assert segment.remote and segment.index == "sealed" and segment.remote_requests == 1
    assert remote.store.requests == 1
    assert remote.store.by_key["parquet"] == remote.store.by_key["idx"] == 0


async def test_a_damaged_replica_is_read_in_object_storage() -> None:
    source = small(2)
    remote = RemoteNode()
    for number in source.logs:
        remote.publish(source, number)
    expected = await fetched(source, 1)
    remote.take_over(source)
    source.condemn(source.replicas[1], "a test says so")
    assert await fetched(source, 1) == expected
    result, data = await source.fetch(0)  # no segment is named
    assert decoded(data) and result.segment_id == 1
    page = await source.query(
        partitions=[data_pb2.QueryPartition(segment_ids=[1, 2])], max_count=100
    )
    assert page.complete and len(records_of([page])) == 20
    assert [each.remote for each in page.partitions[0].segments] == [True, False]


@pytest.mark.parametrize("segment_id", [0, 9])
async def test_what_is_not_tiered_is_refused_as_before(segment_id: int) -> None:
    source, remote = small(1), RemoteNode()
    remote.publish(source, 1)
    result, _ = await fetch_of(remote.node, segment_id, 0)
    assert result.error.reason == "UNKNOWN_TOPIC_OR_PARTITION"
    page = await remote.node.query(partitions=[data_pb2.QueryPartition(segment_ids=[9])])
    assert not page.complete


async def test_other_partitions_and_topics_are_refused() -> None:
    source, remote = small(1), RemoteNode()
    remote.publish(source, 1)
    for entry in (
        data_pb2.FetchPartition(topic_id=TOPIC, partition=1, segment_id=1),
        data_pb2.FetchPartition(topic_id=b"another topic id", segment_id=1),
        data_pb2.FetchPartition(topic="another", segment_id=1),
        data_pb2.FetchPartition(topic_id=TOPIC, segment_id=1, offset=10_000),
    ):
        result, data = await remote.node.fetch_entry(entry)
        assert result.HasField("error") and not data
    result, data = await remote.node.fetch_entry(
        data_pb2.FetchPartition(topic="topic", segment_id=1)
    )
    assert not result.HasField("error") and data
    remote.node.table.note_deleted(TOPIC, 0, is_deleted=True)
    result, data = await fetch_of(remote.node, 1, 0)
    assert result.error.reason == "UNKNOWN_TOPIC_OR_PARTITION" and not data


async def test_below_the_start_of_the_log_nothing_is_read() -> None:
    source, remote = small(1), RemoteNode()
    remote.publish(source, 1)
    remote.metadata.log_start_offset = 4
    result, data = await fetch_of(remote.node, 1, 3)
    assert result.error.reason == "OFFSET_OUT_OF_RANGE" and not data
    assert result.error.metadata["log_start_offset"] == "4"
    assert not (await fetch_of(remote.node, 1, 4))[0].HasField("error")
    page = await remote.node.query(partitions=[data_pb2.QueryPartition(segment_ids=[1])])
    assert min(each.offset for each in records_of([page])) == 4
    assert (await time_of(remote.node, 1, 0)).offset == 4
