"""The calls of AdminService that give up data: a lost segment, an unproved end, a disk."""

import asyncio
import logging

from icecore.errors import NotEnoughReplicasError
from icecore.model import SegmentState
from icecore.rpc.convert import segment_to_proto
from icecore.rpc.framing import parse
from icecore.rpc.ports import CallContext, Clock, Handlers
from icecore.v1 import admin_pb2 as pb
from icecore_coordinator.decisions.disk_changes import accept_disk, last_copies
from icecore_coordinator.decisions.lossy_changes import allow_unclean, declare_lost, named
from icecore_coordinator.ledger import Ledger
from icecore_coordinator.nodes.node_sessions import NodeSessions
from icecore_coordinator.state.records import SegmentRecord
from icecore_coordinator.work.recovery import Recovery

log = logging.getLogger(__name__)

SERVICE = "/icecore.v1.AdminService/"
RECOVERY_WAIT_MS = 20_000.0
"""How long a call waits for its recovery; the permission stays when that is too short."""


class LossyHandlers:
    """Acts that only a person may decide on; each is logged and kept in the segment's record."""

    def __init__(
        self, ledger: Ledger, sessions: NodeSessions, recovery: Recovery, clock: Clock
    ) -> None:
        self._ledger = ledger
        self._sessions = sessions
        self._recovery = recovery
        self._clock = clock

    def handlers(self) -> Handlers:
        """By full method name."""
        unary = {
            "DeclareLost": self.declare_lost,
            "RecoverUnclean": self.recover_unclean,
            "AcceptDisk": self.accept_disk,
        }
        return Handlers({SERVICE + name: handler for name, handler in unary.items()}, {})

    async def declare_lost(self, body: bytes, _: CallContext) -> bytes:
        """Give up a sealed segment whose every copy is gone."""
        request = parse(pb.DeclareLostRequest, body)
        asked = (request.topic, request.partition, request.segment_id)
        change = await self._ledger.decide(
            lambda state: declare_lost(
                state,
                named(state, *asked),
                lambda node_id: not self._sessions.is_unknown(node_id, request.segment_id),
            )
        )
        if change.puts:
            log.critical("event=declared_lost topic=%s partition=%d segment=%d", *asked)
        record = named(self._ledger.state, *asked)
        return pb.DeclareLostResponse(segment=segment_to_proto(record.segment)).SerializeToString()

    async def recover_unclean(self, body: bytes, _: CallContext) -> bytes:
        """End a segment at the longest log left, and wait until that is done."""
        request = parse(pb.RecoverUncleanRequest, body)
        asked = (request.topic, request.partition, request.segment_id)
        change = await self._ledger.decide(lambda state: allow_unclean(named(state, *asked)))
        if change.puts:
            log.critical("event=unclean_allowed topic=%s partition=%d segment=%d", *asked)
        record = await self._recovered(request.segment_id)
        response = pb.RecoverUncleanResponse()
        if record is not None:
            response.segment.CopyFrom(segment_to_proto(record.segment))
        return response.SerializeToString()

    async def accept_disk(self, body: bytes, _: CallContext) -> bytes:
        """Let a node come with another disk, whatever was on the one before."""
        node_id = parse(pb.AcceptDiskRequest, body).node_id

        def has_copy(other: int, segment_id: int) -> bool:
            return not self._sessions.is_unknown(other, segment_id)

        change = await self._ledger.decide(lambda state: accept_disk(state, node_id))
        lost = last_copies(self._ledger.state, node_id, has_copy)
        if change.puts:
            log.critical("event=disk_accepted node=%d last_copies=%d", node_id, len(lost))
        return pb.AcceptDiskResponse(last_copies=len(lost)).SerializeToString()

    async def _recovered(self, segment_id: int) -> SegmentRecord | None:
        """The record once it is SEALED; None when the segment was empty and is gone."""
        deadline_ms = self._clock.monotonic_ms() + RECOVERY_WAIT_MS
        while True:
            await self._recovery.recover([segment_id])
            record = self._ledger.state.segments.get(segment_id)
            if record is None or record.segment.state == SegmentState.SEALED:
                return record
            if self._clock.monotonic_ms() > deadline_ms:
                raise NotEnoughReplicasError(
                    f"segment {segment_id} can't be sealed yet, for want of min_insync nodes that "
                    "are up; the permission is kept, and it will be"
                )
            await asyncio.sleep(0.2)
