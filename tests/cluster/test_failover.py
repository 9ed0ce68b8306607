"""A node is killed under traffic and comes back: nothing acked is lost, doubled or reordered."""

import asyncio

from icecore import Admin, Producer
from icecore.dev import LocalCluster
from tests.cluster.traffic import create, numbered, read_all


async def leaders(bootstrap: str, topic: str) -> list[int]:
    async with Admin(bootstrap) as admin:
        (described,) = await admin.describe_topics([topic])
    return [part.tail.leader if part.tail else 0 for part in described.partitions]


async def test_killed_leader_loses_nothing_acked(own_cluster: LocalCluster) -> None:
    cluster, topic = own_cluster, "t"
    await create(cluster.bootstrap, topic, partitions=6, segment_bytes=256 << 10)
    values = numbered(0, 20_000)
    acked: dict[int, list[tuple[int, bytes]]] = {}
    async with Producer(cluster.bootstrap, linger_ms=2) as producer:
        handles = []
        for number, value in enumerate(values):
            handles.append(await producer.send_wait(topic, value, key=value))
            if number == 6000:
                victim = max(set(nodes := await leaders(cluster.bootstrap, topic)), key=nodes.count)
                cluster.kill_node(victim)
            if number == 14_000:
                cluster.start_node(victim)
            if number % 50 == 0:
                await asyncio.sleep(0.005)  # traffic, not one burst
        for value, handle in zip(values, handles, strict=True):
            where = await handle
            acked.setdefault(where.partition, []).append((where.offset, value))

    found = await read_all(cluster.bootstrap, topic)

    assert found == acked  # each partition: same records, in the order they were sent


async def test_copies_are_restored_without_help(own_cluster: LocalCluster) -> None:
    cluster, topic = own_cluster, "t"
    await create(cluster.bootstrap, topic, partitions=4, segment_bytes=64 << 10)
    async with Producer(cluster.bootstrap) as producer, Admin(cluster.bootstrap) as admin:
        for value in numbered(0, 2000):
            await producer.send_wait(topic, value, key=value)
        await producer.flush()
        cluster.kill_node(2)
        for value in numbered(2000, 2000):
            await producer.send_wait(topic, value, key=value)
        await producer.flush()
        cluster.start_node(2)
        for _ in range(300):
            described = await admin.describe_cluster()
            if not described.under_replicated:
                break
            await asyncio.sleep(0.2)
        assert (described.under_replicated, described.min_copies) == (0, 3)
