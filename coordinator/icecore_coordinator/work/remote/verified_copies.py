"""Has nodes look for published copies, and acts on what they find: nodes drop what was seen, and
what is missing is uploaded again.

``CopyVerifier`` asks. Another node than the uploader is asked, whose way to the store may be the
wrong one. A copy that nobody sees is asked for again, later each time, and an operator is told;
nodes keep theirs.

``LocalCopies`` lets nodes drop what they have of segments that lie in object storage (R87). By the
local retention of topics, and where no copy on nodes is left: then it is only noted. It looks only
where something may be due: at partitions that changed, and at those of which a segment expires now.
What one look does is bounded. Nothing goes that a node has not just seen in the object store.

``Withdrawals`` takes copies back whose objects are missing, while nodes have the records (R100).
What is missing is heard from nodes that look for copies before others drop theirs, and from those
that can't bring a table up to date: then all copies of the partition that nodes have are looked
for. What was in a store that a person gave up is missing without a look.
"""

import asyncio
import heapq
import logging
import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import TypeVar

from icecore.errors import IcecoreError, UnavailableError
from icecore.model import NO_SEGMENT, NodeId, SegmentId
from icecore.process.log import event
from icecore.tier_records import TierRecord, TierState
from icecore_coordinator.decisions.remote.verified_copies import (
    SpareCopy,
    awaits_copy,
    doubtful_copies,
    drop_copies,
    drop_expired_copies,
    drop_lost_copies,
    expired_copies,
    forgotten_copies,
    has_lost_all,
    next_expiry_ms,
    spare_copies,
    verifiers,
    withdraw,
)
from icecore_coordinator.nodes.alerts import AlertKind
from icecore_coordinator.nodes.tier_calls import CopyMissingError, TierCalls
from icecore_coordinator.state.cluster_state import ClusterState
from icecore_coordinator.state.records import (
    Change,
    PartitionKey,
    PartitionRecord,
    SegmentRecord,
    TopicRecord,
)
from icecore_coordinator.work.backoff import KeyedBackoff
from icecore_coordinator.work.remote.tier_nodes import VERIFY, TieringErrors, best_of, has_store
from icecore_coordinator.work.worker_ports import WorkerPorts

_log = logging.getLogger(__name__)

K = TypeVar("K")

# --- the look -------------------------------------------------------------------------------------

VERIFY_WAIT_MS_MAX = 15_000.0
"""An object that is put back is seen so late."""


