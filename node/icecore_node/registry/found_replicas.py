"""Replicas of an earlier process, as start-up found them: they may follow or serve, never lead."""

import logging

from icecore.codec.batch import parse_header
from icecore.errors import IcecoreError
from icecore.process.log import event
from icecore_node.context import NodeContext
from icecore_node.registry.digest_queue import DigestQueue
from icecore_node.registry.table import ReplicaTable
from icecore_node.replica.life import Life
from icecore_node.replica.replica import Replica
from icecore_node.storage.port import FoundReplica
from icecore_replication.producers import ProducerTable

_log = logging.getLogger(__name__)


def take_in(
    context: NodeContext, table: ReplicaTable, digests: DigestQueue, found: FoundReplica
) -> None:
    """Put one into the table. What is wrong with it, also its producers, goes into ``found``."""
    producers = None
    if found.sealed_end_offset is None:
        try:
            producers = producers_of(found)
        except IcecoreError as error:  # costs this replica alone (R55)
            found.intact, found.why = False, f"its producers are not known: {error}"
            producers = ProducerTable()
    replica = Replica(
        context.log_io,
        found.identity,
        found.tail,
        producers,
        life=_life(found),
        promised_epoch=context.store.promises.epoch_of(found.identity.segment_id),
        sealed_end_offset=found.sealed_end_offset,
        full_digest=found.full_digest,
    )
    table.add(replica)
    if replica.life is Life.SEALED and not found.full_digest:
        digests.put(replica)
    if not found.intact:
        event(
            _log, logging.WARNING, "replica_unknown", segment_id=replica.segment_id, why=found.why
        )


def producers_of(found: FoundReplica) -> ProducerTable:
    """The producers through the end of an unsealed log. Raises StorageError, CorruptBatchError."""
    table = ProducerTable(found.producer_snapshot)
    for raw in found.headers:
        table.apply_header(parse_header(raw))
    return table


def _life(found: FoundReplica) -> Life:
    if not found.intact:
        return Life.UNKNOWN
    if found.sealed_end_offset is not None:
        return Life.SEALED
    return Life.IDLE if found.identity.base_offset >= 0 else Life.PREPARED
