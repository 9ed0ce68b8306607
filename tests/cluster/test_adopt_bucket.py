"""All metadata are lost, and come back from nodes and from the bucket together (R109).

Nodes have the newest records, and the bucket alone has the history. Then all questions have their
old answers, nothing is uploaded a second time, and no number is given out again.
"""

import asyncio
import contextlib
import json
import shutil
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from icecore import Admin
from icecore.dev import LocalCluster
from tests.cluster.test_adopt import REMEMBERED_S, all_told, healthy, icecore
from tests.cluster.test_adopt_tiered import uploads_of
from tests.cluster.test_old_metadata import put, starts_and_waits
from tests.cluster.test_restore_questions import until_deleted
from tests.support.clusters import LEASE_MS, running
from tests.support.etcd import NEEDS_MEMBERS, EtcdMembers, running_members
from tests.support.restore_questions import Sent, answers, different, send, until_whole
from tests.support.tier_places import (
    Place,
    has_store,
    run_json,
    tiering,
    until,
    until_tiered,
)

QUIET_S = 3.0
"""An upload that should not be would have begun by then."""


class Lost:
    """A cluster with a history in its bucket, that is about to lose its metadata."""

    def __init__(self, cluster: LocalCluster, folder: Path) -> None:
        self.cluster, self.bucket = cluster, folder / "bucket"
        self.url = self.bucket.as_uri()
        self.moments = [datetime.now(UTC)]
        self.segments: set[int] = set()
        """Ids of before the loss, those in the bucket included."""

    @property
    def address(self) -> str:
        return self.cluster.bootstrap

    async def fill(self) -> None:
        """Make history that the bucket alone has, sealed records that both have, and tails."""
        async with Admin(self.address) as admin:
            await until(lambda: has_store(admin))
            shared = {"replication_factor": 3, "tier": "on", "segment_bytes": 64 << 10}
            gone: dict[str, Any] = {"local_retention_ms": 0}
            await admin.create_topic(
                "history", partitions=2, indexed_headers=("a",), **shared, **gone
            )
            await admin.create_topic("merged", partitions=1, **shared, **gone)
            await admin.create_topic("kept", partitions=2, **shared, retention_ms=1 << 40)
            deleted = await admin.create_topic("deleted", partitions=1, **shared, **gone)
            parts = ("history", "merged", "kept", "deleted")
            for first in (0, 40):
                await send(self.address, *(Sent(name, first, 40) for name in parts))
                for name in parts:
                    await until_tiered(admin, name, is_remote=name != "kept")
                self.moments.append(datetime.now(UTC))
            for each in (await admin.plan_merges("merged")).groups:
                await admin.merge_segments("merged", each.segment_ids)
            await admin.delete_records("history", {0: 5, 1: 3})
            await admin.delete_topic("deleted")
            await until_deleted(self.bucket, deleted.topic_id)
            await send(self.address, *(Sent(name, 80, 30) for name in parts[:3]))
            await self._settled(admin)
            self.segments = {each.segment_id for each in await admin.list_segments()}
            self.segments |= {each for each, _ in uploads_of(self.bucket)}

    async def _settled(self, admin: Admin) -> None:
        async def is_so() -> bool:
            found = [await tiering(admin, name) for name in ("history", "merged", "kept")]
            return not any(
                each.stale_tables + each.uploading_segments + each.waiting_segments
                for each in found
            )

        await until(is_so)

    async def answers(self) -> dict[str, Any]:
        await until_whole(self.address)
        return await answers(self.address, self.moments)

    async def adopts(self) -> None:
        """A person is told that the bucket is needed, and gives it."""
        refused = await icecore(self.cluster, "cluster", "adopt", "--yes", status=1)
        assert "no node has offsets" in refused
        assert f"icecore cluster adopt --bucket {self.url}" in refused.replace("\n", " ")
        words = ("cluster", "adopt", "--bucket", self.url)
        shown = await icecore(self.cluster, *words, "--dry-run")
        assert "Nothing is in the way" in shown
        assert "nodes have segments of it: it is back" in shown
        assert "metadata_adopted" not in self.cluster.coordinator.log_tail(200)
        await icecore(self.cluster, *words, "--yes")
        await icecore(self.cluster, "topic", "delete", "deleted", "--yes")  # as it says
        await healthy(self.cluster)

    async def goes_on(self, before: dict[str, Any], uploads: set[tuple[int, int]]) -> None:
        assert not different(before, await self.answers())
        async with Admin(self.address) as admin:
            await self._settled(admin)
            await asyncio.sleep(QUIET_S)
            again = {each for each, _ in uploads_of(self.bucket) - uploads}
            assert not again & {each for each, _ in uploads}, "it is there already"
            await send(self.address, *(Sent(name, 110, 20) for name in ("history", "kept")))
            for name in ("history", "kept"):
                await until_tiered(admin, name, is_remote=name == "history")
            new = uploads_of(self.bucket) - uploads
            assert min(at for _, at in new) > max(at for _, at in uploads)
            assert {each for each, _ in new} - self.segments, "no segment was opened since"
            assert min({each for each, _ in new} - self.segments) > max(self.segments)
            await self._retention_goes_on(admin)
        assert run_json(self.cluster, "tier", "verify", self.url)["damaged"] == 0

    async def _retention_goes_on(self, admin: Admin) -> None:
        starts = await admin.list_offsets("history", "earliest")
        await admin.alter_topic("history", retention_ms=1_000)

        async def is_so() -> bool:
            found = await admin.list_offsets("history", "earliest")
            return all(found[each].offset > starts[each].offset for each in starts)

        await until(is_so)


