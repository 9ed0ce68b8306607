"""The measurements as data: one case, the matrix of all cases, and the constants they share.

Nothing here depends on the system that is measured, so the same case means the same records, the
same partitions, the same acknowledgements and the same bytes in flight for all of them.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

KIB, MIB = 1 << 10, 1 << 20

IN_FLIGHT_BYTES = 32 * MIB
"""Unless a case says otherwise."""
BATCH_BYTES = 256 * KIB
LINGER_MS = 5
KEY_BYTES = 8
OPEN_RATE_S = 5_000

OURS = (
    *("icecore", "icecore_syncfs", "icecore_grpc"),
    *("icecore_memory", "icecore_rocksdb", "icecore_shared"),
)
"""Names of our systems: as it comes, with ``syncfs=always``, without the native transport, and with
topics of the other engines, or whose active segments share files."""
ICECORE, WITH_SYNCFS, OVER_GRPC, IN_MEMORY, IN_ROCKSDB, SHARED_FILES = OURS

BASE = "base"
"""Ours as it comes, with the code of an earlier commit (``benchmarks/gates/base.py``)."""

KINDS = ("produce", "fetch", "mixed", "single", "open")
RECORD_BYTES = (100, 1024)
PARTITIONS = (1, 16, 256, 1024)
SPREADS = ("keyed", "sticky")
REPLICATION_FACTORS = (1, 3)
ACKS = ("all", "quorum", "leader")
FLUSHES = ("sync", "async")
APIS = ("columns", "records")


def is_ours(system: str) -> bool:
    """Return whether the system is a cluster of this project."""
    return system in OURS or system == BASE


@dataclass(frozen=True, slots=True)
class Case:
    """One workload."""

    kind: str
    """``produce``: as fast as it goes. ``fetch``: all records of a topic, again and again.
    ``mixed``: both at a time. ``single``: one record, its ack, the next one. ``open``: records at a
    fixed rate, whether or not earlier ones are acknowledged."""
    record_bytes: int = 1024
    partitions: int = 16
    spread: str = "sticky"
    """``keyed``: every record has a random key. ``sticky``: no keys, a batch has one partition."""
    rf: int = 3
    acks: str = "all"
    flush: str = "sync"
    """Whether a replica's disk has a record before it counts as stored (``sync``)."""
    api: str = "columns"
    """Whether the client takes and gives many records at once, or each on its own."""
    rate_s: int = 0
    """Records per second of ``open``."""
    in_flight_bytes: int = IN_FLIGHT_BYTES
    """Values that are sent and not yet acknowledged, of all partitions together. A batch can be no
    larger than the share of its partition."""

    @property
    def label(self) -> str:
        """Short, for people."""
        rate = f" {self.rate_s}/s" if self.rate_s else ""
        deep = f" {self.in_flight_bytes // MIB} MiB in flight"
        rate += deep if self.in_flight_bytes != IN_FLIGHT_BYTES else ""
        size = f"{self.record_bytes} B × {self.partitions} {self.spread}{rate}"
        return f"{self.kind} {size} RF {self.rf} {self.acks} {self.flush} {self.api}"

    @property
    def key_bytes(self) -> int:
        """Length of each record's key in bytes."""
        return KEY_BYTES if self.spread == "keyed" else 0

    @property
    def records_in_flight(self) -> int:
        """At most so many without an acknowledgement."""
        return self.in_flight_bytes // self.record_bytes

    @property
    def chunk_records(self) -> int:
        """Handed over at once where the API takes columns: a quarter of them."""
        return self.in_flight_bytes // 4 // self.record_bytes

    @property
    def batch_records(self) -> int:
        """Number of records that fit into a full batch."""
        return BATCH_BYTES // self.record_bytes

    def settings(self) -> dict[str, Any]:
        """For the result."""
        return {
            **asdict(self),
            "batch_bytes": BATCH_BYTES,
            "linger_ms": LINGER_MS,
        }


def short() -> Iterator[Case]:
    """Two minutes: produce, fetch and the latency of single records."""
    for rf in REPLICATION_FACTORS:
        yield Case("produce", rf=rf)
        yield Case("fetch", rf=rf)
        yield Case("single", rf=rf)


def matrix() -> Iterator[Case]:
    """Every combination that means something."""
    sizes = tuple(product(REPLICATION_FACTORS, RECORD_BYTES, PARTITIONS))
    for rf, record_bytes, partitions in sizes:
        for spread, acks, api in product(SPREADS, ACKS, APIS):
            if acks == "quorum" and rf == 1:
                continue  # the same as all
            yield Case("produce", record_bytes, partitions, spread, rf, acks, api=api)
        for api in APIS:
            yield Case("fetch", record_bytes, partitions, "keyed", rf, api=api)
        yield Case("mixed", record_bytes, partitions, "keyed", rf)
        yield Case("open", record_bytes, partitions, "keyed", rf, api="records", rate_s=OPEN_RATE_S)
        yield Case("single", record_bytes, partitions, rf=rf, api="records")


def peers() -> Iterator[Case]:
    """Yield the cases that are compared with other systems: RF 3, with and without fsync before the
    ack."""
    for flush in FLUSHES:
        for record_bytes, partitions in product(RECORD_BYTES, PARTITIONS):
            yield Case("produce", record_bytes, partitions, "keyed", flush=flush)
        for record_bytes in RECORD_BYTES:
            yield Case("produce", record_bytes, flush=flush)
        yield Case("open", spread="keyed", flush=flush, api="records", rate_s=OPEN_RATE_S)
        yield Case("single", flush=flush, api="records")
    for record_bytes in RECORD_BYTES:
        yield Case("fetch", record_bytes, spread="keyed", api="records")


PRESETS = {"short": short, "matrix": matrix, "peers": peers}

# The cases that several groups of gates measure.
RF1, RF3 = Case("produce", rf=1), Case("produce", rf=3)
SMALL_RF1, SMALL_RF3 = Case("produce", 100, rf=1), Case("produce", 100, rf=3)
ONE = replace(RF3, partitions=1)
KEYED = Case("produce", spread="keyed")
DEEP = replace(KEYED, in_flight_bytes=256 * MIB)
"""Room for a full batch of each of 1,024 partitions, as their users are told to give it."""
MANY = Case("produce", 100, 1024, "keyed")
FETCH, FETCH_MANY = Case("fetch", 100), Case("fetch", 100, 1024, "keyed")
SINGLE = Case("single", api="records")
OPEN = Case("open", spread="keyed", api="records", rate_s=OPEN_RATE_S)
