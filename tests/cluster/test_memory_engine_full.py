"""Topics in memory that get far more than memory holds: tails are rolled in time, producers wait.

``segment_bytes`` is never reached here: what rolls does so for what all of them take together.
"""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from icecore.client import Admin, Producer
from icecore.dev import LocalCluster
from icecore.topic_settings import MEMORY_ENGINE
from tests.cluster.traffic import create, read_all

MIB = 1 << 20
HELD = 16 * MIB
PARTITIONS = 8
VALUE = 8 << 10
RECORDS = 6_000
"""Three times what a node may hold of them."""
TOPIC = "t"


@pytest.fixture
def small_memory(tmp_path: Path) -> Iterator[LocalCluster]:
    settings = {"memory_engine_bytes": HELD}
    with LocalCluster(tmp_path / "cluster", nodes=3, node_settings=settings) as running:
        yield running


async def produce_all(bootstrap: str) -> None:
    """Every record, over all partitions, as fast as it goes."""
    await create(bootstrap, TOPIC, partitions=PARTITIONS, engine=MEMORY_ENGINE)
    async with Producer(bootstrap) as producer:
        for number in range(RECORDS):
            await producer.ready()
            producer.send(TOPIC, b"%010d" % number * (VALUE // 10), partition=number % PARTITIONS)
        await producer.flush()


async def check_all(bootstrap: str) -> None:
    """Each is there once, in its order."""
    found = await read_all(bootstrap, TOPIC)
    for partition in range(PARTITIONS):
        values = [int(value[:10]) for _, value in found[partition]]
        assert values == list(range(partition, RECORDS, PARTITIONS))


async def test_more_than_memory_holds_costs_no_partition_its_leader(
    small_memory: LocalCluster,
) -> None:
    bootstrap = small_memory.bootstrap
    await produce_all(bootstrap)
    await check_all(bootstrap)
    async with Admin(bootstrap) as admin:
        segments = await admin.list_segments(TOPIC)
    assert len(segments) >= RECORDS * VALUE // HELD
    logs = "".join(each.read_text() for each in (small_memory.folder / "logs").glob("node-*.log"))
    assert "event=memory_rolls" in logs
    assert not re.findall("event=leadership_ended .*local append failed", logs)


async def test_a_node_with_little_memory_holds_nobody_up(tmp_path: Path) -> None:
    """Others, with room for everything, seal for it what fills its memory; it has all copies."""
    cluster = LocalCluster(tmp_path / "cluster", nodes=3)
    cluster.node(3).extra += ["--memory-engine-bytes", "2MiB"]
    with cluster:
        await produce_all(cluster.bootstrap)
        await check_all(cluster.bootstrap)
        async with Admin(cluster.bootstrap) as admin, asyncio.timeout(60):
            while True:
                segments = await admin.list_segments(TOPIC)
                if all(3 in each.replicas for each in segments if each.end_offset >= 0):
                    break
                await asyncio.sleep(0.1)
