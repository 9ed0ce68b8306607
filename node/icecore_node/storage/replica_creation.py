"""Create a replica, confirm it at its base, certify it when it is a copy.

Bytes are durable before the record says that they are there, and both before anybody uses them
(R34). Of a copy the record says that it is not whole until ``certify`` or a seal.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import MappingProxyType

from icecore.errors import IcecoreError, InvalidRequestError, StorageError
from icecore.model import SegmentId
from icecore_node.ports import DiskLostError
from icecore_node.storage.control.control_store import (
    CONFIRMED,
    PREPARED,
    QUARANTINED,
    SEALED,
    ReplicaRow,
)
from icecore_node.storage.disk_choice import DiskChoice
from icecore_node.storage.engine import CreatedLog, LogTail, NewLog, SegmentIdentity
from icecore_node.storage.replica_catalog import ReplicaCatalog


class ReplicaCreation:
    """Makes replicas, with the engine that each names. All methods block."""

    def __init__(self, catalog: ReplicaCatalog) -> None:
        self._catalog = catalog
        self._control = catalog.control
        self._placement = DiskChoice(catalog)

    def create(
        self,
        identities: Sequence[SegmentIdentity],
        starts: Mapping[SegmentId, tuple[bytes, int]] = MappingProxyType({}),
        is_copy: bool = False,
    ) -> list[IcecoreError | None]:
        """Make replicas: bytes and records are durable on return. Idempotent.

        One control-store sync for all that one engine keeps.

        Args:
            identities: What to make; the engine of each keeps its bytes.
            starts: Segment id to producer snapshot and ``max_append_timestamp_ms``. Those in it are
                confirmed at the base of their identity in the same stroke, others only prepared.
            is_copy: They are not intact until ``certify`` or ``seal``: what they are to hold is
                elsewhere.

        Returns:
            For each why it could not be made: OutOfSpaceError etc., InvalidRequestError when
            another replica of the segment is here, StorageError when that is UNKNOWN,
            UnsupportedError for an engine that this node has not.
        """
        errors: dict[SegmentId, IcecoreError] = {}
        made: list[ReplicaRow] = []
        new: defaultdict[str, list[ReplicaRow]] = defaultdict(list)
        with self._catalog.changing:
            if identities and not self._catalog.cluster_id:  # just registered
                self._catalog.cluster_id = identities[0].cluster_id
            for identity in identities:
                segment_id = identity.segment_id
                try:
                    row = self._new_row(identity, starts.get(segment_id), is_copy=is_copy)
                except IcecoreError as error:
                    errors[segment_id] = error
                else:
                    made += [] if row is None else [row]
            for row in self._placement.placed(made):
                new[row.engine].append(row)
            for name, rows in new.items():
                errors.update(self._create(name, rows))
        return [errors.get(identity.segment_id) for identity in identities]

    def _new_row(
        self, identity: SegmentIdentity, start: tuple[bytes, int] | None, *, is_copy: bool
    ) -> ReplicaRow | None:
        """The record of a replica to be made; None when it is here. Raises why it can't be made."""
        segment_id = identity.segment_id
        if identity.cluster_id != self._catalog.cluster_id:
            raise InvalidRequestError("a replica of another cluster")
        self._catalog.engine_named(identity.engine)
        old = self._control.row(segment_id)
        is_rebuilding = is_copy or (old is not None and old.state == QUARANTINED)
        row = ReplicaRow.prepared(identity, int(is_rebuilding))
        if start is not None:
            row = row.confirmed(identity.base_offset, *start)
        if old is None:
            return row
        have = replace(self._catalog.identity(old), base_offset=-1)
        if have != replace(identity, base_offset=-1) and old.state != QUARANTINED:
            raise InvalidRequestError(f"segment {segment_id} is here as {have}")
        if self._catalog.holds(segment_id):
            return None
        if old.state in (CONFIRMED, SEALED):
            raise StorageError(f"segment {segment_id} is UNKNOWN: {old.damage}")
        return row

    def _create(self, location: str, rows: Sequence[ReplicaRow]) -> dict[SegmentId, IcecoreError]:
        by_id = {row.segment_id: row for row in rows}

        def remember(created: Sequence[CreatedLog]) -> None:
            made = [
                replace(by_id[log.segment_id], rebuilding=1)
                if log.replaces_data
                else by_id[log.segment_id]
                for log in created
            ]
            # Of what is here now only: a promise tells that the segment was here once.
            self._control.put_rows(made, [(row.segment_id, row.epoch) for row in made])

        logs = [NewLog(self._catalog.identity(row), row.start_timestamp_ms) for row in rows]
        try:
            return self._catalog.engine_named(location).create(logs, remember)
        except DiskLostError as error:  # the next attempt goes to another disk
            return {row.segment_id: error for row in rows}

    def confirm(
        self, identity: SegmentIdentity, producer_snapshot: bytes, max_append_timestamp_ms: int
    ) -> LogTail:
        """Fix base offset and starting state of a created replica, durably. Idempotent; another
        base is accepted while the log is empty.

        Raises:
            NotReplicaError: It was not created here.
            InvalidRequestError: It holds data under another base.
        """
        segment_id = identity.segment_id
        row, engine = self._catalog.row(segment_id), self._catalog.engine(segment_id)
        tail = engine.reader.tail(segment_id)
        if identity.base_offset < 0:
            raise InvalidRequestError(f"segment {segment_id} cannot be confirmed")
        have = replace(self._catalog.identity(row), base_offset=-1)
        if replace(identity, base_offset=-1) != have:
            raise InvalidRequestError(f"segment {segment_id} is here as {have}")
        confirmed = row.confirmed(identity.base_offset, producer_snapshot, max_append_timestamp_ms)
        if row.state != PREPARED:
            if confirmed == replace(row, state=CONFIRMED):
                return tail
            if tail.end_offset != row.base_offset or row.state == SEALED:
                raise InvalidRequestError(f"segment {segment_id} holds data already")
            # Back to prepared first: what says its base is overwritten now, and may be torn by a
            # crash.
            self._control.change_row(segment_id, state=PREPARED, base_offset=-1)
        remember = partial(self._control.put_rows, [confirmed])
        return engine.confirm(identity, max_append_timestamp_ms, remember)

    def certify(self, segment_id: SegmentId) -> None:
        """A copy, or a replica created again after a loss, is complete now, durably; until then (or
        until it is sealed) ``start_up`` reports it as not intact."""
        row = self._control.row(segment_id)
        if row is not None and row.rebuilding:
            self._control.change_row(segment_id, rebuilding=0)
