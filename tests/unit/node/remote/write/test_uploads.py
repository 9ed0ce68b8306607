"""An upload is stored, read back and proved, or it is an error and the next attempt succeeds."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from icecore.codec.batch import Buffer
from icecore.errors import FencedError
from icecore.model import CoordinatorEpoch, Segment, SegmentState
from icecore.tier_records import ROWS
from icecore.topic_settings import PARQUET_FORMAT, SEGMENT_FORMAT
from icecore_node.remote.format.copy_reader import CopyReader
from icecore_node.remote.format.manifest import INDEX, MANIFEST, SIDE, SUFFIXES
from icecore_node.remote.format.row_batches import batches_of
from icecore_node.remote.marker import MARKER_KEY
from icecore_node.remote.store.object_store import ObjectStoreBusyError
from icecore_node.remote.write.copy_writer import CopyWriter, Throttle
from tests.conformance.log_builder import CLUSTER, TOPIC
from tests.simulation.object_store import SimObjectStore
from tests.support.tiered import records_of
from tests.support.upload_setup import SEGMENT, FailingStore, Killed, UploadNode

FORMATS = (PARQUET_FORMAT, SEGMENT_FORMAT)


@pytest.fixture
async def node() -> UploadNode:
    made = UploadNode()
    await made.ready()
    return made


async def copied(node: UploadNode, segment: Segment, copy: Any) -> list[bytes]:
    """All batches that a reader of the copy gets."""
    manifest = await node.manifest(segment, copy)
    reader = CopyReader(node.tier.store, manifest, node.executor)
    found, offset = [], segment.base_offset
    while offset < segment.end_offset:
        part = reader.part_at(offset)
        if part in manifest.row_groups:
            table = await reader.rows(part)  # type: ignore[arg-type]
            span = (part.base_offset, part.end_offset)
            found += [*batches_of(table, manifest.facts, span)]
        else:
            found.append(await reader.raw(part))  # type: ignore[arg-type]
        offset = part.end_offset
    return found


@pytest.mark.parametrize("format_", FORMATS)
async def test_what_is_stored_is_what_was_sealed(node: UploadNode, format_: str) -> None:
    segment = node.sealed()
    result = await node.upload(segment, attempt=5, format_=format_)
    assert not result.error.reason
    copy, manifest = result.copy, await node.manifest(segment, result.copy)
    assert (copy.attempt, copy.tier_format, copy.records) == (5, format_, manifest.records)
    assert copy.content_digest == manifest.content_digest
    name = node.name(segment, 5)
    objects = {key: len(data) for key, data in node.bucket.objects.items() if key != MARKER_KEY}
    assert objects.keys() == {name.key(each) for each in SUFFIXES}
    assert copy.length_bytes == sum(objects.values())
    log = node.logs[SEGMENT]
    batches = await copied(node, segment, copy)
    if format_ == SEGMENT_FORMAT:
        assert b"".join(batches) == b"".join(log.batches)
    assert records_of(batches) == records_of(log.batches)
    index = node.bucket.objects[name.key(INDEX)]
    assert index == node.store.index.sealed_part(SEGMENT, 1 << 20, 0)
    assert index.startswith(b"icei")


async def test_a_segment_without_index_is_copied_all_the_same(
    node: UploadNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.wait(index_look_ms=10, upload_index_wait_ms=20)
    monkeypatch.setattr(node.store.index, "verify", lambda _: 0)
    segment = node.sealed()
    result = await node.upload(segment)
    assert (await node.manifest(segment, result.copy)).index is None


async def test_a_manifest_says_which_headers_are_indexed(node: UploadNode) -> None:
    segment = node.sealed()
    settings = replace(segment.settings, indexed_headers=("carrier",))
    for attempt, (each, wanted) in enumerate(
        [(segment, ()), (segment.changed(settings=settings), ("carrier",))], 1
    ):
        result = await node.upload(each, attempt)
        assert not result.error.reason
        assert (await node.manifest(each, result.copy)).indexed_headers == wanted


async def test_it_waits_for_the_index(node: UploadNode, monkeypatch: pytest.MonkeyPatch) -> None:
    node.wait(index_look_ms=10)
    verify, looks = node.store.index.verify, list[int]()

    def late(segment_id: Any) -> int:
        looks.append(1)
        return verify(segment_id) if len(looks) > 3 else 0

    monkeypatch.setattr(node.store.index, "verify", late)
    segment = node.sealed()
    result = await node.upload(segment)
    assert (await node.manifest(segment, result.copy)).index is not None


# --- the store is at fault ------------------------------------------------------------------------


@pytest.mark.parametrize("format_", FORMATS)
@pytest.mark.parametrize("error", [ObjectStoreBusyError("503"), Killed()])
async def test_a_failure_at_any_request_leaves_it_to_the_next_attempt(
    node: UploadNode, format_: str, error: Exception
) -> None:
    segment, attempt, failures = node.sealed(), 0, 0
    while True:
        attempt += 1
        node.access._ports = replace(node.tier, store=FailingStore(node, failures, error))
        try:
            result = await node.upload(segment, attempt, format_)
        except Killed:
            result = None
        if result is not None and not result.error.reason:
            break
        if result is not None:
            assert result.error.reason == "OBJECT_STORE_BUSY"
        left = dict(node.bucket.objects)
        failures += 1
        node.access._ports = node.tier
        again = await node.upload(segment, attempt + 1000, format_)
        assert not again.error.reason
        assert left.items() <= node.bucket.objects.items()  # nothing of the old one was touched
    assert failures > 15


@pytest.mark.parametrize("fault", ["untrue_puts", "cut_puts"])
async def test_a_store_that_confirms_what_it_has_not(node: UploadNode, fault: str) -> None:
    segment, before = node.sealed(), SimObjectStore._put
    for attempt in range(1, 5):
        puts = 0
        node.bucket.faults.struck.clear()

        def put(store: SimObjectStore, key: str, data: bytes, nth: int = attempt) -> None:
            nonlocal puts
            puts += 1
            setattr(node.bucket.faults, fault, int(puts == nth))
            before(store, key, data)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SimObjectStore, "_put", put)
            result = await node.upload(segment, attempt)
        assert node.bucket.faults.struck[fault] == 1
        assert result.error.reason in ("OBJECT_STORE", "STORAGE"), (attempt, result)
    assert not (await node.upload(segment, 9)).error.reason


async def test_lost_answers(node: UploadNode) -> None:
    """Done, and nobody heard of it: only for the small object it can be found out."""
    segment = node.sealed()
    node.bucket.faults.lost_answers = 1
    result = await node.upload(segment, 1)
    assert result.error.reason == "OBJECT_STORE_BUSY"
    assert not (await node.upload(segment, 2)).error.reason


@pytest.mark.parametrize("suffix", [ROWS, SIDE, INDEX])
async def test_altered_between_put_and_proof(
    node: UploadNode, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = node.sealed()
    key = node.name(segment, 1).key(suffix)
    prove = CopyWriter._prove

    async def altered(writer: Any, manifest: Any, also: Any) -> None:
        node.bucket.alter(key, len(node.bucket.objects[key]) // 2)
        await prove(writer, manifest, also)

    monkeypatch.setattr(CopyWriter, "_prove", altered)
    result = await node.upload(segment, 1)
    assert result.error.reason == "STORAGE" and "not what was put" in result.error.message
    assert node.name(segment, 1).key(MANIFEST) not in node.bucket.objects


async def test_a_repeated_order_of_the_same_attempt_is_refused(node: UploadNode) -> None:
    segment = node.sealed()
    assert not (await node.upload(segment, 1)).error.reason
    before = dict(node.bucket.objects)
    result = await node.upload(segment, 1)
    assert result.error.reason == "OBJECT_STORE" and "exists" in result.error.message
    assert node.bucket.objects == before


async def test_a_slow_store_keeps_uploads_to_their_number(node: UploadNode) -> None:
    segments = [node.sealed(), node.sealed(SEGMENT + 1), node.sealed(SEGMENT + 2)]  # type: ignore[arg-type]
    node.bucket.faults.request_s = 0.001
    results = await asyncio.gather(*(node.upload(each, 1) for each in segments))
    assert [each.error.reason for each in results] == ["", "", ""]


async def test_the_limit_of_bytes_holds() -> None:
    node = UploadNode(tier_upload_bytes_per_s=100_000)
    await node.ready()
    throttle = Throttle(node.context.clock, 1_000_000)
    began = asyncio.get_running_loop().time()
    await asyncio.gather(*(throttle.spend(10_000) for _ in range(5)))
    assert asyncio.get_running_loop().time() - began > 0.04


# --- the replica is at fault ----------------------------------------------------------------------


async def test_damage_on_our_disk_is_reported_and_not_copied(node: UploadNode) -> None:
    segment = node.sealed()
    [name] = [name for name in node.disk.durable_names if name.endswith(".log")]
    node.disk.flip_bit(name, 8 * 5_000)
    result = await node.upload(segment)
    assert result.error.reason == "NOT_REPLICA"
    assert node.damaged and not node.divergences
    assert node.name(segment, 1).key(MANIFEST) not in node.bucket.objects


async def test_other_bytes_than_those_agreed_on_are_a_divergence(node: UploadNode) -> None:
    """Nothing is wrong with the file: somebody must look."""
    segment = node.sealed().changed(full_digest=b"\x01" + bytes(32))
    result = await node.upload(segment)
    assert result.error.reason == "NOT_REPLICA"
    assert node.divergences and not node.damaged
    assert [key for key in node.bucket.objects if key != MARKER_KEY] == []


# --- orders ---------------------------------------------------------------------------------------


async def test_orders_that_can_t_be(node: UploadNode) -> None:
    segment = node.sealed()
    for changed, attempt, format_ in (
        (segment.changed(full_digest=b""), 1, "parquet"),
        (segment.changed(full_digest=b"\x01"), 1, "parquet"),
        (segment.changed(state=SegmentState.ACTIVE), 1, "parquet"),
        (segment.changed(topic=""), 1, "parquet"),
        (segment.changed(topic="x" * 250), 1, "parquet"),
        (segment.changed(topic_id=b"short"), 1, "parquet"),
        (segment.changed(base_offset=-1), 1, "parquet"),
        (segment.changed(end_offset=segment.end_offset + 1), 1, "parquet"),
        (segment.changed(generation=1), 1, "parquet"),
        (segment.changed(epoch=9), 1, "parquet"),
        (segment.changed(seal_digest=b"x" * 32), 1, "parquet"),
        (segment, 0, "parquet"),
        (segment, 1 << 63, "parquet"),
        (segment, 1, "orc"),
        (segment, 1, ""),
    ):
        result = await node.upload(changed, attempt, format_)
        assert result.error.reason == "INVALID_REQUEST", (changed, attempt, format_)
    for other in (segment.changed(segment_id=99),):
        assert (await node.upload(other)).error.reason == "NOT_REPLICA"
    assert [*node.bucket.objects] == [MARKER_KEY]
    with pytest.raises(FencedError):
        await node.upload(segment, incarnation=10)
    with pytest.raises(FencedError):
        await node.upload(segment, coordinator_epoch=0)


async def test_a_segment_that_is_not_sealed_here(node: UploadNode) -> None:
    segment = node.sealed()
    node.begin(SEGMENT + 1)
    active = segment.changed(segment_id=SEGMENT + 1)
    assert (await node.upload(active)).error.reason == "NOT_REPLICA"


@pytest.mark.parametrize("how", ["deleted", "a newer coordinator", "another attempt"])
async def test_an_order_that_is_overtaken_ends(node: UploadNode, how: str) -> None:
    segment = node.sealed()
    node.bucket.faults.request_s = 60 if how == "deleted" else 0.5
    first = asyncio.ensure_future(node.upload(segment, 1))
    await asyncio.sleep(0.02)
    if how == "deleted":
        node.orders.overtake(SEGMENT, "it is deleted")
        async with asyncio.timeout(30):  # whoever deletes it need not wait for the upload
            async with node.orders.alone(SEGMENT):
                pass
    elif how == "another attempt":
        node.bucket.faults.request_s = 0.0
        assert not (await node.upload(segment, 2)).error.reason
    else:
        node.context.identity.hear(CoordinatorEpoch(2))
    assert (await first).error.reason == "FENCED"
    assert node.name(segment, 1).key(MANIFEST) not in node.bucket.objects


async def test_a_store_that_was_not_looked_at_yet() -> None:
    node = UploadNode()
    result = await node.upload(node.sealed())
    assert result.error.reason == "UNAVAILABLE"
    assert node.bucket.objects == {} and CLUSTER


async def test_a_bucket_that_was_emptied_is_written_to_no_more(node: UploadNode) -> None:
    """Nobody has looked at it since."""
    segment = node.sealed()
    copy = (await node.upload(segment)).copy
    node.bucket.objects.clear()
    uploaded = await node.upload(segment, 2)
    committed = await node.commit(1, {SEGMENT: copy})
    swept = await node.sweep([node.name(segment, 1)], [TOPIC])
    for error in (uploaded.error, committed, swept.errors[0], swept.topic_errors[0]):
        assert error.reason == "OBJECT_STORE" and "was emptied" in error.message
    assert node.bucket.objects == {}


async def test_a_bucket_that_goes_while_a_segment_is_copied_gets_no_copy(
    node: UploadNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Objects are read back from where they were put: only the marker tells."""
    real = SimObjectStore.put_if_absent

    async def put(store: SimObjectStore, key: str, data: Buffer) -> None:
        node.bucket.objects.pop(MARKER_KEY, None)
        await real(store, key, data)

    monkeypatch.setattr(SimObjectStore, "put_if_absent", put)
    segment = node.sealed()
    found = await node.upload(segment)
    assert found.error.reason == "OBJECT_STORE" and "was emptied" in found.error.message
    assert node.name(segment, 1).key(MANIFEST) in node.bucket.objects, "which is swept later"


async def test_failures_are_counted_by_kind(node: UploadNode) -> None:
    segment = node.sealed()
    node.bucket.faults.refused = 1
    await node.upload(segment, 1)
    await node.upload(segment, 2)
    metrics = node.context.metrics.registry
    labels = {"work": "upload", "kind": "ObjectStoreBusyError"}
    assert metrics.get_sample_value("icecore_tier_errors_total", labels) == 1
    assert metrics.get_sample_value("icecore_tier_uploads_total") == 1
    assert (metrics.get_sample_value("icecore_tier_upload_bytes_total") or 0) > 1000
