"""All metrics of a node: their Prometheus names, and the HTTP endpoint that shows them.

Hot paths bump per request or per I/O group, never per record. Labels are bounded: acks, error
reasons, transports, and (for the gauges a dashboard of partitions needs) topic and partition. Those
gauges are not kept up to date anywhere: a collector asks the node for them when somebody scrapes.
``sampling.py`` fills those that are measured now and then. ``make references`` writes
``docs/reference/metrics.md`` from this file and from that of the coordinator.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    Info,
    PlatformCollector,
    ProcessCollector,
    disable_created_metrics,
)
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from icecore.process.status_page import Pages, Probe, has_started

_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
_LONG_SECONDS = (0.1, 0.5, 1, 2, 5, 10, 20, 60, 120, 300, 600, 1800)
_COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
_BYTES = tuple(float(1 << shift) for shift in range(10, 27, 2))


@dataclass(frozen=True, slots=True)
class PartitionSample:
    """The tail of one partition on this node, for the gauges. Ends are exclusive."""

    topic: str
    partition: int
    log_start_offset: int
    high_watermark: int
    log_end_offset: int
    is_leader: bool
    isr_size: int
    replication_factor: int
    replica_lag_offsets: tuple[tuple[int, int], ...] = ()
    """On the leader: (node id, records it is behind) per follower."""


@dataclass(frozen=True, slots=True)
class NodeSample:
    """Values of the gauges that concern the node as a whole."""

    partitions: tuple[PartitionSample, ...] = ()
    segments: tuple[tuple[str, int], ...] = ()
    """(state in lower case, number of replicas)."""
    disk_used_bytes: int = 0
    disk_free_bytes: int = 0
    tail_cache_bytes: int = 0
    produce_inflight_bytes: int = 0
    disks: tuple[tuple[str, int, int, bool], ...] = ()
    """(path, used bytes, free bytes, whether it counts) of each disk."""
    memory_engine_bytes: int = 0


class NodeMetrics:
    """Counters and histograms with their labels bound once; ``inc`` and ``observe`` are all that
    a hot path calls. Each node has its own registry, since tests run several in one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._clients()
        self._disk()
        self._replication()
        self._tiering()
        self.event_loop_lag_seconds = self._histogram(
            "icecore_event_loop_lag_seconds", "How late a timer of the loop fired."
        )
        Info("icecore_build", "Version of this node.", registry=self.registry).info(
            {"version": _version()}
        )

    def _clients(self) -> None:
        calls = self._counter(
            "icecore_rpc_calls_total", "Calls and streams that came in, by transport.", "transport"
        )
        self.calls = {name: calls.labels(name) for name in ("grpc", "native")}
        requests = self._counter(
            "icecore_produce_requests_total", "Produce requests, by acks asked for.", "acks"
        )
        self.produce_requests = {
            name: requests.labels(name) for name in ("all", "quorum", "leader")
        }
        self.produce_batches = self._counter("icecore_produce_batches_total", "Batches appended.")
        self.produce_records = self._counter("icecore_produce_records_total", "Records appended.")
        self.produce_bytes = self._counter("icecore_produce_bytes_total", "Batch bytes appended.")
        self.produce_duplicates = self._counter(
            "icecore_produce_duplicates_total", "Batches that had been appended before."
        )
        self.produce_latency_seconds = self._histogram(
            "icecore_produce_latency_seconds", "From request to answer, waiting for acks included."
        )
        self.produce_errors = self._counter(
            "icecore_produce_errors_total", "Partitions of produce requests refused.", "reason"
        )
        self.fetch_requests = self._counter("icecore_fetch_requests_total", "Fetch requests.")
        self.fetch_bytes = self._counter(
            "icecore_fetch_bytes_total", "Batch bytes sent to clients."
        )
        self.fetch_latency_seconds = self._histogram(
            "icecore_fetch_latency_seconds", "From request to answer, waiting for data included."
        )
        self.fetch_errors = self._counter(
            "icecore_fetch_errors_total", "Partitions of fetch requests refused.", "reason"
        )

        self.query_requests = self._counter("icecore_query_requests_total", "Pages of queries.")
        self.query_records = self._counter("icecore_query_records_total", "Records found by them.")
        self.query_read_bytes = self._counter(
            "icecore_query_read_bytes_total", "Bytes of segments and indexes read for them."
        )
        self.query_latency_seconds = self._histogram(
            "icecore_query_latency_seconds", "From request to page."
        )

    def _disk(self) -> None:
        self.group_appends = self._histogram(
            "icecore_group_appends", "Batches that shared one group (one fsync).", _COUNTS
        )
        self.group_bytes = self._histogram("icecore_group_bytes", "Bytes of a group.", _BYTES)
        self.group_seconds = self._histogram(
            "icecore_group_seconds", "Write, fsync and index of one group."
        )
        self.index_lookup_seconds = self._histogram(
            "icecore_index_lookup_seconds", "Offset for a time, from index and file."
        )
        self.remote_reads = self._counter(
            "icecore_remote_reads_total", "Reads of segments that lie in object storage."
        )
        self.remote_row_groups = self._counter(
            "icecore_remote_row_groups_total",
            "Row groups of object storage that went to clients as they lie, not made into batches.",
        )
        self.remote_damage = self._counter(
            "icecore_remote_damage_total",
            "Reads of copies that were not what was published.",
        )
        self.scrubbed_bytes = self._counter(
            "icecore_scrubbed_bytes_total", "Bytes of sealed replicas read back and checked."
        )
        self.scrubbed_segments = self._counter(
            "icecore_scrubbed_segments_total", "Sealed replicas read back and checked."
        )
        self.replicas_damaged = self._counter(
            "icecore_replicas_damaged_total", "Replicas that turned out to be damaged."
        )
        self.disk_reads = self._counter(
            "icecore_disk_reads_total", "Fetches that the tail cache could not answer."
        )

    def _replication(self) -> None:
        self.replicated_bytes_in = self._counter(
            "icecore_replicated_in_bytes_total", "Batch bytes received from leaders."
        )
        self.replicated_bytes_out = self._counter(
            "icecore_replicated_out_bytes_total", "Batch bytes sent to followers."
        )
        self.isr_shrinks = self._counter("icecore_isr_shrinks_total", "Followers taken out.")
        self.isr_expands = self._counter("icecore_isr_expands_total", "Followers taken in.")
        self.segments_sealed = self._counter("icecore_segments_sealed_total", "Replicas sealed.")
        self.divergences = self._counter(
            "icecore_divergences_total", "Replicas that differ where they can't: look at them."
        )
        self.fences = self._counter("icecore_fences_total", "Segments this node was fenced from.")
        self.leases_lost = self._counter(
            "icecore_leases_lost_total", "Times the coordinator was not heard for a whole lease."
        )

        self.orders_refused = self._counter(
            "icecore_orders_refused_total",
            "Orders of a coordinator that contradict what this node knows, by order.",
            "order",
        )

    def _tiering(self) -> None:
        self.tier_up = Gauge(
            "icecore_tier_up",
            "1 while the object store answered when it was last looked at.",
            registry=self.registry,
        )
        self.tier_uploads = self._counter(
            "icecore_tier_uploads_total", "Segments uploaded and proved."
        )
        self.tier_upload_bytes = self._counter(
            "icecore_tier_upload_bytes_total", "Bytes of their objects."
        )
        self.tier_read_bytes = self._counter(
            "icecore_tier_read_bytes_total", "Bytes of segments read for uploads."
        )
        self.tier_upload_seconds = self._histogram(
            "icecore_tier_upload_seconds", "An upload, its proof included.", _LONG_SECONDS
        )
        self.tier_errors = self._counter(
            "icecore_tier_errors_total",
            "Uploads, commits of tables and sweeps that failed, by kind of error.",
            "work",
            "kind",
        )
        self.tier_commits = self._counter(
            "icecore_tier_table_commits_total", "Commits to tables of topics."
        )
        self.tier_swept_objects = self._counter(
            "icecore_tier_swept_objects_total", "Objects removed from the object store."
        )

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, labels, registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...] = _SECONDS) -> Histogram:
        return Histogram(name, text, buckets=buckets, registry=self.registry)

    def show(self, sample: Callable[[], NodeSample]) -> None:
        """Show gauges from ``sample()`` at each scrape.

        It is called on the HTTP server's thread while the loop goes on: it must copy what it
        walks (``list(d.values())``) and change nothing.
        """
        self.registry.register(_Gauges(sample))


