"""Offsets by time are exact, over sealed segments on any node and the active one."""

import asyncio
from datetime import UTC, datetime

from icecore import Admin, Consumer, Producer
from icecore.dev import LocalCluster


def at(timestamp_ms: int) -> datetime:
    return datetime.fromtimestamp(timestamp_ms / 1000, UTC)


async def test_first_offset_appended_at_or_after_a_time(shared_cluster: LocalCluster) -> None:
    topic = "times"
    async with (
        Admin(shared_cluster.bootstrap) as admin,
        Producer(shared_cluster.bootstrap) as producer,
    ):
        await admin.create_topic(topic, partitions=1, replication_factor=2, segment_bytes=65_536)
        for number in range(60):
            handles = [producer.send(topic, bytes(700)) for _ in range(10)]
            await producer.flush()
            await handles[-1]
            await asyncio.sleep(0.003 * (number % 3))
        async with Consumer(shared_cluster.bootstrap, topic, stop_at_end=True) as consumer:
            log = [(record.offset, record.append_timestamp_ms) async for record in consumer]
        assert [offset for offset, _ in log] == list(range(600))
        assert len(await admin.list_segments(topic)) > 3  # the look-up crosses segments

        times = sorted({append_ms for _, append_ms in log})
        asked = [times[0] - 5, *times[:: max(1, len(times) // 12)], times[-1], times[-1] + 5]
        for timestamp_ms in [*asked, *(each + 1 for each in asked)]:
            expected = next((o for o, append_ms in log if append_ms >= timestamp_ms), 600)
            found = (await admin.list_offsets(topic, at(timestamp_ms)))[0]
            assert found.offset == expected, timestamp_ms

        middle = times[len(times) // 2]
        async with Consumer(
            shared_cluster.bootstrap, topic, start=at(middle), stop_at_end=True
        ) as consumer:
            first = await anext(aiter(consumer))
        assert first.offset == next(o for o, append_ms in log if append_ms >= middle)
