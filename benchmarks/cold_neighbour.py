"""Measures how a full scan of a cold topic slows a producer to a hot topic on the same nodes.

    python -m benchmarks.cold_neighbour [--mib 64] [--rounds 4] [--seconds 8] [--nodes 1] [--local]

Real processes: a cluster, a MinIO of its own (with ``--local`` a folder), a producer of 200 single
records a second with ``acks=all``, and in every other turn a consumer in a process of its own that
reads a topic of which nodes have nothing any more, again and again. Latencies count from when a
record was due. One JSON line: latencies without and with the scan, the ratio of their p99 (bound
1.5), and what the scan read. Everything shares the machine's cores, MinIO and the consumer, too:
``--busy 2`` has two processes that only compute in the place of the scan, for comparison.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import Any, Final

from benchmarks.harness.figures import Schedule, latency_ms
from icecore import Admin, Consumer, Producer
from icecore.dev import LocalCluster
from icecore.process.system import tune_process
from tests.support.minio import running_minio
from tests.support.s3 import BUCKET, PASSWORD, REGION, USER
from tests.support.tier_places import has_store, until, until_tiered

HOT: Final = "hot"
COLD: Final = "cold"
RATE_S: Final = 200
RECORD_BYTES: Final = 200
SEGMENT_BYTES: Final = 16 << 20
WARM_S: Final = 2.0
"""From the start of a scan to the first record that counts."""


async def scan(bootstrap: str) -> None:
    """Until killed: the whole topic again and again; a line of bytes for each pass."""
    while True:
        length = 0
        async with Consumer(bootstrap, COLD, start="earliest", stop_at_end=True) as consumer:
            async for batch in consumer.batches():
                length += batch.nbytes
        print(length, flush=True)


async def fill(bootstrap: str, mib: int, tier_format: str) -> None:
    """Both topics; the cold one is on no node any more."""
    rng, count = Random(7), (mib << 20) // RECORD_BYTES
    async with Admin(bootstrap) as admin:
        await until(lambda: has_store(admin))
        await admin.create_topic(HOT, partitions=1)
        await admin.create_topic(
            COLD,
            partitions=2,
            segment_bytes=SEGMENT_BYTES,
            tier="on",
            tier_format=tier_format,
            local_retention_ms=0,
        )
        async with Producer(bootstrap) as producer:
            for start in range(0, count, 10_000):
                for number in range(start, min(start + 10_000, count)):
                    value = b"%d " % number + rng.randbytes(RECORD_BYTES // 2).hex().encode()
                    await producer.send_wait(COLD, value[:RECORD_BYTES], key=b"%d" % number)
                await producer.flush()
        await until_tiered(admin, COLD, is_remote=True)


async def produce(producer: Producer, seconds: float) -> list[float]:
    """Latencies of single records, each from when it was due."""
    took_s, waiting = list[float](), set[asyncio.Task[None]]()
    schedule = Schedule(time.perf_counter(), RATE_S)

    async def one(due_s: float) -> None:
        await producer.send(HOT, b"x" * RECORD_BYTES)
        took_s.append(time.perf_counter() - due_s)

    for _ in range(round(seconds * RATE_S)):
        wait_s = schedule.wait_s(time.perf_counter())
        if wait_s > 0:
            await asyncio.sleep(wait_s)
        due_s = schedule.take()
        assert due_s is not None
        task = asyncio.create_task(one(due_s))
        waiting.add(task)
        task.add_done_callback(waiting.discard)
    await asyncio.gather(*waiting)
    return took_s


async def measure(bootstrap: str, given: argparse.Namespace) -> dict[str, Any]:
    """All turns."""
    await fill(bootstrap, given.mib, given.format)
    alone, beside, scanned = list[float](), list[float](), 0
    async with Producer(bootstrap) as producer:
        await produce(producer, WARM_S)
        for _ in range(given.rounds):
            alone += await produce(producer, given.seconds)
            command = ["-m", "benchmarks.cold_neighbour", "--scan", bootstrap]
            if given.busy:
                command = ["-c", "while True: sum(range(10_000))"]
            others = [
                await asyncio.create_subprocess_exec(
                    sys.executable, *command, stdout=subprocess.PIPE
                )
                for _ in range(given.busy or 1)
            ]
            await asyncio.sleep(WARM_S)
            beside += await produce(producer, given.seconds)
            for each in others:
                each.kill()
                told, _ = await each.communicate()
                scanned += sum(map(int, told.split()))
    without, with_scan = latency_ms(alone), latency_ms(beside)
    return {
        "mib": given.mib,
        "nodes": given.nodes,
        "format": given.format,
        "busy": given.busy,
        "p99_ratio": round(with_scan["p99_ms"] / without["p99_ms"], 2),
        "without": without,
        "with_scan": with_scan,
        "scanned_mib": round(scanned / (1 << 20)),
    }


def main() -> None:
    """Print one line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=64, help="of values in the cold topic")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=8.0, help="of a turn")
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--format", default="parquet", help="parquet or segment")
    parser.add_argument("--busy", type=int, default=0, help="processes in place of the scan")
    parser.add_argument("--local", action="store_true", help="a folder in the place of MinIO")
    parser.add_argument("--scan", help=argparse.SUPPRESS)
    given = parser.parse_args()
    tune_process()
    if given.scan:
        asyncio.run(scan(given.scan))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        settings = {"tier_url": f"file://{folder}/store"}
        if not given.local:
            os.environ |= {"AWS_ACCESS_KEY_ID": USER, "AWS_SECRET_ACCESS_KEY": PASSWORD}
            endpoint = stack.enter_context(running_minio(folder / "minio")).endpoint
            settings = {
                "tier_url": f"s3://{BUCKET}/x",
                "tier_region": REGION,
                "tier_endpoint": endpoint,
            }
        cluster = LocalCluster(folder / "cluster", given.nodes, node_settings=settings)
        stack.enter_context(cluster)
        print(json.dumps({"figures": asyncio.run(measure(cluster.bootstrap, given))}))


if __name__ == "__main__":
    main()
