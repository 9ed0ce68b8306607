"""All gates: what is measured side by side, in turns, and which figures are divided.

Ours come first in a group, for they start anew behind each measurement of a peer. Groups with Kafka
come last: brokers that are held have their memory still.
"""

from collections.abc import Sequence
from dataclasses import replace

from benchmarks.gates.beside_kafka import beside_kafka
from benchmarks.gates.gate import (
    COLD,
    FAILOVER,
    LEAST,
    LIMIT,
    LOOKUP,
    PROCESSOR_TIME,
    Gate,
    Group,
    Measurement,
    ours,
    shown,
)
from benchmarks.harness.cases import (
    DEEP,
    FETCH,
    FETCH_MANY,
    IN_MEMORY,
    IN_ROCKSDB,
    KEYED,
    MANY,
    ONE,
    OVER_GRPC,
    RF1,
    RF3,
    SHARED_FILES,
    SINGLE,
    SMALL_RF1,
    SMALL_RF3,
    WITH_SYNCFS,
    Case,
)

SLOW_TURNS = 2
"""Turns of a measurement that takes minutes: the base first, then the base last."""


def _cpu(name: str, about: str, of: str) -> Gate:
    """Processor time: what a busy machine moves least."""
    text = f"{about}: processor time of the base, of ours"
    return Gate(f"{name}_cpu", text, of, PROCESSOR_TIME, is_small_good=True)


def _against_limit(name: str, case: Case) -> Group:
    """Produce on ours over both transports, with the disk and the base beside them."""
    measurements = {
        LIMIT: Measurement(LIMIT, case),
        "icecore": ours(case),
        "grpc": Measurement(OVER_GRPC, case),
    }
    about = f"produce at RF {case.rf}, 1 KiB, 16 partitions"
    gates = (
        Gate(
            f"{name}_limit", f"{about}, of the disk's limit", "icecore", "mb_s", LIMIT, "fresh_mb_s"
        ),
        Gate(f"{name}_grpc", f"{about}, native over gRPC", "icecore", over="grpc"),
        shown(f"{name}_mb_s", about, "icecore", "mb_s", "MB/s"),
        shown(
            f"{name}_limit_mb_s",
            f"the disk's limit, {case.rf} writers",
            LIMIT,
            "fresh_mb_s",
            "MB/s",
        ),
    )
    return Group(measurements, gates).beside_base(
        Gate(name, f"{about}, of the base", "icecore"), _cpu(name, about, "icecore")
    )


def _small() -> Group:
    measurements = {
        "columns": ours(SMALL_RF1),
        "records": ours(replace(SMALL_RF1, api="records")),
    }
    about = "100 B at RF 1, 16 partitions"
    gates = (
        Gate("send_100b", f"`send` of {about}, of `send_batch`", "records", over="columns"),
        shown(
            "send_batch_100b_rate", f"`send_batch` of {about}", "columns", "records_s", "records/s"
        ),
        shown("send_100b_rate", f"`send` of {about}", "records", "records_s", "records/s"),
    )
    return Group(measurements, gates).beside_base(
        Gate("send_batch_100b", f"`send_batch` of {about}, of the base", "columns"),
        Gate("send_100b", f"`send` of {about}, of the base", "records"),
        _cpu("send_batch_100b", f"`send_batch` of {about}", "columns"),
        _cpu("send_100b", f"`send` of {about}", "records"),
    )


def _single() -> Group:
    measurements = {
        LEAST: Measurement(LEAST, SINGLE),
        "icecore": ours(SINGLE),
        "grpc": Measurement(OVER_GRPC, SINGLE),
    }
    about = "one record at a time, RF 3"
    gates = (
        Gate(
            *("single_least", f"{about}: one sync and two round trips, of its median"),
            *("icecore", "p50_ms", LEAST),
            is_small_good=True,
        ),
        Gate(
            *("single_grpc", f"{about}: median over gRPC, of the native one"),
            *("icecore", "p50_ms", "grpc"),
            is_small_good=True,
        ),
        shown("single_p50", f"{about}, median", "icecore", "p50_ms", "ms"),
        shown("single_cpu", f"{about}, processor time of all processes", "icecore", "cpu_ms", "ms"),
    )
    return Group(measurements, gates).beside_base(
        Gate(
            "single_p50",
            f"{about}: median of the base, of ours",
            "icecore",
            "p50_ms",
            is_small_good=True,
        ),
        _cpu("single", about, "icecore"),
    )


def _one_partition() -> Group:
    measurements = {LIMIT: Measurement(LIMIT, ONE), "one": ours(ONE)}
    about = "produce into one partition, RF 3, 1 KiB"
    gates = (
        Gate(
            "one_partition_limit",
            f"{about}, of the limit of one file",
            "one",
            "mb_s",
            LIMIT,
            "fresh_mb_s",
        ),
        shown("one_partition_mb_s", about, "one", "mb_s", "MB/s"),
    )
    return Group(measurements, gates).beside_base(
        Gate("one_partition", f"{about}, of the base", "one"), _cpu("one_partition", about, "one")
    )


