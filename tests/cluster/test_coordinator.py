"""A real coordinator over gRPC with scripted nodes: create, seal, kill, recover, repair."""

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from icecore.errors import (
    InvalidTopicNameError,
    NotEnoughReplicasError,
    TopicExistsError,
    UnknownTopicError,
)
from icecore.model import PROTOCOL_VERSION, Segment, SegmentState
from icecore.process.system import SystemClock, SystemRng
from icecore.rpc.grpc_net import GrpcNet
from icecore.v1 import admin_pb2
from icecore.v1 import coordinator_pb2 as pb
from icecore_coordinator.coordinator import Coordinator
from icecore_coordinator.stores.sqlite_store import SqliteStore
from icecore_coordinator.timing import Timing
from icecore_replication.producers import BATCHES_KEPT, ProducerTable
from tests.cluster.fake_node import FakeNode, Held, digest_of

TIMING = Timing(
    heartbeat_ms=100,
    lease_ms=1_500,
    recovery_wait_ms=300,
    audit_ms=200,
    roll_up_wait_ms=300,
    return_wait_ms=300,
)


class Cluster:
    """One coordinator, its store and its nodes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.nodes: dict[int, FakeNode] = {}
        self.net = GrpcNet()

    async def start_coordinator(self, address: str = "127.0.0.1:0") -> None:
        store = SqliteStore(self.folder / "metadata.sqlite3")
        self.coordinator = Coordinator(GrpcNet(), store, SystemClock(), SystemRng(), TIMING)
        await self.coordinator.start(address)
        self.address = self.coordinator.address

    async def add_node(self, node_id: int) -> FakeNode:
        node = FakeNode(node_id, self.address)
        self.nodes[node_id] = node
        await node.start()
        return node

    async def admin(self, method: str, request: object) -> bytes:
        body = request.SerializeToString()  # type: ignore[attr-defined]
        path = f"/icecore.v1.AdminService/{method}"
        return await self.net.call(self.address, path, body, timeout_s=60)

    async def create(self, name: str, **settings: int) -> admin_pb2.TopicDescription:
        request = admin_pb2.CreateTopicRequest(
            name=name, settings=admin_pb2.TopicSettings(**settings)
        )
        body = await self.admin("CreateTopic", request)
        return admin_pb2.CreateTopicResponse.FromString(body).topic

    async def cluster(self) -> admin_pb2.DescribeClusterResponse:
        body = await self.admin("DescribeCluster", admin_pb2.DescribeClusterRequest())
        return admin_pb2.DescribeClusterResponse.FromString(body)

    def tail(self, topic: str, partition: int = 0) -> Segment | None:
        """As the state has it; tests also look at what nodes were pushed."""
        state = self.coordinator.ledger.state
        record = state.tail(state.partitions[(state.topic_ids[topic], partition)])
        return record.segment if record else None

    def active(self, topic: str, partition: int = 0) -> Segment:
        tail = self.tail(topic, partition)
        assert tail is not None and tail.state == SegmentState.ACTIVE
        return tail

    async def seal(self, segment: Segment, end_offset: int) -> pb.SealResult:
        """Its members hold everything below the end, and its leader seals it there."""
        for node_id in segment.isr:
            self.nodes[node_id].held[segment.segment_id].end_offset = end_offset
        return await self.nodes[segment.leader].seal(segment, end_offset)

    async def stop(self) -> None:
        for node in self.nodes.values():
            await node.kill()
        await self.coordinator.stop()
        await self.coordinator._net.close()
        await self.net.close()


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    cluster = Cluster(tmp_path)
    await cluster.start_coordinator()
    for node_id in (1, 2, 3):
        await cluster.add_node(node_id)
    yield cluster
    await cluster.stop()


async def until(condition: Callable[[], object], timeout_s: float = 40.0) -> None:
    """Wait for a condition, polling."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110  # a condition may be of several processes
            await asyncio.sleep(0.02)


