"""Records go: by size and age, by hand, and when a disk is nearly full; nobody is surprised.

A small tmpfs under each node's data folder makes the disk real, which needs root (else: skipped).
``DISK_MIB=512 DISK_ROUNDS=75`` is the long form of the test that goes round it: an hour. What is
written while room is made must fit on the disk, which takes a larger one where others work, too.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest

from icecore import Admin, Consumer, Lookup, Producer
from icecore.dev import LocalCluster
from icecore.errors import InvalidRequestError, OffsetOutOfRangeError
from icecore.model import SegmentState
from tests.chaos.disks import DISK_BYTES, SmallDisks
from tests.cluster.traffic import create, numbered, produce, read_all

SEGMENT_BYTES = 64 << 10
KEPT_BYTES = 3 * SEGMENT_BYTES
DISK_ROUNDS = int(os.environ.get("DISK_ROUNDS", "3"))
"""Number of times that the small disk is filled with its size."""
SECONDS_PER_ROUND = 60.0
"""No round takes as long on any machine."""


async def until(is_so: Callable[[], Awaitable[bool]], timeout_s: float = 60.0) -> None:
    async with asyncio.timeout(timeout_s):
        while not await is_so():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def start_of(admin: Admin, topic: str) -> int:
    [described] = await admin.describe_topics([topic])
    return described.partitions[0].log_start_offset


def log_files(cluster: LocalCluster, topic_id: bytes) -> list[int]:
    """Return the number of log files on each node."""
    folders = [cluster.folder / f"node-{each}" / "segments" / topic_id.hex() for each in (1, 2, 3)]
    return [sum(1 for _ in folder.glob("*/*.log")) for folder in folders]


async def follow(bootstrap: str, topic: str, count: int) -> list[int]:
    """The offsets that a consumer gets that keeps up, until it has so many."""
    found: list[int] = []
    async with Consumer(bootstrap, topic) as consumer, asyncio.timeout(90):
        while len(found) < count:
            found += [each.offset for each in await consumer.poll(1.0)]
    return found


async def test_the_oldest_go_and_consumers_go_on(shared_cluster: LocalCluster) -> None:
    address = shared_cluster.bootstrap
    await create(
        address, "size", segment_bytes=SEGMENT_BYTES, retention_bytes=KEPT_BYTES, partitions=1
    )
    count = 1_500
    keeping_up = asyncio.create_task(follow(address, "size", count))
    for start in range(0, count, 100):
        await produce(address, "size", numbered(start, 100, 1_000), batch_bytes=16 << 10)
        await asyncio.sleep(0.1)
    async with Admin(address) as admin:

        async def is_settled() -> bool:
            [described] = await admin.describe_topics(["size"])
            length_bytes = described.partitions[0].length_bytes
            files = log_files(shared_cluster, described.topic_id)
            return length_bytes <= KEPT_BYTES + 2 * SEGMENT_BYTES and max(files) <= 6

        await until(is_settled)
        start = await start_of(admin, "size")
        segments = await admin.list_segments("size")
        assert segments[0].base_offset == start > 0
        kept = sum(each.length_bytes for each in segments)
        assert kept >= KEPT_BYTES - SEGMENT_BYTES, "no more goes than must"
        [earliest] = (await admin.list_offsets("size", "earliest")).values()
        assert earliest.offset == start
    assert await keeping_up == list(range(count))
    await late_readers_are_told(address, "size", start, count)


async def late_readers_are_told(address: str, topic: str, start: int, count: int) -> None:
    async with Consumer(address, topic, start=0, stop_at_end=True) as late:
        with pytest.raises(OffsetOutOfRangeError) as error:
            await late.poll(30.0)
        assert error.value.metadata["log_start_offset"] == str(start)
        assert error.value.metadata["high_watermark"] == str(count)
    async with Consumer(
        address, topic, start=0, stop_at_end=True, on_out_of_range="earliest"
    ) as late:
        found = [record.offset async for record in late]
        assert found == list(range(start, count))
        assert late.skipped_records() == {0: start}
    async with Consumer(address, topic, stop_at_end=True) as fresh:
        assert [record.offset async for record in fresh] == list(range(start, count))
        assert fresh.skipped_records() == {0: 0}
    async with Lookup(address, topic) as lookup:
        page = await lookup.find(from_offset=0, max_count=10)
        assert page.complete and page.records[0].offset == start


async def test_age_seals_a_tail_and_lets_it_go(shared_cluster: LocalCluster) -> None:
    address = shared_cluster.bootstrap
    await create(address, "age", retention_ms=1_500)
    await produce(address, "age", numbered(0, 20))
    async with Admin(address) as admin:

        async def is_empty() -> bool:
            return await start_of(admin, "age") == 20

        await until(is_empty)
        with pytest.raises(InvalidRequestError, match="retention_bytes 5 is below segment_bytes"):
            await admin.alter_topic("age", retention_bytes=5)
        altered = await admin.alter_topic("age", retention_ms=-1)
        assert (altered.settings.retention_ms, altered.settings.on_full) == (-1, "refuse")
        await produce(address, "age", numbered(20, 20))
        await asyncio.sleep(2.5)
        assert await start_of(admin, "age") == 20
    assert [offset for offset, _ in (await read_all(address, "age"))[0]] == list(range(20, 40))


async def test_records_are_deleted_by_hand(shared_cluster: LocalCluster) -> None:
    address = shared_cluster.bootstrap
    await create(address, "hand", segment_bytes=SEGMENT_BYTES, partitions=2)
    async with Producer(address, batch_bytes=16 << 10) as producer:
        for number, value in enumerate(numbered(0, 300, 1_000)):
            await producer.send_wait("hand", value, partition=0)
            if number % 75 == 74:
                await producer.flush()
                await asyncio.sleep(0.3)  # for a roll
    async with Admin(address) as admin:

        async def is_sealed() -> bool:
            return len(await admin.list_segments("hand", [0])) >= 4

        await until(is_sealed)
        segments = await admin.list_segments("hand", [0])
        middle = segments[1].base_offset + 5
        [would] = await admin.delete_records("hand", {0: middle}, dry_run=True)
        assert (would.from_offset, would.log_start_offset) == (0, middle)
        assert [each.segment_id for each in would.segments] == [segments[0].segment_id]
        assert await start_of(admin, "hand") == 0
        for wrong, why in (
            ({0: middle, 1: 1}, OffsetOutOfRangeError),
            ({0: 301}, OffsetOutOfRangeError),
            ({0: middle, 9: 0}, InvalidRequestError),
            ({}, InvalidRequestError),
        ):
            with pytest.raises(why):
                await admin.delete_records("hand", wrong)
        assert await start_of(admin, "hand") == 0, "nothing of a request that is wrong happens"
        [done] = await admin.delete_records("hand", {0: middle})
        assert (done.from_offset, done.log_start_offset) == (0, middle)
        [again] = await admin.delete_records("hand", {0: 3})
        assert again.from_offset == again.log_start_offset == middle
        assert [offset for offset, _ in (await read_all(address, "hand"))[0]] == list(
            range(middle, 300)
        )

        async def is_gone() -> bool:
            found = await admin.list_segments("hand", [0])
            return found[0].segment_id == segments[1].segment_id

        await until(is_gone)
        await admin.delete_records("hand", {0: 300})
        assert (await read_all(address, "hand")).get(0, []) == []

        async def is_tail_left() -> bool:
            found = await admin.list_segments("hand", [0])
            return [each.state for each in found] == [SegmentState.ACTIVE]

        await until(is_tail_left)
    acked = await produce(address, "hand", numbered(300, 20))
    assert await read_all(address, "hand") == acked


@pytest.mark.timeout(120 + SECONDS_PER_ROUND * DISK_ROUNDS)
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a tmpfs needs root")
async def test_a_topic_that_may_goes_round_a_small_disk(tmp_path: Path) -> None:
    """Several times the disk's size, without an error; who keeps up gets all of it."""
    folder = tmp_path / "cluster"
    settings = {
        "preallocate_bytes": 1 << 20,
        "recycle_bytes_max": 0,
        "disk_free_bytes_min": 1 << 30,
        "disk_reclaim_percent": 50,
    }
    nodes = (1, 2, 3)
    with (
        SmallDisks(folder, nodes),
        LocalCluster(folder, nodes=3, node_settings=settings) as cluster,
    ):
        address = cluster.bootstrap
        await create(address, "round", segment_bytes=4 << 20, on_full="delete_oldest", partitions=2)
        await create(address, "stays", segment_bytes=SEGMENT_BYTES, partitions=1)
        stays = await produce(address, "stays", numbered(0, 300, 1_000))
        count, size = DISK_ROUNDS * DISK_BYTES // (64 << 10), 64 << 10
        keeping_up = asyncio.create_task(follow_all(address, "round", count))
        most = 0.0
        async with Producer(address) as producer:
            for start in range(0, count, 64):
                for value in numbered(start, min(64, count - start), size):
                    await producer.send_wait("round", value, key=value[:8])
                await producer.flush()
                disks = [os.statvfs(folder / f"node-{each}") for each in nodes]
                most = max(most, *(1 - each.f_bavail / each.f_blocks for each in disks))
                await asyncio.sleep(0.25)
        assert most < 0.9, "it was READ_ONLY"
        found = await keeping_up
        assert sum(len(each) for each in found.values()) == count
        assert all(each == list(range(len(each))) for each in found.values())
        async with Consumer(
            address, "round", start=0, stop_at_end=True, on_out_of_range="earliest"
        ) as late:
            read = sum([1 async for _ in late])
            assert read + sum(late.skipped_records().values()) == count
            assert all(late.skipped_records().values())
        assert await read_all(address, "stays") == stays, "others keep what they have"


