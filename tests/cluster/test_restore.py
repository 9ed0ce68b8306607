"""A bucket that is restored into an empty cluster: several topics come back whole."""

from collections.abc import Mapping
from pathlib import Path
from uuid import UUID

import pytest

from icecore import Admin
from icecore.dev import LocalCluster
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
