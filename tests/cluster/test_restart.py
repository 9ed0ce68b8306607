"""Stop and start again on the same folder, cleanly or by killing everything at once."""

from collections.abc import Callable

import pytest

from icecore import Consumer, Producer
from icecore.dev import LocalCluster
from tests.cluster.traffic import create, merged, numbered, produce, read_all


def stop_cleanly(cluster: LocalCluster) -> None:
    assert cluster.stop() == []  # nobody had to be killed


def kill_everything(cluster: LocalCluster) -> None:
    for node_id in cluster.addresses:
        cluster.kill_node(node_id)
    cluster.kill_coordinator()
    cluster.stop()


@pytest.mark.parametrize("end", [stop_cleanly, kill_everything])
async def test_restart_keeps_every_acked_record_at_its_offset(
    own_cluster: LocalCluster, end: Callable[[LocalCluster], None]
) -> None:
    cluster, topic = own_cluster, "t"
    await create(cluster.bootstrap, topic, partitions=3, segment_bytes=64 << 10)
    before = await produce(cluster.bootstrap, topic, numbered(0, 3000))

    end(cluster)
    cluster.start()

    assert await read_all(cluster.bootstrap, topic) == before
    after = await produce(cluster.bootstrap, topic, numbered(3000, 1000))
    whole = merged(before, after)
    assert await read_all(cluster.bootstrap, topic) == whole
    for entries in whole.values():  # dense from 0: nothing lost, nothing twice
        assert [offset for offset, _ in entries] == list(range(len(entries)))


async def test_consumer_and_producer_go_on_through_a_restart(own_cluster: LocalCluster) -> None:
    cluster, topic = own_cluster, "t"
    await create(cluster.bootstrap, topic, partitions=1)
    values = numbered(0, 200)
    async with (
        Producer(cluster.bootstrap) as producer,
        Consumer(cluster.bootstrap, topic) as reader,
    ):
        for value in values[:100]:
            await producer.send(topic, value)
        stream = aiter(reader)
        seen = [(await anext(stream)).value for _ in range(100)]

        kill_everything(cluster)
        cluster.start()

        for value in values[100:]:
            await producer.send(topic, value)
        seen += [(await anext(stream)).value for _ in range(100)]
    assert seen == values
