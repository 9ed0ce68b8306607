"""Remove a replica: set it aside when it is in the way, delete it on the coordinator's order.

That it goes is stored before its first byte moves (R41, R69): a crash in the middle finds a replica
that is to go, never one that is merely missing.
"""

import logging
from collections import defaultdict
from collections.abc import Sequence

from icecore.errors import IcecoreError
from icecore.model import CoordinatorEpoch, SegmentId
from icecore.process.log import event
from icecore.topic_settings import SEGMENT_ENGINE
from icecore_node.ports import DiskFailedError
from icecore_node.storage.control.control_store import QUARANTINED, SEALED, ReplicaRow
from icecore_node.storage.control.disk_identity import engine_of
from icecore_node.storage.engine import SegmentIdentity
from icecore_node.storage.replica_catalog import ReplicaCatalog

_log = logging.getLogger(__name__)


class ReplicaRemoval:
    """Takes replicas away from their engines. All methods block."""

    def __init__(self, catalog: ReplicaCatalog) -> None:
        self._catalog = catalog
        self._control = catalog.control

    def finish_deletions(self) -> None:
        """Carry out deletions left by an earlier process, one by one if all together fail."""
        if not (intents := self._control.intents()):
            return
        for group in (intents, *([each] for each in intents)):
            try:
                self._remove(group)
            except DiskFailedError:
                raise
            except IcecoreError as error:  # the coordinator orders it again
                event(_log, logging.ERROR, "not_deleted", segments=len(group), error=error)
            else:
                if group is intents:
                    return

    def quarantine(self, segment_id: SegmentId, why: str) -> None:
        """Keep the bytes aside under another name and forget the replica; it is UNKNOWN. On a disk
        that does not count they stay as they are.

        Raises:
            NotReplicaError: There is no such replica.
        """
        with self._catalog.changing:
            row = self._catalog.row(segment_id)
            if row.state == QUARANTINED:
                return
            # UNKNOWN before anything moves: a crash must not find it merely missing.
            self._control.change_row(segment_id, damage=why)
            if not self._catalog.disks.problem(row.engine):
                self._catalog.engine_named(row.engine).set_aside(self._catalog.identity(row))
            self._control.change_row(segment_id, state=QUARANTINED)
        event(_log, logging.ERROR, "quarantined", segment_id=segment_id, why=why)

    def delete(self, segment_ids: Sequence[SegmentId], coordinator_epoch: CoordinatorEpoch) -> None:
        """Remove replicas on the coordinator's order, which is stored first, with one control-store
        sync for all of them. What is not here counts as removed. Idempotent.

        Raises:
            FencedError: The coordinator epoch is old; then nothing is changed.
            StorageError: A file is in the way, or a disk does not count; the order stays.
        """
        with self._catalog.changing:
            here = [one for one in dict.fromkeys(segment_ids) if self._control.row(one) is not None]
            if here:
                self._control.put_intents(here, coordinator_epoch)
                self._remove(here)

    def _remove(self, segment_ids: Sequence[SegmentId]) -> None:
        """Carry out stored orders and forget them."""
        by_engine: defaultdict[str, list[SegmentIdentity]] = defaultdict(list)
        for row in map(self._control.row, segment_ids):
            if row is None:
                continue
            self._catalog.disks.check(row.engine)
            for name in [row.engine, *self._others(row)]:
                by_engine[name].append(self._catalog.identity(row))
        for name, identities in by_engine.items():
            self._catalog.engine_named(name).drop(identities)
        self._control.finish_intents(segment_ids)

    def _others(self, row: ReplicaRow) -> list[str]:
        """Return the names of other engines that may have a file of this replica.

        A hand-over or a creation on another disk may not have ended, or a copy may have been made
        while the replica's disk was missing.
        """
        is_elsewhere = row.state == SEALED and engine_of(row.engine) != SEGMENT_ENGINE
        if self._catalog.disks.count == 1 and not is_elsewhere:
            return []
        return [
            name
            for name, _ in self._catalog.in_use()
            if engine_of(name) == SEGMENT_ENGINE and name != row.engine
        ]
