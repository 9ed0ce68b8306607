"""Commands for a bucket take damage in a folder and in S3 for the same."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from icecore_node import bucket_commands
from icecore_node.io.executor import ThreadExecutor
from icecore_node.remote.marker import MARKER_KEY
from tests.support.s3 import BUCKET, S3Server, s3_credentials
from tests.support.s3_servers import SERVERS
from tests.support.tier_places import s3_place
from tests.support.tiered import FACTS, flights
from tests.support.tiered_folder import TieredFolder

NEW_CLUSTER = b"n" * 16
OTHER = b"o" * 16
OWNER = FACTS.cluster_id.hex()
LOG = f"{UUID(bytes=FACTS.topic_id)}/_delta_log"


class S3Copy:
    """The objects of a folder on an S3 server."""

    def __init__(self, server: S3Server, prefix: str, folder: Path) -> None:
        self._client = server.client()
        self._prefix = prefix
        self._place = s3_place(server, prefix)
        for each in folder.rglob("*"):
            if each.is_file():
                self.put(str(each.relative_to(folder)), each.read_bytes())

    def put(self, key: str, body: bytes) -> None:
        self._client.put_object(Bucket=BUCKET, Key=f"{self._prefix}/{key}", Body=body)

    def get(self, key: str) -> bytes:
        found = self._client.get_object(Bucket=BUCKET, Key=f"{self._prefix}/{key}")
        body: bytes = found["Body"].read()
        return body

    def delete(self, key: str) -> None:
        self._client.delete_object(Bucket=BUCKET, Key=f"{self._prefix}/{key}")

    async def run(self, command: str, *arguments: str) -> dict[str, Any]:
        words = [command, self._place.url, *self._place.arguments, *arguments]
        executor = ThreadExecutor(reader_threads=2)
        try:
            given = bucket_commands._parser().parse_args(words)
            acts = bucket_commands.BucketCommands(given, executor)
            found: dict[str, Any] = await getattr(acts, command.replace("-", "_"))()
            return found
        finally:
            executor.close()

    async def plans(self, *arguments: str) -> dict[str, list[str]]:
        """Problems of each topic."""
        found = await self.run("plan", *arguments)
        return {each["topic"]: each["problems"] for each in found["topics"]}


@pytest.fixture
async def s3(
    tmp_path: Path, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[S3Copy]:
    """Two topics; the table of the first one has two commits behind the one that made it."""
    for name, value in s3_credentials().items():
        monkeypatch.setenv(name, value)
    executor = ThreadExecutor(reader_threads=2)
    made = TieredFolder(tmp_path / "bucket", executor)
    await made.mark()
    first = await made.put(flights(3), 0, 1)
    made.publish(first)
    made.publish(first, await made.put(flights(3), first.facts.end_offset, 2))
    made.publish(await made.put(flights(3), 0, 3, topic_id=OTHER, topic="other"))
    executor.close()
    yield S3Copy(s3_server, tmp_path.name, made.folder)


@pytest.mark.parametrize("s3_server", SERVERS, indirect=True)
@pytest.mark.parametrize("damage", ["lost", "empty", "cut"])
@pytest.mark.parametrize("version", [0, 1])
async def test_a_damaged_commit_costs_one_topic(s3: S3Copy, damage: str, version: int) -> None:
    key = f"{LOG}/{version:020d}.json"
    whole = s3.get(key)
    if damage == "lost":
        s3.delete(key)
    else:
        s3.put(key, whole[:60] if damage == "cut" else b"")
    plans = await s3.plans()
    assert plans["other"] == [] and "its table can't be read" in plans["flights"][0]
    claim = ("--cluster", NEW_CLUSTER.hex(), "--old", OWNER)
    taken = await s3.run("take-over", *claim)
    assert taken["was_taken"] and [*taken["tables_left"]] == [FACTS.topic_id.hex()]
    s3.put(key, whole)
    taken = await s3.run("take-over", *claim)
    assert (taken["was_taken"], taken["tables_left"]) == (False, {})
    assert await s3.plans() == {"flights": [], "other": []}


@pytest.mark.parametrize("s3_server", SERVERS, indirect=True)
async def test_a_lost_marker_is_replaced(s3: S3Copy) -> None:
    s3.delete(MARKER_KEY)
    assert all(f"--adopt {OWNER}" in each[0] for each in (await s3.plans()).values())
    assert await s3.plans("--adopt", OWNER) == {"flights": [], "other": []}
    assert (await s3.run("take-over", "--cluster", NEW_CLUSTER.hex(), "--adopt", OWNER))[
        "was_taken"
    ]
    assert await s3.plans() == {"flights": [], "other": []}
