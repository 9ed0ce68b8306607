"""Seeded mistakes about calls that arrive twice, late, or cross each other; see ``mistakes``."""

import contextlib
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any

from icecore.errors import IcecoreError
from icecore.model import Segment
from icecore.v1 import coordinator_pb2
from icecore_coordinator.work.recovery import start_states
from icecore_node.maintenance.copying import SegmentCopier
from icecore_node.membership.registration import Gate
from icecore_node.registry.table import ReplicaTable
from icecore_node.replica import reading
from icecore_node.replica.life import Life
from icecore_node.replica.orders import Order, Orders
from icecore_node.replica.replica import Replica
from icecore_node.serving.orders import fencing
from icecore_node.serving.orders.node_service import NodeService
from icecore_node.serving.orders.opening import ReplicaOpening
from icecore_node.storage.engine import LogTail, SegmentIdentity
from icecore_node.storage.replica_store import ReplicaStore
from icecore_replication.producers import ProducerTable
from tests.simulation.mistakes import Mistake, patch


def confirm_looks_once() -> Mistake:
    """R60: an Open takes a replica that is in use by then back to its base."""

    async def confirm(
        self: ReplicaOpening, item: coordinator_pb2.OpenSegment
    ) -> tuple[int, IcecoreError | None]:
        replica = self._table.get(item.segment.segment_id)
        if replica is None or replica.segment is not None or not replica.life.is_idle:
            return item.segment.segment_id, None
        identity = replace(replica.identity, base_offset=item.segment.base_offset)
        start = (item.producer_snapshot, item.max_append_timestamp_ms)
        with contextlib.suppress(IcecoreError):
            tail = await replica.log.worker.run(
                self._context.store.creation.confirm, identity, *start
            )
            _begin_again(replica, identity, tail, ProducerTable(item.producer_snapshot))
            self._table.add(replica)
        return item.segment.segment_id, None

    return patch(ReplicaOpening, "_confirm", confirm)


def _begin_again(
    self: Replica, identity: SegmentIdentity, tail: LogTail, producers: ProducerTable
) -> None:
    self.identity, self.log._producers, self.life = identity, producers, Life.IDLE
    self.log.tail = self.log.durable_tail = tail


@contextmanager
def _nobody_alone() -> Iterator[None]:
    """R61, first half: whoever comes works on the segment."""

    @asynccontextmanager
    async def alone(self: Orders, *segment_ids: int) -> AsyncIterator[None]:
        yield

    with patch(Orders, "alone", alone):
        yield


@contextmanager
def two_write_backs() -> Iterator[None]:
    """R61: two orders work on one segment, and neither asks whether it still holds."""

    def add(self: ReplicaTable, replica: Replica) -> None:
        self._replicas[replica.segment_id] = replica
        if replica.base_offset >= 0:
            self.of(*replica.partition_key).place(replica)

    create = SegmentCopier._create

    async def begin_anew(
        self: SegmentCopier, order: Order, segment: Segment, _: Replica | None, donor: str
    ) -> Replica:
        return await create(self, order, segment, None, donor)

    with (
        _nobody_alone(),
        patch(Order, "check", lambda self: None),
        patch(ReplicaTable, "add", add),
        patch(SegmentCopier, "_create", begin_anew),
    ):
        yield


@contextmanager
def half_a_copy_counts() -> Iterator[None]:
    """R61, R44: a fence is told the end of a copy that is not whole yet."""

    describe = fencing.describe

    def also_copies(right: Any) -> property:
        return property(lambda life: right.fget(life) or life is Life.COPYING)

    def describe_with_base(replica: Replica, answer: coordinator_pb2.FencedReplica) -> None:
        if replica.base_offset >= 0:
            describe(replica, answer)

    with (
        patch(Life, "counts", also_copies(vars(Life)["counts"])),
        patch(Life, "is_donor", also_copies(vars(Life)["is_donor"])),
        patch(fencing, "describe", describe_with_base),
    ):
        yield


@contextmanager
def orders_for_any_incarnation() -> Iterator[None]:
    """R60 and, which alone would be enough, R56: a node carries out what was meant for an earlier
    process of it, and its gate lets that through."""
    check = NodeService._check

    def wrong(self: NodeService, request: Any) -> None:
        request.incarnation = self._context.identity.incarnation
        check(self, request)

    with (
        patch(NodeService, "_check", wrong),
        patch(Gate, "_check_meant", lambda *_: None),
    ):
        yield


@contextmanager
def stale_producer_state() -> Iterator[None]:
    """R62: a sealed replica tells the producers of its base, and nobody compares."""

    def state_at(store: ReplicaStore, segment_id: int, _: int) -> tuple[bytes, bytes]:
        snapshot = ProducerTable(store.reader.starting_state(segment_id)[0]).snapshot()
        return snapshot, b""

    with (
        patch(reading, "state_at", state_at),
        patch(start_states, "is_sealed_state", lambda record, snapshot: True),
    ):
        yield
