"""A network namespace per process on one bridge, so that links can be cut one way at a time.

A cut makes the receiver drop what arrives from one address, silently, as a broken switch would:
neither end is told. Needs root; names hold the pid of the run, and what a killed run left behind is
removed by the next.
"""

import os
import re
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Self

from icecore.process.members import Member
from tests.chaos.links import COORDINATORS, Links
from tests.support.etcd import EtcdPlace

_NAMESPACES = Path("/run/netns")
_PREFIX = "icechaos"
_CUT_PRIORITY = "1"
_PORT = 7400
"""The port of each process: every port of its own namespace is free."""
_METRICS_PORT = 7500


class NetworkError(Exception):
    """The kernel or the tools refuse."""


def _ip(*arguments: str) -> str:
    try:
        done = subprocess.run(["ip", *arguments], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NetworkError(f"ip {' '.join(arguments)}: {error}") from error
    if done.returncode:
        raise NetworkError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def _ip_if_possible(*arguments: str) -> None:
    """For clearing up: what is gone already is no failure."""
    subprocess.run(["ip", *arguments], capture_output=True, timeout=20)


class Network(Links):
    """Namespaces for ``names``; use as a context manager.

    Args:
        names: Of the processes, at most 200.
    """

    insecure_bind = True

    def __init__(self, names: Iterable[str]) -> None:
        self._names = list(names)
        self._pid = os.getpid()
        self._bridge = f"icc{self._pid}"
        self._net = ""
        self._cuts: set[tuple[str, str]] = set()

    def __enter__(self) -> Self:
        _sweep()
        try:
            self._create()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._remove()

    @property
    def host(self) -> str:
        """See ``Links.host``: the bridge."""
        return f"{self._net}.1"

    def attach(self, member: Member) -> None:
        """See ``Links.attach``: it gets its namespace."""
        member.listen = f"{self.address(member.name)}:{_PORT}"
        member.prefix = self.prefix(member.name)
        if member.name in COORDINATORS:
            member.metrics_listen = f"{self.address(member.name)}:{_METRICS_PORT}"

    def place(self, name: str, pid: Callable[[], int]) -> EtcdPlace:
        """See ``Links.place``."""
        client, peer, metrics = (f"{self.address(name)}:{port}" for port in (2379, 2380, 2381))
        return EtcdPlace(client, peer, metrics, client, peer, tuple(self.prefix(name)))

    def address(self, name: str) -> str:
        """The IP address of a process."""
        return f"{self._net}.{10 + self._names.index(name)}"

    def prefix(self, name: str) -> list[str]:
        """The command that runs what follows it in the namespace of a process."""
        return ["nsenter", f"--net={_NAMESPACES / self._namespace(name)}"]

    def _namespace(self, name: str) -> str:
        return f"{_PREFIX}-{self._pid}-{name}"

    def _link(self, number: int) -> str:
        return f"{self._bridge}v{number}"

    def _create(self) -> None:
        taken = _ip("-4", "route")
        numbers = ((self._pid + step) % 250 for step in range(250))
        self._net = next(
            net for number in numbers if (net := f"10.231.{number + 1}") + "." not in taken
        )
        _ip("link", "add", self._bridge, "type", "bridge")
        _ip("addr", "add", f"{self._net}.1/24", "dev", self._bridge)
        _ip("link", "set", self._bridge, "up")
        for number, name in enumerate(self._names):
            namespace, link = self._namespace(name), self._link(number)
            _ip("netns", "add", namespace)
            _ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", namespace)
            _ip("link", "set", link, "master", self._bridge, "up")
            inside = ("-n", namespace)
            _ip(*inside, "link", "set", "lo", "up")
            _ip(*inside, "addr", "add", f"{self.address(name)}/24", "dev", "eth0")
            _ip(*inside, "link", "set", "eth0", "up")
            # Cuts are looked up before the table of the own addresses, which else comes first.
            _ip(*inside, "rule", "add", "priority", "10", "lookup", "local")
            _ip(*inside, "rule", "del", "priority", "0", "lookup", "local")

    def _remove(self) -> None:
        for number, name in enumerate(self._names):
            # A namespace goes some time after its name, its end of a link at once.
            _ip_if_possible("link", "del", self._link(number))
            _ip_if_possible("netns", "del", self._namespace(name))
        _ip_if_possible("link", "del", self._bridge)
        self._cuts.clear()

    # --- faults ---------------------------------------------------------------------------------

    def cut(self, source: str, target: str) -> None:
        """See ``Links.cut``."""
        if (source, target) not in self._cuts:
            self._cuts.add((source, target))
            self._rule("add", source, target)

    def heal(self) -> None:
        """See ``Links.heal``."""
        for source, target in sorted(self._cuts):
            self._rule("del", source, target)
        self._cuts.clear()

    def _rule(self, action: str, source: str, target: str) -> None:
        what = ("from", self.address(source), "priority", _CUT_PRIORITY, "blackhole")
        _ip("-n", self._namespace(target), "rule", action, *what)


def _sweep() -> None:
    """Remove namespaces and bridges of runs that are no more."""
    if not _NAMESPACES.is_dir():
        return
    for path in _NAMESPACES.iterdir():
        match = re.fullmatch(rf"{_PREFIX}-(\d+)-.+", path.name)
        if match and not Path(f"/proc/{match[1]}").exists():
            _ip_if_possible("netns", "del", path.name)
            _ip_if_possible("link", "del", f"icc{match[1]}")


def why_impossible() -> str:
    """Return why namespaces can't be made here; empty when they can."""
    try:
        with Network(["probe", "other"]) as network:
            network.cut("probe", "other")
            command = [*network.prefix("probe"), "true"]
            subprocess.run(command, check=True, capture_output=True, timeout=20)
    except (NetworkError, OSError, subprocess.SubprocessError) as error:
        return str(error)
    return ""
