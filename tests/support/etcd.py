"""Real etcd servers for tests and benchmarks, on loopback, each ended by its own pid.

A program is looked for in the cache that ``make setup-etcd`` fills, in PATH, and where Go installs
programs. Where there is none and Docker runs, one member runs in a container (testcontainers).
Tests that need a server are left out without either.
"""

import base64
import contextlib
import importlib.util
import json
import os
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest

from icecore_coordinator.stores import etcd_messages
from tests.support import left_out
from tests.support.ports import free_ports

IMAGE = "quay.io/coreos/etcd:v3.6.16"
_READY_S = 30.0
_POLL_S = 0.05


def etcd_program() -> str | None:
    """Return the path of the etcd program; None = it is not installed."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "icecore"
    of_go = Path(os.environ.get("GOBIN") or Path.home() / "go" / "bin")
    places = os.pathsep.join((str(cache), os.environ.get("PATH", ""), str(of_go)))
    return shutil.which("etcd", path=places)


def docker_runs() -> bool:
    """Return whether a container could be started here, by testcontainers."""
    if importlib.util.find_spec("testcontainers") is None or shutil.which("docker") is None:
        return False
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        asked = subprocess.run(["docker", "info"], capture_output=True, timeout=5)
        return asked.returncode == 0
    return False


NEEDS_ETCD = pytest.mark.skipif(
    etcd_program() is None and not docker_runs(),
    reason=left_out.reason("etcd", "make setup-etcd"),
)
"""One member is enough."""
NEEDS_MEMBERS = pytest.mark.skipif(
    etcd_program() is None, reason=left_out.reason("etcd", "make setup-etcd")
)
"""Processes that a test may kill and stop."""


def _state_of(task: Path) -> str:
    """Return the state of a thread, as the kernel names it; T = stopped."""
    return (task / "stat").read_text().rpartition(")")[2].split()[0]


def as_text(value: bytes) -> str:
    """Bytes as the JSON gateway wants them."""
    return base64.b64encode(value).decode()


@dataclass(frozen=True, slots=True)
class EtcdPlace:
    """Addresses of a member, ``HOST:PORT`` each: where it listens, and where others reach it."""

    client_listen: str
    peer_listen: str
    metrics_listen: str
    client: str
    peer: str
    prefix: tuple[str, ...] = ()
    """In front of the program: a command that ends in exec, such as ``nsenter``."""


def loopback_places(count: int) -> list[EtcdPlace]:
    """Free ports of this machine for so many members."""
    ports = iter(free_ports(3 * count))
    found = []
    for _ in range(count):
        client, peer, metrics = (f"127.0.0.1:{next(ports)}" for _ in range(3))
        found.append(EtcdPlace(client, peer, metrics, client, peer))
    return found


class EtcdMembers:
    """Members of one etcd cluster, each a process of ours.

    Args:
        folder: Of their data and logs.
        places: Of each member.
        flags: For each of them.
        scheme: ``https`` where the flags say so; clients' side only.
    """

    def __init__(
        self,
        folder: Path,
        places: Sequence[EtcdPlace],
        flags: Sequence[str] = (),
        scheme: str = "http",
    ) -> None:
        program = etcd_program()
        assert program is not None
        self._folder, self._program, self._flags = folder, program, list(flags)
        self._scheme, self._places = scheme, list(places)
        self._metrics = [f"http://{each.metrics_listen}" for each in places]
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def endpoints(self) -> list[str]:
        """``HOST:PORT`` of each member."""
        return [each.client for each in self._places]

    @property
    def metrics(self) -> list[str]:
        """URL of each member's metrics and health."""
        return list(self._metrics)

    def pid(self, number: int) -> int:
        """Process id of a member; 0 while it does not run."""
        process = self._processes.get(number)
        return process.pid if process is not None and process.poll() is None else 0

    def start(self) -> "EtcdMembers":
        """Start all, wait until each has a leader."""
        for number in range(len(self._places)):
            self.start_member(number)
        for number in range(len(self._places)):
            self.wait_ready(number)
        return self

    def start_member(self, number: int) -> None:
        """Start one, again on its folder, without a wait."""
        place, scheme = self._places[number], self._scheme
        initial = ",".join(f"m{i}=http://{each.peer}" for i, each in enumerate(self._places))
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / f"m{number}.log").open("ab") as log:
            self._processes[number] = subprocess.Popen(
                [
                    *place.prefix,
                    self._program,
                    *(f"--name=m{number}", f"--data-dir={self._folder / f'm{number}'}"),
                    f"--listen-client-urls={scheme}://{place.client_listen}",
                    f"--advertise-client-urls={scheme}://{place.client}",
                    f"--listen-peer-urls=http://{place.peer_listen}",
                    f"--initial-advertise-peer-urls=http://{place.peer}",
                    *(f"--initial-cluster={initial}", "--log-level=error"),
                    f"--listen-metrics-urls={self._metrics[number]}",
                    *("--heartbeat-interval=100", "--election-timeout=1000", *self._flags),
                ],
                stdout=log,
                stderr=log,
            )

    def wait_ready(self, number: int) -> None:
        """Wait until a member answers and knows a leader."""
        until = time.monotonic() + _READY_S
        while not self._is_healthy(number):
            process = self._processes[number]
            assert process.poll() is None, (self._folder / f"m{number}.log").read_text()
            assert time.monotonic() < until, (self._folder / f"m{number}.log").read_text()
            time.sleep(_POLL_S)

    def _is_healthy(self, number: int) -> bool:
        try:
            with urllib.request.urlopen(f"{self._metrics[number]}/health", timeout=1) as answer:
                return bool(json.load(answer)["health"] == "true")
        except urllib.error.HTTPError as error:
            return b"NOSPACE" in error.read()  # an alarm, but the member is up
        except OSError:
            return False

    def post(self, path: str, body: dict[str, object], member: int = 0, token: str = "") -> bytes:
        """Ask etcd's JSON gateway, such as ``/v3/auth/enable``; for whoever administers etcd."""
        url = f"{self._scheme}://{self.endpoints[member]}{path}"
        request = urllib.request.Request(url, json.dumps(body).encode())
        if token:
            request.add_header("Authorization", token)
        with urllib.request.urlopen(request, timeout=30) as answer:
            found: bytes = answer.read()
        return found

    def fill(self) -> None:
        """Put junk until a member is over its quota: the alarm NOSPACE."""
        junk = {"key": as_text(b"junk"), "value": as_text(b"x" * (1 << 20))}
        for _ in range(20):
            try:
                self.post("/v3/kv/put", junk)
            except urllib.error.HTTPError as error:
                assert b"space exceeded" in error.read()
                return
        raise AssertionError("the quota is larger than all this junk")

    def make_room(self) -> None:
        """The three commands of a person: shorten the history, defragment, clear the alarm."""
        newest = json.loads(self.post("/v3/kv/range", {"key": as_text(b"junk")}))["header"]
        compaction = {"revision": newest["revision"], "physical": True}
        self.post("/v3/kv/compaction", compaction)
        for number in range(len(self._places)):
            self.post("/v3/maintenance/defragment", {}, number)
        alarms = json.loads(self.post("/v3/maintenance/alarm", {"action": "GET"}))
        for alarm in alarms.get("alarms", ()):
            self.post("/v3/maintenance/alarm", {"action": "DEACTIVATE", **alarm})

    def kill(self, number: int) -> None:
        """SIGKILL."""
        self._processes[number].kill()
        self._processes[number].wait()

    def pause(self, number: int) -> None:
        """SIGSTOP: its connections stay, nothing is answered from now on."""
        process = self._processes[number]
        process.send_signal(signal.SIGSTOP)
        tasks = Path(f"/proc/{process.pid}/task")
        while any(_state_of(each) != "T" for each in tasks.iterdir()):  # it may be in mid-answer
            time.sleep(0.001)

    def resume(self, number: int) -> None:
        """SIGCONT after ``pause``."""
        self._processes[number].send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """End all of them at once."""
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait()


