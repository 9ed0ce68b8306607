"""A topic's replication factor changes: what grows moves by a roll, and its history follows."""

import time

import pytest

from icecore import Admin
from icecore.dev import LocalCluster
from tests.cluster.traffic import Log, merged, numbered, produce, read_all


@pytest.mark.parametrize(("first", "then"), [(1, (3, 2)), (3, (1, 2))])
async def test_history_follows(
    shared_cluster: LocalCluster, first: int, then: tuple[int, ...]
) -> None:
    bootstrap, topic = shared_cluster.bootstrap, f"factor-{first}"
    log: Log = {}
    async with Admin(bootstrap) as admin:
        await admin.create_topic(topic, partitions=2, replication_factor=first)
        for part in range(3):
            log = merged(log, await produce(bootstrap, topic, numbered(100 * part, 100)))
            await admin.roll_topic(topic)
        for factor in then:
            await admin.alter_topic(topic, replication_factor=factor, min_insync_replicas=1)
            log = await until_copies(bootstrap, topic, factor, log)
            assert await read_all(bootstrap, topic) == log
        assert len(await admin.list_segments(topic)) >= 6


async def until_copies(bootstrap: str, topic: str, count: int, log: Log) -> Log:
    """Every segment of the topic is on so many nodes, and no node has to drop any. Records come
    meanwhile, for a segment without any can't roll; return all of them."""
    deadline = time.monotonic() + 60
    async with Admin(bootstrap) as admin:
        while True:
            numbers = numbered(sum(map(len, log.values())), 20)
            log = merged(log, await produce(bootstrap, topic, numbers))
            found = await admin.list_segments(topic)
            if all(len(each.replicas) == count and not each.surplus for each in found):
                return log
            assert time.monotonic() < deadline, found
