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
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from icecore.errors import IcecoreError, NotCoordinatorError, WrongClusterError
from icecore.model import Segment
from icecore_coordinator.stores.sqlite_store import SqliteStore
from icecore_node.ports import RemotePorts
from icecore_node.remote.ports import BucketMemory, TierPorts
from icecore_node.replica.replica import Replica
from icecore_node.storage.disks import Disk
from tests.simulation import operator, shells
from tests.simulation.coordinators import Coordinators
from tests.simulation.disk import SimDisk, SimFileSystem
from tests.simulation.executor import SimExecutor
from tests.simulation.history import History, WatermarkSeen
from tests.simulation.index import SimIndex, SimIndexDisk
from tests.simulation.inode import Inode
from tests.simulation.log import SimLog
from tests.simulation.log_database import SimLogDatabase
from tests.simulation.loop import SimLoop
from tests.simulation.machine import Machine
from tests.simulation.network import SimNet, SimNetwork
from tests.simulation.object_store import SimBucket, SimObjectStore
from tests.simulation.ports import (
    SimClock,
    SimConnection,
    SimMetadataStore,
    SimRng,
    Skew,
    StoreFaults,
    memory_database,
)
from tests.simulation.process import SimProcess
from tests.simulation.shells import Knobs, NodePorts
from tests.simulation.topic_table import SimTopicTable

if TYPE_CHECKING:
    from tests.simulation.directed_bootstrap import RemadeTopic
    from tests.simulation.directed_forgotten import ForgottenNodes
    from tests.simulation.directed_surplus import Copies
    from tests.simulation.expiring import ExpiringTopic
    from tests.simulation.fleeting import FleetingTopic
    from tests.simulation.job_runs import Job
    from tests.simulation.lost_cluster import LostCluster
    from tests.simulation.restorer import Restorer
    from tests.simulation.sink_queries import SinkQuery
    from tests.simulation.tiered import TieredTopic

COORDINATOR = "coordinator"
RESTART_S = 0.5
DAMAGE = frozenset(
    [
        "fsync_error",
        "bit_rot_sealed",
        "bit_rot_active",
        "truncation",
        "disk_replaced",
        "old_copy_restored",
        "snapshot_restored",
        "read_error",
        "bad_sector",
        "write_error",
        "name_error",
        "folder_sync_error",
        "control_error",
        "control_full",
    ]
)
"""Kinds of faults that take away what was durable; what a node then has may be UNKNOWN."""
SAMPLE_S = 0.1
SLOW_DELAY_S = 0.02
LONGEST_WORK_S = 15.0
"""Maximum seconds of one turn of a thread. Healing cannot take back spent time, and must end."""


@dataclass
class Host:
    """The parts of a node that outlive its processes."""

    node_id: int
    disk: SimDisk = field(default_factory=SimDisk)
    further: SimDisk | None = None
    """A second disk, where segments may lie too."""
    is_further_missing: bool = False
    """To the processes that start from now on."""
    is_further_failed: bool = False
    """A sync of the second disk failed: what lies there counts for nothing (R83)."""
    index: SimIndexDisk = field(default_factory=SimIndexDisk)
    control: sqlite3.Connection = field(default_factory=memory_database)
    stalled_until_s: float = 0.0
    """Nothing that touches the disk ends before."""
    slowness: float = 1.0
    """How many times as long its threads take."""
    machine: Machine = field(default_factory=Machine)
    power_cuts: int = 0
    doubtful_s: list[float] = field(default_factory=list)
    """When it lost power, or a sync failed: what was not synced may be gone."""

    def __post_init__(self) -> None:
        self.machine.changing = lambda: self.disk.changing()

    @property
    def disks(self) -> list[SimDisk]:
        """All of them."""
        return [self.disk] if self.further is None else [self.disk, self.further]

    def durable_file(self, name: str) -> Inode | None:
        """A file on any of its disks, as it would be after a power cut."""
        found = (disk.durable_names.get(name) for disk in self.disks)
        return next((inode for inode in found if inode is not None), None)

    def file(self, name: str) -> Inode | None:
        """A file on any of its disks."""
        found = (disk.names.get(name) for disk in self.disks)
        return next((inode for inode in found if inode is not None), None)

    def delay_s(self, delay_s: float, now_s: float) -> float:
        """Return the delay of a thread on this host, with its stall and its slowness."""
        return max(0.0, self.stalled_until_s - now_s) + delay_s * self.slowness


