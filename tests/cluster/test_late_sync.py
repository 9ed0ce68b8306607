"""Topics with flush_mode=async: bursts, and machines that stop (R80, R82)."""

import sqlite3
from collections.abc import Iterable

import pytest

from icecore.dev import LocalCluster
from icecore.topic_settings import FlushMode
from tests.cluster.test_restart import check_kept, create_kept, fill_kept, is_lossy, kill_everything
from tests.cluster.traffic import create, numbered, produce, read_all

NODES = (1, 2, 3)


def as_after_a_power_cut(cluster: LocalCluster, node_ids: Iterable[int]) -> None:
    """Another boot; what was not synced may be gone, for all that the node can know."""
    for node_id in node_ids:
        with sqlite3.connect(cluster.folder / f"node-{node_id}" / "control.db") as control:
            control.execute("UPDATE meta SET value = CAST('x' AS BLOB) WHERE key = 'boot_id'")
        control.close()


async def test_bursts_that_are_due_at_once(shared_cluster: LocalCluster) -> None:
    """More than ``flush_bytes`` in many logs of a worker at the same time, again and again."""
    address, topic = shared_cluster.bootstrap, "bursts"
    await create(
        address,
        topic,
        partitions=16,
        segment_bytes=256 << 20,
        flush_mode=FlushMode.ASYNC,
        flush_bytes=64 << 10,
    )
    before = await produce(address, topic, numbered(0, 60_000, 1_000))
    assert await read_all(address, topic) == before


@pytest.mark.timeout(400)
async def test_machines_that_stop_one_after_a_clean_stop_and_all_at_once(
    own_cluster: LocalCluster,
) -> None:
    cluster = own_cluster
    await create_kept(cluster.bootstrap, on_total_loss="restart_empty")
    logs = await fill_kept(cluster.bootstrap, {}, 0)

    kill_everything(cluster)
    as_after_a_power_cut(cluster, [2])
    cluster.start()
    await check_kept(cluster.bootstrap, logs)
    assert not await is_lossy(cluster.bootstrap), "the others had every record"

    logs = await fill_kept(cluster.bootstrap, logs, 10_000)
    assert cluster.stop() == []  # nobody had to be killed
    as_after_a_power_cut(cluster, NODES)
    cluster.start()
    await check_kept(cluster.bootstrap, logs)
    assert not await is_lossy(cluster.bootstrap), "a clean stop needs no page cache"

    logs = await fill_kept(cluster.bootstrap, logs, 20_000)
    # The coordinator goes with them, so that nobody has a last copy synced meanwhile.
    kill_everything(cluster)
    as_after_a_power_cut(cluster, NODES)
    cluster.start()
    logs = await fill_kept(cluster.bootstrap, logs, 30_000)
    await check_kept(cluster.bootstrap, logs, lossy="late")
    assert await is_lossy(cluster.bootstrap), "all can be proved, and the partition went on"
