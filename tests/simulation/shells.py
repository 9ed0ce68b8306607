"""Make the production shells on simulated ports; no other place knows how."""

import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast
from unittest import mock

from icecore.rpc.ports import Clock, Net, Rng
from icecore.topic_settings import SETTINGS
from icecore_coordinator.config import RECLAIM_SLACK_BYTES, TopicDefaults
from icecore_coordinator.coordinator import Coordinator
from icecore_coordinator.stores.metadata_store import MetadataStore
from icecore_coordinator.stores.sqlite_store import SqliteDatabase
from icecore_coordinator.suspended import SuspendedCoordinator
from icecore_coordinator.timing import Timing
from icecore_node.config import NodeSettings
from icecore_node.metrics import NodeMetrics
from icecore_node.node import Node
from icecore_node.ports import Executor, FileSystem, Index, RemotePorts
from icecore_node.remote.ports import BucketMemory, TierPorts
from icecore_node.replica import reading
from icecore_node.replica.replica import Replica
from icecore_node.storage.control.control_store import ControlStore
from icecore_node.storage.control.disk_identity import FIRST_DISK
from icecore_node.storage.disk_levels import DiskLimits
from icecore_node.storage.disks import Disk, Disks
from icecore_node.storage.engines import make_store
from icecore_node.storage.rocksdb_engine.log_database import LogDatabase
from icecore_node.storage.segment_engine.segment_log import LogSettings
from tests.simulation.history import Partition
from tests.simulation.ports import SimConnection

if TYPE_CHECKING:
    from tests.simulation.cluster import World

NODE_PORT = 7410
COORDINATOR_PORT = 7400

reading.VERIFY_STEP_BYTES = 2048  # segments are small here, and something has to fall between steps


@dataclass(frozen=True, slots=True)
class Knobs:
    """Sizes and times, shrunk so that everything happens often; drawn per seed."""

    segment_bytes: int = 16 * 1024
    segment_age_ms: int = 60_000
    group_bytes_max: int = 64 * 1024
    group_items_max: int = 8
    allocation_step_bytes: int = 16 * 1024
    records_per_point: int = 3
    bytes_per_point: int = 2048
    io_workers: int = 2
    sync_on_loop_ms_max: float = 2.0
    replica_lag_ms_max: int = 1000
    lease_ms: int = 800
    heartbeat_ms: int = 100
    recovery_wait_ms: int = 300
    roll_up_wait_ms: int = 1000
    thread_delay_s: float = 0.0005
    slow_node: int = 0
    """A node whose threads take 20 ms a step until everything is healed, 0 = none."""
    latency_s: float = 0.002
    """Latency of the slowest links."""
    tail_cache_bytes: int = 64 * 1024
    credit_bytes: int = 64 * 1024
    reclaim_slack_bytes: int = RECLAIM_SLACK_BYTES


@dataclass(slots=True)
class NodePorts:
    """All ports of one life of a node."""

    clock: Clock
    rng: Rng
    net: Net
    executor: Executor
    files: FileSystem
    further: list[Disk]
    """Other disks."""
    index: Index
    log_database: LogDatabase
    control: SimConnection
    boot_id: str
    tier: Callable[[BucketMemory], TierPorts] | None = None
    """Makes the ports to the object store, if this life of the node has one."""
    remote: RemotePorts | None = None
    """For reads of it."""


class SimFolder:
    """The state that node.storage.data_folder.DataFolder has, over the control store alone."""

    def __init__(self, control: ControlStore, node_id: int, rng: Rng) -> None:
        if not control.disk.disk_id:
            control.database.put(disk_id=rng.bytes(16), node_id=node_id)
        self._control = control.disk
        self.cluster_id = control.disk.cluster_id
        self.disk_id = control.disk.disk_id

    @property
    def incarnation(self) -> int:
        """The last one persisted."""
        return self._control.incarnation

    def join_cluster(self, cluster_id: bytes) -> None:
        """Bind the disk to a cluster."""
        self._control.join_cluster(cluster_id)
        self.cluster_id = cluster_id

    @property
    def disk_counter(self) -> int:
        """The last one persisted."""
        return self._control.disk_counter

    def keep_incarnation(self, incarnation: int, disk_counter: int) -> None:
        """Persist the incarnation and the counter that it begins with."""
        self._control.keep_incarnation(incarnation, disk_counter)

    @property
    def metadata_revision(self) -> int:
        """The last one persisted."""
        return self._control.metadata_revision

    def raise_disk_counter(self, metadata_revision: int) -> int:
        """Persist the next counter."""
        return self._control.raise_disk_counter(metadata_revision)


