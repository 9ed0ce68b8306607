"""Write-backs as they are ordered: equal ones share an answer, each has its own error (R61)."""

import asyncio
import logging
from contextlib import nullcontext

from icecore.errors import IcecoreError, UnavailableError
from icecore.model import (
    CoordinatorEpoch,
)
from icecore.process.log import (
    event,
)
from icecore.rpc import convert
from icecore.v1 import coordinator_pb2
from icecore_node.context import Peers
from icecore_node.maintenance.copying import Copying, SegmentCopier
from icecore_node.maintenance.salvage import Salvage
from icecore_node.replica import order_checks

_log = logging.getLogger(__name__)

REPAIRS_AT_ONCE = 4
"""Maximum number of copies of sealed segments made at once: they share workers and disks with
appends."""


class WriteBacks:
    """Write-backs under way."""

    def __init__(self, peers: Peers, copier: SegmentCopier, salvage: Salvage) -> None:
        self._peers = peers
        self._copier = copier
        self._salvage = salvage
        self._repairs = asyncio.Semaphore(REPAIRS_AT_ONCE)
        self._under_way: dict[
            tuple[CoordinatorEpoch, bytes], asyncio.Future[coordinator_pb2.WrittenBack]
        ] = {}
        """Write-backs under way, by coordinator epoch and order."""

    async def write_back(
        self, item: coordinator_pb2.WriteBackSegment, coordinator_epoch: CoordinatorEpoch
    ) -> coordinator_pb2.WrittenBack:
        """Carry out a write-back. The same order, arriving again meanwhile, gets the same
        answer."""
        key = (coordinator_epoch, item.SerializeToString(deterministic=True))
        first = self._under_way.get(key)
        if first is not None:
            return await asyncio.shield(first)
        answer: asyncio.Future[coordinator_pb2.WrittenBack]
        answer = asyncio.get_running_loop().create_future()
        self._under_way[key] = answer
        found = coordinator_pb2.WrittenBack(
            error=convert.error_to_proto(UnavailableError("the order before it was given up"))
        )
        try:
            async with self._repairs if item.seal and item.donor_address else nullcontext():
                found = await self._carry_out(item, coordinator_epoch)
        finally:
            del self._under_way[key]
            answer.set_result(found)
        return found

    async def _carry_out(
        self, item: coordinator_pb2.WriteBackSegment, coordinator_epoch: CoordinatorEpoch
    ) -> coordinator_pb2.WrittenBack:
        segment = convert.segment_from_proto(item.segment)
        try:
            asked = Copying(
                segment=segment,
                end_offset=item.end_offset,
                donor_address=order_checks.donor_of(self._peers, item.donor_address),
                expected_digest=item.seal_digest,
                seal=item.seal,
            )
            if item.salvage:
                await self._salvage.readmit(segment)
            return await self._copier.bring_to(asked, coordinator_epoch)
        except IcecoreError as error:
            event(
                _log,
                logging.WARNING,
                "write_back_failed",
                segment_id=segment.segment_id,
                end_offset=item.end_offset,
                donor=item.donor_address[:300],
                error=error,
            )
            return coordinator_pb2.WrittenBack(error=convert.error_to_proto(error))
