"""A disk fills up in the middle of appends: nothing acked is lost, and writes resume by themselves.

A small tmpfs under a node's data folder makes it real, which needs root (else: skipped).
"""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from icecore import Admin, Producer
from icecore.dev import LocalCluster
from icecore.model import NodeState
from tests.chaos.disks import DISK_BYTES, SmallDisks, fill
from tests.cluster.traffic import create, read_all

TOPIC = "t"

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a tmpfs needs root")


@pytest.fixture(params=[{}])
def small_disks(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[LocalCluster]:
    """Three nodes whose data folders are small file systems of their own.

    Without watermarks, unless a test sets ``disk_free_bytes_min``: appends meet the disk's end.
    """
    folder = tmp_path / "cluster"
    node_settings = {
        "preallocate_bytes": 1 << 20,
        "recycle_bytes_max": 0,
        "disk_free_bytes_min": 0,
        **request.param,
    }
    with (
        SmallDisks(folder, (1, 2, 3)),
        LocalCluster(
            folder,
            nodes=3,
            node_settings=node_settings,
            coordinator_settings={"lease_ms": 3000},
        ) as cluster,
    ):
        yield cluster


class Load:
    """Distinct records of 4 KiB to one producer until stopped; remembers what was acked."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self.acked: dict[int, list[tuple[int, bytes]]] = {}
        self.count = 0
        self._stopping = False

    async def run(self) -> None:
        number = 0
        while not self._stopping:
            value = b"%08d" % number + bytes(4088)
            number += 1
            where = await self._producer.send(TOPIC, value)
            self.acked.setdefault(where.partition, []).append((where.offset, value))
            self.count += 1

    async def grow(self, records: int, timeout_s: float = 120.0) -> None:
        """Wait for so many more acks."""
        wanted = self.count + records
        async with asyncio.timeout(timeout_s):
            while self.count < wanted:  # noqa: ASYNC110 - another process decides
                await asyncio.sleep(0.05)

    def stop(self) -> None:
        self._stopping = True


async def run_full(cluster: LocalCluster, node_ids: list[int]) -> None:
    await create(cluster.bootstrap, TOPIC, partitions=2, segment_bytes=8 << 20)
    async with Producer(cluster.bootstrap, linger_ms=1) as producer:
        load = Load(producer)
        running = asyncio.create_task(load.run())
        await load.grow(100)

        ballasts = [fill(cluster.folder / f"node-{node_id}", 2 << 20) for node_id in node_ids]
        if len(node_ids) < 3:
            await load.grow(1500)  # the others carry on
        else:
            before = -1
            while load.count != before:  # until nobody accepts anything any more
                before = load.count
                await asyncio.sleep(2.0)
        for ballast in ballasts:
            ballast.unlink()
        await load.grow(300)
        load.stop()
        await running

    assert await read_all(cluster.bootstrap, TOPIC) == load.acked
    assert [each.log_tail() for each in cluster.dead()] == []
    async with Admin(cluster.bootstrap) as admin:
        for _ in range(200):
            described = await admin.describe_cluster()
            if not described.under_replicated:
                break
            await asyncio.sleep(0.2)
        assert described.under_replicated == 0


async def test_one_full_disk_stops_nobody(small_disks: LocalCluster) -> None:
    await run_full(small_disks, [2])


async def test_all_disks_full_resume_when_there_is_space(small_disks: LocalCluster) -> None:
    await run_full(small_disks, [1, 2, 3])


@pytest.mark.parametrize(
    "small_disks", [{"disk_free_bytes_min": 1 << 30, "replica_lag_ms_max": 300_000}], indirect=True
)
async def test_node_steps_back_before_its_disk_is_full(small_disks: LocalCluster) -> None:
    cluster = small_disks

    async def wait_for(state: NodeState) -> None:
        async with Admin(cluster.bootstrap) as admin, asyncio.timeout(60):
            while True:
                nodes = (await admin.describe_cluster()).nodes
                if {each.node.node_id: each.node.state for each in nodes}[3] is state:
                    return
                await asyncio.sleep(0.1)

    await create(cluster.bootstrap, TOPIC, partitions=2, segment_bytes=8 << 20)
    async with Producer(cluster.bootstrap, linger_ms=1) as producer:
        load = Load(producer)
        running = asyncio.create_task(load.run())
        await load.grow(100)
        ballast = fill(cluster.folder / "node-3", DISK_BYTES // 50)
        await wait_for(NodeState.READ_ONLY)
        await load.grow(300)  # it left: nobody waits for it until it lags
        ballast.unlink()
        await wait_for(NodeState.UP)
        load.stop()
        await running

    async with Admin(cluster.bootstrap) as admin, asyncio.timeout(60):
        while (await admin.describe_cluster()).under_replicated:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    assert await read_all(cluster.bootstrap, TOPIC) == load.acked
