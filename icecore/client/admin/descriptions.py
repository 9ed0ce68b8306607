"""Converts the coordinator's descriptions of topics and of the cluster into client values."""

from icecore.client.admin.topic_settings import settings_from_proto
from icecore.client.cluster_types import (
    AdoptedMetadata,
    AdoptFinding,
    Alert,
    ClusterDescription,
    DiskUsage,
    LimitUse,
    NodeDescription,
)
from icecore.client.types import PartitionDescription, SnapshotHold, TopicDescription
from icecore.errors import InternalError
from icecore.rpc import convert
from icecore.v1 import admin_pb2


def topic_from_proto(message: admin_pb2.TopicDescription) -> TopicDescription:
    """Raises InternalError: It is none."""
    if not message.name:
        raise InternalError("the coordinator answered without a topic")
    partitions = tuple(
        PartitionDescription(
            partition=found.partition,
            log_start_offset=found.log_start_offset,
            high_watermark=found.high_watermark,
            tail=convert.segment_from_proto(found.tail) if found.tail.segment_id else None,
            segments=found.segments,
            under_replicated_segments=found.under_replicated_segments,
            lossy_segments=found.lossy_segments,
            tiered_segments=found.tiered_segments,
            remote_only_segments=found.remote_only_segments,
            length_bytes=found.length_bytes,
            left_out=tuple((each.base_offset, each.end_offset) for each in found.left_out),
        )
        for found in message.partitions
    )
    settings = settings_from_proto(message.settings)
    return TopicDescription(
        message.name,
        message.topic_id,
        settings,
        partitions,
        deleted=message.deleted,
        deleted_at_ms=message.deleted_at_ms,
        grace_left_ms=message.grace_left_ms,
        earlier_partitions=tuple(message.earlier_partitions),
        holds=tuple(
            SnapshotHold(message.topic_id, each.lease_id, each.left_ms, each.owner)
            for each in message.holds
        ),
    )


def cluster_from_proto(answer: admin_pb2.DescribeClusterResponse) -> ClusterDescription:
    """Nodes and totals."""
    nodes = tuple(
        NodeDescription(
            node=convert.node_from_proto(node.node),
            leads=node.leads,
            replicas=node.replicas,
            disk_used_bytes=node.disk_used_bytes,
            disk_free_bytes=node.disk_free_bytes,
            disks=tuple(
                DiskUsage(each.path, each.used_bytes, each.free_bytes, each.problem)
                for each in node.disks
            ),
            is_drained=node.drained,
            held=node.held,
            host=node.host,
            down_since_ms=node.down_since_ms,
        )
        for node in answer.nodes
    )
    return ClusterDescription(
        cluster_id=answer.cluster_id,
        coordinator_epoch=answer.coordinator_epoch,
        nodes=nodes,
        topics=answer.topics,
        partitions=answer.partitions,
        segments=answer.segments,
        sealed_segments=answer.sealed_segments,
        under_replicated=answer.under_replicated,
        min_copies=answer.min_copies,
        recoveries=answer.recoveries,
        offline_partitions=answer.offline_partitions,
        deleted_topics=answer.deleted_topics,
        deleted_bytes=answer.deleted_bytes,
        alerts=tuple(
            Alert(each.segment_id, each.why, each.first_at_ms, each.last_at_ms)
            for each in answer.alerts
        ),
        limits=tuple(
            LimitUse(each.name, each.used, each.most, each.way_out) for each in answer.limits
        ),
        refused_streams=answer.refused_streams,
        backup_at_ms=answer.backup_at_ms,
    )


def adopted_from_proto(answer: admin_pb2.AdoptMetadataResponse) -> AdoptedMetadata:
    """Return how suspended metadata go on, or would."""
    return AdoptedMetadata(
        cluster_id=answer.cluster_id,
        is_done=answer.done,
        told_nodes=tuple(answer.told_nodes),
        missing_nodes=tuple(answer.missing_nodes),
        segments_found=answer.segments_found,
        topics_found=answer.topics_found,
        findings=tuple(
            AdoptFinding(each.why, each.topic, each.partition, each.segment_id, each.gap)
            for each in answer.findings
        ),
    )
