"""A node uses its object store once it was looked at, and only if it is this cluster's."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from icecore.codec.batch import Buffer
from icecore.errors import IcecoreError, UnavailableError, UnsupportedError, WrongClusterError
from icecore.model import NodeId
from icecore_node.identity.identity import Identity
from icecore_node.remote.access import TierAccess
from icecore_node.remote.marker import MARKER_KEY, BucketLostError, Marker
from icecore_node.remote.ports import TierPorts
from icecore_node.remote.store.object_store import (
    ObjectExistsError,
    ObjectStoreBusyError,
    ObjectStoreError,
    ObjectStoreSetupError,
)
from tests.simulation.object_store import SimBucket, SimObjectStore
from tests.support.upload_setup import BucketMemo, access_to
from tests.support.waiting import until

OURS, THEIRS = b"o" * 16, b"t" * 16


def access_of(bucket: SimBucket, memory: BucketMemo | None = None, node_id: int = 1) -> TierAccess:
    ports = TierPorts(SimObjectStore(bucket, None), cast(Any, None), memory or BucketMemo())
    identity = Identity(NodeId(node_id))
    identity.cluster_id = OURS
    return access_to(ports, identity=identity, store_retry_ms=10, store_look_ms=10)


async def settled(access: TierAccess, cluster_id: bytes) -> "asyncio.Task[None]":
    """It runs, and has looked once."""
    access._identity.cluster_id = cluster_id
    task = asyncio.ensure_future(access.run())
    await until(lambda: _problem(access) != "UNAVAILABLE")
    return task


def _problem(access: TierAccess) -> str:
    try:
        assert access.store
    except IcecoreError as error:
        return error.reason
    return ""


async def test_the_cluster_leaves_its_id_and_uses_the_store() -> None:
    bucket = SimBucket()
    for _ in range(2):  # also who comes second
        access = access_of(bucket)
        with pytest.raises(UnavailableError, match="not looked at"):
            access.table(bytes(16), "t")
        task = await settled(access, OURS)
        assert access.store
        assert [*bucket.objects] == [MARKER_KEY]
        assert OURS.hex().encode() in bucket.objects[MARKER_KEY]
        task.cancel()


async def test_another_cluster_s_prefix_is_refused_and_not_written_to() -> None:
    bucket = SimBucket()
    (await settled(access_of(bucket), THEIRS)).cancel()
    before, changes = dict(bucket.objects), len(bucket.changes)
    access = access_of(bucket)
    task = await settled(access, OURS)
    with pytest.raises(WrongClusterError) as caught:
        assert access.store
    message = caught.value.message
    assert OURS.hex() in message and THEIRS.hex() in message and "tier_url" in message
    assert (bucket.objects, len(bucket.changes)) == (before, changes)
    task.cancel()


@pytest.mark.parametrize(
    "marker",
    [
        *(b"", b"[]", b"{}", b"\xff", b"null"),
        *(
            b'{"cluster_id": "6f", "store_id": %s}' % each
            for each in (b'"zz"', b'"6f"', b"5", b"[]")
        ),
    ],
)
async def test_a_marker_that_says_nothing(marker: bytes) -> None:
    bucket = SimBucket()
    bucket.put(MARKER_KEY, marker)
    access = access_of(bucket)
    with pytest.raises(ObjectStoreSetupError, match="put it back from a version"):
        await access.look(SimObjectStore(bucket, None))


class ForgetfulStore(SimObjectStore):
    """Ignores conditional puts."""

    async def put_if_absent(self, key: str, data: Buffer) -> None:
        self._bucket.put(key, bytes(data))


class TwoFacedStore(SimObjectStore):
    """Refuses the second put, and does it all the same."""

    async def put_if_absent(self, key: str, data: Buffer) -> None:
        is_there = key in self._bucket.objects
        self._bucket.put(key, bytes(data))
        if is_there:
            raise ObjectExistsError(key)


@pytest.mark.parametrize("kind", [ForgetfulStore, TwoFacedStore])
async def test_a_store_without_conditional_puts_gets_nothing(kind: type[SimObjectStore]) -> None:
    bucket = SimBucket()
    access = access_of(bucket)
    for _ in range(3):
        with pytest.raises(ObjectStoreSetupError, match="ignores conditional puts"):
            await access.look(kind(bucket, None))
        assert bucket.objects == {}
    await access.look(SimObjectStore(bucket, None))
    with pytest.raises(ObjectStoreSetupError, match="ignores conditional puts"):
        await access.look(kind(bucket, None))
    assert [*bucket.objects] == [MARKER_KEY]


async def test_a_store_that_is_away_is_tried_again() -> None:
    bucket = SimBucket()
    bucket.faults.refused = 3
    access = access_of(bucket)
    task = await settled(access, OURS)
    with pytest.raises(ObjectStoreBusyError, match="503"):
        assert access.store
    assert access.refusal == "", "it may pass by itself"
    up = access._metrics.registry.get_sample_value
    assert up("icecore_tier_up") == 0
    await until(lambda: not _problem(access))
    assert up("icecore_tier_up") == 1
    bucket.faults.refused = 1_000_000  # later it is away again, and that is noticed
    await until(lambda: bool(_problem(access)))
    task.cancel()


async def test_a_bucket_that_was_there_is_not_begun_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bucket, memory = SimBucket(), BucketMemo()
    access = access_of(bucket, memory)
    task = await settled(access, OURS)
    marker = bucket.objects.pop(MARKER_KEY)
    with pytest.raises(BucketLostError, match="forget-bucket"):
        await access.confirm()  # who writes hears it before the next look
    await until(lambda: bool(_problem(access)))
    task.cancel()
    access = access_of(bucket, memory)  # also after a restart
    task = await settled(access, OURS)
    with pytest.raises(ObjectStoreError, match=r"memory:/// is not there, or was emptied: .*mount"):
        assert access.store
    await asyncio.sleep(0.1)  # some looks later
    lost = [each for each in caplog.records if each.levelname == "CRITICAL"]
    assert len(lost) == 2, "once for each process"
    assert bucket.objects == {}
    bucket.put(MARKER_KEY, marker)
    await until(lambda: not _problem(access))
    await access.confirm()
    task.cancel()
    memory.known = None  # icecore-node forget-bucket
    bucket.remove(MARKER_KEY)
    await access_of(bucket, memory).look(SimObjectStore(bucket, None))
    assert [*bucket.objects] == [MARKER_KEY]


async def test_two_nodes_that_are_first_agree_on_one_store() -> None:
    bucket = SimBucket()
    memories = [BucketMemo() for _ in range(4)]
    accesses = [access_of(bucket, each, number) for number, each in enumerate(memories, 1)]
    bucket.faults.request_s = 0.01
    tasks = [await settled(each, OURS) for each in accesses]
    assert {each.known for each in memories} == {memories[0].known}
    for task in tasks:
        task.cancel()


async def test_an_old_marker_is_adopted_and_stays_as_it_is() -> None:
    bucket, memory = SimBucket(), BucketMemo()
    old = Marker(OURS.hex()).encode()
    assert old == b'{"version": 1, "cluster_id": "%s"}' % OURS.hex().encode()
    bucket.put(MARKER_KEY, old)
    for _ in range(2):
        access = access_of(bucket, memory)
        (await settled(access, OURS)).cancel()
        assert access.store
        assert bucket.objects == {MARKER_KEY: old}
    bucket.put(MARKER_KEY, Marker(OURS.hex(), "77" * 16).encode())
    with pytest.raises(BucketLostError, match="another store"):
        await access.look(SimObjectStore(bucket, None))


async def test_a_store_that_is_not_the_cluster_s_is_refused_at_once() -> None:
    bucket, memory = SimBucket(), BucketMemo()
    access = access_of(bucket, memory)
    task = await settled(access, OURS)
    ours = access.store_id
    assert len(ours) == 16 and memory.known is not None and memory.known.store_id == ours.hex()
    access._identity.hear_store(ours, b"")
    assert access.store
    assert (access.usable_id, access.refusal) == (ours, "")
    access._identity.hear_store(b"x" * 16, b"")
    with pytest.raises(BucketLostError, match="give all nodes the same tier_url"):
        assert access.store
    await until(lambda: isinstance(access._problem, BucketLostError))
    with pytest.raises(ObjectStoreError, match=f"forget-store {(b'x' * 16).hex()}"):
        assert access.store
    assert access.usable_id == b"" and "forget-store" in access.refusal
    access._identity.hear_store(ours, b"")
    await until(lambda: not _problem(access))
    assert (access.usable_id, access.refusal) == (ours, "")
    task.cancel()


async def test_a_new_node_begins_no_store_beside_the_cluster_s() -> None:
    bucket = SimBucket()
    access = access_of(bucket)
    access._identity.hear_store(b"x" * 16, b"")
    task = await settled(access, OURS)
    with pytest.raises(ObjectStoreError, match="this cluster has used it"):
        assert access.store
    assert bucket.objects == {}
    task.cancel()


async def test_a_store_that_a_person_gave_up_is_followed_by_another() -> None:
    bucket, memory = SimBucket(), BucketMemo()
    access = access_of(bucket, memory)
    task = await settled(access, OURS)
    first = access.store_id
    access._identity.hear_store(first, b"")
    bucket.remove(MARKER_KEY)
    await until(lambda: bool(_problem(access)))
    access._rng = SimpleNamespace(bytes=lambda count: b"n" * count)  # type: ignore[assignment]
    access._identity.hear_store(b"", first)
    await until(lambda: not _problem(access))
    assert access.store_id == b"n" * 16 != first
    assert memory.known is not None and memory.known.store_id == access.store_id.hex()
    task.cancel()


def test_a_node_without_one() -> None:
    access = access_to(None)
    assert not access.is_set_up
    with pytest.raises(UnsupportedError, match="tier_url is empty"):
        assert access.store
