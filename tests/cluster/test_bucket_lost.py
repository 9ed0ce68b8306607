"""A bucket that nodes have used and that is not there any more: nothing goes to what is there
instead, copies on nodes stay, and all goes on when the bucket is back."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from icecore import Admin
from icecore.dev import LocalCluster
from tests.cluster.test_tiering import cluster_of
from tests.cluster.test_tiering_refused import told, unpublished
from tests.cluster.traffic import create, merged, numbered, produce, read_all
from tests.support.tier_places import Place, has_store, run_json, seal, tiering, until, until_tiered

MARKER = "_icecore/cluster.json"


def refusals(cluster: LocalCluster, node_id: int) -> list[str]:
    """The lines of a node's log that say that its bucket is lost."""
    lines = cluster.node(node_id).log_path.read_text().splitlines()
    return [each for each in lines if "object_store_refused" in each and "CRITICAL" in each]


async def fill(address: str, **settings: int) -> dict:  # type: ignore[type-arg]
    """A topic whose first records are published."""
    async with Admin(address) as admin:
        await until(lambda: has_store(admin))
        given = {"partitions": 1, "tier": "on", **settings}
        await create(address, "flights", **given)  # type: ignore[arg-type]
        sent = await produce(address, "flights", numbered(0, 100))
        await until_tiered(admin, "flights", is_remote="local_retention_ms" in settings)
    return sent


@pytest.mark.parametrize("place_of_mount", ["no folder", "an empty folder"])
async def test_a_bucket_that_is_not_mounted_takes_nothing(
    tmp_path: Path, place_of_mount: str
) -> None:
    bucket, away = tmp_path / "bucket", tmp_path / "away"
    with cluster_of(tmp_path / "cluster", Place(bucket.as_uri())) as cluster:
        address = cluster.bootstrap
        first = await fill(address, replication_factor=2, local_retention_ms=0)
        assert cluster.stop() == []
        bucket.rename(away)
        if place_of_mount == "an empty folder":
            bucket.mkdir()
        cluster.start()
        second = await produce(address, "flights", numbered(100, 100))
        async with Admin(address) as admin:
            before = await tiering(admin, "flights")
            await seal(admin, "flights")
            found = await told(address, "forget-bucket")
            assert found.published_segments == found.remote_only_segments
            assert found.published_segments == before.published_segments
            assert unpublished(found) == 1
            for node_id in cluster.addresses:
                assert len(refusals(cluster, node_id)) == 1
            assert not bucket.exists() or not [*bucket.iterdir()]
            if bucket.exists():
                bucket.rmdir()
            away.rename(bucket)  # mounted again
            found = await until_tiered(admin, "flights", is_remote=True)
            assert found.published_segments == before.published_segments + 1
        assert await read_all(address, "flights") == merged(first, second)
        verified = run_json(cluster, "tier", "verify", bucket.as_uri())
        assert verified["damaged"] == 0


async def test_a_bucket_that_is_emptied_is_not_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ICECORE_NODE__TIMING__STORE_LOOK_MS", "200")
    bucket, away = tmp_path / "bucket", tmp_path / "away"
    with cluster_of(tmp_path / "cluster", Place(bucket.as_uri()), nodes=1) as cluster:
        address = cluster.bootstrap
        first = await fill(address, replication_factor=1)
        marker = json.loads((bucket / MARKER).read_text())
        bucket.rename(away)
        bucket.mkdir()

        async def is_noticed() -> bool:
            return bool(refusals(cluster, 1))

        await until(is_noticed)
        cluster.kill_node(1)
        cluster.start_node(1)
        second = await produce(address, "flights", numbered(100, 100))
        async with Admin(address) as admin:
            await seal(admin, "flights")
        found = await told(address, "was emptied")
        assert unpublished(found) == 1
        assert [*bucket.rglob("*")] == []
        assert len(refusals(cluster, 1)) == 2, "once for each process"
        assert await read_all(address, "flights") == merged(first, second)
        cluster.stop_node(1)
        forget(tmp_path / "cluster" / "node-1")  # a person says that it is gone for good
        cluster.start_node(1)
        async with Admin(address) as admin:

            async def is_published() -> bool:
                after = await tiering(admin, "flights")
                return after.published_segments > found.published_segments

            await until(is_published)
        again = json.loads((bucket / MARKER).read_text())
        assert again["cluster_id"] == marker["cluster_id"]
        assert again["store_id"] != marker["store_id"]


def forget(data: Path) -> None:
    command = [sys.executable, "-m", "icecore_node", "forget-bucket", str(data), "--yes"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ)
    assert done.returncode == 0 and "is forgotten" in done.stdout, done.stderr
