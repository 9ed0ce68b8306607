"""Object stores for whole clusters in tests: a local folder, and an S3 server."""

import asyncio
import json
import subprocess
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from icecore import Admin
from icecore.client.types import TopicTiering
from icecore.dev import LocalCluster
from tests.cluster.test_cli import CLI, Done
from tests.support.s3 import BUCKET, REGION, S3Server


@dataclass(frozen=True)
class Place:
    """The place that a cluster tiers to."""

    url: str
    node_settings: Mapping[str, str] = field(default_factory=dict)
    arguments: tuple[str, ...] = ()
    """Arguments of commands that read the bucket."""

    def settings(self) -> dict[str, Any]:
        """For nodes."""
        return {"tier_url": self.url, **self.node_settings}


def s3_place(server: S3Server, prefix: str, bucket: str = BUCKET) -> Place:
    """A prefix on a server that runs. Credentials are in the environment: ``s3.s3_credentials``."""
    return Place(
        f"s3://{bucket}/{prefix}",
        {"tier_region": REGION, "tier_endpoint": server.endpoint},
        ("--region", REGION, "--endpoint", server.endpoint),
    )


async def until(is_so: Callable[[], Awaitable[bool]], timeout_s: float = 60.0) -> None:
    """Wait for what others do."""
    async with asyncio.timeout(timeout_s):
        while not await is_so():  # noqa: ASYNC110
            await asyncio.sleep(0.1)


async def has_store(admin: Admin) -> bool:
    """Return whether a node has looked at its object store."""
    return bool((await admin.describe_tiering()).tier_urls)


async def tiering(admin: Admin, topic: str) -> TopicTiering:
    """Return the tiering of one topic."""
    [found] = (await admin.describe_tiering([topic])).topics
    return found


async def seal(admin: Admin, topic: str) -> None:
    """Seal what there is, and wait for it."""
    ends = await admin.list_offsets(topic, "latest")  # of leaders; the coordinator hears it later
    await admin.roll_topic(topic)

    async def is_sealed() -> bool:
        [described] = await admin.describe_topics([topic])
        return all(
            each.tail is not None and each.tail.base_offset >= ends[each.partition].offset
            for each in described.partitions
        )

    await until(is_sealed)


async def until_tiered(
    admin: Admin, topic: str, *, is_remote: bool = False, timeout_s: float = 60.0
) -> TopicTiering:
    """Seal what there is; wait until all of it is published and in the table, and on no node any
    more where asked so."""
    await seal(admin, topic)

    async def is_so() -> bool:
        found = await tiering(admin, topic)
        left = found.waiting_segments + found.uploading_segments + found.stale_tables
        here = found.published_segments - found.remote_only_segments if is_remote else 0
        return not (left or here)

    await until(is_so, timeout_s)
    return await tiering(admin, topic)


def run_cli(cluster: LocalCluster, *arguments: str, status: int = 0) -> Done:
    """A command in a process of its own: the loop of the test goes on living here."""
    command = [*CLI, "-b", cluster.bootstrap, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    return Done(done.stdout, done.stderr)


def run_json(cluster: LocalCluster, *arguments: str, status: int = 0) -> Any:
    """Run a command, and return the JSON that it prints."""
    return json.loads(run_cli(cluster, *arguments, status=status).stdout)
