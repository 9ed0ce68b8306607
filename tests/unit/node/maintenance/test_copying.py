"""A copy is made of what was asked for, and by orders that still hold."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from icecore.errors import CorruptBatchError, NotReplicaError, UnavailableError
from icecore.model import CoordinatorEpoch, Epoch, Segment, SegmentId, SegmentState
from icecore_node.identity.identity import Identity
from icecore_node.maintenance.copying import Copying, SegmentCopier
from icecore_node.replica.life import Life
from icecore_node.replica.orders import Orders
from icecore_node.storage.engine import NO_TAIL
from tests.conformance.log_builder import LogBuilder
from tests.support.role_setup import Worker
from tests.support.role_setup import context as role_context
from tests.support.role_setup import replica as role_replica


class Node:
    """It has no replica, and its donor does not answer."""

    def __init__(self, replica: Any = None) -> None:
        self.replica = replica
        identity = Identity(1)
        identity.register(b"c" * 16, incarnation=11, coordinator_epoch=7)
        self.orders = Orders(identity)
        self.asked: list[str] = []
        context = SimpleNamespace(identity=identity, net=self, store=None)
        damage = SimpleNamespace(report_missing=lambda _: None, report_whole=lambda _: None)
        self.copier = SegmentCopier(
            context=cast(Any, context),
            table=cast(Any, {7: replica} if replica is not None else {}),
            orders=self.orders,
            damage=cast(Any, damage),
            reading=cast(Any, self),
            seals=cast(Any, self),
            aside=cast(Any, None),
        )

    async def call(self, address: str, *_: object, **__: object) -> bytes:
        self.asked.append(address)
        raise UnavailableError("nobody is there")

    async def verify(self, replica: Any) -> None:
        assert replica is self.replica

    async def finish(self, replica: Any, _: Segment) -> None:
        assert replica is self.replica

    async def producer_state(self, *_: object) -> tuple[bytes, bytes]:
        return b"", b""

    async def copy(self, version: int) -> None:
        segment = Segment(SegmentId(7), b"t" * 16, "t", 0, SegmentState.SEALED, Epoch(1))
        asked = Copying(
            segment=segment.changed(base_offset=0, end_offset=10, version=version),
            end_offset=10,
            donor_address="donor",
            expected_digest=b"d" * 32,
            seal=True,
        )
        await self.copier.bring_to(asked, CoordinatorEpoch(7))


async def test_an_order_that_is_older_than_the_drop_of_its_copy_makes_none() -> None:
    """The coordinator would never hear of that copy, so it would never have it removed."""
    node = Node()
    node.orders.note_dropped(SegmentId(7), 5)
    for version in (4, 5):
        with pytest.raises(NotReplicaError):
            await node.copy(version)
    assert node.asked == []
    with pytest.raises(UnavailableError):
        await node.copy(6)
    assert node.asked == ["donor"]


async def test_a_copy_that_is_found_whole_meets_no_older_order_to_drop_it() -> None:
    """From then on it counts (R93)."""
    tail = replace(NO_TAIL, end_offset=10, digest=b"d" * 32)
    log = SimpleNamespace(tail=tail)
    replica = SimpleNamespace(
        segment_id=SegmentId(7),
        sealed=True,
        life=Life.SEALED,
        base_offset=0,
        log=log,
        segment=None,
    )
    node = Node(replica)
    await node.copy(6)
    assert [node.orders.was_copied(SegmentId(7), each) for each in (5, 6)] == [True, False]
    with pytest.raises(NotReplicaError):
        node.orders.note_dropped(SegmentId(7), 9)
        await node.copy(8)
    assert not node.orders.was_copied(SegmentId(7), 6), "no copy was made"


@pytest.mark.parametrize("damaged", [0, 2, 4])
async def test_what_a_donor_sent_before_a_damaged_batch_is_written(damaged: int) -> None:
    """The end of the log and the batches that its worker was given never differ."""
    worker, log = Worker(), LogBuilder(7)
    batches = [bytearray(log.make(1)) for _ in range(4)]
    if damaged < 4:
        batches[damaged][-1] ^= 1
    shared = role_context(worker, pool=worker)
    copied = role_replica(shared, log)
    node = Node()
    cast(Any, node.copier)._context = shared
    append = node.copier._append(copied, memoryview(b"".join(batches)))
    if damaged < 4:
        with pytest.raises(CorruptBatchError):
            await append
    else:
        await append
    queued = [mark.base_offset for request, _ in worker.queue for mark in request.marks]
    assert queued == list(range(damaged))
    assert all(request.ends_segment for request, _ in worker.queue)
    assert copied.log.tail == log.tails[damaged]


@pytest.mark.parametrize("start", [1, 2])
async def test_batches_that_do_not_follow_are_not_written(start: int) -> None:
    """Each is whole, and none is the next one of this log."""
    worker, log = Worker(), LogBuilder(7)
    batches = [log.make(1) for _ in range(3)]
    shared = role_context(worker, pool=worker)
    copied = role_replica(shared, log)
    node = Node()
    cast(Any, node.copier)._context = shared
    with pytest.raises(CorruptBatchError, match="do not continue"):
        await node.copier._append(copied, memoryview(b"".join(batches[start:])))
    assert not worker.queue and copied.log.tail == log.tails[0]
