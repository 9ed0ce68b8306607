"""What a node refuses to do although an order says so: orders are compared with what is known here.

An order may be forged, late, or come from a broken coordinator. So it may not raise numbers that
never go down again beyond what can be, nor contradict the seal that a replica has stored, nor cut
off what readers have seen; what does is refused and changes nothing. This stops no forger who knows
all that the coordinator knows. Rules R65 and R66 of docs/PROTOCOL.md.
"""

import logging
from collections.abc import Sized
from typing import Final

from icecore.errors import InvalidRequestError
from icecore.model import Segment, SegmentState
from node.context import NodeContext
from node.replica import Replica
from replication.producers import EPOCH_JUMP_MAX

_log = logging.getLogger(__name__)

TOKEN_JUMP_MAX: Final = 1 << 20
"""Each start of a coordinator raises the token by one."""
PROMISE_JUMP_MAX: Final = 2 << 20
"""Over a segment's own epoch; a recovery promises the next one."""
ITEMS_MAX: Final = 1_024
"""In the list of one order; the coordinator sends 512."""


def check_token(context: NodeContext, token: int) -> None:
    """Raises InvalidRequestError for a token that no coordinator can have."""
    if token > context.token + TOKEN_JUMP_MAX:
        raise InvalidRequestError(
            f"coordinator token {token} is too far beyond {context.token}, the highest one known "
            "here"
        )


def check_length(items: Sized) -> None:
    """Raises InvalidRequestError for lists that would hold up everybody else."""
    if len(items) > ITEMS_MAX:
        raise InvalidRequestError(f"{len(items)} items in one call, at most {ITEMS_MAX} are taken")


def check_promise(replica: Replica, epoch: int) -> None:
    """Raises InvalidRequestError for a promise that would lock the replica up for ever."""
    if epoch > replica.identity.epoch + PROMISE_JUMP_MAX:
        raise InvalidRequestError(
            f"epoch {epoch} is too far beyond {replica.identity.epoch}, which segment "
            f"{replica.segment_id} has"
        )


def check_producer_fence(context: NodeContext, producer_id: int, min_epoch: int) -> None:
    """Raises InvalidRequestError for an epoch that the producer's name can't have reached."""
    known = context.producer_fences.get(producer_id, 0)
    if min_epoch > known + EPOCH_JUMP_MAX:
        raise InvalidRequestError(
            f"epoch {min_epoch} of producer {producer_id} is too far beyond {known}, the highest "
            "one known here"
        )


def check_donor(context: NodeContext, address: str) -> None:
    """Raises InvalidRequestError for a donor that is no node of this cluster."""
    if address and all(peer.address != address for peer in context.peers.values()):
        raise InvalidRequestError(
            f"no node of this cluster that is known here has {address[:300]!r}"
        )


def check_write_back(
    replica: Replica, segment: Segment, end_offset: int, expected_digest: bytes
) -> None:
    """Raises InvalidRequestError when the order contradicts the stored seal, or would cut off what
    readers may have seen. ``lossy`` says that a person has accepted the latter (R46)."""
    if not replica.intact:
        return
    why = contradiction(replica, end_offset, expected_digest, is_lossy=segment.lossy)
    if why:
        _log.critical("order refused segment_id=%d why=%s", replica.segment_id, why)
        raise InvalidRequestError(f"segment {replica.segment_id}: {why}")


def contradiction(replica: Replica, end_offset: int, digest: bytes, *, is_lossy: bool) -> str:
    """Why an intact replica can't be part of a segment with this end; empty when it can."""
    tail = replica.tail
    if replica.sealed:
        if (tail.end_offset, tail.digest) != (end_offset, digest or tail.digest):
            return f"it is sealed here at {tail.end_offset}, not at {end_offset} with that digest"
        return ""
    seen = max(tail.max_known_high_watermark, replica.high_watermark)
    if end_offset < seen and not is_lossy:
        return f"the end {end_offset} is below a high watermark that was visible here, {seen}"
    return ""


def is_recorded(replica: Replica, end_offset: int, digest: bytes) -> bool:
    """Whether the record that came down our own heartbeat stream says that this is the seal."""
    known = replica.segment
    return (
        known is not None
        and known.state is SegmentState.SEALED
        and (known.end_offset, known.seal_digest) == (end_offset, digest)
    )


def is_shut_out(replica: Replica, node_id: int) -> bool:
    """Whether a promise keeps us out of a segment that the coordinator believes to be ACTIVE.

    A recovery changes the record first and fences then. So somebody else fenced, or the coordinator
    has forgotten that it did; only a recovery leads out of it.
    """
    known = replica.segment
    return (
        replica.intact
        and known is not None
        and known.state is SegmentState.ACTIVE
        and node_id in known.replicas
        and replica.promised_epoch > known.epoch
    )