def make_node(node_id: int, host: str, coordinators: str, ports: NodePorts, knobs: Knobs) -> Node:
    """A node process without the process."""
    settings = NodeSettings.model_validate(
        {
            "data": Path("simulated"),
            "node_id": node_id,
            "coordinator": coordinators,
            "listen": f"{host}:{NODE_PORT}",
            "native_listen": "",  # there is one network here
            "insecure_bind": True,
            "io_workers": knobs.io_workers,
            "sync_on_loop_ms_max": knobs.sync_on_loop_ms_max,
            "group_items_max": knobs.group_items_max,
            "preallocate_bytes": knobs.allocation_step_bytes,
            "tail_cache_bytes": knobs.tail_cache_bytes,
            "replica_lag_ms_max": knobs.replica_lag_ms_max,
            "check_every_steps": 1,
            "tier_url": "memory:///" if ports.tier else "",
        }
    )
    # Smaller than what a node of any cluster must allow: the topics here allow less, too.
    settings = settings.model_copy(
        update={
            "group_bytes_max": knobs.group_bytes_max,
            "replication_credit_bytes": knobs.credit_bytes,
        }
    )
    control = ControlStore(cast(sqlite3.Connection, ports.control))
    folder = SimFolder(control, node_id, ports.rng)
    store = make_store(
        ports.files,
        ports.index,
        control,
        folder.cluster_id,
        LogSettings(
            group_bytes_max=knobs.group_bytes_max,
            allocation_step_bytes=knobs.allocation_step_bytes,
            segment_bytes=knobs.segment_bytes,
            records_per_point=knobs.records_per_point,
            bytes_per_point=knobs.bytes_per_point,
            sync_all_files_min=2,
            open_files_max=4,
            recycle_bytes_max=4 * knobs.segment_bytes,
            recycle_bytes_min=4096,
            recent_entries_bytes_max=16 << 10,
            entries_per_run=20,
            open_indexes_max=2,
            io_workers=knobs.io_workers,
            shared_file_bytes=2 * knobs.segment_bytes,
            shared_copy_bytes=2048,
        ),
        ports.boot_id,
        Disks(control, [Disk(FIRST_DISK, "first", ports.files), *ports.further], DiskLimits()),
        ports.log_database,
    )
    return Node(
        settings,
        clock=ports.clock,
        rng=ports.rng,
        net=ports.net,
        executor=ports.executor,
        disks=store.disks,
        store=store,
        folder=folder,
        metrics=NodeMetrics(),
        tier=ports.tier(control.known_buckets.at(settings.tier_url)) if ports.tier else None,
        remote=ports.remote,
    )


def make_coordinator(
    *, store: MetadataStore, clock: Clock, rng: Rng, net: Net, knobs: Knobs
) -> Coordinator:
    """A coordinator process without the process."""
    return Coordinator(
        net, store, clock, rng, timing(knobs), reclaim_slack_bytes=knobs.reclaim_slack_bytes
    )


def make_suspended(*, store: MetadataStore, rng: Rng, net: Net, why: str) -> SuspendedCoordinator:
    """A coordinator that waits for a person, without its process."""
    return SuspendedCoordinator(net, store, rng, why, TopicDefaults())


def small_segments() -> AbstractContextManager[object]:
    """Lets topics have segments far smaller than anyone wants in production."""
    row = SETTINGS["segment_bytes"]
    return mock.patch.dict(SETTINGS, {row.name: replace(row, low=1024)})


def coordinator_address(host: str) -> str:
    """Return the address where a coordinator listens."""
    return f"{host}:{COORDINATOR_PORT}"


def bootstrap_of(world: "World", name: str) -> str:
    """The addresses that a client is given: those of the coordinators or, where clients begin at
    nodes, those of all nodes, in an order of the client's own."""
    if not world.begins_at_nodes:
        return world.coordinator_address
    hosts = list(world.hosts)
    random.Random(f"bootstrap of {name} {world.seed}").shuffle(hosts)
    return ",".join(f"{host}:{NODE_PORT}" for host in hosts)


def high_watermarks(node: Node) -> Iterator[tuple[Replica, Partition, int]]:
    """(replica, partition, high watermark) of every replica that readers may use: nobody reads a
    deleted topic."""
    for replica in node.replicas:
        segment = replica.segment
        if replica.life.is_intact and replica.base_offset >= 0 and segment and segment.topic:
            partition = (segment.topic, replica.identity.partition)
            yield replica, partition, replica.high_watermark


def metadata_database() -> SqliteDatabase:
    """Records that outlive coordinators."""
    return SqliteDatabase(":memory:")


def timing(knobs: Knobs) -> Timing:
    """The coordinator's times."""
    return Timing(
        heartbeat_ms=knobs.heartbeat_ms,
        lease_ms=knobs.lease_ms,
        recovery_wait_ms=knobs.recovery_wait_ms,
        lost_replica_grace_ms=5_000,
        roll_up_wait_ms=knobs.roll_up_wait_ms,
        return_wait_ms=min(500, knobs.roll_up_wait_ms),
        prepared_keep_ms=5_000,
        audit_ms=200,
        tick_ms=50,
        node_call_ms=2_000,
        tier_call_ms=5_000,
        tier_reader_grace_ms=500,
        tier_closed_keep_ms=8_000,
    )
