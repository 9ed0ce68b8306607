"""All gates: what is measured side by side, in turns, and which figures are divided.

Ours come first in a group, for they start anew behind each measurement of a peer. Groups with Kafka
come last: brokers that are held have their memory still.
"""

from collections.abc import Sequence
from dataclasses import replace

from benchmarks.cases import (
    ICECORE,
    IN_MEMORY,
    IN_ROCKSDB,
    MIB,
    OPEN_RATE_S,
    OVER_GRPC,
    SHARED_FILES,
    WITH_SYNCFS,
    Case,
)
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
    shown,
)

SLOW_TURNS = 2
"""Of what takes minutes: a base in front of ours, then behind it."""

_RF1, _RF3 = Case("produce", rf=1), Case("produce", rf=3)
_SMALL_RF1, _SMALL_RF3 = Case("produce", 100, rf=1), Case("produce", 100, rf=3)
_ONE = replace(_RF3, partitions=1)
_KEYED = Case("produce", spread="keyed")
_DEEP = replace(_KEYED, in_flight_bytes=256 * MIB)
"""Room for a full batch of each of 1,024 partitions, as their users are told to give it."""
_MANY = Case("produce", 100, 1024, "keyed")
_FETCH, _FETCH_MANY = Case("fetch", 100), Case("fetch", 100, 1024, "keyed")
_SINGLE = Case("single", api="records")
_OPEN = Case("open", spread="keyed", api="records", rate_s=OPEN_RATE_S)


def _ours(case: Case) -> Measurement:
    return Measurement(ICECORE, case)


def _cpu(name: str, about: str, of: str) -> Gate:
    """Processor time: what a busy machine moves least."""
    text = f"{about}: processor time of the base, of ours"
    return Gate(f"{name}_cpu", text, of, PROCESSOR_TIME, is_small_good=True)


