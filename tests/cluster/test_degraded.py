"""What goes on by itself: a leader left alone, a coordinator that has forgotten everything."""

import asyncio
from pathlib import Path

from icecore import Admin
from icecore.dev import LocalCluster
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
    own_cluster: LocalCluster,
) -> None:
    cluster = own_cluster
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
