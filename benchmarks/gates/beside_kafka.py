"""Gates beside Kafka: the same cases on three brokers, with and without fsync before the ack."""

from dataclasses import replace

from benchmarks.gates.gate import Gate, Group, Measurement, ours, shown
from benchmarks.harness.cases import (
    FETCH,
    MANY,
    OPEN,
    RF3,
    SHARED_FILES,
    SINGLE,
    SMALL_RF3,
    WITH_SYNCFS,
    Case,
)


def _on_both(case: Case) -> dict[str, Measurement]:
    """On ours, on Kafka, and on Kafka as it comes: without fsync before the ack."""
    return {
        "icecore": ours(case),
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


def beside_kafka() -> tuple[Group, ...]:
    """All of them."""
    bulk = Group(
        {"async": ours(replace(RF3, flush="async")), **_on_both(RF3)},
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
        {"icecore": ours(SINGLE), "kafka": Measurement("kafka", SINGLE)},
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
            "syncfs": Measurement(WITH_SYNCFS, MANY),
            "shared": Measurement(SHARED_FILES, MANY),
            "send": ours(replace(MANY, api="records")),
            **_on_both(MANY),
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
    small = Group(_on_both(SMALL_RF3), _against_kafka("send_batch_100b", "`send_batch` of 100 B"))
    fetch = Group(
        {
            "records": ours(replace(FETCH, api="records")),
            "kafka": Measurement("kafka", replace(FETCH, api="records", flush="async")),
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
    return many, small, fetch, Group(_on_both(OPEN), gates)
