"""Producers' names: who takes one over may rely on it that the one before appends no more.

First the record, then the leaders. The new epoch is stored; from then on it goes down every
heartbeat stream ahead of anything else, so that nobody begins to lead without knowing it. Whoever
leads the named topics already is asked, and the answer waits for all of them: for a leader that
does not answer until its segment has been recovered, because it may not know and still append.
Rules R48 and R112 of docs/design/protocol.md.
"""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from icecore.errors import IcecoreError, UnavailableError
from icecore.model import Incarnation, NodeId, ProducerEpoch, ProducerId, SegmentState
from icecore.rpc.ports import Clock
from icecore.v1.common_pb2 import ProducerPosition
from icecore_coordinator.decisions.producer_changes import delete_name, shut_out, take_name
from icecore_coordinator.ledger import Ledger
from icecore_coordinator.nodes.node_calls import NodeCalls
from icecore_coordinator.state.cluster_state import ClusterState
from icecore_coordinator.state.liveness import Liveness
from icecore_coordinator.state.records import Change, ProducerRecord
from icecore_coordinator.timing import Timing


@dataclass(frozen=True, slots=True)
class NamedProducer:
    """The producer id, epoch and positions that the new owner of a name gets."""

    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    positions: tuple[ProducerPosition, ...]


class ProducerNaming:
    """Hands out names of producers."""

    def __init__(
        self, ledger: Ledger, calls: NodeCalls, live: Liveness, clock: Clock, timing: Timing
    ) -> None:
        self._ledger = ledger
        self._calls = calls
        self._live = live
        self._clock = clock
        self._timing = timing

    async def take(
        self, name: str, topics: Sequence[str], instance: int, *, is_renewal: bool
    ) -> NamedProducer:
        """Raise the epoch of a name and return when all leaders of the topics refuse older ones.

        Raises:
            UnknownTopicError: There is no such topic.
            InvalidRequestError, ProducerFencedError: As ``take_name``.
            UnavailableError: Some leader has not confirmed in time. The epoch is taken all the
                same; ask again.
        """

        def decision(state: ClusterState) -> Change:
            for topic in topics:
                state.topic(topic)
            now_ms = self._clock.now_ms()
            return take_name(state, name, instance, now_ms, is_renewal=is_renewal)

        record = (await self._ledger.decide(decision)).puts[-1]
        assert isinstance(record, ProducerRecord)
        positions = []
        if record.producer_epoch:
            positions = await self._fence(
                record, lambda state: [state.topic(each).topic_id for each in topics]
            )
        return NamedProducer(record.producer_id, record.producer_epoch, tuple(positions))

    async def delete(self, name: str) -> None:
        """Forget a name, when nobody appends under it any more (R112).

        Raises:
            InvalidRequestError: There is no such name.
            ConflictError: Somebody takes it at the same time.
            UnavailableError: Some leader has not confirmed in time. The name is still there, and
                whoever had it is shut out; ask again.
        """
        [record] = (await self._ledger.decide(lambda state: shut_out(state, name))).puts
        assert isinstance(record, ProducerRecord)
        await self._fence(record, lambda state: [*state.topic_ids.values()])
        await self._ledger.decide(lambda state: delete_name(state, name, record.producer_epoch))

    async def _fence(
        self, record: ProducerRecord, topics: Callable[[ClusterState], Sequence[bytes]]
    ) -> list[ProducerPosition]:
        """Wait until all leaders of the topics, by id, refuse older epochs; how far it got there.
        Raises UnavailableError."""
        deadline = self._clock.monotonic_ms() + self._timing.producer_fence_wait_ms
        confirmed: dict[NodeId, Incarnation] = {}
        positions: dict[tuple[bytes, int], ProducerPosition] = {}
        while True:
            state = self._ledger.state
            topic_ids = dict.fromkeys(topics(state))
            to_ask, is_recovering = self._not_confirmed(topic_ids, confirmed)
            if not to_ask and not is_recovering:
                return [each for key, each in sorted(positions.items()) if key[0] in topic_ids]
            if self._clock.monotonic_ms() >= deadline:
                raise UnavailableError(
                    f"not all leaders have heard that {record.name!r} was taken over"
                )
            asked = list(to_ask)
            answers = await asyncio.gather(*(self._ask(each, record) for each in asked))
            for node_id, answer in zip(asked, answers, strict=True):
                if answer is not None:
                    confirmed[node_id], found = answer
                    positions.update(((each.topic_id, each.partition), each) for each in found)
            if is_recovering or None in answers:
                await asyncio.sleep(self._timing.producer_fence_retry_ms / 1000)

    def _not_confirmed(
        self, topic_ids: dict[bytes, None], confirmed: dict[NodeId, Incarnation]
    ) -> tuple[dict[NodeId, None], bool]:
        """Leaders that may still take older epochs, and whether there are some unreachable by us.

        A partition without a tail has no leader; the next one will know before it leads.
        """
        state = self._ledger.state
        to_ask: dict[NodeId, None] = {}
        is_recovering = False
        for topic_id in topic_ids:
            for partition in state.partitions_of(state.topics[topic_id]):
                tail = state.tail(partition)
                if tail is None:
                    continue
                segment = tail.segment
                if segment.state != SegmentState.ACTIVE or not state.leader_is_live(
                    segment, self._live
                ):
                    is_recovering = True
                elif confirmed.get(segment.leader) != segment.leader_incarnation:
                    to_ask[segment.leader] = None
        return to_ask, is_recovering

    async def _ask(
        self, node_id: NodeId, record: ProducerRecord
    ) -> tuple[Incarnation, Sequence[ProducerPosition]] | None:
        try:
            return await self._calls.fence_producer(
                node_id,
                record.producer_id,
                record.producer_epoch,
                self._timing.producer_fence_call_ms / 1000,
            )
        except IcecoreError:
            return None  # its segments are recovered, or it is asked again
