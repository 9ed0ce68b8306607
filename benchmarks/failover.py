"""Measure how long produce stands still, by partition, when a node dies or stops cleanly.

    python -m benchmarks.failover --kills 20 --mib 64 [--how kill|stop|pause|drop]

Four nodes, so that a quarter of the partitions has no replica on the victim and must not notice.
Each round begins with everything whole and a fresh RF 3 topic whose partitions hold ``--mib`` each
in their active segments, which is checked; the last round's files are gone from all disks by then.
Every partition gets one small record at a time (acks=all, fsync), a node goes, and the longest time
between two acks that ends after that moment is the partition's figure. Beside it stands the longest
one of the two seconds before, of the same partition: what the load alone does on this machine. The
round ends when the node is back and every segment has all its copies again.

The victim is killed (SIGKILL), stopped (SIGTERM), paused (SIGSTOP), or all packets between it and
the other processes are dropped (needs root: network namespaces).

Progress goes to stderr, JSON lines to stdout: one per round, then the whole with percentiles over
partitions and rounds by what the victim was to the partition: leader, follower, or nothing.
"""

import argparse
import asyncio
import contextlib
import json
import math
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.harness.figures import quantile
from benchmarks.harness.machine import describe
from icecore import Admin, Producer
from icecore.client.types import TopicDescription
from icecore.dev import LocalCluster
from icecore.errors import IcecoreError
from icecore.model import Segment
from icecore.process.system import tune_process
from tests.chaos.network import Network

NODES = 4
PACE_S = 0.05
"""Between an ack and the next record of its partition; part of every gap."""
BEFORE_S = 2.0
SETTLED_S = 1.0
"""All partitions have had acks for so long: the round is decided."""
AFTER_S = {"kill": 5.0, "stop": 5.0, "pause": 10.0, "drop": 10.0}
"""Watched at least; longer than the lease where only that tells."""
AFTER_S_MAX = 60.0
WHOLE_S_MAX = 180.0
ROLES = ("led", "followed", "untouched")


# --- the load ---------------------------------------------------------------------------------


class Probe:
    """One small record at a time to one partition; remembers when acks came."""

    def __init__(self, producer: Producer, topic: str, partition: int) -> None:
        self._producer, self._topic, self._partition = producer, topic, partition
        self.acked_at_s: list[float] = []
        self.errors = 0

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                await self._producer.send_and_wait(
                    self._topic, b"probe" * 20, partition=self._partition
                )
            except IcecoreError as error:
                self.errors += 1
                say(f"partition {self._partition}: {error}")
            else:
                self.acked_at_s.append(time.monotonic())
            await asyncio.sleep(PACE_S)

    def last_s(self) -> float:
        """Return when the newest ack came."""
        return self.acked_at_s[-1] if self.acked_at_s else 0.0

    def longest_ms(self, start_s: float, end_s: float = math.inf) -> float:
        """The longest time between two acks that ended in this span; what goes on ends now."""
        times = [*self.acked_at_s, time.monotonic()]
        gaps = [after - before for before, after in pairwise(times) if start_s < after <= end_s]
        return 1000 * max(gaps, default=0.0)


@contextlib.asynccontextmanager
async def probes(bootstrap: str, topic: str, partitions: int) -> AsyncIterator[list[Probe]]:
    """A probe per partition, running inside the context."""
    async with Producer(bootstrap, linger_ms=1) as producer:
        found = [Probe(producer, topic, each) for each in range(partitions)]
        running = [asyncio.create_task(probe.run()) for probe in found]
        try:
            yield found
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)


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


# --- one round --------------------------------------------------------------------------------


@dataclass
class Round:
    """One victim: the longest gaps before and after it went, in ms, by role."""

    victim: int
    before_ms: dict[str, list[float]] = field(default_factory=lambda: {role: [] for role in ROLES})
    after_ms: dict[str, list[float]] = field(default_factory=lambda: {role: [] for role in ROLES})
    errors: int = 0
    whole_after_s: float = 0.0
    """From the victim's return until no copy was missing."""
    cpu: dict[str, float] = field(default_factory=dict)

    def summary(self) -> dict[str, object]:
        """Figures of this round."""
        worst = {role: round(max(gaps, default=0.0)) for role, gaps in self.after_ms.items()}
        return {
            "victim": self.victim,
            "worst_gap_ms": worst,
            "errors": self.errors,
            "whole_after_s": round(self.whole_after_s, 1),
            "cpu": self.cpu,
        }


