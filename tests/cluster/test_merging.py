"""Small tiered segments become large ones under readers that know the old ones, from the outside:
in a local folder and on S3 servers."""

import asyncio
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import UUID

import pytest
from deltalake import DeltaTable

from icecore import Admin, Consumer, Lookup
from icecore.dev import LocalCluster
from icecore.errors import InvalidRequestError
from tests.cluster.test_tiering import cluster_of, fill, restore, rows_of
from tests.cluster.traffic import numbered, produce, read_all
from tests.support.s3 import S3Server, s3_credentials
from tests.support.s3_servers import SERVERS
from tests.support.tier_places import (
    Place,
    run_cli,
    run_json,
    s3_place,
    tiering,
    until,
    until_tiered,
)


@dataclass(frozen=True)
class Tiering:
    """A cluster that tiers, and where to. Tests have topics of their own, and leave all well."""

    cluster: LocalCluster
    place: Place
    bucket: Path | None
    """The folder that is the object store, if one is."""
    server: S3Server | None

    def objects(self) -> int:
        """Return the number of segments in the store."""
        if self.bucket is not None:
            return len([*self.bucket.glob("*/*/*.parquet")])
        assert self.server is not None
        keys = self.server.keys(self.place.url.rpartition("/")[2] + "/")
        return sum(each.endswith(".parquet") for each in keys)


@pytest.fixture(scope="module", params=["folder", *SERVERS])
def tiers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Tiering]:
    folder = tmp_path_factory.mktemp("merging")
    bucket, server = folder / "bucket", None
    place = Place(bucket.as_uri())
    with pytest.MonkeyPatch.context() as patch:
        if request.param != "folder":
            bucket, server = None, request.getfixturevalue(request.param)
            place = s3_place(server, folder.name)
            for name, value in s3_credentials().items():
                patch.setenv(name, value)
        with cluster_of(folder / "cluster", place) as cluster:
            yield Tiering(cluster, place, bucket, server)


async def merge_all(admin: Admin, topic: str) -> int:
    """Merge all planned groups, and return the number of segments merged."""
    merged = 0
    while groups := (await admin.plan_merges(topic)).groups:
        for each in groups:
            found = await admin.merge_segments(topic, each.segment_ids)
            assert found.records == each.records
            merged += len(each.segment_ids)
            with pytest.raises(InvalidRequestError, match="it is gone"):
                await admin.merge_segments(topic, each.segment_ids)
    return merged


@pytest.mark.timeout(400)  # a dozen processes start, one after the other
async def test_readers_of_what_was_small(tmp_path: Path, tiers: Tiering) -> None:
    cluster, place, topic = tiers.cluster, tiers.place, "flights"
    address = cluster.bootstrap
    before_it = tiers.objects()
    sent = await fill(address, topic, count=800, local_retention_ms=0)
    keys = [numbered(at, 1, 1000)[0] for at in (3, 250, 511, 799)]
    async with (
        Admin(address) as admin,
        Consumer(address, topic, partitions=[0, 1]) as slow,
        Lookup(address, topic) as lookup,
    ):
        before = await until_tiered(admin, topic, is_remote=True)
        old = await admin.list_segments(topic)
        first = await slow.poll(5.0, 20)  # now it knows the old segments, and goes on below
        assert [each.value for each in (await lookup.find(keys=keys[:1])).records] == keys[:1]
        reading = asyncio.create_task(read_all(address, topic))
        merged = await merge_all(admin, topic)
        assert merged >= 8
        assert await reading == sent
        for key in keys:
            page = await lookup.find(keys=[key])
            assert page.complete and [each.value for each in page.records] == [key]
        after = await until_tiered(admin, topic, is_remote=True)
        assert after.published_segments < before.published_segments
        listed = await admin.list_segments(topic)
        spans = [(each.partition, each.base_offset) for each in listed]
        assert spans == sorted(spans) and len(listed) < len(old)

        async def is_swept() -> bool:  # the objects that the slow reader knows go
            found = await asyncio.to_thread(tiers.objects)
            return found - before_it == after.published_segments

        await until(is_swept)
        assert await rest_of(slow, first, sum(map(len, sent.values()))) == sent
    assert run_json(cluster, "tier", "verify", place.url, *place.arguments)["damaged"] == 0
    cluster.kill_coordinator()
    cluster.start_coordinator()
    assert await read_all(address, topic) == sent
    if tiers.bucket is not None:  # both take a while, and one says it
        copy = shutil.copytree(tiers.bucket, tmp_path / "copy")  # who takes over owns it for good
        await restore(tmp_path / "other", replace(place, url=copy.as_uri()), sent)


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


@pytest.mark.parametrize("tiers", ["folder"], indirect=True)
async def test_the_table_has_each_record_once(tiers: Tiering) -> None:
    cluster, topic = tiers.cluster, "table"
    sent = await fill(cluster.bootstrap, topic, local_retention_ms=0)
    async with Admin(cluster.bootstrap) as admin:
        await until_tiered(admin, topic, is_remote=True)
        words = ("tier", "merge", topic)
        planned = run_json(cluster, *words, "--dry-run")["items"]
        groups = (await admin.plan_merges(topic)).groups
        assert [each["segment_ids"] for each in planned] == [[*e.segment_ids] for e in groups]
        assert not any(each["merged_segment_id"] for each in planned)
        [described] = await admin.describe_topics([topic])
        assert tiers.bucket is not None
        folder = tiers.bucket / str(UUID(bytes=described.topic_id))
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
            return not (await tiering(admin, topic)).stale_tables

        await until(is_committed)
    assert rows_of(folder) == sent
    assert len(DeltaTable(folder).file_uris()) < len(files)


@pytest.mark.parametrize("tiers", ["folder"], indirect=True)
async def test_a_look_up_that_rests_over_a_merge_finds_all(tiers: Tiering) -> None:
    """It knew two of the merged segments, and asks from the newest record down."""
    address, topic, count = tiers.cluster.bootstrap, "kept", 40

    async def sealed(admin: Admin, first: int) -> None:
        await produce(address, topic, [b"%d" % each for each in range(first, first + count)])
        await admin.roll_topic(topic)
        await until_tiered(admin, topic, is_remote=True)

    async with Admin(address) as admin, Lookup(address, topic) as lookup:
        await admin.create_topic(
            topic, partitions=1, replication_factor=1, tier="on", local_retention_ms=0
        )
        for at in (0, count):
            await sealed(admin, at)
        assert (await lookup.find(newest_first=True, max_count=1)).records
        await sealed(admin, 2 * count)
        assert await merge_all(admin, topic) == 3
        await produce(address, topic, [b"%d" % each for each in range(3 * count, 3 * count + 5)])
        pages = [page async for page in lookup.pages(newest_first=True, max_count=50)]
    offsets = [each.offset for page in pages for each in page.records]
    assert offsets == [*reversed(range(3 * count + 5))]
    assert all(page.complete for page in pages)
