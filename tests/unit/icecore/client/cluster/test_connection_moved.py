"""A node that died leaves its address to whoever comes first, be that a node of another cluster."""

import asyncio
from collections import Counter

import pytest

from icecore import Consumer, Lookup, Producer
from icecore.errors import WrongClusterError
from tests.support.fake_cluster import FakeCluster


@pytest.mark.parametrize("is_native", [True, False])
async def test_all_calls_go_on_once_metadata_say_where_the_node_is(is_native: bool) -> None:
    async with FakeCluster(nodes=1, is_native=is_native) as cluster, asyncio.timeout(30):
        cluster.add_topic("t", 1)
        refused: Counter[str] = Counter()

        async def answer_for_another(node_id: int, name: str) -> None:
            if node_id and refused[name] < 2:
                refused[name] += 1
                raise WrongClusterError("this node belongs to cluster 01")

        cluster.before_call = answer_for_another
        async with Producer(cluster.bootstrap, net=cluster.net) as producer:
            for number in range(3):
                await producer.send("t", b"%d" % number, key=b"k")
        async with Consumer(cluster.bootstrap, "t", net=cluster.net, stop_at_end=True) as consumer:
            assert [record.value async for record in consumer] == [b"0", b"1", b"2"]
        async with Lookup(cluster.bootstrap, "t", net=cluster.net) as lookup:
            page = await lookup.find(keys=[b"k"])
            assert page.complete and len(page.records) == 3
        assert {"_Produce", "_Fetch", "_ListOffsets", "_InitProducer", "_Query"} <= {*refused}
