"""The acts of an operator by which a node is emptied (R115), and leaves the cluster (R106).

The record of a node goes in one change. Its copies and deletions are given up before, only when the
operator says that its disk is gone, and segment by segment: whatever ends this in the middle,
the node can still come back, or be forgotten by the next call.
"""

import asyncio
import logging
from collections.abc import Iterator
from typing import Final

from icecore.errors import IcecoreError
from icecore.model import NodeId, SegmentId
from icecore.process.log import event
from icecore_coordinator.decisions.node_removal import (
    check_disk_gone,
    drain_node,
    give_up_copy,
    may_have_bytes,
    remove_node,
    undrain_node,
)
from icecore_coordinator.state.cluster_state import ClusterState
from icecore_coordinator.state.records import Change
from icecore_coordinator.work.worker_ports import WorkerPorts

_log = logging.getLogger(__name__)

PASSES_MAX: Final = 3
"""A copy counts no more after the first, and nobody waits for it after the second; that of a
published segment becomes a deletion record in between."""
LOOKED_AT_ONCE: Final = 1_000
"""Segments between two pauses: a cluster may have a million."""


class NodeRemoval:
    """Takes nodes out of the cluster."""

    def __init__(self, ports: WorkerPorts) -> None:
        self._ledger = ports.ledger
        self._live = ports.live
        self._copies = ports.copies
        self._clock = ports.clock

    async def drain(self, node_id: NodeId, *, undrain: bool, allow_fewer_copies: bool) -> None:
        """Have a node emptied by all who look for something to move, or take that back.

        Raises what ``drain_node`` and ``undrain_node`` raise.
        """

        def decision(state: ClusterState) -> Change:
            if undrain:
                return undrain_node(state, node_id)
            return drain_node(state, self._live, node_id, allow_fewer_copies=allow_fewer_copies)

        if (await self._ledger.decide(decision)).puts:
            event(_log, logging.WARNING, "node_drained", node_id=node_id, undrain=undrain)

    async def forget(self, node_id: NodeId, *, is_disk_gone: bool) -> int:
        """Forget a node that is down and that no record names.

        Args:
            node_id: The node.
            is_disk_gone: The disk never comes back: what the node holds and was to delete is given
                up, as far as other nodes that are up have it.

        Returns:
            How many copies were given up.

        Raises what ``remove_node`` and ``check_disk_gone`` raise.
        """
        given_up = await self._give_up(node_id) if is_disk_gone else 0
        await self._ledger.decide(lambda state: remove_node(state, self._live, node_id))
        event(_log, logging.CRITICAL, "node_removed", node_id=node_id, copies=given_up)
        return given_up

    async def _give_up(self, node_id: NodeId) -> int:
        state, given_up = self._ledger.state, 0
        check_disk_gone(state, self._live, node_id, self._copies.has_copy)
        for _ in range(PASSES_MAX):
            if not (state.held[node_id] or state.segments_of_node.get(node_id)):
                break
            for segment_ids in _parts([*state.segments, *state.deleted]):
                given_up += await self._give_up_some(node_id, segment_ids)
                await asyncio.sleep(0)
        return given_up

    async def _give_up_some(self, node_id: NodeId, segment_ids: list[SegmentId]) -> int:
        """Return how many copies count no more by this."""
        state, now_ms = self._ledger.state, self._clock.now_ms()
        mine = dict.fromkeys(each for each in segment_ids if may_have_bytes(state, node_id, each))
        before = len(state.segments_of_node.get(node_id, ()))

        def decision(state: ClusterState, segment_id: SegmentId) -> Change:
            has_copy = self._copies.has_copy
            return give_up_copy(state, self._live, node_id, segment_id, has_copy, now_ms)

        for result in await self._ledger.decide_each(mine, decision) if mine else ():
            if isinstance(result, IcecoreError):
                event(_log, logging.WARNING, "copy_not_given_up", node_id=node_id, error=result)
        return before - len(state.segments_of_node.get(node_id, ()))


def _parts(segment_ids: list[SegmentId]) -> Iterator[list[SegmentId]]:
    for at in range(0, len(segment_ids), LOOKED_AT_ONCE):
        yield segment_ids[at : at + LOOKED_AT_ONCE]