def _fetch() -> Group:
    measurements = {
        "arrow": ours(FETCH),
        "arrow_1024": ours(FETCH_MANY),
        "records": ours(replace(FETCH, api="records")),
    }
    arrow, many = "fetch of 100 B as Arrow", "fetch of 100 B as Arrow, 1,024 partitions"
    gates = (
        Gate("fetch_arrow_1024", f"{many}, of 16 partitions", "arrow_1024", over="arrow"),
        Gate("fetch_records", "fetch of 100 B one by one, of Arrow", "records", over="arrow"),
        shown("fetch_arrow_rate", arrow, "arrow", "records_s", "records/s"),
        shown("fetch_arrow_1024_rate", many, "arrow_1024", "records_s", "records/s"),
        shown(
            "fetch_records_rate", "fetch of 100 B one by one", "records", "records_s", "records/s"
        ),
    )
    return Group(measurements, gates).beside_base(
        Gate("fetch_arrow", f"{arrow}, of the base", "arrow"),
        Gate("fetch_arrow_1024", f"{many}, of the base", "arrow_1024"),
        Gate("fetch_records", "fetch of 100 B one by one, of the base", "records"),
        _cpu("fetch_arrow", arrow, "arrow"),
        _cpu("fetch_arrow_1024", many, "arrow_1024"),
        _cpu("fetch_records", "fetch of 100 B one by one", "records"),
    )


def _partitions() -> tuple[Group, ...]:
    measurements = {
        "keyed_16": ours(KEYED),
        "keyed_256": ours(replace(KEYED, partitions=256)),
        "keyed_16_syncfs": Measurement(WITH_SYNCFS, KEYED),
        "keyed_256_syncfs": Measurement(WITH_SYNCFS, replace(KEYED, partitions=256)),
    }
    about = "256 partitions with keys, 1 KiB, RF 3, of 16"
    first = Group(
        measurements,
        (
            Gate("keyed_256", about, "keyed_256", over="keyed_16"),
            Gate(
                "keyed_256_syncfs", f"{about}, `syncfs`", "keyed_256_syncfs", over="keyed_16_syncfs"
            ),
        ),
    )
    measurements = {
        "keyed_16": ours(KEYED),
        "keyed_1024": ours(replace(KEYED, partitions=1024)),
        "shared_1024": Measurement(SHARED_FILES, replace(KEYED, partitions=1024)),
        "deep_16": ours(DEEP),
        "deep_shared_1024": Measurement(SHARED_FILES, replace(DEEP, partitions=1024)),
        "small_1024": ours(MANY),
        "small_shared_1024": Measurement(SHARED_FILES, MANY),
    }
    about = "1,024 partitions with keys, RF 3"
    gates = (
        Gate(
            *("keyed_1024_shared_deep", f"{about}, 1 KiB, shared files, 256 MiB in flight, of 16"),
            *("deep_shared_1024", "records_s", "deep_16"),
        ),
        Gate(
            "keyed_1024_shared",
            f"{about}, 1 KiB, shared files, of 16",
            "shared_1024",
            over="keyed_16",
        ),
        Gate(
            "keyed_1024_partition",
            f"{about}, 1 KiB, a file for each, of 16",
            "keyed_1024",
            over="keyed_16",
        ),
        Gate(
            "keyed_1024_shared_100b",
            f"{about}, 100 B, shared files, of a file for each",
            "small_shared_1024",
            over="small_1024",
        ),
    )
    return first, Group(measurements, gates)


def _engines() -> Group:
    measurements = {
        "segment": ours(RF3),
        "memory": Measurement(IN_MEMORY, RF3),
        "rocksdb": Measurement(IN_ROCKSDB, RF3),
        "segment_single": ours(SINGLE),
        "memory_single": Measurement(IN_MEMORY, SINGLE),
        "rocksdb_single": Measurement(IN_ROCKSDB, SINGLE),
    }
    gates = (
        *(
            Gate(
                f"{name}_rf3",
                f"engine `{name}`, produce at RF 3, of `segment`",
                name,
                "mb_s",
                "segment",
            )
            for name in ("memory", "rocksdb")
        ),
        *(
            Gate(
                f"{name}_single",
                f"one record at a time: median of `segment`, of engine `{name}`",
                *(f"{name}_single", "p50_ms", "segment_single"),
                is_small_good=True,
            )
            for name in ("memory", "rocksdb")
        ),
    )
    return Group(measurements, gates)


def _keys() -> Group:
    """One partition, so that batches are alike: what keys and their index cost."""
    measurements, gates = {}, []
    for size, case in (("1k", ONE), ("100b", replace(SMALL_RF3, partitions=1))):
        measurements[f"none_{size}"] = ours(case)
        measurements[f"keys_{size}"] = ours(replace(case, spread="keyed"))
        about = f"a key on each record of {case.record_bytes} B, RF 3, of none"
        gates.append(Gate(f"keys_{size}", about, f"keys_{size}", over=f"none_{size}"))
    return Group(measurements, tuple(gates))


