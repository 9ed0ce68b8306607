"""MirrorService: tells nodes what changed in topics, so that they can tell clients."""

from typing import Final

from icecore.errors import WrongClusterError
from icecore.rpc.framing import parse
from icecore.rpc.methods import MIRROR
from icecore.rpc.ports import CallContext, Handlers, Received
from icecore.rpc.turns import Turns
from icecore.v1 import mirror_pb2 as pb
from icecore_coordinator.nodes.topic_versions import TopicVersions
from icecore_coordinator.services.admin_messages import Describer
from icecore_coordinator.state.cluster_state import ClusterState

PARTITIONS_PER_PAGE: Final = 2_000
"""And as many topics; but at least one whole topic."""


class TopicMirroring:
    """Reads the state, changes nothing."""

    def __init__(self, state: ClusterState, versions: TopicVersions, describer: Describer) -> None:
        self._state = state
        self._versions = versions
        self._describer = describer

    def handlers(self) -> Handlers:
        """By full method name."""
        return MIRROR.handlers({"FollowTopics": self.follow})

    async def follow(self, body: Received, call: CallContext) -> bytes:
        """One page of what changed. Raises WrongClusterError."""
        request = parse(pb.FollowTopicsRequest, body)
        state, versions, turns = self._state, self._versions, Turns(call.slot)
        if request.cluster_id != state.cluster_id:
            raise WrongClusterError(
                f"this is cluster {state.cluster_id.hex()}, not {request.cluster_id.hex()}"
            )
        is_mine = request.coordinator_epoch == state.coordinator_epoch
        since = versions.known_since(request.since_version) if is_mine else 0
        is_next = is_mine and since == request.since_version
        after = request.after_version if is_next else 0
        response = pb.FollowTopicsResponse(
            cluster_id=state.cluster_id,
            coordinator_epoch=state.coordinator_epoch,
            since_version=since,
            after_version=after,
            version=versions.version,
        )
        size, reached = 0, after
        for topic_id, version in versions.topics_since(max(since, after)):
            if size >= PARTITIONS_PER_PAGE:
                response.more, response.version = True, reached
                break
            await turns.give()
            size += self._add(response, topic_id, since)
            reached = version
        return response.SerializeToString()

    def _add(self, response: pb.FollowTopicsResponse, topic_id: bytes, since: int) -> int:
        """The topic as it is now: others had their turn since the list was made. Returns how many
        records were looked at."""
        topic = self._state.topics.get(topic_id)
        if topic is None or not topic.is_live:
            response.gone_topic_ids.append(topic_id)
            return 1
        numbers = self._versions.partitions_since(topic_id, since)
        response.topics.append(self._describer.mirrored(topic, numbers))
        return 1 + len(numbers)