async def test_create_opens_all_partitions_and_pushes_them(cluster: Cluster) -> None:
    topic = await cluster.create("events", partitions=6)
    assert (topic.settings.replication_factor, topic.settings.min_insync_replicas) == (3, 2)
    assert [each.tail.state for each in topic.partitions] == [SegmentState.ACTIVE] * 6
    leaders = [each.tail.leader for each in topic.partitions]
    assert sorted(leaders) == [1, 1, 2, 2, 3, 3]
    for node in cluster.nodes.values():
        await until(lambda node=node: len(node.assignments) == 6)  # type: ignore[misc]
        assert all(each.state == SegmentState.ACTIVE for each in node.assignments.values())
    with pytest.raises(TopicExistsError):
        await cluster.create("events")
    with pytest.raises(InvalidTopicNameError):
        await cluster.create("..")
    with pytest.raises(NotEnoughReplicasError, match="there are 3"):
        await cluster.create("wide", replication_factor=4)
    assert (await cluster.cluster()).offline_partitions == 0


async def test_live_seal_opens_the_prepared_successor(cluster: Cluster) -> None:
    await cluster.create("events")
    before = cluster.active("events")
    result = await cluster.seal(before, 50)
    assert not result.error.reason
    assert (result.sealed.state, result.sealed.end_offset) == (SegmentState.SEALED, 50)
    after = cluster.active("events")
    assert result.successor.segment_id == after.segment_id
    assert (after.base_offset, after.leader, after.replicas) == (
        *(50, before.leader, before.replicas),
    )
    assert after.epoch > before.epoch + 1
    await until(
        lambda: all(
            node.assignments[before.segment_id].state == SegmentState.SEALED
            for node in cluster.nodes.values()
        )
    )


async def test_killed_leader_is_recovered_at_the_longest_log(cluster: Cluster) -> None:
    await cluster.create("events", partitions=48)
    before = [cluster.active("events", each) for each in range(48)]
    for segment in before:
        for length, node_id in enumerate(segment.replicas):
            cluster.nodes[node_id].held[segment.segment_id].end_offset = 10 + length
    await cluster.nodes[1].kill()
    del cluster.nodes[1]
    led = [each for each in before if each.leader == 1]
    assert len(led) == 16
    for node in cluster.nodes.values():
        node.calls.clear()

    def is_done() -> bool:
        tails = [cluster.tail("events", each.partition) for each in led]
        return all(
            each and each.state == SegmentState.ACTIVE and each.leader != 1 for each in tails
        )

    await until(is_done)
    for segment in led:
        survivors = [each for each in segment.replicas if each != 1]
        longest = max(
            10 + length for length, each in enumerate(segment.replicas) if each in survivors
        )
        after = cluster.active("events", segment.partition)
        sealed = cluster.coordinator.ledger.state.segments[segment.segment_id].segment
        assert (sealed.state, sealed.end_offset) == (SegmentState.SEALED, longest)
        assert sealed.replicas == tuple(sorted(survivors))
        assert after.base_offset == longest
        assert sorted(after.replicas) == [2, 3]
    for node in cluster.nodes.values():
        assert node.calls.count("Fence") <= 2, "one call for all segments"
        assert len(node.calls) <= 8
    untouched = [each for each in before if each.leader != 1]
    assert all(cluster.active("events", each.partition) == each for each in untouched)


async def test_what_one_answer_has_no_room_for_is_recovered_as_well(cluster: Cluster) -> None:
    await cluster.create("events", partitions=9)
    led = [each for at in range(9) if (each := cluster.active("events", at)).leader == 1]
    assert len(led) == 3
    for node in cluster.nodes.values():
        node.written_max = 1
        for held in node.held.values():
            held.end_offset = 10
    await cluster.nodes.pop(1).kill()

    def done() -> list[bool]:
        tails = [cluster.tail("events", each.partition) for each in led]
        return [tail is not None and tail.base_offset == 10 for tail in tails]

    await until(lambda: all(done()))


