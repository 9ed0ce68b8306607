"""Collects the digests of a segment's replicas before its leader seals it.

Each digest is a pair: that of the log, and that of the producers which the segment remembers.
Nothing is compared here; ``icecore_replication/seal_check.py`` does that.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import TypeAlias

from icecore.errors import IcecoreError
from icecore.model import NodeId, Segment
from icecore.process.log import event
from icecore.rpc.methods import REPLICATION
from icecore.v1 import replication_pb2
from icecore_node.context import NodeContext
from icecore_node.replica.replica import Replica

Digests: TypeAlias = tuple[bytes, bytes]
SEAL_PREPARE_TIMEOUT_S = 5.0
_log = logging.getLogger(__name__)


async def own_digests(replica: Replica, role: object) -> Digests | None:
    """Return the digests of a replica here; None when its log could not be synced, or when ``role``
    has ended meanwhile."""
    try:
        await replica.log.stay_synced()
    except IcecoreError as error:
        segment_id = replica.segment_id
        event(_log, logging.WARNING, "not_synced", segment_id=segment_id, error=error)
        return None
    if replica.role is not role:
        return None
    return replica.log.tail.digest, replica.log.producers.digest()


async def ask_digests(
    context: NodeContext, segment: Segment, end_offset: int, nodes: Sequence[NodeId]
) -> dict[NodeId, Digests]:
    """Ask other nodes for the digests of their replicas, all at once. A node that does not answer
    is left out.

    Args:
        context: Of this node, which leads the segment.
        segment: Its replicas are asked for.
        end_offset: Where the segment is to end.
        nodes: The others.
    """
    answers = await asyncio.gather(
        *(_ask(context, segment, end_offset, node_id) for node_id in nodes)
    )
    asked = zip(nodes, answers, strict=True)
    return {node_id: answer for node_id, answer in asked if answer is not None}


async def _ask(
    context: NodeContext, segment: Segment, end_offset: int, node_id: NodeId
) -> Digests | None:
    request = replication_pb2.SealPrepareRequest(
        cluster_id=context.identity.cluster_id,
        segment_id=segment.segment_id,
        epoch=segment.epoch,
        end_offset=end_offset,
        node_id=node_id,
    )
    try:
        body = await context.net.call(
            context.peers.address(node_id),
            REPLICATION["SealPrepare"],
            request.SerializeToString(),
            timeout_s=SEAL_PREPARE_TIMEOUT_S,
        )
    except IcecoreError as error:
        event(
            _log,
            logging.WARNING,
            "no_seal_digest",
            segment_id=segment.segment_id,
            node_id=node_id,
            error=error,
        )
        return None
    answer = replication_pb2.SealPrepareResponse.FromString(bytes(body))
    return answer.seal_digest, answer.producer_digest
