"""A cluster with the product's waits heals and tiers; all other tests shorten these waits."""

import os
from pathlib import Path

import pytest

from icecore import Admin
from icecore.dev import LocalCluster
from tests.cluster.traffic import create, merged, numbered, produce, read_all
from tests.support.fast import FAST
from tests.support.tier_places import has_store, until, until_tiered


@pytest.mark.default_timing
async def test_copies_are_restored_and_tiered(tmp_path: Path) -> None:
    assert not FAST.keys() & os.environ.keys()
    (tmp_path / "bucket").mkdir()
    url = (tmp_path / "bucket").as_uri()
    with LocalCluster(tmp_path / "cluster", 3, tier_url=url) as cluster:
        async with Admin(cluster.bootstrap) as admin:
            await until(lambda: has_store(admin))
            await create(cluster.bootstrap, "t", partitions=4, segment_bytes=64 << 10, tier="on")
            before = await produce(cluster.bootstrap, "t", numbered(0, 2_000))
            cluster.kill_node(2)
            after = await produce(cluster.bootstrap, "t", numbered(2_000, 2_000))
            cluster.start_node(2)

            async def is_whole() -> bool:
                found = await admin.describe_cluster()
                return (found.under_replicated, found.min_copies) == (0, 3)

            await until(is_whole)
            await until_tiered(admin, "t")
        assert await read_all(cluster.bootstrap, "t") == merged(before, after)
