"""Opening segments: intent first, then files on the nodes, then one transaction.

``prepare`` writes PREPARED records, ``confirm`` has the candidates create their files and collects
who confirmed in which incarnation; ``segment_changes`` turns that into ACTIVE. ``TailOpener`` does
all three for partitions that have no tail: new ones, and those whose last segment had to be sealed
while too few nodes could open the next.
"""

import logging
from collections.abc import Mapping, Sequence

from icecore.errors import IcecoreError
from icecore.model import Segment
from icecore.rpc.ports import Clock
from icecore_coordinator.config import Timing
from icecore_coordinator.decisions.placement import Placer
from icecore_coordinator.decisions.segment_changes import Opening, drop_prepared, open_tail, prepare
from icecore_coordinator.ledger import Ledger
from icecore_coordinator.nodes.node_calls import NodeCalls, OpenItem, by_node, fan_out
from icecore_coordinator.nodes.node_sessions import NodeSessions
from icecore_coordinator.state.cluster_state import ClusterState
from icecore_coordinator.state.records import Change, PartitionKey, SegmentRecord
from icecore_coordinator.work.backoff import Backoff
from icecore_coordinator.work.start_states import StartStates

log = logging.getLogger(__name__)

SEGMENTS_PER_DECISION = 96
"""Of one transaction; etcd allows 128 operations."""


class SegmentOpening:
    """Prepares segments and has nodes create them, many at a time."""

    def __init__(
        self,
        ledger: Ledger,
        calls: NodeCalls,
        sessions: NodeSessions,
        clock: Clock,
        timing: Timing,
    ) -> None:
        self._ledger = ledger
        self._calls = calls
        self._sessions = sessions
        self._clock = clock
        self._timing = timing

    async def prepare(
        self, wanted: Mapping[PartitionKey, Segment | None]
    ) -> dict[PartitionKey, Segment]:
        """PREPARED records for those partitions for which enough nodes are eligible.

        Args:
            wanted: Partitions with the segment that ends, None when there is none.
        """
        prepared: dict[PartitionKey, Segment] = {}
        keys = list(wanted)
        for at in range(0, len(keys), SEGMENTS_PER_DECISION):
            chunk = {key: wanted[key] for key in keys[at : at + SEGMENTS_PER_DECISION]}
            change = await self._ledger.decide(lambda state, w=chunk: self._placed(state, w))  # type: ignore[misc]
            for record in change.puts:
                if isinstance(record, SegmentRecord):
                    prepared[record.partition_key] = record.segment
        return prepared

    def _placed(self, state: ClusterState, wanted: Mapping[PartitionKey, Segment | None]) -> Change:
        placer = Placer(state)
        places = []
        for key, before in wanted.items():
            topic = state.topics.get(key[0])
            if topic is None or not topic.is_live or key not in state.partitions:
                continue
            settings = topic.settings
            place = placer.place(
                settings.replication_factor,
                replicas=before.replicas if before else (),
                leader=before.leader if before else 0,
                least=settings.min_insync,
            )
            is_short = len(place.nodes) < settings.replication_factor
            if len(place.nodes) < settings.min_insync or (is_short and self._sessions.in_grace):
                log.warning(
                    "event=open_waits topic=%s partition=%d eligible_nodes=%d",
                    *(topic.name, key[1], len(place.nodes)),
                )
                continue
            places.append((key, place))
        return prepare(state, places)

    async def confirm(
        self, items: Sequence[OpenItem], patience_ms: float | None = None
    ) -> dict[int, Opening]:
        """Who created the files of which segment; those with at least min_insync confirmations.

        Args:
            items: Without a base they are only prepared; with one, base and snapshot are durable
                too.
            patience_ms: How long to wait for more than min_insync; as in a recovery when None,
                that is, while nobody can append.
        """
        state = self._ledger.state
        grouped = by_node((node, each) for each in items for node in each.segment.replicas)
        confirmed: dict[int, dict[int, int]] = {each.segment.segment_id: {} for each in items}
        needed = {each.segment.segment_id: each.segment.settings.min_insync for each in items}

        def collect(answers: Mapping[int, Sequence[int | IcecoreError] | IcecoreError]) -> None:
            for node_id, results in answers.items():
                if isinstance(results, IcecoreError):
                    continue
                for item, result in zip(grouped[node_id], results, strict=True):
                    if isinstance(result, int):
                        confirmed[item.segment.segment_id][node_id] = result

        def is_enough(answers: Mapping[int, Sequence[int | IcecoreError]]) -> bool:
            collect(answers)
            return all(len(confirmed[each]) >= count for each, count in needed.items())

        answers = await fan_out(
            self._clock,
            {
                node_id: self._calls.open(node_id, mine, self._timing.node_call_s)
                for node_id, mine in grouped.items()
            },
            required=[node_id for node_id in grouped if state.is_live(node_id)],
            patience_ms=patience_ms or self._timing.recovery_wait_ms,
            is_enough=is_enough,
        )
        collect(answers)
        for node_id, answer in answers.items():
            each = [answer] if isinstance(answer, IcecoreError) else answer
            refused = [error for error in each if isinstance(error, IcecoreError)]
            if refused:
                log.warning(
                    "event=open_failed node=%d segments=%d why=%r",
                    *(node_id, len(refused), refused[0].message),
                )
        return {
            segment_id: Opening(segment_id, nodes)
            for segment_id, nodes in confirmed.items()
            if len(nodes) >= needed[segment_id]
        }

    async def abandon(self, segment_ids: Sequence[int]) -> None:
        """Give up PREPARED segments that will not be opened."""
        if segment_ids:
            now_ms = self._clock.now_ms()
            await self._ledger.decide(lambda state: drop_prepared(state, segment_ids, now_ms))


class TailOpener:
    """Opens a segment in every partition that has none. Level-triggered: ``needed`` says which."""

    def __init__(
        self,
        ledger: Ledger,
        starts: StartStates,
        opening: SegmentOpening,
        clock: Clock,
        timing: Timing,
    ) -> None:
        self._ledger = ledger
        self._starts = starts
        self._opening = opening
        self._clock = clock
        self._timing = timing
        self._backoff: Backoff[PartitionKey] = Backoff(clock)

    @property
    def is_waiting(self) -> bool:
        """Whether something failed and will be needed again when its wait is over."""
        return self._backoff.is_waiting

    def needed(self) -> list[PartitionKey]:
        """Partitions without a tail that nobody is opening and whose back-off has passed."""
        state = self._ledger.state
        return [
            key
            for key, partition in state.partitions.items()
            if not partition.tail_segment_id
            and self._backoff.is_due(key)
            and state.is_live_topic(key[0])
        ]

    async def open(self, keys: Sequence[PartitionKey]) -> None:
        """Try once to open a segment in each of these; what fails is tried again later."""
        mine = self._backoff.take(keys)
        try:
            await self._open(mine)
        finally:
            state = self._ledger.state
            for key in mine:
                partition = state.partitions.get(key)
                is_done = partition is None or partition.tail_segment_id != 0
                self._backoff.release(key, is_done=is_done)

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
        openings = await self._opening.confirm(items, self._timing.open_wait_ms)
        decisions = [
            lambda state, each=opening: open_tail(state, each) for opening in openings.values()
        ]
        results = await self._ledger.decide_all(decisions)
        opened = 0
        for result in results:
            if isinstance(result, IcecoreError):
                log.warning("event=open_refused why=%r", result.message)
            else:
                opened += 1
        if opened:
            log.info("event=tails_opened count=%d", opened)
        await self._opening.abandon([each.segment_id for each in prepared.values()])
