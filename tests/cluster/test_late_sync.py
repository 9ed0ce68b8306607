"""Topics with flush_mode=async: a killed process, a machine that stopped (R80, R82)."""

import sqlite3
from collections.abc import Iterable

from icecore.dev import LocalCluster
from icecore.model import FlushMode
from tests.cluster.test_damage import TOPIC, segments
from tests.cluster.test_restart import kill_everything
from tests.cluster.traffic import create, merged, numbered, produce, read_all

NODES = (1, 2, 3)


async def create_late(cluster: LocalCluster, on_total_loss: str = "") -> None:
    """So late that nothing is synced during a test."""
    await create(
        cluster.bootstrap,
        TOPIC,
        partitions=2,
        flush_mode=FlushMode.ASYNC,
        flush_interval_ms=600_000,
        on_total_loss=on_total_loss,
    )


def kill_together(cluster: LocalCluster) -> None:
    """The coordinator first, so that nobody has a last copy synced while the others are gone."""
    cluster.kill_coordinator()
    kill_everything(cluster)


def as_after_a_power_cut(cluster: LocalCluster, node_ids: Iterable[int]) -> None:
    """Another boot; what was not synced may be gone, for all that the node can know."""
    for node_id in node_ids:
        with sqlite3.connect(cluster.folder / f"node-{node_id}" / "control.db") as control:
            control.execute("UPDATE meta SET value = CAST('x' AS BLOB) WHERE key = 'boot_id'")
        control.close()


async def test_killed_processes_cost_nothing(own_cluster: LocalCluster) -> None:
    cluster = own_cluster
    await create_late(cluster)
    before = await produce(cluster.bootstrap, TOPIC, numbered(0, 3000))
    kill_everything(cluster)
    cluster.start()
    assert await read_all(cluster.bootstrap, TOPIC) == before
    after = await produce(cluster.bootstrap, TOPIC, numbered(3000, 1000))
    assert await read_all(cluster.bootstrap, TOPIC) == merged(before, after)
    assert not any(each.lossy for each in await segments(cluster))


async def test_bursts_that_are_due_at_once(own_cluster: LocalCluster) -> None:
    """More than ``flush_bytes`` in many logs of a worker at the same time, again and again."""
    cluster = own_cluster
    await create(
        cluster.bootstrap,
        TOPIC,
        partitions=16,
        segment_bytes=256 << 20,
        flush_mode=FlushMode.ASYNC,
        flush_bytes=64 << 10,
    )
    before = await produce(cluster.bootstrap, TOPIC, numbered(0, 60_000, 1_000))
    assert await read_all(cluster.bootstrap, TOPIC) == before


async def test_one_machine_that_stopped_costs_nothing(own_cluster: LocalCluster) -> None:
    cluster = own_cluster
    await create_late(cluster)
    before = await produce(cluster.bootstrap, TOPIC, numbered(0, 500))
    kill_everything(cluster)
    as_after_a_power_cut(cluster, [2])
    cluster.start()
    assert await read_all(cluster.bootstrap, TOPIC) == before
    assert not any(each.lossy for each in await segments(cluster))


async def test_a_clean_stop_needs_no_page_cache(own_cluster: LocalCluster) -> None:
    cluster = own_cluster
    await create_late(cluster)
    before = await produce(cluster.bootstrap, TOPIC, numbered(0, 500))
    assert cluster.stop() == []
    as_after_a_power_cut(cluster, NODES)
    cluster.start()
    assert await read_all(cluster.bootstrap, TOPIC) == before
    assert not any(each.lossy for each in await segments(cluster))


async def test_when_all_machines_stopped_a_partition_goes_on_if_it_may(
    own_cluster: LocalCluster,
) -> None:
    cluster = own_cluster
    await create_late(cluster, on_total_loss="restart_empty")
    before = await produce(cluster.bootstrap, TOPIC, numbered(0, 500))
    kill_together(cluster)
    as_after_a_power_cut(cluster, NODES)
    cluster.start()
    after = await produce(cluster.bootstrap, TOPIC, numbered(500, 100))
    assert await read_all(cluster.bootstrap, TOPIC) == merged(before, after)  # all can be proved
    assert {each.lossy for each in await segments(cluster)} == {True, False}
