"""Sealed segments in object storage, from the outside: a local folder, S3 servers, HDFS."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from uuid import UUID

import duckdb
import pytest
from deltalake import DeltaTable

from examples.flights import read_departures
from examples.flights_table import count, wait_until_tiered
from icecore import Admin, Consumer, Lookup, Producer, TopicSettings
from icecore.codec.batch import LeaderFlag, parse_header
from icecore.dev import LocalCluster
from icecore.model import Segment
from icecore.rpc import framing
from icecore.v1 import data_pb2
from tests.cluster.raw import RawClient
from tests.cluster.traffic import create, merged, numbered, produce, read_all
from tests.support import left_out
from tests.support.s3 import s3_credentials
from tests.support.s3_servers import SERVERS
from tests.support.small_hdfs import VARIABLE, SmallHdfs, jars_folder, running_hdfs
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

SEGMENT_BYTES = 64 << 10
NEEDS_HDFS = pytest.mark.skipif(
    jars_folder() is None, reason=left_out.reason("HDFS", f"a folder named by {VARIABLE}")
)


@pytest.fixture(scope="module")
def hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SmallHdfs]:
    with running_hdfs(tmp_path_factory.mktemp("hdfs")) as server:
        yield server


@pytest.fixture(params=[*SERVERS, pytest.param("hdfs", marks=NEEDS_HDFS)])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    server = request.getfixturevalue(request.param)
    if request.param == "hdfs":
        url = f"{server.url}/{tmp_path.name}"
        return Place(url, {"tier_endpoint": server.endpoint}, ("--endpoint", server.endpoint))
    for name, value in s3_credentials().items():
        monkeypatch.setenv(name, value)
    return s3_place(server, tmp_path.name)


@dataclass(frozen=True)
class InFolder:
    """A cluster that tiers into a folder. Tests have topics of their own, and leave all well."""

    cluster: LocalCluster
    bucket: Path
    place: Place

    async def table(self, admin: Admin, topic: str) -> Path:
        """The folder of a topic's table."""
        [described] = await admin.describe_topics([topic])
        return self.bucket / str(UUID(bytes=described.topic_id))


@pytest.fixture(scope="module")
def in_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InFolder]:
    folder = tmp_path_factory.mktemp("in-folder")
    place = Place((folder / "bucket").as_uri())
    with cluster_of(folder / "cluster", place) as cluster:
        yield InFolder(cluster, folder / "bucket", place)


def cluster_of(folder: Path, place: Place, nodes: int = 2) -> LocalCluster:
    return LocalCluster(
        folder,
        nodes,
        node_settings=place.settings(),
        coordinator_settings={"tier_reader_grace_ms": 500},
    )


async def fill(address: str, topic: str, count: int = 400, **settings: object) -> dict:  # type: ignore[type-arg]
    """Records of a topic of which several segments are sealed, and the last one is not."""
    given = {"partitions": 2, "replication_factor": 1, "segment_bytes": SEGMENT_BYTES, "tier": "on"}
    parts = []
    async with Admin(address) as admin:
        await until(lambda: has_store(admin))
        await create(address, topic, **given, **settings)  # type: ignore[arg-type]
        for start in range(0, count, 100):
            if start:
                await seal(admin, topic)
            values = numbered(start, min(100, count - start), 1000)
            parts.append(await produce(address, topic, values, batch_bytes=16 << 10))
    return merged(*parts)


