"""The plan of a scenario, drawn from the seed before the world starts."""

import random
from dataclasses import dataclass, replace

from icecore.model import Acks
from icecore.topic_settings import (
    MEMORY_ENGINE,
    OWN_FILE,
    PARQUET_FORMAT,
    RESTART_EMPTY,
    ROCKSDB_ENGINE,
    SEGMENT_ENGINE,
    SHARED_FILE,
    UNAVAILABLE_ON_LOSS,
    FlushBounds,
)
from tests.simulation.faults import Fault
from tests.simulation.shells import Knobs

TOPIC = "events"


@dataclass(frozen=True)
class Plan:
    """A cluster, its traffic, and its faults."""

    knobs: Knobs
    partitions: int = 2
    replication_factor: int = 3
    min_insync_replicas: int = 2
    flush: FlushBounds | None = None
    """None = every append is synced before it counts."""
    on_total_loss: str = UNAVAILABLE_ON_LOSS
    nodes: int = 3
    producers: int = 1
    bursts: int = 300
    """At most, per producer; they send as long as there are faults."""
    burst_max: int = 1
    """Records sent at once."""
    pauses_s: tuple[float, ...] = (0.01, 0.02, 0.04)
    """One is drawn per producer: the mean time between bursts."""
    padding_bytes: tuple[int, ...] = (0, 10, 100, 800)
    batch_bytes: tuple[int, ...] = (64, 300, 2000)
    engine: str = SEGMENT_ENGINE
    """Engine of the topics."""
    acks: tuple[Acks, ...] = (Acks.ALL,)
    """Acks of the producers, one after the other."""
    file_model: str = OWN_FILE
    """File model of the topic."""
    data_dirs: int = 1
    """Disks of each node."""
    has_store: bool = False
    """Nodes have an object store."""
    is_restored: bool = False
    """Their bucket is that of another cluster, which is lost."""
    tier_format: str = PARQUET_FORMAT
    """Format of the topic that is tiered in a swarm."""
    shuffle: float = 0.0
    faults: tuple[Fault, ...] = ()
    is_damage_bounded: bool = True
    """At most one disk is damaged, so that no data may become unavailable."""
    may_page: bool = False
    """True = a client sends false messages, or somebody empties the bucket, so that a call for help
    is no problem."""
    looks_up: bool = False
    """A program asks by ``icecore.Lookup``, instead of somebody else (see ``askers``)."""
    begins_at_nodes: bool = False
    """Clients are given addresses of nodes, and no coordinator's."""
    standbys: int = 0
    """Coordinators beside the first one; their metadata are in etcd then."""
    all_acked: bool = False
    """The faults are so few that every record must be acknowledged in the end."""


def engine_of(seed: int) -> str:
    """The engine of a swarm's topics. Not drawn, so that what a seed has drawn so far stays."""
    if seed % 12 == 4:
        return MEMORY_ENGINE
    return ROCKSDB_ENGINE if seed % 6 == 1 else SEGMENT_ENGINE


def file_model_of(seed: int) -> str:
    """The file model of a swarm's topics: of its own chance, so that what a seed drew stays."""
    if engine_of(seed) != SEGMENT_ENGINE:
        return OWN_FILE
    is_shared = random.Random(f"file model {seed}").random() < 0.3
    return SHARED_FILE if is_shared else OWN_FILE


def data_dirs_of(seed: int) -> int:
    """Disks of each node of a swarm: of its own chance, so that what a seed drew stays."""
    return 2 if random.Random(f"data dirs {seed}").random() < 0.3 else 1


def draw_flush(seed: int, plan: Plan) -> Plan:
    """In one world of four the topic syncs late, and may go on without its copies in every second
    of them. Drawn by itself, so that the others stay as they are."""
    rng = random.Random(f"flush {seed}")
    if rng.random() >= 0.25 or (plan.engine, plan.file_model) != (SEGMENT_ENGINE, OWN_FILE):
        return plan
    bounds = FlushBounds(rng.choice([30, 300, 5_000]), rng.choice([1_000, 20_000]))
    on_total_loss = rng.choice([UNAVAILABLE_ON_LOSS, RESTART_EMPTY])
    return replace(plan, flush=bounds, on_total_loss=on_total_loss)


def draw_knobs(rng: random.Random) -> Knobs:
    """Small sizes and short times, different for each seed."""
    knobs = Knobs(
        segment_bytes=rng.choice([4, 8, 16, 64]) * 1024,
        group_items_max=rng.choice([1, 4, 16]),
        allocation_step_bytes=rng.choice([4, 16, 64]) * 1024,
        records_per_point=rng.choice([1, 3, 5]),
        bytes_per_point=rng.choice([512, 4096]),
        io_workers=rng.choice([1, 2, 3]),
        replica_lag_ms_max=rng.choice([300, 1000]),
        lease_ms=rng.choice([500, 1000, 2000]),
        heartbeat_ms=rng.choice([50, 100]),
        recovery_wait_ms=rng.choice([100, 500]),
        roll_up_wait_ms=rng.choice([300, 1500]),
        thread_delay_s=rng.choice([0.0002, 0.001, 0.01]),
        slow_node=rng.choice([0, 0, 1, 2, 3]),
        latency_s=rng.choice([0.001, 0.005, 0.02]),
        tail_cache_bytes=rng.choice([8, 64, 256]) * 1024,
        credit_bytes=rng.choice([16, 64, 256]) * 1024,
    )
    # Not drawn, so that what a seed has drawn so far stays as it is.
    return replace(knobs, sync_on_loop_ms_max=0.0 if knobs.io_workers == 2 else 2.0)