def _against_limit(name: str, case: Case) -> Group:
    """Produce on ours over both transports, with the disk and the base beside them."""
    measurements = {
        LIMIT: Measurement(LIMIT, case),
        "icecore": _ours(case),
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
        "columns": _ours(_SMALL_RF1),
        "records": _ours(replace(_SMALL_RF1, api="records")),
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
        LEAST: Measurement(LEAST, _SINGLE),
        "icecore": _ours(_SINGLE),
        "grpc": Measurement(OVER_GRPC, _SINGLE),
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
    measurements = {LIMIT: Measurement(LIMIT, _ONE), "one": _ours(_ONE)}
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
        "arrow": _ours(_FETCH),
        "arrow_1024": _ours(_FETCH_MANY),
        "records": _ours(replace(_FETCH, api="records")),
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
        "keyed_16": _ours(_KEYED),
        "keyed_256": _ours(replace(_KEYED, partitions=256)),
        "keyed_16_syncfs": Measurement(WITH_SYNCFS, _KEYED),
        "keyed_256_syncfs": Measurement(WITH_SYNCFS, replace(_KEYED, partitions=256)),
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
        "keyed_16": _ours(_KEYED),
        "keyed_1024": _ours(replace(_KEYED, partitions=1024)),
        "shared_1024": Measurement(SHARED_FILES, replace(_KEYED, partitions=1024)),
        "deep_16": _ours(_DEEP),
        "deep_shared_1024": Measurement(SHARED_FILES, replace(_DEEP, partitions=1024)),
        "small_1024": _ours(_MANY),
        "small_shared_1024": Measurement(SHARED_FILES, _MANY),
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
        "segment": _ours(_RF3),
        "memory": Measurement(IN_MEMORY, _RF3),
        "rocksdb": Measurement(IN_ROCKSDB, _RF3),
        "segment_single": _ours(_SINGLE),
        "memory_single": Measurement(IN_MEMORY, _SINGLE),
        "rocksdb_single": Measurement(IN_ROCKSDB, _SINGLE),
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
    for size, case in (("1k", _ONE), ("100b", replace(_SMALL_RF3, partitions=1))):
        measurements[f"none_{size}"] = _ours(case)
        measurements[f"keys_{size}"] = _ours(replace(case, spread="keyed"))
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


# --- beside Kafka ---------------------------------------------------------------------------------


def _on_both(case: Case) -> dict[str, Measurement]:
    """On ours, on Kafka, and on Kafka as it comes: without fsync before the ack."""
    return {
        "icecore": _ours(case),
        "kafka": Measurement("kafka", case),
        "kafka_default": Measurement("kafka", replace(case, flush="async")),
    }


def _against_kafka(name: str, about: str) -> tuple[Gate, ...]:
    """Records per second beside Kafka's, and beside those of its default."""
    return (
        Gate(f"{name}_kafka", f"{about}, of Kafka", "icecore", over="kafka"),
        Gate(
            f"{name}_kafka_default",
            f"{about}, of Kafka's default flush",
            "icecore",
            over="kafka_default",
        ),
    )


def _beside_kafka() -> tuple[Group, ...]:
    bulk = Group(
        {"async": _ours(replace(_RF3, flush="async")), **_on_both(_RF3)},
        (
            *_against_kafka("rf3", "produce at RF 3, 1 KiB"),
            Gate(
                "async_kafka_default",
                "the same, both without fsync before the ack",
                "async",
                over="kafka_default",
            ),
        ),
    )
    single = Group(
        {"icecore": _ours(_SINGLE), "kafka": Measurement("kafka", _SINGLE)},
        (
            Gate(
                *("single_kafka", "one record at a time: median of Kafka, of ours"),
                *("icecore", "p50_ms", "kafka"),
                is_small_good=True,
            ),
        ),
    )
    return bulk, single, *_small_beside_kafka()


def _small_beside_kafka() -> tuple[Group, ...]:
    many = Group(
        {
            "syncfs": Measurement(WITH_SYNCFS, _MANY),
            "shared": Measurement(SHARED_FILES, _MANY),
            "send": _ours(replace(_MANY, api="records")),
            **_on_both(_MANY),
        },
        (
            *_against_kafka("keyed_1024", "1,024 partitions with keys, 100 B"),
            Gate("keyed_1024_send_kafka", "the same by `send`, of Kafka", "send", over="kafka"),
            Gate(
                "keyed_1024_syncfs_kafka",
                "the same with `syncfs`, of Kafka",
                "syncfs",
                over="kafka",
            ),
            Gate(
                "keyed_1024_shared_kafka",
                "the same in shared files, of Kafka",
                "shared",
                over="kafka",
            ),
        ),
    )
    small = Group(_on_both(_SMALL_RF3), _against_kafka("send_batch_100b", "`send_batch` of 100 B"))
    fetch = Group(
        {
            "records": _ours(replace(_FETCH, api="records")),
            "kafka": Measurement("kafka", replace(_FETCH, api="records", flush="async")),
        },
        (
            Gate(
                "fetch_records_kafka",
                "fetch of 100 B one by one, of Kafka",
                "records",
                over="kafka",
            ),
        ),
    )
    gates = (
        Gate(
            "open_kafka",
            "5,000 records/s: p99 of Kafka, of ours",
            "icecore",
            "p99_ms",
            "kafka",
            is_small_good=True,
        ),
        Gate(
            *("open_kafka_default", "5,000 records/s: p99 of Kafka's default flush, of ours"),
            *("icecore", "p99_ms", "kafka_default"),
            is_small_good=True,
        ),
        shown("open_p99", "5,000 records/s, p99", "icecore", "p99_ms", "ms"),
    )
    return many, small, fetch, Group(_on_both(_OPEN), gates)


GROUPS = (
    _against_limit("rf1", _RF1),
    _small(),
    *_partitions(),
    _single(),
    _engines(),
    _against_limit("rf3", _RF3),
    _one_partition(),
    _keys(),
    _fetch(),
    _failover(),
    _lookup(),
    _cold(),
    *_beside_kafka(),
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
