"""Measures very many sealed segments on a coordinator: it reads its records, and tells a node its
share of the segments.

The records are made by the coordinator's own encoding; nobody ever produced anything.
"""

import asyncio
import os
import random
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from benchmarks.harness.machine import cost_of
from benchmarks.harness.runner import progress
from icecore.model import Epoch, Incarnation, NodeId, Segment, SegmentId, SegmentState
from icecore.process.memory import resident_bytes, trim
from icecore.process.system import SystemRng
from icecore.topic_settings import SegmentSettings
from icecore_coordinator.ledger import Ledger
from icecore_coordinator.nodes.node_pushes import Pushes
from icecore_coordinator.state.liveness import Liveness
from icecore_coordinator.state.record_json import encode
from icecore_coordinator.state.records import (
    CounterRecord,
    NodeRecord,
    PartitionRecord,
    Record,
    SegmentRecord,
    TopicRecord,
)
from icecore_coordinator.stores.sqlite_store import SqliteStore

TOPIC: Final = b"t" * 16
NODES: Final = tuple(map(NodeId, (1, 2, 3)))
PARTITIONS: Final = 10
RECORDS: Final = 10
SETTINGS: Final = SegmentSettings(replication_factor=3, min_insync_replicas=2)


def measure(folder: Path, segments: int, partitions: int = PARTITIONS) -> dict[str, Any]:
    """CPU seconds and memory of a start over so many sealed segments, and of what follows."""
    progress(f"make records of {segments} segments")
    database = folder / "metadata.db"
    _make(database, segments, partitions)
    trim()
    before = resident_bytes()
    progress("start on them")
    return asyncio.run(_started(database, segments, before))


async def _started(database: Path, segments: int, before_bytes: int) -> dict[str, Any]:
    store = SqliteStore(database)
    ledger = Ledger(store, SystemRng())
    began_s = time.process_time()
    await ledger.open()
    opened_s = time.process_time() - began_s
    peak = cost_of(os.getpid()).peak_rss_bytes
    trim()  # as a server does once it is quiet
    resident = resident_bytes()
    state, live = ledger.state, Liveness()
    pushes = Pushes(state, live, lambda: 0)
    outbox = pushes.open(NODES[0], ())
    longest_bytes = messages = 0
    began_s = time.process_time()
    longest_s = 0.0
    while not messages or outbox.segments or outbox.partitions:
        step_s = time.process_time()
        longest_bytes = max(longest_bytes, pushes.next_message(outbox).ByteSize())
        longest_s = max(longest_s, time.process_time() - step_s)
        messages += 1
    pushed_s = time.process_time() - began_s
    await store.close()
    return {
        "segments": segments,
        "open_cpu_s": round(opened_s, 2),
        "grown_mib": round((resident - before_bytes) / (1 << 20)),
        "grown_at_peak_mib": round((peak - before_bytes) / (1 << 20)),
        "push": {
            "messages": messages,
            "cpu_s": round(pushed_s, 2),
            "longest_ms": round(1000 * longest_s, 1),
            "longest_bytes": longest_bytes,
        },
    }


def _make(database: Path, segments: int, partitions: int) -> None:
    store = SqliteStore(database)
    connection = sqlite3.connect(database, isolation_level=None)
    connection.execute("PRAGMA synchronous=OFF")
    connection.execute("BEGIN")
    rows = ((each.key, encode(each), each.version) for each in records_of(segments, partitions))
    connection.executemany("INSERT INTO records VALUES (?, ?, ?)", rows)
    connection.execute("COMMIT")
    connection.close()
    asyncio.run(store.close())


def records_of(segments: int, partitions: int = PARTITIONS) -> Iterator[Record]:
    """Yield the records of a cluster with so many sealed segments of one topic, and an open one in
    each partition."""
    rng = random.Random(1)
    for node_id in NODES:
        incarnation = Incarnation(1)
        yield NodeRecord(
            node_id, bytes([node_id]), f"n{node_id}:1", "", incarnation, incarnation, version=1
        )
    yield TopicRecord(TOPIC, "long", partitions, SETTINGS, version=1)
    yield CounterRecord("segment_id", segments + partitions + 1, version=1)
    per_partition = -(-segments // partitions)
    for partition in range(partitions):
        tail = _tail(SegmentId(segments + partition + 1), partition, per_partition)
        yield tail
        segment = tail.segment
        yield PartitionRecord(
            TOPIC,
            partition,
            tail_segment_id=segment.segment_id,
            next_base_offset=segment.base_offset,
            version=1,
        )
    for number in range(segments):
        partition, at = divmod(number, per_partition)
        yield SegmentRecord(
            Segment(
                SegmentId(number + 1),
                TOPIC,
                "long",
                partition,
                SegmentState.SEALED,
                Epoch(2 * at + 1),
                SETTINGS,
                base_offset=at * RECORDS,
                end_offset=(at + 1) * RECORDS,
                length_bytes=1 << 20,
                seal_digest=rng.randbytes(32),
                full_digest=rng.randbytes(33),
                leader=NODES[number % 3],
                leader_incarnation=Incarnation(1),
                replicas=NODES,
                version=3,
            ),
            NODES,
            rng.randbytes(32),
            1_700_000_000_000 + at,
        )


def _tail(segment_id: SegmentId, partition: int, behind: int) -> SegmentRecord:
    """The open segment behind so many sealed ones."""
    leader = NODES[partition % 3]
    return SegmentRecord(
        Segment(
            segment_id,
            TOPIC,
            "long",
            partition,
            SegmentState.ACTIVE,
            Epoch(2 * behind + 1),
            SETTINGS,
            base_offset=behind * RECORDS,
            leader=leader,
            leader_incarnation=Incarnation(1),
            replicas=NODES,
            isr=NODES,
            version=2,
        ),
        NODES,
    )
