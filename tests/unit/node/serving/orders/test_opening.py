"""Orders to open very many segments: some at a time, one after the other, and for who waits."""

import asyncio
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from icecore.errors import FencedError, IcecoreError, InvalidRequestError, ThrottledError
from icecore.model import SegmentId
from icecore.rpc import convert
from icecore.v1 import coordinator_pb2 as pb
from icecore_node.identity.identity import Identity
from icecore_node.identity.readers import Readers
from icecore_node.registry.table import ReplicaTable
from icecore_node.replica.orders import Orders
from icecore_node.serving.orders.opening import MADE_AT_ONCE, ReplicaOpening
from icecore_node.storage.engine import SegmentIdentity
from tests.support.replication_setup import segment
from tests.unit.coordinator.nodes.test_node_sessions import FakeClock


class Node:
    """Makes what is asked for when it is let go on; notes how much at a time, and when."""

    def __init__(self) -> None:
        known = Identity(1)
        known.register(b"c" * 16, incarnation=1, coordinator_epoch=1)
        self.clock, self.table, self.made = FakeClock(), ReplicaTable(Readers()), list[int]()
        self.under_way = self.most_under_way = 0
        self.gate, self.begun = asyncio.Event(), asyncio.Event()
        self.gate.set()
        self.on_made: Callable[[], None] = lambda: None
        pool = SimpleNamespace(worker_for=lambda *_: None)
        store = SimpleNamespace(
            creation=SimpleNamespace(create=self.create),
            promises=SimpleNamespace(epoch_of=lambda segment_id: segment_id == 13),
        )
        log_io = SimpleNamespace(store=store, pool=pool, cache=None, changed={})
        context: Any = SimpleNamespace(
            executor=self, store=store, identity=known, log_io=log_io, clock=self.clock
        )
        self.opening = ReplicaOpening(context, self.table, Orders(known))

    async def run(self, function: Any, *args: object) -> Any:
        self.begun.set()
        self.under_way += 1
        self.most_under_way = max(self.most_under_way, self.under_way)
        await self.gate.wait()
        await asyncio.sleep(0)
        self.under_way -= 1
        found = function(*args)
        self.on_made()
        return found

    def create(
        self, identities: Sequence[SegmentIdentity], starts: object
    ) -> list[IcecoreError | None]:
        self.made += [each.segment_id for each in identities]
        return [None] * len(identities)

    async def open(
        self, ids: Sequence[int], within_s: float | None = None, check: Any = lambda: None
    ) -> list[IcecoreError | None]:
        items = [
            pb.OpenSegment(
                segment=convert.segment_to_proto(
                    segment().changed(segment_id=SegmentId(each), partition=each)
                )
            )
            for each in ids
        ]
        return await self.opening.open(items, check, within_s)


async def test_many_are_made_some_at_a_time_by_one_thread() -> None:
    node = Node()
    many = [range(100, 100 + 3 * MADE_AT_ONCE), range(1_000, 1_000 + MADE_AT_ONCE)]
    answers = await asyncio.gather(*(node.open(each) for each in many))
    assert not any(error for answer in answers for error in answer)
    assert sorted(node.made) == [*many[0], *many[1]]
    assert node.most_under_way == 1
    assert node.made[MADE_AT_ONCE : 2 * MADE_AT_ONCE] == list(many[1])  # in turns


async def test_no_more_are_made_once_nobody_waits() -> None:
    node = Node()

    def took() -> None:
        node.clock.now += 700

    node.on_made = took
    errors = await node.open(range(100, 100 + 3 * MADE_AT_ONCE), within_s=1.0)
    assert errors[: 2 * MADE_AT_ONCE] == [None] * 2 * MADE_AT_ONCE
    late = errors[2 * MADE_AT_ONCE :]
    assert all(isinstance(error, ThrottledError) and not error.indeterminate for error in late)
    assert len(node.made) == 2 * MADE_AT_ONCE
    assert await node.open(range(100, 100 + 3 * MADE_AT_ONCE)) == [None] * 3 * MADE_AT_ONCE


async def test_an_order_that_is_overtaken_stops_between_two_parts() -> None:
    node = Node()

    def check() -> None:
        if len(node.made) >= MADE_AT_ONCE:
            raise FencedError("another coordinator was heard")

    with pytest.raises(FencedError):
        await node.open(range(100, 100 + 3 * MADE_AT_ONCE), check=check)
    assert len(node.made) == MADE_AT_ONCE


async def test_what_was_made_for_a_caller_that_is_gone_is_there_all_the_same() -> None:
    node = Node()
    node.gate.clear()
    order = asyncio.ensure_future(node.open([5, 6]))
    again = asyncio.ensure_future(node.open([6, 7]))
    await node.begun.wait()
    order.cancel()
    with pytest.raises(asyncio.CancelledError):
        await order
    for _ in range(5):
        await asyncio.sleep(0)
    node.gate.set()
    assert await again == [None, None]
    held = {each.segment_id for each in node.table}
    assert held == {5, 6, 7}
    assert cast(Any, node.table.get(SegmentId(6))).base_offset == -1


async def test_what_must_not_be_made_has_its_own_error() -> None:
    node = Node()
    errors = await node.open([12, 13, 12])
    assert isinstance(errors[2], InvalidRequestError)
    assert "was here and is gone" in str(errors[1])
    assert node.made == []
    assert await node.open([12]) == [None]
