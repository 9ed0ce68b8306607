"""Tables are brought to what metadata say, reading little; sweeps remove what they name."""

from dataclasses import replace
from typing import Any

import pytest

from icecore.errors import FencedError
from icecore.model import CoordinatorEpoch, SegmentId
from icecore.tier_records import topic_folder
from icecore.topic_settings import SEGMENT_FORMAT
from icecore_node.remote.format.manifest import MANIFEST
from icecore_node.remote.format.stored_settings import StoredSettings, parse_settings, settings_key
from icecore_node.remote.marker import MARKER_KEY
from icecore_node.remote.write import tier_tables
from tests.conformance.log_builder import CLUSTER, TOPIC
from tests.simulation.object_store import SimObjectStore
from tests.simulation.topic_table import SimTopicTable
from tests.support.upload_setup import SEGMENT, TOPIC_NAME, UploadNode

SECOND = SegmentId(SEGMENT + 1)


@pytest.fixture
async def node() -> UploadNode:
    made = UploadNode()
    await made.ready()
    return made


def table(node: UploadNode) -> SimTopicTable:
    return SimTopicTable(node.bucket, None, CLUSTER, TOPIC)


async def test_it_names_what_is_published(node: UploadNode) -> None:
    first, second = node.sealed(), node.sealed(SECOND)
    copies = {
        SEGMENT: (await node.upload(first, 1)).copy,
        SECOND: (await node.upload(second, 2)).copy,
    }
    assert not (await node.commit(4, {SEGMENT: copies[SEGMENT]})).reason
    assert not (await node.commit(5, copies)).reason
    assert table(node).files() == [node.name(first, 1).path, node.name(second, 2).path]
    assert table(node).records() == sum(each.records for each in copies.values())
    assert not (await node.commit(4, {})).reason  # late
    assert len(table(node).files()) == 2
    assert not (await node.commit(6, {SECOND: copies[SECOND]})).reason
    assert table(node).files() == [node.name(second, 2).path]


