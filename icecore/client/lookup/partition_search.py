"""The search of one partition: which node is asked for which segments, and what came of it.

Consecutive segments that one node holds go in one request; sealed ones to any replica, the open one
to its leader. What a node can't search is asked of another one. When nobody could for
``patience_s``, the segment is unavailable, which its outcome says, and the search goes on behind
it.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Final

from icecore.client.cluster.connection import Backoff, Connection
from icecore.client.cluster.held_segments import is_gap
from icecore.client.cluster.metadata import Metadata
from icecore.client.lookup.continuations import OPEN, SearchCursor
from icecore.client.lookup.search_answer import Answer, Group, Question, merged, read_answer
from icecore.client.lookup.segment_chains import SegmentChains
from icecore.client.types import SearchOutcome, SegmentOutcome
from icecore.codec.record import Record
from icecore.errors import (
    CorruptBatchError,
    IcecoreError,
    InternalError,
    NotLeaderError,
    NotReplicaError,
    ObjectStoreError,
    RequestTimeoutError,
    StorageError,
    UnavailableError,
)
from icecore.model import Segment, SegmentState
from icecore.rpc.filters import selection_to_proto
from icecore.v1 import data_pb2

ATTEMPT_S: Final = 10.0
"""For one request: a node that has to read files may take a while."""
SEGMENTS_PER_REQUEST: Final = 100
ANSWER_BYTES: Final = 3 << 20
"""The most that a node sends at once."""
_ALL: Final = 0
"""In place of a segment."""
_HELPED_BY_ANOTHER = (InternalError, StorageError, ObjectStoreError, CorruptBatchError)
"""Not retriable, but another replica may do better."""
_OF_NODE = (UnavailableError, RequestTimeoutError)
"""They concern all that a node has."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Access to the cluster that answers."""

    connection: Connection
    metadata: Metadata
    chains: SegmentChains
    refresh: Callable[[int], Awaitable[None]]
    """Learns anew who holds the segments of a partition, and where nodes are."""
    patience_s: float


