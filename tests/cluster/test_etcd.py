"""A cluster whose coordinator has its metadata in etcd: the coordinator dies, members of etcd die
and stand still, all under load, and nothing that was acknowledged is lost."""

import asyncio
import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from icecore import Admin
from icecore.dev import LocalCluster
from icecore.errors import OutOfSpaceError
from tests.cluster.test_adopt import REMEMBERED_S, World, all_told, healthy, icecore
from tests.cluster.test_old_metadata import starts_and_waits
from tests.cluster.traffic import (
    CHANGE_WITHIN_S,
    create,
    load,
    merged,
    next_change,
    numbered,
    produce,
    read_all,
    topic_names,
)
from tests.support.clusters import LEASE_MS, running
from tests.support.etcd import NEEDS_MEMBERS, EtcdMembers, running_members

pytestmark = NEEDS_MEMBERS


@contextlib.contextmanager
def cluster_on(etcd: EtcdMembers, folder: Path, **more: int) -> Iterator[LocalCluster]:
    settings = {"lease_ms": LEASE_MS, "etcd": {"endpoints": ",".join(etcd.endpoints), **more}}
    with running(LocalCluster(folder, 3, coordinator_settings=settings)) as cluster:
        yield cluster


async def test_a_coordinator_on_etcd_dies_and_starts_again(tmp_path: Path) -> None:
    """Also in an empty folder: all that it knows is in etcd."""
    with running_members(tmp_path / "etcd", 1) as etcd, cluster_on(etcd, tmp_path / "c") as cluster:
        await create(cluster.bootstrap, "rolled", partitions=3, segment_bytes=64 << 10)
        rolled = await produce(cluster.bootstrap, "rolled", numbered(0, 2000, 200))
        await create(cluster.bootstrap, "t", partitions=3)
        # Asked for at the node, which hears of a new topic a moment later.
        before = await produce(cluster.addresses[1], "t", numbered(0, 2000, 200))
        cluster.kill_coordinator()
        during = await produce(cluster.addresses[1], "t", numbered(2000, 200))
        cluster.start_coordinator()
        after = await produce(cluster.bootstrap, "t", numbered(2200, 2000, 200))
        assert await read_all(cluster.bootstrap, "t") == merged(merged(before, during), after)
        assert await read_all(cluster.bootstrap, "rolled") == rolled
        known = cluster.folder / "coordinator" / "metadata.etcd.json"
        assert json.loads(known.read_text())["prefix"] == "icecore/"
        cluster.kill_coordinator()
        known.unlink()
        cluster.start_coordinator()
        assert await next_change(cluster.bootstrap, topic_names()) < CHANGE_WITHIN_S


async def test_metadata_move_into_etcd_and_out_of_it(tmp_path: Path) -> None:
    """By a backup of a coordinator that does not run: nobody waits for a person."""
    with (
        running_members(tmp_path / "etcd", 1) as etcd,
        running(LocalCluster(tmp_path / "c", 3, coordinator_settings={"lease_ms": LEASE_MS})) as c,
    ):
        await create(c.bootstrap, "t", partitions=3)
        log = await produce(c.bootstrap, "t", numbered(0, 500))
        config, folder, file = c.folder / "icecore.toml", c.folder / "coordinator", tmp_path / "b"
        plain = config.read_text()
        in_etcd = f'{plain}\n[coordinator.etcd]\nendpoints = "{etcd.endpoints[0]}"\n'
        for number, new in enumerate((in_etcd, plain)):
            c.kill_coordinator()
            moved, here = str(tmp_path / f"moved-{number}"), str(folder)
            words = ("--data", here, "--config", str(config))
            await icecore(c, "cluster", "backup", str(file), *words)
            folder.rename(moved)
            config.write_text(new)
            await icecore(c, "cluster", "restore", str(file), *words)
            again = await icecore(c, "cluster", "restore", str(file), *words, status=1)
            assert "not empty, so nothing was changed" in again
            c.start_coordinator()
            await icecore(c, "cluster", "health", "--wait", "60")
            more = await produce(c.bootstrap, "t", numbered(500 * (number + 1), 500))
            log = merged(log, more)
            assert await read_all(c.bootstrap, "t") == log
        assert (folder / "metadata.sqlite3").exists()


