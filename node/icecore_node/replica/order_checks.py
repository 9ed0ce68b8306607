"""Checks of the coordinator's orders against the facts that this node knows.

An order may be forged, late, or come from a broken coordinator. The node refuses it, and changes
nothing, when the order would

- raise a number that never goes down again beyond a possible value,
- contradict the seal that a replica has stored,
- cut off records that readers have seen,
- cut or seal a log although this node's own record of the segment does not say so,
- come from a coordinator of which this node's own stream has not told, or
- name a segment that can't exist.

A forger who knows all that the coordinator knows is not stopped. Rules R65, R66, R110 and R111 of
docs/design/protocol.md.
"""

import logging
from collections.abc import Mapping, Sized
from typing import Final

from icecore.errors import (
    FencedError,
    InvalidRequestError,
    StorageError,
    UnavailableError,
    UnsupportedError,
)
from icecore.model import (
    GENERATION_MAX,
    SEGMENT_ID_MAX,
    CoordinatorEpoch,
    Epoch,
    NodeState,
    ProducerEpoch,
    ProducerId,
    Segment,
    SegmentId,
    SegmentState,
)
from icecore.process.log import event
from icecore.rpc.convert import settings_from_proto
from icecore.topic_settings import ENGINES, FILE_MODELS, SegmentSettings
from icecore.v1 import coordinator_pb2
from icecore_node.context import Peers, ProducerFences
from icecore_node.identity.identity import Identity
from icecore_node.replica.replica import Replica
from icecore_node.storage.engine import SegmentIdentity
from icecore_replication.producers import EPOCH_JUMP_MAX, ProducerTable

_log = logging.getLogger(__name__)

PROMISE_JUMP_MAX: Final = 2 << 20
"""Over a segment's own epoch; a recovery promises the next one."""
ITEMS_MAX: Final = 1_024
"""In the list of one order; the coordinator sends 512."""
TOPIC_ID_LENGTH: Final = 16
PARTITION_MAX: Final = 1 << 20
NUMBER_MAX: Final = 1 << 62
"""Maximum of epochs and offsets. Files and the control store hold 63 bits, and logs grow."""

IMPLEMENTED: Final[Mapping[str, tuple[str, ...]]] = {
    "engine": ENGINES,
    "file_model": FILE_MODELS,
    "recovery_rule": ("quorum",),
}
"""Supported values of the settings that a node must obey. Other nodes go by a segment's record:
a segment that is kept or ended in another way would be lost to them."""


def check_coordinator_epoch(identity: Identity, coordinator_epoch: CoordinatorEpoch) -> None:
    """Compare the coordinator of an order with those that this node's own stream has told of.

    Raises:
        UnavailableError: A later coordinator. The node's own stream finds it soon, if there is one.
        FencedError: An earlier one.
    """
    known = identity.coordinator_epoch
    if coordinator_epoch > known:
        raise UnavailableError(
            f"node {identity.node_id} has not heard of coordinator epoch {coordinator_epoch} on "
            f"its own stream, which has {known}: send the order again when the node is connected"
        )
    if coordinator_epoch < known:
        raise FencedError(
            f"coordinator epoch {coordinator_epoch} is older than {known}", coordinator_epoch=known
        )


def check_length(items: Sized) -> None:
    """Raises InvalidRequestError for lists that would hold up everybody else."""
    if len(items) > ITEMS_MAX:
        raise InvalidRequestError(f"{len(items)} items in one call, at most {ITEMS_MAX} are taken")


def check_promise(replica: Replica, epoch: Epoch) -> None:
    """Raises InvalidRequestError for a promise that would lock the replica up for ever, or end its
    leader although no recovery asks for that: one asks for a higher epoch."""
    if epoch <= replica.identity.epoch:
        raise InvalidRequestError(
            f"epoch {epoch} is that of segment {replica.segment_id} itself: a fence raises it"
        )
    if epoch > replica.identity.epoch + PROMISE_JUMP_MAX:
        raise InvalidRequestError(
            f"epoch {epoch} is too far beyond {replica.identity.epoch}, which segment "
            f"{replica.segment_id} has"
        )


