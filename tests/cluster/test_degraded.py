"""A leader left alone and a coordinator that has forgotten everything both go on by themselves."""

import asyncio
from pathlib import Path

from icecore import Admin
from icecore.dev import LocalCluster
from tests.cluster.raw import RawClient
from tests.cluster.traffic import create, merged, numbered, produce, read_all


async def test_leader_without_followers_goes_on_with_a_fresh_node(tmp_path: Path) -> None:
    settings = {"lease_ms": 3000}
    with LocalCluster(tmp_path, nodes=4, coordinator_settings=settings) as cluster:
        await create(cluster.bootstrap, "t", partitions=1)
        before = await produce(cluster.bootstrap, "t", numbered(0, 100))
        async with Admin(cluster.bootstrap) as admin:
            (described,) = await admin.describe_topics(["t"])
        tail = described.partitions[0].tail
        assert tail is not None
        followers = [each for each in tail.replicas if each != tail.leader]
        for node_id in followers:
            cluster.kill_node(node_id)
        after = await produce(cluster.bootstrap, "t", numbered(100, 100))  # waits until it can
        async with Admin(cluster.bootstrap) as admin:
            (described,) = await admin.describe_topics(["t"])
        tail = described.partitions[0].tail
        assert tail is not None
        assert len(tail.replicas) == 2 and not set(tail.replicas) & set(followers)
        assert await read_all(cluster.bootstrap, "t") == merged(before, after)


async def test_restarted_coordinator_hears_the_high_watermarks_again(
    healed_cluster: LocalCluster,
) -> None:
    cluster = healed_cluster
    await create(cluster.bootstrap, "t", partitions=1)
    await produce(cluster.bootstrap, "t", numbered(0, 100))
    cluster.kill_coordinator()
    cluster.start_coordinator()
    async with Admin(cluster.bootstrap) as admin:
        for _ in range(300):
            (described,) = await admin.describe_topics(["t"])
            if described.partitions[0].high_watermark == 100:
                break
            await asyncio.sleep(0.2)
        assert described.partitions[0].high_watermark == 100


async def test_a_node_that_is_not_heard_lets_nobody_wait_for_long(tmp_path: Path) -> None:
    """Its leadership may be another's by now, of which it would never tell who waits there."""
    lease_ms = 1_500
    with LocalCluster(tmp_path, nodes=1, coordinator_settings={"lease_ms": lease_ms}) as cluster:
        async with RawClient(cluster.bootstrap) as raw:
            await raw.create_topic("t", partitions=1, replication_factor=1)
            node = await raw.leader("t", 0)
            while True:
                poll = asyncio.ensure_future(raw.fetch(node, "t", 0, max_wait_ms=25_000))
                done, _ = await asyncio.wait([poll], timeout=lease_ms / 1000)
                if not done:
                    break
                assert poll.result().age_ms >= lease_ms / 2  # the machine was that busy
            cluster.coordinator.pause()
            try:
                answer = await asyncio.wait_for(poll, 15)  # it would last longer
                # The lease counts from the heartbeat, the age from its answer.
                assert answer.age_ms >= lease_ms / 2 and not answer.partitions[0].HasField("error")
            finally:
                cluster.coordinator.resume()
            async with asyncio.timeout(20):
                while (await raw.fetch(node, "t", 0)).age_ms:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)
