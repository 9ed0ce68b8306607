"""Opens a segment in every partition that has no tail.

Those are new ones, and those whose last segment had to be sealed while too few nodes could open the
next. Nobody else opens tails: whoever wants one waits for it in ``Ledger.until``.
"""

import logging
from collections.abc import Sequence

from icecore.errors import IcecoreError
from icecore.process.log import event
from icecore_coordinator.decisions.segment_changes import open_tail
from icecore_coordinator.nodes.node_calls import OpenItem
from icecore_coordinator.state.records import PartitionKey
from icecore_coordinator.work.backoff import KeyedBackoff
from icecore_coordinator.work.recovery.start_states import StartStates
from icecore_coordinator.work.segments.segment_opening import SegmentOpening
from icecore_coordinator.work.worker_ports import WorkerPorts

_log = logging.getLogger(__name__)


class TailOpener:
    """Level-triggered: ``needed`` says which partitions, also after a restart.

    Args:
        ports: The cluster.
        starts: Finds where each goes on.
        opening: Has nodes create segments.
    """

    def __init__(self, ports: WorkerPorts, starts: StartStates, opening: SegmentOpening) -> None:
        self._ledger = ports.ledger
        self._live = ports.live
        self._open_wait_ms = ports.timing.open_wait_ms
        self._starts = starts
        self._opening = opening
        self.backoff: KeyedBackoff[PartitionKey] = KeyedBackoff(
            ports.clock, ports.timing.retry_ms, ports.timing.retry_max_ms
        )
        """Back-off of partitions; a caller that waits for one announces it here with
        ``awaited``."""

    def needed(self) -> list[PartitionKey]:
        """Partitions without a tail that nobody is opening and whose back-off has passed, in the
        order of their turns."""
        state = self._ledger.state
        return self.backoff.in_turn(
            key
            for key, partition in state.partitions.items()
            if not partition.tail_segment_id
            and self.backoff.is_due(key)
            and state.is_live_topic(key[0])
        )

    async def open(self, keys: Sequence[PartitionKey]) -> None:
        """Try once to open a segment in each of these; what fails is tried again later."""
        mine = self.backoff.take(keys)
        try:
            await self._open(mine)
        finally:
            state = self._ledger.state
            for key in mine:
                partition = state.partitions.get(key)
                is_done = partition is None or partition.tail_segment_id != 0
                self.backoff.release(key, is_done=is_done)

    async def _open(self, keys: Sequence[PartitionKey]) -> None:
        starts = await self._starts.find(keys)
        prepared = await self._opening.prepare({key: None for key in keys if key in starts})
        items = []
        for key, segment in prepared.items():
            start = starts[key]
            items.append(
                OpenItem(
                    segment,
                    start.base_offset,
                    start.producer_snapshot,
                    start.max_append_timestamp_ms,
                )
            )
        openings = await self._opening.confirm(items, self._open_wait_ms)
        results = await self._ledger.decide_each(
            openings.values(), lambda state, each: open_tail(state, self._live, each)
        )
        opened = 0
        for result in results:
            if isinstance(result, IcecoreError):
                event(_log, logging.WARNING, "open_refused", error=result)
            else:
                opened += 1
        if opened:
            event(_log, logging.INFO, "tails_opened", count=opened)
        await self._opening.abandon([each.segment_id for each in prepared.values()])
