"""Topics in a database and in memory: what is read back after a node died.

What is left after the death of all nodes is in ``test_restart.py``.
"""

import asyncio

from icecore.client import Admin
from icecore.dev import LocalCluster
from icecore.model import SegmentState
from icecore.topic_settings import MEMORY_ENGINE, ROCKSDB_ENGINE
from tests.cluster.traffic import Log, create, merged, numbered, produce, read_all

ENGINES = (ROCKSDB_ENGINE, MEMORY_ENGINE)


async def test_a_node_that_is_killed_costs_nothing(healed_cluster: LocalCluster) -> None:
    """Two of them one after the other; a topic of each engine, named like it."""
    cluster = healed_cluster
    logs: dict[str, Log] = {}
    for engine in ENGINES:
        await create(
            cluster.bootstrap, engine, partitions=4, engine=engine, segment_bytes=256 << 10
        )
        logs[engine] = await produce(cluster.bootstrap, engine, numbered(0, 2000, 500))
    for node_id in (1, 2):
        cluster.kill_node(node_id)
        for topic, log in logs.items():
            more = await produce(cluster.bootstrap, topic, numbered(2000 * node_id, 500))
            logs[topic] = merged(log, more)
            assert await read_all(cluster.bootstrap, topic) == logs[topic]
        cluster.start_node(node_id)
        async with Admin(cluster.bootstrap) as admin:
            for topic in ENGINES:
                await _all_copies(admin, topic)
    for topic, log in logs.items():
        assert await read_all(cluster.bootstrap, topic) == log


async def test_a_second_copy_in_memory_that_nobody_waits_for(
    healed_cluster: LocalCluster,
) -> None:
    """RF 2 with acks of the leader: the copy of a slave that follows, as other systems have it."""
    cluster, topic = healed_cluster, "t"
    await create(cluster.bootstrap, topic, partitions=1, replication_factor=2, engine=MEMORY_ENGINE)
    log = await produce(cluster.bootstrap, topic, numbered(0, 500), acks="leader")
    async with Admin(cluster.bootstrap) as admin:
        [segment] = await admin.list_segments(topic)
    async with asyncio.timeout(30):
        while True:  # until it is visible: the copy has it
            if await read_all(cluster.bootstrap, topic) == log:
                break
            await asyncio.sleep(0.05)
    cluster.kill_node(segment.leader)
    assert await read_all(cluster.bootstrap, topic) == log


async def _all_copies(admin: Admin, topic: str) -> None:
    """Wait until every segment has all of its copies, and each copy that grows is in sync.

    A copy in memory is lost with its node: the next death before that is one too many.
    """
    async with asyncio.timeout(60):
        while True:
            segments = await admin.list_segments(topic)
            if all(
                len(each.replicas if each.state is SegmentState.SEALED else each.isr) >= 3
                for each in segments
            ):
                return
            await asyncio.sleep(0.1)
