"""A cluster on this machine: one coordinator and N nodes as child processes of this one.

``icecore dev``, the demo, the benchmarks and the cluster tests share it. Everything lives in one
folder, and stays there: ``coordinator/``, ``node-1/`` …, ``logs/`` and ``icecore.toml`` when
settings were given. Nothing is restarted unless asked for, and processes are known by pid only.
No asyncio and no threads, so that any program can hold one.
"""

import contextlib
import fcntl
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from icecore import extras
from icecore.client import checks
from icecore.errors import ConfigurationError, UnavailableError
from icecore.process import launch, members
from icecore.process.launch import ServerSettings
from icecore.process.members import Member
from icecore.process.system import opening
from icecore.rpc.addresses import PORT_MAX, bare_host, is_wildcard, join_address, split_address

HOST = "127.0.0.1"
METRICS_PORT_OFFSET = 100
NODES_MAX = 99
"""With more of them, ports would be those of metrics."""
_POLL_S = 0.02
_DISK_SETTING = "disk_free_bytes_min"


class LocalCluster:
    """One coordinator and ``nodes`` nodes. Use as a context manager, or call start and stop.

    Args:
        folder: Where everything is kept; made if absent. Starting again on the same folder is
            starting the same cluster again.
        nodes: How many; their ids are 1 … nodes.
        base_port: The coordinator's port, the nodes take the next ones. None = any free ports.
        node_settings: For all nodes, as in the ``[node]`` table of a configuration file; they also
            win over variables of the environment.
        coordinator_settings: Likewise for the coordinator.
        config_path: A configuration file for all processes; not together with settings.
        host: Name or IP address to listen on.
        advertise: Name or IP address that clients and processes connect to; empty = ``host``.
            Nodes have no native port then, so ``base_port`` and the next ones are all there are.
        insecure_bind: Allow a ``host`` that is not loopback.
        tier_url: Object store of all nodes; empty = as the configuration says.
        with_metrics: Serve metrics, at ``base_port + 100``, and ``+ node id`` of nodes.
        start_timeout_s: How long a process may take to become ready.
        stop_timeout_s: How long one may take to end after SIGTERM before it is killed.

    Raises:
        TypeError, ConfigurationError: An argument is of a wrong type or out of range.
    """

    def __init__(
        self,
        folder: str | Path,
        nodes: int = 3,
        *,
        base_port: int | None = None,
        node_settings: ServerSettings | None = None,
        coordinator_settings: ServerSettings | None = None,
        config_path: str | Path | None = None,
        host: str = HOST,
        advertise: str = "",
        insecure_bind: bool = False,
        tier_url: str = "",
        with_metrics: bool = False,
        start_timeout_s: float = 30.0,
        stop_timeout_s: float = 15.0,
    ) -> None:
        _check_paths(folder, config_path)
        _check_ports(nodes, base_port)
        for name, settings in (("node", node_settings), ("coordinator", coordinator_settings)):
            if settings is not None and not isinstance(settings, Mapping):
                raise checks.wrong_type(f"{name}_settings", settings, "a mapping")
        checks.text("host", host)
        checks.text("advertise", advertise)
        _check_hosts(host, advertise)
        checks.flag("insecure_bind", insecure_bind)
        checks.text("tier_url", tier_url)
        checks.flag("with_metrics", with_metrics)
        checks.duration("start_timeout_s", start_timeout_s, 0)
        checks.duration("stop_timeout_s", stop_timeout_s, 0)
        self.folder = Path(os.path.realpath(folder))
        self.start_timeout_s = start_timeout_s
        self.stop_timeout_s = stop_timeout_s
        self._lock: IO[str] | None = None
        self._ports: list[socket.socket] = []
        self._advertised = advertise
        self._settings = {"node": node_settings or {}, "coordinator": coordinator_settings or {}}
        self._common: list[str] = ["--insecure-bind"] if insecure_bind else []
        is_ours = config_path is None
        if node_settings or coordinator_settings:
            if config_path is not None:
                raise ConfigurationError("give settings or a configuration file, not both")
            config_path = self.folder / "icecore.toml"
        if config_path is not None:
            self._common += ["--config", str(Path(config_path).resolve())]

        def member(name: str, module: str, number: int) -> Member:
            port = 0 if base_port is None else base_port + number
            arguments = [*launch.command(module), "--data", str(self.folder / name)]
            log_path = self.folder / "logs" / f"{name}.log"
            return Member(name, arguments, join_address(host, port), log_path)

        self.coordinator = member("coordinator", "icecore_coordinator", 0)
        self._nodes = {i: member(f"node-{i}", "icecore_node", i) for i in range(1, nodes + 1)}
        if with_metrics and base_port is not None:
            self.coordinator.metrics_listen = join_address(host, base_port + METRICS_PORT_OFFSET)
        for i, node in self._nodes.items():
            node.extra = ["--node-id", str(i)]
            if is_ours and _DISK_SETTING not in (node_settings or {}):
                # On a laptop a nearly full disk is no reason to refuse data.
                node.extra += ["--disk-free-bytes-min", "1GiB"]
            if tier_url:
                node.extra += ["--tier-url", tier_url]
            if with_metrics and base_port is not None:
                node.metrics_listen = join_address(host, base_port + METRICS_PORT_OFFSET + i)

    # --- what others need to know ---------------------------------------------------------------

    @property
    def bootstrap(self) -> str:
        """``host:port`` of the coordinator: what clients connect to."""
        return self._reached(self.coordinator)

    @property
    def addresses(self) -> dict[int, str]:
        """``host:port`` by node id."""
        return {i: self._reached(node) for i, node in self._nodes.items()}

    def _reached(self, member: Member) -> str:
        """The address at which others call it."""
        host, port = split_address(member.listen)
        return join_address(self._advertised or host, port)

    @property
    def pids(self) -> dict[str, int]:
        """Pids of the running processes by name (``coordinator``, ``node-1`` …)."""
        return {each.name: each.pid for each in self._members() if each.is_running}

    def node(self, node_id: int) -> Member:
        """One node. Raises ConfigurationError when there is no such one."""
        if node_id not in self._nodes:
            raise ConfigurationError(f"no node {node_id}: there are 1 to {len(self._nodes)}")
        return self._nodes[node_id]

    def dead(self) -> list[Member]:
        """Processes that ended although nobody asked them to."""
        return [each for each in self._members() if each.expected_to_run and not each.is_running]

    def _members(self) -> Iterator[Member]:
        yield self.coordinator
        yield from self._nodes.values()

    # --- start ----------------------------------------------------------------------------------

    def start(self) -> Self:
        """Start all processes at once; return when all are ready.

        Nodes ask for the coordinator until it is there, at a port that this process reserves.

        Raises:
            ConfigurationError: A port or the folder is in use, or the servers are not installed.
            UnavailableError: A process ended or was not ready in time; holds the end of its log.
        """
        extras.check("server")
        self._take()
        try:
            for member in self._members():
                self._spawn(member)
            # The coordinator first: without it no node gets ready, and its log says why.
            self._wait_ready(list(self._members()))
        except BaseException:
            self.stop()
            raise
        return self

    def start_node(self, node_id: int) -> None:
        """Start a node that was killed or stopped, at its old address, and wait until ready.

        Raises as :meth:`start`.
        """
        self._start_again(self.node(node_id))

    def start_coordinator(self) -> None:
        """Start the coordinator again at its old address, and wait until ready.

        Raises as :meth:`start`.
        """
        self._start_again(self.coordinator)

    def _start_again(self, member: Member) -> None:
        if member.is_running:
            raise ConfigurationError(f"{member.name} is running already (pid {member.pid})")
        if self._lock is None:  # the whole cluster was stopped
            self._take()
        self._spawn(member)
        self._wait_ready([member])

    def _spawn(self, member: Member) -> None:
        member.log_path.parent.mkdir(parents=True, exist_ok=True)
        section = "node" if member in self._nodes.values() else "coordinator"
        command = [*member.prefix, *member.arguments, "--listen", member.listen]
        if section == "node":
            command += ["--coordinator", self.bootstrap]
            if self._advertised:
                # One port is what others can reach: in a container it is published.
                command += ["--advertise", self._reached(member), "--transport", "grpc"]
        if member.metrics_listen:
            command += ["--metrics", member.metrics_listen]
        with member.log_path.open("ab") as log:
            member.log_start = log.tell()
            member.process = members.start_process(
                [*command, *self._common, *member.extra],
                log,
                self.folder,
                launch.environment(section, self._settings[section]),
            )
        member.expected_to_run = True
        self._write_pids()

    def _wait_ready(self, members: Sequence[Member]) -> None:
        deadline = time.monotonic() + self.start_timeout_s
        for member in members:
            while not (address := member.ready_address()):
                if not member.is_running:
                    status = member.process.returncode if member.process else None
                    member.expected_to_run = False
                    self._raise_unready(member, f"ended with status {status}")
                if time.monotonic() > deadline:
                    self._raise_unready(member, f"was not ready in {self.start_timeout_s:g} s")
                time.sleep(_POLL_S)
            host, _ = split_address(member.listen)
            member.listen = join_address(host, split_address(address)[1])

    def _raise_unready(self, member: Member, what: str) -> None:
        raise UnavailableError(
            f"{member.name} {what}; the end of {member.log_path}:\n{member.log_tail()}",
            name=member.name,
        )

    def _reserve_ports(self) -> None:
        """Bind the ports of all processes, so that an error is about the right one, and hold them.

        A server may listen on a port that another socket only holds (both set SO_REUSEADDR). The
        system gives a held port to nobody else, also while its server is dead.
        """
        for member in self._members():
            if member.prefix:
                continue
            held = self._bind(member.name, member.listen)
            self._ports.append(held)
            host, _ = split_address(member.listen)
            member.listen = join_address(host, held.getsockname()[1])
            if member.metrics_listen:
                self._bind(member.name, member.metrics_listen).close()

    def _bind(self, name: str, address: str) -> socket.socket:
        found: socket.socket | None = None
        try:
            first = socket.getaddrinfo(*split_address(address), type=socket.SOCK_STREAM)[0]
            found = socket.socket(first[0])
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind(first[4])
        except OSError as error:
            if found is not None:
                found.close()
            raise ConfigurationError(
                f"{address} ({name}) can't be used: {error.strerror}; stop what "
                "uses it or choose another with --port",
                address=address,
            ) from error
        return found

    def _release_ports(self) -> None:
        for held in self._ports:
            held.close()
        self._ports.clear()

    def _write_settings(self) -> None:
        if any(self._settings.values()):
            (self.folder / "icecore.toml").write_text(launch.as_toml(self._settings))

    # --- the folder -----------------------------------------------------------------------------

    def _take(self) -> None:
        """Take the folder and the ports; :meth:`stop` gives them back."""
        with contextlib.ExitStack() as undo:
            self._take_folder()
            undo.callback(self._release_folder)
            undo.callback(self._release_ports)
            self._reserve_ports()
            self._write_settings()
            undo.pop_all()

    def _take_folder(self) -> None:
        """Lock the folder; refuse it while processes of an earlier owner still run in it."""
        with opening(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = (self.folder / "lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.close()
            raise ConfigurationError(
                f"{self.folder} is in use by another cluster: stop that one or choose another "
                "folder with --data",
                folder=self.folder,
            ) from error
        self._lock = lock
        if left := self._left_over():
            self._release_folder()
            pids = " ".join(str(pid) for pid in left.values())
            raise ConfigurationError(
                f"{', '.join(left)} of an earlier run still use {self.folder}: kill {pids}",
                folder=self.folder,
            )

    def _left_over(self) -> dict[str, int]:
        """Processes of an earlier run whose owner was killed."""
        try:
            pids: dict[str, int] = json.loads((self.folder / "pids.json").read_text())
        except (OSError, ValueError):
            return {}
        found = {}
        for name, pid in pids.items():
            with contextlib.suppress(OSError):  # no such process
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
                if os.fsencode(self.folder / name) in command:
                    found[name] = pid
        return found

    def _write_pids(self) -> None:
        (self.folder / "pids.json").write_text(json.dumps(self.pids))

    def _release_folder(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    # --- faults ---------------------------------------------------------------------------------

    def kill_node(self, node_id: int) -> None:
        """SIGKILL: nothing it had in memory survives. Returns when the process is gone."""
        self._kill(self.node(node_id))

    def kill_coordinator(self) -> None:
        """SIGKILL the coordinator."""
        self._kill(self.coordinator)

    def stop_node(self, node_id: int) -> None:
        """SIGTERM one node and wait for its clean end (SIGKILL after ``stop_timeout_s``)."""
        self._end([self.node(node_id)])

    def _kill(self, *members: Member) -> None:
        for member in members:
            member.expected_to_run = False
            if member.process is not None and member.is_running:
                member.process.kill()
        for member in members:
            if member.process is not None:
                member.process.wait()

    # --- stop -----------------------------------------------------------------------------------

    def stop(self, *, kill: bool = False) -> list[str]:
        """SIGTERM to all nodes at once, then to the coordinator; SIGKILL for who does not obey.

        Args:
            kill: SIGKILL to all at once instead: quicker, and nothing in memory survives.

        Returns warnings: which processes had to be killed or ended with an error.
        """
        warnings: list[str] = []
        if kill:
            self._kill(*self._members())
        else:
            warnings = self._end(list(self._nodes.values())) + self._end([self.coordinator])
        if self._lock is not None:
            self._write_pids()
        self._release_folder()
        self._release_ports()
        return warnings

    def _end(self, members: Sequence[Member]) -> list[str]:
        running = [each for each in members if each.is_running]
        for member in running:
            member.expected_to_run = False
            os.kill(member.pid, signal.SIGTERM)
            os.kill(member.pid, signal.SIGCONT)  # a paused one could not obey
        warnings = []
        deadline = time.monotonic() + self.stop_timeout_s
        for member in running:
            assert member.process is not None
            try:
                status = member.process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                self._kill(member)
                warnings.append(f"{member.name} did not stop in {self.stop_timeout_s:g} s: killed")
                continue
            if status:
                warnings.append(f"{member.name} ended with status {status}, see {member.log_path}")
        return warnings

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def _check_paths(folder: object, config_path: object) -> None:
    if not isinstance(folder, str | Path) or not str(folder):
        raise checks.wrong_type("folder", folder, "a path")
    if config_path is not None and not isinstance(config_path, str | Path):
        raise checks.wrong_type("config_path", config_path, "a path or None")


def _check_hosts(host: str, advertise: str) -> None:
    if is_wildcard(bare_host(reached := advertise or host)):
        raise ConfigurationError(
            f"others can't connect to {reached!r}, which means each address of a machine: say the "
            "name or the address of this machine with --advertise"
        )


def _check_ports(nodes: int, base_port: int | None) -> None:
    checks.whole("nodes", nodes, 1, NODES_MAX, error=ConfigurationError)
    if base_port is not None:
        high = PORT_MAX - METRICS_PORT_OFFSET - nodes
        checks.whole("base_port", base_port, 1, high, error=ConfigurationError)
