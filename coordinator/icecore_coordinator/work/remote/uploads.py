"""Copies sealed segments into object storage, and merges small copies into large ones: an attempt
into metadata, a node that carries it out, then the copy is published.

Uploads are level-triggered: what is due is found in the records. A few at a time on each node, for
encoding competes with produce for the same cores. An attempt that this coordinator has no call for
was one of another's: it is closed, and the next one begins (R85).

Nothing is merged by itself: the job ``rewrite`` asks, one group at a time. Its attempts are counted
among the uploads of a node, and are closed as those are.
"""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from icecore.errors import ConflictError, IcecoreError, UnavailableError
from icecore.model import FIRST_GENERATION, NodeId, Segment, SegmentId
from icecore.process.log import event
from icecore.tier_records import TierCopy, TierRecord
from icecore_coordinator.decisions.remote.tier_merging import begin_merge, publish_merge
from icecore_coordinator.decisions.remote.tiering import Attempt, begin, close, is_due, publish
from icecore_coordinator.nodes.tier_calls import TierCalls, UploadedCopy, UploadItem
from icecore_coordinator.state.cluster_state import ClusterState
from icecore_coordinator.state.records import Change, SegmentRecord, TopicRecord
from icecore_coordinator.work.backoff import KeyedBackoff
from icecore_coordinator.work.remote.tier_nodes import MERGE, TieringErrors, has_store
from icecore_coordinator.work.worker_ports import WorkerPorts

_log = logging.getLogger(__name__)

# --- uploads --------------------------------------------------------------------------------------

CALLS_PER_NODE = 2
"""Most calls to one node at a time, uploads and merges together."""
SEGMENT_WAIT_MS_MAX = 600_000.0
"""Each attempt that fails is one more to be swept, and to be remembered for a day."""
NODE_WAIT_MS_MAX = 60_000.0


