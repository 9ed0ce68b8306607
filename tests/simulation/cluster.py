"""A world: hosts with disks that outlive processes, and what can be done to both.

The world starts the production shells on simulated ports, kills and pauses them, cuts power,
restarts what ended by itself as a supervisor would, and watches every replica's high watermark as
only a simulator can. Everything is decided by the seed.
"""

import asyncio
import gc
import logging
import random
import sqlite3
import traceback
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from coordinator.sqlite_store import SqliteStore
from icecore.errors import IcecoreError
from tests.simulation import shells
from tests.simulation.disk import SimDisk, SimFileSystem
from tests.simulation.executor import SimExecutor
from tests.simulation.history import History, WatermarkSeen
from tests.simulation.index import SimIndex, SimIndexDisk
from tests.simulation.loop import SimLoop
from tests.simulation.network import SimNet, SimNetwork
from tests.simulation.ports import (
    SimClock,
    SimConnection,
    SimMetadataStore,
    SimRng,
    memory_database,
)
from tests.simulation.process import PROCESS, SimProcess
from tests.simulation.shells import Knobs, NodePorts

COORDINATOR = "coordinator"
RESTART_S = 0.5
SAMPLE_S = 0.05


@dataclass
class Host:
    """What of a node outlives its processes."""

    node_id: int
    disk: SimDisk = field(default_factory=SimDisk)
    index: SimIndexDisk = field(default_factory=SimIndexDisk)
    control: sqlite3.Connection = field(default_factory=memory_database)


class SimLog(logging.Handler):
    """Puts what the shells log into the kept trace. An unexpected exception there is a failure,
    and so is a call for an operator: no fault of ours breaks what the protocol relies on."""

    def __init__(self, loop: SimLoop) -> None:
        super().__init__()
        self._loop = loop

    def emit(self, record: logging.LogRecord) -> None:
        """Called by logging."""
        process = PROCESS.get()
        if process is not None and not process.alive:
            return
        error = record.exc_info[1] if record.exc_info else None
        if record.getMessage().startswith("event=page"):
            self._loop.failures.append(f"{process} called for help: {record.getMessage()}")
        if error is not None and not isinstance(error, IcecoreError):
            where = "".join(traceback.format_exception(error))
            self._loop.failures.append(f"{process} logged {record.getMessage()}: {where}")
        if self._loop.trace_log is not None:
            line = f"{self._loop.time():12.6f}   {process} {record.levelname} {record.getMessage()}"
            self._loop.trace_log.append(line)


