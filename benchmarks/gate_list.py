"""The gates as data: what is measured side by side, and the bounds. Pure.

A gate's value in one run is a figure of one measurement, or its ratio to that of another one of the
same run; the median over all runs is held against the bound.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarks.cases import (
    IN_MEMORY,
    IN_ROCKSDB,
    MIB,
    OPEN_RATE_S,
    OVER_GRPC,
    SHARED_FILES,
    WITH_SYNCFS,
    Case,
)

LIMIT = "limit"
"""The measurement of the disk instead of a system."""
FAILOVER = "failover"
"""The measurement of ``benchmarks.failover``: a cluster of its own, one node killed."""

LOOKUP = "lookup"
"""The measurement of ``benchmarks.lookup``: a node of its own with 10 M records."""

COLD = "cold_reads"
"""The measurement of ``benchmarks.cold_reads``: what a node reads of a MinIO."""

Figures = Mapping[str, Mapping[str, float]]
"""Of one run: by measurement, by name."""


@dataclass(frozen=True, slots=True)
class Gate:
    """One figure, or a ratio, and its bound."""

    name: str
    of: str
    """Whose figure."""
    figure: str = "records_s"
    over: str = ""
    """By whose it is divided; empty = by nobody's."""
    over_figure: str = ""
    """What it is called there, where it has another name."""
    floor: float | None = None
    ceiling: float | None = None
    unit: str = "ratio"
    is_worst: bool = False
    """The worst run counts: of what is rare, a median says nothing."""

    @property
    def needs(self) -> set[str]:
        """Measurements."""
        return {self.of, self.over} - {""}

    def value(self, figures: Figures) -> float | None:
        """In one run; None where a measurement is missing."""
        if not self.needs <= figures.keys():
            return None
        found = figures[self.of][self.figure]
        return found / figures[self.over][self.over_figure or self.figure] if self.over else found

    def over_runs(self, runs: Sequence[Figures]) -> float | None:
        """The median, or the worst, of the runs that have a value."""
        known = [value for value in map(self.value, runs) if value is not None]
        if not known:
            return None
        if not self.is_worst:
            return statistics.median(known)
        return min(known) if self.ceiling is None else max(known)

    def verdict(self, value: float | None) -> str:
        """``ok``, ``short``, ``shown`` (no bound) or ``skipped`` (no value)."""
        if value is None:
            return "skipped"
        if self.floor is None and self.ceiling is None:
            return "shown"
        is_short = self.floor is not None and value < self.floor
        is_long = self.ceiling is not None and value > self.ceiling
        return "short" if is_short or is_long else "ok"

    def line(self, value: float | None) -> str:
        """For people and for ``grep``."""
        bound = f"floor={_number(self.floor)}"
        if self.ceiling is not None:
            bound = f"ceiling={_number(self.ceiling)}"
        found = f"value={_number(value)} {bound} unit={self.unit}"
        return f"gate: {self.name} {found} {self.verdict(value)}"


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"


@dataclass(frozen=True, slots=True)
class Group:
    """Measurements of one run, one right after the other, and the gates on them."""

    measurements: Mapping[str, tuple[str, Case]]
    """By name: on which system, which case; of ``limit`` the case tells RF and number of files."""
    gates: tuple[Gate, ...]

    def only(self, names: Sequence[str]) -> "Group":
        """With these gates only, and with what they need."""
        gates = tuple(gate for gate in self.gates if gate.name in names)
        needed = {each for gate in gates for each in gate.needs}
        kept = {name: each for name, each in self.measurements.items() if name in needed}
        return Group(kept, gates)


def _lookup(name: str, figure: str, ceiling: float | None, unit: str = "ms") -> Gate:
    return Gate(f"lookup_{name}", LOOKUP, figure, ceiling=ceiling, unit=unit)


def _alone(case: Case) -> dict[str, tuple[str, Case]]:
    """On ours over both transports, and the disk beside them."""
    return {
        LIMIT: (LIMIT, case),
        "icecore": ("icecore", case),
        "grpc": (OVER_GRPC, case),
    }


def _with_keys_and_without() -> dict[str, tuple[str, Case]]:
    """One partition, so that batches are alike: what keys and their index cost."""
    cases = {"1k": replace(_RF3, partitions=1), "100b": replace(_SMALL_RF3, partitions=1)}
    found: dict[str, tuple[str, Case]] = {}
    for name, case in cases.items():
        found[f"none_{name}"] = ("icecore", case)
        found[f"keys_{name}"] = ("icecore", replace(case, spread="keyed"))
    return found


def _on_both(case: Case, theirs: Case | None = None) -> dict[str, tuple[str, Case]]:
    """On ours, on Kafka, and on Kafka as it comes: without fsync before the ack."""
    theirs = theirs or case
    return {
        "icecore": ("icecore", case),
        "kafka": ("kafka", theirs),
        "kafka_default": ("kafka", replace(theirs, flush="async")),
    }


