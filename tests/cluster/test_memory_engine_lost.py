"""Segments of engine ``memory`` that were sealed and on no disk yet when all processes ended (R98).

What nobody has is lost with one alert, and readers go on. What one node has brought to its disk is
waited for, however long the others have spoken.
"""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from icecore import Admin, Consumer, Lookup
from icecore.dev import LocalCluster
from icecore.model import Segment, SegmentState
from icecore.topic_settings import MEMORY_ENGINE
from tests.cluster.traffic import Log, create, merged, numbered, produce, read_all
from tests.support.tier_places import seal, until

NEVER = ["--timing", '{"index_look_ms": 60000}']
"""A node begins to bring sealed segments to its disk a minute after its start."""
TOPIC = "t"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    yield LocalCluster(tmp_path / "cluster", nodes=3)


async def sealed_in_memory(cluster: LocalCluster, rolls: int) -> tuple[Log, list[Segment]]:
    """Records in segments that are sealed, and in one that is not."""
    bootstrap, parts = cluster.bootstrap, []
    await create(bootstrap, TOPIC, partitions=1, engine=MEMORY_ENGINE)
    async with Admin(bootstrap) as admin:
        for start in range(0, rolls * 100, 100):
            parts.append(await produce(bootstrap, TOPIC, numbered(start, 100)))
            await seal(admin, TOPIC)
        found = [each for each in await admin.list_segments(TOPIC) if each.end_offset >= 0]
    assert [each.end_offset for each in found] == [*range(100, rolls * 100 + 1, 100)]
    return merged(*parts), found


async def alerts(admin: Admin) -> list[str]:
    return [each.why for each in (await admin.describe_cluster()).alerts]


async def test_all_of_it_is_lost_and_everybody_goes_on(cluster: LocalCluster) -> None:
    for node_id in (1, 2, 3):
        cluster.node(node_id).extra += NEVER
    with cluster:
        bootstrap = cluster.bootstrap
        _, sealed = await sealed_in_memory(cluster, 2)
        await produce(bootstrap, TOPIC, numbered(200, 50))
        cluster.stop(kill=True)
        cluster.start()
        bootstrap = cluster.bootstrap
        async with Admin(bootstrap) as admin:

            async def are_lost() -> bool:
                now = {each.segment_id: each for each in await admin.list_segments(TOPIC)}
                return all(now[each.segment_id].is_lost for each in sealed)

            await until(are_lost)
            said = await alerts(admin)
            assert sum("every copy was in memory" in each for each in said) == len(sealed)
            assert not any("damaged" in each for each in said)
        new = await produce(bootstrap, TOPIC, numbered(500, 100))
        assert new[0][0][0] >= 200, "offsets of what was sealed are not given out again"
        assert await read_all(bootstrap, TOPIC, timeout_s=10.0) == new
        async with Lookup(bootstrap, TOPIC) as lookup:
            page = await lookup.find(keys=numbered(500, 1))
            assert [each.offset for each in page.records] == [new[0][0][0]]
            assert len(page.unavailable) == len(sealed)
            assert all("declared lost" in each.error for each in page.unavailable)


async def test_what_one_node_has_on_its_disk_is_waited_for(cluster: LocalCluster) -> None:
    for node_id in (1, 2):
        cluster.node(node_id).extra += NEVER
    with cluster:
        log, [sealed] = await sealed_in_memory(cluster, 1)

        async def is_handed_over() -> bool:
            return "event=handed_over" in cluster.node(3).log_path.read_text()

        await until(is_handed_over)
        cluster.stop(kill=True)
        cluster.start_coordinator()
        for node_id in (1, 2):
            cluster.start_node(node_id)
        async with Admin(cluster.bootstrap) as admin:

            async def have_spoken() -> bool:
                logs = [cluster.node(each).log_path.read_text() for each in (1, 2)]
                return all("kept in memory, and the process ended" in each for each in logs)

            await until(have_spoken)
            await asyncio.sleep(4)  # several looks
            [now] = [
                each
                for each in await admin.list_segments(TOPIC)
                if each.segment_id == sealed.segment_id
            ]
            assert (now.state, now.lossy, now.replicas) == (SegmentState.SEALED, False, (3,))
            cluster.start_node(3)

            async def is_whole() -> bool:
                found = await admin.list_segments(TOPIC)
                return any(
                    each.segment_id == sealed.segment_id and len(each.replicas) == 3
                    for each in found
                )

            await until(is_whole)
            assert not any("every copy was in memory" in each for each in await alerts(admin))
        async with Consumer(cluster.bootstrap, TOPIC) as consumer, asyncio.timeout(10):
            found = [(each.offset, each.value) async for each in head(consumer, 100)]
        assert {0: found} == log


async def head(consumer: Consumer, count: int):  # type: ignore[no-untyped-def]
    """The first records."""
    async for record in consumer:
        yield record
        count -= 1
        if not count:
            return