async def test_a_disk_that_cannot_be_measured_costs_a_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk seems nearly full for ever: deleting makes no room, so it ends."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os\n"
        "real = os.fstatvfs\n"
        "blocks = (1 << 12, 1 << 12, 1 << 24, 1 << 21, 1 << 21)\n"  # an eighth of 64 GiB is free
        "os.fstatvfs = lambda file: os.statvfs_result(blocks + tuple(real(file))[5:])\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    nodes, coordinator = {"disk_free_bytes_min": 1 << 50}, {"reclaim_slack_bytes": 0}
    with LocalCluster(
        tmp_path / "cluster", nodes=3, node_settings=nodes, coordinator_settings=coordinator
    ) as cluster:
        address, segments = cluster.bootstrap, 12
        await create(address, "unmeasured", partitions=1)
        async with Admin(address) as admin:

            async def is_sealed(least: int) -> bool:
                found = await admin.list_segments("unmeasured")
                return sum(each.state == SegmentState.SEALED for each in found) > least

            async def is_told() -> bool:
                alerts = [each.why for each in (await admin.describe_cluster()).alerts]
                return sum("bytes of room on its disk" in each for each in alerts) == 3

            for number in range(segments):
                await produce(address, "unmeasured", numbered(100 * number, 100))
                await admin.roll_topic("unmeasured")
                await until(partial(is_sealed, number))
            assert await start_of(admin, "unmeasured") == 0
            await admin.alter_topic("unmeasured", on_full="delete_oldest")
            await until(is_told)
            start = await start_of(admin, "unmeasured")
            assert 0 < start <= 100 * segments // 2
            await asyncio.sleep(3.0)  # several looks later
            assert await start_of(admin, "unmeasured") == start
        await produce(address, "unmeasured", numbered(90_000, 20))


async def follow_all(bootstrap: str, topic: str, count: int) -> dict[int, list[int]]:
    """As ``follow``, of several partitions."""
    found: dict[int, list[int]] = {}
    timeout_s = 60 + SECONDS_PER_ROUND * DISK_ROUNDS
    async with Consumer(bootstrap, topic) as consumer, asyncio.timeout(timeout_s):
        while sum(len(each) for each in found.values()) < count:
            for record in await consumer.poll(1.0):
                found.setdefault(record.partition, []).append(record.offset)
    return found
