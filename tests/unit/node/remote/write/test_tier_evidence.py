"""Orders that would take away what is there are refused, and nothing is removed."""

import pytest

from icecore.model import FIRST_GENERATION
from icecore.tier_records import CopyPath, copy_path
from icecore_node.remote.format.manifest import CopyName
from tests.support.upload_setup import SEGMENT, TOPIC, UploadNode


@pytest.fixture
async def node() -> UploadNode:
    node = UploadNode()
    await node.ready()
    return node


def refused(node: UploadNode, order: str) -> float:
    return node.context.metrics.orders_refused.labels(order)._value.get()


async def test_a_topic_that_is_there_is_not_swept(node: UploadNode) -> None:
    await node.upload(node.sealed())
    node.live_topics.add(TOPIC)
    before = dict(node.bucket.objects)
    answer = await node.sweep([], [TOPIC], to_mark=[(TOPIC, 9)])
    for error in (*answer.topic_errors, *answer.mark_errors):
        assert error.reason == "INVALID_REQUEST"
        assert "is not deleted, as far as is known here" in error.message
    assert node.bucket.objects == before and refused(node, "sweep") == 2
    node.live_topics.remove(TOPIC)
    answer = await node.sweep([], [TOPIC])
    assert not answer.topic_errors[0].reason and len(node.bucket.objects) < len(before)


async def test_nothing_is_swept_before_topics_are_known(node: UploadNode) -> None:
    await node.upload(node.sealed())
    node.live_topics.clear()
    before = dict(node.bucket.objects)
    answer = await node.sweep([], [TOPIC])
    assert answer.topic_errors[0].reason == "UNAVAILABLE" and node.bucket.objects == before


async def test_a_published_attempt_is_not_swept(node: UploadNode) -> None:
    segment = node.sealed()
    await node.upload(segment, attempt=1)
    await node.upload(segment, attempt=2)
    node.published[SEGMENT] = 2
    before = dict(node.bucket.objects)
    answer = await node.sweep([node.name(segment, 2)])
    assert "attempt 2 of segment" in answer.errors[0].message
    assert node.bucket.objects == before and refused(node, "sweep") == 1
    answer = await node.sweep([node.name(segment, 1)])
    assert not answer.errors[0].reason
    assert 0 < len(node.bucket.objects) < len(before)


async def test_a_table_keeps_what_is_published(node: UploadNode) -> None:
    copy = (await node.upload(node.sealed(), attempt=2)).copy
    assert not (await node.commit(1, {SEGMENT: copy})).reason
    node.published[SEGMENT] = 2
    before = dict(node.bucket.objects)
    error = await node.commit(1 << 62, {})
    assert "would lose attempt 2 of segment" in error.message
    assert node.bucket.objects == before and refused(node, "commit_tables") == 1
    del node.published[SEGMENT]
    assert not (await node.commit(2, {})).reason
    assert node.bucket.objects != before


@pytest.mark.parametrize(
    "path",
    [
        "",
        "0/part-1.parquet",
        "0/1-2-3.parquet",
        "0/1-2-3-4.json",
        "0/1-2-x-4.parquet",
        "0/---.parquet",
    ],
)
def test_paths_that_name_no_copy(path: str) -> None:
    assert copy_path(path) is None


def test_the_path_of_a_copy() -> None:
    name = CopyName(
        topic_id=TOPIC,
        partition=3,
        segment_id=SEGMENT,
        generation=FIRST_GENERATION,
        base_offset=17,
        attempt=5,
    )
    assert copy_path(name.path) == CopyPath(3, 17, SEGMENT, 0, 5)
