"""A coordinator on an older copy of its metadata, or on none, takes nothing away (R94).

The copy is made while everything runs; then topics, segments and records come that it does not know
of. Whoever starts it by mistake loses nothing: it waits for a person, and the nodes serve on.
"""

import asyncio
import shutil
import sqlite3
from itertools import count
from pathlib import Path

import grpc
import pytest

from icecore.blocking import Admin
from icecore.dev import LocalCluster
from icecore.errors import IcecoreError
from icecore.model import SegmentState
from icecore.v1 import admin_pb2, admin_pb2_grpc, data_pb2, data_pb2_grpc
from tests.cluster.traffic import Log, create, merged, numbered, produce, read_all
from tests.support.waiting import until

COUNT = 200
HEARTBEATS_S = 1.0
"""Longer than the time between two heartbeats."""


def copy_of_metadata(cluster: LocalCluster, folder: Path) -> Path:
    """Copy the coordinator's folder while it runs, as its backup would be."""
    shutil.copytree(cluster.folder / "coordinator", folder)
    for leftover in folder.glob("metadata.sqlite3*"):
        leftover.unlink()
    source = sqlite3.connect(cluster.folder / "coordinator" / "metadata.sqlite3")
    with sqlite3.connect(folder / "metadata.sqlite3") as target:
        source.backup(target)
    source.close()
    return folder


def put(cluster: LocalCluster, folder: Path | None) -> Path:
    """Replace the coordinator's folder; None = there is nothing. Return the one that was there."""
    place = cluster.folder / "coordinator"
    names = (cluster.folder / f"coordinator-{number}" for number in count())
    kept = next(each for each in names if not each.exists())
    place.rename(kept)
    if folder is not None:
        folder.rename(place)
    return kept


async def starts_and_waits(cluster: LocalCluster) -> str:
    """Start the coordinator; the end of its log when it waits for a person. It gives nothing out,
    and says why."""
    await asyncio.to_thread(cluster.start_coordinator)
    await until(lambda: "metadata_suspended" in cluster.coordinator.log_tail(), 30)
    said = ""
    while "icecore cluster adopt" not in said:  # a busy machine may give no answer in two seconds
        with Admin(cluster.bootstrap, timeout_s=2) as admin, pytest.raises(IcecoreError) as refusal:
            await asyncio.to_thread(admin.create_topic, "refused")
        said = str(refusal.value)
    return cluster.coordinator.log_tail()


def sealed(cluster: LocalCluster, topic: str) -> int:
    with Admin(cluster.bootstrap) as admin:
        found = admin.list_segments(topic)
    return sum(each.state is SegmentState.SEALED for each in found)


def knows(address: str, topic: str) -> bool:
    """Return whether a node could tell a client of the topic and of all its leaders."""
    with grpc.insecure_channel(address) as channel:
        stub = admin_pb2_grpc.AdminServiceStub(channel)
        (found,) = stub.GetMetadata(admin_pb2.GetMetadataRequest(topics=[topic]), timeout=10).topics
    return bool(found.partitions) and all(each.leader for each in found.partitions)


def ends(address: str, topic: str, partitions: int) -> dict[int, int]:
    """Return the end of each partition of which a node says it."""
    asked = [
        data_pb2.ListOffsetsPartition(topic=topic, partition=number, latest=True)
        for number in range(partitions)
    ]
    with grpc.insecure_channel(address) as channel:
        try:
            found = data_pb2_grpc.DataServiceStub(channel).ListOffsets(
                data_pb2.ListOffsetsRequest(partitions=asked), timeout=10
            )
        except grpc.RpcError:  # it starts
            return {}
    answers = enumerate(found.partitions)
    return {number: each.offset for number, each in answers if not each.HasField("error")}


async def none_says_less(cluster: LocalCluster, topic: str, acked: Log) -> None:
    """Ask all nodes for the ends until each was said; no node ever says less than was acked."""
    due = {partition: entries[-1][0] + 1 for partition, entries in acked.items()}
    said: dict[int, int] = {}
    while said.keys() != due.keys():
        for address in cluster.addresses.values():
            found = await asyncio.to_thread(ends, address, topic, len(due))
            said |= found
            assert {number: due[number] for number in found} == found, address


async def known_everywhere(cluster: LocalCluster, topic: str) -> None:
    nodes = cluster.addresses.values()
    await asyncio.to_thread(
        asyncio.run, until(lambda: all(knows(each, topic) for each in nodes), 30)
    )


