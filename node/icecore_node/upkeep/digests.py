"""Full digests of sealed replicas, computed in the background and reported to the coordinator.

One replica at a time is read back from disk and hashed, so that the digest speaks of the bytes
that are really there. Not at once: seals come in crowds when a node dies or leaves, and then
producers wait for the successors to be ready. Two replicas that report the same set the segment's
digest. One that disagrees with it reads its file again: damage shows there, and anything else is a
case for a person, for whoever else reported may be wrong (R66).
"""

import asyncio
import logging
from collections import deque

from icecore.errors import SHORTAGES, ConflictError, IcecoreError, StorageError
from icecore.v1 import coordinator_pb2
from icecore_node.context import NodeContext
from icecore_node.link.coordinator_link import CoordinatorLink
from icecore_node.registry.replicas import Replicas
from icecore_node.replica.replica import Replica
from icecore_node.upkeep.scrub import verify

_log = logging.getLogger(__name__)

CALM_S = 3.0
"""Between the first of a crowd of seals and its digest."""
RETRY_S = 1.0
REPORT_MAX = 256


class DigestReporter:
    """Works off newly sealed replicas."""

    def __init__(
        self, context: NodeContext, coordinator: CoordinatorLink, replicas: Replicas
    ) -> None:
        self._context = context
        self._coordinator = coordinator
        self._replicas = replicas
        self._queue: deque[Replica] = deque()
        self._disputed: dict[Replica, None] = {}
        """Those whose digest is not the one that others agreed on; to be read again once."""
        self._wake = asyncio.Event()

    def sealed(self, replica: Replica) -> None:
        """A replica's bytes are final."""
        self._context.metrics.segments_sealed.inc()
        self._queue.append(replica)
        self._wake.set()

    def open_again(self, replica: Replica) -> None:
        """The coordinator knows no full digest of this replica, or another one than ours."""
        known = replica.segment
        is_listed = known is not None and self._context.node_id in known.replicas
        if is_listed and replica not in self._queue and replica not in self._disputed:
            self._queue.append(replica)
            self._wake.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._wake.wait()
            await asyncio.sleep(CALM_S)
            self._wake.clear()
            done: list[Replica] = []
            queue, self._queue = self._queue, deque()
            while queue:
                replica = queue.popleft()
                if await self._compute(replica):
                    done.append(replica)
                if len(done) >= REPORT_MAX or not queue:
                    await self._report(done)
                    done = []

    async def _compute(self, replica: Replica) -> bool:
        if not replica.intact or self._replicas.get(replica.segment_id) is not replica:
            return False
        try:
            replica.full_digest = await self._context.executor.run(
                self._context.store.reader.full_digest, replica.segment_id
            )
        except IcecoreError as error:
            is_here = self._replicas.get(replica.segment_id) is replica
            is_shortage = isinstance(error, SHORTAGES)
            if is_here and isinstance(error, StorageError) and not is_shortage:
                self._replicas.condemn(replica, str(error))
                return False
            _log.warning("no digest segment_id=%d error=%s", replica.segment_id, error)
            if is_here and is_shortage:
                self._queue.append(replica)  # again with the next crowd
                self._wake.set()
            return False
        return True

    async def _report(self, replicas: list[Replica]) -> None:
        if not replicas:
            return
        digests = [
            coordinator_pb2.FullDigest(
                segment_id=replica.segment_id,
                generation=replica.identity.generation,
                full_digest=replica.full_digest,
            )
            for replica in replicas
        ]
        while True:
            try:
                errors = await self._coordinator.report_digests(digests)
            except IcecoreError as error:
                _log.info("digests not reported yet error=%s", error)
                await asyncio.sleep(RETRY_S)
            else:
                break
        for replica, verdict in zip(replicas, errors, strict=True):
            if isinstance(verdict, ConflictError) and replica not in self._disputed:
                _log.warning("digest differs segment_id=%d why=%s", replica.segment_id, verdict)
                self._disputed[replica] = None
                await self._read_again(replica)

    async def _read_again(self, replica: Replica) -> None:
        """Who is wrong? Only what our own file shows is damage."""
        if await verify(self._context, self._replicas, replica):
            why = "its full digest is not the one that others report, and nothing else is wrong"
            self._replicas.report_dispute(replica, why)
