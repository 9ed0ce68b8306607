"""A bucket is restored into an empty cluster: topics come back whole, and look-ups are right."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from icecore import Admin, Consumer, Lookup, Producer
from icecore.dev import LocalCluster
from icecore_node.remote.format.manifest import MANIFEST, parse_manifest
from icecore_node.remote.format.stored_settings import FOLDER, StoredSettings, settings_object
from tests.cluster.test_tiering import cluster_of
from tests.cluster.traffic import Log, create, merged, numbered, produce, read_all
from tests.support.tier_places import Place, has_store, run_cli, run_json, seal, until, until_tiered


async def fill(address: str, topic: str, partitions: int, rounds: int) -> Log:
    """Records of a topic in object storage alone; each round ends with a seal."""
    await create(
        address,
        topic,
        partitions=partitions,
        replication_factor=1,
        tier="on",  # type: ignore[arg-type]
        local_retention_ms=0,
    )
    parts = []
    async with Admin(address) as admin:
        for number in range(rounds):
            parts.append(await produce(address, topic, numbered(100 * number, 60)))
            await seal(admin, topic)
        await until_tiered(admin, topic, is_remote=True)
    return merged(*parts)


async def ready(cluster: LocalCluster) -> None:
    """Wait until a node has looked at its object store."""
    async with Admin(cluster.bootstrap) as admin:
        await until(lambda: has_store(admin))


async def take_over(cluster: LocalCluster, place: Place, *arguments: str) -> None:
    """Restore, and start nodes again: they take the bucket at once."""
    run_cli(cluster, "tier", "restore", place.url, *arguments, "--take-over", "--yes")
    for node_id in cluster.addresses:
        cluster.kill_node(node_id)
        cluster.start_node(node_id)
    await ready(cluster)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("is_one_first", [False, True], ids=["together", "one-first"])
async def test_a_bucket_of_several_topics_comes_back(tmp_path: Path, is_one_first: bool) -> None:
    place = Place((tmp_path / "bucket").as_uri())
    shapes: Mapping[str, tuple[int, int]] = {"one": (1, 1), "two": (2, 4), "three": (5, 2)}
    with cluster_of(tmp_path / "cluster", place) as cluster:
        await ready(cluster)
        address = cluster.bootstrap
        sent = {name: await fill(address, name, *shape) for name, shape in shapes.items()}
        async with Admin(address) as admin:
            known = {each.name: each.topic_id for each in await admin.describe_topics()}
    with cluster_of(tmp_path / "other", place) as cluster:
        address = cluster.bootstrap
        if is_one_first:
            await take_over(cluster, place, "--topic", str(UUID(bytes=known["one"])))
        await take_over(cluster, place)
        for name, log in sent.items():
            assert await read_all(address, name) == log
            more = await produce(address, name, numbered(9000, 60))
            async with Admin(address) as admin:
                found = await until_tiered(admin, name, is_remote=True)
                [topic] = await admin.describe_topics([name])
            assert (topic.topic_id, topic.settings.partitions) == (known[name], shapes[name][0])
            assert not found.last_error
            assert await read_all(address, name) == merged(log, more)
        assert run_json(cluster, "tier", "verify", place.url)["damaged"] == 0


@pytest.mark.timeout(300)
async def test_a_bucket_without_marker_and_with_a_damaged_table(tmp_path: Path) -> None:
    """A node of the new cluster marks the bucket first, and one topic has lost its first commit."""
    place = Place((tmp_path / "bucket").as_uri())
    with cluster_of(tmp_path / "cluster", place) as cluster:
        await ready(cluster)
        address = cluster.bootstrap
        sent = {name: await fill(address, name, 2, 2) for name in ("whole", "damaged")}
        async with Admin(address) as admin:
            known = {each.name: each.topic_id for each in await admin.describe_topics()}
            old = (await admin.describe_tiering()).cluster_id.hex()
    marker = tmp_path / "bucket" / "_icecore" / "cluster.json"
    marker.unlink()
    log = tmp_path / "bucket" / str(UUID(bytes=known["damaged"])) / "_delta_log"
    (log / f"{0:020d}.json").unlink()
    with cluster_of(tmp_path / "other", place) as cluster:
        address = cluster.bootstrap
        await ready(cluster)
        assert marker.exists()
        told = run_cli(cluster, "tier", "restore", place.url, "--yes", status=1).stderr
        assert f"--adopt {old}" in told
        words = ("tier", "restore", place.url, "--adopt", old, "--yes")
        told = run_cli(cluster, *words, status=1).stderr
        assert "topic whole is back" in told
        assert "not restored: damaged: its table can't be read: commit 0 is missing" in told
        assert await read_all(address, "whole") == sent["whole"]
        log.rename(tmp_path / "aside")
        run_cli(cluster, "tier", "restore", place.url, "--yes")
        for name, log_of_topic in sent.items():
            assert await read_all(address, name) == log_of_topic
            more = await produce(address, name, numbered(9000, 60))
            async with Admin(address) as admin:
                found = await until_tiered(admin, name, is_remote=True)
            assert not found.last_error
            assert await read_all(address, name) == merged(log_of_topic, more)
        assert run_json(cluster, "tier", "verify", place.url)["damaged"] == 0


HEADERS = {"carrier": b"UA"}
KEYS = [b"key-%d" % number for number in range(40)]


async def send(address: str, keys: list[bytes]) -> None:
    """A record of each key, with a header."""
    async with Producer(address) as producer:
        for key in keys:
            await producer.send_wait("t", b"v", key=key, headers=HEADERS)
        await producer.flush()


async def answers(address: str) -> list[list[tuple[int, int]]]:
    """Places of what is found by key, by header, and by a consumer that wants the header."""
    found = []
    async with Lookup(address, "t") as lookup:
        for asked in ({"keys": KEYS}, {"headers": HEADERS}):
            page = await lookup.find(max_count=1000, **asked)  # type: ignore[arg-type]
            assert page.complete
            found.append(page.records)
    async with Consumer(address, "t", stop_at_end=True, headers=HEADERS) as consumer:
        found.append([each async for each in consumer])
    return [sorted((each.partition, each.offset) for each in part) for part in found]


def age(bucket: Path) -> None:
    """Leave manifests and settings as an earlier version wrote them."""
    manifests = [*bucket.rglob(f"*{MANIFEST}")]
    for each in manifests:
        found = parse_manifest(each.read_bytes())
        each.write_bytes(replace(found, indexed_headers=()).encode())
    for each in bucket.glob(f"*/{FOLDER}/*.json"):
        old = json.loads(each.read_bytes())
        text = json.dumps(old["settings"])
        said = StoredSettings(old["settings_version"], text)
        ids = bytes.fromhex(old["cluster_id"]), bytes.fromhex(old["topic_id"])
        each.write_bytes(settings_object(*ids, said))
    assert manifests


@pytest.mark.timeout(300)
@pytest.mark.parametrize("is_old", [False, True], ids=["today", "earlier-version"])
async def test_look_ups_find_the_same_after_a_restore(tmp_path: Path, is_old: bool) -> None:
    place = Place((tmp_path / "bucket").as_uri())
    with cluster_of(tmp_path / "cluster", place) as cluster:
        await ready(cluster)
        address = cluster.bootstrap
        async with Admin(address) as admin:
            await admin.create_topic(
                "t", partitions=2, replication_factor=1, tier="on", local_retention_ms=0
            )
            await send(address, KEYS)
            await until_tiered(admin, "t", is_remote=True)
            await admin.alter_topic("t", indexed_headers=("carrier",))
            await admin.add_partitions("t", 5)
            await send(address, [b"other-%d" % number for number in range(60)])
            await until_tiered(admin, "t", is_remote=True)
        before = await answers(address)
        assert [*map(len, before)] == [40, 100, 100]
    if is_old:
        age(tmp_path / "bucket")
    with cluster_of(tmp_path / "other", place) as cluster:
        await take_over(cluster, place)
        assert await answers(cluster.bootstrap) == before
        async with Admin(cluster.bootstrap) as admin:
            [topic] = await admin.describe_topics(["t"])
            segments = await admin.list_segments("t")
        assert topic.earlier_partitions == ((0,) if is_old else (2,))
        indexed = {each.settings.indexed_headers for each in segments if each.is_tiered}
        assert indexed == ({()} if is_old else {(), ("carrier",)})
