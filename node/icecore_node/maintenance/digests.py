"""Full digests of sealed replicas, computed in the background and reported to the coordinator.

One replica at a time is read back from disk and hashed, so that the digest speaks of the bytes that
are really there. Not at once: seals come in crowds when a node dies or leaves, and then producers
wait for the successors to be ready. Two replicas that report the same set the segment's digest. One
that disagrees with it reads its file again: damage shows there, and anything else is a case for a
person, because another replica's report may be wrong (R66).
"""

import asyncio
import logging

from icecore.errors import SHORTAGES, ConflictError, IcecoreError, StorageError
from icecore.process.log import event
from icecore.v1 import coordinator_pb2
from icecore_node.context import NodeContext
from icecore_node.link.coordinator_link import CoordinatorLink
from icecore_node.registry.digest_queue import DigestQueue
from icecore_node.replica.damage import Damage
from icecore_node.replica.reading import ReplicaReading
from icecore_node.replica.replica import Replica

_log = logging.getLogger(__name__)

REPORT_MAX = 256


class DigestReporter:
    """Works off newly sealed replicas."""

    def __init__(
        self,
        context: NodeContext,
        coordinator: CoordinatorLink,
        queue: DigestQueue,
        damage: Damage,
        reading: ReplicaReading,
    ) -> None:
        self._context = context
        self._timing = context.settings.timing
        self._coordinator = coordinator
        self._queue = queue
        self._damage = damage
        self._reading = reading

    async def run(self) -> None:
        """Compute and report digests until cancelled."""
        while True:
            await self._queue.wait()
            await asyncio.sleep(self._timing.digest_calm_ms / 1000)
            done: list[Replica] = []
            queue = self._queue.take()
            while queue:
                replica = queue.popleft()
                if await self._compute(replica):
                    done.append(replica)
                if len(done) >= REPORT_MAX or not queue:
                    await self._report(done)
                    done = []

    async def _compute(self, replica: Replica) -> bool:
        if not replica.life.is_intact:
            return False
        try:
            replica.note_digest(
                await self._context.executor.run(
                    self._context.store.reader.full_digest, replica.segment_id
                )
            )
        except SHORTAGES as error:
            event(_log, logging.WARNING, "no_digest", segment_id=replica.segment_id, error=error)
            if replica.life.is_intact:
                self._queue.put(replica)  # again with the next crowd
            return False
        except StorageError as error:
            self._damage.condemn(replica, str(error))
            return False
        except IcecoreError as error:
            event(_log, logging.WARNING, "no_digest", segment_id=replica.segment_id, error=error)
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
                event(_log, logging.INFO, "digests_not_reported", error=error)
                await asyncio.sleep(self._timing.digest_retry_ms / 1000)
            else:
                break
        for replica, verdict in zip(replicas, errors, strict=True):
            if isinstance(verdict, ConflictError) and self._queue.note_diverged(replica):
                event(
                    _log,
                    logging.WARNING,
                    "digest_differs",
                    segment_id=replica.segment_id,
                    error=verdict,
                )
                await self._read_again(replica)

    async def _read_again(self, replica: Replica) -> None:
        """Read the file again after a divergence. Only damage found in it counts as damage here;
        else
        the divergence is reported."""
        while True:
            try:
                is_sound = await self._reading.verify(replica)
                break
            except SHORTAGES as error:
                segment_id = replica.segment_id
                event(_log, logging.WARNING, "not_verified", segment_id=segment_id, error=error)
                await asyncio.sleep(self._timing.digest_retry_ms / 1000)
        if is_sound:
            why = "its full digest is not the one that others report, and nothing else is wrong"
            self._damage.report_divergence(replica, why)
