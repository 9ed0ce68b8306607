"""Attacks a cluster as a hostile client would, and measures how a neighbour's calls suffer.

    python -m benchmarks.abuse [--only rapid-reset polls] [--seconds 4]

Three nodes, RF 3. One attack after the other comes from a process of its own, while a neighbour
produces 200 records a second to the attacked node, half of them over each transport, and asks the
coordinator for metadata. stdout gets one JSON line per attack: whether the processes live and keep
their lease, memory before, at its peak and after, and the neighbour's errors, p99 and longest time
without service. ``faults`` says what is not as it should be.
"""

import argparse
import asyncio
import contextlib
import json
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.attacks import calls, frames
from benchmarks.attacks.neighbour import Neighbour
from benchmarks.harness.lifetime import exit_with
from benchmarks.harness.machine import describe, rss_bytes
from benchmarks.harness.runner import progress
from icecore import Admin
from icecore.dev import LocalCluster
from icecore.errors import IcecoreError
from icecore.rpc.addresses import native
from icecore.rpc.transports import Transports
from icecore.v1 import admin_pb2, data_pb2

ATTACKS = {**frames.ATTACKS, **calls.ATTACKS}
RSS_GROWTH_BYTES_MAX = 64 << 20
OUTAGE_S_MAX = 1.0
QUIET_S = 1.0
AFTER_S = 2.0
"""How long the neighbour is watched when the attack is over."""
CALM_AGAIN_S = 30.0
"""Seconds within which memory must be back at its level from before the attack."""
_SAMPLE_S = 0.05
_BOMBS = 24


@dataclass(slots=True)
class Finding:
    """The result of one attack."""

    attack: str
    sent: str = ""
    died: list[str] = field(default_factory=list)
    nodes_down: int = 0
    rss_mib: tuple[int, int, int] = (0, 0, 0)
    """Resident memory of the attacked process in MiB: before, at the peak, after."""
    errors: dict[str, int] = field(default_factory=dict)
    calls: int = 0
    unsent: int = 0
    """Number of calls that the neighbour left out because too many were waiting."""
    outage_s: dict[str, float] = field(default_factory=dict)
    p99_ms: dict[str, float] = field(default_factory=dict)

    @property
    def faults(self) -> list[str]:
        """Return a line for each result that breaks a limit."""
        grown = (self.rss_mib[2] - self.rss_mib[0]) << 20
        found = [f"{each} died" for each in self.died]
        if self.nodes_down:
            found.append(f"nodes were down {self.nodes_down} times")
        if grown > RSS_GROWTH_BYTES_MAX:
            found.append(f"{grown >> 20} MiB more than before")
        if self.errors:
            found.append(f"{sum(self.errors.values())} of {self.calls} calls failed")
        found += [
            f"{each_s:.1f} s without {kind}"
            for kind, each_s in self.outage_s.items()
            if each_s > OUTAGE_S_MAX
        ]
        return found


