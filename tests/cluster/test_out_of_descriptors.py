"""Nodes run out of file descriptors: nothing acked is lost, nobody ends, all goes on afterwards.

Three nodes have so few that a large topic, or a crowd of idle connections, uses them up.
"""

import asyncio
import contextlib
import os
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from icecore import Admin
from icecore.dev import LocalCluster
from icecore.errors import UnavailableError
from tests.cluster.traffic import create, numbered, produce, read_all

LIMIT = 160
ROUNDS_QUIET = 5
"""So often in a row no node has a descriptor left: the crowd is complete."""
TOPIC = "precious"
_LIMITED = (
    "import os, resource, sys; limit = int(sys.argv[1]);"
    "resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit));"
    "os.execv(sys.argv[2], sys.argv[2:])"
)


def limited(descriptors: int) -> list[str]:
    """In front of a command: it gets no more descriptors than that."""
    return [sys.executable, "-c", _LIMITED, str(descriptors)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    made = LocalCluster(
        tmp_path / "cluster",
        nodes=3,
        node_settings={
            "preallocate_bytes": 65_536,
            "descriptors_min": 128,
            "descriptors_reserve": 32,
            "disk_free_bytes_min": 0,
        },
    )
    for node_id in (1, 2, 3):
        made.node(node_id).prefix = limited(LIMIT)
    with made as running:
        yield running


def open_descriptors(cluster: LocalCluster, node_id: int) -> int:
    return len(os.listdir(f"/proc/{cluster.node(node_id).pid}/fd"))


async def wait_until_all_lead(cluster: LocalCluster) -> None:
    async with Admin(cluster.bootstrap) as admin, asyncio.timeout(60):
        while (await admin.describe_cluster()).offline_partitions:  # noqa: ASYNC110
            await asyncio.sleep(0.2)


@contextlib.contextmanager
def crowd(cluster: LocalCluster) -> Iterator[None]:
    """Idle connections that take all descriptors of each node.

    A node accepts a connection some time after it is made and still closes those of clients that
    have ended, so that one count is not enough: more are made until no node has one to spare.
    """
    with contextlib.ExitStack() as held:
        deadline = time.monotonic() + 30
        quiet = 0
        while quiet < ROUNDS_QUIET:
            assert time.monotonic() < deadline, "the nodes accept no crowd"
            missing = {
                node_id: LIMIT - open_descriptors(cluster, node_id) for node_id in cluster.addresses
            }
            complete = max(missing.values()) <= 0
            quiet = quiet + 1 if complete else 0
            for node_id, address in cluster.addresses.items():
                host, _, port = address.rpartition(":")
                for _ in range(missing[node_id]):
                    held.enter_context(socket.create_connection((host, int(port)), timeout=10))
            time.sleep(0.2 if complete else 1.0)  # the latter for the nodes to accept them
        yield


async def test_more_partitions_than_descriptors(cluster: LocalCluster) -> None:
    await create(cluster.bootstrap, TOPIC, partitions=4)
    acked = await produce(cluster.bootstrap, TOPIC, numbered(0, 200))
    await create(cluster.bootstrap, "large", partitions=LIMIT + 8)
    await wait_until_all_lead(cluster)
    assert [each.log_tail() for each in cluster.dead()] == []
    assert max(open_descriptors(cluster, node_id) for node_id in (1, 2, 3)) < LIMIT
    for node_id in (1, 2, 3):
        cluster.kill_node(node_id)
        cluster.start_node(node_id)
    assert await read_all(cluster.bootstrap, TOPIC) == acked


async def test_a_crowd_of_idle_connections(cluster: LocalCluster) -> None:
    await create(cluster.bootstrap, TOPIC, partitions=4)
    acked = await produce(cluster.bootstrap, TOPIC, numbered(0, 200))
    async with Admin(cluster.bootstrap) as admin:
        with crowd(cluster):  # until the nodes close what says nothing, no partition can open
            await admin.create_topic("waits", partitions=12, replication_factor=3)
            await wait_until_all_lead(cluster)
            assert "event=descriptors_short" in cluster.node(1).log_path.read_text()
            assert [each.log_tail() for each in cluster.dead()] == []
    assert await read_all(cluster.bootstrap, TOPIC) == acked


def test_too_low_a_limit_is_refused(tmp_path: Path) -> None:
    made = LocalCluster(tmp_path / "cluster", nodes=1)
    made.node(1).prefix = limited(256)
    try:
        with pytest.raises(UnavailableError, match="only 256 files and connections may be open"):
            made.start()
    finally:
        made.stop()
