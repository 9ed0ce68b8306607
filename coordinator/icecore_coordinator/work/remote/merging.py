"""Has small tiered segments made into large ones, when somebody asks for it: an attempt into
metadata, a node that makes the copy, then the swap.

Nothing is merged by itself: the job ``rewrite`` asks, one group at a time. An attempt that this
coordinator has no call for was one of another's, and ``Uploads`` closes it as any other.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any

from icecore.errors import ConflictError, IcecoreError, UnavailableError
from icecore.model import FIRST_GENERATION, NodeId, Segment, SegmentId
from icecore.process.log import event
from icecore.tier_records import TierCopy, TierRecord
from icecore_coordinator.decisions.tier_merging import begin_merge, publish_merge
from icecore_coordinator.decisions.tiering import Attempt, close
from icecore_coordinator.nodes.tier_calls import TierCalls, UploadedCopy, UploadItem
from icecore_coordinator.state.cluster_state import ClusterState
from icecore_coordinator.state.records import Change, SegmentRecord
from icecore_coordinator.work.remote.tier_nodes import has_store
from icecore_coordinator.work.remote.tiering_errors import MERGE, TieringErrors
from icecore_coordinator.work.worker_ports import WorkerPorts

_log = logging.getLogger(__name__)

CALLS_PER_NODE = 2
"""Most calls to one node at a time, its uploads included."""


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
