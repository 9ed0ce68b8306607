"""A deleted topic comes back with every acknowledged record, or goes when its grace is over."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from icecore import Admin, Producer
from icecore.dev import LocalCluster
from icecore.errors import IcecoreError, TopicExistsError, UnknownTopicError
from tests.cluster.traffic import Log, create, merged, numbered, produce, read_all

SEGMENT_BYTES = 64 << 10


async def until(is_so: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(60):
        while not await is_so():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


def files_of(cluster: LocalCluster, node_id: int, topic_id: bytes) -> int:
    folder = cluster.folder / f"node-{node_id}" / "segments" / topic_id.hex()
    return sum(1 for _ in folder.glob("*/*.log"))


async def send_until_refused(bootstrap: str, topic: str) -> tuple[Log, bytes]:
    """Send until the topic refuses; return the acknowledged records and the refused value.

    A node hears of a deletion a moment later than the coordinator, so some records are still
    acknowledged. The refused value may be stored or not: a leader may drop the topic after the
    append and before the acknowledgement.
    """
    acked: Log = {}
    async with Producer(bootstrap, delivery_timeout_ms=2_000) as producer, asyncio.timeout(60):
        for number in range(90_000, 1_000_000):
            value = b"%d" % number
            try:
                handle = producer.send_and_wait(topic, value, partition=0)
                acked.setdefault(0, []).append(((await handle).offset, value))
            except IcecoreError:
                return acked, value
    raise AssertionError("unreachable")


async def test_an_undeleted_topic_has_every_record_though_a_node_died(
    healed_cluster: LocalCluster,
) -> None:
    address = healed_cluster.bootstrap
    await create(address, "t", partitions=2, segment_bytes=SEGMENT_BYTES)
    acked = await produce(address, "t", numbered(0, 1500), linger_ms=1, batch_bytes=8 << 10)
    async with Admin(address) as admin:
        sending = asyncio.create_task(send_until_refused(address, "t"))
        await asyncio.sleep(0.2)
        left = await admin.delete_topic("t")
        assert left.grace_ms == 24 * 3600 * 1000
        with pytest.raises(UnknownTopicError):
            await admin.describe_topics(["t"])
        with pytest.raises(UnknownTopicError):
            await admin.delete_topic("t")
        [found] = await admin.describe_topics(deleted=True)
        assert (found.name, found.topic_id, found.deleted) == ("t", left.topic_id, True)
        healed_cluster.kill_node(2)
        also_acked, in_doubt = await sending
        acked = merged(acked, also_acked)

        again = await admin.create_topic(
            "t", partitions=1, replication_factor=2, min_insync_replicas=1
        )
        assert again.topic_id != left.topic_id
        await produce(address, "t", numbered(70_000, 10))
        with pytest.raises(TopicExistsError):
            await admin.undelete_topic("t")
        assert (await admin.describe_cluster()).deleted_topics == 1
        back = await admin.undelete_topic("t", new_name="older")
        assert (back.name, back.topic_id) == ("older", left.topic_id)
        assert (await admin.describe_cluster()).deleted_topics == 0

    acked = merged(acked, await produce(address, "older", numbered(80_000, 50)))
    found = await read_all(address, "older")
    stored_in_doubt = [entry for entry in found[0] if entry[1] == in_doubt]
    assert len(stored_in_doubt) <= 1
    assert found == merged(acked, {0: stored_in_doubt})
    assert len((await read_all(address, "t"))[0]) == 10


async def test_files_go_when_the_grace_is_over_and_of_a_node_that_was_away_when_it_is_back(
    healed_cluster: LocalCluster,
) -> None:
    address = healed_cluster.bootstrap
    await create(address, "t", partitions=2, segment_bytes=SEGMENT_BYTES, delete_grace_ms=3_000)
    await produce(address, "t", numbered(0, 500))
    async with Admin(address, timeout_s=60) as admin:
        left = await admin.delete_topic("t")
        healed_cluster.kill_coordinator()
        assert all(files_of(healed_cluster, each, left.topic_id) for each in (1, 2, 3))
        healed_cluster.kill_node(3)
        healed_cluster.start_coordinator()

        async def is_gone() -> bool:
            return (await admin.describe_cluster()).deleted_topics == 0

        async def files_are_gone() -> bool:
            return not any(files_of(healed_cluster, each, left.topic_id) for each in up)

        await until(is_gone)
        with pytest.raises(UnknownTopicError):
            await admin.undelete_topic("t")
        up = [1, 2]
        await until(files_are_gone)
        assert files_of(healed_cluster, 3, left.topic_id)
        healed_cluster.start_node(3)
        up = [1, 2, 3]
        await until(files_are_gone)
        await admin.create_topic("t")
