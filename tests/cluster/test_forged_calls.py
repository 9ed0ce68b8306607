"""Forged calls to real processes: what was acked stays readable, and every partition goes on.

The stranger knows what anybody may ask for: cluster id, coordinator epoch, epochs, incarnations,
versions. One message or a few must not cost a record, nor a partition its service.
"""

import asyncio
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from icecore import Admin
from icecore.dev import LocalCluster
from icecore.errors import IcecoreError
from icecore.model import NodeState, SegmentState
from icecore.rpc.grpc_net import GrpcNet
from icecore.v1 import coordinator_pb2 as pb
from tests.cluster.traffic import Log, create, merged, numbered, produce, read_all
from tests.stranger import FORGED, NOBODY, Known, Stranger
from tests.support.clusters import NODES, kill_together, running
from tests.support.waiting import until

RECORDS = 150
ABSURD = (1 << 63) - 1
DOWN = {NodeState.DOWN}


@dataclass
class Scene:
    """A topic with acked records, and somebody who wants to destroy them."""

    cluster: LocalCluster
    stranger: Stranger
    topic: str
    log: Log

    async def look(self) -> Known:
        return await self.stranger.look(self.topic)

    async def is_alive(self) -> None:
        """New records are acked, and everything is read."""
        bootstrap = self.cluster.bootstrap
        async with asyncio.timeout(60):
            more = await produce(bootstrap, self.topic, numbered(90_000, 20))
            self.log = merged(self.log, more)
            assert await read_all(bootstrap, self.topic) == self.log

    async def roll(self) -> None:
        """Seal the tail as an admin would, and wait for its successor."""
        async with Admin(self.cluster.bootstrap) as admin, asyncio.timeout(60):
            before = (await self.look()).segment.segment_id
            await admin.roll_topic(self.topic)
            while (await self.look()).segment.segment_id == before:  # noqa: ASYNC110 - others decide
                await asyncio.sleep(0.1)

    async def alerts(self) -> list[str]:
        async with Admin(self.cluster.bootstrap) as admin:
            return [each.why for each in (await admin.describe_cluster()).alerts]


async def make_scene(cluster: LocalCluster, net: GrpcNet, topic: str, **settings: int) -> Scene:
    await create(cluster.bootstrap, topic, partitions=1, **settings)
    log = await produce(cluster.bootstrap, topic, numbered(0, RECORDS), batch_bytes=1 << 10)
    return Scene(cluster, Stranger(net, cluster.bootstrap), topic, log)


@pytest.fixture
async def scene(
    shared_cluster: LocalCluster, request: pytest.FixtureRequest
) -> AsyncIterator[Scene]:
    net = GrpcNet()
    try:
        topic = request.node.name.replace("test_", "forged-")
        yield await make_scene(shared_cluster, net, topic)
    finally:
        await net.close()


async def test_seal(scene: Scene) -> None:
    known = await scene.look()
    assert await scene.stranger.seal(known, 1)
    assert await scene.stranger.seal(known, RECORDS)  # the true end, but nobody is sealing
    await scene.is_alive()
    await scene.roll()
    await scene.is_alive()


async def test_seal_of_a_single_copy(shared_cluster: LocalCluster) -> None:
    net = GrpcNet()
    try:
        scene = await make_scene(shared_cluster, net, "forged-single", replication_factor=1)
        assert await scene.stranger.seal(await scene.look(), 1)
        await scene.is_alive()
    finally:
        await net.close()


async def test_digests(tmp_path: Path) -> None:
    """The stranger is first: nodes wait for some seconds of calm before they tell theirs."""
    calm = {"timing": {"digest_calm_ms": 5_000}}
    net = GrpcNet()
    try:
        with running(LocalCluster(tmp_path / "cluster", NODES, node_settings=calm)) as cluster:
            scene = await make_scene(cluster, net, "forged-digests")
            segment = (await scene.look()).segment
            await scene.roll()
            known = await scene.look()
            for node_id in segment.replicas:  # two agree: what is set now is wrong for ever
                await scene.stranger.report_digests(known, segment.segment_id, node_id)
            async with asyncio.timeout(60):
                while "differs" not in str(await scene.alerts()):  # noqa: ASYNC110 - others decide
                    await asyncio.sleep(0.2)
            await scene.is_alive()
            async with Admin(cluster.bootstrap) as admin:
                assert len((await admin.list_segments(scene.topic))[0].replicas) == 3
    finally:
        await net.close()


