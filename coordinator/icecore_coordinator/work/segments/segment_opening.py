"""Opening segments: intent first, then files on the nodes, then one transaction.

``prepare`` writes PREPARED records, ``confirm`` has the candidates create their files and collects
who confirmed in which incarnation; ``segment_changes`` turns that into ACTIVE.

Here, too, it is decided how many batches of each producer a segment remembers, and by which mark
producers are forgotten: what all nodes can that may get a replica of it. Both are part of the state
with which the segment starts (R72, R97).
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from icecore.errors import IcecoreError, InvalidRequestError, StorageError
from icecore.model import NO_NODE, Incarnation, NodeId, Segment, SegmentId
from icecore.process.log import event
from icecore.rpc.ports import Clock
from icecore_coordinator.decisions.placement import Placer
from icecore_coordinator.decisions.segment_changes import (
    Opening,
    drop_prepared,
    pass_over_ids,
    prepare,
)
from icecore_coordinator.ledger import Ledger
from icecore_coordinator.nodes.fan_out import by_node, fan_out
from icecore_coordinator.nodes.node_calls import NodeCalls, OpenItem
from icecore_coordinator.state.cluster_state import ClusterState
from icecore_coordinator.state.liveness import Liveness
from icecore_coordinator.state.records import Change, PartitionKey, SegmentRecord
from icecore_coordinator.timing import Timing
from icecore_replication.producers import (
    BATCHES_KEPT,
    BATCHES_KEPT_FIRST,
    starting,
    starting_without_mark,
)

_log = logging.getLogger(__name__)

SEGMENTS_PER_DECISION = 96
"""Most segments in one transaction; etcd allows 128 operations."""
_KEEPS_MORE_SINCE = 3
"""The protocol version of nodes that can be told how many batches to keep."""
_HAS_MARKS_SINCE = 4
"""The protocol version of nodes that forget producers by marks."""


class SegmentOpening:
    """Prepares segments and has nodes create them, many at a time."""

    def __init__(
        self,
        ledger: Ledger,
        calls: NodeCalls,
        live: Liveness,
        clock: Clock,
        timing: Timing,
    ) -> None:
        self._ledger = ledger
        self._calls = calls
        self._live = live
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
            change = await self._ledger.decide(partial(self._placed, wanted=chunk))
            for record in change.puts:
                if isinstance(record, SegmentRecord):
                    prepared[record.partition_key] = record.segment
        return prepared

    def _placed(self, state: ClusterState, wanted: Mapping[PartitionKey, Segment | None]) -> Change:
        placer = Placer(state, self._live)
        places = []
        for key, before in wanted.items():
            topic = state.topics.get(key[0])
            if topic is None or not topic.is_live or key not in state.partitions:
                continue
            settings = topic.settings
            place = placer.place(
                settings.replication_factor,
                replicas=before.replicas if before else (),
                leader=before.leader if before else NO_NODE,
                least=settings.min_insync_replicas,
            )
            is_short = len(place.nodes) < settings.replication_factor
            if len(place.nodes) < settings.min_insync_replicas or (
                is_short and self._live.is_settling
            ):
                event(
                    _log,
                    logging.WARNING,
                    "open_waits",
                    topic=topic.name,
                    partition=key[1],
                    eligible_nodes=len(place.nodes),
                )
                continue
            places.append((key, place))
        return prepare(state, places)

    async def confirm(
        self, items: Sequence[OpenItem], patience_ms: float | None = None
    ) -> dict[SegmentId, Opening]:
        """Return the nodes that created the files of each segment with at least min_insync_replicas
        confirmations.

        Args:
            items: Without a base they are only prepared; with one, base and snapshot are durable
                too.
            patience_ms: How long to wait for more than min_insync_replicas; as in a recovery when
                None, that is, while nobody can append.
        """
        items = [each if each.base_offset is None else self._starting(each) for each in items]
        grouped = by_node((node, each) for each in items for node in each.segment.replicas)
        confirmed: dict[SegmentId, dict[NodeId, Incarnation]] = {
            each.segment.segment_id: {} for each in items
        }
        needed = {
            each.segment.segment_id: each.segment.settings.min_insync_replicas for each in items
        }

        def collect(
            answers: Mapping[NodeId, Sequence[Incarnation | IcecoreError] | IcecoreError],
        ) -> None:
            for node_id, results in answers.items():
                if isinstance(results, IcecoreError):
                    continue
                for item, result in zip(grouped[node_id], results, strict=True):
                    if isinstance(result, int):
                        confirmed[item.segment.segment_id][node_id] = result

        def is_enough(answers: Mapping[NodeId, Sequence[Incarnation | IcecoreError]]) -> bool:
            collect(answers)
            return all(len(confirmed[each]) >= count for each, count in needed.items())

        answers = await fan_out(
            self._clock,
            {
                node_id: self._calls.open(node_id, mine, self._timing.node_call_ms / 1000)
                for node_id, mine in grouped.items()
            },
            required=[node_id for node_id in grouped if self._live.is_live(node_id)],
            patience_ms=patience_ms or self._timing.recovery_wait_ms,
            is_enough=is_enough,
        )
        collect(answers)
        await self._pass_over_taken(grouped, answers)
        for node_id, answer in answers.items():
            each = [answer] if isinstance(answer, IcecoreError) else answer
            refused = [error for error in each if isinstance(error, IcecoreError)]
            if refused:
                event(
                    _log,
                    logging.WARNING,
                    "open_failed",
                    node_id=node_id,
                    segments=len(refused),
                    error=refused[0],
                )
        return {
            segment_id: Opening(segment_id, nodes)
            for segment_id, nodes in confirmed.items()
            if len(nodes) >= needed[segment_id]
        }

    async def _pass_over_taken(
        self,
        asked: Mapping[NodeId, Sequence[OpenItem]],
        answers: Mapping[NodeId, Sequence[Incarnation | IcecoreError] | IcecoreError],
    ) -> None:
        """Give out higher ids where nodes have something else under those that were asked for."""
        taken = [
            item.segment.segment_id
            for node_id, results in answers.items()
            if not isinstance(results, IcecoreError)
            for item, result in zip(asked[node_id], results, strict=True)
            if isinstance(result, InvalidRequestError)
        ]
        if not taken:
            return
        spread = self._clock.now_ms()
        event(_log, logging.ERROR, "segment_ids_taken", segment_id=max(taken), count=len(taken))
        await self._ledger.decide(lambda state: pass_over_ids(state, max(taken), spread))

    def _starting(self, item: OpenItem) -> OpenItem:
        """The same, with producers of whom as many batches are remembered as all nodes can (R72):
        those of the segment, and live ones that may be asked to copy it. The mark is from the
        record, so that an order which is given twice is the same one (R60)."""
        state = self._ledger.state
        asked = [state.nodes.get(each) for each in item.segment.replicas]
        asked += [each for each in state.nodes.values() if self._live.is_live(each.node_id)]
        spoken = min((each.protocol_version if each else 0 for each in asked), default=0)
        kept = BATCHES_KEPT if spoken >= _KEEPS_MORE_SINCE else BATCHES_KEPT_FIRST
        record = state.segments.get(item.segment.segment_id)
        mark_ms = record.since_ms if record and spoken >= _HAS_MARKS_SINCE else 0
        before = item.producer_snapshot
        try:
            if mark_ms:
                snapshot = starting(before, kept, mark_ms)
            else:
                snapshot = starting_without_mark(before, kept, item.max_append_timestamp_ms)
        except StorageError:
            return item  # nodes say themselves what is wrong with it
        return replace(item, producer_snapshot=snapshot)

    async def abandon(self, segment_ids: Sequence[SegmentId]) -> None:
        """Give up PREPARED segments that will not be opened."""
        if segment_ids:
            now_ms = self._clock.now_ms()
            await self._ledger.decide(lambda state: drop_prepared(state, segment_ids, now_ms))
