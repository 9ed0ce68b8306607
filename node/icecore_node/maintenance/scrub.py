"""Scrub: sealed replicas are read back from disk, slowly, to find bit rot before a reader does.

Every sealed replica is verified at least once in ``scrub_days``: chain, CRCs, seal digest, and the
full digest that it had when it was sealed here; then its index file. At most ``scrub_bytes_per_s``
are read, so that clients do not notice. A damaged replica becomes UNKNOWN, and the coordinator has
a good one copied instead; a damaged index is made again. A pass begins at a random segment: a node
that is restarted often must not check the same ones each time and never reach the others.
"""

import asyncio
import contextlib
import logging

from icecore.errors import SHORTAGES, NotReplicaError
from icecore.model import (
    SegmentId,
)
from icecore.process.log import (
    event,
)
from icecore_node.context import NodeContext
from icecore_node.registry.table import ReplicaTable
from icecore_node.replica.reading import ReplicaReading
from icecore_node.replica.replica import Replica

_log = logging.getLogger(__name__)

DAY_MS = 24 * 3600 * 1000.0


class Scrubber:
    """The background work of one node."""

    def __init__(self, context: NodeContext, table: ReplicaTable, reading: ReplicaReading) -> None:
        self._context = context
        self._table = table
        self._reading = reading
        self._done_ms: dict[SegmentId, float] = {}

    async def run(self) -> None:
        """Scrub until cancelled."""
        bytes_per_s = int(self._context.settings.scrub_bytes_per_s)
        while True:
            for replica in self.due() if bytes_per_s else ():
                try:
                    is_done = await self._reading.verify(replica, bytes_per_s)
                    if is_done:
                        await self._verify_index(replica, bytes_per_s)
                except SHORTAGES as error:
                    event(
                        _log,
                        logging.WARNING,
                        "not_scrubbed",
                        segment_id=replica.segment_id,
                        error=error,
                    )
                    break
                if is_done:
                    self._done_ms[replica.segment_id] = self._context.clock.monotonic_ms()
            await asyncio.sleep(self._context.settings.timing.scrub_look_ms / 1000)

    async def _verify_index(self, replica: Replica, bytes_per_s: int) -> None:
        """Verify the index file of a replica. A damaged one is made again, and the replica
        stays."""
        index = self._context.store.index
        with contextlib.suppress(NotReplicaError):  # it went away meanwhile
            length = await self._context.executor.run(index.verify, replica.segment_id)
            self._context.metrics.scrubbed_bytes.inc(length)
            await asyncio.sleep(length / bytes_per_s)

    def due(self) -> list[Replica]:
        """Return the replicas to verify in the next pass, in order."""
        now_ms = self._context.clock.monotonic_ms()
        # Half of the time is for the pass itself.
        due_ms = now_ms - self._context.settings.scrub_days * DAY_MS / 2
        sealed = [each for each in self._table if each.sealed and each.life.is_intact]
        held = dict.fromkeys(each.segment_id for each in sealed)
        self._done_ms = {key: at for key, at in self._done_ms.items() if key in held}
        found = [each for each in sealed if self._done_ms.get(each.segment_id, due_ms) <= due_ms]
        found.sort(key=lambda each: each.segment_id)
        start = int(self._context.rng.random() * len(found))
        return found[start:] + found[:start]