def promised(replica: Replica) -> FencedError:
    """The refusal of who promised a higher epoch."""
    return FencedError(
        f"epoch {replica.promised_epoch} is promised for segment {replica.segment_id}",
        promised_epoch=replica.promised_epoch,
    )


def check_identity(identity: SegmentIdentity, base_offset: int | None) -> None:
    """Raises InvalidRequestError for a segment that can't be: nothing of it may be stored.

    Args:
        identity: As the order has it.
        base_offset: Where the log is to begin; None when that is not said yet.
    """
    segment_id = identity.segment_id
    if not 1 <= segment_id <= SEGMENT_ID_MAX:
        raise InvalidRequestError(f"no segment has the id {segment_id}")
    if not 0 <= identity.generation <= GENERATION_MAX:
        raise InvalidRequestError(
            f"segment {segment_id}: no segment has generation {identity.generation}"
        )
    if len(identity.topic_id) != TOPIC_ID_LENGTH:
        raise InvalidRequestError(
            f"segment {segment_id}: a topic id has {TOPIC_ID_LENGTH} bytes, this one has "
            f"{len(identity.topic_id)}"
        )
    if not 0 <= identity.partition <= PARTITION_MAX:
        raise InvalidRequestError(f"segment {segment_id}: no partition {identity.partition}")
    if not 1 <= identity.epoch <= NUMBER_MAX:
        raise InvalidRequestError(f"segment {segment_id}: no segment has epoch {identity.epoch}")
    if base_offset is not None and not 0 <= base_offset <= NUMBER_MAX:
        raise InvalidRequestError(f"segment {segment_id}: no log begins at {base_offset}")


def check_same(replica: Replica, identity: SegmentIdentity) -> None:
    """Raises InvalidRequestError when the replica that is here is of another segment. Its base is
    not compared: it may be given yet."""
    have = replica.identity
    ours = (have.topic_id, have.partition, have.generation, have.epoch)
    if ours == (identity.topic_id, identity.partition, identity.generation, identity.epoch):
        return
    event(
        _log,
        logging.CRITICAL,
        "open_contradicts",
        segment_id=replica.segment_id,
        topic_id=have.topic_id,
        partition=have.partition,
        generation=have.generation,
        epoch=have.epoch,
        asked_topic_id=identity.topic_id[:32],
        asked_partition=identity.partition,
        asked_generation=identity.generation,
        asked_epoch=identity.epoch,
    )
    raise InvalidRequestError(
        f"segment {replica.segment_id} is here with another topic, partition, generation or epoch"
    )


def not_implemented(settings: SegmentSettings) -> str:
    """Name the settings that this node does not support; empty when it can keep such a segment."""
    return ", ".join(
        f"{name} {getattr(settings, name)[:100]!r}"
        for name, known in IMPLEMENTED.items()
        if getattr(settings, name) not in known
    )


def check_implemented(segment_id: SegmentId, settings: SegmentSettings) -> None:
    """Raises UnsupportedError for a segment that this node can't keep as its record says."""
    if what := not_implemented(settings):
        raise UnsupportedError(f"segment {segment_id}: this node does not implement {what}")


def check_open(
    item: coordinator_pb2.OpenSegment, identity: SegmentIdentity, replica: Replica | None
) -> None:
    """Raises InvalidRequestError for an Open of what can't be, or is here as something else, and
    UnsupportedError for one of what can't be kept here."""
    check_identity(identity, item.segment.base_offset if item.confirm else None)
    check_implemented(identity.segment_id, settings_from_proto(item.segment.settings))
    if replica is not None:
        check_same(replica, identity)
    elif item.confirm:
        try:  # what is stored now is read at each start
            ProducerTable(item.producer_snapshot)
        except StorageError as error:
            raise InvalidRequestError(f"segment {identity.segment_id}: {error}") from error


