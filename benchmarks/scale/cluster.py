"""Measures many partitions on a cluster of real processes. They are made in one call and left idle.
Then one node is killed, and later all are killed and started again. At last the partitions are
deleted beside a producer of another topic.

Every step ends when each partition has taken a record, for that is what users wait for. A record
for each of ten thousand partitions keeps two cores busy for four seconds when nothing fails, so how
long a failure lasts is seen by ``PROBED_MAX`` of them, evenly spread, and by the coordinator, which
tells when the last one is led; then all of them take a record.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.harness.figures import quantile
from benchmarks.harness.machine import cost_of
from benchmarks.harness.runner import progress
from benchmarks.idle import cpu_ms_per_s
from icecore import Admin, Producer
from icecore.client.cluster_types import ClusterDescription
from icecore.dev import LocalCluster
from icecore.errors import IcecoreError

TOPIC: Final = "wide"
OTHER: Final = "other"
STEP_S: Final = 0.5
OTHER_RATE_PER_S: Final = 50
PROBED_MAX: Final = 1_000
EVENTS: Final = ("node_down", "late_tick", "open_failed", "open_refused")


async def _until(
    bootstrap: str, is_so: Callable[[ClusterDescription], bool], since_s: float, within_s: float
) -> float | None:
    """Seconds from ``since_s`` until the coordinator describes the cluster so; None = too late."""
    async with Admin(bootstrap, timeout_s=30) as admin:
        while time.monotonic() - since_s < within_s:
            with contextlib.suppress(IcecoreError):
                if is_so(await admin.describe_cluster()):
                    return round(time.monotonic() - since_s, 2)
            await asyncio.sleep(STEP_S)
    return None


async def _create(cluster: LocalCluster, partitions: int, within_s: float) -> dict[str, Any]:
    began_s = time.monotonic()
    error = ""
    async with Admin(cluster.bootstrap, timeout_s=within_s) as admin:
        try:
            await admin.create_topic(TOPIC, partitions=partitions, replication_factor=3)
        except IcecoreError as failure:
            error = str(failure)[:200]
    answered_s = time.monotonic() - began_s
    online_s = await _until(
        cluster.bootstrap,
        lambda found: found.partitions >= partitions and not found.offline_partitions,
        began_s,
        within_s,
    )
    return {"answered_s": round(answered_s, 2), "online_s": online_s, "error": error}


async def _write_each(
    bootstrap: str, partitions: Sequence[int], since_s: float, within_s: float
) -> dict[str, float | None]:
    """Seconds from ``since_s`` until a record of each of these was acknowledged."""
    taken: list[float] = []

    async def one(handle: Any) -> None:
        with contextlib.suppress(IcecoreError):
            await handle
            taken.append(time.monotonic() - since_s)

    async with Producer(bootstrap, delivery_timeout_ms=int(within_s * 1000)) as producer:
        tasks = []
        for partition in partitions:
            handle = await producer.send_wait(TOPIC, b"x" * 20, partition=partition)
            tasks.append(asyncio.ensure_future(one(handle)))
        await asyncio.wait(tasks, timeout=within_s)
    return {**_spread(taken), "missing": len(partitions) - len(taken)}


async def _failover(
    bootstrap: str, partitions: int, since_s: float, within_s: float
) -> dict[str, float | None]:
    """Seconds from ``since_s``: until those probed took a record, and until all were led."""
    probed = range(0, partitions, -(-partitions // PROBED_MAX))
    writing = asyncio.ensure_future(_write_each(bootstrap, probed, since_s, within_s))
    has_failed = False

    def is_led_again(found: ClusterDescription) -> bool:
        nonlocal has_failed  # of a few it may be over before anybody looks
        has_failed = has_failed or found.offline_partitions > 0 or writing.done()
        return has_failed and not found.offline_partitions

    led_s = await _until(bootstrap, is_led_again, since_s, within_s)
    taken = await writing
    last = await _write_each(bootstrap, range(partitions), since_s, within_s)
    return {**taken, "all_led": led_s, "missing": last["missing"]}


def _spread(values: Sequence[float]) -> dict[str, float | None]:
    ordered = sorted(values)
    if not ordered:
        return {"p50": None, "p99": None, "max": None}
    return {
        "p50": round(quantile(ordered, 0.5), 4),
        "p99": round(quantile(ordered, 0.99), 4),
        "max": round(ordered[-1], 4),
    }


async def _acks_of_other(bootstrap: str, until: asyncio.Event) -> list[float]:
    """Seconds from send to ack of records of another topic, until told to stop."""
    found: list[float] = []
    tasks: set[asyncio.Task[None]] = set()

    async def one(producer: Producer) -> None:
        began_s = time.monotonic()
        await (await producer.send_wait(OTHER, b"x" * 100))
        found.append(time.monotonic() - began_s)

    async with Producer(bootstrap, linger_ms=0) as producer:
        while not until.is_set():
            task = asyncio.ensure_future(one(producer))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            await asyncio.sleep(1 / OTHER_RATE_PER_S)
        await asyncio.gather(*tasks)
    return found


async def _delete(cluster: LocalCluster, quiet_s: float) -> dict[str, Any]:
    """Acks of another topic while nothing else happens, and while all partitions are deleted."""
    result: dict[str, Any] = {}
    async with Admin(cluster.bootstrap, timeout_s=60) as admin:
        await admin.create_topic(OTHER, partitions=8, replication_factor=3)
        for name in ("quiet", "deleting"):
            until = asyncio.Event()
            acks = asyncio.ensure_future(_acks_of_other(cluster.bootstrap, until))
            await asyncio.sleep(0.5)
            if name == "deleting":
                with contextlib.suppress(IcecoreError):
                    await admin.delete_topic(TOPIC, now=True)
            await asyncio.sleep(quiet_s)
            until.set()
            result[name] = _spread(await acks)
    return result


def _costs(cluster: LocalCluster) -> dict[str, dict[str, float]]:
    return {
        name: {"cpu_s": round(cost.cpu_s, 1), "peak_mib": round(cost.peak_rss_bytes / (1 << 20))}
        for name, pid in cluster.pids.items()
        for cost in [cost_of(pid)]
    }


def _kill_all(cluster: LocalCluster, nodes: int) -> None:
    cluster.kill_coordinator()
    for node_id in range(1, nodes + 1):
        cluster.kill_node(node_id)
    cluster.stop()  # gives the folder back


def measure(folder: Path, partitions: int, steps: Sequence[str], within_s: float) -> dict[str, Any]:
    """Figures of each step.

    Args:
        folder: For data and logs.
        partitions: In one topic, RF 3, of three nodes.
        steps: Of ``create``, ``idle``, ``failover``, ``restart`` and ``delete``; the first always.
        within_s: What takes longer counts as never.
    """
    result: dict[str, Any] = {"partitions": partitions}
    with LocalCluster(folder, 3, start_timeout_s=within_s) as cluster:
        progress(f"create {partitions}")
        result["create"] = asyncio.run(_create(cluster, partitions, within_s))
        result["create"]["costs"] = _costs(cluster)
        if "idle" in steps:
            progress("idle")
            time.sleep(3)
            result["idle_cpu_ms_per_s"] = cpu_ms_per_s(cluster.pids, 8)
        if "failover" in steps:
            progress("failover")
            each = range(partitions)
            asyncio.run(_write_each(cluster.bootstrap, each, time.monotonic(), within_s))
            began_s = time.monotonic()
            cluster.kill_node(1)
            failed = _failover(cluster.bootstrap, partitions, began_s, within_s)
            result["failover_s"] = asyncio.run(failed)
            began_s = time.monotonic()
            cluster.start_node(1)
            result["node_start_s"] = round(time.monotonic() - began_s, 2)
            whole = _until(
                cluster.bootstrap, lambda found: not found.under_replicated, began_s, within_s
            )
            result["copies_back_s"] = asyncio.run(whole)
        if "restart" in steps:
            progress("restart of all")
            events = _events(cluster)
            _kill_all(cluster, 3)
            began_s = time.monotonic()
            cluster.start()
            result["ready_s"] = round(time.monotonic() - began_s, 2)
            written = _write_each(cluster.bootstrap, range(partitions), began_s, within_s)
            result["restart_s"] = asyncio.run(written)
            result["events_before_restart"] = events
        if "delete" in steps:
            progress("delete")
            result["acks_s"] = asyncio.run(_delete(cluster, 5))
        result["events"] = _events(cluster)
        result["costs"] = _costs(cluster)
    return result


def _events(cluster: LocalCluster) -> dict[str, int]:
    """Count the events of trouble in the coordinator's log since it was started."""
    log = cluster.coordinator.log_tail(1_000_000)
    return {name: log.count(f"event={name} ") for name in EVENTS}
