"""A look-up's page says how old was what it was planned on, whoever told it."""

from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
import pytest_asyncio

from icecore import Lookup, Producer
from icecore.client.cluster import held_segments
from icecore.client.cluster.cluster_view import ClusterView
from icecore.client.cluster.connection import Connection
from icecore.client.cluster.held_segments import find_segments
from icecore.client.cluster.metadata import Metadata
from icecore.errors import UnavailableError
from icecore.model import NodeId, NodeInfo
from icecore.process.system import SystemClock
from icecore.v1 import admin_pb2
from tests.support.fake_cluster import FakeCluster


class LaterClock(SystemClock):
    """The system's, and what is added."""

    def __init__(self) -> None:
        self.later_ms = 0.0

    def monotonic_ms(self) -> float:
        return super().monotonic_ms() + self.later_ms


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[FakeCluster]:
    async with FakeCluster(nodes=2) as cluster:
        cluster.add_topic("t", 2)
        async with Producer(cluster.bootstrap, net=cluster.net, linger_ms=0) as producer:
            await producer.send_and_wait("t", b"v", partition=0)
        yield cluster


async def test_it_is_young_while_a_coordinator_answers(cluster: FakeCluster) -> None:
    async with Lookup(cluster.bootstrap, "t", net=cluster.net) as lookup:
        assert 0 <= (await lookup.find()).planned_age_ms < 20_000
        assert 0 <= (await lookup.explain()).planned_age_ms < 20_000


async def test_it_grows_by_what_the_answer_says(cluster: FakeCluster) -> None:
    cluster.ages_ms["GetMetadata"] = 70_000
    async with Lookup(cluster.bootstrap, "t", net=cluster.net) as lookup:
        page = await lookup.find()
        assert page.complete and 70_000 <= page.planned_age_ms < 90_000
        cluster.ages_ms["GetMetadata"] = 0
        lookup._asked_ms -= 60_000
        assert (await lookup.find()).planned_age_ms < 20_000


async def test_a_later_page_is_planned_on_what_is_older_by_then(cluster: FakeCluster) -> None:
    clock = LaterClock()
    async with Producer(cluster.bootstrap, net=cluster.net, linger_ms=0) as producer:
        await producer.send_and_wait("t", b"w", partition=0)
    async with Lookup(cluster.bootstrap, "t", net=cluster.net, clock=clock) as lookup:
        ages = []
        async for page in lookup.pages(max_count=1):
            ages.append(page.planned_age_ms)
            clock.later_ms += 100_000
    assert ages[0] < 20_000 and ages[1] >= 100_000


class _Away:
    """A cluster whose coordinator is away, and what its nodes answer."""

    rng = None
    is_coordinator_away = False

    def __init__(self, *ages_ms: int) -> None:
        self.ages_ms = dict(zip(("n1:1", "n2:1"), ages_ms, strict=True))
        self.clock = SystemClock()

    async def admin(self, *_: Any, **__: Any) -> Any:
        raise UnavailableError("away")

    def note_away(self) -> None:
        self.is_coordinator_away = True

    async def call(self, address: str, *_: Any, **__: Any) -> Any:
        return admin_pb2.ListSegmentsResponse(age_ms=self.ages_ms[address])


async def test_what_several_nodes_hold_is_as_old_as_the_oldest_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(held_segments, "PATIENCE_S", 0.01)
    connection = cast(Connection, _Away(400, 9_000))
    nodes = {n: NodeInfo(NodeId(n), f"n{n}:1", cast(Any, 1)) for n in (1, 2)}
    topics = {"t": cast(Any, type("Topic", (), {"partitions": ()}))}
    view = ClusterView(nodes=nodes, topics=topics)
    metadata = cast(Metadata, type("Known", (), {"view": view, "known": view.topics.get})())
    found = await find_segments(connection, metadata, "t", [0], timeout_s=5)
    assert found.age_ms == 9_000
