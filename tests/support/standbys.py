"""A cluster with several coordinators on one etcd: real processes that stand by for each other."""

import contextlib
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from icecore.dev import LocalCluster
from icecore.process import launch
from tests.support.clusters import LEASE_MS, running
from tests.support.etcd import EtcdMembers
from tests.support.ports import free_ports

SESSION_MS = 2_000
"""The shortest one that these members of etcd allow."""
_WITHIN_S = 30.0
_POLL_S = 0.05


class Coordinators:
    """Coordinators beside each other, by their numbers from 0.

    Args:
        cluster: Its nodes call all of them; it starts none of its own but number 0.
        etcd: Has their metadata.
        count: How many.
    """

    def __init__(self, cluster: LocalCluster, etcd: EtcdMembers, count: int) -> None:
        self.etcd = etcd
        ports = free_ports(2 * count)
        self.cluster = cluster
        self.addresses = [f"127.0.0.1:{port}" for port in ports[:count]]
        self._metrics = [f"127.0.0.1:{port}" for port in ports[count:]]
        self._others: dict[int, subprocess.Popen[bytes]] = {}
        cluster.coordinator.listen = self.addresses[0]
        cluster.coordinator.metrics_listen = self._metrics[0]
        for node_id in cluster.addresses:
            cluster.node(node_id).extra += ["--coordinator", self.bootstrap]

    @property
    def bootstrap(self) -> str:
        """All addresses, for clients."""
        return ",".join(self.addresses)

    def start(self, number: int, **settings: str) -> None:
        """Start a coordinator, and wait until it acts or stands by."""
        if number == 0:
            self.cluster.start_coordinator()
            return
        self.spawn(number, **settings)
        self.wait(number, ("active", "standby"))

    def spawn(self, number: int, **settings: str) -> subprocess.Popen[bytes]:
        """Start a coordinator other than number 0."""
        folder = self.cluster.folder
        flags = {"data": str(folder / f"coordinator-{number}"), **settings}
        flags["config"] = str(folder / "icecore.toml")
        flags.setdefault("listen", (*self.addresses, "")[number])
        flags.setdefault("metrics", (*self._metrics, "")[number])
        words = [word for name, value in flags.items() for word in (f"--{name}", value)]
        with self.log(number).open("ab") as log:
            self._others[number] = subprocess.Popen(
                [*launch.command("icecore_coordinator"), *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env=launch.environment("coordinator", {}),
            )
        return self._others[number]

    def refused(self, **settings: str) -> str:
        """Start one more that must end by itself: what it says last."""
        number = len(self.addresses)
        self.log(number).unlink(missing_ok=True)
        process = self.spawn(number, **settings)
        try:
            assert process.wait(_WITHIN_S) == 1
        finally:
            process.kill()
            process.wait()
        return self.log(number).read_text().splitlines()[-1]

    def log(self, number: int) -> Path:
        """Its log."""
        name = f"coordinator-{number}" if number else "coordinator"
        return self.cluster.folder / "logs" / f"{name}.log"

    def page(self, number: int, path: str = "readyz") -> str:
        """One of its pages for monitors; empty = it does not answer."""
        try:
            url = f"http://{self._metrics[number]}/{path}"
            with urllib.request.urlopen(url, timeout=2) as answer:
                found: bytes = answer.read()
        except urllib.error.HTTPError as error:
            found = error.read()
        except OSError:
            return ""
        return found.decode().strip()

    def wait(self, number: int, words: tuple[str, ...]) -> None:
        """Wait until its readiness begins with one of these words."""
        until = time.monotonic() + _WITHIN_S
        while not self.page(number).startswith(words):
            assert time.monotonic() < until, (self.page(number), self.log(number).read_text())
            time.sleep(_POLL_S)

    @property
    def active(self) -> int:
        """The one that acts."""
        until = time.monotonic() + _WITHIN_S
        while True:
            for number in range(len(self.addresses)):
                if self.page(number) == "active":
                    return number
            assert time.monotonic() < until
            time.sleep(_POLL_S)

    def send(self, number: int, signal_number: int) -> None:
        """A signal to one of them."""
        process = self._others[number] if number else self.cluster.coordinator.process
        assert process is not None
        if number == 0 and signal_number in (signal.SIGKILL, signal.SIGTERM):
            self.cluster.coordinator.expected_to_run = False
        os.kill(process.pid, signal_number)
        if signal_number in (signal.SIGKILL, signal.SIGTERM):
            process.wait(_WITHIN_S)

    def kill_others(self) -> None:
        """SIGKILL all but number 0, which ends with the cluster."""
        for process in self._others.values():
            process.kill()
            process.wait()


@contextlib.contextmanager
def running_coordinators(etcd: EtcdMembers, folder: Path, count: int) -> Iterator[Coordinators]:
    """Three nodes and so many coordinators; number 0 acts at first."""
    settings: dict[str, Any] = {
        "lease_ms": LEASE_MS,
        "etcd": {"endpoints": ",".join(etcd.endpoints), "session_ms": SESSION_MS},
    }
    cluster = LocalCluster(folder, 3, coordinator_settings=settings)
    coordinators = Coordinators(cluster, etcd, count)
    with running(cluster):
        try:
            for number in range(1, count):
                coordinators.start(number)
            yield coordinators
        finally:
            coordinators.kill_others()