def _against_kafka(name: str, floor: float, default: float | None = None) -> tuple[Gate, ...]:
    """Records per second beside Kafka's, and beside those of its default."""
    return (
        Gate(f"{name}_kafka", "icecore", over="kafka", floor=floor),
        Gate(f"{name}_kafka_default", "icecore", over="kafka_default", floor=default),
    )


_RF1, _RF3 = Case("produce", rf=1), Case("produce", rf=3)
_SMALL_RF1, _SMALL_RF3 = Case("produce", 100, rf=1), Case("produce", 100, rf=3)
_KEYED = Case("produce", spread="keyed")
_DEEP = replace(_KEYED, in_flight_bytes=256 * MIB)
"""Room for a full batch of each of 1,024 partitions, as their users are told to give it."""
_MANY = Case("produce", 100, 1024, "keyed")
_FETCH, _FETCH_MANY = Case("fetch", 100), Case("fetch", 100, 1024, "keyed")
_SINGLE = Case("single", api="records")
_OPEN = Case("open", spread="keyed", api="records", rate_s=OPEN_RATE_S)

# RF 1 first, and Kafka not before it is needed: brokers that are held have their memory still. In a
# group ours come first, for they start anew behind each measurement of another system.
GROUPS = (
    Group(
        _alone(_RF1),
        (
            Gate("rf1_limit", "icecore", "mb_s", LIMIT, "fresh_mb_s", floor=0.45),
            Gate("rf1_grpc", "icecore", over="grpc", floor=1.0),
        ),
    ),
    Group(
        {
            "columns": ("icecore", _SMALL_RF1),
            "records": ("icecore", replace(_SMALL_RF1, api="records")),
        },
        (
            Gate("send_batch_100b", "columns", floor=1e6, unit="records/s"),
            Gate("send_100b", "records", floor=5e5, unit="records/s"),
        ),
    ),
    Group(
        {
            "keyed_16": ("icecore", _KEYED),
            "keyed_256": ("icecore", replace(_KEYED, partitions=256)),
            "keyed_16_syncfs": (WITH_SYNCFS, _KEYED),
            "keyed_256_syncfs": (WITH_SYNCFS, replace(_KEYED, partitions=256)),
        },
        (
            Gate("keyed_256", "keyed_256", over="keyed_16", floor=0.5),
            Gate("keyed_256_syncfs", "keyed_256_syncfs", over="keyed_16_syncfs", floor=0.5),
        ),
    ),
    Group(
        {
            "keyed_16": ("icecore", _KEYED),
            "keyed_1024": ("icecore", replace(_KEYED, partitions=1024)),
            "shared_1024": (SHARED_FILES, replace(_KEYED, partitions=1024)),
            "deep_16": ("icecore", _DEEP),
            "deep_shared_1024": (SHARED_FILES, replace(_DEEP, partitions=1024)),
            "small_1024": ("icecore", _MANY),
            "small_shared_1024": (SHARED_FILES, _MANY),
        },
        (
            Gate("keyed_1024_shared_deep", "deep_shared_1024", over="deep_16", floor=0.8),
            Gate("keyed_1024_shared", "shared_1024", over="keyed_16"),
            Gate("keyed_1024_partition", "keyed_1024", over="keyed_16"),
            Gate("keyed_1024_shared_100b", "small_shared_1024", over="small_1024"),
        ),
    ),
    Group(
        {"icecore": ("icecore", _SINGLE), "grpc": (OVER_GRPC, _SINGLE)},
        (
            Gate("single_p50", "icecore", "p50_ms", ceiling=2.5, unit="ms"),
            Gate("single_cpu", "icecore", "cpu_ms", ceiling=3.0, unit="ms"),
            Gate("single_p50_grpc", "icecore", "p50_ms", "grpc", ceiling=1.0),
        ),
    ),
    Group(
        {
            "segment": ("icecore", _RF3),
            "memory": (IN_MEMORY, _RF3),
            "rocksdb": (IN_ROCKSDB, _RF3),
            "segment_single": ("icecore", _SINGLE),
            "memory_single": (IN_MEMORY, _SINGLE),
            "rocksdb_single": (IN_ROCKSDB, _SINGLE),
        },
        (
            Gate("memory_rf3", "memory", "mb_s", "segment", floor=1.3),
            Gate("memory_single_p50", "memory_single", "p50_ms", "segment_single", ceiling=0.7),
            Gate("rocksdb_rf3", "rocksdb", "mb_s", "segment"),
            Gate("rocksdb_single_p50", "rocksdb_single", "p50_ms", "segment_single", ceiling=1.5),
        ),
    ),
    Group(
        _alone(_RF3),
        (
            Gate("rf3_limit", "icecore", "mb_s", LIMIT, "fresh_mb_s", floor=0.45),
            Gate("rf3_grpc", "icecore", over="grpc", floor=1.0),
        ),
    ),
    Group(
        {"one": ("icecore", replace(_RF3, partitions=1))},
        (Gate("one_partition", "one", "mb_s", floor=154.0, unit="MB/s"),),
    ),
    Group(
        _with_keys_and_without(),
        (
            Gate("keys_1k", "keys_1k", over="none_1k", floor=0.85),
            Gate("keys_100b", "keys_100b", over="none_100b", floor=0.7),
        ),
    ),
    Group(
        {FAILOVER: (FAILOVER, Case("single", partitions=48))},
        (Gate("failover_led", FAILOVER, "led_p99_ms", ceiling=1000.0, unit="ms", is_worst=True),),
    ),
    Group(
        {LOOKUP: (LOOKUP, Case("single", 100, partitions=1, rf=1))},
        (
            _lookup("offset_store", "store_offset_p99_ms", 1.0),
            _lookup("time_store", "store_append_time_p99_ms", 1.0),
            _lookup("key_store", "store_key_10_hits_sealed_p99_ms", 1.0),
            _lookup("key_active_store", "store_key_10_hits_active_p99_ms", 2.0),
            _lookup("key_p50", "client_key_10_hits_sealed_p50_ms", 2.0),
            _lookup("key_p99", "client_key_10_hits_sealed_p99_ms", 5.0),
            _lookup("offset_p50", "client_offset_p50_ms", 2.0),
            _lookup("offset_index", "offset_index_bytes", 240_000, "bytes"),
            _lookup("index_per_record", "index_file_bytes_per_record", None, "bytes"),
            Gate("lookup_keys", LOOKUP, "keys_s", floor=50_000, unit="keys/s"),
        ),
    ),
    Group(
        {COLD: (COLD, Case("fetch", 150, partitions=1, rf=1))},
        (
            Gate("cold_fetch_p50", COLD, "fetch_p50_ms", ceiling=30.0, unit="ms"),
            Gate("cold_fetch_p99", COLD, "fetch_p99_ms", ceiling=100.0, unit="ms"),
            Gate("cold_key_warm_p50", COLD, "lookup_warm_p50_ms", ceiling=50.0, unit="ms"),
            Gate("cold_key_p50", COLD, "lookup_cold_p50_ms", unit="ms"),
            Gate("cold_scan", COLD, "scan_as_stored_to_raw", floor=0.7, unit="of raw reads"),
            Gate("cold_scan_rows", COLD, "scan_to_raw", unit="of raw reads"),
        ),
    ),
    Group(
        {"async": ("icecore", replace(_RF3, flush="async")), **_on_both(_RF3)},
        (
            *_against_kafka("rf3", 4.0, 2.5),
            Gate("async_kafka_default", "async", over="kafka_default", floor=3.0),
        ),
    ),
    Group(
        {"icecore": ("icecore", _SINGLE), "kafka": ("kafka", _SINGLE)},
        (Gate("single_p50_kafka", "icecore", "p50_ms", "kafka", ceiling=1.2),),
    ),
    Group(
        {
            "syncfs": (WITH_SYNCFS, _MANY),
            "shared": (SHARED_FILES, _MANY),
            "send": ("icecore", replace(_MANY, api="records")),
            **_on_both(_MANY),
        },
        (
            *_against_kafka("keyed_1024", 8.0),
            Gate("keyed_1024_send_kafka", "send", over="kafka"),
            Gate("keyed_1024_syncfs_kafka", "syncfs", over="kafka"),
            Gate("keyed_1024_shared_kafka", "shared", over="kafka", floor=10.0),
        ),
    ),
    Group(_on_both(_SMALL_RF3), _against_kafka("send_batch_100b", 1.2)),
    Group(
        {
            "arrow": ("icecore", _FETCH),
            "arrow_1024": ("icecore", _FETCH_MANY),
            "records": ("icecore", replace(_FETCH, api="records")),
            "kafka": ("kafka", replace(_FETCH, api="records", flush="async")),
        },
        (
            Gate("fetch_arrow_100b", "arrow", floor=5e6, unit="records/s"),
            Gate("fetch_arrow_1024_100b", "arrow_1024", floor=1e6, unit="records/s"),
            Gate("fetch_records_100b", "records", unit="records/s"),
            Gate("fetch_records_kafka", "records", over="kafka", floor=1.2),
        ),
    ),
    Group(
        _on_both(_OPEN),
        (
            Gate("open_p99", "icecore", "p99_ms", unit="ms"),
            Gate("open_p99_kafka", "icecore", "p99_ms", "kafka", ceiling=1.0),
            Gate("open_p99_kafka_default", "icecore", "p99_ms", "kafka_default"),
        ),
    ),
)