class CopyVerifier:
    """Keeps only when to ask for a copy again, and which node failed last.

    Args:
        ports: The cluster.
        errors: What went wrong, for people.
    """

    def __init__(self, ports: WorkerPorts, errors: TieringErrors) -> None:
        self._ledger = ports.ledger
        self._live = ports.live
        self._alerts = ports.alerts
        self._clock = ports.clock
        self._timing = ports.timing
        self._calls = TierCalls(ports.calls)
        self._errors = errors
        self._backoff: KeyedBackoff[SegmentId] = KeyedBackoff(
            ports.clock, ports.timing.sweep_retry_ms, VERIFY_WAIT_MS_MAX
        )
        self._failed: dict[SegmentId, NodeId] = {}
        """Nodes that did not see a copy last time: another one is asked, if there is one."""
        self._missing: dict[SegmentId, int] = {}
        self._unseen: dict[SegmentId, TierRecord] = {}
        """Copies that nobody has seen since they were missed."""

    def is_due(self, segment_id: SegmentId) -> bool:
        """Return whether it may be asked for now."""
        return self._backoff.is_due(segment_id)

    def take_missing(self) -> dict[SegmentId, int]:
        """Take what is missing for certain: the attempts, by segment. Each is returned once."""
        missing, self._missing = self._missing, {}
        return missing

    def unseen(self) -> list[SegmentId]:
        """Return the published copies that were missed, and not seen since."""
        tiers = self._ledger.state.tiers.segments
        for segment_id, missed in list(self._unseen.items()):
            now = tiers.get(segment_id)
            if now is None or (now.attempt, now.state) != (missed.attempt, TierState.PUBLISHED):
                del self._unseen[segment_id]
        return list(self._unseen)

    async def verify(self, segment_ids: Iterable[SegmentId]) -> dict[SegmentId, int]:
        """Have nodes look for published copies, each node once and all of them side by side.

        Returns:
            The attempts of the copies that were seen, by segment.
        """
        tiers = self._ledger.state.tiers.segments
        self._backoff.forget(lambda each: each not in tiers)
        self._failed = {each: node_id for each, node_id in self._failed.items() if each in tiers}
        by_node: dict[NodeId | None, list[TierRecord]] = {}
        for segment_id in segment_ids:
            if segment_id in tiers and self.is_due(segment_id):
                tier = tiers[segment_id]
                by_node.setdefault(self._node_for(tier), []).append(tier)
        for of_node in by_node.values():
            self._backoff.take(each.segment_id for each in of_node)
        found = await asyncio.gather(*(self._ask(each, of) for each, of in by_node.items()))
        return {segment_id: attempt for seen in found for segment_id, attempt in seen.items()}

    def _node_for(self, tier: TierRecord) -> NodeId | None:
        """Return the node to ask; None = none of those that could say is up. The same one for a
        topic, so that calls are few."""
        state = self._ledger.state
        able = [each for each in verifiers(state, tier) if not self._is_gone(each)]
        if not able:  # the others will not come back: better the uploader than nobody
            able = [*state.tiers.nodes]
        up = [each for each in able if has_store(state, self._live, each)]
        others = [each for each in up if each != self._failed.get(tier.segment_id)]
        return best_of(others or up, tier.topic_id)

    def _is_gone(self, node_id: NodeId) -> bool:
        down_ms = self._live.down_ms(node_id, self._clock.monotonic_ms())
        return down_ms is not None and down_ms >= self._timing.lost_replica_grace_ms

    async def _ask(
        self, node_id: NodeId | None, tiers: Sequence[TierRecord]
    ) -> dict[SegmentId, int]:
        seen: dict[SegmentId, int] = {}
        answers: Sequence[IcecoreError | bool] = ()
        try:
            answers = await self._answers(node_id, tiers)
            for tier, answer in zip(tiers, answers, strict=True):
                if isinstance(answer, IcecoreError):
                    self._note_unseen(tier, node_id, answer)
                else:
                    seen[tier.segment_id] = tier.attempt
                    self._failed.pop(tier.segment_id, None)
                    self._unseen.pop(tier.segment_id, None)
                    if not self._is_missed(NO_SEGMENT, tier.topic_id):
                        self._errors.forget(tier.topic_id, VERIFY)
        finally:
            for tier in tiers:
                self._backoff.release(tier.segment_id, is_done=tier.segment_id in seen)
        return seen

    async def _answers(
        self, node_id: NodeId | None, tiers: Sequence[TierRecord]
    ) -> Sequence[IcecoreError | bool]:
        error: IcecoreError = UnavailableError("no node that could look for copies is up")
        if node_id is not None:
            try:
                return await self._calls.verify(node_id, tiers, self._timing.tier_call_ms / 1000)
            except IcecoreError as failure:
                error = failure
        return [error] * len(tiers)

    def _note_unseen(self, tier: TierRecord, node_id: NodeId | None, error: IcecoreError) -> None:
        if node_id is not None:
            self._failed[tier.segment_id] = node_id
        self._errors.note(tier.topic_id, error.message, VERIFY)
        event(
            _log,
            logging.WARNING,
            "copy_not_seen",
            segment_id=tier.segment_id,
            node_id=node_id,
            attempt=tier.attempt,
            error=error,
        )
        self._unseen[tier.segment_id] = tier
        if isinstance(error, CopyMissingError):
            self._missing[tier.segment_id] = tier.attempt
        elif not error.retriable:
            self.tell_unseen(tier)

    def tell_unseen(self, tier: TierRecord) -> None:
        """Tell an operator that the node which looked for this copy last does not find it, and that
        nothing mends it."""
        topic = self._ledger.state.topics.get(tier.topic_id)
        name = topic.name if topic is not None else tier.topic_id.hex()
        record = self._ledger.state.segments.get(tier.segment_id)
        is_last = record is not None and not record.segment.replicas
        segment_id = tier.segment_id if is_last else NO_SEGMENT
        why = _why_missed(tier, name, None if is_last else self._failed.get(tier.segment_id))
        missed = partial(self._is_missed, segment_id, tier.topic_id)
        self._alerts.raise_alert(AlertKind.MISSING, segment_id, why, missed)

    def _is_missed(self, segment_id: SegmentId, topic_id: bytes) -> bool:
        """Return whether this copy is still missed; without a segment, any of the topic."""
        unseen = self.unseen()
        if segment_id != NO_SEGMENT:
            return segment_id in unseen
        return any(self._unseen[each].topic_id == topic_id for each in unseen)


