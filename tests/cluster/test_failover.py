"""A node is killed between writes and comes back: its copies do, too.

That nothing is lost, doubled or reordered under traffic is chaos's, ``test_chaos.py``.
"""

import asyncio

from icecore import Admin, Producer
from icecore.dev import LocalCluster
from tests.cluster.traffic import create, numbered


async def test_copies_are_restored_without_help(healed_cluster: LocalCluster) -> None:
    cluster, topic = healed_cluster, "t"
    await create(cluster.bootstrap, topic, partitions=4, segment_bytes=64 << 10)
    async with Producer(cluster.bootstrap) as producer, Admin(cluster.bootstrap) as admin:
        for value in numbered(0, 2000):
            await producer.send_wait(topic, value, key=value)
        await producer.flush()
        cluster.kill_node(2)
        for value in numbered(2000, 2000):
            await producer.send_wait(topic, value, key=value)
        await producer.flush()
        cluster.start_node(2)
        for _ in range(300):
            described = await admin.describe_cluster()
            if not described.under_replicated:
                break
            await asyncio.sleep(0.2)
        assert (described.under_replicated, described.min_copies) == (0, 3)
