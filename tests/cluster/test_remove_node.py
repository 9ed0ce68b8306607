"""Nodes leave the cluster for good, and forged registrations do not keep true nodes out."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from icecore import Admin
from icecore.dev import LocalCluster
from icecore.errors import InvalidRequestError
from icecore.model import NodeState
from icecore.rpc.grpc_net import GrpcNet
from tests.cluster.traffic import create, merged, numbered, produce, read_all
from tests.stranger import Stranger
from tests.support.clusters import LEASE_MS, running

NODES_MAX = 1_000
RECORDS = 200
QUICK = {"lease_ms": LEASE_MS, "lost_replica_grace_ms": 500, "timing": {"return_wait_ms": 500}}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with running(LocalCluster(tmp_path / "cluster", 4, coordinator_settings=QUICK)) as cluster:
        yield cluster


@pytest.fixture
async def net() -> AsyncIterator[GrpcNet]:
    net = GrpcNet()
    yield net
    await net.close()


async def test_a_thousand_forged_registrations_keep_no_true_node_out(
    cluster: LocalCluster, net: GrpcNet
) -> None:
    await create(cluster.bootstrap, "flights", partitions=1)
    stranger = Stranger(net, cluster.bootstrap)
    known = await stranger.look("flights")
    for number in range(NODES_MAX):
        _, error = await stranger.register(known, NODES_MAX + number)
        assert error is None
    await a_new_node_joins(cluster)
    async with Admin(cluster.bootstrap) as admin:
        found = await admin.describe_cluster()
    assert [each.node.node_id for each in found.nodes] == [1, 2, 3, 4, 5]
    assert {each.name: each.used for each in found.limits}["nodes"] == 5


async def a_new_node_joins(cluster: LocalCluster) -> None:
    """Node 5 comes with an empty folder, and is up within seconds."""
    template = cluster.node(1)
    arguments = [each.replace("node-1", "node-5") for each in template.arguments]
    extra = [*template.extra, "--node-id", "5", "--coordinator", cluster.bootstrap]
    log = (cluster.folder / "logs" / "node-5.log").open("ab")
    process = await asyncio.create_subprocess_exec(
        *arguments, *extra, "--listen", "127.0.0.1:0", stdout=log, stderr=log
    )
    try:
        async with Admin(cluster.bootstrap) as admin, asyncio.timeout(60):
            while NodeState.UP not in {
                each.node.state
                for each in (await admin.describe_cluster()).nodes
                if each.node.node_id == 5
            }:
                assert process.returncode is None, log.name
                await asyncio.sleep(0.1)
    finally:
        process.kill()
        await process.wait()
        log.close()


async def test_a_dead_node_is_forgotten_and_its_disk_is_a_new_one(cluster: LocalCluster) -> None:
    bootstrap = cluster.bootstrap
    await until_up(bootstrap, 4)  # else it may get no copy
    await create(bootstrap, "flights", partitions=4)
    log = await produce(bootstrap, "flights", numbered(0, RECORDS))
    async with Admin(bootstrap) as admin:
        await admin.roll_topic("flights")
        log = merged(log, await produce(bootstrap, "flights", numbered(1_000, RECORDS)))
        await until_whole(admin)  # a copy that came late would not be given up
        before = {each.node.node_id: each.node for each in (await admin.describe_cluster()).nodes}
        with pytest.raises(InvalidRequestError, match="node 4 is UP"):
            await admin.remove_node(4)
        cluster.kill_node(4)
        assert "icecore node remove 4 --disk-gone" in await refusal(
            admin, "segments may have bytes there"
        )
        assert await admin.remove_node(4, disk_gone=True) > 0
        with pytest.raises(InvalidRequestError, match="there is no node 4"):
            await admin.remove_node(4)
        await until_whole(admin)
        assert [each.node.node_id for each in (await admin.describe_cluster()).nodes] == [1, 2, 3]
    cluster.kill_coordinator()
    cluster.start_coordinator()
    assert await read_all(bootstrap, "flights") == log
    cluster.start_node(4)
    assert "event=disk_condemned" in cluster.node(4).log_tail(1_000)
    async with Admin(bootstrap) as admin:
        nodes = {each.node.node_id: each.node for each in (await admin.describe_cluster()).nodes}
        assert nodes[4].incarnation > before[4].incarnation
        log = merged(log, await produce(bootstrap, "flights", numbered(2_000, RECORDS)))
        await until_whole(admin)
    assert await read_all(bootstrap, "flights") == log


async def refusal(admin: Admin, wanted: str) -> str:
    """Return the refusal to forget node 4, once its tails have rolled away."""
    async with asyncio.timeout(60):
        while True:
            with pytest.raises(InvalidRequestError) as error:
                await admin.remove_node(4)
            if wanted in error.value.message:
                return error.value.message
            assert any(
                each in error.value.message for each in ("node 4 is", "not sealed", "object")
            )
            await asyncio.sleep(0.2)


async def until_up(bootstrap: str, count: int) -> None:
    async with Admin(bootstrap) as admin, asyncio.timeout(60):
        while (  # noqa: ASYNC110 - others decide
            sum(each.node.state is NodeState.UP for each in (await admin.describe_cluster()).nodes)
            < count
        ):
            await asyncio.sleep(0.1)


async def until_whole(admin: Admin) -> None:
    async with asyncio.timeout(60):
        while (await admin.describe_cluster()).under_replicated:  # noqa: ASYNC110 - others decide
            await asyncio.sleep(0.2)