async def test_sealed_copies_and_thin_segments_are_restored(cluster: Cluster) -> None:
    await cluster.create("events")
    segment = cluster.active("events")
    for node in cluster.nodes.values():
        node.held[segment.segment_id].end_offset = 10
    leader = segment.leader
    dead = cluster.nodes.pop(leader)
    await dead.kill()
    await until(lambda: (tail := cluster.tail("events")) and tail.leader != leader)
    thin = cluster.active("events")
    assert len(thin.replicas) == 2
    for node in cluster.nodes.values():
        node.held[thin.segment_id].end_offset = 15
    cluster.nodes[leader] = dead
    await dead.start()
    state = cluster.coordinator.ledger.state
    await until(lambda: len(state.segments[segment.segment_id].segment.replicas) == 3)
    assert dead.held[segment.segment_id].is_sealed
    await until(lambda: (thin.segment_id, "roll_up") in cluster.nodes[thin.leader].rolls)
    result = await cluster.seal(cluster.active("events"), 20)
    assert len(result.successor.replicas) == 3
    info = await cluster.cluster()
    # Thin, repaired a moment later; and its successor, where the third node joins the ISR later.
    assert (info.under_replicated, info.recoveries) == (2, 1)
    await until(lambda: len(state.segments[thin.segment_id].segment.replicas) == 3)
    assert (await cluster.cluster()).min_copies == 3


async def test_fast_restart_of_a_leader_is_recovered_too(cluster: Cluster) -> None:
    await cluster.create("events", replication_factor=1)
    segment = cluster.active("events")
    node = cluster.nodes[segment.leader]
    node.held[segment.segment_id].end_offset = 3
    await node.kill()
    await node.start()
    await until(lambda: (tail := cluster.tail("events")) and tail.base_offset == 3)
    assert cluster.active("events").leader_incarnation > segment.leader_incarnation


async def test_empty_segment_is_dropped_and_deleted(cluster: Cluster) -> None:
    await cluster.create("events")
    segment = cluster.active("events")
    await cluster.nodes.pop(segment.leader).kill()
    await until(lambda: (tail := cluster.tail("events")) and tail.leader != segment.leader)
    after = cluster.active("events")
    assert after.base_offset == 0 and after.segment_id != segment.segment_id
    for node in cluster.nodes.values():
        await until(lambda node=node: segment.segment_id in node.deletes)  # type: ignore[misc]


async def test_undecidable_until_enough_replicas_answer(cluster: Cluster) -> None:
    await cluster.create("events")
    segment = cluster.active("events")
    others = [each for each in segment.replicas if each != segment.leader]
    dead = [cluster.nodes.pop(segment.leader), cluster.nodes[others[0]]]
    cluster.nodes[others[0]].held[segment.segment_id].end_offset = 5
    for node in dead:
        await node.kill()
    await until(lambda: (tail := cluster.tail("events")) and tail.state == SegmentState.RECOVERING)
    await asyncio.sleep(1.0)
    tail = cluster.tail("events")
    assert tail is not None and tail.state == SegmentState.RECOVERING
    await dead[1].start()
    await until(lambda: (tail := cluster.tail("events")) and tail.base_offset == 5)


async def test_coordinator_restart_keeps_leaders_and_resumes_recoveries(cluster: Cluster) -> None:
    await cluster.create("events", partitions=4)
    before = [cluster.active("events", each) for each in range(4)]
    await cluster.coordinator.stop()
    await cluster.start_coordinator(cluster.address)
    await asyncio.sleep(0.8)
    assert [cluster.active("events", each) for each in range(4)] == before
    for node in cluster.nodes.values():
        assert node.last_coordinator_epoch == 2
    await cluster.coordinator.stop()
    await cluster.nodes.pop(1).kill()
    await cluster.start_coordinator(cluster.address)
    led = [each.partition for each in before if each.leader == 1]
    await until(
        lambda: all((tail := cluster.tail("events", each)) and tail.leader != 1 for each in led)
    )


