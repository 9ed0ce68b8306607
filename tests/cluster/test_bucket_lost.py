"""A bucket that a cluster has used and that is not there any more, or is another one for one node:
nothing goes to what is there instead, copies on nodes stay, and all goes on when it is back."""

import asyncio
import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from icecore import Admin
from icecore.dev import LocalCluster
from tests.cluster.test_tiering import cluster_of
from tests.cluster.test_tiering_refused import told, unpublished
from tests.cluster.traffic import create, merged, numbered, produce, read_all
from tests.support.s3 import S3Server, running_moto, s3_credentials
from tests.support.tier_places import (
    Place,
    has_store,
    run_cli,
    run_json,
    s3_place,
    seal,
    tiering,
    until,
    until_tiered,
)

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
            found = await told(address, "forget-store")
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
        async with Admin(address) as admin:
            alerts = [each.why for each in (await admin.describe_cluster()).alerts]
        assert any("was emptied" in each and "forget-store" in each for each in alerts)
        assert [each for each in bucket.rglob("*") if each.is_file()] == []
        assert len(refusals(cluster, 1)) == 2, "once for each process"
        assert await read_all(address, "flights") == merged(first, second)
        other = run_cli(cluster, "tier", "forget-store", "0" * 32, "--yes", status=1)
        assert f"uses object store {marker['store_id']}" in other.stderr
        # A person says that it is gone for good.
        run_cli(cluster, "tier", "forget-store", marker["store_id"], "--yes")
        async with Admin(address) as admin:

            async def is_published() -> bool:
                after = await tiering(admin, "flights")
                return after.published_segments > found.published_segments

            await until(is_published)
        again = json.loads((bucket / MARKER).read_text())
        assert again["cluster_id"] == marker["cluster_id"]
        assert again["store_id"] != marker["store_id"]
        status = run_json(cluster, "tier", "status")
        assert status["store_id"] == again["store_id"]
        async with Admin(address) as admin:

            async def is_all_there() -> bool:  # also what was published in the other one before
                now = await tiering(admin, "flights")
                return not (unpublished(now) or now.stale_tables)

            await until(is_all_there)
            assert rows_of(topic_folder(bucket)) == 200
            await admin.alter_topic("flights", local_retention_ms=0)
            await until_tiered(admin, "flights", is_remote=True)
        assert await read_all(address, "flights") == merged(first, second)
        assert run_json(cluster, "tier", "verify", bucket.as_uri())["damaged"] == 0


async def test_copies_stay_while_the_published_ones_are_gone(tmp_path: Path) -> None:
    """Somebody emptied the bucket and left the marker: no node can tell by that. Nothing is
    uploaded again, for the topic is not tiered any more."""
    bucket, away = tmp_path / "bucket", tmp_path / "away"
    with cluster_of(tmp_path / "cluster", Place(bucket.as_uri()), nodes=3) as cluster:
        address = cluster.bootstrap
        sent = await fill(address, replication_factor=3)
        [topic] = [each for each in bucket.iterdir() if not each.name.startswith("_")]
        topic.rename(away)
        async with Admin(address) as admin:
            await admin.alter_topic("flights", tier="off", local_retention_ms=0)
            found = await told(address, "verify: ")
            assert found.published_segments and not found.remote_only_segments

            async def is_told() -> bool:  # after an attempt to withdraw what is missing
                alerts = [each.why for each in (await admin.describe_cluster()).alerts]
                return any("does not find published copies of topic flights" in x for x in alerts)

            await until(is_told)
            await asyncio.sleep(1)  # several more looks
            assert not (await tiering(admin, "flights")).remote_only_segments
        assert await read_all(address, "flights") == sent
        for node_id in cluster.addresses:  # also after a restart, and whoever uploaded them
            cluster.kill_node(node_id)
            assert await read_all(address, "flights") == sent
            cluster.start_node(node_id)
        shutil.copytree(away, topic, dirs_exist_ok=True)
        async with Admin(address) as admin:
            await until_tiered(admin, "flights", is_remote=True)
        assert await read_all(address, "flights") == sent


def topic_folder(bucket: Path) -> Path:
    [topic] = [each for each in bucket.iterdir() if not each.name.startswith("_")]
    return topic


def objects(topic: Path, suffix: str) -> list[Path]:
    """The objects of this kind of all copies, the oldest segment first."""
    return sorted(each for each in topic.rglob(f"*{suffix}") if "_delta_log" not in each.parts)


def rows_of(topic: Path) -> int:
    """The rows that the table has, by its log."""
    try:
        actions = pa.table(DeltaTable(topic.as_uri()).get_add_actions(flatten=True))
    except TableNotFoundError:
        return 0
    return sum(actions.column("num_records").to_pylist())