def _failover() -> Group:
    measurements = {FAILOVER: Measurement(FAILOVER, Case("single", partitions=48))}
    about = "produce stands still after SIGKILL of the leader"
    gates = (
        shown("failover_led_p50", f"{about}, median of partitions", FAILOVER, "led_p50_ms", "ms"),
        shown("failover_led_p99", f"{about}, p99 of partitions", FAILOVER, "led_p99_ms", "ms"),
    )
    return Group(measurements, gates, SLOW_TURNS).beside_base(
        Gate(
            "failover_led",
            f"{about}: median of the base, of ours",
            FAILOVER,
            "led_p50_ms",
            is_small_good=True,
        )
    )


_LOOKS = (
    ("offset", "client_offset_p50_ms", "a record by offset"),
    ("key", "client_key_10_hits_sealed_p50_ms", "a sealed key with ten records"),
    ("key_active", "client_key_10_hits_active_p50_ms", "an active key with ten records"),
    ("nobody", "client_key_of_nobody_p50_ms", "a key of nobody, nine segments"),
    ("keys", "client_1000_keys_10000_hits_p50_ms", "1,000 keys with 10,000 records"),
)
_STORE_LOOKS = (
    ("offset", "store_offset_p99_ms", "a record by offset"),
    ("time", "store_append_time_p99_ms", "the first record of a time"),
    ("key", "store_key_10_hits_sealed_p99_ms", "a sealed key with ten records"),
    ("key_active", "store_key_10_hits_active_p99_ms", "an active key with ten records"),
)
_SIZES = (
    ("offset_index", "offset_index_bytes", "index of offsets, 10 M records"),
    ("index_per_record", "index_file_bytes_per_record", "index files, for each record"),
)


def _lookup() -> Group:
    scan, key = "client_scan_of_one_segment_p50_ms", "client_key_10_hits_sealed_p50_ms"
    gates = (
        Gate(
            *("lookup_key_scan", "reading a segment and comparing, of a look-up of a key in it"),
            *(LOOKUP, key, LOOKUP, scan),
            is_small_good=True,
        ),
        *(
            shown(
                f"lookup_{name}_p50",
                f"look-up of {about}, median at the client",
                LOOKUP,
                figure,
                "ms",
            )
            for name, figure, about in _LOOKS
        ),
        *(
            shown(
                f"lookup_{name}_store",
                f"look-up of {about}, p99 in the store",
                LOOKUP,
                figure,
                "ms",
            )
            for name, figure, about in _STORE_LOOKS
        ),
        *(
            shown(f"lookup_{name}", about, LOOKUP, figure, "bytes")
            for name, figure, about in _SIZES
        ),
    )
    return Group(
        {LOOKUP: Measurement(LOOKUP, Case("single", 100, partitions=1, rf=1))}, gates, SLOW_TURNS
    ).beside_base(
        *(
            Gate(
                f"lookup_{name}",
                f"{about}: that of the base, of ours",
                LOOKUP,
                figure,
                is_small_good=True,
            )
            for name, figure, about in (*_LOOKS, *_SIZES)
        )
    )


_COLD_FIGURES = (
    ("fetch", "fetch_p50_ms", "one batch of a cold row group"),
    ("key_warm", "lookup_warm_p50_ms", "a key of nobody in 100 cold segments, indexes kept"),
    ("key", "lookup_cold_p50_ms", "the same, nothing kept"),
)


def _cold() -> Group:
    gates = (
        Gate(
            "cold_scan",
            "cold scan of a copy in the segment's format, of raw reads",
            COLD,
            "scan_as_stored_to_raw",
        ),
        Gate("cold_scan_rows", "cold scan of row groups, of raw reads", COLD, "scan_to_raw"),
        *(
            shown(f"cold_{name}_p50", f"{about}, median", COLD, figure, "ms")
            for name, figure, about in _COLD_FIGURES
        ),
        shown("cold_fetch_p99", "one batch of a cold row group, p99", COLD, "fetch_p99_ms", "ms"),
    )
    return Group(
        {COLD: Measurement(COLD, Case("fetch", 150, partitions=1, rf=1))}, gates, SLOW_TURNS
    ).beside_base(
        *(
            Gate(
                f"cold_{name}",
                f"{about}: median of the base, of ours",
                COLD,
                figure,
                is_small_good=True,
            )
            for name, figure, about in _COLD_FIGURES
        )
    )


GROUPS = (
    _against_limit("rf1", RF1),
    _small(),
    *_partitions(),
    _single(),
    _engines(),
    _against_limit("rf3", RF3),
    _one_partition(),
    _keys(),
    _fetch(),
    _failover(),
    _lookup(),
    _cold(),
    *beside_kafka(),
)


def choose(only: Sequence[str]) -> list[Group]:
    """The groups of these gates with these gates only; all without names.

    Raises:
        ValueError: There is no such gate.
    """
    known = [gate.name for group in GROUPS for gate in group.gates]
    if unknown := set(only) - set(known):
        raise ValueError(f"no gate {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    chosen = [group.only(only) if only else group for group in GROUPS]
    return [group for group in chosen if group.gates]
