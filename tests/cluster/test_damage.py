"""Bits flip, files lose their ends, folders vanish: no wrong byte is read, copies come back."""

import asyncio
import random
import shutil
from collections.abc import Callable
from pathlib import Path

from icecore import Admin
from icecore.dev import LocalCluster
from icecore.errors import IcecoreError
from icecore.model import Segment, SegmentState
from icecore_node.storage.inspect import verify_folder
from tests.chaos.damage import flip_bit, segment_file, truncate
from tests.cluster.raw import RawClient
from tests.cluster.traffic import Log, create, merged, numbered, produce, read_all

TOPIC = "t"
SEGMENT_BYTES = 64 << 10


async def filled(cluster: LocalCluster, records: int = 2000) -> Log:
    """One partition with several sealed segments and an active one."""
    await create(cluster.bootstrap, TOPIC, partitions=1, segment_bytes=SEGMENT_BYTES)
    return await produce(
        cluster.bootstrap, TOPIC, numbered(0, records), linger_ms=1, batch_bytes=8 << 10
    )


async def with_active(cluster: LocalCluster, log: Log) -> tuple[Log, Segment]:
    """Add some records behind the last roll; all records, and the segment where the new are."""
    whole = log
    while True:
        more = await produce(cluster.bootstrap, TOPIC, numbered(90_000, 100), batch_bytes=2 << 10)
        whole = merged(whole, more)
        tail = await settled_tail(cluster, len(whole[0]))
        if tail.base_offset < len(whole[0]):  # else they were what filled the one before
            return whole, tail


async def settled_tail(cluster: LocalCluster, high_watermark: int) -> Segment:
    """The active segment, once the coordinator has heard of all records and no roll is due."""
    async with Admin(cluster.bootstrap) as admin, asyncio.timeout(60):
        while True:
            (described,) = await admin.describe_topics([TOPIC])
            *sealed, tail = await segments(cluster)
            tail_bytes = described.partitions[0].length_bytes - sum(s.length_bytes for s in sealed)
            if (
                described.partitions[0].high_watermark == high_watermark
                and tail.state is SegmentState.ACTIVE
                and all(each.state is SegmentState.SEALED for each in sealed)
                and tail_bytes < tail.settings.segment_bytes
            ):
                return tail
            await asyncio.sleep(0.05)


async def segments(cluster: LocalCluster) -> list[Segment]:
    async with Admin(cluster.bootstrap) as admin:
        return await admin.list_segments(TOPIC)


async def a_sealed_one(cluster: LocalCluster, timeout_s: float = 60.0) -> Segment:
    """The oldest, which may be sealed a moment after its last record was acknowledged."""
    async with asyncio.timeout(timeout_s):
        while True:
            for each in await segments(cluster):
                if each.state is SegmentState.SEALED:
                    return each
            await asyncio.sleep(0.1)


def file_of(cluster: LocalCluster, node_id: int, segment: Segment) -> Path:
    found = segment_file(cluster.folder / f"node-{node_id}", segment)
    assert found is not None
    return found


async def wait_whole(cluster: LocalCluster, timeout_s: float = 60.0) -> None:
    """Wait until each segment has all its copies: sealed ones as files, the active one in sync."""
    async with Admin(cluster.bootstrap) as admin, asyncio.timeout(timeout_s):
        while True:
            found = [each for each in await segments(cluster) if not each.is_skipped]
            missing = [each for each in found if not _is_whole(cluster, each)]
            if not missing and not (await admin.describe_cluster()).under_replicated:
                return
            await asyncio.sleep(0.1)


def _is_whole(cluster: LocalCluster, segment: Segment) -> bool:
    copies = segment.replicas if segment.state is SegmentState.SEALED else segment.isr
    files = [
        file
        for node_id in copies
        for folder in cluster.folder.glob(f"node-{node_id}*")  # its disks
        if (file := segment_file(folder, segment))
    ]
    return len(files) >= len(copies) >= segment.settings.replication_factor


