"""Plain values of ``icecore/model.py`` and errors to protobuf messages and back.

Numbers that a peer may leave out get their documented default here; values no version knows are
refused, because acting on a misread record would be worse than not acting.
"""

from enum import IntEnum
from typing import Any, TypeVar, cast

from icecore.errors import IcecoreError, InvalidRequestError, error_from_reason
from icecore.model import FlushMode, NodeInfo, NodeState, Segment, SegmentSettings, SegmentState
from icecore.v1 import common_pb2, coordinator_pb2

_E = TypeVar("_E", bound=IntEnum)


def _enum(kind: type[_E], number: int) -> _E:
    try:
        return kind(number)
    except ValueError as error:
        raise InvalidRequestError(f"{kind.__name__} has no number {number}") from error


def flush_mode_from_proto(number: int) -> FlushMode:
    """Unspecified is SYNC, the safe one. Raises InvalidRequestError for unknown numbers."""
    return _enum(FlushMode, number or FlushMode.SYNC)


def settings_to_proto(settings: SegmentSettings) -> coordinator_pb2.SegmentSettings:
    """``SegmentSettings`` as a message."""
    return coordinator_pb2.SegmentSettings(
        replication_factor=settings.replication_factor,
        min_insync=settings.min_insync,
        flush_mode=cast(Any, int(settings.flush_mode)),
        segment_bytes=settings.segment_bytes,
        segment_age_ms=settings.segment_age_ms,
        engine=settings.engine,
        file_model=settings.file_model,
        recovery_rule=settings.recovery_rule,
        partitioner=settings.partitioner,
        record_bytes_max=settings.record_bytes_max,
        batch_bytes_max=settings.batch_bytes_max,
        uncompressed_bytes_max=settings.uncompressed_bytes_max,
    )


def settings_from_proto(message: coordinator_pb2.SegmentSettings) -> SegmentSettings:
    """The settings of a message; absent ones get the defaults of ``SegmentSettings``.

    Raises:
        InvalidRequestError: An enum number is unknown.
    """
    default = SegmentSettings()
    return SegmentSettings(
        replication_factor=message.replication_factor or default.replication_factor,
        min_insync=message.min_insync or default.min_insync,
        flush_mode=flush_mode_from_proto(message.flush_mode),
        segment_bytes=message.segment_bytes or default.segment_bytes,
        segment_age_ms=message.segment_age_ms or default.segment_age_ms,
        engine=message.engine or default.engine,
        file_model=message.file_model or default.file_model,
        recovery_rule=message.recovery_rule or default.recovery_rule,
        partitioner=message.partitioner or default.partitioner,
        record_bytes_max=message.record_bytes_max or default.record_bytes_max,
        batch_bytes_max=message.batch_bytes_max or default.batch_bytes_max,
        uncompressed_bytes_max=message.uncompressed_bytes_max or default.uncompressed_bytes_max,
    )


def segment_to_proto(segment: Segment) -> coordinator_pb2.SegmentAssignment:
    """A segment record as a message."""
    return coordinator_pb2.SegmentAssignment(
        segment_id=segment.segment_id,
        generation=segment.generation,
        topic_id=segment.topic_id,
        topic=segment.topic,
        partition=segment.partition,
        state=cast(Any, int(segment.state)),
        epoch=segment.epoch,
        base_offset=segment.base_offset,
        end_offset=segment.end_offset,
        seal_digest=segment.seal_digest,
        full_digest=segment.full_digest,
        leader=segment.leader,
        leader_incarnation=segment.leader_incarnation,
        replicas=segment.replicas,
        isr=segment.isr,
        version=segment.version,
        settings=settings_to_proto(segment.settings),
        log_start_offset=segment.log_start_offset,
        lossy=segment.lossy,
    )


def segment_from_proto(message: coordinator_pb2.SegmentAssignment) -> Segment:
    """The segment record of a message.

    Raises:
        InvalidRequestError: The state or flush mode is unknown.
    """
    return Segment(
        segment_id=message.segment_id,
        generation=message.generation,
        topic_id=message.topic_id,
        topic=message.topic,
        partition=message.partition,
        state=_enum(SegmentState, message.state),
        epoch=message.epoch,
        base_offset=message.base_offset,
        end_offset=message.end_offset,
        seal_digest=message.seal_digest,
        full_digest=message.full_digest,
        leader=message.leader,
        leader_incarnation=message.leader_incarnation,
        replicas=tuple(message.replicas),
        isr=tuple(message.isr),
        version=message.version,
        settings=settings_from_proto(message.settings),
        log_start_offset=message.log_start_offset,
        lossy=message.lossy,
    )


def node_to_proto(node: NodeInfo) -> common_pb2.NodeInfo:
    """A node as a message."""
    return common_pb2.NodeInfo(
        node_id=node.node_id,
        address=node.address,
        incarnation=node.incarnation,
        state=cast(Any, int(node.state)),
        rack=node.rack,
    )


def node_from_proto(message: common_pb2.NodeInfo) -> NodeInfo:
    """The node of a message; an unspecified state is UP.

    Raises:
        InvalidRequestError: The state is unknown.
    """
    return NodeInfo(
        node_id=message.node_id,
        address=message.address,
        incarnation=message.incarnation,
        state=_enum(NodeState, message.state or NodeState.UP),
        rack=message.rack,
    )


def error_to_proto(error: IcecoreError | None) -> common_pb2.Error:
    """An error about one item of a list; None is the message without a reason."""
    if error is None:
        return common_pb2.Error()
    return common_pb2.Error(reason=error.reason, message=error.message, metadata=error.metadata)


def error_from_proto(message: common_pb2.Error) -> IcecoreError | None:
    """The error of a message, None when it has no reason."""
    if not message.reason:
        return None
    return error_from_reason(message.reason, message.message, dict(message.metadata))