def _why_missed(tier: TierRecord, topic: str, node_id: NodeId | None) -> str:
    """Return the alert about a copy.

    Args:
        tier: Record of the copy.
        topic: Name of its topic.
        node_id: The node that looked last; None = no node has the records, so that each will.
    """
    if node_id is None:
        return (
            f"{topic}/{tier.partition} can't be read from {tier.base_offset} to {tier.end_offset}: "
            "nodes do not find the published copy in the object store, and none has these records: "
            "mount it, or put the objects back; icecore tier status has the last error"
        )
    return (
        f"node {node_id} does not find published copies of topic {topic} in its object store, so "
        "nodes keep theirs: mount it, or put the objects back; icecore tier status has the last "
        "error"
    )


# --- seen: nodes drop theirs ----------------------------------------------------------------------

DROPS_PER_LOOK = 512
PARTITIONS_PER_LOOK = 512


class LocalCopies:
    """Keeps only when it looked, and where to; a new one looks everywhere once.

    Args:
        ports: The cluster.
        verifier: Has copies looked for.
    """

    def __init__(self, ports: WorkerPorts, verifier: CopyVerifier) -> None:
        self._ledger = ports.ledger
        self._live = ports.live
        self._copies = ports.copies
        self._verifier = verifier
        self._clock = ports.clock
        self._timing = ports.timing
        self._looked_ms = -math.inf
        self._changed: dict[PartitionKey, None] = {}
        self._due: list[tuple[int, PartitionKey]] = []
        """A heap: when to look at a partition again, in counted time."""
        self._due_ms: dict[PartitionKey, int] = {}
        """Time of each partition's valid entry in the heap. Later entries of a partition are not
        made."""

    def start(self) -> None:
        """Everything has to be looked at once. The ledger is open."""
        self._changed = dict.fromkeys(self._ledger.state.partitions)
        self._ledger.subscribe(self._on_change)

    def _on_change(self, change: Change) -> None:
        """Note what a committed change may have made due."""
        for record in change.puts:
            match record:
                case SegmentRecord() | PartitionRecord():
                    self._changed[record.partition_key] = None
                case TopicRecord():
                    for partition in self._ledger.state.partitions_of(record):
                        self._changed[partition.partition_key] = None
                case _:
                    pass

    async def look(self) -> None:
        """Drop what local retention says, and note what was lost; now and then."""
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._looked_ms < self._timing.local_look_ms:
            return
        self._looked_ms = now_ms
        await self._drop_lost()
        await self._drop_expired()

    async def _drop_lost(self) -> None:
        state = self._ledger.state
        lost = [each for each in self._suspects() if has_lost_all(state, each, self._is_lost(each))]
        verified = await self._verifier.verify(lost[:DROPS_PER_LOOK])
        wall_ms = self._clock.now_ms()
        await self._drop(
            list(verified),
            lambda state, each: drop_lost_copies(
                state, each, self._is_lost(each), verified, wall_ms
            ),
            "lost",
        )

    async def _drop_expired(self) -> None:
        keys, expired = self._take_due(), dict[PartitionKey, list[SegmentId]]()
        for key in keys:
            found = expired_copies(self._ledger.state, key)
            due = [each for each in found if self._verifier.is_due(each)]
            expired[key] = due[: DROPS_PER_LOOK - sum(map(len, expired.values()))]
            if len(expired[key]) < len(found):
                self._changed[key] = None  # the others later
        verified = await self._verifier.verify(each for of in expired.values() for each in of)
        wall_ms = self._clock.now_ms()
        await self._drop(
            [key for key, of in expired.items() if any(each in verified for each in of)],
            lambda state, key: drop_expired_copies(state, key, verified, wall_ms),
            "local_retention",
        )
        for key, of in expired.items():
            if any(each not in verified for each in of):
                self._changed[key] = None
        self._note_next(keys)

    async def free(self, node_id: NodeId, lacking: int) -> int:
        """Drop the oldest published segments of a node whose disk is nearly full, until they free
        enough, however long their topics keep them there; how many bytes they free."""
        chosen: list[SpareCopy] = []
        found = 0
        for each in spare_copies(self._ledger.state, node_id):
            if found >= lacking or len(chosen) >= DROPS_PER_LOOK:
                break
            if self._verifier.is_due(each.segment_id):
                chosen.append(each)
                found += each.length_bytes
        verified = await self._verifier.verify(each.segment_id for each in chosen)
        wall_ms = self._clock.now_ms()
        await self._drop(
            list(verified),
            lambda state, each: drop_copies(state, each, verified, wall_ms),
            "disk_full",
        )
        return sum(each.length_bytes for each in chosen if each.segment_id in verified)

    def _take_due(self) -> list[PartitionKey]:
        state = self._ledger.state
        while self._due and self._due[0][0] <= state.counted_ms:
            at_ms, key = heapq.heappop(self._due)
            if self._due_ms.get(key) == at_ms:
                del self._due_ms[key]
                self._changed[key] = None
        # What has no copies in object storage is looked at once it has.
        self._changed = {key: None for key in self._changed if key[0] in state.tiers.held}
        keys = list(self._changed)[:PARTITIONS_PER_LOOK]
        for key in keys:
            del self._changed[key]
        return keys

    def _note_next(self, keys: list[PartitionKey]) -> None:
        for key in keys:
            next_ms = next_expiry_ms(self._ledger.state, key)
            if next_ms is not None and next_ms < self._due_ms.get(key, next_ms + 1):
                self._due_ms[key] = next_ms
                heapq.heappush(self._due, (next_ms, key))

    def _suspects(self) -> list[SegmentId]:
        """Published segments with a copy that counts no more."""
        state, now_ms = self._ledger.state, self._clock.monotonic_ms()
        gone = [each for each in state.nodes if self._is_gone(each, now_ms)]
        found = {each: None for node_id in gone for each in state.segments_of_node.get(node_id, ())}
        found.update((segment_id, None) for _, segment_id in self._copies.unknown())
        records = (state.segments[each] for each in found if each in state.segments)
        return [each.segment.segment_id for each in records if each.segment.is_tiered]

    def _is_gone(self, node_id: NodeId, now_ms: float) -> bool:
        down_ms = self._live.down_ms(node_id, now_ms)
        return down_ms is not None and down_ms >= self._timing.lost_replica_grace_ms

    def _is_lost(self, segment_id: SegmentId) -> Callable[[NodeId], bool]:
        """Return a test of node ids: true where the copy is damaged, or the node was down too long.
        A node that comes back is told to delete what it has."""
        now_ms = self._clock.monotonic_ms()

        return lambda node_id: (
            self._is_gone(node_id, now_ms) or self._copies.is_unknown(node_id, segment_id)
        )

    async def _drop(
        self, items: list[K], decision: Callable[[ClusterState, K], Change], why: str
    ) -> None:
        for change in await self._ledger.decide_each(items, decision):
            for record in () if isinstance(change, IcecoreError) else change.puts:
                if isinstance(record, SegmentRecord):
                    segment_id = record.segment.segment_id
                    event(
                        _log, logging.INFO, "local_copies_dropped", segment_id=segment_id, why=why
                    )


