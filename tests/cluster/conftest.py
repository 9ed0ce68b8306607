"""Fixtures of tests that run real processes: a cluster of one coordinator and three nodes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from icecore.dev import LocalCluster
from tests.support.fast import default_waits, fast_waits  # noqa: F401 - fixtures for all tests here
from tests.support.server_logs import caught_by_loops


@pytest.fixture(scope="session", autouse=True)
def _servers_make_no_mistakes() -> Iterator[None]:
    """What an event loop had to catch is a mistake of ours, however well the test went."""
    stop = LocalCluster.__exit__

    def checked(cluster: LocalCluster, *error: Any) -> None:
        stop(cluster, *error)
        if error[0] is None:
            assert list(caught_by_loops(cluster.folder)) == []

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalCluster, "__exit__", checked)
        yield


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
