"""Small tiered segments become large ones under readers that know the old ones, from the outside: a
local folder and a real S3 server."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest
from deltalake import DeltaTable

from icecore import Admin, Consumer, Lookup
from icecore.errors import InvalidRequestError
from tests.cluster.test_tiering import NEEDS_MINIO, cluster_of, fill, restore, rows_of
from tests.cluster.traffic import numbered, read_all
from tests.support.minio import Minio, running_minio
from tests.support.tier_places import (
    Place,
    run_cli,
    run_json,
    s3_credentials,
    s3_place,
    tiering,
    until,
    until_tiered,
)


@pytest.fixture(scope="module")
def minio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Minio]:
    with running_minio(tmp_path_factory.mktemp("minio")) as server:
        yield server


@pytest.fixture(params=["folder", pytest.param("s3", marks=NEEDS_MINIO)])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    if request.param == "folder":
        return Place((tmp_path / "bucket").as_uri())
    for name, value in s3_credentials().items():
        monkeypatch.setenv(name, value)
    return s3_place(request.getfixturevalue("minio"), tmp_path.name)


async def merge_all(admin: Admin, topic: str) -> int:
    """How many segments were merged."""
    merged = 0
    while groups := (await admin.plan_merges(topic)).groups:
        for each in groups:
            found = await admin.merge_segments(topic, each.segment_ids)
            assert found.records == each.records
            merged += len(each.segment_ids)
            with pytest.raises(InvalidRequestError, match="it is gone"):
                await admin.merge_segments(topic, each.segment_ids)
    return merged


async def test_readers_of_what_was_small(tmp_path: Path, place: Place) -> None:
    with cluster_of(tmp_path / "cluster", place) as cluster:
        address = cluster.bootstrap
        sent = await fill(address, "flights", count=800, local_retention_ms=0)
        keys = [numbered(at, 1, 1000)[0] for at in (3, 250, 511, 799)]
        async with (
            Admin(address) as admin,
            Consumer(address, "flights", partitions=[0, 1]) as slow,
            Lookup(address, "flights") as lookup,
        ):
            before = await until_tiered(admin, "flights", is_remote=True)
            old = await admin.list_segments("flights")
            first = await slow.poll(5.0, 20)  # now it knows the old segments, and goes on below
            assert [each.value for each in (await lookup.find(keys=keys[:1])).records] == keys[:1]
            reading = asyncio.create_task(read_all(address, "flights"))
            merged = await merge_all(admin, "flights")
            assert merged >= 8
            assert await reading == sent
            for key in keys:
                page = await lookup.find(keys=[key])
                assert page.complete and [each.value for each in page.records] == [key]
            after = await until_tiered(admin, "flights", is_remote=True)
            assert after.published_segments < before.published_segments
            listed = await admin.list_segments("flights")
            spans = [(each.partition, each.base_offset) for each in listed]
            assert spans == sorted(spans) and len(listed) < len(old)

            if place.url.startswith("file:"):  # the objects that the slow reader knows go
                bucket = tmp_path / "bucket"
                count = after.published_segments

                async def is_swept() -> bool:
                    return len([*bucket.glob("*/*/*.parquet")]) == count

                await until(is_swept)
            assert await rest_of(slow, first, sum(map(len, sent.values()))) == sent
        assert run_json(cluster, "tier", "verify", place.url, *place.arguments)["damaged"] == 0
        cluster.kill_coordinator()
        cluster.start_coordinator()
        assert await read_all(address, "flights") == sent
    if place.url.startswith("file:"):  # both take a while, and one says it
        await restore(tmp_path / "other", place, sent)


async def rest_of(consumer: Consumer, first: list, count: int) -> dict:  # type: ignore[type-arg]
    """All that it delivers, as ``read_all``."""
    found: dict[int, list[tuple[int, bytes]]] = {}
    records = [*first]
    async with asyncio.timeout(60):
        while len(records) < count:
            records += await consumer.poll(1.0, 50)
    for each in records:
        found.setdefault(each.partition, []).append((each.offset, each.value or b""))
    return found


async def test_the_table_has_each_record_once(tmp_path: Path) -> None:
    place = Place((tmp_path / "bucket").as_uri())
    with cluster_of(tmp_path / "cluster", place) as cluster:
        sent = await fill(cluster.bootstrap, "flights", local_retention_ms=0)
        async with Admin(cluster.bootstrap) as admin:
            await until_tiered(admin, "flights", is_remote=True)
            words = ("tier", "merge", "flights")
            planned = run_json(cluster, *words, "--dry-run")["items"]
            groups = (await admin.plan_merges("flights")).groups
            assert [each["segment_ids"] for each in planned] == [[*e.segment_ids] for e in groups]
            assert not any(each["merged_segment_id"] for each in planned)
            [topic] = await admin.describe_topics(["flights"])
            folder = tmp_path / "bucket" / str(UUID(bytes=topic.topic_id))
            files = DeltaTable(folder).file_uris()
            merging = asyncio.create_task(asyncio.to_thread(run_cli, cluster, "--json", *words))
            looks = 0
            while not merging.done() or looks < 3:
                assert await asyncio.to_thread(rows_of, folder) == sent
                looks += 1
            done = json.loads((await merging).stdout)["items"]
            assert sum(each["records"] for each in done) >= sum(map(len, sent.values()))
            assert all(each["merged_segment_id"] and not each["problem"] for each in done)
            assert run_json(cluster, *words)["items"] == []

            async def is_committed() -> bool:
                return not (await tiering(admin, "flights")).stale_tables

            await until(is_committed)
        assert rows_of(folder) == sent
        assert len(DeltaTable(folder).file_uris()) < len(files)
