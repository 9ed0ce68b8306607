"""Measures how fast metadata change, in SQLite and in etcd, in one run; and bytes of a segment.

A change is what a roll of a segment writes: three records of a partition, each compared with the
version that it replaces. ``python -m benchmarks.metadata_stores`` prints a table. The members of
etcd are processes on this machine and share its disk: real ones have a network between them.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks import metadata_changes
from benchmarks.harness.runner import progress
from benchmarks.scale.etcd import database_bytes
from benchmarks.scale.metadata import records_of
from icecore.process.system import SystemRng
from icecore_coordinator.config import EtcdSettings
from icecore_coordinator.state.record_json import encode
from icecore_coordinator.state.records import SegmentRecord
from icecore_coordinator.stores.etcd_store import EtcdStore
from icecore_coordinator.stores.metadata_store import Compare, MetadataStore
from icecore_coordinator.stores.sqlite_store import SqliteStore
from tests.support.etcd import etcd_program, running_members

SECONDS: Final = 4.0
ROWS: Final = (3, 100)
"""A roll; the largest change that decisions make."""
SEGMENTS: Final = 20_000


@dataclass(frozen=True, slots=True)
class StoreFigures:
    """Figures of one store."""

    name: str
    changes_per_s: dict[int, float]
    """By rows of a change."""
    p50_ms: float
    p99_ms: float
    read_rows_per_s: float
    operations_per_s: dict[str, float]
    """Rates of ``metadata_changes``, by name."""


async def measured(name: str, store: MetadataStore, seconds: float) -> StoreFigures:
    """Changes one after the other, as a coordinator makes them, then a read of all records."""
    progress(f"{name}: operations")
    operations = await metadata_changes.rates(store, seconds)
    rates, waits = {}, []
    value = _segment_values(1)[0]
    for rows in ROWS:
        progress(f"{name}: changes of {rows} records")
        keys = [f"segment/{rows:03d}/{number:05d}" for number in range(rows)]
        version, began = 0, time.perf_counter()
        while (now := time.perf_counter()) - began < seconds:
            done = await store.txn(
                [Compare(key, version) for key in keys], [(key, value) for key in keys]
            )
            assert done
            version += 1
            if rows == ROWS[0]:
                waits.append(time.perf_counter() - now)
        rates[rows] = version / (time.perf_counter() - began)
    await _fill(store, _segment_values(SEGMENTS))
    progress(f"{name}: read")
    began, after, count = time.perf_counter(), "", 0
    while page := await store.scan("full/", after, 1_000):
        count, after = count + len(page), page[-1].key
    read = count / (time.perf_counter() - began)
    cuts = statistics.quantiles(waits, n=100)
    return StoreFigures(name, rates, 1000 * cuts[49], 1000 * cuts[98], read, operations)


async def _fill(store: MetadataStore, values: Sequence[str]) -> None:
    keys = [f"full/{'0' * 32}/{number:08d}/{number:020d}" for number in range(len(values))]
    for at in range(0, len(values), 100):
        part = keys[at : at + 100]
        absent = [Compare(key, 0) for key in part]  # else each is read first
        await store.txn(absent, list(zip(part, values[at : at + 100], strict=True)))


def _segment_values(count: int) -> list[str]:
    found = (each for each in records_of(count) if isinstance(each, SegmentRecord))
    return [encode(each) for each in found]


async def run(folder: Path, seconds: float) -> tuple[list[StoreFigures], float]:
    """The figures of each store, and bytes of etcd for each sealed segment."""
    sqlite = SqliteStore(folder / "metadata.sqlite3")
    found = [await measured("SQLite", sqlite, seconds)]
    await sqlite.close()
    per_segment = 0.0
    for members in (1, 3):
        with running_members(folder / f"etcd-{members}", members) as etcd:
            settings = EtcdSettings(endpoints=",".join(etcd.endpoints))
            store = EtcdStore(settings, SystemRng())
            name = f"etcd, {members} member{'s' * (members > 1)}"
            found.append(await measured(name, store, seconds))
            if members == 1:
                before = database_bytes(etcd.metrics[0])
                others = EtcdStore(settings.model_copy(update={"prefix": "more/"}), SystemRng())
                await others.acquire_coordinator_epoch()
                await _fill(others, _segment_values(SEGMENTS))
                per_segment = (database_bytes(etcd.metrics[0]) - before) / SEGMENTS
                await others.close()
            await store.close()
    return found, per_segment


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of each case")
    seconds = parser.parse_args().seconds
    if etcd_program() is None:
        raise SystemExit("there is no etcd: make setup-etcd brings it")
    with tempfile.TemporaryDirectory() as folder:
        found, per_segment = asyncio.run(run(Path(folder), seconds))
    head = [f"changes/s of {rows} records" for rows in ROWS]
    print("| store |", " | ".join(head), "| p50 ms | p99 ms | records read/s |")
    print("|---|---|---|---|---|---|")
    for each in found:
        rates = " | ".join(f"{each.changes_per_s[rows]:,.0f}" for rows in ROWS)
        print(
            f"| {each.name} | {rates} | {each.p50_ms:.1f} | {each.p99_ms:.1f}"
            f" | {each.read_rows_per_s:,.0f} |"
        )
    print("\n| changes/s |", " | ".join(each.name for each in found), "|")
    print("|---" * (len(found) + 1) + "|")
    for name in found[0].operations_per_s:
        print(
            f"| {name} |", " | ".join(f"{each.operations_per_s[name]:,.0f}" for each in found), "|"
        )
    print(f"\netcd keeps {per_segment:,.0f} bytes of each sealed segment.")


if __name__ == "__main__":
    main()