class UploadScheduler:
    """Keeps which calls are under way, and whom to leave alone for a while.

    Args:
        ports: The cluster.
        errors: What went wrong, for people.
        calling: Whom somebody waits for, by segment: those of ``Merging`` are among them.
        spawn: Starts a task, under a name.
    """

    def __init__(
        self,
        ports: WorkerPorts,
        errors: TieringErrors,
        calling: dict[SegmentId, NodeId],
        spawn: Callable[[Coroutine[Any, Any, None], str], None],
    ) -> None:
        self._ledger = ports.ledger
        self._live = ports.live
        self._copies = ports.copies
        self._clock = ports.clock
        self._timing = ports.timing
        self._calls = TierCalls(ports.calls)
        self._errors = errors
        self._spawn = spawn
        self._segments: KeyedBackoff[SegmentId] = KeyedBackoff(
            ports.clock, ports.timing.upload_retry_ms, SEGMENT_WAIT_MS_MAX
        )
        self._nodes: KeyedBackoff[NodeId] = KeyedBackoff(
            ports.clock, ports.timing.upload_node_retry_ms, NODE_WAIT_MS_MAX
        )
        self._calling = calling
        self._failed: dict[SegmentId, NodeId] = {}
        """Nodes whose last attempt failed, by segment: another node is asked, if there is one."""
        self._turns: dict[bytes, int] = {}
        """Number of the last turn of each topic, by topic id: the lowest is first."""
        self._turn = 0
        self.room = asyncio.Event()
        """Set when an upload has ended well: its node may be asked for more at once."""

    async def look(self) -> None:
        """Close attempts that nobody waits for, then begin what is due and has room."""
        state = self._ledger.state
        self._segments.forget(lambda each: each not in state.segments)
        self._failed = {k: each for k, each in self._failed.items() if k in state.segments}
        self._nodes.forget(lambda each: each not in state.tiers.nodes)
        lost = [each for each in state.tiers.under_way if each not in self._calling]
        for segment_id in lost:
            await self._close(segment_id, state.tiers.segments[segment_id].attempt, "nobody waits")
        for record, owner in list(self._chosen()):
            await self._begin(record.segment.segment_id, owner)

    def _chosen(self) -> Iterator[tuple[SegmentRecord, NodeId]]:
        """Yield the segments to upload now, each with the node that uploads it. Topics take turns:
        one whose backlog never ends holds up no other."""
        state = self._ledger.state
        busy = Counter(self._calling.values())
        free = {
            each: CALLS_PER_NODE - busy[each]
            for each in state.tiers.nodes
            if has_store(state, self._live, each)
            and self._nodes.is_due(each)
            and busy[each] < CALLS_PER_NODE
        }
        topics = [each for each in state.topics.values() if each.is_live and each.tiering.is_on]
        if not any(has_store(state, self._live, each) for each in state.tiers.nodes):
            self._note_no_store(topics)
            return
        waiting = sorted(
            (each.topic_id for each in topics), key=lambda each: self._turns.get(each, 0)
        )
        self._turns = {each: self._turns[each] for each in waiting if each in self._turns}
        due = deque((topic_id, self._due_of(topic_id)) for topic_id in waiting)
        while due and free:
            topic_id, records = due.popleft()
            for record in records:
                owner = self._owner_of(record, free)
                if owner is not None:
                    free[owner] -= 1
                    if not free[owner]:
                        del free[owner]
                    self._turns[topic_id] = self._turn = self._turn + 1
                    due.append((topic_id, records))
                    yield record, owner
                    break

    def _due_of(self, topic_id: bytes) -> Iterator[SegmentRecord]:
        """Yield the segments of a topic that may be uploaded now."""
        state = self._ledger.state
        for segment_id in state.tiers.untiered.get(topic_id, ()):
            record = state.segments[segment_id]
            if self._segments.is_due(segment_id) and is_due(state, record):
                yield record

    def _owner_of(self, record: SegmentRecord, free: Mapping[NodeId, int]) -> NodeId | None:
        """Return the node that is to upload a segment, None when all that could are busy."""
        segment = record.segment
        able = [
            each
            for each in segment.replicas
            if each in free and self._copies.has_copy(each, segment.segment_id)
        ]
        failed = self._failed.get(segment.segment_id)
        return max(able, key=lambda each: (each != failed, free[each], -each), default=None)

    def _note_no_store(self, topics: Iterable[TopicRecord]) -> None:
        """Nobody can be asked: what waits says why."""
        state = self._ledger.state
        said = [
            f"node {each}: {problem}"
            for each in state.tiers.nodes
            if (problem := self._live.of(each).store_problem)
        ]
        for topic in topics:
            if said and state.tiers.untiered.get(topic.topic_id):
                self._errors.note(topic.topic_id, said[0])

    async def _begin(self, segment_id: SegmentId, owner: NodeId) -> None:
        """The attempt is in metadata before anybody is asked."""
        try:
            change = await self._ledger.decide(lambda state: begin(state, segment_id, owner))
        except IcecoreError as error:
            if self._ledger.lost.is_set():
                raise
            event(_log, logging.INFO, "upload_not_begun", segment_id=segment_id, error=error)
            return
        [tier] = [each for each in change.puts if isinstance(each, TierRecord)]
        self._segments.take([segment_id])
        self._calling[segment_id] = owner
        self._spawn(self._upload(tier), "upload")

    async def _upload(self, tier: TierRecord) -> None:
        is_done = False
        try:
            is_done = await self._try(tier)
        finally:
            self._calling.pop(tier.segment_id, None)
            self._segments.release(tier.segment_id, is_done=is_done)
            if is_done:
                self._failed.pop(tier.segment_id, None)
                self.room.set()
            else:
                self._failed[tier.segment_id] = tier.owner

    async def _try(self, tier: TierRecord) -> bool:
        """Return whether the copy of this attempt was published."""
        state, segment_id = self._ledger.state, tier.segment_id
        record = state.segments.get(segment_id)
        if record is None:
            return False
        item = UploadItem(state.assignment(record), tier.attempt, tier.tier_format)
        try:
            found = await self._calls.upload(tier.owner, item, self._timing.upload_call_ms / 1000)
        except IcecoreError as error:
            found = error
        self._nodes.release(tier.owner, is_done=not isinstance(found, IcecoreError))
        if isinstance(found, IcecoreError):
            await self._close(segment_id, tier.attempt, found)
            return False
        upload = Attempt(segment_id, tier.attempt, tier.owner, found.incarnation)
        now_ms = self._clock.now_ms()
        try:
            await self._ledger.decide(
                lambda state: publish(state, upload, found.copy, now_ms, found.store_id)
            )
        except IcecoreError as error:
            if self._ledger.lost.is_set():
                raise
            await self._close(segment_id, tier.attempt, error)
            return False
        self._errors.forget(tier.topic_id)
        event(
            _log,
            logging.INFO,
            "tiered",
            segment_id=segment_id,
            node_id=tier.owner,
            attempt=tier.attempt,
            length_bytes=found.copy.length_bytes,
        )
        return True

    async def _close(self, segment_id: SegmentId, attempt: int, why: IcecoreError | str) -> None:
        """It will never count: whoever still is at it changes nothing by it."""
        change = await self._ledger.decide(lambda state: close(state, segment_id, attempt))
        for record in change.puts:
            if isinstance(record, TierRecord):
                self._errors.note(record.topic_id, str(why))
        event(
            _log,
            logging.WARNING,
            "upload_closed",
            segment_id=segment_id,
            attempt=attempt,
            error=why,
        )


