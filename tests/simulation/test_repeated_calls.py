"""Orders that a node gets twice, late, or while it carries out another one."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from icecore import batch, convert
from icecore.model import Segment, SegmentState
from icecore.v1 import coordinator_pb2 as pb
from tests.simulation.cluster import COORDINATOR, World
from tests.simulation.directed import cut, heal, plan, record, until
from tests.simulation.plan import TOPIC
from tests.simulation.workload import Traffic, create_topic

Scenario = Callable[["Cluster"], Coroutine[Any, Any, None]]


class Cluster:
    """Three replicas of one segment with data in it, node D without; and somebody who orders."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.segment: Segment = record(world)
        replicas = [f"node-{each}" for each in self.segment.replicas]
        self.leader = f"node-{self.segment.leader}"
        self.follower = next(each for each in replicas if each != self.leader)
        self.stranger = next(each for each in world.hosts if each not in replicas)
        self.token = world.shells[COORDINATOR].ledger.token
        self.net = world.client("operator")[1]

    def node(self, name: str) -> Any:
        return self.world.shells[name]

    def replica(self, name: str) -> Any:
        return self.node(name).replicas.get(self.segment.segment_id)

    async def order(self, name: str, method: str, request: Any) -> bytes:
        request.cluster_id = self.node(name).context.cluster_id
        request.token = request.token or self.token
        request.incarnation = request.incarnation or self.node(name).context.incarnation
        return await self.net.call(
            self.node(name).context.address,
            f"/icecore.v1.NodeService/{method}",
            request.SerializeToString(),
            timeout_s=30.0,
        )

    async def fence(self, name: str, **changes: int) -> pb.FencedReplica:
        ref = pb.SegmentRef(segment_id=self.segment.segment_id, epoch=self.segment.epoch + 1)
        body = await self.order(name, "Fence", pb.FenceRequest(segments=[ref], **changes))
        [answer] = pb.FenceResponse.FromString(body).replicas
        return answer

    async def write_back(
        self, name: str, end_offset: int, digest: bytes, *, lossy: bool = False
    ) -> pb.WrittenBack:
        segment = self.segment.changed(state=SegmentState.RECOVERING, lossy=lossy)
        item = pb.WriteBackSegment(
            segment=convert.segment_to_proto(segment),
            end_offset=end_offset,
            donor_address=self.node(self.leader).context.address,
            seal_digest=digest,
        )
        body = await self.order(name, "WriteBack", pb.WriteBackRequest(segments=[item]))
        [result] = pb.WriteBackResponse.FromString(body).results
        return result

    async def open(self, name: str, **changes: int) -> str:
        """The reason of the error, if any."""
        segment = self.segment.changed(state=SegmentState.PREPARED)
        item = pb.OpenSegment(segment=convert.segment_to_proto(segment), confirm=True)
        body = await self.order(name, "Open", pb.OpenRequest(segments=[item], **changes))
        [error] = pb.OpenResponse.FromString(body).errors
        return error.reason


def run(scenario: Scenario) -> World:
    """In a calm world, with records in its one segment."""
    calm = plan("", nodes=4)
    world = World(7, calm.knobs, nodes=calm.nodes)

    async def course(world: World) -> None:
        world.start_all()
        await create_topic(world, TOPIC, calm)
        traffic = Traffic(world, TOPIC, calm)
        traffic.start()
        await asyncio.sleep(1.0)
        await traffic.finish(30.0)
        await asyncio.sleep(0.5)
        await scenario(Cluster(world))

    world.run(course)
    assert not world.loop.failures
    return world


def test_an_open_that_comes_again_leaves_a_replica_in_use_alone() -> None:
    async def scenario(cluster: Cluster) -> None:
        for name in (cluster.leader, cluster.follower):
            replica = cluster.replica(name)
            before = (replica.tail, replica.producers.digest(), replica.idle)
            assert await cluster.open(name) == "INVALID_REQUEST"
            assert (replica.tail, replica.producers.digest(), replica.idle) == before

    run(scenario)


