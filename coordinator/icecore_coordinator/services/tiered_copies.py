"""Describes published segments in object storage to nodes. A node asks when it must read records of
which it has no copy."""

from icecore.errors import ConflictError, InvalidRequestError, WrongClusterError
from icecore.model import SegmentId
from icecore.rpc.convert import error_to_proto, segment_to_proto
from icecore.rpc.framing import parse
from icecore.rpc.ports import CallContext, Received
from icecore.v1 import coordinator_pb2 as pb
from icecore_coordinator.nodes.tier_calls import copy_to_proto
from icecore_coordinator.state.cluster_state import ClusterState, is_published

SEGMENTS_MAX = 1_000


class TieredCopies:
    """Reads the state, changes nothing."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state

    async def describe(self, body: Received, _: CallContext) -> bytes:
        """Each segment by itself: some may be gone, or lie on nodes alone.

        Raises WrongClusterError, InvalidRequestError for too many at once.
        """
        request = parse(pb.DescribeTieredRequest, body)
        if request.cluster_id != self._state.cluster_id:
            raise WrongClusterError(
                f"this is cluster {self._state.cluster_id.hex()}, not {request.cluster_id.hex()}"
            )
        if len(request.segment_ids) > SEGMENTS_MAX:
            raise InvalidRequestError(f"at most {SEGMENTS_MAX} segments at once")
        found = [self._segment(SegmentId(each)) for each in request.segment_ids]
        return pb.DescribeTieredResponse(segments=found).SerializeToString()

    def _segment(self, segment_id: SegmentId) -> pb.TieredSegment:
        record = self._state.segments.get(segment_id)
        if record is None:
            error = ConflictError(f"there is no segment {segment_id} (any more)")
            return pb.TieredSegment(error=error_to_proto(error))
        segment = segment_to_proto(self._state.assignment(record))
        if not is_published(self._state, record):
            error = ConflictError(f"no copy of segment {segment_id} is published")
            return pb.TieredSegment(error=error_to_proto(error), segment=segment)
        tier = self._state.tiers.segments[segment_id]
        return pb.TieredSegment(segment=segment, copy=copy_to_proto(tier))
