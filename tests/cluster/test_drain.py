"""A node is emptied while producers write, and leaves with nothing of the only copies on it."""

import asyncio
import json
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from icecore import Admin
from icecore.client.cluster_types import NodeDescription
from icecore.dev import LocalCluster
from icecore.model import NodeState
from tests.cluster.test_adopt import icecore
from tests.cluster.traffic import create, merged, numbered, produce, read_all
from tests.support.clusters import LEASE_MS, running


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    settings = {"lease_ms": LEASE_MS}
    with running(LocalCluster(tmp_path / "cluster", 4, coordinator_settings=settings)) as cluster:
        yield cluster


async def test_an_empty_node_is_missed_by_nobody(cluster: LocalCluster) -> None:
    """It leads, follows and stores when it is drained; later its disk is thrown away."""
    for topic in ("flights", "trains"):
        await create(cluster.bootstrap, topic, partitions=4, segment_bytes=64 << 10)
    log = await produce(cluster.bootstrap, "flights", numbered(0, 3_000, 300))
    assert "there is no node 9" in await icecore(cluster, "node", "drain", "9", status=1)

    later = numbered(3_000, 2_000, 300)
    writing = asyncio.create_task(produce(cluster.bootstrap, "flights", later))
    said = await icecore(cluster, "node", "drain", "1", "--wait", "80")
    assert "node 1 is empty: stop it, then icecore node remove 1" in said
    log = merged(log, await writing)
    async with Admin(cluster.bootstrap) as admin:
        assert (await node(admin, 1)).is_drained
        for topic in ("flights", "trains"):
            for each in await admin.list_segments(topic):
                assert 1 not in each.replicas
                assert len(each.replicas) == 3

        cluster.kill_node(1)
        shutil.rmtree(cluster.folder / "node-1")
        await until_state(admin, 1, NodeState.DOWN)
        await icecore(cluster, "cluster", "health", "--wait", "60")
        await icecore(cluster, "node", "remove", "1", "--yes")
        assert [each.node.node_id for each in (await admin.describe_cluster()).nodes] == [2, 3, 4]
    log = merged(log, await produce(cluster.bootstrap, "flights", numbered(5_000, 500)))
    assert await read_all(cluster.bootstrap, "flights") == log


async def test_a_drained_node_stays_so_until_that_is_taken_back(cluster: LocalCluster) -> None:
    await create(cluster.bootstrap, "t", partitions=2, replication_factor=2)
    await icecore(cluster, "node", "drain", "2")
    cluster.kill_coordinator()
    cluster.kill_node(2)
    cluster.start_coordinator()
    cluster.start_node(2)
    async with Admin(cluster.bootstrap) as admin:
        await until_state(admin, 2, NodeState.UP)
        assert (await node(admin, 2)).is_drained
        await create(cluster.bootstrap, "u", partitions=6)
        assert all(2 not in each.replicas for each in await admin.list_segments("u"))
        too_few = await icecore(cluster, "node", "drain", "3", status=1)
        assert "topics with 3 copies: add a node first" in too_few
        await icecore(cluster, "node", "undrain", "2")
        assert not (await node(admin, 2)).is_drained
        await create(cluster.bootstrap, "v", partitions=6)
        assert any(2 in each.replicas for each in await admin.list_segments("v"))
    assert '"drained": false' in await icecore(cluster, "--json", "node", "list")


async def test_a_node_gets_its_share_when_somebody_asks_for_it(cluster: LocalCluster) -> None:
    """By itself it would, too, after a minute; and wherever there is enough traffic."""
    await create(cluster.bootstrap, "t", partitions=12)
    log = await produce(cluster.bootstrap, "t", numbered(0, 600))
    await icecore(cluster, "node", "drain", "2", "--wait", "60")
    log = merged(log, await produce(cluster.bootstrap, "t", numbered(600, 600)))
    await icecore(cluster, "node", "undrain", "2")
    async with Admin(cluster.bootstrap) as admin:
        planned = await admin.balance_cluster(dry_run=True)
        assert {each.next_leader for each in planned} >= {2}
        assert all(2 not in each.replicas for each in planned)
        said = json.loads(await icecore(cluster, "cluster", "balance", "--dry-run"))
        assert len(said["items"]) == len(planned)
        assert not (await node(admin, 2)).replicas
        await icecore(cluster, "cluster", "balance")
        log = merged(log, await produce(cluster.bootstrap, "t", numbered(1_200, 600)))
        async with asyncio.timeout(60):
            while await admin.balance_cluster(dry_run=True):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        (topic,) = await admin.describe_topics(["t"])
    tails = [each.tail for each in topic.partitions if each.tail is not None]
    for counted in (
        Counter(each.leader for each in tails),
        Counter(node_id for each in tails for node_id in each.replicas),
    ):
        assert max(counted.values()) <= min(counted[each] for each in (1, 2, 3, 4)) + 2
    assert json.loads(await icecore(cluster, "cluster", "balance"))["items"] == []
    log = merged(log, await produce(cluster.bootstrap, "t", numbered(1_800, 100)))
    assert await read_all(cluster.bootstrap, "t") == log


async def node(admin: Admin, node_id: int) -> NodeDescription:
    nodes = (await admin.describe_cluster()).nodes
    return next(each for each in nodes if each.node.node_id == node_id)


async def until_state(admin: Admin, node_id: int, state: NodeState) -> None:
    async with asyncio.timeout(60):
        while True:
            if (await node(admin, node_id)).node.state is state:
                return
            await asyncio.sleep(0.1)
