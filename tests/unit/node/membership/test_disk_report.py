"""Heartbeats report the disk: a counter, and each durable end that has changed, exactly."""

import random
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from icecore.errors import IcecoreError
from icecore.model import SegmentId
from icecore.v1 import coordinator_pb2 as pb
from icecore_node.identity.readers import Readers
from icecore_node.io.io_pool import LogIo
from icecore_node.membership.disk_report import HEARTBEATS_PER_REPORT, DiskReport
from icecore_node.registry.table import ReplicaTable
from icecore_node.replica import life as lives
from icecore_node.replica.life import Life
from icecore_node.replica.replica import Replica
from icecore_node.storage.disk_levels import DiskLimits
from icecore_node.storage.engine import NO_TAIL
from icecore_replication.producers import ProducerTable
from tests.conformance.log_builder import LogBuilder


class Node:
    """Its replicas, whose logs are cut and grow by hand, and its folder, which may be full."""

    def __init__(self) -> None:
        self.disk_counter = 5
        self.error: IcecoreError | None = None
        self.table = ReplicaTable(Readers())
        self.changed: dict[SegmentId, None] = {}
        io = LogIo(cast(Any, SimpleNamespace(truncate=None)), cast(Any, self), cast(Any, None))
        self.io = replace(io, changed=self.changed)
        self.cut_at = NO_TAIL
        self.report = DiskReport(
            cast(Any, self), cast(Any, self), self.table, self.changed, DiskLimits(90.0, 95.0, 0)
        )

    def raise_disk_counter(self, metadata_revision: int) -> int:
        self.metadata_revision = metadata_revision
        if self.error is not None:
            raise self.error
        self.disk_counter += 1
        return self.disk_counter

    async def run_first(self, function: Callable[[], Any]) -> Any:
        return function()

    def worker_for(self, *_: object) -> Any:
        return self

    async def run(self, function: Any, *_: object) -> Any:
        return self.cut_at if function is None else ProducerTable()

    def add(self, segment_id: int, life: Life = Life.IDLE, end: int = 0) -> Replica:
        log = LogBuilder(segment_id)
        if life is Life.PREPARED:
            identity = replace(log.identity, base_offset=-1)
            replica = Replica(self.io, identity, NO_TAIL, None, life=life)
        else:
            tail = replace(log.tails[0], end_offset=end)
            replica = Replica(self.io, log.identity, tail, ProducerTable(), life=life)
        self.table.add(replica)
        return replica

    def grow(self, replica: Replica, count: int) -> None:
        log = replica.log
        log.tail = replace(log.tail, end_offset=log.tail.end_offset + count)
        log.became_durable(log.tail)

    async def cut(self, replica: Replica, end_offset: int) -> None:
        self.cut_at = replace(replica.log.tail, end_offset=end_offset)
        await replica.log.cut(end_offset)

    async def heartbeat(self) -> pb.HeartbeatRequest:
        heartbeat = pb.HeartbeatRequest()
        await self.report.fill(heartbeat)
        return heartbeat

    def recounted(self) -> dict[int, int]:
        """Return the durable ends, counted again by a look at all replicas."""
        return {
            each.segment_id: each.log.durable_tail.end_offset
            for each in self.table
            if each.life.is_intact and not each.sealed and each.base_offset >= 0
        }


def ends(heartbeat: pb.HeartbeatRequest) -> dict[int, int]:
    return {each.segment_id: each.durable_end_offset for each in heartbeat.durable_ends}


async def test_every_fourth_heartbeat_carries_a_counter_that_is_durable_and_what_grew() -> None:
    node = Node()
    one = node.add(1, end=10)
    node.add(2, end=20)
    sealed = node.add(3, end=30)
    sealed.move(lives.Sealed(sealed.log.tail))
    node.add(4, end=40).move(lives.Condemned("in a test"))
    node.add(5, Life.PREPARED)
    node.report.begin()
    first = await node.heartbeat()
    assert first.disk_counter == node.disk_counter == 6
    assert ends(first) == {1: 10, 2: 20}
    node.grow(one, 1)
    for _ in range(HEARTBEATS_PER_REPORT - 1):
        quiet = await node.heartbeat()
        assert (quiet.disk_counter, ends(quiet)) == (0, {})
    second = await node.heartbeat()
    assert (second.disk_counter, ends(second)) == (7, {1: 11})
    node.report.begin()  # of another stream: all of it again
    assert ends(await node.heartbeat()) == {1: 11, 2: 20}


