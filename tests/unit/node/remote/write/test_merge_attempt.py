"""Several tiered segments become one that has the same records, finds them, and proves each source;
or it is an error and the next attempt succeeds."""

import hashlib
from dataclasses import replace
from typing import Any, cast

import pytest

from icecore.codec.hashes import header_hash, key_hash, tag_hash
from icecore.model import Segment, SegmentId
from icecore.tier_records import ROWS
from icecore.topic_settings import SEGMENT_FORMAT, SegmentSettings
from icecore.v1 import coordinator_pb2 as pb
from icecore_node.remote.format.copy_reader import CopyReader
from icecore_node.remote.format.manifest import INDEX, MANIFEST, SIDE
from icecore_node.remote.format.row_batches import batches_of
from icecore_node.remote.read.cache import RemoteCache
from icecore_node.remote.read.remote_log import RemoteLog
from icecore_node.remote.read.unread import Unread
from icecore_node.remote.store.object_store import ObjectStoreBusyError
from tests.support.query_setup import INDEXED_HEADERS
from tests.support.tiered import records_of
from tests.support.upload_setup import SEGMENT, FailingStore, Killed, UploadNode

MERGED = SegmentId(70)
Sources = list[tuple[Segment, pb.TierCopy]]


@pytest.fixture
async def node() -> UploadNode:
    made = UploadNode()
    await made.ready()
    return made


async def uploaded(node: UploadNode, count: int = 3, **options: Any) -> Sources:
    """Segments that follow each other, in the store."""
    found = []
    for at in range(count):
        segment = node.sealed(SegmentId(SEGMENT + at), 2 + at, **{"has_poison": False, **options})
        result = await node.upload(segment, at + 1)
        assert not result.error.reason
        found.append((segment, result.copy))
    return found


def merged_of(sources: Sources) -> Segment:
    first, last = sources[0][0], sources[-1][0]
    return last.changed(
        segment_id=MERGED,
        base_offset=first.base_offset,
        full_digest=b"",
        settings=SegmentSettings(indexed_headers=INDEXED_HEADERS),
    )


async def rows_of(node: UploadNode, segment: Segment, copy: pb.TierCopy) -> list[Any]:
    """Return the records that readers get of a copy."""
    manifest = await node.manifest(segment, copy)
    reader = CopyReader(node.tier.store, manifest, node.executor)
    batches: list[bytes] = []
    for group in manifest.row_groups:
        covered = group.base_offset, group.end_offset
        batches += batches_of(await reader.rows(group), manifest.facts, covered)
    return records_of(batches)


async def test_it_has_the_records_of_its_sources_and_proves_each(node: UploadNode) -> None:
    sources = await uploaded(node)
    merged = merged_of(sources)
    result = await node.merge(merged, sources)
    assert not result.error.reason, result.error
    assert [*result.source_digests] == [copy.content_digest for _, copy in sources]
    assert result.copy.records == sum(copy.records for _, copy in sources)
    wanted = [row for segment, copy in sources for row in await rows_of(node, segment, copy)]
    assert await rows_of(node, merged, result.copy) == wanted
    logs = [node.logs[segment.segment_id] for segment, _ in sources]
    assert wanted == [row for log in logs for row in records_of(log.batches)]
    name = node.name(merged, 100)
    manifest = await node.manifest(merged, result.copy)
    assert len(manifest.row_groups) == 1  # those of the sources were small
    stored = {key for key in node.bucket.objects if f"-{MERGED:020d}-" in key}
    assert stored == {name.key(each) for each in (MANIFEST, ROWS, INDEX)}
    assert result.copy.length_bytes == sum(len(node.bucket.objects[key]) for key in stored)


async def test_its_index_finds_what_those_of_the_sources_find(node: UploadNode) -> None:
    sources = await uploaded(node)
    merged = merged_of(sources)
    copy = (await node.merge(merged, sources)).copy
    hashes = [key_hash(b"k%d" % at) for at in range(4)] + [
        tag_hash("ü".encode()),
        header_hash("h", b"1"),
    ]
    for each in hashes:
        wanted = {at for s, c in sources for at in await candidates(node, s, c, each)}
        assert await candidates(node, merged, copy, each) == wanted != set()
    assert await candidates(node, merged, copy, key_hash(b"nobody")) == set()


async def candidates(node: UploadNode, segment: Segment, copy: Any, hash_: int) -> set[int]:
    """Return the candidate offsets that the index object alone gives."""
    log = RemoteLog(await node.manifest(segment, copy))
    index = node.bucket.objects[node.name(segment, copy.attempt).key(INDEX)]
    span = segment.base_offset, segment.end_offset
    cache = RemoteCache(None, 1 << 20, cast(Any, None))
    while True:
        found = log.candidates(segment.segment_id, [hash_], span, limit=1000)
        if isinstance(found, Unread):
            assert isinstance(found.wanted, tuple)
            start, end = found.wanted

            async def make(data: bytes = index[start:end]) -> tuple[bytes, int]:
                return data, len(data)

            log.take(found.wanted, await cache.leased(found.wanted, make, is_pinned=True))
            continue
        assert not found.gaps
        return {*found.offsets[0].tolist()}


