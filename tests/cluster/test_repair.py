"""A sealed copy rots on disk: whoever reads it is sent away, and it is replaced by a good one."""

import asyncio

from icecore import Admin
from icecore.dev import LocalCluster
from icecore.errors import IcecoreError
from icecore.model import Segment, SegmentState
from icecore.net import GrpcNet
from tests.chaos.damage import flip_bit, segment_file
from tests.cluster.traffic import create, numbered, produce, read_all
from tests.simulation.observer import Observer

VICTIM = 2


async def until_readable(cluster: LocalCluster, segment: Segment) -> None:
    """Wait until the victim returns all of a segment again."""
    net = GrpcNet()
    observer = Observer(net, cluster.bootstrap)
    address = cluster.addresses[VICTIM]
    try:
        async with asyncio.timeout(30):
            while True:
                try:
                    content = await observer.read_replica(address, VICTIM, segment)
                    break
                except IcecoreError:
                    await asyncio.sleep(0.2)
    finally:
        await net.close()
    assert len(content.records) == segment.end_offset - segment.base_offset


async def test_rotten_sealed_copy_is_replaced(own_cluster: LocalCluster) -> None:
    cluster, topic = own_cluster, "t"
    await create(cluster.bootstrap, topic, partitions=1, segment_bytes=64 << 10)
    written = await produce(cluster.bootstrap, topic, numbered(0, 3000), batch_bytes=4096)
    async with Admin(cluster.bootstrap) as admin:
        found = await admin.list_segments(topic)
    sealed = next(
        each
        for each in found
        if each.state is SegmentState.SEALED and VICTIM in each.replicas and each.full_digest
    )
    cluster.stop_node(VICTIM)
    path = segment_file(cluster.folder / f"node-{VICTIM}", sealed)
    assert path is not None
    assert flip_bit(path, 10_000)
    cluster.start_node(VICTIM)

    await until_readable(cluster, sealed)

    assert await read_all(cluster.bootstrap, topic) == written
    assert list(path.parent.glob(f"{path.name}.quarantined*"))  # never patched, never thrown away
