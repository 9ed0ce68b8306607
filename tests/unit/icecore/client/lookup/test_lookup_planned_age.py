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
from icecore.client.lookup import segment_chains
from icecore.errors import UnavailableError
from icecore.model import NodeId, NodeInfo
from icecore.process.system import SystemClock
from icecore.v1 import admin_pb2, data_pb2
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


@pytest.mark.parametrize("owner, name", [(Metadata, "_ask"), (segment_chains, "find_segments")])
async def test_what_is_long_on_its_way_is_as_old_as_the_question(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str
) -> None:
    clock, ask = LaterClock(), getattr(owner, name)

    async def ask_far_away(*given: Any, **named: Any) -> Any:
        answer = await ask(*given, **named)
        clock.later_ms += 50_000
        return answer

    monkeypatch.setattr(owner, name, ask_far_away)
    async with Lookup(cluster.bootstrap, "t", net=cluster.net, clock=clock) as lookup:
        assert (await lookup.find(partitions=[0])).planned_age_ms >= 50_000
        known_ms = {
            "_ask": lookup._metadata.newest_ms,
            "find_segments": lookup._chains.newest_ms(0),
        }
        assert clock.monotonic_ms() - known_ms[name] >= 50_000


@pytest.mark.parametrize("newest_first", [False, True])
async def test_what_is_learned_when_the_end_was_seen_makes_nothing_younger(
    cluster: FakeCluster, newest_first: bool
) -> None:
    """One record came, with the end of the partition; of the rest the node says that it has none of
    it any more, so that the plan is made anew."""
    clock = LaterClock()
    async with Producer(cluster.bootstrap, net=cluster.net, linger_ms=0) as producer:
        await producer.send_and_wait("t", b"w", partition=0)
    seen: list[int] = []

    def spoil(node_id: int, answer: data_pb2.QueryResponse) -> None:
        seen.append(node_id)
        (result,) = answer.partitions
        if len(seen) == 1:
            answer.continuation = b"more"
            del result.records[1:]
            result.searched_from_offset = 1 if newest_first else 0
            result.searched_to_offset = 2 if newest_first else 1
        elif len(seen) == 2:
            clock.later_ms += 10_000
            answer.complete = False
            result.segments[0].outcome = data_pb2.SEARCH_OUTCOME_ELSEWHERE

    cluster.on_query = spoil
    async with Lookup(cluster.bootstrap, "t", net=cluster.net, clock=clock) as lookup:
        page = await lookup.find(partitions=[0], newest_first=newest_first)
    assert page.complete and len(page.records) == 2 and len(seen) == 3
    assert page.planned_age_ms >= 10_000


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
