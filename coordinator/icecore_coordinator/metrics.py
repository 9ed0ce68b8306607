"""All metrics of a coordinator: what it knows of the cluster, and of its own loop.

Nothing is kept up to date for them: a scrape asks the loop for the cluster in numbers, as a person
with ``icecore cluster describe`` would. A loop that does not answer within seconds is no live one.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from icecore.process.status_page import Pages
from icecore.v1 import admin_pb2 as pb
from icecore.v1 import common_pb2

_ANSWER_S = 5.0
_SOON_S = 10.0
_GAUGES = (
    ("topics", "Topics, without deleted ones."),
    ("partitions", "Partitions, without those of deleted topics."),
    ("offline_partitions", "Partitions without an active segment."),
    ("segments", "Segments of any state."),
    ("sealed_segments", "Segments that never change again."),
    ("under_replicated", "Segments with fewer verified or in-sync copies than they should have."),
    ("min_copies", "Fewest copies of any sealed segment; 0 when there is none."),
    ("deleted_topics", "Topics that are kept until their grace is over."),
    ("deleted_bytes", "One copy of their sealed segments."),
)


class CoordinatorPages:
    """Metrics and probes of a coordinator. They are made on its loop and asked for from other
    threads."""

    def __init__(
        self,
        describe: Callable[[], pb.DescribeClusterResponse | None],
        is_lost: Callable[[], bool],
        why_suspended: Callable[[], str],
        trouble: Callable[[], str] = lambda: "",
    ) -> None:
        """
        Args:
            describe: The cluster in numbers, None while this one stands by; called on the loop.
            is_lost: Whether the coordinator is one no more; called on the loop.
            why_suspended: Why its metadata wait for a person; empty = they do not.
            trouble: Why etcd does not answer; empty = it does.
        """
        self._describe_cluster = describe
        self._ask_lost = is_lost
        self._why_suspended = why_suspended
        self.trouble = trouble
        self._loop = asyncio.get_running_loop()
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        self.registry.register(_Cluster(self))

    def pages(self) -> Pages:
        """For the server."""
        return Pages(
            self._metrics, CONTENT_TYPE_LATEST, self.why_dead, self.why_not, role=self.role
        )

    def role(self) -> str:
        """Return one word for monitors: ``active`` or ``standby``. Raises TimeoutError."""
        return "standby" if self.cluster() is None else "active"

    def why_not(self) -> str:
        """Return why the coordinator is not ready; empty = it is. It is ready while it is alive,
        and its metadata are not suspended."""
        return self.why_dead() or self._why_suspended() or self.trouble()

    def why_dead(self) -> str:
        """Return why the process is to be started anew; empty = its loop turns, no other
        coordinator took over and the metadata store works. One whose metadata are suspended is
        alive: it waits for a person, and hears the nodes until then."""
        try:
            is_lost = asyncio.run_coroutine_threadsafe(self._is_lost(), self._loop).result(_SOON_S)
        except (TimeoutError, RuntimeError):
            return f"the event loop has not turned for {_SOON_S:.0f} s"
        return "another coordinator took over, or the metadata store failed" if is_lost else ""

    def cluster(self) -> pb.DescribeClusterResponse | None:
        """In numbers; None while this coordinator stands by. Raises TimeoutError when the loop does
        not answer."""
        return asyncio.run_coroutine_threadsafe(self._describe(), self._loop).result(_ANSWER_S)

    def _metrics(self) -> bytes:
        return generate_latest(self.registry)

    async def _is_lost(self) -> bool:
        return self._ask_lost() and not self._why_suspended()

    async def _describe(self) -> pb.DescribeClusterResponse | None:
        return self._describe_cluster()


class _Cluster(Collector):
    """Turns the cluster in numbers into gauges."""

    def __init__(self, pages: CoordinatorPages) -> None:
        self._pages = pages

    def describe(self) -> list[Metric]:
        """Registering must not ask the loop, on which it happens."""
        return []

    def collect(self) -> Iterator[Metric]:
        cluster = self._pages.cluster()
        yield GaugeMetricFamily(
            "icecore_coordinator_active",
            "1 = it acts, 0 = it stands by for another coordinator.",
            cluster is not None,
        )
        yield GaugeMetricFamily(
            "icecore_coordinator_store_up",
            "1 = the metadata store answers, 0 = no member of etcd does.",
            not self._pages.trouble(),
        )
        if cluster is not None:
            yield from self._of_cluster(cluster)

    def _of_cluster(self, cluster: pb.DescribeClusterResponse) -> Iterator[Metric]:
        for name, text in _GAUGES:
            yield GaugeMetricFamily(f"icecore_cluster_{name}", text, getattr(cluster, name))
        nodes = GaugeMetricFamily("icecore_cluster_nodes", "Nodes.", labels=["state"])
        states = Counter(each.node.state for each in cluster.nodes)
        for number, name in (
            (common_pb2.NODE_STATE_UP, "up"),
            (common_pb2.NODE_STATE_DOWN, "down"),
            (common_pb2.NODE_STATE_DRAINING, "draining"),
            (common_pb2.NODE_STATE_READ_ONLY, "read_only"),
        ):
            nodes.add_metric([name], states[number])
        yield nodes
        yield GaugeMetricFamily(
            "icecore_cluster_alerts", "Alerts that wait for a person.", len(cluster.alerts)
        )
        yield GaugeMetricFamily(
            "icecore_cluster_backup_timestamp_seconds",
            "Unix time at which the last backup of the metadata was complete; 0 = there was none.",
            cluster.backup_at_ms / 1000,
        )
        used = GaugeMetricFamily(
            "icecore_cluster_limit_used_ratio",
            "Used part of a limit that may fill up, from 0 to 1.",
            labels=["limit"],
        )
        for each in cluster.limits:
            used.add_metric([each.name], each.used / each.most)
        yield used
        yield CounterMetricFamily(
            "icecore_coordinator_refused_streams",
            "Heartbeat streams refused: not from the node in whose name they came.",
            cluster.refused_streams,
        )
        yield CounterMetricFamily(
            "icecore_coordinator_recoveries", "Segments recovered.", cluster.recoveries
        )
        yield GaugeMetricFamily(
            "icecore_coordinator_epoch", "Its fencing token.", cluster.coordinator_epoch
        )