async def test_the_next_segment_opens_with_the_producers_that_were_sealed(cluster: Cluster) -> None:
    """Sealed without a successor; by the time that one can open, some replicas know others."""
    await cluster.create("events")
    segment = cluster.active("events")
    nodes = [cluster.nodes[each] for each in segment.replicas]
    for node in nodes[1:]:
        node.refuses_confirm = True
    await cluster.seal(segment, 10)
    assert cluster.tail("events") is None
    for node in nodes:
        node.producer_snapshot, node.refuses_confirm = b"stale", False

    def is_paged() -> bool:
        why = "no replica knows the producers that were sealed"
        alerts = cluster.coordinator.alerts
        return any((each.segment_id, each.why) == (segment.segment_id, why) for each in alerts)

    await until(is_paged)
    assert cluster.tail("events") is None
    nodes[-1].producer_snapshot = b"snapshot"
    await until(lambda: cluster.tail("events") is not None)
    opened = cluster.active("events")
    for node in nodes:
        assert node.held[opened.segment_id].producer_snapshot == b"snapshot"


async def test_segments_remember_as_many_batches_as_all_nodes_can(cluster: Cluster) -> None:
    """While one node is of before, none remembers more: they must agree when it is sealed."""

    async def remembered(topic: str) -> tuple[int, bool]:
        """The number of batches, and whether the state has a mark (R97)."""
        await cluster.create(topic)
        opened = cluster.active(topic)
        held = [cluster.nodes[each].held[opened.segment_id] for each in opened.replicas]
        (state,) = {each.producer_snapshot for each in held}
        has_mark = any(state[12:20])  # else it is the newest append time, and nothing was appended
        return ProducerTable(state).batches_kept, has_mark

    assert await remembered("first") == (BATCHES_KEPT, True)
    node = cluster.nodes[3]
    for version, *expected in (
        (2, 5, False),
        (3, BATCHES_KEPT, False),
        (PROTOCOL_VERSION, BATCHES_KEPT, True),
    ):
        await node.kill()
        node.protocol_version = version
        await node.start()
        assert await remembered(f"with-{version}") == tuple(expected)
    opened = cluster.active("with-2")
    assert cluster.nodes[1].held[opened.segment_id].producer_snapshot == b""


async def test_isr_changes_and_stale_callers(cluster: Cluster) -> None:
    await cluster.create("events")
    segment = cluster.active("events")
    node = cluster.nodes[segment.leader]
    isr = [each for each in segment.isr if each == node.node_id or each == max(segment.isr)]
    change = pb.IsrChange(
        segment_id=segment.segment_id,
        epoch=segment.epoch,
        version=segment.version,
        isr=isr,
        isr_incarnations=[cluster.nodes[each].incarnation for each in isr],
    )
    request = pb.AlterIsrRequest(
        cluster_id=node.cluster_id,
        node_id=node.node_id,
        incarnation=node.incarnation,
        changes=[change, change],
    )
    body = await node.call("AlterIsr", request.SerializeToString())
    first, second = pb.AlterIsrResponse.FromString(body).results
    assert not first.error.reason
    assert second.error.reason == "CONFLICT"
    assert sorted(second.assignment.isr) == sorted(isr)
    assert (await cluster.cluster()).under_replicated == 1


async def test_delete_and_recreate(cluster: Cluster) -> None:
    await cluster.create("events", partitions=3)
    old = [cluster.active("events", each) for each in range(3)]
    await cluster.admin("DeleteTopic", admin_pb2.DeleteTopicRequest(name="events"))
    with pytest.raises(UnknownTopicError):
        request = admin_pb2.DescribeTopicsRequest(names=["events"])
        await cluster.admin("DescribeTopics", request)
    ids = {each.segment_id for each in old}
    for node in cluster.nodes.values():
        await until(lambda node=node: ids <= node.deletes)  # type: ignore[misc]
    again = await cluster.create("events")
    assert again.topic_id != old[0].topic_id
    node = cluster.nodes[1]
    await node.kill()
    await node.start()
    assert ids <= set(node.delete_at_register)
    await node.kill()
    for each in ids:
        node.held.pop(each, None)
    await node.start()
    await until(lambda: 1 not in cluster.coordinator.ledger.state.deleted[min(ids)].holders)


