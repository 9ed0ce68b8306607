"""Measures the start of a node on very many sealed segments of one partition.

They are made by the node's own store, in a folder of its own, one batch each; then another store
starts on the same folder and puts all of them into the table of replicas, as a node does.
"""

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, cast

from benchmarks.harness.runner import progress
from icecore.model import NodeId, SegmentId
from icecore_node.identity.readers import Readers
from icecore_node.registry.digest_queue import DigestQueue
from icecore_node.registry.found_replicas import take_in
from icecore_node.registry.table import PartitionReplicas, ReplicaTable
from icecore_node.storage.data_folder import DataFolder
from icecore_node.storage.engines import make_store
from tests.conformance.log_builder import CLUSTER, LogBuilder

RECORDS: Final = 10
MS_APART: Final = 1_000
PART: Final = 500
LOOKS: Final = 200
NODE = NodeId(1)


def measure(folder: Path, segments: int) -> dict[str, Any]:
    """CPU seconds of a start, and CPU microseconds of look-ups in the table."""
    progress(f"make {segments} sealed segments")
    _make(folder, segments)
    opened = DataFolder.open(folder, NODE)
    try:
        store = make_store(opened.files, opened.index, opened.control, CLUSTER)
        progress("start on them")
        began_s = time.process_time()
        found = store.start_up()
        judged_s = time.process_time()
        table = ReplicaTable(Readers())
        context: Any = SimpleNamespace(
            store=store,
            log_io=SimpleNamespace(pool=SimpleNamespace(worker_for=lambda *_: None), changed={}),
        )
        for each in found:
            take_in(context, table, DigestQueue(), each)
        adopted_s = time.process_time()
        assert all(each.intact for each in found), "a replica is damaged"
        identity = found[0].identity
        held = table.of(identity.topic_id, identity.partition)
        store.close()
    finally:
        opened.close()
    return {
        "segments": segments,
        "judged_cpu_s": round(judged_s - began_s, 3),
        "adopted_cpu_s": round(adopted_s - judged_s, 3),
        "look_up_cpu_us": _looks(held, segments),
    }


def _make(folder: Path, segments: int) -> None:
    opened = DataFolder.open(folder, NODE)
    try:
        store = make_store(opened.files, opened.index, opened.control, CLUSTER)
        for first in range(0, segments, PART):
            logs = [
                LogBuilder(SegmentId(number + 1), number * RECORDS, number * MS_APART)
                for number in range(first, min(first + PART, segments))
            ]
            starts = {
                log.identity.segment_id: (b"", log.tail.max_append_timestamp_ms) for log in logs
            }
            identities = [log.identity for log in logs]
            assert not any(store.creation.create(identities, starts)), "not made"
            requests = [log.request(1, RECORDS) for log in logs]
            store.append_group(requests)
            assert not any(each.error for each in requests), "not appended"
            for log in logs:
                store.seal(log.identity.segment_id, log.tail.end_offset, log.tail.digest)
        store.close()
    finally:
        opened.close()


def _looks(held: PartitionReplicas, segments: int) -> dict[str, float]:
    def cost_us(look: Callable[[int], object]) -> float:
        began_s = time.process_time()
        for number in range(LOOKS):
            look(number * segments // LOOKS)
        return round(1e6 * (time.process_time() - began_s) / LOOKS, 1)

    return {
        "offset": cost_us(lambda number: held.find(number * RECORDS)),
        "time": cost_us(lambda number: cast(Any, held).since(number * MS_APART)[0]),
        "high_watermark": cost_us(lambda _: held.high_watermark),
    }
