"""Other programs leave objects in a bucket, or take some out of it by a vacuum of all that no table
names. Real processes."""

import asyncio
import shutil
from pathlib import Path

import pytest
from deltalake import DeltaTable

from icecore import Admin
from icecore.dev import LocalCluster
from icecore.tier_records import topic_folder
from tests.cluster.test_tiering import cluster_of, fill, rows_of
from tests.cluster.traffic import Log, read_all
from tests.support.tier_places import Place, has_store, run_cli, run_json, until, until_tiered

FOREIGN_TOPIC = "11111111-2222-3333-4444-555555555555"


def leave_objects(bucket: Path, folder: Path) -> list[Path]:
    """Put somebody's own files beside ours, and into folders of ours."""
    (some, *_) = folder.glob("*/*.parquet")
    places = [
        folder / "0" / "mine.parquet",
        folder / "part-00000.parquet",
        folder / "notes.txt",
        folder / "_icecore" / "0" / "mine.json",
        bucket / "a table of mine" / "part-00000.parquet",
        bucket / "rows.parquet",
        bucket / FOREIGN_TOPIC / "0" / "mine.parquet",
    ]
    for each in places:
        each.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(some, each)
    return places


async def merge(admin: Admin, topic: str) -> int:
    merged = 0
    for group in (await admin.plan_merges(topic)).groups:
        await admin.merge_segments(topic, group.segment_ids)
        merged += len(group.segment_ids)
    return merged


async def restored(folder: Path, bucket: Path, topics: dict[str, Log]) -> None:
    """An empty cluster takes the bucket over, and has the same records."""
    place = Place(bucket.as_uri())
    with cluster_of(folder, place, nodes=1) as cluster:
        command = ("tier", "restore", place.url, "--take-over", "--yes")
        run_cli(cluster, *command)
        for node_id in cluster.addresses:  # which have looked at the bucket of another cluster
            cluster.kill_node(node_id)
            cluster.start_node(node_id)
        async with Admin(cluster.bootstrap) as admin:
            await until(lambda: has_store(admin))
        for topic, sent in topics.items():
            assert await read_all(cluster.bootstrap, topic) == sent


async def test_objects_of_others_are_passed_by_and_named_once(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    with cluster_of(tmp_path / "cluster", Place(bucket.as_uri()), nodes=1) as cluster:
        sent = await fill(cluster.bootstrap, "ours", local_retention_ms=0)
        async with Admin(cluster.bootstrap) as admin:
            found = await until_tiered(admin, "ours", is_remote=True)
            folder = bucket / topic_folder(found.topic_id)
            places = leave_objects(bucket, folder)
            assert await merge(admin, "ours") >= 4
            await until_tiered(admin, "ours", is_remote=True)
            assert await read_all(cluster.bootstrap, "ours") == sent
            assert rows_of(folder) == sent
            report = run_json(cluster, "tier", "verify", bucket.as_uri())
            said = str(report)
            for each in places:
                assert said.count(str(each.relative_to(bucket))) == 1, report
            copy = shutil.copytree(bucket, tmp_path / "copy")
            ends = await admin.list_offsets("ours", "latest")
            cut = {number: each.offset // 2 for number, each in ends.items()}
            await admin.delete_records("ours", cut)
            left = {n: [one for one in sent[n] if one[0] >= cut[n]] for n in sent}
            assert await read_all(cluster.bootstrap, "ours") == left
            await admin.alter_topic("ours", retention_ms=1)
            await until(lambda: _is_empty(admin, "ours"))
            await until(lambda: _is_swept(folder, places))
        assert all(each.exists() for each in places), "nobody deletes what is not ours"
        assert len([line for line in logs_of(cluster) if "mine.parquet" in line]) <= 1
    await restored(tmp_path / "other", copy, {"ours": sent})


async def _is_empty(admin: Admin, topic: str) -> bool:
    (described,) = await admin.describe_topics([topic])
    ends = await admin.list_offsets(topic, "latest")
    return all(
        each.log_start_offset == ends[each.partition].offset for each in described.partitions
    )


async def _is_swept(folder: Path, places: list[Path]) -> bool:
    found = await asyncio.to_thread(lambda: {*folder.glob("*/*.parquet")})
    return found <= {*places}


def logs_of(cluster: LocalCluster) -> list[str]:
    return [
        line
        for path in cluster.folder.rglob("*.log")
        for line in path.read_text(errors="replace").splitlines()
    ]


@pytest.mark.parametrize("tier_format", ["segment", "parquet"])
async def test_a_full_vacuum_takes_no_record(tmp_path: Path, tier_format: str) -> None:
    bucket = tmp_path / "bucket"
    with cluster_of(tmp_path / "cluster", Place(bucket.as_uri()), nodes=1) as cluster:
        settings = {"tier_format": tier_format, "local_retention_ms": 0}
        sent = await fill(cluster.bootstrap, "swept", **settings)
        async with Admin(cluster.bootstrap) as admin:
            found = await until_tiered(admin, "swept", is_remote=True)
        folder = bucket / topic_folder(found.topic_id)
        before = {each for each in folder.rglob("*") if each.is_file()}
        rowless = {*folder.glob("[0-9]*/*.parquet")} if tier_format == "segment" else set[Path]()
        (folder / "mine.parquet").write_bytes(b"of nobody")
        taken = await asyncio.to_thread(
            DeltaTable(folder).vacuum,
            retention_hours=0,
            dry_run=False,
            enforce_retention_duration=False,
            full=True,
        )
        gone = {each for each in before if not each.exists()}
        assert "mine.parquet" in str(taken)
        assert gone == rowless
        assert await read_all(cluster.bootstrap, "swept") == sent
        report = run_json(cluster, "tier", "verify", bucket.as_uri())
        assert report["damaged"] == 0, report
        copy = shutil.copytree(bucket, tmp_path / "copy")
    await restored(tmp_path / "other", copy, {"swept": sent})
