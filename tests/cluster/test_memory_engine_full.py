"""Topics in memory that get far more than memory holds: tails are rolled in time, producers wait.

``segment_bytes`` is never reached here: what rolls does so for what all of them take together.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from icecore.client import Admin, Producer
from icecore.client.retries import Retry
from icecore.dev import LocalCluster
from icecore.model import MEMORY_ENGINE
from tests.cluster.traffic import create, read_all

MIB = 1 << 20
HELD = 16 * MIB
PARTITIONS = 8
VALUE = 8 << 10
RECORDS = 12_000
"""Six times what all nodes may hold of them."""


@pytest.fixture
def small_memory(tmp_path: Path) -> Iterator[LocalCluster]:
    settings = {"memory_engine_bytes": HELD}
    with LocalCluster(tmp_path / "cluster", nodes=3, node_settings=settings) as running:
        yield running


async def test_more_than_memory_holds_costs_no_partition_its_leader(
    small_memory: LocalCluster,
) -> None:
    bootstrap, topic = small_memory.bootstrap, "t"
    await create(bootstrap, topic, partitions=PARTITIONS, engine=MEMORY_ENGINE)
    retries = Counter[str]()

    def told(retry: Retry) -> None:
        retries[retry.error.reason] += 1

    async with Producer(bootstrap, on_retry=told) as producer:
        for number in range(RECORDS):
            await producer.ready()
            producer.send(topic, b"%010d" % number * (VALUE // 10), partition=number % PARTITIONS)
        await producer.flush()
    assert "LEADER_LOST" not in retries, retries
    found = await read_all(bootstrap, topic)
    for partition in range(PARTITIONS):
        values = [int(value[:10]) for _, value in found[partition]]
        assert values == list(range(partition, RECORDS, PARTITIONS))
    async with Admin(bootstrap) as admin:
        segments = await admin.list_segments(topic)
    assert len(segments) >= RECORDS * VALUE // HELD
    logs = "".join(each.read_text() for each in (small_memory.folder / "logs").glob("node-*.log"))
    assert "event=memory_rolls" in logs and "memory_engine_bytes" not in logs
