"""Damage: a replica becomes UNKNOWN, durably, and the coordinator hears of it (R41).

The file that is damaged keeps its bytes; a repair sets it aside (``registry/set_aside.py``) and
copies another one. Where two replicas differ and neither is damaged, nothing is chosen: a person is
told.
"""

import asyncio
import logging

from icecore.errors import IcecoreError
from icecore.model import (
    NodeId,
    SegmentId,
    SegmentState,
)
from icecore.process.log import (
    event,
)
from icecore_node.context import NodeContext
from icecore_node.identity.node_report import NodeReport
from icecore_node.identity.readers import Readers
from icecore_node.replica.life import Condemned
from icecore_node.replica.replica import Replica

_log = logging.getLogger(__name__)


class Damage:
    """Makes damaged replicas UNKNOWN, and reports damage and divergences. Loop only."""

    def __init__(self, context: NodeContext, report: NodeReport, readers: Readers) -> None:
        self._context = context
        self._report = report
        self._readers = readers
        self._condemning: dict[Replica, asyncio.Task[None]] = {}

    def condemn(self, replica: Replica, why: str) -> None:
        """The replica is UNKNOWN from now on: no role, no readers, and the coordinator hears of it.

        A leader gives up its segment; of a follower its leader is told at once. What was found of
        a replica that is GONE says nothing about the one that has replaced it.
        """
        if not replica.life.is_intact:
            return
        event(_log, logging.CRITICAL, "condemned", segment_id=replica.segment_id, why=why)
        self._context.metrics.replicas_damaged.inc()
        replica.move(Condemned(why))
        task = self._context.tasks.start(self._remember(replica, why))
        self._condemning[replica] = task
        task.add_done_callback(lambda _: self._condemning.pop(replica, None))
        self._readers.wake(replica.partition_key)

    async def _remember(self, replica: Replica, why: str) -> None:
        """Durable first: after a crash the damage must not be forgotten, for it may not show."""
        try:
            condemn = self._context.store.salvage.condemn
            await self._context.executor.run(condemn, [replica.segment_id], why)
        except IcecoreError as error:
            event(
                _log, logging.ERROR, "damage_not_stored", segment_id=replica.segment_id, error=error
            )
        self._report.report_unknown(replica.segment_id)

    async def until_said(self, replica: Replica) -> None:
        """Return when all that is to be stored and said of its damage is on its way."""
        while replica in self._condemning:
            await asyncio.wait([self._condemning[replica]])

    def report_divergence(self, replica: Replica, why: str) -> None:
        """Two replicas differ and neither is damaged: a person must look, we choose nothing."""
        event(_log, logging.CRITICAL, "diverged", segment_id=replica.segment_id, why=why)
        self._context.metrics.divergences.inc()
        self._report.report_divergence(replica.segment_id)

    def report_missing(self, segment_id: SegmentId) -> None:
        """There is no whole replica here; whoever lists one must hear of it."""
        self._report.report_unknown(segment_id)

    def report_whole(self, segment_id: SegmentId) -> None:
        """There is one now: what was to be said of an earlier try holds no longer."""
        self._report.forget_unknown(segment_id)
        self._report.forget_vanished(segment_id)

    def report_room(self, segment_id: SegmentId) -> None:
        """A damaged one has made room for a copy: whether that becomes whole is said later."""
        self._report.forget_unknown(segment_id)

    def note_promise(self, replica: Replica) -> None:
        """A higher epoch was promised: if the coordinator knows nothing of it, let it recover."""
        if is_shut_out(replica, self._context.identity.node_id):
            self._report.report_fenced(replica.segment_id)

    async def close(self) -> None:
        """Wait for what is still to be stored."""
        await asyncio.gather(*self._condemning.values(), return_exceptions=True)


def is_shut_out(replica: Replica, node_id: NodeId) -> bool:
    """Return whether a promise keeps us out of a segment that the coordinator believes to be
    ACTIVE.

    A recovery changes the record first and fences then. So somebody else fenced, or the coordinator
    has forgotten that it did; only a recovery leads out of it.
    """
    known = replica.segment
    return (
        replica.life.is_intact
        and known is not None
        and known.state is SegmentState.ACTIVE
        and node_id in known.replicas
        and replica.promised_epoch > known.epoch
    )
