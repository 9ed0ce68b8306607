"""Metadata of a cluster with object storage are an older copy, and go on all the same (R109)."""

import asyncio
from pathlib import Path
from uuid import UUID

from deltalake import DeltaTable

from icecore import Admin
from icecore.dev import LocalCluster
from tests.cluster.test_adopt import all_told, healthy, icecore
from tests.cluster.test_old_metadata import copy_of_metadata, put, starts_and_waits
from tests.cluster.traffic import Log, create, merged, numbered, produce, read_all
from tests.support.tier_places import Place, has_store, run_json, seal, until, until_tiered

COUNT = 100


def cluster_of(tmp_path: Path, place: Place) -> LocalCluster:
    return LocalCluster(
        tmp_path / "cluster",
        3,
        node_settings=place.settings(),
        coordinator_settings={"tier_reader_grace_ms": 500},
    )


async def filled(cluster: LocalCluster, start: int, *, is_remote: bool) -> Log:
    """More records, sealed and in object storage."""
    acked = await produce(cluster.bootstrap, "t", numbered(start, COUNT, 1000))
    async with Admin(cluster.bootstrap) as admin:
        await seal(admin, "t")
        await until_tiered(admin, "t", is_remote=is_remote)
    return acked


async def made(cluster: LocalCluster, **settings: object) -> None:
    async with Admin(cluster.bootstrap) as admin:
        await until(lambda: has_store(admin))
    given = {"partitions": 2, "replication_factor": 3, "tier": "on", **settings}
    await create(cluster.bootstrap, "t", **given)  # type: ignore[arg-type]


async def test_what_was_uploaded_since_the_copy_is_uploaded_again(tmp_path: Path) -> None:
    place = Place((tmp_path / "bucket").as_uri())
    with cluster_of(tmp_path, place) as cluster:
        await made(cluster)
        first = await filled(cluster, 0, is_remote=False)
        copy = copy_of_metadata(cluster, tmp_path / "copy")
        second = await filled(cluster, COUNT, is_remote=False)
        cluster.kill_coordinator()
        put(cluster, copy)
        await starts_and_waits(cluster)
        await all_told(cluster)
        shown = await icecore(cluster, "cluster", "adopt", "--yes")
        assert "object storage, which was not looked at" in shown
        await healthy(cluster)
        third = await filled(cluster, 2 * COUNT, is_remote=False)
        acked = merged(merged(first, second), third)
        assert await read_all(cluster.bootstrap, "t") == acked
        async with Admin(cluster.bootstrap) as admin:
            [topic] = await admin.describe_topics(["t"])
        table = tmp_path / "bucket" / str(UUID(bytes=topic.topic_id))
        found = DeltaTable(str(table)).to_pyarrow_table(columns=["partition", "offset"]).to_pylist()
        assert len(found) == len({tuple(each.values()) for each in found}) == 3 * COUNT
        verified = run_json(cluster, "tier", "verify", place.url)
        assert verified["damaged"] == 0


async def test_records_that_are_in_object_storage_alone_are_never_counted_as_lost_unasked(
    tmp_path: Path,
) -> None:
    """Nodes dropped them since the copy. Nothing is swept, and the newest store has them all."""
    place = Place((tmp_path / "bucket").as_uri())
    with cluster_of(tmp_path, place) as cluster:
        await made(cluster, local_retention_ms=0, retention_ms=1 << 40)
        first = await filled(cluster, 0, is_remote=True)
        copy = copy_of_metadata(cluster, tmp_path / "copy")
        second = await filled(cluster, COUNT, is_remote=True)
        third = await filled(cluster, 2 * COUNT, is_remote=True)
        cluster.kill_coordinator()
        newest = put(cluster, copy)
        await starts_and_waits(cluster)
        await all_told(cluster)
        refused = await icecore(cluster, "cluster", "adopt", "--yes", status=1)
        assert "--skip-gaps" in refused
        assert "no node has offsets" in refused
        cluster.kill_coordinator()
        put(cluster, newest)
        await asyncio.to_thread(cluster.start_coordinator)
        assert await read_all(cluster.bootstrap, "t") == merged(merged(first, second), third)


async def test_numbers_that_only_the_bucket_has_seen_are_not_given_out_again(
    tmp_path: Path,
) -> None:
    """The same old copy is adopted twice, and nodes have dropped what was made in between."""
    place = Place((tmp_path / "bucket").as_uri())
    with cluster_of(tmp_path, place) as cluster:
        await made(cluster, local_retention_ms=0)
        await filled(cluster, 0, is_remote=True)
        copies = [copy_of_metadata(cluster, tmp_path / f"copy-{number}") for number in range(2)]
        for number, copy in enumerate(copies, 1):
            await filled(cluster, number * COUNT, is_remote=True)
            given_out = uploads_of(tmp_path / "bucket")
            cluster.kill_coordinator()
            put(cluster, copy)
            await starts_and_waits(cluster)
            await all_told(cluster)
            await icecore(cluster, "cluster", "adopt", "--skip-gaps", "--yes")
            await healthy(cluster)
            acked = await filled(cluster, 10_000 * number, is_remote=True)
            found = uploads_of(tmp_path / "bucket")
            assert min(found - given_out) > max(given_out)
            assert len({segment_id for segment_id, _ in found}) == len(found)
            assert len({attempt for _, attempt in found}) == len(found)
            read = await read_all(cluster.bootstrap, "t")
            assert all(set(acked[each]) <= set(read[each]) for each in acked)


def uploads_of(bucket: Path) -> set[tuple[int, int]]:
    """(Segment id, attempt) of all manifests in a bucket."""
    names = [each.name.split(".")[0] for each in bucket.rglob("*.manifest.json")]
    return {(int(each.split("-")[1]), int(each.split("-")[-1])) for each in names}
