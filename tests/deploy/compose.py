"""``docker/compose.yaml`` without Docker: each service's own command line, in a network of its own.

The images cannot be had everywhere, and their programs can. What Compose does is done here: values
of the environment are put in, a volume is a folder, and the services reach each other by their
names, in a network namespace where all ports are free. That needs root.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.charts import CACHE, CHART, ROOT

FILE = ROOT / "docker" / "compose.yaml"
DASHBOARD = json.loads((CHART / "files" / "dashboard.json").read_text())
SERVERS = ("coordinator", "coordinator-2", "node-1", "node-2", "node-3")
_VARIABLE = re.compile(r"\$\{(\w+):-([^}]*)\}")
_ASK = """
import sys, urllib.request
sys.stdout.buffer.write(urllib.request.urlopen(sys.argv[1], timeout=30).read())
"""
_BROUGHT_BY = {"etcd": "setup-etcd", "minio": "setup-minio", "prometheus": "setup-helm"}
STOP_S = 60.0
DEMO = """
import sys
from icecore.blocking import Admin, Consumer, Lookup, Producer

at, topic = "127.0.0.1:7400,127.0.0.1:7404", sys.argv[1]
with Admin(at) as admin:
    admin.create_topic(topic, partitions=3, tier="on", if_not_exists=True)
    with Producer(at) as producer:
        sent = [producer.send(topic, b"%d" % n, key=b"k%d" % (n % 9)) for n in range(500)]
        assert min(each.result(60).durable_copies for each in sent) >= 2
    admin.roll_topic(topic)
with Consumer(at, topic, start="earliest", stop_at_end=True) as consumer:
    print(len(list(consumer)))
with Lookup(at, topic) as lookup:
    assert len(lookup.find(keys=[b"k1"], max_count=5).records) == 5
"""
"""500 records in and out, and some of them by key; prints how many the topic has."""


def services(environment: Mapping[str, str] = {}) -> dict[str, dict[str, Any]]:
    """The services with the values of an environment put in."""
    text = _VARIABLE.sub(lambda match: environment.get(match[1], match[2]), FILE.read_text())
    found: dict[str, dict[str, Any]] = yaml.safe_load(text)["services"]
    return found


def volumes(service: Mapping[str, Any]) -> Iterator[tuple[str, str, bool]]:
    """(source, target, whether the source is a file of the checkout)."""
    for text in service.get("volumes", ()):
        source, target, *_ = text.split(":")
        yield source, target, source.startswith(".")


class Composed:
    """Services of the file as processes in one network namespace, with their names as hosts."""

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        self.folder = folder
        self._services = services()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        (folder / "hosts").write_text(
            "".join(f"127.0.0.1 {each}\n" for each in ("localhost", *names))
        )
        inside = (
            f"mount --bind {folder}/hosts /etc/hosts && ip link set lo up && echo up && exec cat"
        )
        self._room = subprocess.Popen(
            ["unshare", "--net", "--mount", "--propagation", "private", "sh", "-c", inside],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._room.stdout is not None and self._room.stdout.readline() == b"up\n"

    def run(self, *command: str, timeout_s: float = 120) -> str:
        """Run a program among the services. Returns what it prints."""
        done = subprocess.run(
            [*self._enter(), *command], capture_output=True, text=True, timeout=timeout_s, cwd=ROOT
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def start(self, name: str) -> None:
        """Start a service with its command, its environment and its volumes."""
        service = self._services[name]
        command = [*service.get("entrypoint", ()), *service["command"]]
        command = ["prometheus", *command] if name == "prometheus" else command
        environment = {key: str(value) for key, value in service.get("environment", {}).items()}
        for source, target, is_file in volumes(service):
            path = self.folder / ("mounted" + target if is_file else source)
            if is_file:
                path.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(FILE.parent / source, path)
            else:
                path.mkdir(exist_ok=True)
            command = [_moved(each, target, str(path)) for each in command]
            environment = {k: _moved(v, target, str(path)) for k, v in environment.items()}
        if name == "prometheus":
            command.append("--web.listen-address=127.0.0.1:9090")
        places = (Path(sys.executable).parent, CACHE, os.environ["PATH"])
        environment["PATH"] = os.pathsep.join(map(str, places))
        log = (self.folder / f"{name}.log").open("ab")
        with log:
            self._processes[name] = subprocess.Popen(
                [*self._enter(), *command],
                env={**environment, "HOME": str(self.folder)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
            )

    def _enter(self) -> list[str]:
        return ["nsenter", f"--target={self._room.pid}", "--net", "--mount", "--"]

    def stop(self, name: str, how: int = signal.SIGTERM) -> int:
        """Stop a service, as ``docker stop`` or as a loss. Returns its exit code."""
        process = self._processes.pop(name)
        process.send_signal(how)
        return process.wait(STOP_S)

    def log(self, name: str) -> str:
        """All that a service has printed."""
        return (self.folder / f"{name}.log").read_text()

    def ask(self, address: str, **parameters: str) -> bytes:
        """Get a page that a service serves."""
        query = urllib.parse.urlencode(parameters)
        command = [sys.executable, "-c", _ASK, f"http://{address}{'?' if query else ''}{query}"]
        done = subprocess.run([*self._enter(), *command], capture_output=True, timeout=60)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout

    def until_ready(self, address: str, name: str) -> None:
        """Wait for a page of a service."""
        deadline = time.monotonic() + 90
        while True:
            try:
                self.ask(address)
                return
            except AssertionError:
                ended = self._processes[name].poll()
                assert ended is None and time.monotonic() < deadline, self.log(name)
                time.sleep(0.5)

    def close(self) -> None:
        """End what still runs."""
        for process in self._processes.values():
            process.kill()
            process.wait()
        self._room.kill()
        self._room.communicate()


def _moved(text: str, target: str, path: str) -> str:
    """A path in a container as the path here."""
    return re.sub(rf"(?<![\w.])((?:{re.escape(target)})(?=[/\s]|$))", path, text)


@contextmanager
def composed(folder: Path, *, needs: Sequence[str]) -> Iterator[Composed]:
    """A room for the services. Skip the test without root, or without one of the programs."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("networks of their own need root and unshare")
    for name, brings in {
        "etcd": "setup-etcd",
        "minio": "setup-minio",
        "prometheus": "setup-helm",
    }.items():
        path = os.pathsep.join((str(CACHE), os.environ["PATH"]))
        if name in needs and shutil.which(name, path=path) is None:
            pytest.skip(f"needs {name}: make {brings} brings it")
    room = Composed(folder, (*services(), "machine"))
    try:
        yield room
    finally:
        room.close()
