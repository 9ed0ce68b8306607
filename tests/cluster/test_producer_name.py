"""Fencing by name: whoever takes a producer's name over ends the one before, failover or not."""

import pytest

from icecore import Admin, Producer
from icecore.dev import LocalCluster
from icecore.errors import InvalidRequestError, ProducerFencedError, RequestTimeoutError
from tests.cluster.traffic import create, read_all


async def values(bootstrap: str, topic: str) -> list[bytes]:
    return sorted(value for log in (await read_all(bootstrap, topic)).values() for _, value in log)


async def leader(bootstrap: str, topic: str) -> int:
    async with Admin(bootstrap) as admin:
        (described,) = await admin.describe_topics([topic])
    tail = described.partitions[0].tail
    assert tail is not None
    return tail.leader


def named(cluster: LocalCluster, topic: str) -> Producer:
    return Producer(cluster.bootstrap, producer_name="importer", producer_topics=[topic])


async def test_older_instance_is_fenced(healed_cluster: LocalCluster) -> None:
    cluster = healed_cluster
    await create(cluster.bootstrap, "t", partitions=1)
    async with named(cluster, "t") as old:
        await old.send_and_wait("t", b"1")
        async with named(cluster, "t") as new:
            with pytest.raises(ProducerFencedError):
                await old.send_and_wait("t", b"too late")
            await new.send_and_wait("t", b"2")
            with pytest.raises(ProducerFencedError):
                await old.send_and_wait("t", b"later still")
            await new.send_and_wait("t", b"3")
    assert await values(cluster.bootstrap, "t") == [b"1", b"2", b"3"]


async def test_fence_outlives_leader_and_coordinator(healed_cluster: LocalCluster) -> None:
    cluster = healed_cluster
    await create(cluster.bootstrap, "t", partitions=1)
    async with named(cluster, "t") as old:
        await old.send_and_wait("t", b"1")
        async with named(cluster, "t"):
            pass  # takes the name, and writes nothing: the log itself knows of no newer epoch
        cluster.kill_coordinator()
        cluster.start_coordinator()
        cluster.kill_node(await leader(cluster.bootstrap, "t"))
        with pytest.raises((ProducerFencedError, RequestTimeoutError)):
            await old.send_and_wait("t", b"too late")  # its first attempt met the dead leader
        with pytest.raises(ProducerFencedError):
            await old.send_and_wait("t", b"later still")
        async with named(cluster, "t") as new:
            await new.send_and_wait("t", b"2")
    assert await values(cluster.bootstrap, "t") == [b"1", b"2"]


async def test_takeover_waits_for_a_leader_that_does_not_answer(
    healed_cluster: LocalCluster,
) -> None:
    """It might append for as long as it has not been replaced."""
    cluster = healed_cluster
    await create(cluster.bootstrap, "t", partitions=1)
    async with named(cluster, "t") as old:
        await old.send_and_wait("t", b"1")
        paused = await leader(cluster.bootstrap, "t")
        cluster.node(paused).pause()
        try:
            async with named(cluster, "t") as new:
                assert await leader(cluster.bootstrap, "t") != paused
                await new.send_and_wait("t", b"2")
        finally:
            cluster.node(paused).resume()
        # The node that was paused may break the first attempt: its outcome is unknown then.
        with pytest.raises(
            (ProducerFencedError, RequestTimeoutError), match=r"taken (over|the name)"
        ):
            await old.send_and_wait("t", b"too late")
    assert await values(cluster.bootstrap, "t") == [b"1", b"2"]


async def test_a_deleted_name_makes_room_and_shuts_out_who_had_it(
    healed_cluster: LocalCluster,
) -> None:
    """Also at a leader that began after the name was gone, and never heard of it."""
    cluster = healed_cluster
    await create(cluster.bootstrap, "t", partitions=1)
    async with (
        Admin(cluster.bootstrap) as admin,
        named(cluster, "t") as old,
        Producer(cluster.bootstrap, producer_name="quiet", producer_topics=["t"]) as quiet,
    ):
        await old.send_and_wait("t", b"1")
        listed = await admin.list_producer_names()
        assert [each.name for each in listed] == ["importer", "quiet"]
        assert all(each.taken_at_ms for each in listed)
        for each in listed:
            await admin.delete_producer_name(each.name)
        assert await admin.list_producer_names() == []
        with pytest.raises(InvalidRequestError, match="icecore producer list"):
            await admin.delete_producer_name("importer")
        with pytest.raises(ProducerFencedError):
            await old.send_and_wait("t", b"too late")
        async with named(cluster, "t") as new:
            await new.send_and_wait("t", b"2")
        cluster.kill_node(await leader(cluster.bootstrap, "t"))
        with pytest.raises((ProducerFencedError, RequestTimeoutError)):
            await quiet.send_and_wait("t", b"its first, and too late")
    assert await values(cluster.bootstrap, "t") == [b"1", b"2"]