async def test_a_full_etcd_refuses_topics_and_ends_nobody(tmp_path: Path) -> None:
    """R120: whoever asks hears why, records go on, and nobody restarts anything afterwards."""
    flags = ["--quota-backend-bytes=8388608"]
    with (
        running_members(tmp_path / "etcd", 1, flags) as etcd,
        # While etcd is full nobody can be elected, and filling it may keep the disk busy for long.
        cluster_on(etcd, tmp_path / "c", session_ms=30_000) as cluster,
    ):
        await create(cluster.bootstrap, "t", partitions=3)
        before, pid = await produce(cluster.bootstrap, "t", numbered(0, 200)), cluster.pids
        await asyncio.to_thread(etcd.fill)
        async with Admin(cluster.bootstrap) as admin:
            with pytest.raises(OutOfSpaceError, match="etcdctl alarm disarm"):
                await admin.create_topic("refused")
        after = await produce(cluster.bootstrap, "t", numbered(200, 200))
        await asyncio.sleep(3)  # all that looks once a second has looked
        health = await icecore(cluster, "cluster", "health", status=10)
        assert "it waits for a person: etcd has no space left" in health
        await asyncio.to_thread(etcd.make_room)
        await create(cluster.bootstrap, "taken", partitions=3)
        await icecore(cluster, "cluster", "health", "--wait", "30")
        assert await read_all(cluster.bootstrap, "t") == merged(before, after)
        assert cluster.pids == pid
        assert "event=metadata_store_full" in cluster.coordinator.log_tail(1_000)


@pytest.mark.every(2)
async def test_an_old_etcd_is_an_old_copy_and_may_be_adopted(tmp_path: Path) -> None:
    """R94, R109: nothing is taken away, and a person lets the coordinator go on with it."""
    with running_members(tmp_path / "etcd", 1) as etcd, cluster_on(etcd, tmp_path / "c") as cluster:
        world = World(cluster)
        await world.before()
        etcd.kill(0)
        shutil.copytree(tmp_path / "etcd" / "m0", tmp_path / "copy")
        etcd.start_member(0)
        await asyncio.to_thread(etcd.wait_ready, 0)
        await world.after()
        await asyncio.sleep(REMEMBERED_S)
        cluster.kill_coordinator()
        etcd.kill(0)
        shutil.rmtree(tmp_path / "etcd" / "m0")
        (tmp_path / "copy").rename(tmp_path / "etcd" / "m0")
        etcd.start_member(0)
        await asyncio.to_thread(etcd.wait_ready, 0)
        assert "older copy" in await starts_and_waits(cluster)
        await all_told(cluster)
        await icecore(cluster, "cluster", "adopt", "--yes")
        await healthy(cluster)
        await world.all_is_there()
        await world.goes_on()


@pytest.mark.slow
@pytest.mark.every(3)
async def test_members_of_etcd_die_and_stand_still_under_load(tmp_path: Path) -> None:
    """One of three is killed, one is frozen; with two away nothing changes, and records go on."""
    names = topic_names()
    with running_members(tmp_path / "etcd", 3) as etcd, cluster_on(etcd, tmp_path / "c") as cluster:
        await create(cluster.bootstrap, "t", partitions=3, segment_bytes=256 << 10)
        await create(cluster.bootstrap, "rolls-later", partitions=3)
        pid = cluster.coordinator.pid
        async with load(cluster.addresses[1], "t") as log:
            for number in range(3):
                etcd.kill(number)
                await next_change(cluster.bootstrap, names)
                etcd.start_member(number)
                await asyncio.to_thread(etcd.wait_ready, number)
                etcd.pause(number)
                await next_change(cluster.bootstrap, names)
                etcd.resume(number)
        assert cluster.coordinator.pid == pid and cluster.coordinator.is_running
        assert await read_all(cluster.bootstrap, "t") == log
        etcd.kill(0)
        etcd.kill(1)
        more = await produce(cluster.addresses[1], "rolls-later", numbered(0, 200))
        for number in (0, 1):
            etcd.start_member(number)
            await asyncio.to_thread(etcd.wait_ready, number)
        if not cluster.coordinator.is_running:  # it gives up when etcd is away for long
            cluster.start_coordinator()
        await next_change(cluster.bootstrap, names)
        assert await read_all(cluster.bootstrap, "t") == log
        assert await read_all(cluster.bootstrap, "rolls-later") == more
