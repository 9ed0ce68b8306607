"""Produce and fetch through a whole cluster on this machine, beside what its disk allows.

    make bench        # or: python -m benchmarks.produce_fetch --rf 1 3 --mib 256

A coordinator and RF nodes as processes, 16 partitions, records of 1 KiB in batches of 256 KiB made
beforehand as Arrow, acks=all, fsync before every ack. One JSON line per figure: median of the runs
after a warm-up, its ratio to the limit measured in the same run (``benchmarks/limit.py``, fresh
files), CPU seconds per GB of each process and its peak memory. Latency is that of single records,
one after the other, from send to acknowledgement.
"""

import argparse
import asyncio
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks import limit
from benchmarks.machine import Cost, cost_of, describe, warm_memory
from icecore.client.admin import Admin
from icecore.client.consumer import Consumer
from icecore.client.producer import Producer
from icecore.dev import LocalCluster
from icecore.errors import ThrottledError
from icecore.system import tune_process

MIB = 1 << 20
RUNS = 3
LATENCY_RECORDS, LATENCY_WARM_UP = 400, 50


@dataclass(frozen=True, slots=True)
class Load:
    """What is produced."""

    rf: int
    mib: int
    """User data of one run."""
    partitions: int = 16
    record_bytes: int = 1024
    batch_bytes: int = 256 << 10
    acks: str = "all"

    @property
    def records(self) -> int:
        """Per run."""
        return self.mib * MIB // self.record_bytes

    @property
    def user_bytes(self) -> int:
        """Values only, per run."""
        return self.records * self.record_bytes


class Costs:
    """CPU time that each process spends between start and ``per_gb``."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._pids = {**cluster.pids, "client": os.getpid()}
        self._before = self._now()

    def _now(self) -> dict[str, Cost]:
        return {name: cost_of(pid) for name, pid in self._pids.items()}

    def per_gb(self, user_bytes: int) -> dict[str, dict[str, float]]:
        """By process: CPU seconds per GB of user data, and peak resident MiB since its start."""
        return {
            name: {
                "cpu_s_per_gb": round(
                    (now.cpu_s - self._before[name].cpu_s) / (user_bytes / 1e9), 2
                ),
                "peak_rss_mib": now.peak_rss_bytes >> 20,
            }
            for name, now in self._now().items()
        }


def _batches(load: Load) -> list[pa.RecordBatch]:
    """One batch per partition; the same ones are sent again and again."""
    count = load.batch_bytes // load.record_bytes
    return [
        pa.record_batch(
            {"value": pa.array([os.urandom(load.record_bytes) for _ in range(count)], pa.binary())}
        )
        for _ in range(load.partitions)
    ]


async def _produce(producer: Producer, topic: str, load: Load, batches: list[Any]) -> None:
    sent = 0
    while sent < load.records:
        for partition, batch in enumerate(batches):
            try:
                producer.send_batch(topic, batch, partition=partition)
            except ThrottledError:
                await producer.ready()
                producer.send_batch(topic, batch, partition=partition)
            sent += batch.num_rows
        await asyncio.sleep(0)
    await producer.flush()


async def _median(
    load: Load, cluster: LocalCluster, run: Callable[[], Coroutine[Any, Any, None]]
) -> tuple[list[float], dict[str, dict[str, float]]]:
    """User MB/s of each run after a discarded one, and what they cost."""
    await run()
    costs = Costs(cluster)
    rates = []
    for _ in range(RUNS):
        began = time.perf_counter()
        await run()
        rates.append(round(load.user_bytes / (time.perf_counter() - began) / 1e6, 1))
    return rates, costs.per_gb(load.user_bytes * RUNS)


async def _measure(cluster: LocalCluster, load: Load, limits: dict[str, float]) -> None:
    async with Admin(cluster.bootstrap) as admin:
        await admin.create_topic("bench", partitions=load.partitions, replication_factor=load.rf)
    batches = _batches(load)
    async with Producer(
        cluster.bootstrap, acks="all", batch_bytes=2 * load.batch_bytes
    ) as producer:
        rates, costs = await _median(
            load, cluster, lambda: _produce(producer, "bench", load, batches)
        )
    _print("produce", load, rates, limits, costs)
    rates, costs = await _median(load, cluster, lambda: _fetch(cluster.bootstrap, load))
    _print("fetch", load, rates, {}, costs)
    await _latency(cluster.bootstrap, load)


async def _fetch(bootstrap: str, load: Load) -> None:
    """Read one run's worth from the start, as Arrow, without looking at the records."""
    rows = 0
    async with Consumer(bootstrap, "bench") as consumer:
        async for batch in consumer.batches():
            rows += batch.num_rows
            if rows >= load.records:
                break


async def _latency(bootstrap: str, load: Load) -> None:
    """One record at a time: from send to acknowledgement."""
    value = os.urandom(load.record_bytes)
    times_ms = []
    async with Producer(bootstrap, linger_ms=0) as producer:
        for number in range(LATENCY_RECORDS + LATENCY_WARM_UP):
            began = time.perf_counter()
            await producer.send_and_wait("bench", value, partition=number % load.partitions)
            times_ms.append((time.perf_counter() - began) * 1000)
    times_ms = sorted(times_ms[LATENCY_WARM_UP:])
    figures = {
        "benchmark": "latency",
        "rf": load.rf,
        "record_bytes": load.record_bytes,
        "records": LATENCY_RECORDS,
        "p50_ms": round(statistics.median(times_ms), 2),
        "p99_ms": round(times_ms[len(times_ms) * 99 // 100], 2),
    }
    print(json.dumps(figures), flush=True)


def _print(
    what: str,
    load: Load,
    rates: list[float],
    limits: dict[str, float],
    costs: dict[str, dict[str, float]],
) -> None:
    median = statistics.median(rates)
    figures = {
        "benchmark": what,
        **asdict(load),
        "mb_s": median,
        "records_s": round(median * 1e6 / load.record_bytes),
        "runs_mb_s": rates,
        **{f"limit_{name}": value for name, value in limits.items()},
        **({"ratio_to_fresh": round(median / limits["fresh_mb_s"], 2)} if limits else {}),
        "processes": costs,
    }
    print(json.dumps(figures), flush=True)


def main() -> int:
    """Print one JSON line about the machine, then one per figure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rf", type=int, nargs="+", default=[1, 3])
    parser.add_argument("--mib", type=int, default=256, help="user data of one run")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    arguments = parser.parse_args()
    tune_process()
    warm_memory(2 * max(arguments.rf) * arguments.mib * MIB)
    print(json.dumps({"benchmark": "machine", **describe(arguments.folder)}), flush=True)
    for replication_factor in arguments.rf:
        load = Load(replication_factor, arguments.mib)
        limits = limit.measure(arguments.folder, load.rf, load.partitions, arguments.mib)
        with (
            tempfile.TemporaryDirectory(dir=arguments.folder) as folder,
            LocalCluster(folder, load.rf) as cluster,
        ):
            asyncio.run(_measure(cluster, load, limits))
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(json.dumps({"benchmark": "end", "client_peak_rss_mib": peak_mib}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
