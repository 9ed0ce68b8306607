"""Reads of replicas that notice damage: whoever reads gets right bytes, or NotReplicaError.

A read that fails is tried once more, in line with the appends and cuts of the log, so that no race
counts as damage. What fails then is damage, and the replica is UNKNOWN (R40). A shortage says
nothing about the bytes (R52).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeAlias, TypeVar, TypeVarTuple

from icecore.errors import SHORTAGES, IcecoreError, NotReplicaError, StorageError
from icecore.process.log import event
from icecore.topic_settings import UNCOMPRESSED_BYTES_CAP
from icecore_node.context import NodeContext
from icecore_node.io.heavy_work import HeavyWork
from icecore_node.replica.damage import Damage
from icecore_node.replica.replica import Replica
from icecore_node.replica.replica_log import state_at
from icecore_node.storage.engine import LogTail

_log = logging.getLogger(__name__)

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

Run: TypeAlias = Callable[..., Awaitable[Any]]
"""Runs a blocking function on a reader thread."""

VERIFY_STEP_BYTES = 256 << 10


class ReplicaReading:
    """Every read of a replica's file, but for those of whoever changes its log.

    All methods raise what the store's method of the same name raises, with NotReplicaError in the
    place of StorageError: ask another node.
    """

    def __init__(self, context: NodeContext, damage: Damage) -> None:
        self._context = context
        self._damage = damage

    async def read(
        self, replica: Replica, offset: int, max_bytes: int, end_offset: int
    ) -> tuple[bytes, int]:
        """Whole batches from the one that holds ``offset``, and the offset after them."""
        read = self._context.store.reader.read
        return await self._guarded(replica, read, replica.segment_id, offset, max_bytes, end_offset)

    async def tail_at(self, replica: Replica, end_offset: int) -> LogTail | None:
        """The tail as it was when the log ended there; None when no batch ends there."""
        tail_at = self._context.store.reader.tail_at
        return await self._guarded(replica, tail_at, replica.segment_id, end_offset)

    async def offset_for_time(
        self, replica: Replica, timestamp_ms: int, end_offset: int
    ) -> tuple[int, int] | None:
        """(base offset, append time) of the first batch below ``end_offset`` from that time on."""
        offset_for_time = self._context.store.reader.offset_for_time
        return await self._guarded(
            replica, offset_for_time, replica.segment_id, timestamp_ms, end_offset
        )

    async def producer_state(self, replica: Replica, end_offset: int) -> tuple[bytes, bytes]:
        """Snapshot and digest of the producers as they were at ``end_offset``."""
        store = self._context.store
        return await self._guarded(replica, state_at, store, replica.segment_id, end_offset)

    async def verify(self, replica: Replica, bytes_per_s: int = 0) -> bool:
        """Read one sealed replica back; damage makes it UNKNOWN.

        Args:
            replica: Sealed.
            bytes_per_s: At most so many; 0 = as fast as it goes.

        Returns:
            Whether it is what was sealed. Also false when it is gone or was condemned meanwhile.

        Raises:
            OutOfSpaceError, OutOfResourcesError: It could not be read now; nothing is said of it.
        """
        metrics = self._context.metrics
        try:
            walk = self._context.store.reader.verification(replica.segment_id)
            while not walk.digest:
                length = await self._guarded(replica, walk.step, VERIFY_STEP_BYTES)
                metrics.scrubbed_bytes.inc(length)
                if bytes_per_s:
                    await asyncio.sleep(length / bytes_per_s)
        except SHORTAGES:
            raise
        except IcecoreError as error:
            event(_log, logging.INFO, "not_verified", segment_id=replica.segment_id, error=error)
            return False
        if walk.digest != (replica.full_digest or walk.digest):
            why = "its full digest is not what it was when it was sealed"
            self._damage.condemn(replica, why)
        metrics.scrubbed_segments.inc()
        return replica.life.is_intact

    async def inflate(
        self, heavy_work: HeavyWork, replica: Replica, read: Callable[[*Ts], T], *args: *Ts
    ) -> T:
        """A read that decodes what it reads, on a reader thread: it may be repeated after an
        error."""
        run: Run = partial(heavy_work.run, UNCOMPRESSED_BYTES_CAP)
        return await self._guarded_by(run, replica, read, *args)

    async def _guarded(self, replica: Replica, read: Callable[[*Ts], T], *args: *Ts) -> T:
        return await self._guarded_by(self._context.executor.run, replica, read, *args)

    async def _guarded_by(
        self, run: Run, replica: Replica, read: Callable[[*Ts], T], *args: *Ts
    ) -> T:
        try:
            found: T = await run(read, *args)
            return found
        except SHORTAGES:
            raise
        except StorageError as error:
            event(_log, logging.WARNING, "unreadable", segment_id=replica.segment_id, error=error)
        try:
            # Again in line with the log's changes: damage, or did a cut get in the way?
            return await replica.log.worker.run(read, *args)
        except SHORTAGES:
            raise
        except StorageError as error:
            self._damage.condemn(replica, str(error))
            raise NotReplicaError(f"segment {replica.segment_id} is damaged here") from error