async def test_what_is_missing_before_the_table_names_it_is_uploaded_again(tmp_path: Path) -> None:
    """Somebody removed manifests, and the table has to begin anew: it would stay behind for
    ever."""
    bucket = tmp_path / "bucket"
    with cluster_of(tmp_path / "cluster", Place(bucket.as_uri()), nodes=2) as cluster:
        address = cluster.bootstrap
        parts = [await fill(address, replication_factor=2)]
        async with Admin(address) as admin:
            for start in (100, 200):
                parts.append(await produce(address, "flights", numbered(start, 100)))
                await until_tiered(admin, "flights")
        topic = topic_folder(bucket)
        cluster.kill_coordinator()
        shutil.rmtree(topic / "_delta_log")
        for each in objects(topic, ".json")[:2]:
            each.unlink()
        before = {*objects(topic, ".json")}
        cluster.start_coordinator()

        async def is_whole() -> bool:
            return rows_of(topic) == 300

        await until(is_whole)
        async with Admin(address) as admin:
            found = await until_tiered(admin, "flights")
            assert not found.stale_tables and found.published_segments == 3
            assert not (await admin.describe_cluster()).alerts  # it held until they were there
            assert "upload them again" in cluster.coordinator.log_tail(1_000)
            assert len({*objects(topic, ".json")} - before) == 2, "under keys of their own"
            # Now it may go from nodes, and all of it is read from the bucket.
            await admin.alter_topic("flights", local_retention_ms=0)
            await until_tiered(admin, "flights", is_remote=True)
        assert await read_all(address, "flights") == merged(*parts)
        assert run_json(cluster, "tier", "verify", bucket.as_uri())["damaged"] == 0


async def test_what_is_missing_when_nodes_drop_theirs_is_uploaded_again(tmp_path: Path) -> None:
    """The table names it: the new copy takes its place there in one commit."""
    bucket = tmp_path / "bucket"
    with cluster_of(tmp_path / "cluster", Place(bucket.as_uri()), nodes=2) as cluster:
        address = cluster.bootstrap
        sent = await fill(address, replication_factor=2)
        topic = topic_folder(bucket)
        [rows] = objects(topic, ".parquet")
        rows.unlink()
        versions = len([*(topic / "_delta_log").glob("*.json")])
        async with Admin(address) as admin:
            await admin.alter_topic("flights", local_retention_ms=0)
            await until_tiered(admin, "flights", is_remote=True)
        assert rows_of(topic) == 100
        log = sorted((topic / "_delta_log").glob("*.json"))[versions:]
        named = [each.read_text() for each in log if '"add"' in each.read_text()]
        assert [('"remove"' in each) for each in named] == [True], "out and in at once"
        assert await read_all(address, "flights") == sent
        cluster.kill_coordinator()
        rows.write_bytes(b"it comes back, or somebody puts something there")
        cluster.start_coordinator()
        assert await read_all(address, "flights") == sent


@pytest.mark.parametrize("what", ["removed", "an older one", "its last commit is empty"])
async def test_a_table_that_is_not_what_it_was_is_mended(tmp_path: Path, what: str) -> None:
    """The coordinator compares it when it starts: metadata alone would believe in it for ever."""
    bucket = tmp_path / "bucket"
    with cluster_of(tmp_path / "cluster", Place(bucket.as_uri()), nodes=1) as cluster:
        address = cluster.bootstrap
        await fill(address, replication_factor=1)
        async with Admin(address) as admin:
            for start in (100, 200):
                await produce(address, "flights", numbered(start, 100))
                await until_tiered(admin, "flights")
        [topic] = [each for each in bucket.iterdir() if not each.name.startswith("_")]
        log = topic / "_delta_log"
        newest = max(log.glob("*.json"))
        cluster.kill_coordinator()
        if what == "removed":
            shutil.rmtree(log)
        elif what == "an older one":
            newest.unlink()
        else:
            newest.write_bytes(b"")

        def rows() -> int:
            try:
                actions = pa.table(DeltaTable(topic.as_uri()).get_add_actions(flatten=True))
            except TableNotFoundError:
                return 0
            return sum(actions.column("num_records").to_pylist())

        assert rows() < 300
        cluster.start_coordinator()

        async def is_whole() -> bool:
            return rows() == 300

        await until(is_whole)


async def test_a_node_with_another_endpoint_takes_no_part(
    tmp_path: Path, moto: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same URL leads to two servers: only the one that the cluster used first counts."""
    for name, value in s3_credentials().items():
        monkeypatch.setenv(name, value)
    place = s3_place(moto, tmp_path.name)
    with running_moto() as other:
        cluster = cluster_of(tmp_path / "cluster", place, nodes=3)
        cluster.node(2).extra += ["--tier-endpoint", other.endpoint]
        with cluster:
            address = cluster.bootstrap
            async with Admin(address) as admin:
                await until(lambda: has_store(admin))
                await create(
                    address,
                    "flights",
                    partitions=2,
                    replication_factor=3,
                    tier="on",
                    local_retention_ms=0,
                )
                parts = []
                for start in range(0, 300, 100):
                    parts.append(await produce(address, "flights", numbered(start, 100)))
                    await seal(admin, "flights")

                async def is_refused() -> bool:
                    return any(refusals(cluster, each) for each in cluster.addresses)

                await until(is_refused)

                async def is_published() -> bool:
                    found = await tiering(admin, "flights")
                    return not unpublished(found)

                await until(is_published)
            sent = merged(*parts)
            for node_id in cluster.addresses:
                cluster.kill_node(node_id)
                assert await read_all(address, "flights") == sent
                cluster.start_node(node_id)