async def test_a_seal_needs_the_word_of_its_members(cluster: Cluster) -> None:
    await cluster.create("events")
    segment = cluster.active("events")
    leader = cluster.nodes[segment.leader]
    for node_id in segment.isr:
        cluster.nodes[node_id].held[segment.segment_id].end_offset = 150
    coordinator = cluster.coordinator
    assert (await leader.seal(segment, 1)).error.reason  # its own log says something else
    await until(lambda: coordinator.heard.high_watermark(segment.segment_id) == 150)
    assert (await leader.seal(segment, 1)).error.reason == "STORAGE"
    assert "below a high watermark" in next(iter(coordinator.alerts)).why
    liar = next(each for each in segment.isr if each != segment.leader)
    cluster.nodes[liar].held[segment.segment_id].end_offset = 149
    assert (await leader.seal(segment, 150)).error.reason == "STORAGE"
    assert f"nodes [{liar}] hold something else" in list(coordinator.alerts)[-1].why
    assert cluster.active("events").segment_id == segment.segment_id
    cluster.nodes[liar].held[segment.segment_id].end_offset = 150
    result = await leader.seal(segment, 150)
    assert not result.error.reason


async def test_a_member_that_does_not_answer_is_left_out_of_the_seal(cluster: Cluster) -> None:
    await cluster.create("events")
    segment = cluster.active("events")
    silent = next(each for each in segment.isr if each != segment.leader)
    for node_id in segment.isr:
        cluster.nodes[node_id].held[segment.segment_id].end_offset = 7
    del cluster.nodes[silent].held[segment.segment_id]
    result = await cluster.nodes[segment.leader].seal(segment, 7)
    assert sorted(result.sealed.replicas) == sorted(set(segment.isr) - {silent})


async def test_lost_sealed_copy_is_replaced(cluster: Cluster) -> None:
    await cluster.create("events", replication_factor=2)
    segment = cluster.active("events")
    await cluster.seal(segment, 10)
    victim = next(each for each in segment.replicas if each != segment.leader)
    node = cluster.nodes[victim]
    await node.kill()
    node.held[segment.segment_id] = Held(intact=False)
    await node.start()
    state = cluster.coordinator.ledger.state
    await until(lambda: len(state.segments[segment.segment_id].segment.replicas) == 2)
    assert (await cluster.cluster()).under_replicated == 0


async def test_metadata_segments_and_settings(cluster: Cluster) -> None:
    await cluster.create("events", partitions=2)
    segment = cluster.active("events", 0)
    await cluster.seal(segment, 10)
    body = await cluster.admin("GetMetadata", admin_pb2.GetMetadataRequest(topics=["events", "no"]))
    metadata = admin_pb2.GetMetadataResponse.FromString(body)
    known, unknown = metadata.topics
    assert unknown.error.reason == "UNKNOWN_TOPIC_OR_PARTITION"
    assert [each.tail_base_offset for each in known.partitions] == [10, 0]
    assert all(each.leader for each in known.partitions)
    pages = []
    after = 0
    while True:
        request = admin_pb2.ListSegmentsRequest(max_segments=1, after_segment_id=after)
        page = admin_pb2.ListSegmentsResponse.FromString(
            await cluster.admin("ListSegments", request)
        )
        pages += list(page.segments)
        if not page.more:
            break
        after = page.segments[-1].segment_id
    assert [(each.partition, each.base_offset) for each in pages] == [(0, 0), (0, 10), (1, 0)]
    alter = admin_pb2.AlterTopicRequest(
        name="events", settings=admin_pb2.TopicSettings(min_insync_replicas=3)
    )
    altered = admin_pb2.AlterTopicResponse.FromString(await cluster.admin("AlterTopic", alter))
    assert altered.topic.settings.min_insync_replicas == 3
    rolled = [each for node in cluster.nodes.values() for each in node.rolls]
    assert {why for _, why in rolled} == {"alter_topic"} and len(rolled) == 2
    grow = admin_pb2.AddPartitionsRequest(name="events", partitions=5)
    body = await cluster.admin("AddPartitions", grow)
    assert len(admin_pb2.AddPartitionsResponse.FromString(body).topic.partitions) == 5
    tail = cluster.active("events", 1)
    again = replace(tail, settings=tail.settings)
    result = await cluster.seal(again, 5)
    assert result.successor.settings.min_insync_replicas == 3
    assert result.sealed.seal_digest == digest_of(again.segment_id, 5)
