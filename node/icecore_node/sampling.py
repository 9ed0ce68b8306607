"""Values of the gauges: a snapshot of a running node, taken on the scraping thread.

Lists are copied before they are walked, since the loop goes on meanwhile; a number may be a moment
old, which is what a gauge is.
"""

from collections import Counter

from icecore.model import Segment, SegmentState
from icecore_node.context import NodeContext
from icecore_node.metrics import NodeSample, PartitionSample
from icecore_node.registry.table import ReplicaTable
from icecore_node.replica.replica import Replica
from icecore_node.replication.leader import Leader


def sample(context: NodeContext, table: ReplicaTable, produce_inflight_bytes: int) -> NodeSample:
    """The node as it is now."""
    used, free = context.disks.space()
    tails = [(each, each.segment) for each in table if each.role is not None]
    return NodeSample(
        partitions=tuple(
            _partition(replica, record) for replica, record in tails if record is not None
        ),
        segments=tuple(sorted(Counter(map(_state, table)).items())),
        disk_used_bytes=used,
        disk_free_bytes=free,
        disks=tuple(
            (each.path, each.used_bytes, each.free_bytes, not each.problem)
            for each in context.disks.usage()
        ),
        tail_cache_bytes=context.cache.bytes,
        produce_inflight_bytes=produce_inflight_bytes,
        memory_engine_bytes=context.disks.memory.used_bytes,
    )


def _state(replica: Replica) -> str:
    if not replica.life.is_intact:
        return "unknown"
    if replica.sealed:
        return SegmentState.SEALED.name.lower()
    return "idle" if replica.life.is_idle else SegmentState.ACTIVE.name.lower()


def _partition(replica: Replica, record: Segment) -> PartitionSample:
    leader = replica.role if isinstance(replica.role, Leader) else None
    return PartitionSample(
        topic=record.topic,
        partition=record.partition,
        log_start_offset=record.log_start_offset,
        high_watermark=replica.high_watermark,
        log_end_offset=replica.log.tail.end_offset,
        is_leader=leader is not None,
        isr_size=len(leader.core.isr) if leader is not None else 0,
        replication_factor=record.settings.replication_factor,
        replica_lag_offsets=_lags(leader) if leader is not None else (),
    )


def _lags(leader: Leader) -> tuple[tuple[int, int], ...]:
    """Return (node id, records it is behind) of each follower."""
    durable = dict(leader.core.durable_by_node)
    return tuple(
        (node_id, max(0, leader.core.log_end_offset - end))
        for node_id, end in durable.items()
        if node_id != leader.core.node_id
    )
