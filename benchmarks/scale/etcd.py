"""Measures coordinators that stand by for each other, over very many sealed segments in etcd.

One member of etcd and two coordinators are real processes; there is no node. The records are those
of ``scale_metadata``. Nodes count as up for the whole measurement, so what a coordinator does is
what it does while nothing happens.
"""

import asyncio
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, Final

from benchmarks.harness.machine import cost_of, rss_bytes
from benchmarks.harness.runner import progress
from benchmarks.idle import cpu_ms_per_s
from benchmarks.scale.metadata import records_of
from icecore.process.system import SystemRng
from icecore_coordinator.config import EtcdSettings
from icecore_coordinator.state.record_json import encode
from icecore_coordinator.state.records import Record
from icecore_coordinator.stores.etcd_client import EtcdClient
from icecore_coordinator.stores.etcd_layout import RECORDS
from icecore_coordinator.stores.etcd_messages import put
from icecore_coordinator.stores.etcd_store import EtcdStore
from tests.support.etcd import EtcdMembers, running_members
from tests.support.ports import free_ports

QUOTA: Final = "--quota-backend-bytes=8589934592"
ROWS_PER_CALL: Final = 100
CALLS: Final = 8
QUIET_S: Final = 10.0
STAY_UP_MS: Final = 3_600_000
WITHIN_S: Final = 600.0
ATTEMPT_MS: Final = 20_000
"""A busy machine is no reason to give up a member; sessions are as short as ever."""
_STEP_S: Final = 0.05


def measure(folder: Path, segments: int, partitions: int) -> dict[str, Any]:
    """Seconds and memory of a start, of a standby and of its take-overs; bytes in etcd."""
    with running_members(folder / "etcd", 1, [QUOTA]) as etcd:
        progress(f"put records of {segments} segments into etcd")
        began_s = time.monotonic()
        asyncio.run(_fill(etcd.endpoints[0], records_of(segments, partitions)))
        filled_s = time.monotonic() - began_s
        stored = database_bytes(etcd.metrics[0])
        with _Pair(folder, etcd) as pair:
            found = _lives(pair)
    return {
        "segments": segments,
        "partitions": partitions,
        "filled_s": round(filled_s, 1),
        "etcd_mib": round(stored / (1 << 20)),
        "etcd_bytes_per_segment": round(stored / segments),
        **found,
    }


def _lives(pair: "_Pair") -> dict[str, Any]:
    progress("start the first coordinator")
    first = pair.start("a")
    started = first.wait_for("started")
    result: dict[str, Any] = {
        "start_s": _seconds(first.wait_for("elected"), started),
        "start_cpu_s": round(cost_of(first.pid).cpu_s, 1),
    }
    time.sleep(QUIET_S)  # memory that a start needed is given back
    result["coordinator_mib"] = _mib(first)
    result["quiet_cpu_ms_per_s"] = cpu_ms_per_s({"a": first.pid}, QUIET_S)["a"]
    progress("start a standby")
    began_s = time.monotonic()
    second = pair.start("b")
    second.wait_for("metadata_followed")
    result["followed_s"] = round(time.monotonic() - began_s, 1)
    time.sleep(QUIET_S)
    result["standby_mib"] = _mib(second)
    result["standby_cpu_ms_per_s"] = cpu_ms_per_s({"b": second.pid}, QUIET_S)["b"]
    for name, number in (("stopped", signal.SIGTERM), ("killed", signal.SIGKILL)):
        progress(f"the active coordinator is {name}")
        active, standby = (first, second) if name == "stopped" else (second, first)
        seen = standby.count("started")
        ended = datetime.now().astimezone()
        active.end(number)
        serving = standby.wait_for("started", seen)
        elected = standby.wait_for("elected", standby.count("elected") - 1)
        result[f"take_over_{name}_s"] = _seconds(ended, serving)
        result[f"take_over_{name}_from_election_s"] = _seconds(elected, serving)
        result[f"take_over_{name}_mib"] = _mib(standby)
        if name == "stopped":
            first = pair.start("a2")
            first.wait_for("metadata_followed")
    return result


async def _fill(endpoint: str, records: Iterator[Record]) -> None:
    """As a coordinator stores them, many calls at a time."""
    settings = EtcdSettings(endpoints=endpoint, attempt_ms=ATTEMPT_MS, timeout_ms=10 * ATTEMPT_MS)
    store, client = EtcdStore(settings, SystemRng()), EtcdClient(settings)
    await store.acquire_coordinator_epoch()
    prefix = settings.prefix.encode() + RECORDS

    async def put_some() -> None:
        while rows := list(islice(records, ROWS_PER_CALL)):
            operations = [
                put(prefix + each.key.encode(), f"{each.version} {encode(each)}".encode())
                for each in rows
            ]
            await client.txn([], operations, [])

    await asyncio.gather(*(put_some() for _ in range(CALLS)))
    await store.close()
    await client.close()


def database_bytes(metrics: str) -> int:
    """Bytes that a member of etcd has in use, by its own metrics."""
    name = "etcd_mvcc_db_total_size_in_use_in_bytes"
    with urllib.request.urlopen(f"{metrics}/metrics", timeout=5) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith(f"{name} "):
                return round(float(line.split()[1]))
    raise LookupError(name)


class _Member:
    """One coordinator process, and what its log says."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self._log = log
        with log.open("wb") as file:
            self._process = subprocess.Popen(command, stdout=file, stderr=file)
        self.pid = self._process.pid

    def _times(self, event: str) -> list[datetime]:
        found = re.findall(rf"^(\S+) .*\bevent={event}\b", self._log.read_text(), re.MULTILINE)
        return [datetime.fromisoformat(each.replace("Z", "+00:00")) for each in found]

    def count(self, event: str) -> int:
        """Return how often it happened."""
        return len(self._times(event))

    def wait_for(self, event: str, seen: int = 0) -> datetime:
        """The time of an event, the first one after so many."""
        until = time.monotonic() + WITHIN_S
        while len(times := self._times(event)) <= seen:
            alive = self._process.poll() is None and time.monotonic() < until
            assert alive, self._log.read_text()[-3000:]
            time.sleep(_STEP_S)
        return times[seen]

    def end(self, number: signal.Signals) -> None:
        """Let it end by a signal, as it likes."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.wait()


class _Pair:
    """Coordinators on one etcd, each on a folder of its own; they end with the block."""

    def __init__(self, folder: Path, etcd: EtcdMembers) -> None:
        self._folder, self._members = folder, list[_Member]()
        self._config = folder / "coordinator.toml"
        self._config.write_text(
            f"[coordinator]\nlease_ms = {STAY_UP_MS}\n\n"
            f'[coordinator.etcd]\nendpoints = "{etcd.endpoints[0]}"\n'
            f"attempt_ms = {ATTEMPT_MS}\ntimeout_ms = {10 * ATTEMPT_MS}\n"
        )

    def start(self, name: str) -> _Member:
        """Start one more."""
        [port] = free_ports(1)
        command = [sys.executable, "-m", "icecore_coordinator", "--config", str(self._config)]
        command += ["--data", str(self._folder / name), "--listen", f"127.0.0.1:{port}"]
        member = _Member(command, self._folder / f"{name}.log")
        self._members.append(member)
        return member

    def __enter__(self) -> "_Pair":
        return self

    def __exit__(self, *_: object) -> None:
        for member in self._members:
            member.kill()


def _seconds(begin: datetime, end: datetime) -> float:
    return round((end - begin).total_seconds(), 2)


def _mib(member: _Member) -> int:
    return round(rss_bytes(member.pid) / (1 << 20))