# --- missing: the segment is uploaded again -------------------------------------------------------

LOOKED_FOR_MAX = 256
"""Most copies of a partition that one look asks for."""
COPIES_PER_LOOK = 512


class Withdrawals:
    """Keeps only which partitions are in doubt; each failed commit says so again.

    Args:
        ports: The cluster.
        verifier: Has copies looked for.
        errors: What went wrong, for people.
    """

    def __init__(self, ports: WorkerPorts, verifier: CopyVerifier, errors: TieringErrors) -> None:
        self._ledger = ports.ledger
        self._live = ports.live
        self._copies = ports.copies
        self._alerts = ports.alerts
        self._verifier = verifier
        self._errors = errors
        self._doubtful: dict[PartitionKey, None] = {}
        self._unread: dict[SegmentId, None] = {}

    def doubt_copy(self, segment_id: SegmentId) -> None:
        """A node could not read the published copy of this segment."""
        if len(self._unread) < LOOKED_FOR_MAX:  # who reads the others again will say so again
            self._unread[segment_id] = None

    def doubt(self, key: PartitionKey) -> None:
        """Some published copy of this partition may be missing."""
        self._doubtful[key] = None

    async def look(self) -> None:
        """Look for what is in doubt, and take back what is missing."""
        forgotten = list(forgotten_copies(self._ledger.state, self._has_copy))
        for at in range(0, len(forgotten), COPIES_PER_LOOK):
            await self._withdraw(forgotten[at : at + COPIES_PER_LOOK], "the store was given up")
        unread, self._unread = self._unread, {}
        found = filter(self._verifier.is_due, dict.fromkeys((*unread, *self._verifier.unseen())))
        await self._verifier.verify(islice(found, LOOKED_FOR_MAX))
        doubtful, self._doubtful = self._doubtful, {}
        for key in doubtful:
            found = filter(self._verifier.is_due, doubtful_copies(self._ledger.state, key))
            await self._verifier.verify(islice(found, LOOKED_FOR_MAX))
        await self._withdraw([*self._verifier.take_missing().items()], "its objects are missing")

    async def _withdraw(self, copies: Sequence[tuple[SegmentId, int]], why: str) -> None:
        def decision(state: ClusterState, copy: tuple[SegmentId, int]) -> Change:
            segment_id, attempt = copy
            return withdraw(
                state, segment_id, attempt, lambda node_id: self._has_copy(node_id, segment_id)
            )

        results = await self._ledger.decide_each(copies, decision)
        topics: dict[bytes, None] = {}
        for (segment_id, attempt), result in zip(copies, results, strict=True):
            if isinstance(result, IcecoreError):
                event(_log, logging.WARNING, "copy_stays", segment_id=segment_id, error=result)
                if tier := self._ledger.state.tiers.segments.get(segment_id):
                    self._verifier.tell_unseen(tier)
            elif result.puts:
                topics[self._ledger.state.segments[segment_id].segment.topic_id] = None
                event(
                    _log,
                    logging.WARNING,
                    "copy_withdrawn",
                    segment_id=segment_id,
                    attempt=attempt,
                    why=why,
                )
        for topic_id in topics:
            self._errors.forget(topic_id, VERIFY)
            topic = self._ledger.state.topics.get(topic_id)
            name = topic.name if topic is not None else topic_id.hex()
            self._alerts.raise_alert(
                AlertKind.MISSING,
                NO_SEGMENT,
                f"published copies of topic {name} were missing in the object store ({why}): the "
                "nodes that have the records upload them again",
                partial(self._awaits_copies, topic_id),
            )

    def _awaits_copies(self, topic_id: bytes) -> bool:
        state = self._ledger.state
        return any(key[0] == topic_id and awaits_copy(state, key) for key in state.tiers.withdrawn)

    def _has_copy(self, node_id: NodeId, segment_id: SegmentId) -> bool:
        return self._live.is_live(node_id) and self._copies.has_copy(node_id, segment_id)
