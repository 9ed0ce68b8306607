"""Finds the offset and the producers with which a partition without a tail goes on.

The base is the end of its last segment. The state of the producers there comes from a replica of
that segment, and is taken only if it is the one that was sealed: with another one a batch that is
sent again would be appended again. Replicas are asked one after the other; when none knows it, a
person is told. Rule R62 of docs/design/protocol.md.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from icecore.errors import IcecoreError
from icecore.model import NodeId
from icecore.process.log import event
from icecore.rpc.ports import Clock
from icecore_coordinator.decisions.segment_changes import is_sealed_state
from icecore_coordinator.ledger import Ledger
from icecore_coordinator.nodes.alerts import AlertKind, Alerts
from icecore_coordinator.nodes.copy_reports import CopyReports
from icecore_coordinator.nodes.fan_out import by_node, fan_out
from icecore_coordinator.nodes.node_calls import NodeCalls, WriteBackItem, WrittenReplica
from icecore_coordinator.state.cluster_state import last_with_records
from icecore_coordinator.state.liveness import Liveness
from icecore_coordinator.state.records import PartitionKey, SegmentRecord
from icecore_coordinator.timing import Timing

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Start:
    """The base offset of a new segment, and the state that it starts with."""

    base_offset: int
    producer_snapshot: bytes = b""
    max_append_timestamp_ms: int = 0


@dataclass(frozen=True, slots=True)
class _Wanted:
    """The last segment of a partition, and who may know the producers at its end."""

    key: PartitionKey
    base_offset: int
    """The partition goes on there: at the end of the segment, or of what readers skip behind it."""
    record: SegmentRecord
    nodes: tuple[NodeId, ...]


def start_behind(record: SegmentRecord, written: WrittenReplica) -> Start:
    """The start behind a sealed segment. Append times go on from the later of what its record and
    the replica say, for they never go back (R51)."""
    newest_ms = max(record.max_append_timestamp_ms, written.max_append_timestamp_ms)
    return Start(record.segment.end_offset, written.producer_snapshot, newest_ms)


class StartStates:
    """Finds the starts of many partitions at once."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        calls: NodeCalls,
        live: Liveness,
        copies: CopyReports,
        alerts: Alerts,
        clock: Clock,
        timing: Timing,
    ) -> None:
        self._ledger = ledger
        self._calls = calls
        self._live = live
        self._copies = copies
        self._alerts = alerts
        self._clock = clock
        self._timing = timing

    async def find(self, keys: Sequence[PartitionKey]) -> dict[PartitionKey, Start]:
        """The starts of those partitions of which they are known or can be had."""
        state = self._ledger.state
        starts: dict[PartitionKey, Start] = {}
        wanted: list[_Wanted] = []
        for key in keys:
            partition = state.partitions.get(key)
            if partition is None:
                continue
            base = partition.next_base_offset
            last, is_skipped = last_with_records(state, key, base)
            if last is None:
                newest_ms = self._clock.now_ms() if is_skipped else 0
                starts[key] = Start(base, max_append_timestamp_ms=newest_ms)
            elif last.segment.is_remote_only and not last.producer_digest:
                # Restored from a bucket, which says nothing of producers: sequences begin anew.
                starts[key] = Start(base, max_append_timestamp_ms=last.max_append_timestamp_ms)
            elif sources := self._sources(last):
                wanted.append(_Wanted(key, base, last, sources))
        refused: dict[PartitionKey, None] = {}
        for number in range(max((len(each.nodes) for each in wanted), default=0)):
            asked = [e for e in wanted if e.key not in starts and number < len(e.nodes)]
            for each, written in await self._ask(asked, number):
                self._take(each, each.nodes[number], written, starts, refused)
        for each in wanted:
            if each.key in refused and each.key not in starts:
                self._alerts.raise_alert(
                    AlertKind.PRODUCERS,
                    each.record.segment.segment_id,
                    "no replica knows the producers that were sealed",
                )
        return starts

    def _sources(self, record: SegmentRecord) -> tuple[NodeId, ...]:
        """Live replicas, those last that call their own copy damaged."""
        segment_id = record.segment.segment_id
        live = [each for each in record.segment.replicas if self._live.is_live(each)]
        return tuple(sorted(live, key=lambda each: self._copies.is_unknown(each, segment_id)))

    def _take(
        self,
        wanted: _Wanted,
        node_id: NodeId,
        written: WrittenReplica,
        starts: dict[PartitionKey, Start],
        refused: dict[PartitionKey, None],
    ) -> None:
        segment = wanted.record.segment
        if is_sealed_state(wanted.record, written.producer_snapshot):
            start = start_behind(wanted.record, written)
            starts[wanted.key] = replace(start, base_offset=wanted.base_offset)
            return
        refused[wanted.key] = None
        event(
            _log,
            logging.CRITICAL,
            "producer_state_refused",
            segment_id=segment.segment_id,
            node_id=node_id,
        )

    async def _ask(
        self, asked: Sequence[_Wanted], number: int
    ) -> list[tuple[_Wanted, WrittenReplica]]:
        """Good answers of the replicas that come next."""
        grouped: Mapping[NodeId, list[_Wanted]] = by_node(
            (each.nodes[number], each) for each in asked
        )
        answers = await fan_out(
            self._clock,
            {
                node_id: self._calls.write_back(
                    node_id, [_item(each) for each in mine], self._timing.node_call_ms / 1000
                )
                for node_id, mine in grouped.items()
            },
            required=list(grouped),
            patience_ms=self._timing.node_call_ms,
            is_enough=lambda _: False,
        )
        found: list[tuple[_Wanted, WrittenReplica]] = []
        for node_id, results in answers.items():
            if isinstance(results, IcecoreError):
                continue
            for each, result in zip(grouped[node_id], results, strict=True):
                if not isinstance(result, IcecoreError):
                    found.append((each, result))
        return found


def _item(wanted: _Wanted) -> WriteBackItem:
    segment = wanted.record.segment
    return WriteBackItem(segment, segment.end_offset, seal_digest=segment.seal_digest, seal=True)
