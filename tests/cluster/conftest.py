"""Fixtures of tests that run real processes: a cluster of one coordinator and three nodes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from icecore.dev import LocalCluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Shared by the tests of one module: they use topics of their own and kill nothing."""
    with LocalCluster(tmp_path_factory.mktemp("cluster"), nodes=3) as running:
        yield running


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """For tests that kill, stop or break: small segments and short leases."""
    with LocalCluster(
        tmp_path / "cluster",
        nodes=3,
        coordinator_settings={"lease_ms": 3000},
    ) as running:
        yield running