async def test_write_back_of_a_sealed_segment(scene: Scene) -> None:
    await scene.roll()
    known = await scene.look()
    [sealed] = known.sealed
    other = known.nodes[1].address
    for node in known.nodes.values():
        for end_offset, digest in ((1, FORGED), (RECORDS, FORGED), (1, b"")):
            claim = pb.SegmentAssignment()
            claim.CopyFrom(sealed)
            claim.end_offset, claim.seal_digest = end_offset, digest
            assert (
                await scene.stranger.write_back(
                    known,
                    node.address,
                    claim,
                    end_offset=end_offset,
                    seal_digest=digest,
                    donor_address=other,
                    seal=True,
                )
                == "INVALID_REQUEST"
            )
    await scene.is_alive()


async def test_write_back_of_an_active_segment(scene: Scene) -> None:
    known = await scene.look()
    end_offset, digest = await scene.stranger.first_batch(known, known.leader.address)
    claim = pb.SegmentAssignment()
    claim.CopyFrom(known.segment)
    claim.state = SegmentState.RECOVERING  # type: ignore[assignment]
    for node in known.replicas:
        await scene.stranger.fence(known, node.address, epoch=known.segment.epoch + 1)
        refused = await scene.stranger.write_back(
            known,
            node.address,
            claim,
            end_offset=end_offset,
            seal_digest=digest,
            donor_address=known.leader.address,
        )
        assert refused == "INVALID_REQUEST"
    await scene.is_alive()
    for node in known.replicas:  # once more, of the next segment, and without a fence
        again = await scene.look()
        claim.CopyFrom(again.segment)
        await scene.stranger.write_back(
            again,
            node.address,
            claim,
            end_offset=ABSURD,
            seal_digest=FORGED,
            donor_address=again.leader.address,
        )
    await scene.is_alive()


async def test_write_back_from_anywhere(scene: Scene) -> None:
    known = await scene.look()
    claim = pb.SegmentAssignment(segment_id=ABSURD, topic_id=b"t" * 16, state=4)  # type: ignore[arg-type]
    refused = await scene.stranger.write_back(
        known, known.leader.address, claim, end_offset=1, donor_address=NOBODY
    )
    assert refused == "INVALID_REQUEST"


async def test_absurd_numbers(scene: Scene) -> None:
    known = await scene.look()
    for node in known.nodes.values():
        for epoch in (None, known.segment.epoch + 1):
            assert await scene.stranger.fence(
                known, node.address, coordinator_epoch=ABSURD, epoch=epoch
            )
        await scene.stranger.fence(known, node.address, epoch=1 << 62)
        fence = pb.ProducerFence(producer_id=1, min_epoch=(1 << 32) - 1)
        request = pb.FenceProducersRequest(
            cluster_id=known.cluster_id, coordinator_epoch=known.coordinator_epoch, fences=[fence]
        )
        assert await scene.stranger.say(node.address, "NodeService/FenceProducers", request)
        nowhere = pb.FenceRequest(coordinator_epoch=known.coordinator_epoch)
        assert await scene.stranger.say(node.address, "NodeService/Fence", nowhere)
        many = pb.OpenRequest(
            cluster_id=known.cluster_id,
            coordinator_epoch=known.coordinator_epoch,
            segments=[pb.OpenSegment()] * 5_000,
        )
        assert await scene.stranger.say(node.address, "NodeService/Open", many)
    await scene.is_alive()


async def test_promises_that_nobody_recovers_from(scene: Scene) -> None:
    known = await scene.look()
    for ahead in (1, 1_000, 1 << 20):  # of the leader, of a follower, and far ahead of both
        known = await scene.look()
        for node in known.replicas:
            await scene.stranger.fence(known, node.address, epoch=known.segment.epoch + ahead)
        await scene.is_alive()


async def test_heartbeats_of_a_follower_that_is_none(scene: Scene) -> None:
    known = await scene.look()
    segment = known.segment
    for node in known.replicas:
        if node.node_id != segment.leader:
            high = pb.LedHighWatermark(segment_id=segment.segment_id, high_watermark=ABSURD)
            await scene.stranger.heartbeat(
                known, node.node_id, node.incarnation, led=[high], draining=True
            )
    await scene.roll()  # the watermark that it told would forbid every end
    await scene.is_alive()


