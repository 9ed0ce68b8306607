"""How long produce stands still, partition by partition, when a node dies or is stopped cleanly.

    python -m benchmarks.failover --kills 3 --mib 64 [--how kill|stop|pause] [--partitions 48]

Four nodes, so that a quarter of the partitions has no replica on the victim and must not notice.
Every round starts with a fresh RF 3 topic whose partitions hold ``--mib`` each in their active
segments; then every partition gets one small record at a time (acks=all, fsync), a node goes, and
the longest gap between two acks after that moment is the partition's figure. A round ends when the
node is back and every segment has all its copies again. JSON lines: one per round, then the whole
with percentiles by what the victim was to the partition: leader, follower, or nothing.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from benchmarks.machine import describe
from icecore import Admin, Producer
from icecore.dev import LocalCluster
from icecore.system import tune_process

MIB = 1 << 20
NODES = 4
PACE_S = 0.02
BEFORE_S, AFTER_S = 2.0, 12.0
ROLES = ("led", "followed", "untouched")


@dataclass
class Round:
    """One victim: the longest gap after it went, in ms, by role and partition."""

    victim: int
    gaps_ms: dict[str, list[float]] = field(default_factory=lambda: {role: [] for role in ROLES})
    errors: int = 0

    def summary(self) -> dict[str, object]:
        """Figures of this round."""
        worst = {role: round(max(gaps, default=0.0)) for role, gaps in self.gaps_ms.items()}
        return {"victim": self.victim, "worst_gap_ms": worst, "errors": self.errors}


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that ``share`` of all do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


class Probe:
    """One small record at a time to one partition; remembers when acks came."""

    def __init__(self, producer: Producer, topic: str, partition: int) -> None:
        self._producer, self._topic, self._partition = producer, topic, partition
        self.acked_at_s: list[float] = []
        self.errors = 0

    async def run(self) -> None:
        while True:
            try:
                await self._producer.send_and_wait(
                    self._topic, b"probe" * 20, partition=self._partition
                )
            except Exception as error:
                self.errors += 1
                print(f"partition {self._partition}: {error}", file=sys.stderr)
            self.acked_at_s.append(time.monotonic())
            await asyncio.sleep(PACE_S)

    def gap_ms(self, since_s: float) -> float:
        """Longest time without an ack that ended after ``since_s``."""
        times = self.acked_at_s
        gaps = (after - before for before, after in pairwise(times)
                if after > since_s)  # fmt: skip
        return 1000 * max(gaps, default=time.monotonic() - since_s)


async def fill(bootstrap: str, topic: str, partitions: int, mib: int) -> None:
    """So many MiB into the active segment of every partition."""
    values = [bytes(1024)] * 256
    async with Producer(bootstrap) as producer:
        for _ in range(mib * 4):
            handles = []
            for partition in range(partitions):
                await producer.ready()
                handles.append(producer.send_batch(topic, values, partition=partition))
            for handle in handles:
                await handle


async def wait_whole(admin: Admin, timeout_s: float = 120.0) -> None:
    """Until every segment has all its copies."""
    end_s = time.monotonic() + timeout_s
    while (await admin.describe_cluster()).under_replicated:
        if time.monotonic() > end_s:
            raise TimeoutError("copies are still missing")
        await asyncio.sleep(0.2)


async def run_round(
    cluster: LocalCluster, victim: int, how: str, partitions: int, mib: int
) -> Round:
    """Fill a topic, probe it, take the victim away, bring it back."""
    topic, result = f"failover-{time.monotonic_ns()}", Round(victim)
    async with Admin(cluster.bootstrap) as admin:
        await admin.create_topic(
            topic, partitions=partitions, replication_factor=3, segment_bytes=1 << 30
        )
        await fill(cluster.bootstrap, topic, partitions, mib)
        async with Producer(cluster.bootstrap, linger_ms=1) as producer:
            probes = [Probe(producer, topic, each) for each in range(partitions)]
            running = [asyncio.create_task(probe.run()) for probe in probes]
            await asyncio.sleep(BEFORE_S)
            (before,) = await admin.describe_topics([topic])
            gone_s = time.monotonic()
            await asyncio.to_thread(_take_away, cluster, victim, how)
            await asyncio.sleep(AFTER_S)
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        for probe, described in zip(probes, before.partitions, strict=True):
            tail = described.tail
            role = "untouched"
            if tail is not None and victim in tail.replicas:
                role = "led" if tail.leader == victim else "followed"
            result.gaps_ms[role].append(probe.gap_ms(gone_s))
            result.errors += probe.errors
        await asyncio.to_thread(_bring_back, cluster, victim, how)
        await wait_whole(admin)
        await admin.delete_topic(topic)
    return result


def _take_away(cluster: LocalCluster, victim: int, how: str) -> None:
    {"kill": cluster.kill_node, "stop": cluster.stop_node, "pause": cluster.pause_node}[how](victim)


def _bring_back(cluster: LocalCluster, victim: int, how: str) -> None:
    (cluster.resume_node if how == "pause" else cluster.start_node)(victim)


async def measure(cluster: LocalCluster, options: argparse.Namespace) -> None:
    """All rounds, printed as they end, then the whole."""
    await asyncio.sleep(7.0)  # a coordinator's first lease: until then nobody is declared dead
    rounds = []
    for number in range(options.kills):
        done = await run_round(
            cluster, number % NODES + 1, options.how, options.partitions, options.mib
        )
        rounds.append(done)
        print(json.dumps({"benchmark": "failover-round", "how": options.how, **done.summary()}),
              flush=True)  # fmt: skip
    figures = {}
    for role in ROLES:
        gaps = [gap for each in rounds for gap in each.gaps_ms[role]]
        if gaps:
            figures[role] = {
                "partitions": len(gaps),
                "p50_ms": round(statistics.median(gaps)),
                "p99_ms": round(percentile(gaps, 0.99)),
                "max_ms": round(max(gaps)),
            }
    print(
        json.dumps(
            {
                "benchmark": "failover",
                "how": options.how,
                "rounds": options.kills,
                "partitions": options.partitions,
                "mib_per_partition": options.mib,
                "errors": sum(each.errors for each in rounds),
                "longest_gap": figures,
                "machine": describe(Path(options.folder)),
            }
        )
    )


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=3, help="rounds")
    parser.add_argument("--mib", type=int, default=64, help="MiB in each active segment")
    parser.add_argument("--partitions", type=int, default=48)
    parser.add_argument("--how", choices=("kill", "stop", "pause"), default="kill")
    parser.add_argument("--folder", default=tempfile.gettempdir())
    options = parser.parse_args()
    tune_process()
    with (
        tempfile.TemporaryDirectory(prefix="icecore-failover-", dir=options.folder) as folder,
        LocalCluster(folder, nodes=NODES) as cluster,
    ):
        asyncio.run(measure(cluster, options))


if __name__ == "__main__":
    main()
