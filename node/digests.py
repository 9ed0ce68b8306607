"""Full digests of sealed replicas, computed in the background and reported to the coordinator.

One replica at a time is read back from disk and hashed, so that the digest speaks of the bytes
that are really there. The first report sets the segment's digest; a replica that disagrees with
it is damaged, and stops serving. So does one that cannot be read back, which is said to the
coordinator too: it has the whole copied again from a good replica.
"""

import asyncio
import logging
from collections import deque

from icecore.errors import ConflictError, IcecoreError
from icecore.v1 import coordinator_pb2
from node.context import NodeContext
from node.replica import Replica

_log = logging.getLogger(__name__)

RETRY_S = 1.0
DAMAGE_AGAIN_S = 2.0
"""Damage is reported until the replica is replaced: a copy that was being counted as the report
came would else stay counted."""
REPORT_MAX = 256


class DigestReporter:
    """Works off newly sealed replicas."""

    def __init__(self, context: NodeContext) -> None:
        self._context = context
        self._queue: deque[Replica] = deque()
        self._damaged: list[Replica] = []
        self._wake = asyncio.Event()

    def sealed(self, replica: Replica) -> None:
        """A replica's bytes are final."""
        self._context.metrics.segments_sealed.inc()
        self._queue.append(replica)
        self._wake.set()

    def doubt(self, replica: Replica) -> None:
        """Somebody could not read it: look at all of it, unless that is due anyway."""
        if replica.sealed and replica.intact and replica not in self._queue:
            self._queue.append(replica)
            self._wake.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            damaged = [each for each in self._damaged if self._is_current(each)]
            try:
                async with asyncio.timeout(DAMAGE_AGAIN_S if damaged else None):
                    await self._wake.wait()
            except TimeoutError:
                await self._report(damaged)
            self._damaged = damaged
            self._wake.clear()
            done: list[Replica] = []
            while self._queue:
                replica = self._queue.popleft()
                if replica.intact and self._is_current(replica):
                    await self._compute(replica)
                    done.append(replica)
                if len(done) >= REPORT_MAX or not self._queue:
                    await self._report(done)
                    done = []

    def _is_current(self, replica: Replica) -> bool:
        """Whether it was neither deleted nor replaced by a copy."""
        return self._context.replicas.get(replica.segment_id) is replica

    async def _compute(self, replica: Replica) -> None:
        try:
            replica.full_digest = await self._context.executor.run(
                self._context.store.full_digest, replica.segment_id
            )
        except IcecoreError as error:
            if self._is_current(replica):
                self._context.replicas.condemn(replica, str(error))
                self._damaged.append(replica)

    async def _report(self, replicas: list[Replica]) -> None:
        replicas = [replica for replica in replicas if self._is_current(replica)]
        if not replicas:
            return
        digests = [
            coordinator_pb2.FullDigest(
                segment_id=replica.segment_id,
                generation=replica.identity.generation,
                full_digest=replica.full_digest if replica.intact else b"",
                damaged=not replica.intact,
            )
            for replica in replicas
        ]
        while True:
            try:
                errors = await self._context.coordinator.report_digests(digests)
            except IcecoreError as error:
                _log.info("digests not reported yet error=%s", error)
                await asyncio.sleep(RETRY_S)
            else:
                break
        for replica, verdict in zip(replicas, errors, strict=True):
            if isinstance(verdict, ConflictError):
                self._context.replicas.condemn(replica, f"digest disagrees: {verdict}")