async def test_what_was_merged_is_merged_again(node: UploadNode) -> None:
    sources = await uploaded(node, 4)
    copies: Sources = []
    for at, part in enumerate((sources[:2], sources[2:]), 1):
        segment = merged_of(part).changed(segment_id=SegmentId(MERGED + at))
        copies.append((segment, (await node.merge(segment, part, 50 + at)).copy))
    merged = merged_of(copies)
    result = await node.merge(merged, copies)
    wanted = [row for segment, copy in sources for row in await rows_of(node, segment, copy)]
    assert await rows_of(node, merged, result.copy) == wanted
    assert [*result.source_digests] == [copy.content_digest for _, copy in copies]


async def test_copies_of_an_earlier_cluster_are_merged(node: UploadNode) -> None:
    """A restore brings them back as they are, with its id in their manifests."""
    sources = await uploaded(node)
    wanted = [row for segment, copy in sources for row in await rows_of(node, segment, copy)]
    for segment, copy in sources[:2]:
        manifest = await node.manifest(segment, copy)
        facts = replace(manifest.facts, cluster_id=b"an earlier one's")
        data = replace(manifest, facts=facts).encode()
        node.bucket.objects[node.name(segment, copy.attempt).key(MANIFEST)] = data
        copy.manifest_sha256 = hashlib.sha256(data).digest()
    merged = merged_of(sources)
    result = await node.merge(merged, sources)
    assert not result.error.reason, result.error
    assert await rows_of(node, merged, result.copy) == wanted
    manifest = await node.manifest(merged, result.copy)
    assert manifest.facts.cluster_id != b"an earlier one's"


async def test_what_can_t_be_merged(node: UploadNode) -> None:
    sources = await uploaded(node)
    poisoned = node.sealed(SegmentId(SEGMENT + 3))
    mixed = [*sources, (poisoned, (await node.upload(poisoned, 9)).copy)]
    merged = merged_of(sources)
    before = dict(node.bucket.objects)
    refused = {
        "batches without rows": (merged_of(mixed), mixed),
        "offsets": (merged, [sources[0], sources[2]]),
        "name two": (merged_of(sources[:1]), sources[:1]),
        "have the offsets": (merged.changed(end_offset=merged.end_offset + 1), sources),
    }
    for at, (why, (segment, asked)) in enumerate(refused.items()):
        result = await node.merge(segment, asked, 200 + at)
        assert result.error.reason == "INVALID_REQUEST", (why, result)
        assert why in result.error.message, result.error.message
    assert node.name(poisoned, 9).key(SIDE) in before
    result = await node.merge(merged, sources, 300, SEGMENT_FORMAT)
    assert "only segments in format parquet" in result.error.message
    result = await node.merge(merged, [(each, copy) for each, copy in sources] * 400, 301)
    assert "1000 at most" in result.error.message
    wrong = sources[0][0].changed(base_offset=-1)
    result = await node.merge(merged, [(wrong, sources[0][1]), *sources[1:]], 302)
    assert result.error.reason == "INVALID_REQUEST"
    other = merged.changed(partition=1)
    result = await node.merge(other, sources, 303)
    assert result.error.reason, "keys of another partition"
    assert node.bucket.objects == before


@pytest.mark.parametrize("suffix", [ROWS, MANIFEST])
@pytest.mark.parametrize("harm", ["altered", "removed"])
async def test_a_source_that_is_not_what_was_published(
    node: UploadNode, suffix: str, harm: str
) -> None:
    sources = await uploaded(node)
    key = node.name(*[(segment, copy.attempt) for segment, copy in sources][1]).key(suffix)
    if harm == "altered":
        node.bucket.alter(key, len(node.bucket.objects[key]) // 2)
    else:
        del node.bucket.objects[key]
    result = await node.merge(merged_of(sources), sources)
    assert result.error.reason in ("STORAGE", "OBJECT_STORE")
    assert node.name(merged_of(sources), 100).key(MANIFEST) not in node.bucket.objects


@pytest.mark.parametrize("error", [ObjectStoreBusyError("503"), Killed()])
async def test_a_failure_at_any_request_leaves_it_to_the_next_attempt(
    node: UploadNode, error: Exception
) -> None:
    sources = await uploaded(node)
    merged, attempt, failures = merged_of(sources), 100, 0
    before = dict(node.bucket.objects)
    while True:
        attempt += 1
        node.access._ports = replace(node.tier, store=FailingStore(node, failures, error))
        try:
            result = await node.merge(merged, sources, attempt)
        except Killed:
            result = pb.UploadedCopy(error={"reason": "KILLED"})
        if not result.error.reason:
            break
        failures += 1
        assert before.items() <= node.bucket.objects.items()
    assert failures > 15
    node.access._ports = node.tier
    assert [*result.source_digests] == [copy.content_digest for _, copy in sources]


async def test_a_repeated_order_of_the_same_attempt_is_refused(node: UploadNode) -> None:
    sources = await uploaded(node)
    assert not (await node.merge(merged_of(sources), sources)).error.reason
    before = dict(node.bucket.objects)
    result = await node.merge(merged_of(sources), sources)
    assert result.error.reason == "OBJECT_STORE" and "exists" in result.error.message
    assert node.bucket.objects == before