async def test_the_revision_that_was_heard_is_durable_with_the_counter() -> None:
    node = Node()
    node.report.begin()
    await node.report.fill(pb.HeartbeatRequest(metadata_revision=17))
    assert (node.metadata_revision, node.disk_counter) == (17, 6)


async def test_a_folder_that_is_full_costs_no_heartbeat() -> None:
    node = Node()
    node.error = IcecoreError("disk full")
    node.add(1, end=3)
    node.report.begin()
    heartbeat = await node.heartbeat()
    assert (heartbeat.disk_counter, ends(heartbeat)) == (0, {1: 3})


async def test_what_rests_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand replicas cost a heartbeat nothing."""
    node = Node()
    replicas = [node.add(each) for each in range(1, 10)]
    node.report.begin()
    await node.heartbeat()
    looked: list[int] = []
    get = node.table.get
    monkeypatch.setattr(node.table, "get", lambda each: looked.append(each) or get(each))
    monkeypatch.setattr(ReplicaTable, "__iter__", lambda _: pytest.fail("all are looked at"))
    node.grow(replicas[3], 2)
    for _ in range(3 * HEARTBEATS_PER_REPORT):
        await node.heartbeat()
    assert looked == [4]


KINDS = {"open": 8, "grow": 8, "heartbeat": 8, "prepare": 3, "begin": 3, "cut": 3, "fence": 1}
KINDS |= {"seal": 1, "condemn": 1, "delete": 1, "set_aside": 1, "stream": 1}


async def take(node: Node, step: str, segment_id: int, number: int) -> None:
    """Take a step of a replica's life; leave out a step that cannot happen."""
    replica = node.table.get(SegmentId(segment_id))
    if replica is None:
        if step in ("open", "prepare"):
            node.add(segment_id, Life.IDLE if step == "open" else Life.PREPARED, number)
        return
    log = replica.log
    is_open = replica.base_offset >= 0 and not replica.sealed and replica.life.is_intact
    if step == "begin" and replica.life is Life.PREPARED:
        built = LogBuilder(segment_id)
        replica.move(lives.Begun(built.identity, built.tails[0], ProducerTable()))
        node.table.add(replica)
    elif step == "grow" and is_open and number:
        node.grow(replica, number)
    elif step == "cut" and is_open and number <= log.tail.end_offset:
        await node.cut(replica, number)
    elif step == "fence" and replica.life is Life.IDLE:
        replica.move(lives.Promised(replica.identity.epoch + 1))
    elif step == "seal" and is_open and log.tail == log.durable_tail:
        replica.move(lives.Sealed(log.tail))
    elif step == "condemn" and replica.life.is_intact:
        replica.move(lives.Condemned("in a test"))
    elif step in ("delete", "set_aside"):
        if step == "delete":
            node.table.retire(replica)
        node.table.remove(replica)


@pytest.mark.parametrize("seed", range(20))
async def test_what_is_told_is_what_a_recount_finds(seed: int) -> None:
    rng = random.Random(seed)
    node, told = Node(), dict[int, int]()
    node.report.begin()
    for step in rng.choices(list(KINDS), list(KINDS.values()), k=500):
        if step == "stream":
            node.report.begin()
            told = {}
        elif step == "heartbeat":
            found = node.recounted()
            changed = {each: end for each, end in found.items() if told.get(each) != end}
            assert ends(await node.heartbeat()) == changed
            told = found
            for _ in range(HEARTBEATS_PER_REPORT - 1):
                assert not ends(await node.heartbeat())
        else:
            await take(node, step, rng.randint(1, 5), rng.randint(0, 5))