async def test_a_flood_of_one_kind_of_alert_pushes_out_no_other(own_cluster: LocalCluster) -> None:
    """Nodes that nobody knows say that they hold segments which were never given out."""
    net = GrpcNet()
    try:
        scene = await make_scene(own_cluster, net, "flood")
        known = await scene.look()
        for node in known.replicas:
            assert not await scene.stranger.heartbeat(known, node.node_id, node.incarnation)
        told = await scene.alerts()
        assert len(told) == NODES
        for number in range(150):
            held = [pb.SegmentInventory(segment_id=10**6 + number, intact=True)]
            incarnation, _ = await scene.stranger.register(
                known, 1_000 + number, segments=held, protocol_version=4
            )
            await scene.stranger.heartbeat(known, 1_000 + number, incarnation, disk_id=b"another")
        found = await scene.alerts()
        assert set(told) <= set(found)
        assert any("130 more alerts of segments that this metadata store" in each for each in found)
        assert sum("nodes that are not in the cluster" in each for each in found) == 1
        await scene.is_alive()
    finally:
        await net.close()


async def test_heartbeats_in_the_names_of_all_nodes(own_cluster: LocalCluster) -> None:
    """Each number here is kept: it would forbid every end of the tail, condemn all logs and disks
    at the next start, or ask for more room than there is."""
    net = GrpcNet()
    try:
        scene = await make_scene(own_cluster, net, "beats", on_full="delete_oldest")
        for _ in range(3):
            await scene.roll()
            await scene.is_alive()
        known = await scene.look()
        segment_id, far = known.segment.segment_id, 10**9
        end = pb.DurableEnd(segment_id=segment_id, durable_end_offset=far)
        high = pb.LedHighWatermark(segment_id=segment_id, high_watermark=far)
        for disk_id in (b"", FORGED[:16]):
            for _ in range(10):
                for node in known.replicas:
                    assert not await scene.stranger.heartbeat(
                        known,
                        node.node_id,
                        node.incarnation,
                        disk_id=disk_id,
                        led=[high],
                        durable_ends=[end],
                        disk_counter=1_000,
                        disk_used_bytes=1 << 50,
                        reclaim_bytes=1 << 50,
                    )
        await scene.roll()
        await scene.is_alive()
        kill_together(own_cluster, known.nodes)
        for node_id in known.nodes:
            own_cluster.start_node(node_id)
        await scene.is_alive()
        alerts = await scene.alerts()
        assert len(alerts) == NODES and all("do not come from its disk" in each for each in alerts)
    finally:
        await net.close()


async def test_open_of_segments_that_nobody_asked_for(scene: Scene) -> None:
    known = await scene.look()
    items = [
        pb.OpenSegment(
            segment=pb.SegmentAssignment(
                segment_id=1_000_000 + number,
                topic_id=b"../../../../../t",
                topic="../../..",
                state=SegmentState.PREPARED,  # type: ignore[arg-type]
            )
        )
        for number in range(20)
    ]
    request = pb.OpenRequest(
        cluster_id=known.cluster_id, coordinator_epoch=known.coordinator_epoch, segments=items
    )
    before = set(scene.cluster.folder.parent.glob("*"))
    await scene.stranger.say(known.leader.address, "NodeService/Open", request)
    assert set(scene.cluster.folder.parent.glob("*")) == before
    await scene.is_alive()


async def test_nonsense_of_nodes(scene: Scene) -> None:
    known = await scene.look()
    for address in ("127.0.0.1:9\nevent=forged", "h" * 100_000, "nowhere"):
        assert (await scene.stranger.register(known, 100, address))[1] is not None
    await scene.is_alive()


async def until_whole(cluster: LocalCluster, topic: str) -> None:
    """Every segment has three copies, and all of an active one are in sync."""

    async with Admin(cluster.bootstrap) as admin, asyncio.timeout(60):
        while True:
            found = await admin.list_segments(topic)
            copies = [each.replicas if each.end_offset >= 0 else each.isr for each in found]
            if all(len(each) == 3 for each in copies):
                return
            await asyncio.sleep(0.2)


