"""Reads of object storage under faults: right bytes, or an error that says which object."""

import asyncio
from typing import Any

import pytest

from icecore.codec.batch import LeaderFlag, iter_batches, parse_header
from icecore.errors import ObjectStoreBusyError, ThrottledError, UnavailableError
from icecore.v1 import data_pb2
from icecore_node.remote.format.manifest import TieredDamageError
from icecore_node.remote.read import remote_log, row_frames
from icecore_node.remote.read.reading import RemoteReading
from icecore_node.timing import NodeTiming
from tests.conformance.log_builder import TOPIC
from tests.simulation.disk import SimDisk
from tests.support import tiered
from tests.support.query_setup import QueryNode, Stored, records_of
from tests.support.remote_setup import RemoteNode
from tests.support.row_frames import rows_of
from tests.support.waiting import until


def source_of(count: int = 1, batches: int = 8) -> QueryNode:
    """Sealed segments with an index."""
    node = QueryNode()
    node.index = node.store.index
    for number in range(1, count + 1):
        node.begin(number)
        for at in range(batches):
            node.append(number, [Stored(b"v%d" % at * 200, b"k%d-%d" % (number, at), at)])
        node.seal(number)
    while node.store.index.maintain():
        pass
    return node


async def read_all(reading: RemoteReading, source: QueryNode, number: int = 1) -> bytes:
    log = source.logs[number]
    offset, found = log.identity.base_offset, b""
    while offset < log.tail.end_offset:
        parts, offset = await reading.read(number, offset, 1)
        found += b"".join(parts)
    return found


async def test_readers_of_one_row_group_share_a_request() -> None:
    source, remote = source_of(), RemoteNode(running_max=20)
    remote.publish(source, 1, row_group_bytes=1 << 20)
    remote.bucket.faults.request_s = 0.01
    results = await asyncio.gather(*(remote.reading.read(1, 3, 1) for _ in range(20)))
    assert len({b"".join(each) for each, _ in results}) == 1
    assert remote.store.by_key == {"json": 1, "parquet": 2}  # the manifest, the footer, the rows
    assert remote.metadata.calls == 1


async def test_who_leaves_takes_nothing_from_others() -> None:
    source, remote = source_of(), RemoteNode()
    remote.publish(source, 1)
    remote.bucket.faults.request_s = 0.01
    first = asyncio.ensure_future(remote.reading.read(1, 0, 1))
    second = asyncio.ensure_future(remote.reading.read(1, 0, 1))
    await asyncio.sleep(0.005)
    first.cancel()
    assert (await second)[1] == 1
    assert remote.store.by_key["json"] == 1


async def test_a_scan_reads_ahead_and_a_look_does_not() -> None:
    source, remote = source_of(), RemoteNode()
    remote.publish(source, 1, row_group_bytes=1)
    await remote.reading.read(1, 4, 1)
    await asyncio.sleep(0.01)
    assert remote.store.by_key["parquet"] == 2  # the footer and one row group
    await remote.reading.read(1, 5, 1)
    await until(lambda: remote.store.by_key["parquet"] == 5)  # and those behind it: two are left
    await remote.reading.read(1, 6, 1)
    await asyncio.sleep(0.01)
    assert remote.store.by_key["parquet"] == 5
    assert not remote.unexpected


