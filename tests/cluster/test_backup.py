"""The metadata are backed up while the cluster runs, and put back when their store is lost."""

import asyncio
import json
import os
import shutil
from pathlib import Path

import pytest

from icecore.client import Admin
from icecore.dev import LocalCluster
from icecore.metadata_backup import Backup
from tests.cluster.test_adopt import all_told, icecore
from tests.cluster.traffic import create, merged, numbered, produce, read_all

WAITS = "the metadata store is an older copy"


async def test_the_coordinators_machine_is_lost(own_cluster: LocalCluster, tmp_path: Path) -> None:
    """As the page for operators says, from a backup of some time ago."""
    cluster, file = own_cluster, tmp_path / "metadata.backup"
    await create(cluster.bootstrap, "flights", partitions=4, segment_bytes=64 << 10)
    producing = asyncio.create_task(produce(cluster.bootstrap, "flights", numbered(0, 2_000, 300)))
    for _ in range(3):  # each takes the place of the one before, while segments roll
        await icecore(cluster, "cluster", "backup", str(file))
    log = await producing
    async with Admin(cluster.bootstrap) as admin:
        assert (await admin.describe_cluster()).backup_at_ms > 0
        before = {each.segment_id for each in await admin.list_segments("flights")}
        await admin.create_topic("later")
    more = await produce(cluster.bootstrap, "flights", numbered(2_000, 1_000, 300))

    cluster.kill_coordinator()
    folder = cluster.folder / "coordinator"
    said = await icecore(cluster, "cluster", "restore", str(file), "--data", str(folder), status=1)
    assert "not empty, so nothing was changed" in said
    shutil.rmtree(folder)
    await icecore(cluster, "cluster", "restore", str(file), "--data", str(folder))
    cluster.start_coordinator()
    await all_told(cluster)
    assert WAITS in await icecore(cluster, "cluster", "health", status=20)
    await icecore(cluster, "cluster", "adopt", "--yes")
    await icecore(cluster, "cluster", "health", "--wait", "60")

    log = merged(log, more, await produce(cluster.bootstrap, "flights", numbered(3_000, 500)))
    assert await read_all(cluster.bootstrap, "flights") == log
    async with Admin(cluster.bootstrap) as admin:
        assert {each.name for each in await admin.describe_topics()} == {"flights", "later"}
        after = [each.segment_id for each in await admin.list_segments("flights")]
        assert before <= {*after}
        assert len({*after}) == len(after)


async def test_a_store_moves_by_a_backup(own_cluster: LocalCluster, tmp_path: Path) -> None:
    """The coordinator is stopped, so the backup is the newest state: nobody waits for a person."""
    cluster, file = own_cluster, tmp_path / "metadata.backup"
    await create(cluster.bootstrap, "t", partitions=2)
    log = await produce(cluster.bootstrap, "t", numbered(0, 500))
    folder = cluster.folder / "coordinator"
    busy = await icecore(cluster, "cluster", "backup", str(file), "--data", str(folder), status=1)
    assert "already in use by another coordinator" in busy
    cluster.kill_coordinator()
    await icecore(cluster, "cluster", "backup", str(file), "--data", str(folder))
    shutil.rmtree(folder)
    await icecore(cluster, "cluster", "restore", str(file), "--data", str(folder))
    cluster.start_coordinator()
    await icecore(cluster, "cluster", "health", "--wait", "60")
    more = await produce(cluster.bootstrap, "t", numbered(500, 500))
    assert await read_all(cluster.bootstrap, "t") == merged(log, more)


async def test_what_is_no_place_for_a_backup(shared_cluster: LocalCluster, tmp_path: Path) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text("mine")
    for path, why in (
        (notes, "is no backup of this cluster: name another file"),
        (tmp_path, "is no backup of this cluster: name another file"),
        (tmp_path / "no" / "b", "can't be written: No such file or directory"),
    ):
        assert why in await icecore(shared_cluster, "cluster", "backup", str(path), status=1)
    assert notes.read_text() == "mine"
    assert os.listdir(tmp_path) == ["notes.txt"]
    file = tmp_path / "b"
    said = await icecore(shared_cluster, "--json", "cluster", "backup", str(file))
    assert json.loads(said)["records"] == Backup(file).header.records


@pytest.mark.parametrize("cut", [0, 10, 400])
async def test_a_backup_that_was_cut_makes_no_store(
    shared_cluster: LocalCluster, tmp_path: Path, cut: int
) -> None:
    file, folder = tmp_path / "b", tmp_path / "new"
    await icecore(shared_cluster, "cluster", "backup", str(file))
    file.write_bytes(file.read_bytes()[:cut])
    words = ("cluster", "restore", str(file), "--data", str(folder))
    assert "damaged" in await icecore(shared_cluster, *words, status=1)
    file.write_bytes(b"")
    assert "icecore:" in await icecore(shared_cluster, *words, status=1)
