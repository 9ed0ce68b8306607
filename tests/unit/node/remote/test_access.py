"""A node uses its object store once it was looked at, and only if it is this cluster's."""

import asyncio
from typing import Any, cast

import pytest

from icecore.codec.batch import Buffer
from icecore.errors import IcecoreError, UnavailableError, UnsupportedError, WrongClusterError
from icecore.model import NodeId
from icecore_node.metrics import NodeMetrics
from icecore_node.remote.access import MARKER_KEY, TierAccess
from icecore_node.remote.ports import TierPorts
from icecore_node.remote.store.object_store import (
    ObjectExistsError,
    ObjectStoreBusyError,
    ObjectStoreSetupError,
)
from icecore_node.timing import NodeTiming
from tests.simulation.object_store import SimBucket, SimObjectStore
from tests.support.waiting import until

OURS, THEIRS = b"o" * 16, b"t" * 16


def access_to(bucket: SimBucket) -> TierAccess:
    ports = TierPorts(SimObjectStore(bucket, None), cast(Any, None))
    return TierAccess(
        ports, NodeId(1), NodeMetrics(), NodeTiming(store_retry_ms=10, store_look_ms=10)
    )


async def settled(access: TierAccess, cluster_id: bytes) -> "asyncio.Task[None]":
    """It runs, and has looked once."""
    task = asyncio.ensure_future(access.run(cluster_id))
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
        access = access_to(bucket)
        with pytest.raises(UnavailableError, match="not looked at"):
            access.table(bytes(16), "t")
        task = await settled(access, OURS)
        assert access.store
        assert [*bucket.objects] == [MARKER_KEY]
        assert OURS.hex().encode() in bucket.objects[MARKER_KEY]
        task.cancel()


async def test_another_cluster_s_prefix_is_refused_and_not_written_to() -> None:
    bucket = SimBucket()
    (await settled(access_to(bucket), THEIRS)).cancel()
    before, changes = dict(bucket.objects), len(bucket.changes)
    access = access_to(bucket)
    task = await settled(access, OURS)
    with pytest.raises(WrongClusterError) as caught:
        assert access.store
    message = caught.value.message
    assert OURS.hex() in message and THEIRS.hex() in message and "tier_url" in message
    assert (bucket.objects, len(bucket.changes)) == (before, changes)
    task.cancel()


@pytest.mark.parametrize("marker", [b"", b"[]", b"{}", b"\xff", b"null"])
async def test_a_marker_that_says_nothing(marker: bytes) -> None:
    bucket = SimBucket()
    bucket.put(MARKER_KEY, marker)
    access = access_to(bucket)
    with pytest.raises(ObjectStoreSetupError, match="another prefix"):
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
    access = access_to(bucket)
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
    access = access_to(bucket)
    task = await settled(access, OURS)
    with pytest.raises(ObjectStoreBusyError, match="503"):
        assert access.store
    up = access._metrics.registry.get_sample_value
    assert up("icecore_tier_up") == 0
    await until(lambda: not _problem(access))
    assert up("icecore_tier_up") == 1
    bucket.faults.refused = 1_000_000  # later it is away again, and that is noticed
    await until(lambda: bool(_problem(access)))
    task.cancel()


def test_a_node_without_one() -> None:
    access = TierAccess(None, NodeId(1), NodeMetrics(), NodeTiming())
    assert not access.is_set_up
    with pytest.raises(UnsupportedError, match="tier_url is empty"):
        assert access.store