async def test_another_disk_while_the_nodes_are_down(own_cluster: LocalCluster) -> None:
    cluster, net = own_cluster, GrpcNet()
    try:
        scene = await make_scene(cluster, net, "disks")
        await scene.roll()
        scene.log = merged(
            scene.log, await produce(cluster.bootstrap, "disks", numbered(500, RECORDS))
        )
        await until_whole(cluster, "disks")  # a copy that came late would not be missed
        known = await scene.look()
        kill_together(cluster, known.nodes)
        async with Admin(cluster.bootstrap) as admin, asyncio.timeout(60):
            while {  # noqa: ASYNC110 - others decide
                each.node.state for each in (await admin.describe_cluster()).nodes
            } != DOWN:
                await asyncio.sleep(0.1)
        refusals = []
        for node_id in known.nodes:
            incarnation, error = await scene.stranger.register(known, node_id)
            refusals.append(error)
            if error is None:
                await scene.stranger.heartbeat(known, node_id, incarnation)
        assert sum(error is not None for error in refusals) >= 2
        assert f"accept-disk --node-id {max(known.nodes)}" in str(refusals[-1])
        for node_id in known.nodes:
            cluster.start_node(node_id)
        await scene.is_alive()
    finally:
        await net.close()


async def test_a_disk_with_last_copies_is_given_up_by_a_person(own_cluster: LocalCluster) -> None:
    cluster = own_cluster
    await create(cluster.bootstrap, "single", partitions=3, replication_factor=1)
    await produce(cluster.bootstrap, "single", numbered(0, RECORDS))
    cluster.kill_node(1)
    folder = cluster.folder / "node-1"
    folder.rename(folder.with_name("unplugged"))
    with pytest.raises(IcecoreError, match="accept-disk --node-id 1"):
        cluster.start_node(1)
    async with Admin(cluster.bootstrap) as admin, asyncio.timeout(60):
        assert await admin.accept_disk(1) == 1
        cluster.start_node(1)
        assert len((await admin.describe_cluster()).nodes) == 3


@pytest.mark.parametrize("is_same_cluster", [False, True])
async def test_a_stranger_suspends_an_empty_coordinator_and_a_person_goes_on(
    tmp_path: Path, is_same_cluster: bool
) -> None:
    """It can't be told from the first node of the cluster whose store is lost. With the word of a
    person nobody is believed who claims that."""
    net = GrpcNet()
    try:
        with running(LocalCluster(tmp_path / "cluster", NODES)) as cluster:
            kill_together(cluster, range(1, NODES + 1))
            cluster.kill_coordinator()
            for folder in ("coordinator", *(f"node-{each}" for each in range(1, NODES + 1))):
                shutil.rmtree(cluster.folder / folder)
            await asyncio.to_thread(cluster.start_coordinator)
            stranger = Stranger(net, cluster.bootstrap)
            async with Admin(cluster.bootstrap) as admin:
                ours = (await admin.describe_cluster()).cluster_id
            known = Known(ours if is_same_cluster else b"x" * 16, 1, pb.SegmentAssignment(), [], {})

            async def claim() -> str:
                if is_same_cluster:  # it joins, and then says that it heard of more
                    incarnation, _ = await stranger.register(known, 9, protocol_version=4)
                    await stranger.heartbeat(known, 9, incarnation, disk_id=FORGED[:16])
                claimed = {"protocol_version": 4, "metadata_revision": 1 << 30}
                _, error = await stranger.register(known, 9, **claimed)
                return str(error)

            assert "icecore cluster adopt" in await claim()
            await until(lambda: "metadata_suspended" in cluster.coordinator.log_tail(100), 30)
            cluster.kill_coordinator()
            cluster.coordinator.extra.append("--new-cluster")
            await asyncio.to_thread(cluster.start_coordinator)
            assert await claim() != "None", "it is refused"
            for node_id in range(1, NODES + 1):
                await asyncio.to_thread(cluster.start_node, node_id)
            await create(cluster.bootstrap, "t", partitions=1)
            acked = await produce(cluster.bootstrap, "t", numbered(0, RECORDS))
            await claim()
            assert await read_all(cluster.bootstrap, "t") == acked
    finally:
        await net.close()
