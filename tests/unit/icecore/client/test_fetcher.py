"""A damaged answer is asked for once more, to be checked by the node that sent it."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from icecore import Consumer, Producer
from icecore.errors import NotReplicaError
from icecore.rpc.ports import Received
from icecore.v1 import data_pb2
from tests.support.fake_cluster import FakeCluster

FETCH = "/icecore.v1.DataService/Fetch"


class DamagingNet:
    """The net of a cluster, one of whose nodes has a disk that flips bits unless it looks."""

    def __init__(self, cluster: FakeCluster, node: int, *, ever: bool = False) -> None:
        self._cluster, self._node, self._ever = cluster, node, ever
        self.damaged = 0
        self.checked: list[int] = []
        """Nodes that were asked to check."""

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cluster.net, name)

    async def call(self, address: str, method: str, body: Any, *, timeout_s: float) -> Received:
        answer = await self._cluster.net.call(address, method, body, timeout_s=timeout_s)
        if method != FETCH:
            return answer
        node = next(n for n, known in self._cluster.addresses.items() if known == address)
        (asked,) = data_pb2.FetchRequest.FromString(body).header.partitions
        if not asked.reader_checks:
            self.checked.append(node)
        if node != self._node or (self._ever and not asked.reader_checks):
            return answer
        found = data_pb2.FetchResponse.FromString(answer)
        if not found.batches:
            return answer
        self.damaged += 1
        if not asked.reader_checks:  # as after its read has found the damage
            raise NotReplicaError("segment is damaged here")
        found.batches = found.batches[:-1] + bytes([found.batches[-1] ^ 1])
        return found.SerializeToString()


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    """Two batches on both nodes, of which the first one leads."""
    async with FakeCluster(nodes=2) as cluster:
        (partition,) = cluster.add_topic("t")
        partition.open(1, (1, 2))
        del partition.segments[:-1]
        async with Producer(cluster.bootstrap, net=cluster.net) as producer:
            for base in (0, 10):
                values = [b"%d" % number for number in range(base, base + 10)]
                await producer.send_batch("t", values, partition=0)
        yield cluster


async def read(cluster: FakeCluster, net: DamagingNet) -> list[int]:
    async with Consumer(
        cluster.bootstrap, "t", net=net, stop_at_end=True, max_wait_ms=100, start="earliest"
    ) as consumer:
        return [int(record.value or b"-1") async for record in consumer]


async def test_who_finds_damage_of_its_own_is_left_for_another_replica(
    cluster: FakeCluster, caplog: pytest.LogCaptureFixture
) -> None:
    net = DamagingNet(cluster, 1)
    assert await read(cluster, net) == list(range(20))
    assert net.checked[0] == 1 and net.damaged >= 2
    assert "damaged_answer" in caplog.text


async def test_who_finds_none_serves_what_is_right(cluster: FakeCluster) -> None:
    """The wire was it, or memory."""
    net = DamagingNet(cluster, 1, ever=True)
    assert await read(cluster, net) == list(range(20))
    assert net.checked == [1] * net.damaged and net.damaged


async def test_nobody_checks_as_long_as_all_is_well(cluster: FakeCluster) -> None:
    net = DamagingNet(cluster, 0)
    assert await read(cluster, net) == list(range(20))
    assert not net.checked
