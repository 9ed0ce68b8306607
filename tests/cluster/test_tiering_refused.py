"""An S3 server that refuses nodes: the status says what to change, nodes go on serving, and copies
go on by themselves once it does not refuse any more."""

from dataclasses import replace
from pathlib import Path

import pytest

from icecore import Admin
from icecore.client.types import TopicTiering
from tests.cluster.test_tiering import cluster_of
from tests.cluster.traffic import create, merged, numbered, produce, read_all
from tests.support.credential_place import WRONG, credential_place
from tests.support.s3 import ALL, S3Server, s3_credentials
from tests.support.s3_servers import SERVERS
from tests.support.tier_places import (
    has_store,
    run_json,
    s3_place,
    tiering,
    until,
    until_tiered,
)

NOBODY = "http://127.0.0.1:9"
WHY = {
    "endpoint": "is the endpoint right",
    "no deleting": "can't delete objects: the object store refuses",
}
"""A store that is away, and one that may not be used. All others have their words in
``tests/conformance/test_object_stores.py``."""


@pytest.fixture(scope="module", params=SERVERS)
def server(request: pytest.FixtureRequest) -> S3Server:
    found: S3Server = request.getfixturevalue(request.param)
    return found


async def told(address: str, text: str) -> TopicTiering:
    """The status once its error says this."""
    async with Admin(address) as admin:

        async def is_told() -> bool:
            return text in (await tiering(admin, "flights")).last_error

        await until(is_told)
        return await tiering(admin, "flights")


def unpublished(found: TopicTiering) -> int:
    """Segments that an attempt may be under way for."""
    return found.waiting_segments + found.uploading_segments


@pytest.mark.parametrize("wrong", WHY)
async def test_a_store_that_refuses_keeps_nobody_from_serving(
    tmp_path: Path, server: S3Server, wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, place = s3_credentials(), s3_place(server, tmp_path.name)
    if wrong == "no deleting":
        given = server.credentials([each for each in ALL if each != "s3:DeleteObject"])
    else:
        place = replace(place, node_settings={**place.node_settings, "tier_endpoint": NOBODY})
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    with cluster_of(tmp_path / "cluster", place, nodes=1) as cluster:
        await create(cluster.bootstrap, "flights", partitions=1, tier="on")  # type: ignore[arg-type]
        sent = await produce(cluster.bootstrap, "flights", numbered(0, 10))
        async with Admin(cluster.bootstrap) as admin:
            await admin.roll_topic("flights")
        found = await told(cluster.bootstrap, WHY[wrong])
        assert (found.published_segments, unpublished(found)) == (0, 1)
        assert WHY[wrong] in cluster.node(1).log_path.read_text()
        assert await read_all(cluster.bootstrap, "flights") == sent


async def test_credentials_that_end_and_come_back(
    tmp_path: Path, server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tmp_path / "token"
    token.write_text("for the place that gives credentials")
    with credential_place(server.credentials()) as given:
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", given.url)
        monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(token))
        place = s3_place(server, tmp_path.name)
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
                found = await told(address, "check the credentials")
                published = before.published_segments
                assert (found.published_segments, unpublished(found)) == (published, 1)
                assert "check the credentials" in cluster.node(1).log_path.read_text()
                assert await read_all(address, "flights") == merged(first, second)
                given.given = server.credentials()
                after = await until_tiered(admin, "flights")

                async def is_silent() -> bool:  # what failed attempts left is swept, too
                    return not (await tiering(admin, "flights")).last_error

                await until(is_silent)
            assert after.published_segments == published + 1
            for name, value in s3_credentials().items():
                monkeypatch.setenv(name, value)
            verified = run_json(cluster, "tier", "verify", place.url, *place.arguments)
            assert verified["damaged"] == 0