class World:
    """One seeded cluster of nodes, one coordinator, and clients.

    Args:
        seed: Decides everything.
        knobs: Sizes and times of the shells.
        nodes: How many storage nodes; ids start at 1.
        has_store: Whether nodes have an object store.
        lost: The cluster whose bucket it is; None = it is empty.
        shuffle: See SimLoop.
        data_dirs: Disks of each node, one or two.
        begins_at_nodes: Whether clients are given addresses of nodes only.
        standbys: Coordinators beside the first one; their metadata are in etcd then.
    """

    damaged = ""
    """The host whose disk was chosen to be damaged."""
    lookups_elsewhere = 0
    """Look-ups of topics made by a fault that were compared with their logs."""
    adopts = False
    """True = a person lets metadata go on that are not the newest."""

    def __init__(
        self,
        seed: int,
        knobs: Knobs,
        *,
        nodes: int = 3,
        has_store: bool = False,
        lost: "LostCluster | None" = None,
        shuffle: float = 0.0,
        data_dirs: int = 1,
        begins_at_nodes: bool = False,
        standbys: int = 0,
    ) -> None:
        self.seed = seed
        self.begins_at_nodes = begins_at_nodes
        self.knobs = knobs
        self.loop = SimLoop(seed, shuffle=shuffle)
        self.rng = random.Random(f"world {seed}")
        self.network = SimNetwork(
            self.loop,
            random.Random(f"network {seed}"),
            latency_s=knobs.latency_s,
            count_fault=self.count_fault,
        )
        self.network.keeps_order = seed % 3 > 0
        self.history = History()
        self.log = SimLog(self.loop)
        self.faults: Counter[str] = Counter()
        """Number of faults of each kind that really happened."""
        self.suspects: set[str] = set()
        """Hosts whose disks were chosen: what they hold may be UNKNOWN."""
        self.store_faults = StoreFaults(count=self.count_fault)
        self.lost = lost
        self.bucket = lost.bucket if lost else SimBucket()
        self.has_store = has_store
        self.hosts: dict[str, Host] = {}
        self._has_further = data_dirs > 1
        for _ in range(nodes):
            self.add_host()
        if slow := self.hosts.get(f"node-{knobs.slow_node}"):
            slow.slowness = SLOW_DELAY_S / knobs.thread_delay_s
        self.processes: dict[str, SimProcess] = {}
        self.shells: dict[str, Any] = {}
        """The Node or Coordinator object of each running process."""
        self.exits: list[str] = []
        self.fleeting: list[
            FleetingTopic
            | ExpiringTopic
            | TieredTopic
            | RemadeTopic
            | SinkQuery
            | Job
            | Copies
            | ForgottenNodes
            | Restorer
        ] = []
        """Topics that were made by a fault, to be judged at the end."""
        self.deleted_by_hand: dict[str, int] = {}
        """The largest offset below which a client asked to delete records, by topic."""
        self._kept: list[asyncio.Task[None]] = []
        self._older: list[SimProcess] = []
        """Coordinators that another one took over from."""
        self._skews: dict[str, Skew] = {}
        self.metadata = shells.metadata_database()
        self.standing = Coordinators(self, 1 + standbys) if standbys else None
        """The coordinators, where they stand by for each other."""
        self._lives: dict[str, int] = {}
        self._wanted: set[str] = set()
        """Names of the processes that are restarted when they end by themselves."""

    # --- running ------------------------------------------------------------------------------

    def run(self, scenario: Callable[["World"], Coroutine[Any, Any, None]]) -> None:
        """Run a scenario to its end; the garbage collector waits, for its times are not ours."""
        gc.collect()
        gc.disable()
        if self.standing:
            self.standing.begin()
        root = logging.getLogger()
        handlers, level = root.handlers, root.level
        root.handlers = [self.log]
        root.setLevel(logging.INFO if self.loop.trace_log is not None else logging.WARNING)
        try:
            with shells.small_segments():
                self.loop.run_until_complete(scenario(self))
        finally:
            for process in (*self.processes.values(), *self._older):
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

    def lives(self, name: str) -> int:
        """Return how many processes of this name there were."""
        return self._lives.get(name, 0)

    @property
    def coordinators(self) -> list[str]:
        """Names of their processes."""
        return self.standing.names if self.standing else [COORDINATOR]

    @property
    def coordinator_address(self) -> str:
        """The addresses of all coordinators, as a client or a node is given them."""
        return ",".join(map(shells.coordinator_address, self.coordinators))

    def who(self, name: str) -> str:
        """The process that is meant: ``COORDINATOR`` is the one that acts."""
        return self.standing.acting if self.standing and name == COORDINATOR else name

    def _all(self, name: str) -> list[str]:
        """The processes that are meant when something comes back."""
        return self.coordinators if name == COORDINATOR else [name]

    def is_up(self, name: str) -> bool:
        """Return whether all processes of this name run (or are paused)."""
        return all(map(self._is_up, self._all(name)))

    def _is_up(self, name: str) -> bool:
        process = self.processes.get(name)
        return process is not None and process.alive

    # --- starting -----------------------------------------------------------------------------

    def start(self, name: str) -> None:
        """Start a node or the coordinator; it is kept running until ``kill``. Of coordinators that
        stand by all start that are down."""
        for each in self._all(name):
            if name == each or not self._is_up(each):
                self._start(each)

    def _start(self, name: str) -> None:
        self._wanted.add(name)
        process = self.name_process(name)
        if name in self.hosts:
            main = self._node(process)
        elif self.standing:
            main = self.standing.live(process)
        else:
            main = self._coordinator(process)
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
        ports = NodePorts(
            clock=self.clock(process.name),
            rng=SimRng(f"{process} {self.seed}"),
            net=SimNet(self.network, process),
            executor=SimExecutor(
                process,
                rng,
                mean_delay_s=self.knobs.thread_delay_s,
                fail_stop=lambda error: self._fail_stop(process, error),
                disk_delay=lambda delay_s: host.delay_s(delay_s, self.loop.time()),
                spent_s=lambda: min(host.machine.spent_s() * host.slowness, LONGEST_WORK_S),
            ),
            files=SimFileSystem(host.disk, process, host.machine),
            further=self._further(process),
            index=SimIndex(host.index, process, host.machine),
            log_database=SimLogDatabase(
                host.disk.database, process, host.machine, host.disk.faults
            ),
            control=SimConnection(host.control, process, host.machine),
            boot_id=f"{process.name} {host.power_cuts}",
        )
        if self.has_store:
            ports.tier, ports.remote = self._tier(process), RemotePorts(ports.executor, ports.files)
        node = shells.make_node(
            host.node_id, process.name, self.coordinator_address, ports, self.knobs
        )
        self.shells[process.name] = node
        await node.start()
        self.loop.trace(f"up {process}")
        await node.ended

    def _tier(self, process: SimProcess) -> Callable[[BucketMemory], TierPorts]:
        def table_of(cluster_id: bytes, topic_id: bytes, _: str) -> SimTopicTable:
            return SimTopicTable(self.bucket, process, cluster_id, topic_id)

        store = SimObjectStore(self.bucket, process)
        return lambda memory: TierPorts(store, table_of, memory)

    def _further(self, process: SimProcess) -> list[Disk]:
        """The other disk of a node, if it has one."""
        host = self.hosts[process.name]
        if host.further is None:
            return []
        name = f"{host.node_id:032x}"
        if host.is_further_missing:
            return [Disk(name, "further", None, 1, "it is not there")]
        return [Disk(name, "further", SimFileSystem(host.further, process, host.machine), 1)]

    async def _coordinator(self, process: SimProcess) -> None:
        rng = random.Random(f"{process} store {self.seed}")
        coordinator = shells.make_coordinator(
            store=SimMetadataStore(SqliteStore(self.metadata), process, rng, self.store_faults),
            clock=self.clock(process.name),
            rng=SimRng(f"{process} {self.seed}"),
            net=SimNet(self.network, process),
            knobs=self.knobs,
        )
        self.shells[process.name] = coordinator
        await coordinator.start(shells.coordinator_address(COORDINATOR))
        self.loop.trace(f"up {process}")
        try:
            await coordinator.run()
        except NotCoordinatorError:
            if self.adopts and (why := coordinator.ledger.suspended):
                await coordinator.stop()
                await self._suspended(process, why)
            raise

    async def _suspended(self, process: SimProcess, why: str) -> None:
        """The rest of a process whose metadata are not the newest, until a person lets them go on;
        its supervisor starts the next one."""
        rng = random.Random(f"{process} suspended {self.seed}")
        suspended = shells.make_suspended(
            store=SimMetadataStore(SqliteStore(self.metadata), process, rng, self.store_faults),
            rng=SimRng(f"{process} suspended {self.seed}"),
            net=SimNet(self.network, process),
            why=why,
        )
        await suspended.start(shells.coordinator_address(COORDINATOR))
        operator.adopt(self, suspended.outdated)
        await suspended.outdated.wait()
        self.count_fault("adopted")
        await suspended.stop()

    def _ended(self, process: SimProcess, task: "asyncio.Task[Any]") -> None:
        """The main task of a server is over: it gave up, unless it was killed."""
        if not process.alive:
            return
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, IcecoreError):
            self.loop.failures.append(f"{process} died of {error!r}")
        if isinstance(error, WrongClusterError) and process.name in self.hosts:
            operator.accept_disk(self, self.hosts[process.name].node_id)
        self._exit(process, f"exit: {error!r}")

    def _fail_stop(self, process: SimProcess, error: BaseException) -> None:
        """Production ends a process whose disk does not do what it was told."""
        host = self.hosts.get(process.name)
        if host is not None and host.disk.faults.failed_syncs:
            host.disk.faults.failed_syncs = 0
            host.doubtful_s.append(self.loop.time())
            self.count_fault("fsync_error")
        self._exit(process, f"fail-stop: {error!r}")

    def _exit(self, process: SimProcess, why: str) -> None:
        """A process ends by itself; its supervisor starts it again, but not a second time."""
        self.exits.append(f"{self.loop.time():.3f} {process} {why}")
        self._end(process, why)
        if process.name in self._wanted and self.processes[process.name] is process:
            self.loop.call_later(RESTART_S, self._restart_if_down, process.name)

    def _restart_if_down(self, name: str) -> None:
        if name in self._wanted and not self.is_up(name):
            self.start(name)

    def clock(self, name: str, rate: float = 1.0) -> SimClock:
        """The clock of a host."""
        return SimClock(self.loop, self._skews.setdefault(name, Skew()), rate)

    # --- faults -------------------------------------------------------------------------------

    def count_fault(self, kind: str) -> None:
        """Something went wrong, on purpose."""
        self.faults[kind] += 1

    def is_suspect(self, name: str) -> bool:
        """Return whether a disk may have lost what was durable. A staged world that names nobody
        may have damaged anybody's."""
        return name in self.suspects or (not self.suspects and bool(DAMAGE & set(self.faults)))

    def stored_segment(self, segment_id: int) -> Segment | None:
        """As the coordinator has it, if there is one."""
        coordinator = self.shells.get(COORDINATOR)
        state = coordinator.ledger.state if coordinator is not None else None
        record = state.segments.get(segment_id) if state is not None else None
        return None if record is None else record.segment

    def kill(self, name: str, *, power_cut: bool = False, kind: str | None = None) -> None:
        """SIGKILL, or with ``power_cut`` the whole machine; down until ``start``."""
        name = self.who(name)
        self._wanted.discard(name)
        if not self.is_up(name):
            return
        if kind != "":
            self.count_fault(kind or ("power_cut" if power_cut else "kill"))
        self._end(self.processes[name], "power cut" if power_cut else "kill")
        host = self.hosts.get(name)
        if power_cut and host is not None:
            host.power_cuts += 1
            host.doubtful_s.append(self.loop.time())
            for disk in host.disks:
                disk.power_cut(self.rng)
            host.index.power_cut(self.rng)

    def kill_in_mid_write(
        self,
        name: str,
        operations: int,
        *,
        power_cut: bool = False,
        kind: str = "kill_in_mid_write",
    ) -> None:
        """Kill a node in the middle of its next operations on disk, index or control store."""
        for disk in self.hosts[name].disks:
            disk.faults.operations_to_live = operations
            disk.faults.on_mid_death = lambda: self.kill(name, power_cut=power_cut, kind=kind)

    def terminate(self, name: str) -> None:
        """SIGTERM of a node: it hands over, stops cleanly and stays down until ``start``."""
        process, node = self.processes[name], self.shells.get(name)
        if (
            not process.alive
            or process.paused
            or node is None
            or node.context.identity.incarnation == 0
        ):
            return
        self._wanted.discard(name)
        self.count_fault("clean_stop")
        self.loop.trace(f"terminate {process}")

        async def leave() -> None:
            await node.leave()
            await node.stop()
            self._end(process, "stopped")

        process.spawn(leave())

    def take_over(self) -> None:
        """Start another coordinator at the address of the one that runs, which goes on if it can:
        its connections, its calls and its handle of the metadata store are still there."""
        self._older.append(self.processes.pop(COORDINATOR))
        self.network.move_away(shells.coordinator_address(COORDINATOR))
        self.start(COORDINATOR)

    def add_host(self) -> str:
        """A machine that was not there before; its name."""
        host = Host(len(self.hosts) + 1, further=SimDisk() if self._has_further else None)
        host.machine.count_fault = self.count_fault
        host.machine.usual_costs(self.knobs.thread_delay_s)
        self.hosts[f"node-{host.node_id}"] = host
        return f"node-{host.node_id}"

    def set_clock(self, name: str, skew_ms: int) -> None:
        """Move the wall clock of a host."""
        name = self.who(name)
        self.loop.trace(f"clock of {name} {skew_ms}")
        self._skews.setdefault(name, Skew()).ms = skew_ms

    def _end(self, process: SimProcess, why: str) -> None:
        self.loop.trace(f"end {process} {why}")
        if self.processes.get(process.name) is process:
            self.shells.pop(process.name, None)
            if self.standing and self.standing.acting == process.name:
                self.shells.pop(COORDINATOR, None)
        process.kill(why, self.loop.time())
        host = self.hosts.get(process.name)
        for disk in host.disks if host is not None else ():
            disk.faults.operations_to_live = None

    def pause(self, name: str, *, kind: str = "pause") -> None:
        """SIGSTOP."""
        name = self.who(name)
        if self.is_up(name):
            self.count_fault(kind)
            self.loop.trace(f"pause {name}")
            self.processes[name].paused = True

    def resume(self, name: str) -> None:
        """SIGCONT."""
        for each in self._all(name):
            process = self.processes.get(each)
            if process is not None and process.paused:
                self.loop.trace(f"resume {each}")
                self.loop.resume(process)

    def heal(self) -> None:
        """End all faults and start everything that is down. Damage stays."""
        self.network.heal_all()
        for process in (*self.processes.values(), *self._older):
            if process.paused:
                self.loop.resume(process)
        for host in self.hosts.values():
            for disk in host.disks:
                disk.faults.operations_to_live = None
                disk.faults.failing_syncs = 0
                disk.faults.opens_left = None
                disk.limit(None)
            host.stalled_until_s, host.slowness = 0.0, 1.0
            host.machine.heal(self.knobs.thread_delay_s)
        for skew in self._skews.values():
            skew.ms = 0
        self.store_faults.heal()
        if self.standing:
            self.standing.heal()
        self.bucket.faults.heal()
        self.start_all()

    def keep(self, task: asyncio.Task[None]) -> None:
        """Something that may last until everything is healed."""
        self._kept.append(task)

    async def kept(self) -> None:
        """Wait for all of that. Raises what it raises."""
        for task in self._kept:
            await task

    # --- watching -----------------------------------------------------------------------------

    async def watch(self) -> None:
        """Note every change of every replica's high watermark; runs for ever. A replica that is
        made again, from a copy, is another one."""
        known: dict[Replica, tuple[str, int]] = {}
        while True:
            await asyncio.sleep(SAMPLE_S)
            fleeting = {topic.name for topic in self.fleeting}
            for name in self.hosts:
                node = self.shells.get(name)
                if node is None or not self.is_up(name):
                    continue
                for replica, partition, watermark in shells.high_watermarks(node):
                    if partition[0] in fleeting:
                        continue  # several logs under one name
                    observer, before = known.get(replica, ("", -1))
                    if before == watermark:
                        continue
                    if not observer:
                        life = f"{self.processes[name]} segment {replica.segment_id}"
                        observer = f"{life} copy {len(known)}"
                    known[replica] = (observer, watermark)
                    seen = WatermarkSeen(observer, partition, watermark, self.loop.time())
                    self.history.watermarks.append(seen)
