"""Clusters that tests share, mend after themselves, and end.

A cluster costs five seconds of a processor to start, so tests have one of their own only where they
leave damage behind, need settings, or stop everything anyway.
"""

import contextlib
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from icecore.blocking import Admin
from icecore.cli.health import HealthVerdict, judge
from icecore.dev import LocalCluster
from tests.support.server_logs import caught_by_loops

NODES = 3
LEASE_MS = 3000
"""Lease of clusters whose processes get killed: half of the default."""
HEALTHY_WITHIN_S = 90.0
_POLL_S = 0.05


def end(cluster: LocalCluster) -> None:
    """End all processes by SIGKILL; a clean stop costs a second or two, and has tests of its own.

    Where the run measures coverage they are stopped cleanly: only so do servers write their data.
    """
    cluster.stop(kill="COVERAGE_PROCESS_START" not in os.environ)


def kill_together(cluster: LocalCluster, node_ids: Iterable[int]) -> None:
    """SIGKILL nodes that all stand still first: none sees another one die, and nobody seals."""
    nodes = list(node_ids)
    for node_id in nodes:
        cluster.node(node_id).pause()
    for node_id in nodes:
        cluster.kill_node(node_id)


def check_logs(cluster: LocalCluster) -> None:
    """Fail when an event loop had to catch an exception: a mistake of ours, however a test went."""
    assert list(caught_by_loops(cluster.folder)) == []


@contextlib.contextmanager
def running(cluster: LocalCluster) -> Iterator[LocalCluster]:
    """Start the cluster; end it afterwards and look into its logs."""
    try:
        yield cluster.start()
    finally:
        end(cluster)
    check_logs(cluster)


class Healed:
    """A cluster that each test gets whole and without topics, though the test before killed nodes.

    Args:
        folder: Where clusters are kept: a new one follows one that did not become whole again.
        settings: Arguments of each.
    """

    def __init__(self, folder: Path, **settings: Any) -> None:
        self._folder = folder
        self._settings = settings
        self._made = 0
        self._cluster: LocalCluster | None = None

    def get(self) -> LocalCluster:
        """The cluster that runs; made when there is none."""
        if self._cluster is None:
            self._made += 1
            made = LocalCluster(self._folder / f"{self._made}", NODES, **self._settings)
            self._cluster = made.start()
        return self._cluster

    def heal(self) -> None:
        """Start what is dead, delete all topics, wait for health; fails when it does not come."""
        assert self._cluster is not None, "nobody asked for it"
        try:
            check_logs(self._cluster)
            _revive(self._cluster)
            _clear(self._cluster.bootstrap)
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """End the cluster, if there is one."""
        if self._cluster is not None:
            end(self._cluster)
        self._cluster = None


def _revive(cluster: LocalCluster) -> None:
    if not cluster.coordinator.is_running:
        cluster.start_coordinator()
    for node_id in cluster.addresses:
        node = cluster.node(node_id)
        if node.is_running:
            node.resume()
        else:
            cluster.start_node(node_id)


def _clear(bootstrap: str) -> None:
    """Delete every topic without grace, and wait until the cluster is healthy."""
    deadline = time.monotonic() + HEALTHY_WITHIN_S
    with Admin(bootstrap, timeout_s=HEALTHY_WITHIN_S) as admin:
        for deleted in (False, True):
            for topic in admin.describe_topics(deleted=deleted):
                admin.delete_topic(topic_id=topic.topic_id, now=True)
        while True:
            found = admin.describe_cluster()
            health = judge(found, admin.describe_topics())
            # A coordinator that was started again knows disks from heartbeats only: until then it
            # takes a node for one that is up, but gives it nothing.
            are_heard = all(each.disks for each in found.nodes)
            if health.verdict is HealthVerdict.HEALTHY and are_heard and not found.deleted_topics:
                return
            assert time.monotonic() < deadline, (found, health)
            time.sleep(_POLL_S)