@contextlib.asynccontextmanager
async def lost(tmp_path: Path, etcd: EtcdMembers | None) -> AsyncIterator[Lost]:
    place = Place((tmp_path / "bucket").as_uri())
    in_etcd = {"etcd": {"endpoints": ",".join(etcd.endpoints)}} if etcd else {}
    settings: dict[str, Any] = {"tier_reader_grace_ms": 500, "lease_ms": LEASE_MS, **in_etcd}
    cluster = LocalCluster(
        tmp_path / "cluster", 3, node_settings=place.settings(), coordinator_settings=settings
    )
    with running(cluster):
        world = Lost(cluster, tmp_path)
        await world.fill()
        yield world


@pytest.mark.timeout(300)
async def test_a_file_is_lost_while_nodes_serve(tmp_path: Path) -> None:
    async with lost(tmp_path, None) as world:
        before, uploads = await world.answers(), uploads_of(world.bucket)
        world.cluster.kill_coordinator()
        put(world.cluster, None)
        assert "store is empty" in await starts_and_waits(world.cluster)
        await all_told(world.cluster)
        await world.adopts()
        await world.goes_on(before, uploads)


@NEEDS_MEMBERS
@pytest.mark.every(3)
@pytest.mark.timeout(300)
async def test_etcd_is_lost_and_every_process_with_it(tmp_path: Path) -> None:
    """No process remembers a name: the bucket has them."""
    with running_members(tmp_path / "etcd", 1) as etcd:
        async with lost(tmp_path, etcd) as world:
            before, uploads = await world.answers(), uploads_of(world.bucket)
            await asyncio.sleep(REMEMBERED_S)
            cluster = world.cluster
            cluster.kill_coordinator()
            for node_id in cluster.addresses:
                cluster.kill_node(node_id)
            etcd.kill(0)
            shutil.rmtree(tmp_path / "etcd" / "m0")
            etcd.start_member(0)
            await asyncio.to_thread(etcd.wait_ready, 0)
            put(cluster, None)
            for node_id in cluster.addresses:
                cluster._spawn(cluster.node(node_id))
            assert "store is empty" in await starts_and_waits(cluster)
            await all_told(cluster)
            await world.adopts()
            await world.goes_on(before, uploads)


@pytest.mark.every(3, turn=1)
async def test_the_bucket_of_another_cluster_is_refused(tmp_path: Path) -> None:
    """A typo would give this cluster the history of another one."""
    async with lost(tmp_path, None) as world:
        marker = next(world.bucket.rglob("cluster.json"))
        other = tmp_path / "other"
        shutil.copytree(world.bucket, other)
        copied = other / marker.relative_to(world.bucket)
        said = json.loads(copied.read_text())
        copied.write_text(json.dumps({**said, "cluster_id": "ab" * 16}))
        world.cluster.kill_coordinator()
        put(world.cluster, None)
        await starts_and_waits(world.cluster)
        await all_told(world.cluster)
        words = ("cluster", "adopt", "--bucket", other.as_uri(), "--yes")
        refused = await icecore(world.cluster, *words, status=1)
        assert "is the bucket of" in refused and "that their tier_url names" in refused
        assert "metadata_adopted" not in world.cluster.coordinator.log_tail(200)