@pytest.mark.timeout(400)  # a dozen processes start, one after the other
async def test_from_the_first_record_to_a_restore(tmp_path: Path, place: Place) -> None:
    with cluster_of(tmp_path / "cluster", place) as cluster:
        settings = {"local_retention_ms": 0, "retention_ms": 1 << 40, "indexed_headers": ("x",)}
        sent = await fill(cluster.bootstrap, "flights", **settings)
        async with Admin(cluster.bootstrap) as admin:
            found = await until_tiered(admin, "flights", is_remote=True)
            assert found.published_segments == found.remote_only_segments >= 4
            assert found.remote_bytes > 0
            assert not found.last_error
        assert await read_all(cluster.bootstrap, "flights") == sent
        await all_forms_are_equal(cluster)
        key = numbered(7, 1, 1000)[0]
        async with Lookup(cluster.bootstrap, "flights") as lookup:
            page = await lookup.find(keys=[key])
        assert [each.value for each in page.records] == [key]
        verified = run_json(cluster, "tier", "verify", place.url, *place.arguments)
        assert verified["damaged"] == 0
        assert len(verified["topics"][0]["copies"]) == found.published_segments
        assert cluster.stop() == []
        cluster.start()
        assert await read_all(cluster.bootstrap, "flights") == sent
        async with Admin(cluster.bootstrap) as admin:
            await admin.alter_topic("flights", segment_age_ms=77_000)
            await admin.add_partitions("flights", 3)
            [before] = await admin.describe_topics(["flights"])

            async def is_in_the_bucket() -> bool:
                return not (await tiering(admin, "flights")).stale_tables

            await until(is_in_the_bucket)
    found_settings = await restore(tmp_path / "other", place, sent)
    assert found_settings == before.settings
    assert (found_settings.partitions, found_settings.segment_age_ms) == (3, 77_000)


async def all_forms_are_equal(cluster: LocalCluster) -> None:
    """Row groups as they lie, and batches made of them, which who has little room gets."""
    found = []
    for fetch_bytes in (1 << 20, 64 << 10):
        options = {"stop_at_end": True, "fetch_bytes": fetch_bytes}
        async with Consumer(cluster.bootstrap, "flights", **options) as consumer:
            records = [record async for record in consumer]
        async with Consumer(cluster.bootstrap, "flights", **options) as consumer:
            rows = await consumer.to_arrow()
        records.sort(key=lambda each: (each.partition, each.offset))
        found.append((records, rows.sort_by([("partition", "ascending"), ("offset", "ascending")])))
    assert found[0] == found[1]
    async with Admin(cluster.bootstrap) as admin, RawClient(cluster.bootstrap) as raw:
        segment = next(each for each in await admin.list_segments("flights") if each.is_tiered)
        address = cluster.addresses[1]
        _, data = await raw_fetch(raw, address, segment, takes_row_groups=True)
        assert parse_header(data).leader_flags & LeaderFlag.ROW_GROUP
        _, data = await raw_fetch(raw, address, segment)
        assert not parse_header(data).leader_flags & LeaderFlag.ROW_GROUP
        clear, data = await raw_fetch(raw, address, segment, takes_row_groups=True, as_records=True)
        assert clear.records and not data
        values = [each.value for each in found[0][0] if each.partition == segment.partition]
        assert [each.value for each in clear.records] == values[: len(clear.records)]


async def raw_fetch(
    raw: RawClient, address: str, segment: Segment, **header: bool
) -> tuple[data_pb2.FetchPartitionResult, bytes]:
    """From the start of a segment: the result, and all batches."""
    entry = data_pb2.FetchPartition(
        topic=segment.topic,
        partition=segment.partition,
        offset=segment.base_offset,
        segment_id=segment.segment_id,
    )
    request = data_pb2.FetchRequest(header=data_pb2.FetchHeader(partitions=[entry], **header))
    head, data = framing.split_bulk(
        await raw.call(address, "DataService/Fetch", request), data_pb2.FetchResponse
    )
    [result] = data_pb2.FetchResponseHeader.FromString(head).partitions
    assert not result.HasField("error"), result.error
    return result, bytes(data)


async def restore(folder: Path, place: Place, sent: dict) -> TopicSettings:  # type: ignore[type-arg]
    """Into an empty cluster, which goes on from there: the settings of the topic."""
    with cluster_of(folder, place) as cluster:
        command = ("tier", "restore", place.url, *place.arguments)
        plan = run_json(cluster, *command, "--dry-run")
        assert plan["topics"] and not any(each["problems"] for each in plan["topics"])
        refused = run_cli(cluster, *command, status=1)
        assert "belongs to cluster" in refused.stderr
        for _ in range(2):
            run_cli(cluster, *command, "--take-over", "--yes")
        for node_id in cluster.addresses:
            cluster.kill_node(node_id)
            cluster.start_node(node_id)
        async with Admin(cluster.bootstrap) as admin:
            await until(lambda: has_store(admin))
        assert await read_all(cluster.bootstrap, "flights") == sent
        more = await produce(cluster.bootstrap, "flights", numbered(9000, 200, 1000))
        async with Admin(cluster.bootstrap) as admin:
            await until_tiered(admin, "flights")
            [topic] = await admin.describe_topics(["flights"])
        whole = merged(sent, more)
        assert await read_all(cluster.bootstrap, "flights") == whole
        verified = run_json(cluster, "tier", "verify", place.url, *place.arguments)
        assert verified["damaged"] == 0
    return topic.settings


