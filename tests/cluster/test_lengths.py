"""The coordinator shows as many bytes of a segment as the nodes' files hold."""

import asyncio

from icecore import Admin
from icecore.dev import LocalCluster
from icecore.model import Segment, SegmentState
from icecore_node.storage.inspect import verify_folder
from tests.cluster.traffic import create, numbered, produce


async def the_tail(admin: Admin, topic: str, *, after: int = 0) -> Segment:
    """The active segment, once there is one with a higher id than ``after``."""
    async with asyncio.timeout(60):
        while True:
            (described,) = await admin.describe_topics([topic])
            tail = described.partitions[0].tail
            if tail and tail.segment_id > after and tail.state is SegmentState.ACTIVE:
                return tail
            await asyncio.sleep(0.1)


async def shown_bytes(admin: Admin, topic: str, least: int) -> int:
    """Return the bytes shown for the topic, once the tail's leader has reported all batches."""
    async with asyncio.timeout(30):
        while True:
            (described,) = await admin.describe_topics([topic])
            if (shown := described.partitions[0].length_bytes) >= least:
                return shown
            await asyncio.sleep(0.1)


async def test_lengths_are_those_of_the_files(own_cluster: LocalCluster) -> None:
    cluster, topic = own_cluster, "t"
    await create(cluster.bootstrap, topic, partitions=1)
    async with Admin(cluster.bootstrap) as admin:
        first = await the_tail(admin, topic)
        await produce(cluster.bootstrap, topic, numbered(0, 500))
        await admin.roll_topic(topic)  # sealed by its leader
        second = await the_tail(admin, topic, after=first.segment_id)
        await produce(cluster.bootstrap, topic, numbered(500, 300))
        cluster.kill_node(second.leader)  # sealed by a recovery
        await the_tail(admin, topic, after=second.segment_id)
        await produce(cluster.bootstrap, topic, numbered(800, 200))

        segments = await admin.list_segments(topic)
        sealed = {each.segment_id: each.length_bytes for each in segments if each.end_offset >= 0}
        assert {first.segment_id, second.segment_id} <= sealed.keys()
        shown = await shown_bytes(admin, topic, sum(sealed.values()) + 200 * 100)
    cluster.stop()

    on_disk: dict[int, int] = {}
    for node_id in cluster.addresses.keys() - {second.leader}:
        for report in verify_folder(cluster.folder / f"node-{node_id}"):
            assert on_disk.setdefault(report.segment_id, report.bytes) == report.bytes
    assert all(on_disk[segment_id] == length > 0 for segment_id, length in sealed.items())
    assert sum(on_disk.values()) == shown