@pytest.mark.parametrize("suffix", [".parquet", ".manifest.json", ".batches"])
@pytest.mark.parametrize("fault", ["missing", "cut", "altered"])
async def test_damage_is_named_and_never_read(suffix: str, fault: str) -> None:
    source, remote = source_of(), RemoteNode(SimDisk())
    remote.publish(source, 1, as_rows=suffix != ".batches")
    key = remote.metadata.published[1].facts.key(1, suffix)
    objects = remote.bucket.objects
    whole = objects[key]
    if fault == "missing":
        del objects[key]
    elif fault == "cut":
        objects[key] = whole[: len(whole) // 2]
    else:
        objects[key] = bytes(byte ^ 1 for byte in whole)
    with pytest.raises(TieredDamageError) as caught:
        await read_all(remote.reading, source)
    assert suffix in caught.value.message and "segment 1" in caught.value.message
    assert remote.metadata.calls == 2, "metadata are asked again"
    objects[key] = whole
    assert await read_all(remote.reading, source)


async def test_another_copy_is_taken() -> None:
    source, remote = source_of(), RemoteNode()
    remote.publish(source, 1, attempt=1)
    expected = await read_all(remote.reading, source)
    remote.cache.forget(lambda _: True)
    old = remote.metadata.published[1]
    remote.publish(source, 1, attempt=2, row_group_bytes=1)
    del remote.bucket.objects[old.parquet.key]
    assert records(await read_all(remote.reading, source)) == records(expected)
    assert remote.metadata.calls == 2


def records(data: bytes) -> list[Any]:
    return tiered.records_of([data])


async def test_a_search_goes_on_in_another_copy() -> None:
    source, remote = source_of(batches=40), RemoteNode()
    remote.publish(source, 1, attempt=1, row_group_bytes=1)
    expected = records_of(await source.pages(partitions=[named(1)], max_count=5))
    first = await remote.node.query(partitions=[named(1)], max_count=5)
    old = remote.metadata.published[1]
    remote.publish(source, 1, attempt=2, row_group_bytes=2000)
    del remote.bucket.objects[old.parquet.key]
    found = records_of([first])
    coordinator_epoch = first.continuation
    while coordinator_epoch:
        page = await remote.node.query(
            partitions=[named(1)], max_count=5, continuation=coordinator_epoch
        )
        found += records_of([page])
        coordinator_epoch = page.continuation
        assert page.complete
    assert found == expected


def named(*segment_ids: int) -> data_pb2.QueryPartition:
    return data_pb2.QueryPartition(segment_ids=segment_ids)


async def test_damage_makes_a_query_incomplete_and_names_the_segment() -> None:
    source, remote = source_of(3), RemoteNode()
    for number in source.logs:
        remote.publish(source, number)
    remote.bucket.remove(remote.metadata.published[2].parquet.key)
    page = await remote.node.query(partitions=[named(1, 2, 3)], max_count=100)
    assert not page.complete
    outcomes = {each.segment_id: each.outcome for each in page.partitions[0].segments}
    assert outcomes[2] == data_pb2.SEARCH_OUTCOME_UNAVAILABLE
    assert {each.offset for each in records_of([page])} == {*range(8), *range(16, 24)}


@pytest.mark.parametrize("whole_bytes", [0, 1 << 20])
@pytest.mark.parametrize("fault", ["missing", "altered", "cut", "another"])
async def test_a_damaged_index_costs_time_only(
    monkeypatch: pytest.MonkeyPatch, fault: str, whole_bytes: int
) -> None:
    monkeypatch.setattr(remote_log, "WHOLE_INDEX_BYTES", whole_bytes)
    source, remote = source_of(2), RemoteNode(SimDisk())
    for number in source.logs:
        remote.publish(source, number)
    index = remote.metadata.published[1].index
    assert index is not None
    objects = remote.bucket.objects
    whole = objects[index.key]
    if fault == "missing":
        del objects[index.key]
    elif fault == "another":
        other = remote.metadata.published[2].index
        assert other is not None
        objects[index.key] = objects[other.key]
    else:
        objects[index.key] = (
            whole[:300] if fault == "cut" else whole[:300] + bytes(len(whole) - 300)
        )
    page = await remote.node.query(
        filter=data_pb2.RecordFilter(keys=[b"k1-5"]), partitions=[named(1)]
    )
    assert page.complete and len(records_of([page])) == 1
    assert page.partitions[0].segments[0].outcome == data_pb2.SEARCH_OUTCOME_SCAN
    objects[index.key] = whole
    page = await remote.node.query(
        filter=data_pb2.RecordFilter(keys=[b"k1-5"]), partitions=[named(1)]
    )
    assert page.partitions[0].segments[0].outcome == data_pb2.SEARCH_OUTCOME_INDEX


async def test_a_store_that_is_down_is_an_error_of_the_moment() -> None:
    source, remote = source_of(), RemoteNode()
    remote.publish(source, 1)
    remote.bucket.faults.refused = 1
    with pytest.raises(ObjectStoreBusyError):
        await remote.reading.read(1, 0, 1)
    assert remote.metadata.calls == 1, "the copy is not blamed"
    assert await read_all(remote.reading, source)


async def test_the_cache_survives_a_restart() -> None:
    source, disk = source_of(), SimDisk()
    remote = RemoteNode(disk)
    remote.publish(source, 1)
    expected = await read_all(remote.reading, source)
    again = RemoteNode(disk, remote.bucket, remote.metadata)
    assert await read_all(again.reading, source) == expected
    assert again.store.requests == 0, "all of it is on the disk"


async def test_budgets_hold_under_a_scan_of_a_hundred_segments() -> None:
    source, disk = source_of(100, 3), SimDisk()
    remote = RemoteNode(disk, memory_bytes=30_000, disk_bytes=40_000)
    for number in source.logs:
        remote.publish(source, number)
    for number in source.logs:
        assert await read_all(remote.reading, source, number)
        assert remote.cache.memory_bytes <= 30_000
        assert remote.disk is not None and remote.disk.size_bytes <= 40_000
    pages = await remote.node.pages(partitions=[named(*source.logs)], max_count=100)
    assert len(records_of(pages)) == 300 and all(page.complete for page in pages)
    assert remote.cache.memory_bytes <= 30_000 and not remote.unexpected


async def test_a_thousand_at_once_are_answered_or_throttled() -> None:
    source, remote = source_of(100, 2), RemoteNode(running_max=4, waiting_max=50)
    for number in source.logs:
        remote.publish(source, number)
    remote.bucket.faults.request_s = 0.001
    reads = [remote.reading.read(1 + at % 100, 2 * (at % 100), 1) for at in range(1000)]
    results = await asyncio.gather(*reads, return_exceptions=True)
    refused = [each for each in results if isinstance(each, ThrottledError)]
    assert len(refused) == 946 and len(results) == 1000
    assert remote.store.running_max <= 4
    assert all(isinstance(each, tuple | ThrottledError) for each in results)


async def test_what_metadata_said_is_asked_again_when_it_is_old() -> None:
    source, remote = source_of(), RemoteNode()
    remote.publish(source, 1)
    clock = remote.node.clock
    await remote.reading.read(1, 0, 1)
    clock.ms += NodeTiming().description_keep_ms - 1
    await remote.reading.read(1, 0, 1)
    assert remote.metadata.calls == 1
    clock.ms += 1
    remote.metadata.failure = UnavailableError("no coordinator")
    await remote.reading.read(1, 0, 1)  # the last answer counts
    assert remote.metadata.calls == 2
    remote.metadata.failure = None
    del remote.metadata.published[1]
    result, _ = await remote.node.fetch_entry(data_pb2.FetchPartition(topic_id=TOPIC, segment_id=1))
    assert result.HasField("error"), "it is deleted"


async def test_a_refusal_is_kept_for_a_moment() -> None:
    remote = RemoteNode()
    entry = data_pb2.FetchPartition(topic_id=TOPIC, segment_id=5)
    for _ in range(10):
        assert (await remote.node.fetch_entry(entry))[0].HasField("error")
    assert remote.metadata.calls == 1
    remote.node.clock.ms += NodeTiming().refusal_keep_ms
    await remote.node.fetch_entry(entry)
    assert remote.metadata.calls == 2


async def test_a_manifest_of_something_else_is_damage() -> None:
    source, remote = source_of(2), RemoteNode()
    remote.publish(source, 1)
    remote.publish(source, 2)
    first, second = remote.metadata.published[1], remote.metadata.published[2]
    remote.bucket.objects[first.key] = remote.bucket.objects[second.key]
    with pytest.raises(TieredDamageError):
        await remote.reading.read(1, 0, 1)


# --- row groups as they lie -----------------------------------------------------------------------


async def read_rows(
    reading: RemoteReading, source: QueryNode, max_bytes: int, number: int = 1
) -> list[list[bytes]]:
    """All of a segment for who takes row groups: batches and frames by answer."""
    log = source.logs[number]
    offset, answers = log.identity.base_offset, list[list[bytes]]()
    while offset < log.tail.end_offset:
        found, offset = await reading.read(number, offset, max_bytes, as_row_groups=True)
        data = b"".join(found)
        answers.append([data[at : at + header.batch_length] for at, header in iter_batches(data)])
        assert parse_header(answers[-1][-1]).end_offset == offset
    return answers


def offsets_of(answers: list[list[bytes]]) -> list[int]:
    """Return the offsets of all records."""
    found: list[int] = []
    for raw in (each for answer in answers for each in answer):
        header = parse_header(raw)
        if header.leader_flags & LeaderFlag.ROW_GROUP:
            found += [each.offset for each in rows_of([raw])[0].to_records("", 0)]
        else:
            found += [each.offset for each in records(raw)]
    return found


@pytest.mark.parametrize("max_bytes", [1, 5000, 1 << 20])
async def test_row_groups_are_passed_on_as_they_lie(max_bytes: int) -> None:
    source, remote = source_of(), RemoteNode()
    remote.publish(source, 1, row_group_bytes=1000)
    answers = await read_rows(remote.reading, source, max_bytes)
    assert offsets_of(answers) == list(range(8))
    groups = remote.metadata.published[1].row_groups
    assert [parse_header(each).record_count for answer in answers for each in answer] == [
        group.records for group in groups
    ]
    for answer in answers:
        assert len(answer) == 1 or sum(map(len, answer)) <= max_bytes
    assert len(answers) == (1 if max_bytes == 1 << 20 else len(groups))


async def test_large_row_groups_are_cut_into_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_frames, "FRAME_BYTES_MAX", 100)
    source, remote = source_of(), RemoteNode()
    remote.publish(source, 1)
    answers = await read_rows(remote.reading, source, 1 << 20)
    assert offsets_of(answers) == list(range(8))
    assert not any(parse_header(each).leader_flags & LeaderFlag.ROW_GROUP for each in answers[0])