@contextlib.contextmanager
def running_members(
    folder: Path, count: int, flags: Sequence[str] = (), scheme: str = "http"
) -> Iterator[EtcdMembers]:
    """Members of a new cluster; they end with the block."""
    members = EtcdMembers(folder, loopback_places(count), flags, scheme)
    try:
        yield members.start()
    finally:
        members.stop()


@contextlib.contextmanager
def running_etcd(folder: Path) -> Iterator[str]:
    """One member, as a process or in a container: its ``HOST:PORT``."""
    if etcd_program() is not None:
        with running_members(folder, 1) as members:
            yield members.endpoints[0]
        return
    from testcontainers.core.container import DockerContainer

    url = "http://0.0.0.0:2379"
    command = f"etcd --listen-client-urls={url} --advertise-client-urls={url}"
    with DockerContainer(IMAGE).with_command(command).with_exposed_ports(2379) as container:
        endpoint = f"{container.get_container_host_ip()}:{container.get_exposed_port(2379)}"
        _wait_for_container(f"http://{endpoint}/health")
        yield endpoint


def _wait_for_container(url: str) -> None:
    until = time.monotonic() + _READY_S
    while True:
        try:
            with urllib.request.urlopen(url, timeout=1):
                return
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(_POLL_S)


@contextlib.asynccontextmanager
async def old_etcd(version: str) -> AsyncIterator[str]:
    """Yield ``HOST:PORT`` of a server that says that it is an etcd of this version. It stands in
    for an old etcd, which is not to be had."""

    async def status(request: bytes, context: Any) -> bytes:
        answer = etcd_messages.StatusResponse(version=version)
        answer.header.cluster_id = 1
        return bytes(answer.SerializeToString())

    server = grpc.aio.server()
    handler = grpc.unary_unary_rpc_method_handler(status)
    handlers = grpc.method_handlers_generic_handler("etcdserverpb.Maintenance", {"Status": handler})
    server.add_generic_rpc_handlers((handlers,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)