class PartitionSearch:
    """One partition, from where a page before has left it.

    Args:
        question: What is looked for.
        cursor: Where to begin.
        cluster: Who is asked.
        seen_end: A node that knows of fewer records in the partition lags behind.
    """

    def __init__(
        self, question: Question, cursor: SearchCursor, cluster: Cluster, seen_end: int = 0
    ) -> None:
        self._question = question
        self._cluster = cluster
        self.partition, self._offset, self._limit = cursor
        self._seen_end = seen_end
        self.indexed_through = seen_end
        """See ``LookupPage``."""
        self.found: deque[Record] = deque()
        """In order, not handed out yet."""
        self.is_over = self._is_past_limit()
        """Nothing is left but what was found."""
        self._outcomes: dict[int, SegmentOutcome] = {}
        self._planned_ms: float | None = None
        self._avoided: dict[tuple[int, int], IcecoreError] = {}
        """Errors of replicas not to ask again, by segment and node."""
        self._failing_since_ms: dict[int, float] = {}
        self._backoff = Backoff(cluster.connection.rng, 20, 500)

    @property
    def cursor(self) -> SearchCursor | None:
        """Standing of the next page, records not handed out included; None when nothing is left."""
        if self.found:
            first = self.found[0].offset
            offset = first + 1 if self._question.newest_first else first
            return SearchCursor(self.partition, offset, self._limit)
        return None if self.is_over else SearchCursor(self.partition, self._offset, self._limit)

    @property
    def planned_ms(self) -> float:
        """Monotonic time at which the list of segments was the newest.

        It stands still once the end of the partition was seen: later records are not part of the
        answer.
        """
        if self._planned_ms is not None:
            return self._planned_ms
        return self._cluster.chains.newest_ms(self.partition)

    def take_outcomes(self) -> list[SegmentOutcome]:
        """Return the outcomes of segments since the last call."""
        outcomes, self._outcomes = self._outcomes, {}
        return list(outcomes.values())

    @property
    def is_lacking(self) -> bool:
        """Nobody knows yet which record is the next one here."""
        return not self.found and not self.is_over

    async def more(self, count: int, until_ms: float) -> None:
        """Search until there is a record, nothing is left, or a moment has come.

        Args:
            count: Of records that are of use; more are not asked for.
            until_ms: Of the monotonic clock; what is under way then is waited for.

        Raises:
            IcecoreError: The question is wrong, or the topic is gone.
        """
        clock = self._cluster.connection.clock
        while self.is_lacking and clock.monotonic_ms() < until_ms:
            segments = self._ahead()
            if not segments:
                self.is_over = True
            elif segments[0].is_lost:
                self._give_up(segments[0], StorageError("its records were declared lost"))
            elif segments[0].is_skipped:  # offsets that were never given out
                self._pass(segments[0])
            elif (group := self._group(segments)) is None:
                await self._wait(segments[0])
            else:
                await self._ask(group, count)

    # --- where to look --------------------------------------------------------------------------

    def _is_past_limit(self) -> bool:
        if OPEN in (self._offset, self._limit):
            return False
        if self._question.newest_first:
            return self._offset <= self._limit
        return self._offset >= self._limit

    def _ahead(self) -> list[Segment]:
        """Return the segments that are left to search, in the order of the search."""
        chain = self._cluster.chains.of(self.partition)
        low, high = self._offset, self._limit
        if self._question.newest_first:
            low, high = high, low
            chain.reverse()
        return [
            each
            for each in chain
            if (_is_open(each) or each.end_offset > low)
            and (high == OPEN or each.base_offset < high)
        ]

    def _group(self, segments: list[Segment]) -> Group | None:
        """The most that one node can be asked for; None when nobody can be asked."""
        nodes = self._nodes(segments[0])
        if not nodes:
            return None
        first = int(self._cluster.connection.rng.random() * len(nodes))
        held = {each: list(self._held(each, segments)) for each in nodes[first:] + nodes[:first]}
        node_id = max(held, key=lambda each: len(held[each]))
        mine = held[node_id]
        lowest, highest = mine[0], mine[-1]
        low, high = self._offset, self._limit
        if self._question.newest_first:
            lowest, highest, low, high = highest, lowest, high, low
        has_open = _is_open(highest)
        ends = [high, OPEN if has_open else highest.end_offset]
        end = min((each for each in ends if each != OPEN), default=0)
        start = max(low, lowest.base_offset)
        return Group(self.partition, node_id, mine, start, end, has_open)

    def _nodes(self, segment: Segment) -> list[int]:
        """Return the nodes to ask for a segment: those that are up, else all that may be asked."""
        view = self._cluster.metadata.view
        known = [each for each in _holders(segment) if view.address(each)]
        allowed = [each for each in known if self._may_ask(each, segment)]
        return [each for each in allowed if view.is_up(each)] or allowed

    def _may_ask(self, node_id: int, segment: Segment) -> bool:
        keys = ((segment.segment_id, node_id), (_ALL, node_id))
        return not any(key in self._avoided for key in keys)

    def _held(self, node_id: int, segments: list[Segment]) -> Iterator[Segment]:
        for segment in segments[:SEGMENTS_PER_REQUEST]:
            if node_id not in _holders(segment) or not self._may_ask(node_id, segment):
                return
            yield segment

    # --- one request ----------------------------------------------------------------------------

    async def _ask(self, group: Group, count: int) -> None:
        question, cluster = self._question, self._cluster
        request = data_pb2.QueryRequest(
            cluster_id=cluster.metadata.view.cluster_id,
            topic_id=question.topic_id,
            filter=selection_to_proto(question.selection),
            newest_first=question.newest_first,
            max_count=count,
            max_bytes=ANSWER_BYTES,
            explain_only=question.is_explained,
            takes_columns=True,
        )
        request.partitions.add(
            partition=self.partition,
            from_offset=group.from_offset,
            to_offset=group.to_offset,
            segment_ids=[each.segment_id for each in group.segments],
        )
        try:
            address = cluster.metadata.view.address(group.node_id)
            if address is None:
                raise UnavailableError(f"the address of node {group.node_id} is unknown")
            message = await cluster.connection.data(
                address, "Query", request, data_pb2.QueryResponse, timeout_s=ATTEMPT_S
            )
            self._accept(group, read_answer(question, group, message, count))
        except IcecoreError as error:
            if not error.retriable and not isinstance(error, _HELPED_BY_ANOTHER):
                raise
            segment_id = _ALL if isinstance(error, _OF_NODE) else group.segments[0].segment_id
            self._avoided[segment_id, group.node_id] = error

    def _accept(self, group: Group, answer: Answer) -> None:
        """Raises NotReplicaError, InternalError when nothing came of it."""
        visible_end = answer.visible_end
        seen_end = min(self._seen_end, group.to_offset or self._seen_end)
        if group.has_open and answer.missing is None and visible_end < seen_end:
            raise NotReplicaError(
                f"node {group.node_id} knows partition {self.partition} up to {visible_end}, where "
                f"{seen_end} was seen"
            )
        before = self._offset
        self.found.extend(answer.records)
        for outcome in answer.outcomes:
            was = self._outcomes.get(outcome.segment_id)
            self._outcomes[outcome.segment_id] = merged(was, outcome)
        self._offset = answer.reached
        if answer.missing is not None:
            assert answer.error is not None
            self._avoided[answer.missing.segment_id, group.node_id] = answer.error
        # From the newest record down the end comes first, whatever is missing below it.
        is_end_first = self._question.newest_first and answer.missing is not group.segments[0]
        if answer.missing is None or is_end_first:
            self.indexed_through = max(self.indexed_through, visible_end)
            if group.has_open:
                self._note_end(visible_end)
        elif not self._question.newest_first:
            self.indexed_through = max(self.indexed_through, answer.reached)
        self.is_over = self.is_over or self._is_past_limit()
        if self._offset == before and answer.missing is None and not self.is_over:
            raise InternalError(
                f"node {group.node_id} made no progress on the segments that it was asked for"
            )

    def _note_end(self, visible_end: int) -> None:
        """The partition ends there for this question: what comes later is not part of the answer,
        so that all its pages are one answer."""
        self._planned_ms = self.planned_ms
        self._seen_end = max(self._seen_end, visible_end)
        if not self._question.newest_first:
            ends = (self._limit, max(visible_end, 0))
            self._limit = min(each for each in ends if each != OPEN)

    # --- when nobody can be asked ---------------------------------------------------------------

    async def _wait(self, segment: Segment) -> None:
        """Give others, or a new leader, a moment, and look who there is; or give the segment up."""
        cluster, segment_id = self._cluster, segment.segment_id
        now_ms = cluster.connection.clock.monotonic_ms()
        since_ms = self._failing_since_ms.setdefault(segment_id, now_ms)
        if now_ms - since_ms >= cluster.patience_s * 1000:
            self._give_up(segment, self._why(segment))
            return
        await asyncio.sleep(self._backoff.next_s())
        try:
            await cluster.refresh(self.partition)
        except IcecoreError as error:
            if not error.retriable:
                raise
        self._avoided.clear()

    def _why(self, segment: Segment) -> IcecoreError:
        for (segment_id, node_id), error in self._avoided.items():
            if segment_id in (_ALL, segment.segment_id) and node_id in _holders(segment):
                return error
        if is_gap(segment):
            return UnavailableError(
                "no node that answers holds these records, and no coordinator says who does"
            )
        if _is_open(segment):
            return NotLeaderError("there is no leader at the moment")
        return NotReplicaError("no replica of it is known")

    def _give_up(self, segment: Segment, error: IcecoreError) -> None:
        number = -1 - segment.base_offset if is_gap(segment) else segment.segment_id
        self._outcomes[number] = SegmentOutcome(
            partition=self.partition,
            segment_id=segment.segment_id,
            base_offset=segment.base_offset,
            end_offset=OPEN if _is_open(segment) else segment.end_offset,
            outcome=SearchOutcome.UNAVAILABLE,
            error=f"{error.reason}: {error.message}",
        )
        self._pass(segment)

    def _pass(self, segment: Segment) -> None:
        """Go on behind it."""
        if self._question.newest_first:
            self._offset = segment.base_offset
        elif _is_open(segment):
            self.is_over = True
        else:
            self._offset = max(self._offset, segment.end_offset)
        self.is_over = self.is_over or self._is_past_limit()


def _is_open(segment: Segment) -> bool:
    return segment.state is not SegmentState.SEALED


def _holders(segment: Segment) -> tuple[int, ...]:
    """Return the nodes that can search it. Only the leader knows how far an active segment is
    visible."""
    if not _is_open(segment):
        return segment.holders
    return (segment.leader,) if segment.leader else ()