async def test_a_table_that_others_read_and_that_goes(in_folder: InFolder) -> None:
    cluster, topic = in_folder.cluster, "read-by-others"
    sent = await fill(cluster.bootstrap, topic, delete_grace_ms=0)
    async with Admin(cluster.bootstrap) as admin:
        await until_tiered(admin, topic)
        folder = await in_folder.table(admin, topic)
        assert rows_of(folder) == sent
        words = ("tier", "export-manifest", in_folder.place.url, "--topic", topic)
        [written] = run_json(cluster, *words)["items"]
        assert written["files"] == len(DeltaTable(folder).file_uris())
        await admin.delete_topic(topic, now=True)

        async def is_gone() -> bool:
            return not [each for each in folder.rglob("*") if each.is_file()]

        await until(is_gone)


def rows_of(folder: Path) -> dict[int, list[tuple[int, bytes]]]:
    """Return the rows that DuckDB reads from the files named by the Delta log."""
    found: dict[int, list[tuple[int, bytes]]] = {}
    with duckdb.connect() as connection:
        rows = connection.execute(
            'select partition, "offset", value from read_parquet(?) order by 1, 2',
            [DeltaTable(folder).file_uris()],
        ).fetchall()
    for partition, offset, value in rows:
        found.setdefault(partition, []).append((offset, value))
    return found


async def test_what_expires_leaves_the_bucket_too(in_folder: InFolder) -> None:
    cluster, topic = in_folder.cluster, "expires"
    await fill(cluster.bootstrap, topic)
    async with Admin(cluster.bootstrap) as admin:
        before = await until_tiered(admin, topic)
        folder = await in_folder.table(admin, topic)
        await admin.alter_topic(topic, retention_bytes=SEGMENT_BYTES)

        async def is_less() -> bool:
            return (await tiering(admin, topic)).published_segments < before.published_segments

        async def is_gone() -> bool:
            found = await tiering(admin, topic)
            named = DeltaTable(folder).file_uris()
            return 0 < len(named) == found.published_segments == len([*folder.glob("*/*.parquet")])

        await until(is_less)
        await until(is_gone)
    assert run_json(cluster, "tier", "verify", in_folder.place.url)["damaged"] == 0


async def test_the_departures_of_the_demo_are_a_table(in_folder: InFolder) -> None:
    source = list(islice(read_departures(), 4000))
    address = in_folder.cluster.bootstrap
    async with Admin(address) as admin:
        await until(lambda: has_store(admin))
        topic = await admin.create_topic(
            "departures", partitions=3, segment_bytes=SEGMENT_BYTES, tier="on"
        )
        async with Producer(address) as producer:
            for each in source:
                await producer.send_wait("departures", each.value, key=each.key)
            await producer.flush()
        tiered = await wait_until_tiered(admin, "departures")
    found = count(in_folder.bucket, topic.topic_id, source)
    assert found.problems == []
    assert (found.rows, found.tiered_segments) == (4000, tiered)


async def test_whoever_dies_in_the_middle_is_caught_up_with(in_folder: InFolder) -> None:
    cluster, topic = in_folder.cluster, "killed"
    sent = await fill(cluster.bootstrap, topic, count=600, tier_after_ms=1)
    for node_id in cluster.addresses:
        cluster.kill_node(node_id)
        cluster.start_node(node_id)
    cluster.kill_coordinator()
    cluster.start_coordinator()
    async with Admin(cluster.bootstrap) as admin:
        await until_tiered(admin, topic)
    assert await read_all(cluster.bootstrap, topic) == sent
    verified = run_json(cluster, "tier", "verify", in_folder.place.url)
    assert verified["damaged"] == 0