class Stage:
    """A cluster with what attacks need; ``open_stage`` makes it."""

    def __init__(self, cluster: LocalCluster, addresses: dict[str, str], victim: str) -> None:
        self._cluster = cluster
        self._addresses = addresses
        self._victim = victim
        """The node that is attacked, by its name as a process."""

    @property
    def targets(self) -> list[str]:
        """Addresses to which the neighbour produces."""
        return [self._addresses["node"], native(self._addresses["native"])]

    async def run(self, name: str, seconds: float) -> Finding:
        """One attack, and the time after it."""
        whom, _ = ATTACKS[name]
        pid = self._cluster.pids["coordinator" if whom == "coordinator" else self._victim]
        finding, downs = Finding(name), self._downs()
        async with Neighbour(self._cluster.bootstrap, self.targets, calls.TOPIC, 0) as neighbour:
            await asyncio.sleep(QUIET_S)
            neighbour.forget()
            before, peak = rss_bytes(pid), 0
            began_s = time.monotonic()
            attacker = await self._attack(name, seconds)
            kill_s, watched_until_s = began_s + 3 * seconds + 20, began_s
            while (now_s := time.monotonic()) < watched_until_s or attacker.returncode is None:
                if attacker.returncode is None:
                    watched_until_s = now_s + AFTER_S
                    if now_s > kill_s:
                        attacker.kill()
                peak = max(peak, rss_bytes(pid) if not self._cluster.dead() else 0)
                await asyncio.sleep(_SAMPLE_S)
            assert attacker.stdout is not None
            finding.sent = (await attacker.stdout.read()).decode().strip()
            for kind, seen in neighbour.seen.items():
                finding.calls += seen.calls
                finding.unsent += seen.unsent
                finding.outage_s[kind] = round(seen.outage_s(began_s, watched_until_s), 2)
                finding.p99_ms[kind] = seen.p99_ms()
                for reason, count in seen.errors.items():
                    finding.errors[f"{kind}: {reason}"] = count
        finding.died = [each.name for each in self._cluster.dead()]
        finding.nodes_down = self._downs() - downs
        if not finding.died:
            after = await self._calm(pid, before + RSS_GROWTH_BYTES_MAX)
            finding.rss_mib = (before >> 20, peak >> 20, after >> 20)
        return finding

    async def _attack(self, name: str, seconds: float) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "benchmarks.attacks"),
            *(name, self._addresses[ATTACKS[name][0]], str(seconds)),
            stdout=asyncio.subprocess.PIPE,
        )

    async def _calm(self, pid: int, bytes_max: int) -> int:
        """Memory when it is back, or when that takes too long."""
        until_s = time.monotonic() + CALM_AGAIN_S
        now = rss_bytes(pid)
        while now > bytes_max and time.monotonic() < until_s:
            await asyncio.sleep(_SAMPLE_S)
            now = rss_bytes(pid)
        return now

    def _downs(self) -> int:
        return self._cluster.coordinator.log_path.read_text().count("event=node_down")


@contextlib.asynccontextmanager
async def open_stage(cluster: LocalCluster) -> AsyncIterator[Stage]:
    """Topics, and the addresses of the node that leads the neighbour's partition."""
    async with Admin(cluster.bootstrap) as admin:
        for topic in (calls.TOPIC, calls.BOMBS):
            await admin.create_topic(topic, partitions=1, replication_factor=3)
    net = Transports()
    try:
        info = await _leader(net, cluster.bootstrap, calls.TOPIC)
        bombs = await _leader(net, cluster.bootstrap, calls.BOMBS)
        body = calls.produce_of(calls.BOMBS, [calls.big_batch()] * _BOMBS)
        answer = await net.call(
            bombs.address, "/icecore.v1.DataService/Produce", body, timeout_s=60
        )
        results = data_pb2.ProduceResponse.FromString(bytes(answer)).partitions
        assert not any(each.error.reason for each in results), results
    finally:
        await net.close()
    addresses = {
        "node": info.address,
        "native": info.native_address,
        "coordinator": cluster.bootstrap,
    }
    yield Stage(cluster, addresses, f"node-{info.node_id}")


async def _leader(net: Transports, bootstrap: str, topic: str) -> Any:
    request = admin_pb2.GetMetadataRequest(topics=[topic]).SerializeToString()
    async with asyncio.timeout(30):
        while True:
            with contextlib.suppress(IcecoreError):
                method = "/icecore.v1.AdminService/GetMetadata"
                body = await net.call(bootstrap, method, request, timeout_s=5)
                found = admin_pb2.GetMetadataResponse.FromString(bytes(body))
                leader = found.topics[0].partitions[0].leader
                if leader:
                    return next(each for each in found.nodes if each.node_id == leader)
            await asyncio.sleep(0.05)


async def _run(cluster: LocalCluster, options: argparse.Namespace) -> int:
    bad = 0
    async with open_stage(cluster) as stage:
        for name in options.only or ATTACKS:
            progress(name)
            finding = await stage.run(name, options.seconds)
            bad += bool(finding.faults)
            fields = {each: getattr(finding, each) for each in Finding.__slots__}
            print(json.dumps({**fields, "faults": finding.faults}), flush=True)
            if finding.died:
                break
    return int(bad > 0)


def main() -> int:
    """Entry point; the status is 1 when something was not as it should be."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", choices=ATTACKS, metavar="ATTACK")
    parser.add_argument("--seconds", type=float, default=4.0, help="of each attack")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="icecore-abuse-", dir=options.folder) as folder:
        print(json.dumps({"benchmark": "abuse", "machine": describe(options.folder)}))
        with LocalCluster(Path(folder), 3) as cluster:
            return asyncio.run(_run(cluster, options))


if __name__ == "__main__":
    exit_with(main)