def check_producer_fence(
    fences: ProducerFences, producer_id: ProducerId, min_epoch: ProducerEpoch
) -> None:
    """Raises InvalidRequestError for an epoch that the producer's name can't have reached."""
    known = fences.min_epoch(producer_id)
    if min_epoch > known + EPOCH_JUMP_MAX:
        raise InvalidRequestError(
            f"epoch {min_epoch} of producer {producer_id} is too far beyond {known}, the highest "
            "one known here"
        )


def donor_of(peers: Peers, address: str) -> str:
    """Return where the donor of a copy is called; orders name it by its gRPC address, which all
    nodes understand, and each chooses its own transport. Empty as the order has it: no donor.

    Raises InvalidRequestError for a donor that is no node of this cluster.
    """
    if not address:
        return ""
    # One that is gone may have had the same address.
    known = sorted(peers.nodes.values(), key=lambda peer: peer.state is NodeState.DOWN)
    for peer in known:
        if peer.address == address:
            return peers.address(peer.node_id)
    raise InvalidRequestError(f"no node of this cluster that is known here has {address[:300]!r}")


def check_write_back(
    replica: Replica, end_offset: int, expected_digest: bytes, *, seal: bool
) -> None:
    """Compare an order to bring a replica to an end with what the node knows of the segment itself.

    Raises:
        InvalidRequestError: It contradicts the stored seal, or would end the log below what readers
            may have seen. Only the record may accept the latter, ``lossy`` (R46).
        UnavailableError: It would cut or seal the log, and the record does not say so yet.
    """
    if not replica.life.is_intact:
        return
    known = replica.segment
    is_lossy = known is not None and known.lossy
    why = contradiction(replica, end_offset, expected_digest, is_lossy=is_lossy)
    if why:
        event(_log, logging.CRITICAL, "order_refused", segment_id=replica.segment_id, why=why)
        raise InvalidRequestError(f"segment {replica.segment_id}: {why}")
    if replica.sealed or not replica.life.counts:
        return
    is_ended = seal or replica.log.tail.end_offset > end_offset
    if is_ended and not is_recorded(replica, end_offset, expected_digest):
        raise UnavailableError(
            f"segment {replica.segment_id}: this node's own stream has not said that it is sealed "
            f"at {end_offset}. Nothing was cut or sealed; send the order again"
        )


def contradiction(replica: Replica, end_offset: int, digest: bytes, *, is_lossy: bool) -> str:
    """Return why an intact replica can't be part of a segment with this end; empty when it can."""
    tail = replica.log.tail
    if replica.sealed:
        if (tail.end_offset, tail.digest) != (end_offset, digest or tail.digest):
            return f"it is sealed here at {tail.end_offset}, not at {end_offset} with that digest"
        return ""
    seen = max(tail.max_known_high_watermark, replica.high_watermark)
    if end_offset < seen and not is_lossy:
        return f"the end {end_offset} is below a high watermark that was visible here, {seen}"
    return ""


def objection(replica: Replica, segment: Segment) -> str:
    """Return why a replica can't do what a record says; empty when it can."""
    if what := not_implemented(segment.settings):
        return f"this node does not implement {what}"
    if segment.state is SegmentState.SEALED and replica.life.is_intact:
        end = (segment.end_offset, segment.seal_digest)
        return contradiction(replica, *end, is_lossy=segment.lossy)
    return ""


def is_in_the_way(replica: Replica, record: Segment) -> bool:
    """Return whether an order has opened another segment here, under the id that a record of our
    own stream gives to this one. It has no batch, so nothing is lost with it (R111)."""
    have = replica.identity
    ours = (have.topic_id, have.partition, have.generation)
    is_another = ours != (record.topic_id, record.partition, record.generation)
    return is_another and replica.log.tail.end_offset <= max(replica.base_offset, 0)


def is_recorded(replica: Replica, end_offset: int, digest: bytes) -> bool:
    """Return whether the record that came down our own heartbeat stream says that this is the
    seal."""
    known = replica.segment
    return (
        known is not None
        and known.state is SegmentState.SEALED
        and (known.end_offset, known.seal_digest) == (end_offset, digest)
    )
