"""Measure how long it takes to find records by offset, time and key, in client and store.

    python -m benchmarks.lookup [--records 10080000] [--segments 9] [--looks 300]

One node with one partition of 100-byte records, each with a key that ten records of its segment
have, and a tag; all segments but the last are sealed and have their index files. First a client
looks things up, one at a time, then the node is stopped and its store is asked in this process, as
the node asks it, without network and threads. Beside them stands what the same question costs
without an index: reading the records of one segment and comparing. Progress goes to stderr; stdout
gets one JSON line.
"""

import argparse
import json
import random
import tempfile
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from benchmarks.harness.figures import latency_ms
from benchmarks.harness.lifetime import exit_with
from benchmarks.harness.machine import describe
from benchmarks.harness.runner import progress
from benchmarks.lookup.data import HITS, TAGS, TOPIC, Layout, fill
from benchmarks.lookup.store import in_store
from icecore.blocking import Admin, Consumer, Lookup
from icecore.dev import LocalCluster

SEED: Final = 1
INDEXED_S_MAX: Final = 300.0
KEYS_AT_ONCE: Final = 1_000


def timed(looks: int, look: Callable[[], Any]) -> dict[str, float]:
    """Percentiles of so many, after a few to warm up."""
    for _ in range(min(looks, 20)):
        look()
    took_s = []
    for _ in range(looks):
        began_s = time.perf_counter()
        look()
        took_s.append(time.perf_counter() - began_s)
    return latency_ms(took_s)


def until_indexed(folder: Path, sealed: int) -> float:
    """Wait for the index files; how many seconds that took."""
    began_s = time.monotonic()
    while len(list(folder.rglob("*.idx"))) < sealed:
        if time.monotonic() - began_s > INDEXED_S_MAX:
            raise RuntimeError(f"no index files of {sealed} segments in {INDEXED_S_MAX:g} s")
        time.sleep(0.2)
    return time.monotonic() - began_s


def from_client(bootstrap: str, layout: Layout, looks: int) -> dict[str, dict[str, float]]:
    """One question at a time, each a round trip at least."""
    rng = random.Random(SEED)
    active = layout.segments - 1

    def by_key(segment: int) -> None:
        number = rng.randrange(layout.keys_per_segment)
        page = lookup.find(keys=[layout.key(segment, number)], partitions=[0])
        found = [record.offset for record in page.records]
        assert page.complete and found == layout.offsets(segment, number), "not what was produced"

    def by_offset() -> None:
        offset = rng.randrange(layout.records)
        found = lookup.record(0, offset)
        assert found is not None and found.offset == offset

    def by_time() -> None:
        at_ms = rng.randrange(*times)
        lookup.offset_at(datetime.fromtimestamp(at_ms / 1000, UTC), partitions=[0])

    def many() -> None:
        numbers = rng.sample(range(layout.keys_per_segment), KEYS_AT_ONCE)
        keys = [layout.key(0, number) for number in numbers]
        page = lookup.find(
            keys=keys, partitions=[0], to_offset=layout.per_segment, max_count=10_000
        )
        assert page.complete and len(page.records) == HITS * KEYS_AT_ONCE

    def nothing() -> None:
        page = lookup.find(keys=[b"nobody's"], partitions=[0])
        assert page.complete and not page.records

    with Lookup(bootstrap, TOPIC) as lookup:
        first, last = lookup.record(0, 0), lookup.record(0, layout.records - 1)
        assert first is not None and last is not None
        times = first.append_timestamp_ms, last.append_timestamp_ms
        return {
            "offset": timed(looks, by_offset),
            "append_time": timed(looks, by_time),
            "key_10_hits_sealed": timed(looks, lambda: by_key(rng.randrange(active))),
            "key_10_hits_active": timed(looks, lambda: by_key(active)),
            "key_of_nobody": timed(looks, nothing),
            "1000_keys_10000_hits": timed(max(3, looks // 100), many),
            "scan_of_one_segment": timed(1, lambda: scan(bootstrap, layout)),
        }


def scan(bootstrap: str, layout: Layout) -> None:
    """The first segment without an index: all of it to the client, which compares."""
    found = 0
    with Consumer(bootstrap, TOPIC, start="earliest") as consumer:
        for rows in consumer.batches():
            found += sum(key == layout.key(0, 7) for key in rows.column("key").to_pylist())
            if rows.column("offset")[-1].as_py() >= layout.per_segment:
                break
    assert found == HITS


def measure(folder: Path, options: argparse.Namespace) -> dict[str, float]:
    """Everything, in one run."""
    layout = Layout(options.records, options.segments)
    with LocalCluster(folder, 1) as cluster:
        began_s = time.monotonic()
        fill(cluster.bootstrap, layout)
        filled_s = time.monotonic() - began_s
        progress(f"{layout.records:,} records in {filled_s:.1f} s; waiting for index files")
        indexed_s = until_indexed(folder, layout.segments - 1)
        progress("a client looks up")
        client = from_client(cluster.bootstrap, layout, options.looks)
        with Admin(cluster.bootstrap) as admin:
            segments = admin.list_segments(TOPIC)
    progress("the store looks up")
    index_bytes = sum(file.stat().st_size for file in folder.rglob("*.idx"))
    store = in_store(folder / "node-1", layout, segments, options.looks, timed)
    sealed = layout.per_segment * (layout.segments - 1)
    return {
        **_flat("client", client),
        **_flat("store", store.looks_ms),
        **store.sizes,
        "keys_s": round(1000 * KEYS_AT_ONCE / client["1000_keys_10000_hits"]["p50_ms"]),
        "index_file_bytes_per_record": round(index_bytes / sealed, 2),
        "filled_s": round(filled_s, 1),
        "indexed_after_s": round(indexed_s, 1),
    }


def _flat(where: str, looks_ms: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """``client_offset_p99_ms`` and so on."""
    return {
        f"{where}_{look}_{name}": value
        for look, percentiles in looks_ms.items()
        for name, value in percentiles.items()
        if name in ("p50_ms", "p99_ms")
    }


def main() -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--records", type=int, default=10_080_000)
    parser.add_argument("--segments", type=int, default=9, help="the last of them stays active")
    parser.add_argument("--looks", type=int, default=300, help="of each kind")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="icecore-lookup-", dir=options.folder) as folder:
        found = measure(Path(folder), options)
    about = {"records": options.records, "segments": options.segments, "tags": TAGS}
    machine = describe(options.folder)
    print(json.dumps({"benchmark": "lookup", "figures": found, **about, "machine": machine}))
    return 0


if __name__ == "__main__":
    exit_with(main)