async def test_batches_without_rows_are_passed_on_too() -> None:
    source, remote = source_of(), RemoteNode()
    remote.publish(source, 1, as_rows=False)
    assert offsets_of(await read_rows(remote.reading, source, 1 << 20)) == list(range(8))


async def test_a_scan_of_row_groups_reads_ahead() -> None:
    source, remote = source_of(), RemoteNode()
    remote.publish(source, 1, row_group_bytes=1)
    await remote.reading.read(1, 0, 1, as_row_groups=True)
    await until(lambda: remote.store.by_key["parquet"] == 5)  # the footer, and four groups
    assert offsets_of(await read_rows(remote.reading, source, 1)) == list(range(8))
    assert remote.store.by_key["parquet"] == 9, "each was read once"
    assert not remote.unexpected


async def test_a_damaged_row_group_is_not_passed_on() -> None:
    source, remote = source_of(), RemoteNode()
    remote.publish(source, 1)
    manifest = remote.metadata.published[1]
    whole = remote.bucket.objects[manifest.parquet.key]
    at = manifest.row_groups[0].start + 5
    remote.bucket.objects[manifest.parquet.key] = (
        whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
    )
    with pytest.raises(TieredDamageError, match="segment 1"):
        await read_rows(remote.reading, source, 1 << 20)