@pytest.fixture
def cluster(tmp_path: Path) -> LocalCluster:
    return LocalCluster(tmp_path / "cluster", nodes=3)


async def test_an_older_copy_waits_and_loses_nothing(cluster: LocalCluster, tmp_path: Path) -> None:
    with cluster:
        await create(cluster.bootstrap, "before", partitions=2, replication_factor=3)
        first = await produce(cluster.bootstrap, "before", numbered(0, COUNT))
        copy = copy_of_metadata(cluster, tmp_path / "copy")
        await create(cluster.bootstrap, "after", partitions=2, replication_factor=3)
        with Admin(cluster.bootstrap) as admin:
            admin.roll_topic("before")
        await asyncio.to_thread(asyncio.run, until(lambda: sealed(cluster, "before") == 2, 30))
        second = await produce(cluster.bootstrap, "before", numbered(COUNT, COUNT))
        new = await produce(cluster.bootstrap, "after", numbered(0, COUNT))
        for topic in ("before", "after"):
            await known_everywhere(cluster, topic)

        cluster.kill_coordinator()
        newest = put(cluster, copy)
        assert "older copy" in await starts_and_waits(cluster)
        assert not [each.name for each in cluster.dead() if each is not cluster.coordinator]

        # A node tells what it knows, and takes records: its own coordinator could be dead as well.
        node = cluster.addresses[1]
        third = await produce(node, "before", numbered(2 * COUNT, COUNT))
        assert await read_all(node, "after") == new
        # A node that starts meanwhile waits, and has forgotten nothing.
        cluster.kill_node(3)
        cluster._spawn(cluster.node(3))
        cluster.kill_coordinator()
        assert "older copy" in await starts_and_waits(cluster)

        cluster.kill_coordinator()
        put(cluster, newest)
        await asyncio.to_thread(cluster.start_coordinator)
        assert await read_all(cluster.bootstrap, "before") == merged(merged(first, second), third)
        assert await read_all(cluster.bootstrap, "after") == new
        last = await produce(cluster.bootstrap, "after", numbered(COUNT, COUNT))
        assert await read_all(cluster.bootstrap, "after") == merged(new, last)


async def test_nodes_that_start_anew_remember_it(cluster: LocalCluster, tmp_path: Path) -> None:
    """Power comes back for all, and the coordinator has the older copy."""
    with cluster:
        await create(cluster.bootstrap, "before", partitions=1, replication_factor=3)
        copy = copy_of_metadata(cluster, tmp_path / "copy")
        await create(cluster.bootstrap, "after", partitions=2, replication_factor=3)
        acked = await produce(cluster.bootstrap, "after", numbered(0, COUNT))
        await asyncio.sleep(4 * HEARTBEATS_S)  # each node stores what it heard, once within them
        cluster.kill_coordinator()
        for node_id in cluster.addresses:
            cluster.kill_node(node_id)
        newest = put(cluster, copy)
        for node_id in cluster.addresses:
            cluster._spawn(cluster.node(node_id))
        assert "older copy" in await starts_and_waits(cluster)
        cluster.kill_coordinator()
        put(cluster, newest)
        async with asyncio.timeout(60):
            await asyncio.gather(
                asyncio.to_thread(cluster.start_coordinator),
                none_says_less(cluster, "after", acked),
            )
        assert await read_all(cluster.bootstrap, "after") == acked


async def test_nodes_serve_on_beside_an_empty_store(cluster: LocalCluster) -> None:
    with cluster:
        await create(cluster.bootstrap, "t", partitions=1, replication_factor=3)
        first = await produce(cluster.bootstrap, "t", numbered(0, COUNT))
        await known_everywhere(cluster, "t")
        cluster.kill_coordinator()
        newest = put(cluster, None)
        await asyncio.to_thread(cluster.start_coordinator)
        node = cluster.node(1)
        await until(lambda: "wrong_coordinator" in node.log_path.read_text(), 30)
        assert [each.log_tail() for each in cluster.dead()] == []
        second = await produce(node.listen, "t", numbered(COUNT, COUNT))
        cluster.kill_coordinator()
        put(cluster, newest)
        await asyncio.to_thread(cluster.start_coordinator)
        assert await read_all(cluster.bootstrap, "t") == merged(first, second)
