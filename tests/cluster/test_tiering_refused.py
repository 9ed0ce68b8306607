"""A real S3 server that refuses a cluster: the status says what to change, nodes go on serving, and
copies go on by themselves once it does not refuse any more."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from icecore import Admin
from icecore.client.types import TopicTiering
from icecore.dev import LocalCluster
from tests.cluster.test_tiering import NEEDS_MINIO, cluster_of
from tests.cluster.traffic import create, merged, numbered, produce, read_all
from tests.support.minio import Minio, running_minio
from tests.support.minio_users import ALL, WRONG, credential_place, credentials
from tests.support.tier_places import (
    Place,
    has_store,
    run_json,
    s3_credentials,
    s3_place,
    tiering,
    until,
    until_tiered,
)

pytestmark = NEEDS_MINIO

WHY = {
    "bucket": "the bucket does not exist",
    "credentials": "check the credentials",
    "endpoint": "is the endpoint right",
    "region": "the region is wrong",
    "only reading": "the object store refuses _icecore/cluster.json: check the credentials",
    "no deleting": "can't delete objects: the object store refuses",
}


@pytest.fixture(scope="module")
def minio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Minio]:
    with running_minio(tmp_path_factory.mktemp("minio")) as server:
        yield server


def credentials_for(wrong: str, server: Minio) -> dict[str, str]:
    """Of nodes."""
    if wrong == "only reading":
        return credentials(server, ("s3:GetObject", "s3:ListBucket", "s3:GetBucketLocation"))
    if wrong == "no deleting":
        return credentials(server, [each for each in ALL if each != "s3:DeleteObject"])
    found = s3_credentials()
    return dict.fromkeys(found, "wrong") if wrong == "credentials" else found


def place_for(wrong: str, server: Minio, prefix: str) -> Place:
    place = s3_place(server, prefix, "nobodys" if wrong == "bucket" else "icecore-tests")
    changed = {"endpoint": {"tier_endpoint": "http://127.0.0.1:9"}, "region": {"tier_region": "x"}}
    return Place(place.url, {**place.node_settings, **changed.get(wrong, {})})


async def told(address: str) -> TopicTiering:
    """The status once it names an error."""
    async with Admin(address) as admin:

        async def is_told() -> bool:
            return bool((await tiering(admin, "flights")).last_error)

        await until(is_told)
        return await tiering(admin, "flights")


def logged(cluster: LocalCluster, text: str) -> bool:
    """Whether a server has said so."""
    logs = (cluster.folder / "logs").iterdir()
    return any(text.encode() in each.read_bytes() for each in logs)


@pytest.mark.parametrize("wrong", WHY)
async def test_a_store_that_refuses_keeps_nobody_from_serving(
    tmp_path: Path, minio: Minio, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in credentials_for(wrong, minio).items():
        monkeypatch.setenv(name, value)
    place = place_for(wrong, minio, tmp_path.name)
    with cluster_of(tmp_path / "cluster", place, nodes=1) as cluster:
        await create(cluster.bootstrap, "flights", partitions=1, tier="on")  # type: ignore[arg-type]
        sent = await produce(cluster.bootstrap, "flights", numbered(0, 10))
        async with Admin(cluster.bootstrap) as admin:
            await admin.roll_topic("flights")
        found = await told(cluster.bootstrap)
        assert (found.published_segments, found.waiting_segments) == (0, 1)
        assert WHY[wrong] in found.last_error
        assert logged(cluster, WHY[wrong])
        assert await read_all(cluster.bootstrap, "flights") == sent


async def test_credentials_that_end_and_come_back(
    tmp_path: Path, minio: Minio, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tmp_path / "token"
    token.write_text("for the place that gives credentials")
    with credential_place(credentials(minio)) as given:
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", given.url)
        monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(token))
        place = s3_place(minio, tmp_path.name)
        with cluster_of(tmp_path / "cluster", place, nodes=1) as cluster:
            address = cluster.bootstrap
            async with Admin(address) as admin:
                await until(lambda: has_store(admin))
                await create(address, "flights", partitions=1, tier="on")  # type: ignore[arg-type]
                first = await produce(address, "flights", numbered(0, 50))
                before = await until_tiered(admin, "flights")
                given.given = WRONG
                second = await produce(address, "flights", numbered(50, 50))
                await admin.roll_topic("flights")
                found = await told(address)
                assert "check the credentials" in found.last_error
                assert (found.published_segments, found.waiting_segments) == (
                    before.published_segments,
                    1,
                )
                assert logged(cluster, "check the credentials")
                assert await read_all(address, "flights") == merged(first, second)
                given.given = credentials(minio)
                after = await until_tiered(admin, "flights")
            assert after.published_segments == before.published_segments + 1
            assert not after.last_error
            for name, value in s3_credentials().items():
                monkeypatch.setenv(name, value)
            verified = run_json(cluster, "tier", "verify", place.url, *place.arguments)
            assert verified["damaged"] == 0
