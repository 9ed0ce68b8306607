"""With every copy gone, the cluster gives up nothing by itself; it records what an admin gives
up."""

import asyncio
import json
import random
import sqlite3
import subprocess
import sys

import pytest

from icecore import Admin
from icecore.dev import LocalCluster
from icecore.errors import InvalidRequestError
from icecore.model import OFFSETS_LEFT_OUT, SegmentState
from tests.chaos.damage import flip_bit, truncate
from tests.cluster.test_damage import (
    TOPIC,
    a_sealed_one,
    file_of,
    filled,
    segments,
    verified,
    wait_until,
    wait_whole,
    with_active,
)
from tests.cluster.traffic import create, numbered, produce, read_all
from tests.support.clusters import kill_together


def icecore(cluster: LocalCluster, *arguments: str) -> str:
    """Run the command line; its standard output."""
    command = [sys.executable, "-m", "icecore.cli", "--bootstrap", cluster.bootstrap, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


async def stays_undecided(cluster: LocalCluster, segment_id: int) -> None:
    """Wait for two more recoveries that could decide nothing: it stays as it is."""
    log = cluster.coordinator.log_path
    said = f"event=recovery_undecided segment_id={segment_id} "
    before = log.read_text().count(said)
    await wait_until(lambda: log.read_text().count(said) >= before + 2)
    recovering = [each for each in await segments(cluster) if each.state is SegmentState.RECOVERING]
    assert [each.segment_id for each in recovering] == [segment_id]


async def test_lost_segment_is_skipped_only_when_an_admin_says_so(
    own_cluster: LocalCluster,
) -> None:
    cluster = own_cluster
    log, _ = await with_active(cluster, await filled(cluster))
    lost = await a_sealed_one(cluster)
    async with Admin(cluster.bootstrap) as admin:
        with pytest.raises(InvalidRequestError, match="verified copies"):
            await admin.declare_lost(TOPIC, 0, lost.segment_id)
    files = [file_of(cluster, node_id, lost) for node_id in (1, 2, 3)]
    cluster.stop(kill=True)
    for path in files:
        assert flip_bit(path, random.Random(5))
    cluster.start()
    async with asyncio.timeout(60), Admin(cluster.bootstrap) as admin:
        while True:  # until all three have been found out; the last one stays listed
            listed = next(s for s in await segments(cluster) if s.segment_id == lost.segment_id)
            if len(listed.replicas) == 1:
                break
            await asyncio.sleep(0.1)
    with pytest.raises(TimeoutError):
        await read_all(cluster.bootstrap, TOPIC, timeout_s=1.0)

    icecore(cluster, "segment", "declare-lost", TOPIC, "0", str(lost.segment_id), "--yes")

    left = [(at, v) for at, v in log[0] if not lost.base_offset <= at < lost.end_offset]
    assert await read_all(cluster.bootstrap, TOPIC) == {0: left}
    listed = json.loads(icecore(cluster, "--json", "segment", "list", TOPIC))["items"]
    assert [each["segment_id"] for each in listed if each["lossy"]] == [lost.segment_id]
    await wait_whole(cluster)  # the active one too: nodes come back one by one
    async with Admin(cluster.bootstrap) as admin:
        [topic] = await admin.describe_topics([TOPIC])
        assert topic.partitions[0].lossy_segments == 1


async def test_undecidable_segment_ends_at_the_longest_copy_left(
    healed_cluster: LocalCluster,
) -> None:
    cluster = healed_cluster
    log, active = await with_active(cluster, await filled(cluster))
    files = {node_id: file_of(cluster, node_id, active) for node_id in (1, 2)}
    kill_together(cluster, (1, 2, 3))
    for path in files.values():  # two of three: any acknowledged record may have been on these
        assert truncate(path, random.Random(6))
    for node_id in (1, 2, 3):
        cluster.start_node(node_id)
    await stays_undecided(cluster, active.segment_id)

    icecore(cluster, "segment", "recover-unclean", TOPIC, "0", str(active.segment_id), "--yes")

    sealed = next(s for s in await segments(cluster) if s.segment_id == active.segment_id)
    assert (sealed.state, sealed.lossy) == (SegmentState.SEALED, True)
    kept = await read_all(cluster.bootstrap, TOPIC)
    assert kept[0] == log[0][: len(kept[0])]
    more = await produce(cluster.bootstrap, TOPIC, numbered(5000, 100))
    assert more[0][0][0] >= len(log[0]) + OFFSETS_LEFT_OUT  # no offset is given out twice
    assert await read_all(cluster.bootstrap, TOPIC) == {0: kept[0] + more[0]}


async def test_logs_that_no_disk_vouches_for_still_give_back_every_record(
    own_cluster: LocalCluster,
) -> None:
    cluster = own_cluster
    log, active = await with_active(cluster, await filled(cluster, records=500))
    kill_together(cluster, (1, 2, 3))
    for node_id in (1, 2, 3):  # as after a sync that failed: what is not sealed is UNKNOWN
        with sqlite3.connect(cluster.folder / f"node-{node_id}" / "control.db") as control:
            control.execute("INSERT INTO meta VALUES ('poisoned', CAST('fsync: a test' AS BLOB))")
        control.close()
    for node_id in (1, 2, 3):
        cluster.start_node(node_id)
    await stays_undecided(cluster, active.segment_id)

    icecore(cluster, "segment", "recover-unclean", TOPIC, "0", str(active.segment_id), "--yes")

    sealed = next(s for s in await segments(cluster) if s.segment_id == active.segment_id)
    assert (sealed.state, sealed.lossy) == (SegmentState.SEALED, True)
    assert await read_all(cluster.bootstrap, TOPIC) == log
    more = await produce(cluster.bootstrap, TOPIC, numbered(5000, 100))
    assert await read_all(cluster.bootstrap, TOPIC) == {0: log[0] + more[0]}
    await verified(cluster)


async def test_partition_goes_on_behind_a_segment_without_any_copy(
    healed_cluster: LocalCluster,
) -> None:
    cluster = healed_cluster
    await create(
        cluster.bootstrap, TOPIC, partitions=1, replication_factor=1, min_insync_replicas=1
    )
    log, active = await with_active(cluster, {})
    path = file_of(cluster, active.leader, active)
    cluster.kill_node(active.leader)
    path.unlink()
    cluster.start_node(active.leader)
    await stays_undecided(cluster, active.segment_id)

    icecore(cluster, "segment", "recover-unclean", TOPIC, "0", str(active.segment_id), "--yes")

    lost = (await segments(cluster))[0]
    assert (lost.is_lost, lost.end_offset) == (True, len(log[0]))
    more = await produce(cluster.bootstrap, TOPIC, numbered(200, 100))
    assert more[0][0][0] == len(log[0]) + OFFSETS_LEFT_OUT  # no offset is given out twice
    assert await read_all(cluster.bootstrap, TOPIC) == more
