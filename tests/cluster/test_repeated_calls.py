"""An administrative call whose answer is lost is repeated, and hits nothing that came later."""

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from icecore import Admin
from icecore.dev import LocalCluster
from icecore.errors import RequestTimeoutError, TopicRecreatedError
from tests.cluster.traffic import create, numbered, produce, read_all


class LossyNet:
    """The net of a client, which loses the first answer to a method."""

    def __init__(self, net: Any, method: str, meanwhile: Callable[[], Awaitable[object]]) -> None:
        self._net = net
        self._method = method
        self._meanwhile: Callable[[], Awaitable[object]] | None = meanwhile

    def __getattr__(self, name: str) -> Any:
        return getattr(self._net, name)

    async def call(self, address: str, method: str, body: Any, *, timeout_s: float) -> Any:
        answer = await self._net.call(address, method, body, timeout_s=timeout_s)
        if method.endswith(self._method) and self._meanwhile is not None:
            meanwhile, self._meanwhile = self._meanwhile, None
            await meanwhile()
            raise RequestTimeoutError("the answer was lost")
        return answer


@pytest.mark.parametrize("now", [True, False])
async def test_a_repeated_deletion_spares_the_next_topic_of_the_name(
    shared_cluster: LocalCluster, now: bool
) -> None:
    address, topic = shared_cluster.bootstrap, f"deleted-twice-{now}"
    await create(address, topic, partitions=1, replication_factor=1)
    await produce(address, topic, numbered(0, 10))
    sent: dict[Any, Any] = {}

    async def made_again() -> None:
        await create(address, topic, partitions=1, replication_factor=1)
        sent.update(await produce(address, topic, numbered(10, 10)))

    async with Admin(address) as admin:
        admin._connection.net = LossyNet(admin._connection.net, "/DeleteTopic", made_again)
        gone = await admin.delete_topic(topic, now=now)
        [kept] = await admin.describe_topics([topic])
        assert kept.topic_id != gone.topic_id
    assert await read_all(address, topic) == sent


async def test_a_repeated_deletion_of_records_spares_the_next_topic_of_the_name(
    shared_cluster: LocalCluster,
) -> None:
    address, topic = shared_cluster.bootstrap, "emptied-twice"
    await create(address, topic, partitions=1, replication_factor=1)
    await produce(address, topic, numbered(0, 10))
    sent: dict[Any, Any] = {}

    async def made_again() -> None:
        async with Admin(address) as other:
            await other.delete_topic(topic, now=True)
        await create(address, topic, partitions=1, replication_factor=1)
        sent.update(await produce(address, topic, numbered(10, 10)))

    async with Admin(address) as admin:
        admin._connection.net = LossyNet(admin._connection.net, "/DeleteRecords", made_again)
        with pytest.raises(TopicRecreatedError, match="keeps its records"):
            await admin.delete_records(topic, {0: 10})
    assert await read_all(address, topic) == sent
