"""A node with two disks loses one, while it runs or while it is stopped: the other one goes on."""

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from icecore import Admin
from icecore.client.cluster_types import DiskUsage
from icecore.dev import LocalCluster
from icecore.errors import UnavailableError
from tests.cluster import failing_syncs
from tests.cluster.test_damage import verified, wait_until, wait_whole
from tests.cluster.traffic import Log, create, merged, numbered, produce, read_all

TOPIC = "t"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """Three nodes; the first has a second disk, whose syncs can be made to fail."""
    cluster = LocalCluster(
        tmp_path / "cluster",
        nodes=3,
        node_settings={"preallocate_bytes": 64 << 10},
        coordinator_settings={"lease_ms": 3000},
    )
    node, other = cluster.node(1), disk(cluster)
    python, isolated, *program = node.arguments
    node.arguments = [python, isolated, failing_syncs.__file__, str(other), *program]
    node.extra += ["--data-dirs", str(other)]
    with cluster:
        yield cluster


def disk(cluster: LocalCluster) -> Path:
    return cluster.folder / "node-1-other"


def logs_in(folder: Path) -> list[Path]:
    return sorted(folder.glob("segments/*/*/*.log"))


async def filled(cluster: LocalCluster) -> Log:
    """Six partitions with sealed segments, on both disks."""
    await create(cluster.bootstrap, TOPIC, partitions=6, segment_bytes=64 << 10)
    log = await produce(cluster.bootstrap, TOPIC, numbered(0, 6000), batch_bytes=4 << 10)
    assert logs_in(disk(cluster)) and logs_in(cluster.folder / "node-1")
    return log


async def disks_of(cluster: LocalCluster) -> list[DiskUsage]:
    async with Admin(cluster.bootstrap) as admin:
        nodes = (await admin.describe_cluster()).nodes
    return list(next(each for each in nodes if each.node.node_id == 1).disks)


async def disks_told_bad(cluster: LocalCluster) -> list[DiskUsage]:
    """Wait for the heartbeat that tells a problem of a disk: copies elsewhere may come earlier."""
    async with asyncio.timeout(30.0):
        found = await disks_of(cluster)
        while not any(each.problem for each in found):
            await asyncio.sleep(0.1)
            found = await disks_of(cluster)
    return found


async def test_a_disk_fails_while_its_node_runs(cluster: LocalCluster) -> None:
    log = await filled(cluster)
    pid = cluster.node(1).pid
    (disk(cluster) / "fail").touch()
    more = await produce(cluster.bootstrap, TOPIC, numbered(10_000, 3000), batch_bytes=4 << 10)
    whole = merged(log, more)
    assert cluster.dead() == [] and cluster.node(1).pid == pid
    assert "event=disk_lost" in cluster.node(1).log_path.read_text()
    assert await read_all(cluster.bootstrap, TOPIC) == whole
    await wait_whole(cluster)
    first, second = await disks_told_bad(cluster)
    assert first.problem == "" and first.free_bytes > 0
    assert second.path == str(disk(cluster)) and "a sync had failed" in second.problem
    cluster.stop_node(1)
    shutil.rmtree(disk(cluster))
    cluster.start_node(1)
    assert await read_all(cluster.bootstrap, TOPIC) == whole
    await verified(cluster)


async def test_a_disk_is_gone_when_its_node_starts(cluster: LocalCluster) -> None:
    log = await filled(cluster)
    cluster.stop_node(1)
    there = len(logs_in(disk(cluster)))
    disk(cluster).rename(cluster.folder / "away")
    named = cluster.node(1).extra
    cluster.node(1).extra = named[:-2]
    with pytest.raises(UnavailableError, match=f"which has {there} replicas"):
        cluster.start_node(1)
    cluster.node(1).extra = named
    cluster.start_node(1)
    assert "event=disk_left_out" in cluster.node(1).log_path.read_text()
    more = await produce(cluster.bootstrap, TOPIC, numbered(10_000, 500))
    await wait_whole(cluster)
    assert await read_all(cluster.bootstrap, TOPIC) == merged(log, more)
    # And back again: what was made anew meanwhile stays, and the disk gets new segments.
    cluster.stop_node(1)
    (cluster.folder / "away").rename(disk(cluster))
    cluster.start_node(1)
    last = await produce(cluster.bootstrap, TOPIC, numbered(20_000, 3000), batch_bytes=4 << 10)
    await wait_until(lambda: len(logs_in(disk(cluster))) > there)
    assert await read_all(cluster.bootstrap, TOPIC) == merged(log, more, last)
    await verified(cluster)