class Bench:
    """A running cluster and how its nodes are taken away."""

    def __init__(
        self, cluster: LocalCluster, network: Network | None, options: argparse.Namespace
    ) -> None:
        self._cluster, self._network = cluster, network
        self._how: str = options.how
        self._partitions: int = options.partitions
        self._mib: int = options.mib

    async def round(self, victim: int) -> Round:
        """Fill a topic, probe it, take the victim away, bring it back."""
        bootstrap, result = self._cluster.bootstrap, Round(victim)
        topic = f"failover-{time.monotonic_ns()}"
        async with Admin(bootstrap) as admin:
            await admin.create_topic(
                topic, partitions=self._partitions, replication_factor=3, segment_bytes=1 << 30
            )
            opened = _tails(await self._when_whole(admin, topic))
            say(f"victim {victim}: filling")
            await fill(bootstrap, topic, self._partitions, self._mib)
            tails = _tails(await self._when_whole(admin, topic))
            if [each.segment_id for each in tails] != [each.segment_id for each in opened]:
                raise RuntimeError("a segment was sealed before its time")
            say(f"victim {victim}: {self._how}")
            async with probes(bootstrap, topic, self._partitions) as running:
                await asyncio.sleep(2 * BEFORE_S)
                cpu, gone_s = Cpu(), time.monotonic()
                await asyncio.to_thread(self._take_away, victim)
                await _until_settled(running, gone_s + AFTER_S[self._how])
                result.cpu = cpu.since()
                for probe, tail in zip(running, tails, strict=True):
                    role = _role(victim, tail)
                    result.before_ms[role].append(probe.longest_ms(gone_s - BEFORE_S, gone_s))
                    result.after_ms[role].append(probe.longest_ms(gone_s))
                    result.errors += probe.errors
            say(f"victim {victim}: {result.summary()['worst_gap_ms']}, waiting for all copies")
            back_s = time.monotonic()
            await asyncio.to_thread(self._bring_back, victim)
            await self._when_whole(admin, topic)
            result.whole_after_s = time.monotonic() - back_s
            await admin.delete_topic(topic, now=True)
            await self._when_gone()
        return result

    def _take_away(self, victim: int) -> None:
        match self._how:
            case "kill":
                self._cluster.kill_node(victim)
            case "stop":
                self._cluster.stop_node(victim)
            case "pause":
                self._cluster.node(victim).pause()
            case "drop":
                assert self._network is not None
                name = f"node-{victim}"
                self._network.separate([name], (each for each in self._names() if each != name))

    def _bring_back(self, victim: int) -> None:
        if self._how == "pause":
            self._cluster.node(victim).resume()
        elif self._network is not None:
            self._network.heal()
        else:
            self._cluster.start_node(victim)

    def _names(self) -> list[str]:
        return ["coordinator", *(f"node-{each}" for each in self._cluster.addresses)]

    async def _when_whole(self, admin: Admin, topic: str) -> TopicDescription:
        """The topic, once every segment has all its copies and all of them are in sync."""

        async def look() -> TopicDescription | None:
            cluster = await admin.describe_cluster()
            (found,) = await admin.describe_topics([topic])
            is_whole = not cluster.under_replicated and all(
                part.tail is not None and len(part.tail.isr) == 3 for part in found.partitions
            )
            return found if is_whole else None

        found: TopicDescription = await _wait_for(look, "copies are still missing")
        return found

    async def _when_gone(self) -> None:
        """Once the files of deleted segments are gone (or wait in the recycle pool)."""

        async def look() -> bool:
            folders = self._cluster.folder.glob("node-*/segments")
            return not any(path.is_file() for each in folders for path in each.rglob("*"))

        await _wait_for(look, "files of deleted segments are still there")


def _tails(topic: TopicDescription) -> list[Segment]:
    return [part.tail for part in topic.partitions if part.tail is not None]


def _role(victim: int, tail: Segment) -> str:
    if victim not in tail.replicas:
        return "untouched"
    return "led" if tail.leader == victim else "followed"


async def _until_settled(running: Sequence[Probe], least_s: float) -> None:
    """Until ``least_s``, and on while a partition has no ack; AFTER_S_MAX at most."""
    end_s = least_s + AFTER_S_MAX
    while (now := time.monotonic()) < end_s:
        if now >= least_s and all(now - probe.last_s() < SETTLED_S for probe in running):
            return
        await asyncio.sleep(0.1)


