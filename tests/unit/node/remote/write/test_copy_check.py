"""A node says whether it sees published copies in its own object store."""

from collections.abc import Callable

import pytest

from icecore.errors import FencedError, InvalidRequestError, WrongClusterError
from icecore.model import SegmentId
from icecore.v1 import coordinator_pb2 as pb
from icecore_node.remote.format.manifest import INDEX, MANIFEST, ROWS, SIDE, PublishedCopy
from icecore_node.remote.marker import MARKER_KEY, BucketLostError
from icecore_node.remote.store.object_store import ObjectStoreBusyError
from icecore_node.remote.write.copy_check import CopyCheck
from tests.support.upload_setup import SEGMENT, UploadNode

SECOND = SegmentId(SEGMENT + 1)


@pytest.fixture
async def node() -> UploadNode:
    made = UploadNode()
    await made.ready()
    return made


async def copies_of(node: UploadNode) -> dict[SegmentId, pb.TierCopy]:
    first, second = node.sealed(), node.sealed(SECOND)
    return {
        SEGMENT: (await node.upload(first, 1)).copy,
        SECOND: (await node.upload(second, 2)).copy,
    }


async def test_it_sees_what_is_there(node: UploadNode) -> None:
    copies = await copies_of(node)
    answer = await node.verify(copies)
    assert [each.reason for each in answer.errors] == ["", ""]
    assert answer.incarnation == 11 and len(answer.store_id) == 16
    assert answer.store_id == node.access.store_id


@pytest.mark.parametrize("suffix", [MANIFEST, ROWS, INDEX, SIDE])
async def test_each_object_that_is_missing_or_cut_is_noticed(node: UploadNode, suffix: str) -> None:
    copies = await copies_of(node)
    key = node.name(node.segment(SEGMENT), 1).key(suffix)
    whole = node.bucket.objects[key]
    for left in (None, whole[:-1], b"", whole + b"x"):
        node.bucket.remove(key)
        if left is not None:
            node.bucket.put(key, left)
        wrong, right = (await node.verify(copies)).errors
        assert wrong.reason and not right.reason, "each has its own answer"
    node.bucket.put(key, whole)
    assert not any(each.reason for each in (await node.verify(copies)).errors)


@pytest.mark.parametrize("suffix", [MANIFEST, ROWS, INDEX, SIDE])
async def test_what_is_missing_is_told_apart_from_what_is_wrong(
    node: UploadNode, suffix: str
) -> None:
    copies = await copies_of(node)
    assert not any((await node.verify(copies)).missing)
    key = node.name(node.segment(SEGMENT), 1).key(suffix)
    whole = node.bucket.objects[key]
    node.bucket.remove(key)
    assert [*(await node.verify(copies)).missing] == [True, False]
    node.bucket.put(key, whole[:-1])
    assert not any((await node.verify(copies)).missing)


async def test_nothing_is_missing_in_a_store_that_went_meanwhile(
    node: UploadNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that is unmounted between the first look at its marker and the copies."""
    copies, check = await copies_of(node), CopyCheck.check

    async def unmounted(self: CopyCheck, copy: PublishedCopy, go_on: Callable[[], None]) -> None:
        node.bucket.objects.clear()
        await check(self, copy, go_on)

    monkeypatch.setattr(CopyCheck, "check", unmounted)
    answer = await node.verify(copies)
    assert all(each.reason for each in answer.errors) and not any(answer.missing)


async def test_a_table_says_that_a_manifest_is_missing(node: UploadNode) -> None:
    copies = await copies_of(node)
    node.bucket.remove(node.name(node.segment(SEGMENT), 1).key(MANIFEST))
    error = await node.commit(1, copies)
    assert error.reason and node.said_missing == [True]
    error = await node.commit(2, {SECOND: copies[SECOND]})
    assert not error.reason and node.said_missing == [False]


async def test_another_manifest_is_not_the_published_one(node: UploadNode) -> None:
    copies = await copies_of(node)
    copies[SEGMENT].manifest_sha256 = b"x" * 32
    wrong, _ = (await node.verify(copies)).errors
    assert "not the one that was published" in wrong.message
    copies[SEGMENT].attempt = 0
    wrong, _ = (await node.verify(copies)).errors
    assert (wrong.reason, wrong.message) == (
        InvalidRequestError.reason,
        "no copy has attempt 0",
    )


async def test_nothing_is_seen_in_a_store_that_may_not_be_used(node: UploadNode) -> None:
    copies = await copies_of(node)
    marker = node.bucket.objects.pop(MARKER_KEY)
    with pytest.raises(BucketLostError):
        await node.verify(copies)
    node.bucket.put(MARKER_KEY, marker)
    node.context.identity.hear_store(b"another one's id", b"")
    with pytest.raises(BucketLostError):
        await node.verify(copies)
    node.context.identity.hear_store(b"", b"")
    node.bucket.faults.refused = 1
    with pytest.raises(ObjectStoreBusyError):
        await node.verify(copies)


async def test_only_its_own_coordinator_is_answered(node: UploadNode) -> None:
    copies = await copies_of(node)
    with pytest.raises(WrongClusterError):
        await node.verify(copies, cluster_id=b"x" * 16)
    with pytest.raises(FencedError):
        await node.verify(copies, incarnation=10)
    with pytest.raises(FencedError):
        await node.verify(copies, coordinator_epoch=0)
