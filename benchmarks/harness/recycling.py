"""Measures retention: recycled files beside fresh ones, and latencies while files are deleted.

    python -m benchmarks.harness.recycling --rounds 3 --seconds 4

Two clusters of three nodes, RF 3, ``sync``, side by side and loaded in turns. In one a topic keeps
its newest bytes, and segments are written over the files of deleted ones; in the other nothing is
deleted and all files are new. Each round loads one, then the other, with batches of 256 KiB as fast
as acks come, and says MB/s of both. Then a paced load of about 1 GB a minute on the first cluster,
with retention and without in turns, says the latency of its batches: p99 of each turn, since the
slowest are those of one moment, in which all partitions open their next segments.

Lines of JSON go to stdout, progress to stderr.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections import deque
from pathlib import Path

from benchmarks.harness.figures import quantile
from benchmarks.harness.lifetime import exit_with
from icecore import Admin, Producer
from icecore.dev import LocalCluster
from icecore.process.system import tune_process

SEGMENT_BYTES = 16 << 20
PARTITIONS = 4
TOPIC = "t"
VALUES = [bytes([each % 251]) * 1024 for each in range(256)]
BATCH_MB = len(VALUES) * 1024 / 1e6
PACED_MB_S = 17.0
UNDER_WAY = 8
SETTLE_S = 3.0
"""Until what was kept while nothing was deleted is gone."""


async def make(bootstrap: str, retention_bytes: int) -> None:
    """The topic of one cluster."""
    async with Admin(bootstrap) as admin:
        await admin.create_topic(
            TOPIC,
            partitions=PARTITIONS,
            segment_bytes=SEGMENT_BYTES,
            retention_bytes=retention_bytes,
        )


async def load(bootstrap: str, seconds: float) -> float:
    """MB/s of a closed loop."""
    done = 0
    async with Producer(bootstrap, compression="none") as producer:
        waiting: deque[object] = deque()
        began_s = time.monotonic()
        partition = 0
        while time.monotonic() - began_s < seconds:
            await producer.ready()
            waiting.append(producer.send_batch(TOPIC, VALUES, partition=partition))
            partition = (partition + 1) % PARTITIONS
            if len(waiting) >= UNDER_WAY:
                await waiting.popleft()  # type: ignore[misc]
                done += 1
        while waiting:
            await waiting.popleft()  # type: ignore[misc]
            done += 1
        return done * BATCH_MB / (time.monotonic() - began_s)


async def paced(bootstrap: str, seconds: float) -> list[float]:
    """Milliseconds of each batch, sent when its time comes."""
    found: list[float] = []
    async with Producer(bootstrap, compression="none") as producer:

        async def send(partition: int, due_s: float) -> None:
            await producer.send_batch(TOPIC, VALUES, partition=partition)
            found.append(1000 * (time.monotonic() - due_s))

        began_s = time.monotonic()
        tasks = []
        for number in range(int(seconds * PACED_MB_S / BATCH_MB)):
            due_s = began_s + number * BATCH_MB / PACED_MB_S
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            tasks.append(asyncio.create_task(send(number % PARTITIONS, due_s)))
        await asyncio.gather(*tasks)
    return found


async def keep(bootstrap: str, retention_bytes: int) -> None:
    """From now on."""
    async with Admin(bootstrap) as admin:
        await admin.alter_topic(TOPIC, retention_bytes=retention_bytes)


async def measure(kept: str, grown: str, rounds: int, seconds: float) -> dict[str, object]:
    """Both clusters in turns."""
    await make(kept, 2 * SEGMENT_BYTES)
    await make(grown, -1)
    await load(kept, 2 * seconds)  # until the pool has files
    recycled, fresh = [], []
    for _ in range(rounds):
        recycled.append(await load(kept, seconds))
        fresh.append(await load(grown, seconds))
    deleting, still = [], []
    for _ in range(rounds):
        await keep(kept, -1)
        still.append(sorted(await paced(kept, seconds)))
        await keep(kept, 2 * SEGMENT_BYTES)
        await asyncio.sleep(SETTLE_S)
        deleting.append(sorted(await paced(kept, seconds)))
    async with Admin(kept) as admin:
        [topic] = await admin.describe_topics([TOPIC])
    return {
        "benchmark": "recycling",
        "recycled_mb_s": [round(each, 1) for each in recycled],
        "fresh_mb_s": [round(each, 1) for each in fresh],
        "recycled_vs_fresh": round(statistics.median(recycled) / statistics.median(fresh), 3),
        "deleting_p99_ms": _quantiles(deleting, 0.99),
        "still_p99_ms": _quantiles(still, 0.99),
        "deleting_vs_still_p99": round(
            statistics.median(_quantiles(deleting, 0.99))
            / statistics.median(_quantiles(still, 0.99)),
            3,
        ),
        "deleting_p50_ms": _quantiles(deleting, 0.5),
        "still_p50_ms": _quantiles(still, 0.5),
        "deleted_records": sum(each.log_start_offset for each in topic.partitions),
    }


def _quantiles(turns: list[list[float]], share: float) -> list[float]:
    return [round(quantile(each, share), 2) for each in turns]


def main() -> int:
    """Exit status 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="of each load")
    parser.add_argument("--folder", type=Path, help="on the disk to measure; temporary without")
    options = parser.parse_args()
    tune_process()
    with tempfile.TemporaryDirectory(prefix="icecore-recycling-", dir=options.folder) as name:
        folder = Path(name)
        with (
            LocalCluster(folder / "kept", nodes=3) as kept,
            LocalCluster(
                folder / "grown", nodes=3, node_settings={"recycle_bytes_max": 0}
            ) as grown,
        ):
            found = asyncio.run(
                measure(kept.bootstrap, grown.bootstrap, options.rounds, options.seconds)
            )
    print(json.dumps(found), flush=True)
    return 0


if __name__ == "__main__":
    exit_with(main)
