"""Memory of a node stays within its settings, whatever its followers and consumers do.

The bound is what docs/reference/limits.md states: the budgets below, plus what a node needs anyway.
"""

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from icecore import Producer
from icecore.dev import LocalCluster
from tests.cluster.raw import RawClient
from tests.cluster.traffic import create

MIB = 1 << 20
BUDGETS_MIB = {
    "produce_inflight_bytes_max": 24,
    "tail_cache_bytes": 24,
    "replication_credit_bytes": 8,
}
ANSWERS_MIB = 64 + 8
"""Unread answers before calls are refused, and the one that crosses the line."""
SLACK_MIB = 96
"""gRPC's own buffers, RocksDB's memtables, the allocator."""
TOPIC = "t"

pytestmark = pytest.mark.alone


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    settings = {name: f"{mib}MiB" for name, mib in BUDGETS_MIB.items()}
    with LocalCluster(tmp_path / "cluster", nodes=3, node_settings=settings) as running:
        yield running


def memory_mib(pid: int, field: str = "VmHWM") -> int:
    """A figure of /proc/PID/status."""
    match = re.search(rf"{field}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert match is not None
    return int(match[1]) // 1024


async def pour(bootstrap: str, mib: int, acks: str) -> None:
    """Produce so much data."""
    async with Producer(bootstrap, acks=acks, buffer_bytes=16 * MIB) as producer:  # type: ignore[arg-type]
        for _ in range(mib):
            await producer.send_wait(TOPIC, bytes(MIB - 4096), partition=0)
        await producer.flush()


async def leader_pid(cluster: LocalCluster) -> tuple[int, int, str]:
    """Node id, pid and address of the leader of partition 0."""
    async with RawClient(cluster.bootstrap) as client:
        address = await client.leader(TOPIC, 0)
    node_id = next(id_ for id_, at in cluster.addresses.items() if at == address)
    return node_id, cluster.pids[f"node-{node_id}"], address


async def test_stopped_follower_costs_its_leader_no_memory(cluster: LocalCluster) -> None:
    await create(
        cluster.bootstrap, TOPIC, partitions=1, replication_factor=3, min_insync_replicas=1
    )
    node_id, pid, _ = await leader_pid(cluster)
    before = memory_mib(pid, "VmRSS")
    follower = next(id_ for id_ in cluster.addresses if id_ != node_id)
    cluster.node(follower).pause()
    try:
        await pour(cluster.bootstrap, 300, "quorum")
    finally:
        cluster.node(follower).resume()

    allowed = sum(BUDGETS_MIB.values()) + BUDGETS_MIB["replication_credit_bytes"] + SLACK_MIB
    assert memory_mib(pid) - before < allowed


async def test_consumer_that_reads_nothing_is_bounded(cluster: LocalCluster) -> None:
    await create(cluster.bootstrap, TOPIC, partitions=1, replication_factor=1)
    await pour(cluster.bootstrap, 32, "all")
    _, pid, address = await leader_pid(cluster)
    before = memory_mib(pid, "VmRSS")
    script = Path(__file__).parent / "stuck_reader.py"
    reader = subprocess.Popen(  # noqa: ASYNC220 - it takes a moment
        [sys.executable, str(script), address, TOPIC, "60"], stdout=subprocess.PIPE
    )
    try:
        assert reader.stdout is not None
        assert await asyncio.to_thread(reader.stdout.readline) == b"ready\n"
        await asyncio.sleep(0.05)
        os.kill(reader.pid, signal.SIGSTOP)
        await asyncio.sleep(5)
        grown = memory_mib(pid) - before
        await pour(cluster.bootstrap, 4, "all")  # others are served meanwhile
    finally:
        reader.kill()
        reader.wait()
        reader.stdout.close()
    assert grown < ANSWERS_MIB + sum(BUDGETS_MIB.values()) + SLACK_MIB