class _Gauges(Collector):
    """Turns one NodeSample into gauges."""

    def __init__(self, sample: Callable[[], NodeSample]) -> None:
        self._sample = sample

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Registering must not call the sample yet."""
        return []

    def collect(self) -> Iterator[GaugeMetricFamily]:
        sample = self._sample()
        yield from _partition_gauges(sample.partitions)
        segments = GaugeMetricFamily("icecore_segments", "Replicas held.", labels=["state"])
        for state, count in sample.segments:
            segments.add_metric([state], count)
        yield segments
        yield from _disk_gauges(sample.disks)
        for name, text, value in (
            ("icecore_disk_used_bytes", "Used on all disks.", sample.disk_used_bytes),
            ("icecore_disk_free_bytes", "Free on all disks.", sample.disk_free_bytes),
            ("icecore_tail_cache_bytes", "In the tail cache.", sample.tail_cache_bytes),
            (
                "icecore_produce_inflight_bytes",
                "Produce requests held in memory.",
                sample.produce_inflight_bytes,
            ),
            (
                "icecore_memory_engine_bytes",
                "Logs of topics with engine memory that are not on disk yet.",
                sample.memory_engine_bytes,
            ),
        ):
            yield GaugeMetricFamily(name, text, value=value)


def _disk_gauges(
    disks: Iterable[tuple[str, int, int, bool]],
) -> Iterator[GaugeMetricFamily]:
    def gauge(name: str, text: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(f"icecore_data_dir_{name}", text, labels=["path"])

    used = gauge("used_bytes", "Used on the file system of a folder for segments.")
    free = gauge("free_bytes", "Free there.")
    up = gauge("up", "1 while it counts, 0 when it failed or was not there at the start.")
    for path, used_bytes, free_bytes, counts in disks:
        used.add_metric([path], used_bytes)
        free.add_metric([path], free_bytes)
        up.add_metric([path], float(counts))
    yield from (used, free, up)


def _partition_gauges(partitions: Iterable[PartitionSample]) -> Iterator[GaugeMetricFamily]:
    where = ["topic", "partition"]

    def gauge(name: str, text: str, *more: str) -> GaugeMetricFamily:
        return GaugeMetricFamily(f"icecore_{name}", text, labels=[*where, *more])

    starts = gauge("log_start_offset", "First readable offset.")
    watermarks = gauge("high_watermark", "End of what is committed.")
    ends = gauge("log_end_offset", "End of the log on this node.")
    isr = gauge("isr_size", "In-sync replicas, on the leader.")
    under = gauge("under_replicated", "1 on the leader when in-sync replicas are missing.")
    leads = gauge(
        "is_leader", "1 on the leader: multiply by it, or copies of a partition count, too."
    )
    lag = gauge("replica_lag_offsets", "Records a follower is behind its leader.", "replica")
    for each in partitions:
        labels = [each.topic, str(each.partition)]
        starts.add_metric(labels, each.log_start_offset)
        watermarks.add_metric(labels, each.high_watermark)
        ends.add_metric(labels, each.log_end_offset)
        leads.add_metric(labels, float(each.is_leader))
        if each.is_leader:
            isr.add_metric(labels, each.isr_size)
            under.add_metric(labels, float(each.isr_size < each.replication_factor))
            for node_id, behind in each.replica_lag_offsets:
                lag.add_metric([*labels, str(node_id)], behind)
    yield from (starts, watermarks, ends, leads, isr, under, lag)


def pages(metrics: NodeMetrics, live: Probe, ready: Probe, started: Probe = has_started) -> Pages:
    """Return the pages of a node, with metrics of its process. Call it once for a registry."""
    # Else each has a second series beside it, with the time it was made.
    disable_created_metrics()  # type: ignore[no-untyped-call]
    ProcessCollector(registry=metrics.registry)
    PlatformCollector(registry=metrics.registry)

    def shown() -> bytes:
        return generate_latest(metrics.registry)

    return Pages(shown, CONTENT_TYPE_LATEST, live, ready, started=started)


def _version() -> str:
    try:
        return version("icecore")
    except PackageNotFoundError:
        return "unknown"