# --- merges ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Merged:
    """A merged segment and its copy, which replaced the sources."""

    segment: Segment
    copy: TierCopy


class Merging:
    """Keeps which calls are under way.

    Args:
        ports: The cluster.
        errors: What went wrong, for people.
        calling: Whom somebody waits for, by segment: uploads are among them.
        spawn: Starts a task, under a name.
    """

    def __init__(
        self,
        ports: WorkerPorts,
        errors: TieringErrors,
        calling: dict[SegmentId, NodeId],
        spawn: Callable[[Coroutine[Any, Any, None], str], None],
    ) -> None:
        self._ledger = ports.ledger
        self._live = ports.live
        self._clock = ports.clock
        self._timing = ports.timing
        self._calls = TierCalls(ports.calls)
        self._errors = errors
        self._calling = calling
        self._spawn = spawn
        self._waited_for: dict[tuple[SegmentId, ...], asyncio.Future[Merged]] = {}

    async def merge(self, segment_ids: Sequence[SegmentId]) -> Merged:
        """One segment in place of several; it goes on when the caller is gone, and who asks for the
        same meanwhile waits for it, too.

        Raises:
            InvalidRequestError: These are too few, too many, or do not follow each other.
            ConflictError: They can't be merged (any more), or are being merged by another call.
            UnavailableError: All nodes with an object store are busy, or none is up.
            IcecoreError: As the node or the object store has it; nothing has changed.
        """
        key = (*segment_ids,)
        found = self._waited_for.get(key)
        if found is None:
            found = self._waited_for[key] = asyncio.get_running_loop().create_future()
            self._spawn(self._carry_out(key, found), "merge")
        return await asyncio.shield(found)

    def _free_node(self) -> NodeId:
        busy = Counter(self._calling.values())
        state = self._ledger.state
        up = [each for each in state.tiers.nodes if has_store(state, self._live, each)]
        free = [each for each in up if busy[each] < CALLS_PER_NODE]
        if not up:
            raise UnavailableError("no node with an object store is up: start one")
        if not free:
            raise UnavailableError("all nodes with an object store are busy: try again later")
        return min(free, key=lambda each: (busy[each], each))

    async def _begin(self, segment_ids: tuple[SegmentId, ...], owner: NodeId) -> TierRecord:
        """The attempt is in metadata before anybody is asked."""
        begun: list[TierRecord] = []

        def decide(state: ClusterState) -> Change:
            change = begin_merge(state, segment_ids, owner)
            begun[:] = [each for each in change.puts if isinstance(each, TierRecord)]
            # From here on, or whoever looks for attempts that nobody waits for would find it.
            self._calling[begun[0].segment_id] = owner
            return change

        try:
            await self._ledger.decide(decide)
        except BaseException:
            for each in begun:
                self._calling.pop(each.segment_id, None)
            raise
        return begun[0]

    async def _carry_out(
        self, segment_ids: tuple[SegmentId, ...], waiting: "asyncio.Future[Merged]"
    ) -> None:
        outcome: Merged | IcecoreError = UnavailableError("the coordinator ends: ask its successor")
        try:
            tier = await self._begin(segment_ids, self._free_node())
            try:
                outcome = await self._try(tier)
            finally:
                self._calling.pop(tier.segment_id, None)
        except IcecoreError as error:
            outcome = error
            if self._ledger.lost.is_set():
                raise
        finally:
            del self._waited_for[segment_ids]
            if isinstance(outcome, Merged):
                waiting.set_result(outcome)
            else:
                waiting.set_exception(outcome)
                waiting.exception()  # looked at, even when the caller is gone

    async def _try(self, tier: TierRecord) -> Merged:
        try:
            found = await self._ask(tier)
            upload = Attempt(tier.segment_id, tier.attempt, tier.owner, found.incarnation)
            now_ms = self._clock.now_ms()
            change = await self._ledger.decide(
                lambda state: publish_merge(state, upload, found.copy, found.source_digests, now_ms)
            )
        except IcecoreError as error:
            if not self._ledger.lost.is_set():
                await self._close(tier, error)
            raise
        self._errors.forget(tier.topic_id, MERGE)
        [record] = [each for each in change.puts if isinstance(each, SegmentRecord)]
        event(
            _log,
            logging.INFO,
            "merged",
            segment_id=tier.segment_id,
            node_id=tier.owner,
            attempt=tier.attempt,
            sources=len(tier.sources),
            length_bytes=found.copy.length_bytes,
        )
        return Merged(self._ledger.state.assignment(record), found.copy)

    async def _ask(self, tier: TierRecord) -> UploadedCopy:
        """Have the node make the copy, and return it. Raises the error that the node answers."""
        state = self._ledger.state
        known = [state.segments.get(each) for each in tier.sources]
        sources = [each for each in known if each is not None]
        if len(sources) < len(known):
            raise ConflictError("a segment that is merged was deleted meanwhile")
        segment = merged_segment(tier, state.assignment(sources[-1]))
        copies = tuple(state.tiers.segments[each] for each in tier.sources)
        item = UploadItem(segment, tier.attempt, tier.tier_format, copies)
        found = await self._calls.upload(tier.owner, item, self._timing.upload_call_ms / 1000)
        if isinstance(found, IcecoreError):
            raise found
        return found

    async def _close(self, tier: TierRecord, why: IcecoreError) -> None:
        """It will never count: whoever still is at it changes nothing by it."""
        await self._ledger.decide(lambda state: close(state, tier.segment_id, tier.attempt))
        self._errors.note(tier.topic_id, why.message, MERGE)
        event(
            _log,
            logging.WARNING,
            "merge_closed",
            segment_id=tier.segment_id,
            attempt=tier.attempt,
            error=why,
        )


def merged_segment(tier: TierRecord, last: Segment) -> Segment:
    """Return the merged segment as the node that makes it is told of it."""
    return last.changed(
        segment_id=tier.segment_id,
        generation=FIRST_GENERATION,
        base_offset=tier.base_offset,
        full_digest=b"",
    )
