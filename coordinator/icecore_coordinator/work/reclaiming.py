"""Frees room on disks that are nearly full: topics with ``on_full = delete_oldest`` give it.

A node says how much is to be freed, and ``decisions/reclaim_steps.py`` how much of that is met now.
First goes what lies in object storage, too, of any topic: no record is gone by that. Then, of the
topics that allow it, the segments with the oldest records go, as many as free that much. Where
nothing but tails is left, those are sealed. What other topics keep is never touched.
"""

import heapq
import logging
from collections.abc import Awaitable, Callable

from icecore.errors import IcecoreError
from icecore.model import NO_SEGMENT, NodeId
from icecore.process.log import event
from icecore_coordinator.decisions.reclaim_steps import Wish, WishVerdict, judge
from icecore_coordinator.decisions.retention import (
    Sacrifice,
    going_bytes,
    held_bytes,
    sacrifice,
    sacrifices,
    spare_tails,
)
from icecore_coordinator.nodes.alerts import AlertKind
from icecore_coordinator.nodes.node_sessions import Usage
from icecore_coordinator.work.segments.rolls import TailRolls
from icecore_coordinator.work.worker_ports import WorkerPorts

_log = logging.getLogger(__name__)

SACRIFICES_PER_LOOK = 256


class Reclaimer:
    """Level-triggered; of each node that asks for room it keeps the last verdict.

    Args:
        ports: The cluster.
        rolls: Has tails sealed.
        usage: What a node last said of its disk.
        free_local: Drops what a node has of segments that lie in object storage, too, until that
            frees so many bytes; returns how many it freed.
        slack_bytes: See ``judge``.
    """

    def __init__(
        self,
        ports: WorkerPorts,
        rolls: TailRolls,
        usage: Callable[[NodeId], Usage],
        free_local: Callable[[NodeId, int], Awaitable[int]],
        slack_bytes: int,
    ) -> None:
        self._ledger = ports.ledger
        self._live = ports.live
        self._heard = ports.heard
        self._alerts = ports.alerts
        self._judged: dict[NodeId, WishVerdict] = {}
        self._rolls = rolls
        self._usage = usage
        self._free_local = free_local
        self._slack_bytes = slack_bytes

    async def look(self) -> None:
        """Free what nodes ask for, one node after the other: what one gets frees others, too."""
        for node_id in list(self._ledger.state.nodes):
            verdict = self._judge(node_id)
            if verdict is not None and verdict.room:
                await self._free(node_id, verdict.room)

    def _judge(self, node_id: NodeId) -> WishVerdict | None:
        usage, before = self._usage(node_id), self._judged.pop(node_id, None)
        if not (usage.reclaim_bytes and self._live.of(node_id).is_connected):
            return None
        state = self._ledger.state
        wish = Wish(
            stream=usage.stream,
            heartbeat=usage.heartbeat,
            wanted=usage.reclaim_bytes,
            used=usage.used_bytes,
            held=held_bytes(state, node_id, self._heard.length_bytes),
            going=going_bytes(state, node_id),
        )
        verdict = judge(wish, before, self._slack_bytes)
        if verdict is not None:
            self._judged[node_id] = verdict
            if verdict.refusal and (before is None or before.refusal != verdict.refusal):
                self._alert(node_id, usage, verdict)
        return verdict

    def _alert(self, node_id: NodeId, usage: Usage, verdict: WishVerdict) -> None:
        self._alerts.raise_alert(
            AlertKind.RECLAIM,
            NO_SEGMENT,
            f"node {node_id} asks for {usage.reclaim_bytes} bytes of room on its disk: "
            f"{verdict.refusal}. No record is deleted for it. Look what fills the disk (df), and "
            "restart the node",
        )

    async def _free(self, node_id: NodeId, lacking: int) -> None:
        state, wanted = self._ledger.state, lacking
        lacking -= await self._free_local(node_id, lacking)
        if lacking <= 0:
            return
        chosen, found = choose(sacrifices(state, node_id), lacking)
        results = await self._ledger.decide_each(chosen, sacrifice)
        for given, result in zip(chosen, results, strict=True):
            if not isinstance(result, IcecoreError) and result.puts:
                event(
                    _log,
                    logging.WARNING,
                    "oldest_deleted",
                    node_id=node_id,
                    topic_id=given.key[0],
                    partition=given.key[1],
                    log_start_offset=given.offset,
                    wanted_bytes=wanted,
                )
        if found < lacking:
            tails = spare_tails(state, node_id)
            tails.sort(key=lambda each: -self._heard.length_bytes(each.segment_id))
            long = [each for each in tails if self._heard.length_bytes(each.segment_id)]
            await self._rolls.roll(long, "disk_full")


def choose(partitions: list[list[Sacrifice]], lacking: int) -> tuple[list[Sacrifice], int]:
    """The oldest of all partitions, each in its order, until they free enough; and how much.

    Args:
        partitions: What each could give, oldest first.
        lacking: How many bytes are to be freed.
    """
    waiting = [(each[0].appended_ms, number, 0) for number, each in enumerate(partitions) if each]
    heapq.heapify(waiting)
    chosen: list[Sacrifice] = []
    found = 0
    while waiting and found < lacking and len(chosen) < SACRIFICES_PER_LOOK:
        _, number, at = heapq.heappop(waiting)
        mine = partitions[number]
        chosen.append(mine[at])
        found += mine[at].length_bytes
        if at + 1 < len(mine):
            heapq.heappush(waiting, (mine[at + 1].appended_ms, number, at + 1))
    return chosen, found