@pytest.mark.parametrize("is_again", [False, True])
def test_an_open_for_an_earlier_process_begins_no_log(is_again: bool) -> None:
    async def scenario(cluster: Cluster) -> None:
        name = cluster.stranger
        before = cluster.node(name).context.incarnation
        if is_again:
            assert await cluster.open(name, incarnation=before) == ""
            assert await cluster.open(name, incarnation=before) == ""  # untouched: the same answer
            return
        cluster.world.kill(name)
        cluster.world.start(name)
        await asyncio.sleep(1.0)
        with pytest.raises(Exception, match=f"the call is for {before}"):
            await cluster.open(name, incarnation=before)
        assert cluster.replica(name) is None

    run(scenario)


def test_an_open_begins_nothing_anew_that_was_here() -> None:
    async def scenario(cluster: Cluster) -> None:
        replicas = cluster.node(cluster.follower).replicas
        replica = cluster.replica(cluster.follower)
        process = cluster.world.processes[cluster.follower]

        async def lose() -> None:
            replicas.condemn(replica, "in a test")
            async with replicas.orders.alone(replica.segment_id):
                await replicas.set_aside(replica)

        process.spawn(lose())
        await until(lambda: cluster.replica(cluster.follower) is None)
        assert await cluster.open(cluster.follower) == "NOT_REPLICA"
        assert not (await cluster.fence(cluster.follower)).intact

    run(scenario)


def test_what_a_fence_was_told_is_not_cut_before_the_seal() -> None:
    async def scenario(cluster: Cluster) -> None:
        name = cluster.follower
        told = await cluster.fence(name)
        assert told.intact and told.durable_end_offset > cluster.segment.base_offset
        store, segment_id = cluster.node(name).context.store, cluster.segment.segment_id
        headers = store.headers(segment_id, told.durable_end_offset)
        earlier = store.tail_at(segment_id, batch.parse_header(headers[0]).end_offset)
        # Lossy, since readers have seen more: that alone would refuse it.
        result = await cluster.write_back(name, earlier.end_offset, earlier.digest, lossy=True)
        assert result.error.reason == "FENCED"
        assert cluster.replica(name).durable_tail.end_offset == told.durable_end_offset
        again = await cluster.fence(name)
        assert again.durable_end_offset == told.durable_end_offset

    run(scenario)


@pytest.mark.parametrize("comes", ["fence", "newer coordinator"])
def test_a_write_back_that_waits_for_its_donor_is_overtaken(comes: str) -> None:
    async def scenario(cluster: Cluster) -> None:
        name, tail = cluster.stranger, cluster.replica(cluster.leader).durable_tail
        cut(cluster.world, cluster.leader, [name])
        waiting = [
            asyncio.ensure_future(cluster.write_back(name, tail.end_offset, tail.digest))
            for _ in range(2)
        ]
        await asyncio.sleep(0.3)
        token = cluster.token + (comes != "fence")
        assert not (await cluster.fence(name, token=token)).intact
        heal(cluster.world, cluster.leader, [name])
        assert [(await each).error.reason for each in waiting] == ["FENCED", "FENCED"]
        assert cluster.replica(name) is None

    run(scenario)


def test_two_equal_write_backs_make_one_copy_that_counts_when_it_is_whole() -> None:
    async def scenario(cluster: Cluster) -> None:
        name, tail = cluster.stranger, cluster.replica(cluster.leader).durable_tail
        results = await asyncio.gather(
            *(cluster.write_back(name, tail.end_offset, tail.digest) for _ in range(3))
        )
        assert [each.error.reason for each in results] == [""] * 3
        assert {each.seal_digest for each in results} == {tail.digest}
        assert (await cluster.fence(name)).durable_end_offset == tail.end_offset

    run(scenario)
