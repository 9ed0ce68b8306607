"""The log of one replica as the loop knows it: what a cut leaves, also one that ends half way."""

import sqlite3
from collections.abc import Callable
from typing import Any, cast

import pytest

from icecore.codec.batch import parse_header
from icecore.codec.record import encode_columns
from icecore.errors import OutOfResourcesError, StorageError
from icecore.model import ProducerEpoch, ProducerId
from icecore_node.io.io_pool import LogIo
from icecore_node.io.tail_cache import TailCache
from icecore_node.replica.replica_log import ReplicaLog, StampedBatch, producers_at
from icecore_node.storage.control.control_store import ControlStore
from icecore_node.storage.engine import AppendRequest
from icecore_node.storage.engines import make_store
from icecore_node.storage.replica_store import ReplicaStore
from icecore_node.storage.segment_engine.segment_log import LogSettings
from icecore_replication.producers import Accepted, ProducerTable
from tests.conformance.log_builder import CLUSTER, LogBuilder
from tests.simulation.disk import SimDisk, SimFileSystem
from tests.simulation.index import SimIndex, SimIndexDisk

SEGMENT = 7
PRODUCER = ProducerId(9)
EPOCH = ProducerEpoch(0)


class Worker:
    """Carries out at once what it is asked; appends are the test's business."""

    def worker_for(self, *_: object) -> "Worker":
        return self

    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        return function(*args)


class Bench:
    """A log of two batches of one producer, the first of which is durable."""

    def __init__(self) -> None:
        control = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        files, index = SimFileSystem(SimDisk(), None), SimIndex(SimIndexDisk(), None)
        settings = LogSettings(recycle_bytes_max=0)
        self.store: ReplicaStore = make_store(
            files, index, ControlStore(control), CLUSTER, settings
        )
        self.store.start_up()
        self.batches = LogBuilder(SEGMENT)
        assert self.store.creation.create([self.batches.identity], {SEGMENT: (b"", 0)}) == [None]
        io = LogIo(cast(Any, self.store), cast(Any, Worker()), TailCache(1 << 20))
        tail = self.batches.tail
        self.requests: list[AppendRequest] = []
        self.log = ReplicaLog(io, self.batches.identity, tail, ProducerTable())
        self.store.append_group([self.extend(0)])
        self.log.became_durable(self.log.tail)
        self.requests.clear()
        self.extend(1)

    def extend(self, sequence: int, value: bytes = b"v") -> AppendRequest:
        """As a leader or a follower does with the batch that comes next."""
        raw = encode_columns(
            values=[value], timestamps_ms=[0], producer_id=PRODUCER, base_sequence=sequence
        )
        batch = memoryview(self.batches.add(raw))
        header = parse_header(batch)
        self.log.extend(StampedBatch.received(batch, 0, header), self.requests)
        self.log.producers.apply_header(header)
        return self.requests[-1]


def test_neighbours_travel_together_and_are_stored_as_one_by_one() -> None:
    """Up to four mebibytes of them; a batch is never parted."""
    together, alone = Bench(), Bench()
    for sequence in range(2, 11):
        for bench in (together, alone):
            bench.extend(sequence, bytes(500_000))
    assert [len(each.marks) for each in together.requests] == [9, 1]
    assert [each.tail.end_offset for each in together.requests] == [10, 11]
    one_by_one = [
        AppendRequest(SEGMENT, request.buffers[2 * n : 2 * n + 2], [mark], request.tail)
        for request in alone.requests
        for n, mark in enumerate(request.marks)
    ]
    assert len(one_by_one) == 10
    for bench, requests in ((together, together.requests), (alone, one_by_one)):
        bench.store.append_group(requests)
        assert [each.error for each in requests] == [None] * len(requests)
    tails = [bench.store.reader.tail(SEGMENT) for bench in (together, alone)]
    assert tails[0] == tails[1] == together.log.tail
    headers = [bench.store.reader.headers(SEGMENT, 11) for bench in (together, alone)]
    assert headers[0] == headers[1] and len(headers[0]) == 11


async def test_what_never_became_durable_is_forgotten_of_the_producers_too() -> None:
    bench = Bench()
    await bench.log.settle()
    assert bench.log.tail.end_offset == bench.log.durable_tail.end_offset == 1
    assert bench.log.producers.check(PRODUCER, EPOCH, 1, 1) == Accepted()


@pytest.mark.parametrize("error", [OutOfResourcesError("no descriptor"), StorageError("EIO")])
async def test_a_cut_that_ends_half_way_is_made_again(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Else who leads next takes what is sent again for a duplicate of a record that is nowhere."""
    bench = Bench()
    with monkeypatch.context() as patch:

        def headers(*_: object) -> list[bytes]:
            raise error

        patch.setattr(type(bench.store.reader), "headers", headers)
        with pytest.raises(type(error)):
            await bench.log.settle()
    await bench.log.settle()
    assert bench.log.tail.end_offset == bench.log.durable_tail.end_offset == 1
    assert bench.log.producers.digest() == producers_at(bench.store, SEGMENT, 1).digest()
    assert bench.log.producers.check(PRODUCER, EPOCH, 1, 1) == Accepted()
