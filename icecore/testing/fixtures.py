"""Fixtures for pytest: a cluster on this machine, its address, and a topic for each test.

A module of the caller's that redefines ``icecore_nodes`` or ``icecore_topic_settings`` changes what
the others make.
"""

import os
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from icecore.blocking import Admin
from icecore.dev import LocalCluster


@pytest.fixture(scope="session")
def icecore_nodes() -> int:
    """Return how many nodes the cluster has. One is the quickest; copies need several."""
    return 1


@pytest.fixture(scope="session")
def icecore_cluster(
    icecore_nodes: int, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LocalCluster]:
    """A running cluster, once for all tests of a process: each pytest-xdist worker has its own.

    Its methods kill, stop and start single nodes. Its folder goes as pytest's temporary folders do.
    """
    cluster = LocalCluster(tmp_path_factory.mktemp("icecore"), icecore_nodes)
    with cluster:
        yield cluster
        cluster.stop(kill=True)  # nobody reads its data any more


@pytest.fixture(scope="session")
def icecore_bootstrap(icecore_cluster: LocalCluster) -> str:
    """``HOST:PORT`` for ``Producer``, ``Consumer``, ``Lookup`` and ``Admin``."""
    return icecore_cluster.bootstrap


@pytest.fixture
def icecore_topic_settings() -> Mapping[str, Any]:
    """Settings of ``icecore_topic``, as ``Admin.create_topic`` takes them."""
    return {}


@pytest.fixture
def icecore_topic(
    icecore_bootstrap: str, icecore_topic_settings: Mapping[str, Any]
) -> Iterator[str]:
    """A topic that no other test knows; it is deleted after the test."""
    name = f"test-{os.urandom(6).hex()}"
    with Admin(icecore_bootstrap) as admin:
        admin.create_topic(name, **icecore_topic_settings)
        yield name
        admin.delete_topic(name)
