"""Topics of every storage engine in real processes: what is read back after one node died, or all.

What the memory of a process held goes with it, and is never taken for an empty log.
"""

import asyncio

import pytest

from icecore.client import Admin
from icecore.dev import LocalCluster
from icecore.errors import IcecoreError
from icecore.model import MEMORY_ENGINE, ROCKSDB_ENGINE, SegmentState
from tests.cluster.test_restart import kill_everything
from tests.cluster.traffic import create, merged, numbered, produce, read_all

ENGINES = [ROCKSDB_ENGINE, MEMORY_ENGINE]


@pytest.mark.parametrize("engine", ENGINES)
async def test_a_node_that_is_killed_costs_nothing(own_cluster: LocalCluster, engine: str) -> None:
    cluster, topic = own_cluster, "t"
    await create(cluster.bootstrap, topic, partitions=4, engine=engine, segment_bytes=256 << 10)
    log = await produce(cluster.bootstrap, topic, numbered(0, 2000, 500))
    for node_id in (1, 2):
        cluster.kill_node(node_id)
        log = merged(log, await produce(cluster.bootstrap, topic, numbered(2000 * node_id, 500)))
        assert await read_all(cluster.bootstrap, topic) == log
        cluster.start_node(node_id)
        async with Admin(cluster.bootstrap) as admin:
            await _all_copies(admin, topic)
    assert await read_all(cluster.bootstrap, topic) == log


async def test_a_database_keeps_everything_when_all_processes_die(
    own_cluster: LocalCluster,
) -> None:
    cluster, topic = own_cluster, "t"
    await create(
        cluster.bootstrap, topic, partitions=4, engine=ROCKSDB_ENGINE, segment_bytes=256 << 10
    )
    log = await produce(cluster.bootstrap, topic, numbered(0, 3000, 500))
    for turn in range(2):
        kill_everything(cluster)
        cluster.start()
        assert await read_all(cluster.bootstrap, topic) == log
        log = merged(
            log, await produce(cluster.bootstrap, topic, numbered(10_000 * (turn + 1), 50))
        )
    for node in cluster.folder.glob("node-*"):
        assert (node / "rocksdb" / "CURRENT").exists(), node


async def test_memory_that_all_processes_have_lost_is_told_and_never_empty(
    own_cluster: LocalCluster,
) -> None:
    """Records that were acknowledged are gone: nobody is shown a log in which they never were."""
    cluster, topic = own_cluster, "t"
    await create(
        cluster.bootstrap,
        topic,
        partitions=1,
        engine=MEMORY_ENGINE,
        on_total_loss="unavailable",
    )
    await produce(cluster.bootstrap, topic, numbered(0, 200))
    kill_everything(cluster)
    cluster.start()
    async with Admin(cluster.bootstrap) as admin:
        [segment] = await admin.list_segments(topic)
        assert segment.state is not SegmentState.SEALED
        async with asyncio.timeout(60):
            while True:  # until all nodes have told what they lost
                try:
                    left = await admin.recover_unclean(topic, 0, segment.segment_id)
                    break
                except IcecoreError:
                    await asyncio.sleep(0.2)
        assert left is None, "nothing is left of it"
    log = await produce(cluster.bootstrap, topic, numbered(200, 10))
    assert await read_all(cluster.bootstrap, topic) == log


async def test_a_second_copy_in_memory_that_nobody_waits_for(own_cluster: LocalCluster) -> None:
    """RF 2 with acks of the leader: the copy of a slave that follows, as other systems have it."""
    cluster, topic = own_cluster, "t"
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
    """Wait until every sealed segment has all of its copies."""
    async with asyncio.timeout(60):
        while True:
            segments = await admin.list_segments(topic)
            if all(len(each.replicas) >= 3 for each in segments if each.end_offset >= 0):
                return
            await asyncio.sleep(0.1)