async def _wait_for(look: Callable[[], Any], what: str) -> Any:
    end_s = time.monotonic() + WHOLE_S_MAX
    while not (found := await look()):
        if time.monotonic() > end_s:
            raise TimeoutError(what)
        await asyncio.sleep(0.2)
    return found


# --- the machine ------------------------------------------------------------------------------


class Cpu:
    """Shares of the machine's CPU time from now on: busy, waiting for disks, taken by the host."""

    def __init__(self) -> None:
        self._start = self._ticks()

    @staticmethod
    def _ticks() -> list[int]:
        return [int(each) for each in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]

    def since(self) -> dict[str, float]:
        """Shares, and the load average."""
        now = self._ticks()
        spent = [after - before for before, after in zip(self._start, now, strict=True)]
        total = max(1, sum(spent))
        _, _, _, idle, waiting, _, _, steal = spent
        return {
            "busy": round((total - idle - waiting - steal) / total, 2),
            "iowait": round(waiting / total, 2),
            "steal": round(steal / total, 3),
            "load": round(os.getloadavg()[0], 1),
        }


def say(text: str) -> None:
    """Progress, to stderr."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


# --- all rounds -------------------------------------------------------------------------------


def percentiles(values: Sequence[float]) -> dict[str, int]:
    """Return the number, percentiles and maximum of gaps in milliseconds."""
    ordered = sorted(values)
    return {
        "gaps": len(ordered),
        "p50_ms": round(quantile(ordered, 0.5)),
        "p99_ms": round(quantile(ordered, 0.99)),
        "max_ms": round(ordered[-1]),
    }


async def measure(bench: Bench, options: argparse.Namespace) -> None:
    """All rounds, printed as they end, then the whole."""
    await asyncio.sleep(7.0)  # a coordinator's first lease: until then nobody is declared dead
    end_s = time.monotonic() + 60 * options.minutes
    rounds: list[Round] = []
    while len(rounds) < options.kills and time.monotonic() < end_s:
        done = await bench.round(len(rounds) % NODES + 1)
        rounds.append(done)
        line = {"benchmark": "failover-round", "how": options.how, **done.summary()}
        print(json.dumps(line), flush=True)
    before, after = (
        {
            role: percentiles(gaps)
            for role in ROLES
            if (gaps := [gap for each in rounds for gap in getattr(each, name)[role]])
        }
        for name in ("before_ms", "after_ms")
    )
    whole = {
        "benchmark": "failover",
        "how": options.how,
        "rounds": len(rounds),
        "partitions": options.partitions,
        "mib_per_partition": options.mib,
        "errors": sum(each.errors for each in rounds),
        "longest_gap": after,
        "longest_gap_before": before,
        "steal_max": max((each.cpu["steal"] for each in rounds), default=0.0),
        "machine": describe(Path(options.folder)),
    }
    print(json.dumps(whole))


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=3, help="rounds")
    parser.add_argument("--mib", type=int, default=64, help="MiB in each active segment")
    parser.add_argument("--partitions", type=int, default=48)
    parser.add_argument("--how", choices=tuple(AFTER_S), default="kill")
    parser.add_argument("--minutes", type=float, default=30.0, help="no round begins after that")
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="for 12 GiB of data")
    parser.add_argument("--logs", help="a folder to keep the processes' logs in")
    options = parser.parse_args()
    tune_process()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the cluster too
    with contextlib.ExitStack() as stack:
        folder = tempfile.TemporaryDirectory(prefix="icecore-failover-", dir=options.folder)
        cluster = LocalCluster(
            stack.enter_context(folder), nodes=NODES, insecure_bind=options.how == "drop"
        )
        network = None
        if options.how == "drop":
            members = [cluster.coordinator, *map(cluster.node, cluster.addresses)]
            network = stack.enter_context(Network(each.name for each in members))
            for member in members:
                network.attach(member)
        if options.logs:
            stack.callback(
                lambda: shutil.copytree(cluster.folder / "logs", options.logs, dirs_exist_ok=True)
            )
        stack.enter_context(cluster)
        asyncio.run(measure(Bench(cluster, network, options), options))


if __name__ == "__main__":
    main()
