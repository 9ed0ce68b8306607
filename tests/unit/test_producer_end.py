"""How a producer ends when the program around it does."""

import asyncio

import pytest

from icecore import Producer
from icecore.errors import UnavailableError
from tests.unit.fake_cluster import FakeCluster


async def test_nothing_waits_for_answers_when_all_tasks_are_cancelled() -> None:
    """As ``asyncio.run`` does when SystemExit comes out of a signal handler."""
    is_asked = asyncio.Event()

    async def hang(node: int, method: str) -> None:
        if method == "_Produce":
            is_asked.set()
            await asyncio.Event().wait()

    async with FakeCluster(nodes=1) as cluster:
        cluster.add_topic("t")
        cluster.before_call = hang
        async with Producer(cluster.bootstrap, net=cluster.net) as producer:
            handle = producer.send("t", b"0")
            await is_asked.wait()
            for task in list(producer._sender._tasks):
                task.cancel()
            with pytest.raises(UnavailableError):
                await handle
