"""All processes die at once, and start again on the same folder."""

import asyncio
import socket
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from icecore import Admin, Consumer, Producer
from icecore.dev import LocalCluster
from icecore.errors import ConfigurationError, IcecoreError
from icecore.model import OFFSETS_LEFT_OUT, SegmentState
from icecore.rpc.addresses import split_address
from icecore.topic_settings import MEMORY_ENGINE, ROCKSDB_ENGINE, FlushMode
from tests.cluster.traffic import Log, create, merged, numbered, produce, read_all

KEPT: Mapping[str, Mapping[str, Any]] = {
    "files": {"partitions": 3, "segment_bytes": 64 << 10},
    # So late that nothing is synced during a test.
    "late": {"partitions": 2, "flush_mode": FlushMode.ASYNC, "flush_interval_ms": 600_000},
    "database": {"partitions": 4, "engine": ROCKSDB_ENGINE, "segment_bytes": 256 << 10},
}
"""Topics, and their settings, of which nothing acknowledged may be lost with the processes."""


async def create_kept(bootstrap: str, **of_late: Any) -> None:
    for topic, settings in KEPT.items():
        more = of_late if topic == "late" else {}
        await create(bootstrap, topic, **settings, **more)


async def fill_kept(bootstrap: str, before: Mapping[str, Log], start: int) -> dict[str, Log]:
    """All that is acknowledged once there is more in each of them."""
    found = {}
    for topic in KEPT:
        log = await produce(bootstrap, topic, numbered(start, 1500, 200))
        found[topic] = merged(before.get(topic, {}), log)
    return found


async def check_kept(bootstrap: str, logs: Mapping[str, Log], lossy: str = "") -> None:
    """Every record is at its offset, and offsets are dense: nothing is lost, nothing is twice. A
    topic of which nothing proved the end has left offsets out once."""
    for topic, log in logs.items():
        assert await read_all(bootstrap, topic) == log, topic
        for entries in log.values():
            offsets = [offset for offset, _ in entries]
            steps = [after - before for before, after in pairwise([-1, *offsets])]
            assert [each for each in steps if each != 1] == [OFFSETS_LEFT_OUT + 1] * (
                topic == lossy
            )


async def is_lossy(bootstrap: str) -> bool:
    """Return whether the cluster gave up anything of the topic that syncs late."""
    async with Admin(bootstrap) as admin:
        return any(each.lossy for each in await admin.list_segments("late"))


def kill_everything(cluster: LocalCluster) -> None:
    cluster.stop(kill=True)


async def test_death_of_all_processes_costs_nothing(own_cluster: LocalCluster) -> None:
    """Neither of a topic that is synced late, nor of one in a database, nor clients that go on."""
    cluster = own_cluster
    await create_kept(cluster.bootstrap)
    await create(cluster.bootstrap, "t", partitions=1)
    await create(
        cluster.bootstrap, "memory", partitions=1, engine=MEMORY_ENGINE, on_total_loss="unavailable"
    )
    await produce(cluster.bootstrap, "memory", numbered(0, 200))
    logs = await fill_kept(cluster.bootstrap, {}, 0)
    values = numbered(0, 200)
    async with (
        Producer(cluster.bootstrap) as producer,
        Consumer(cluster.bootstrap, "t") as reader,
    ):
        for value in values[:100]:
            await producer.send("t", value)
        stream = aiter(reader)
        seen = [(await anext(stream)).value for _ in range(100)]

        kill_everything(cluster)
        cluster.start()

        for value in values[100:]:
            await producer.send("t", value)
        seen += [(await anext(stream)).value for _ in range(100)]
    assert seen == values
    await check_kept(cluster.bootstrap, logs)
    assert not await is_lossy(cluster.bootstrap)
    await check_kept(cluster.bootstrap, await fill_kept(cluster.bootstrap, logs, 10_000))
    for node in cluster.folder.glob("node-*"):
        assert (node / "rocksdb" / "CURRENT").exists(), node
    await memory_is_told_to_be_lost(cluster.bootstrap)


async def memory_is_told_to_be_lost(bootstrap: str) -> None:
    """Acknowledged records are gone: nobody is shown a log in which they never were."""
    async with Admin(bootstrap) as admin:
        [segment] = await admin.list_segments("memory")
        assert segment.state is not SegmentState.SEALED
        async with asyncio.timeout(60):
            while True:  # until all nodes have told what they lost
                try:
                    left = await admin.recover_unclean("memory", 0, segment.segment_id)
                    break
                except IcecoreError:
                    await asyncio.sleep(0.2)
    # Nothing is left of it, and no offset that anybody may have read is given out again.
    assert left is None or left.is_lost
    log = await produce(bootstrap, "memory", numbered(200, 10))
    assert log[0][0][0] == (left.end_offset if left else 0) + OFFSETS_LEFT_OUT
    assert await read_all(bootstrap, "memory") == log


def test_who_is_started_after_a_stop_holds_all_ports_again(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, 1) as cluster:
        cluster.stop(kill=True)
        cluster.start_coordinator()
        host, port = split_address(cluster.addresses[1])
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind((host, port))
        with pytest.raises(ConfigurationError, match="in use by another cluster"):
            LocalCluster(tmp_path, 1).start()
        cluster.start_node(1)


def test_a_port_that_somebody_took_is_named_and_tried_again(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, 1) as cluster:
        cluster.stop(kill=True)
        with socket.create_server(split_address(cluster.addresses[1])):
            for _ in range(2):
                with pytest.raises(ConfigurationError, match=r"\(node-1\) can't be used"):
                    cluster.start_coordinator()
        cluster.start_coordinator()
        cluster.start_node(1)


def test_who_runs_is_not_started_twice(tmp_path: Path) -> None:
    """The first process would be left behind, and nobody would end it."""
    with LocalCluster(tmp_path, 1) as cluster:
        before = cluster.pids
        with pytest.raises(ConfigurationError, match="coordinator is running already"):
            cluster.start_coordinator()
        with pytest.raises(ConfigurationError, match="node-1 is running already"):
            cluster.start_node(1)
        assert cluster.pids == before