async def test_only_new_manifests_are_read(
    node: UploadNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    get_whole = SimObjectStore.get_whole

    async def noting(store: SimObjectStore, key: str, bytes_max: int) -> bytes:
        if key != MARKER_KEY:
            asked.append(key)
        return await get_whole(store, key, bytes_max)

    first, second = node.sealed(), node.sealed(SECOND)
    copies = {
        SEGMENT: (await node.upload(first, 1, SEGMENT_FORMAT)).copy,
        SECOND: (await node.upload(second, 2)).copy,
    }
    monkeypatch.setattr(SimObjectStore, "get_whole", noting)
    await node.commit(1, copies)
    keys = [node.name(each, at).key(MANIFEST) for each, at in ((first, 1), (second, 2))]
    assert sorted(asked) == sorted(keys)
    asked.clear()
    await node.commit(2, copies)  # one is named by now, the other one will never be
    assert asked == []
    assert table(node).files() == [node.name(second, 2).path]


async def test_a_manifest_that_is_not_the_published_one(node: UploadNode) -> None:
    segment = node.sealed()
    copy = (await node.upload(segment, 1)).copy
    node.bucket.alter(node.name(segment, 1).key(MANIFEST), 100)
    error = await node.commit(1, {SEGMENT: copy})
    assert error.reason == "STORAGE" and "not the one that was published" in error.message
    missing = await node.commit(1, {SEGMENT: (await node.upload(segment, 2)).copy})
    assert not missing.reason
    copy.attempt = 77
    error = await node.commit(2, {SEGMENT: copy})
    assert error.reason == "OBJECT_STORE"
    assert len(table(node).files()) == 1


async def test_conflicts_are_met_with_another_try(
    node: UploadNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.wait(table_retry_ms=0)
    real, calls = SimTopicTable.bring_to, list[int]()

    def contended(self: SimTopicTable, *arguments: Any) -> bool:
        calls.append(1)
        if len(calls) <= fails:
            raise tier_tables.ConflictError("another node's came first")
        return real(self, *arguments)

    monkeypatch.setattr(SimTopicTable, "bring_to", contended)
    copy = (await node.upload(node.sealed(), 1)).copy
    fails = tier_tables.TRIES - 1
    assert not (await node.commit(1, {SEGMENT: copy})).reason
    fails, calls = 100, []
    assert (await node.commit(2, {})).reason == "CONFLICT"


async def test_settings_lie_there_before_the_table_is_said_to_be_new(node: UploadNode) -> None:
    await node.commit(1, {}, StoredSettings(4, '{"partitions": 4}', (1, 4)))
    key = settings_key(TOPIC, 1)
    found = parse_settings(node.bucket.objects[key], TOPIC)
    assert (found["settings"], found["settings_version"]) == ({"partitions": 4}, 4)
    assert found["partition_counts"] == [1, 4]
    before = dict(node.bucket.objects)
    for bad in (
        StoredSettings(1, "[]"),
        StoredSettings(1, "{"),
        StoredSettings(1 << 63, "{}"),
        StoredSettings(1, "{}", (4, 2)),
        StoredSettings(1, '{"x": "' + "x" * (33 << 10) + '"}'),
    ):
        assert (await node.commit(2, {}, bad)).reason == "INVALID_REQUEST"
    assert node.bucket.objects == before
    assert table(node).files() == []


async def test_orders_that_can_t_be(node: UploadNode) -> None:
    copy = (await node.upload(node.sealed(), 1)).copy
    before = dict(node.bucket.objects)
    assert (await node.commit(0, {SEGMENT: copy})).reason == "INVALID_REQUEST"
    copy.attempt = 0
    assert (await node.commit(1, {SEGMENT: copy})).reason == "INVALID_REQUEST"
    for coordinator_epoch, incarnation in ((0, 11), (1, 12)):
        with pytest.raises(FencedError):
            await node.commit(1, {}, coordinator_epoch=coordinator_epoch, incarnation=incarnation)
        with pytest.raises(FencedError):
            await node.sweep([], coordinator_epoch=coordinator_epoch, incarnation=incarnation)
    assert node.bucket.objects == before


async def test_the_bucket_says_what_an_order_says_of_its_topic(node: UploadNode) -> None:
    said = StoredSettings(4, "{}", is_deleted=True, log_starts=(0, 7, 0))
    await node.commit(1, {}, said)
    found = parse_settings(node.bucket.objects[settings_key(TOPIC, 1)], TOPIC)
    assert (found["is_deleted"], found["log_starts"], found["name"]) == (True, [0, 7], TOPIC_NAME)
    await node.commit(2, {}, replace(said, version=5, is_deleted=None))  # an older coordinator
    found = parse_settings(node.bucket.objects[settings_key(TOPIC, 2)], TOPIC)
    assert "is_deleted" not in found and "log_starts" not in found
    bad = replace(said, version=6, log_starts=(1 << 63,))
    assert (await node.commit(3, {}, bad)).reason == "INVALID_REQUEST"
    assert table(node).files() == []


async def test_a_topic_is_marked_before_anything_of_it_goes(node: UploadNode) -> None:
    copy = (await node.upload(node.sealed(), 1)).copy
    await node.commit(1, {SEGMENT: copy}, StoredSettings(4, '{"partitions": 4}'))
    others = [(b"short", 1), (b"o" * 16, 1 << 63), (b"o" * 16, 1)]
    node.bucket.faults.refused = 1
    answer = await node.sweep([], None, [(TOPIC, 5)])
    assert [each.reason for each in answer.mark_errors] == ["OBJECT_STORE_BUSY"]
    for _ in range(2):
        answer = await node.sweep([], None, [(TOPIC, 5), *others])
        reasons = [each.reason for each in answer.mark_errors]
        assert reasons == ["", "INVALID_REQUEST", "INVALID_REQUEST", ""]
    found = parse_settings(node.bucket.objects[settings_key(TOPIC, 2)], TOPIC)
    assert (found["settings"], found["settings_version"]) == ({"partitions": 4}, 5)
    assert found["is_deleted"] and settings_key(TOPIC, 3) not in node.bucket.objects
    for coordinator_epoch, incarnation in ((0, 11), (1, 12)):
        with pytest.raises(FencedError):
            await node.sweep(
                [],
                None,
                [(TOPIC, 6)],
                coordinator_epoch=coordinator_epoch,
                incarnation=incarnation,
            )


async def test_what_says_that_a_topic_is_gone_goes_last(node: UploadNode) -> None:
    copy = (await node.upload(node.sealed(), 1)).copy
    await node.commit(1, {SEGMENT: copy}, StoredSettings(4, "{}", is_deleted=True))
    removed: list[str] = []
    delete = node.access.store.delete

    async def told(key: str) -> None:
        removed.append(key)
        await delete(key)

    node.access.store.delete = told  # type: ignore[method-assign]
    await node.sweep([], [TOPIC])
    assert len(removed) > 3 and removed[-1] == settings_key(TOPIC, 1)


# --- sweeping -------------------------------------------------------------------------------------


async def test_a_sweep_removes_one_attempt_and_no_other(node: UploadNode) -> None:
    segment = node.sealed()
    await node.upload(segment, 1)
    kept = dict(node.bucket.objects)
    await node.upload(segment, 2)
    answer = await node.sweep([node.name(segment, 2), node.name(segment, 3)])
    assert [each.reason for each in answer.errors] == ["", ""]
    assert node.bucket.objects == kept
    again = await node.sweep([node.name(segment, 2)])
    assert [each.reason for each in again.errors] == [""]


async def test_a_topic_that_is_gone_leaves_nothing(node: UploadNode) -> None:
    copy = (await node.upload(node.sealed(), 1)).copy
    await node.commit(1, {SEGMENT: copy})
    other = f"{topic_folder(bytes(16))}/0/x.parquet"
    node.bucket.put(other, b"of another topic")
    answer = await node.sweep([], [TOPIC, b"short"])
    assert [each.reason for each in answer.topic_errors] == ["", "INVALID_REQUEST"]
    assert node.bucket.objects.keys() == {MARKER_KEY, other}


async def test_a_sweep_that_is_overtaken_or_refused(node: UploadNode) -> None:
    segment = node.sealed()
    await node.upload(segment, 1)
    node.bucket.faults.refused = 1
    answer = await node.sweep([node.name(segment, 1)])
    assert [each.reason for each in answer.errors] == ["OBJECT_STORE_BUSY"]
    bad = [
        replace(node.name(segment, 1), attempt=0),
        replace(node.name(segment, 1), topic_id=b"../../../etc/pass"),
        replace(node.name(segment, 1), segment_id=SegmentId(0)),
    ]
    answer = await node.sweep(bad)
    assert {each.reason for each in answer.errors} == {"INVALID_REQUEST"}
    left = dict(node.bucket.objects)

    async def overtaken(key: str) -> None:
        node.context.identity.hear(CoordinatorEpoch(2))

    node.tier.store.delete = overtaken  # type: ignore[method-assign]
    answer = await node.sweep([node.name(segment, 1)])
    assert [each.reason for each in answer.errors] == ["FENCED"]
    assert node.bucket.objects == left