async def wait_until(is_so: Callable[[], bool], timeout_s: float = 60.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not is_so():  # noqa: ASYNC110 - another process decides
            await asyncio.sleep(0.1)


def aside(cluster: LocalCluster, node_id: int) -> list[Path]:
    """Files that a node has set aside."""
    return sorted((cluster.folder / f"node-{node_id}").glob("segments/*/*/*.quarantined*"))


async def read_from(cluster: LocalCluster, node_id: int, expected: Log) -> int:
    """Ask one node for everything: each record is right, or there is an error; how many came."""
    count = 0
    offset, end = 0, len(expected[0])
    async with RawClient(cluster.bootstrap) as client:
        while offset < end:
            try:
                header = await client.fetch(cluster.addresses[node_id], TOPIC, offset)
            except IcecoreError:
                return count
            [part] = header.partitions
            if not part.records:
                offset += 1  # skip what this node can't serve
                continue
            for record in part.records:
                assert (record.offset, record.value) == expected[0][record.offset]
            count += len(part.records)
            offset = part.next_offset
    return count


async def verified(cluster: LocalCluster, *, copies: int = 3) -> None:
    """Stop everything; each sealed segment has intact, equal copies on so many disks. Nodes that
    stop may seal one more, and not all of them hear of that."""
    await wait_whole(cluster)
    held = [each for each in await segments(cluster) if each.state is SegmentState.SEALED]
    sealed = {each.segment_id for each in held if not each.is_skipped}
    assert cluster.stop() == []
    digests: dict[int, list[str]] = {}
    for node_id in cluster.addresses:
        for each in verify_folder(cluster.folder / f"node-{node_id}"):
            assert not each.problem, each
            if each.state == "sealed":
                digests.setdefault(each.segment_id, []).append(each.full_digest)
    assert digests and digests.keys() >= sealed
    for segment_id, found in digests.items():
        assert len(found) == copies or segment_id not in sealed
        assert len(set(found)) == 1


async def test_bit_rot_of_a_running_node_is_found_by_its_reader(own_cluster: LocalCluster) -> None:
    cluster = own_cluster
    log = await filled(cluster)
    damaged = await a_sealed_one(cluster)
    cluster.stop_node(2)
    cluster.start_node(2)  # nothing of it is in memory any more
    assert flip_bit(file_of(cluster, 2, damaged), random.Random(1))

    assert await read_from(cluster, 2, log) < len(log[0])
    assert await read_all(cluster.bootstrap, TOPIC) == log
    await wait_until(lambda: len(aside(cluster, 2)) == 1)
    await wait_whole(cluster)

    assert await read_from(cluster, 2, log) == len(log[0])
    await verified(cluster)


async def test_bit_rot_of_a_stopped_node_is_found_by_the_scrub(own_cluster: LocalCluster) -> None:
    cluster = own_cluster
    log = await filled(cluster)
    damaged = await a_sealed_one(cluster)
    cluster.stop_node(3)
    assert flip_bit(file_of(cluster, 3, damaged), random.Random(2))
    cluster.start_node(3)

    await wait_until(lambda: len(aside(cluster, 3)) == 1)  # nobody has read anything
    await wait_whole(cluster)

    assert await read_all(cluster.bootstrap, TOPIC) == log
    await verified(cluster)


async def test_short_sealed_file_is_repaired(own_cluster: LocalCluster) -> None:
    cluster = own_cluster
    log = await filled(cluster)
    damaged = await a_sealed_one(cluster)
    cluster.kill_node(1)
    assert truncate(file_of(cluster, 1, damaged), random.Random(3))
    cluster.start_node(1)

    await wait_until(lambda: len(aside(cluster, 1)) == 1)
    await wait_whole(cluster)

    assert await read_all(cluster.bootstrap, TOPIC) == log
    await verified(cluster)


async def test_folders_in_the_place_of_files_end_no_node(own_cluster: LocalCluster) -> None:
    cluster = own_cluster
    log = await filled(cluster)
    damaged = await a_sealed_one(cluster)
    index = file_of(cluster, 1, damaged).with_suffix(".idx")
    await wait_until(index.is_file)
    cluster.kill_node(1)
    for path in (index, file_of(cluster, 1, damaged)):
        path.unlink()
        path.mkdir()
        (path / "somebody's").touch()
    cluster.start_node(1)

    await wait_until(lambda: len(aside(cluster, 1)) == 2)
    await wait_whole(cluster)
    await wait_until(lambda: index.is_file() and cluster.dead() == [])

    assert await read_all(cluster.bootstrap, TOPIC) == log


async def test_follower_that_lost_its_log_is_replaced_soon(own_cluster: LocalCluster) -> None:
    cluster = own_cluster
    log, active = await with_active(cluster, await filled(cluster))
    victim = next(each for each in active.replicas if each != active.leader)
    cluster.stop_node(victim)
    assert truncate(file_of(cluster, victim, active), random.Random(4))
    cluster.start_node(victim)

    await wait_whole(cluster)

    log = merged(log, await produce(cluster.bootstrap, TOPIC, numbered(2000, 500)))
    assert await read_all(cluster.bootstrap, TOPIC) == log
    await verified(cluster)


async def test_replaced_folder_counts_for_nothing_and_is_filled_again(
    own_cluster: LocalCluster,
) -> None:
    cluster = own_cluster
    log = await filled(cluster)
    cluster.kill_node(2)
    shutil.rmtree(cluster.folder / "node-2")
    cluster.start_node(2)

    await wait_until(lambda: any((cluster.folder / "node-2").glob("segments/*/*/*.log")))
    await wait_whole(cluster)

    log = merged(log, await produce(cluster.bootstrap, TOPIC, numbered(2000, 500)))
    assert await read_all(cluster.bootstrap, TOPIC) == log
    await verified(cluster)


async def test_old_copy_of_a_folder_counts_for_nothing(own_cluster: LocalCluster) -> None:
    cluster = own_cluster
    log = await filled(cluster)
    folder, old = cluster.folder / "node-2", cluster.folder / "old"
    cluster.stop_node(2)
    shutil.copytree(folder, old)
    cluster.start_node(2)
    log = merged(log, await produce(cluster.bootstrap, TOPIC, numbered(2000, 1000)))
    cluster.kill_node(2)
    shutil.rmtree(folder)
    old.rename(folder)

    cluster.start_node(2)
    await read_from(cluster, 2, log)
    cluster.kill_node(2)
    cluster.start_node(2)  # by now its incarnation is the newest, its logs are as old as before
    await wait_whole(cluster)

    log = merged(log, await produce(cluster.bootstrap, TOPIC, numbered(3000, 500)))
    assert await read_all(cluster.bootstrap, TOPIC) == log
    await verified(cluster)


async def test_leader_gives_up_a_segment_that_it_cannot_read(tmp_path: Path) -> None:
    node_settings = {"tail_cache_bytes": 1, "scrub_bytes_per_s": 0}  # all reads are from disk
    with LocalCluster(tmp_path / "cluster", nodes=3, node_settings=node_settings) as cluster:
        log, active = await with_active(cluster, await filled(cluster))
        assert flip_bit(file_of(cluster, active.leader, active), random.Random(8))

        await read_from(cluster, active.leader, log)
        await wait_until(lambda: len(aside(cluster, active.leader)) == 1)
        await wait_whole(cluster)

        log = merged(log, await produce(cluster.bootstrap, TOPIC, numbered(95_000, 500)))
        assert await read_all(cluster.bootstrap, TOPIC) == log
        await verified(cluster)
