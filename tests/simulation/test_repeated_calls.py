"""Orders that a node gets twice, late, or while it carries out another one."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

import pytest

from icecore.codec import batch
from icecore.model import Segment, SegmentState
from icecore.rpc import convert
from icecore.v1 import coordinator_pb2 as pb
from icecore_node.registry.set_aside import SettingAside
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
        self.coordinator_epoch = world.shells[COORDINATOR].ledger.state.coordinator_epoch
        self.net = world.client("operator")[1]

    def node(self, name: str) -> Any:
        return self.world.shells[name]

    def replica(self, name: str) -> Any:
        return self.node(name).replicas.get(self.segment.segment_id)

    async def order(self, name: str, method: str, request: Any) -> bytes:
        request.cluster_id = self.node(name).context.identity.cluster_id
        request.coordinator_epoch = request.coordinator_epoch or self.coordinator_epoch
        request.incarnation = request.incarnation or self.node(name).context.identity.incarnation
        request.node_id = self.node(name).context.identity.node_id
        return await self.net.call(
            self.node(name).context.identity.address,
            f"/icecore.v1.NodeService/{method}",
            request.SerializeToString(),
            timeout_s=30.0,
        )

    async def fence(self, name: str, **changes: Any) -> pb.FencedReplica:
        ref = pb.SegmentRef(segment_id=self.segment.segment_id, epoch=self.segment.epoch + 1)
        body = await self.order(name, "Fence", pb.FenceRequest(segments=[ref], **changes))
        [answer] = pb.FenceResponse.FromString(body).replicas
        return answer

    async def write_back(
        self,
        name: str,
        end_offset: int,
        digest: bytes,
        *,
        segment: Segment | None = None,
        lossy: bool = False,
    ) -> pb.WrittenBack:
        segment = (segment or self.segment).changed(state=SegmentState.RECOVERING, lossy=lossy)
        item = pb.WriteBackSegment(
            segment=convert.segment_to_proto(segment),
            end_offset=end_offset,
            donor_address=self.node(self.leader).context.identity.address,
            seal_digest=digest,
        )
        body = await self.order(name, "WriteBack", pb.WriteBackRequest(segments=[item]))
        [result] = pb.WriteBackResponse.FromString(body).results
        return result

    async def open(
        self,
        name: str,
        *,
        segment: Segment | None = None,
        confirm: bool = True,
        snapshot: bytes = b"",
        **changes: Any,
    ) -> str:
        """The reason of the error, if any."""
        segment = (segment or self.segment).changed(state=SegmentState.PREPARED)
        item = pb.OpenSegment(
            segment=convert.segment_to_proto(segment), confirm=confirm, producer_snapshot=snapshot
        )
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


async def restarted(cluster: Cluster, name: str) -> None:
    """Killed and started, and up again."""
    cluster.world.kill(name)
    cluster.world.start(name)
    await asyncio.sleep(1.0)
    assert cluster.node(name).context.identity.incarnation


def test_an_open_that_comes_again_leaves_a_replica_in_use_alone() -> None:
    async def scenario(cluster: Cluster) -> None:
        for name in (cluster.leader, cluster.follower):
            replica = cluster.replica(name)
            log = replica.log
            before = (log.tail, log.producers.digest(), replica.life.is_idle)
            assert await cluster.open(name) == "INVALID_REQUEST"
            assert (log.tail, log.producers.digest(), replica.life.is_idle) == before

    run(scenario)


@pytest.mark.parametrize(
    "changes",
    [{"topic_id": b"x" * 16}, {"partition": 1}, {"generation": 1}, {"epoch": 9}],
)
def test_an_open_of_another_segment_under_an_id_in_use(changes: dict[str, Any]) -> None:
    async def scenario(cluster: Cluster) -> None:
        name = cluster.stranger
        assert await cluster.open(name) == ""
        mine = cluster.replica(name)
        held = (mine, mine.identity, mine.log.tail)
        segment = cluster.segment.changed(state=SegmentState.PREPARED, **changes)
        for confirm in (False, True):
            assert await cluster.open(name, segment=segment, confirm=confirm) == "INVALID_REQUEST"
        replica = cluster.replica(name)
        assert (replica, replica.identity, replica.log.tail) == held
        # Prepared and without a base, it is confirmed as what it is and as nothing else.
        fresh = cluster.segment.changed(segment_id=10**6, state=SegmentState.PREPARED)
        assert await cluster.open(name, segment=fresh, confirm=False) == ""
        other = fresh.changed(**changes)
        assert await cluster.open(name, segment=other) == "INVALID_REQUEST"
        assert cluster.node(name).replicas.get(10**6).base_offset == -1
        assert await cluster.open(name, segment=fresh) == ""

    run(scenario)


@pytest.mark.parametrize("method", ["Open", "WriteBack"])
def test_a_segment_that_can_t_be_is_stored_nowhere(method: str) -> None:
    async def scenario(cluster: Cluster) -> None:
        name = cluster.stranger
        fresh = cluster.segment.changed(segment_id=10**6, state=SegmentState.PREPARED)
        nonsense = [
            fresh.changed(topic_id=b""),
            fresh.changed(topic_id=b"z" * 17),
            fresh.changed(segment_id=0),
            fresh.changed(segment_id=(1 << 64) - 1),
            fresh.changed(epoch=(1 << 64) - 1),
            fresh.changed(base_offset=-5),
        ]
        for each in nonsense:
            if method == "Open":
                assert await cluster.open(name, segment=each) == "INVALID_REQUEST"
            else:
                result = await cluster.write_back(name, 0, b"", segment=each)
                assert result.error.reason == "INVALID_REQUEST"
        if method == "Open":
            assert await cluster.open(name, segment=fresh, snapshot=b"junk") == "INVALID_REQUEST"
        await restarted(cluster, name)
        assert all(cluster.node(name).replicas.get(each.segment_id) is None for each in nonsense)

    run(scenario)


def test_a_producer_state_that_is_none_costs_one_replica() -> None:
    """An earlier version stored what a forged Open had in it."""

    async def scenario(cluster: Cluster) -> None:
        name = cluster.follower
        identity = replace(cluster.replica(name).identity, segment_id=10**6)
        store = cluster.node(name).context.store
        assert store.creation.create([identity], {10**6: (b"junk", 0)}) == [None]
        await restarted(cluster, name)
        assert not cluster.node(name).replicas.get(10**6).life.is_intact
        assert cluster.replica(name).life.is_intact

    run(scenario)


@pytest.mark.parametrize("is_again", [False, True])
def test_an_open_for_an_earlier_process_begins_no_log(is_again: bool) -> None:
    async def scenario(cluster: Cluster) -> None:
        name = cluster.stranger
        before = cluster.node(name).context.identity.incarnation
        if is_again:
            assert await cluster.open(name, incarnation=before) == ""
            assert await cluster.open(name, incarnation=before) == ""  # untouched: the same answer
            return
        cluster.world.kill(name)
        cluster.world.start(name)
        await asyncio.sleep(1.0)
        with pytest.raises(Exception, match=f"the call is for incarnation {before}"):
            await cluster.open(name, incarnation=before)
        assert cluster.replica(name) is None

    run(scenario)


def test_an_open_begins_nothing_anew_that_was_here() -> None:
    async def scenario(cluster: Cluster) -> None:
        node = cluster.node(cluster.follower)
        aside = SettingAside(node.context.store, node.replicas, node._damage)
        replica = cluster.replica(cluster.follower)
        process = cluster.world.processes[cluster.follower]

        async def lose() -> None:
            node._damage.condemn(replica, "in a test")
            async with node.orders.alone(replica.segment_id):
                await aside.set_aside(replica)

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
        headers = store.reader.headers(segment_id, told.durable_end_offset)
        earlier = store.reader.tail_at(segment_id, batch.parse_header(headers[0]).end_offset)
        assert earlier is not None
        # It calls itself lossy, for readers have seen more; the record here does not (R111).
        result = await cluster.write_back(name, earlier.end_offset, earlier.digest, lossy=True)
        assert result.error.reason == "INVALID_REQUEST"
        assert cluster.replica(name).log.durable_tail.end_offset == told.durable_end_offset
        again = await cluster.fence(name)
        assert again.durable_end_offset == told.durable_end_offset

    run(scenario)


@pytest.mark.parametrize("comes", ["fence", "newer coordinator"])
def test_a_write_back_that_waits_for_its_donor_is_overtaken(comes: str) -> None:
    async def scenario(cluster: Cluster) -> None:
        name, tail = cluster.stranger, cluster.replica(cluster.leader).log.durable_tail
        cut(cluster.world, cluster.leader, [name])
        waiting = [
            asyncio.ensure_future(cluster.write_back(name, tail.end_offset, tail.digest))
            for _ in range(2)
        ]
        await asyncio.sleep(0.3)
        coordinator_epoch = cluster.coordinator_epoch + (comes != "fence")
        identity = cluster.node(name).context.identity
        identity.hear(coordinator_epoch, identity.metadata_revision)  # on its own stream (R110)
        assert not (await cluster.fence(name, coordinator_epoch=coordinator_epoch)).intact
        heal(cluster.world, cluster.leader, [name])
        assert [(await each).error.reason for each in waiting] == ["FENCED", "FENCED"]
        assert cluster.replica(name) is None

    run(scenario)


def test_two_equal_write_backs_make_one_copy_that_counts_when_it_is_whole() -> None:
    async def scenario(cluster: Cluster) -> None:
        name, tail = cluster.stranger, cluster.replica(cluster.leader).log.durable_tail
        results = await asyncio.gather(
            *(cluster.write_back(name, tail.end_offset, tail.digest) for _ in range(3))
        )
        assert [each.error.reason for each in results] == [""] * 3
        assert {each.seal_digest for each in results} == {tail.digest}
        assert (await cluster.fence(name)).durable_end_offset == tail.end_offset

    run(scenario)
