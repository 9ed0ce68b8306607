"""What the gauges show: a snapshot of a running node, taken on the scraping thread.

Lists are copied before they are walked, since the loop goes on meanwhile; a number may be a moment
old, which is what a gauge is.
"""

from icecore_node.metrics import NodeSample, PartitionSample
from icecore_node.node import Node
from icecore_node.replica.replica import Replica


def sample(node: Node) -> NodeSample:
    """The node as it is now."""
    context = node.context
    used, free = context.files.space()
    tails = [replica for replica in node.replicas if not replica.idle and not replica.sealed]
    return NodeSample(
        partitions=tuple(_partition(replica) for replica in tails if replica.segment is not None),
        segments=tuple(sorted(node.segment_counts().items())),
        disk_used_bytes=used,
        disk_free_bytes=free,
        tail_cache_bytes=context.cache.bytes,
        produce_inflight_bytes=node.data.produce.inflight_bytes,
    )


def _partition(replica: Replica) -> PartitionSample:
    segment, leader = replica.segment, replica.leader
    assert segment is not None
    return PartitionSample(
        topic=segment.topic,
        partition=segment.partition,
        log_start_offset=segment.log_start_offset,
        high_watermark=replica.high_watermark,
        log_end_offset=replica.tail.end_offset,
        is_leader=leader is not None,
        isr_size=len(leader.core.isr) if leader is not None else 0,
        replication_factor=segment.settings.replication_factor,
    )
