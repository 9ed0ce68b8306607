"""An UNKNOWN log may still be used for some things, and counts for nothing else."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from icecore.model import Segment, SegmentState
from icecore.v1 import coordinator_pb2 as pb
from icecore_node.identity.identity import Identity
from icecore_node.maintenance.salvage import Salvage
from icecore_node.replica.life import Life, Sealed
from icecore_node.replica.order_checks import PROMISE_JUMP_MAX
from icecore_node.replica.orders import Orders
from icecore_node.replica.replica import Replica
from icecore_node.storage.engine import NO_TAIL, LogTail, SegmentIdentity
from icecore_node.storage.port import FoundReplica
from icecore_replication.producers import ProducerTable
from tests.support.replication_setup import segment

TAIL = replace(
    NO_TAIL,
    end_offset=7,
    last_header_crc32c=42,
    digest=b"d" * 32,
    max_known_high_watermark=5,
)
TOKEN = 3


def identity(segment_id: int = 1) -> SegmentIdentity:
    return SegmentIdentity(b"c" * 16, b"t" * 16, 0, segment_id, 0, 4, 0)


class Node:
    """Notes what is done in which order. Of segment 1 something can be proved, of 2 nothing."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.held: dict[int, Replica] = {}
        self.promised = {1: 4, 2: 4, 3: 99, 6: 4}
        pool = SimpleNamespace(probe=self.probe, worker_for=lambda *_: None)
        store = SimpleNamespace(
            salvage=SimpleNamespace(tail=self.tail, readmit=self.readmit),
            promises=SimpleNamespace(
                epoch_of=lambda segment_id: self.promised.get(segment_id, 0), persist=self.promise
            ),
        )
        self.io: Any = SimpleNamespace(store=store, pool=pool, cache=None, changed={})
        known = Identity(1)
        known.register(b"c" * 16, incarnation=1, coordinator_epoch=TOKEN)
        self.context: Any = SimpleNamespace(
            executor=self, pool=pool, store=store, identity=known, log_io=self.io
        )
        self.orders = Orders(known)
        self.salvage = Salvage(self.context, cast(Any, self), self.orders, cast(Any, self))

    async def run(self, function: Any, *args: object) -> Any:
        return function(*args)

    async def probe(self) -> None:
        self.done.append("probe")

    def promise(self, promises: list[tuple[int, int]], coordinator_epoch: int) -> None:
        self.done.append(f"promised {promises} {coordinator_epoch}")
        self.promised.update(promises)

    def tail(self, segment_id: int) -> LogTail | None:
        self.done.append(f"looked {segment_id}")
        return TAIL if segment_id == 1 else None

    def readmit(self, segment_id: int) -> FoundReplica:
        self.done.append(f"readmitted {segment_id}")
        snapshot = ProducerTable().snapshot()
        return FoundReplica(identity(), False, "", TAIL, producer_snapshot=snapshot)

    def get(self, segment_id: int) -> Replica | None:
        return self.held.get(segment_id)

    def add(self, replica: Replica) -> None:
        self.held[replica.segment_id] = replica

    async def set_aside(self, replica: Replica) -> None:
        self.done.append(f"aside {replica.segment_id}")
        del self.held[replica.segment_id]

    def replica(self, life: Life) -> Replica:
        replica = Replica(self.io, identity(), TAIL, ProducerTable(), life=life)
        self.held[1] = replica
        return replica


async def test_promises_are_durable_before_anything_is_said() -> None:
    node = Node()
    request = pb.FenceRequest(
        coordinator_epoch=TOKEN,
        segments=[pb.SegmentRef(segment_id=each, epoch=6) for each in (1, 2, 3, 4, 5)],
    )
    never_here = [(7, 6), (8, 1 << 63), (6, 5 + PROMISE_JUMP_MAX)]
    request.segments.extend(pb.SegmentRef(segment_id=each, epoch=at) for each, at in never_here)
    answers = [pb.FencedReplica() for _ in request.segments]
    answers[3].intact = True  # known already
    answers[4].error.reason = "FENCED"
    replica = node.replica(Life.UNKNOWN)
    await node.salvage.describe(request, answers)
    assert node.done == [f"promised [(1, 6), (2, 6)] {TOKEN}", "probe", "looked 1", "looked 2"]
    assert [each.salvageable for each in answers] == [True] + [False] * 7
    first = answers[0]
    assert not first.intact
    assert (first.durable_end_offset, first.last_header_crc32c, first.digest) == (7, 42, b"d" * 32)
    assert first.max_known_high_watermark == 5
    assert replica.promised_epoch == 6


@pytest.mark.parametrize("is_held", [True, False])
async def test_what_is_readmitted_counts_for_nothing_but_this_until_it_is_sealed(
    is_held: bool,
) -> None:
    node = Node()
    node.promised[1] = 6
    if is_held:
        node.replica(Life.UNKNOWN)
    record: Segment = segment(segment_id=1, state=SegmentState.RECOVERING)
    await node.salvage.readmit(record)
    assert node.done == ["aside 1"] * is_held + ["readmitted 1"]
    replica = node.held[1]
    assert (replica.life.is_intact, replica.life.counts, replica.promised_epoch) == (True, False, 6)
    replica.move(Sealed(TAIL))
    assert replica.life.counts


async def test_a_repeated_order_readmits_nothing_twice() -> None:
    node = Node()
    record: Segment = segment(segment_id=1, state=SegmentState.RECOVERING)
    await node.salvage.readmit(record)
    again = node.held[1]
    await node.salvage.readmit(record)
    assert node.held[1] is again and node.done == ["readmitted 1"]


def test_only_an_intact_confirmed_replica_counts() -> None:
    node = Node()
    assert node.replica(Life.IDLE).life.counts
    assert not node.replica(Life.UNKNOWN).life.counts
    prepared = SegmentIdentity(b"c" * 16, b"t" * 16, 0, 1, 0, 4)
    assert not Replica(node.io, prepared, NO_TAIL, None, life=Life.PREPARED).life.counts
