"""An S3 that has bad minutes while a cluster uploads to it and reads from it: nothing is lost,
nobody storms it, and all goes on by itself."""

import asyncio
import json
from pathlib import Path

import pytest

from icecore import Admin
from tests.cluster.test_cli import CLI
from tests.cluster.test_tiering import SEGMENT_BYTES, cluster_of
from tests.cluster.traffic import create, merged, numbered, produce, read_all
from tests.support.busy_s3 import BusyS3, busy_s3
from tests.support.s3 import running_moto, s3_credentials
from tests.support.tier_places import has_store, s3_place, seal, tiering, until, until_tiered

TROUBLES = ("slow down", "cut", "hang")
BAD_S = 6.0
REQUESTS_MAX = 400
"""Two nodes with some retries each; without back-off it would be thousands."""
SETTINGS = {
    "partitions": 2,
    "replication_factor": 2,
    "segment_bytes": SEGMENT_BYTES,
    "tier": "on",
    "local_retention_ms": 0,
}


async def heals_after(busy: BusyS3, wait_s: float) -> None:
    await asyncio.sleep(wait_s)
    busy.heal()


@pytest.mark.every(3)
@pytest.mark.timeout(400)  # back-offs of half a minute, three times
async def test_bad_minutes_of_an_object_store_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3_credentials().items():
        monkeypatch.setenv(name, value)
    with running_moto() as moto, busy_s3(moto) as busy:
        place = s3_place(busy.server, tmp_path.name)
        with cluster_of(tmp_path / "cluster", place) as cluster:
            async with Admin(cluster.bootstrap) as admin:
                await until(lambda: has_store(admin))
                for number, trouble in enumerate(TROUBLES):
                    await one(cluster.bootstrap, admin, busy, f"t{number}", trouble)
            command = [*CLI, "-b", cluster.bootstrap, "cluster", "health", "--wait", "60"]
            process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
            output, _ = await process.communicate()
            assert json.loads(output)["verdict"] == "healthy"


async def one(address: str, admin: Admin, busy: BusyS3, topic: str, trouble: str) -> None:
    """Upload into the trouble, and read into it again."""
    await create(address, topic, **SETTINGS)  # type: ignore[arg-type]
    first = await produce(address, topic, numbered(0, 100, 1000), batch_bytes=16 << 10)
    busy.fail(trouble)
    before = busy.answered[trouble]
    await seal(admin, topic)
    later = await produce(address, topic, numbered(100, 100, 1000), batch_bytes=16 << 10)
    await until(lambda: met(busy, trouble, before))
    await heals_after(busy, BAD_S)
    assert busy.answered[trouble] - before < REQUESTS_MAX
    await until_tiered(admin, topic, is_remote=True, timeout_s=120)
    await until(lambda: is_told_well(admin, topic), 120)

    busy.fail(trouble)
    healing = asyncio.ensure_future(heals_after(busy, BAD_S))
    assert await read_all(address, topic, timeout_s=90) == merged(first, later)
    await healing


async def is_told_well(admin: Admin, topic: str) -> bool:
    """Each error goes once the same goes well: the sweep of failed attempts is the last."""
    return not (await tiering(admin, topic)).last_error


async def met(busy: BusyS3, trouble: str, before: int) -> bool:
    return busy.answered[trouble] > before