class World:
    """One seeded cluster of nodes, one coordinator, and clients.

    Args:
        seed: Decides everything.
        knobs: Sizes and times of the shells.
        nodes: How many storage nodes; ids start at 1.
        shuffle: See SimLoop.
    """

    def __init__(self, seed: int, knobs: Knobs, *, nodes: int = 3, shuffle: float = 0.0) -> None:
        self.seed = seed
        self.knobs = knobs
        self.loop = SimLoop(seed, shuffle=shuffle)
        self.rng = random.Random(f"world {seed}")
        self.network = SimNetwork(
            self.loop, random.Random(f"network {seed}"), latency_s=knobs.latency_s
        )
        self.history = History()
        self.faults = 0
        self.damaged_disks = 0
        self.hosts = {f"node-{number}": Host(number) for number in range(1, nodes + 1)}
        self.processes: dict[str, SimProcess] = {}
        self.shells: dict[str, Any] = {}
        """The Node or Coordinator object of each running process."""
        self.exits: list[str] = []
        self._metadata = shells.metadata_database()
        self._lives: dict[str, int] = {}
        self._wanted: set[str] = set()
        """Who is restarted when it ends by itself."""

    # --- running ------------------------------------------------------------------------------

    def run(self, scenario: Callable[["World"], Coroutine[Any, Any, None]]) -> None:
        """Run a scenario to its end; the garbage collector waits, for its times are not ours."""
        gc.collect()
        gc.disable()
        log = SimLog(self.loop)
        root = logging.getLogger()
        handlers, level = root.handlers, root.level
        root.handlers = [log]
        root.setLevel(logging.INFO if self.loop.trace_log is not None else logging.WARNING)
        try:
            with shells.small_segments():
                self.loop.run_until_complete(scenario(self))
        finally:
            for process in self.processes.values():
                process.kill("the world ends", self.loop.time())
            self.loop.stop()
            self.loop.run_forever()
            self.loop.close()
            root.handlers = handlers
            root.setLevel(level)
            gc.enable()

    def name_process(self, name: str) -> SimProcess:
        """A fresh life of a process."""
        assert name not in self.processes or not self.processes[name].alive, name
        self._lives[name] = self._lives.get(name, 0) + 1
        process = SimProcess(name, self._lives[name])
        process.on_death.append(lambda: self.network.process_died(process))
        self.processes[name] = process
        self.loop.trace(f"start {process}")
        return process

    def is_up(self, name: str) -> bool:
        """Whether a process of this name runs (or is paused)."""
        process = self.processes.get(name)
        return process is not None and process.alive

    # --- starting -----------------------------------------------------------------------------

    def start(self, name: str) -> None:
        """Start a node or the coordinator; it is kept running until ``kill``."""
        self._wanted.add(name)
        process = self.name_process(name)
        main = self._coordinator(process) if name == COORDINATOR else self._node(process)
        task = process.spawn(main)
        task.add_done_callback(lambda done: self._ended(process, done))

    def start_all(self) -> None:
        """Everything that does not run."""
        for name in (COORDINATOR, *self.hosts):
            if not self.is_up(name):
                self.start(name)

    def client(self, name: str) -> tuple[SimProcess, SimNet, SimClock, SimRng]:
        """A client process and its ports."""
        process = self.name_process(name)
        return (
            process,
            SimNet(self.network, process),
            SimClock(self.loop),
            SimRng(f"{name} {process.life} {self.seed}"),
        )

    async def _node(self, process: SimProcess) -> None:
        host = self.hosts[process.name]
        rng = random.Random(f"{process} threads {self.seed}")
        is_slow = host.node_id == self.knobs.slow_node
        ports = NodePorts(
            clock=SimClock(self.loop),
            rng=SimRng(f"{process} {self.seed}"),
            net=SimNet(self.network, process),
            executor=SimExecutor(
                process,
                rng,
                mean_delay_s=0.02 if is_slow else self.knobs.thread_delay_s,
                fail_stop=lambda error: self._exit(process, f"fail-stop: {error!r}"),
            ),
            files=SimFileSystem(host.disk, process),
            index=SimIndex(host.index, process),
            control=SimConnection(host.control, process),
        )
        node = shells.make_node(host.node_id, process.name, COORDINATOR, ports, self.knobs)
        self.shells[process.name] = node
        await node.start()
        self.loop.trace(f"up {process}")
        await node.ended

    async def _coordinator(self, process: SimProcess) -> None:
        rng = random.Random(f"{process} store {self.seed}")
        coordinator = shells.make_coordinator(
            store=SimMetadataStore(SqliteStore(self._metadata), process, rng),
            clock=SimClock(self.loop),
            rng=SimRng(f"{process} {self.seed}"),
            net=SimNet(self.network, process),
            knobs=self.knobs,
        )
        self.shells[process.name] = coordinator
        await coordinator.start(shells.coordinator_address(COORDINATOR))
        self.loop.trace(f"up {process}")
        await coordinator.run()

    def _ended(self, process: SimProcess, task: "asyncio.Task[Any]") -> None:
        """The main task of a server is over: it gave up, unless it was killed."""
        if not process.alive:
            return
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, IcecoreError):
            self.loop.failures.append(f"{process} died of {error!r}")
        self._exit(process, f"exit: {error!r}")

    def _exit(self, process: SimProcess, why: str) -> None:
        """A process ends by itself; its supervisor starts it again."""
        self.exits.append(f"{self.loop.time():.3f} {process} {why}")
        self._end(process, why)
        if process.name in self._wanted:
            self.loop.call_later(RESTART_S, self._restart_if_down, process.name)

    def _restart_if_down(self, name: str) -> None:
        if name in self._wanted and not self.is_up(name):
            self.start(name)

    # --- faults -------------------------------------------------------------------------------

    def kill(self, name: str, *, power_cut: bool = False) -> None:
        """SIGKILL, or with ``power_cut`` the whole machine; down until ``start``."""
        self._wanted.discard(name)
        if not self.is_up(name):
            return
        self.faults += 1
        self._end(self.processes[name], "power cut" if power_cut else "kill")
        host = self.hosts.get(name)
        if power_cut and host is not None:
            host.disk.power_cut(self.rng)
            host.index.power_cut(self.rng)

    def kill_in_mid_write(self, name: str, operations: int, *, power_cut: bool = False) -> None:
        """Kill a node in the middle of its next disk operations."""
        faults = self.hosts[name].disk.faults
        faults.operations_to_live = operations
        faults.on_mid_death = lambda: self.kill(name, power_cut=power_cut)

    def _end(self, process: SimProcess, why: str) -> None:
        self.loop.trace(f"end {process} {why}")
        self.shells.pop(process.name, None)
        process.kill(why, self.loop.time())
        host = self.hosts.get(process.name)
        if host is not None:
            host.disk.faults.operations_to_live = None

    def pause(self, name: str) -> None:
        """SIGSTOP."""
        if self.is_up(name):
            self.faults += 1
            self.loop.trace(f"pause {name}")
            self.processes[name].paused = True

    def resume(self, name: str) -> None:
        """SIGCONT."""
        process = self.processes.get(name)
        if process is not None and process.paused:
            self.loop.trace(f"resume {name}")
            self.loop.resume(process)

    def heal(self) -> None:
        """End all faults and start everything that is down."""
        self.network.heal_all()
        for name in list(self.processes):
            self.resume(name)
        for host in self.hosts.values():
            host.disk.faults.operations_to_live = None
            host.disk.faults.failing_syncs = 0
        self.start_all()

    # --- watching -----------------------------------------------------------------------------

    async def watch(self) -> None:
        """Note every change of every replica's high watermark; runs for ever."""
        known: dict[tuple[str, int], int] = {}
        while True:
            await asyncio.sleep(SAMPLE_S)
            for name in self.hosts:
                node = self.shells.get(name)
                if node is None or not self.is_up(name):
                    continue
                observer = repr(self.processes[name])
                for segment_id, partition, watermark in shells.high_watermarks(node):
                    key = (f"{observer} segment {segment_id}", segment_id)
                    if known.get(key) != watermark:
                        known[key] = watermark
                        self.history.watermarks.append(
                            WatermarkSeen(key[0], partition, watermark, self.loop.time())
                        )
