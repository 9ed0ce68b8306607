"""Acts of operators on topics: create, alter, grow, delete, bring back, roll.

Each act is one committed decision. Workers carry out the rest: they open segments or delete files.
The caller waits here until that is done, within reason.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from icecore.errors import (
    IcecoreError,
    NotCoordinatorError,
    NotLeaderError,
    UnavailableError,
    UnknownTopicError,
)
from icecore.model import Segment, SegmentId, SegmentState
from icecore.process.log import event
from icecore.rpc.ports import Rng
from icecore.topic_settings import NOT_TIERED, Retention, SegmentSettings, Tiering
from icecore_coordinator.decisions import topic_changes, topic_deletion
from icecore_coordinator.decisions.remote import tier_import
from icecore_coordinator.decisions.topic_changes import DEFAULT_REPLICATION_FACTOR
from icecore_coordinator.nodes.fan_out import by_node, fan_out
from icecore_coordinator.state.cluster_state import ClusterState, eligible_nodes
from icecore_coordinator.state.records import Change, PartitionKey, TopicRecord
from icecore_coordinator.work.backoff import KeyedBackoff
from icecore_coordinator.work.worker_ports import WorkerPorts

_log = logging.getLogger(__name__)


class TopicActs:
    """Acts on topics, each on its own.

    Args:
        ports: The cluster.
        tails: Partitions whose tails are being opened: hurried while somebody waits.
        rng: Of identifiers.
    """

    def __init__(self, ports: WorkerPorts, tails: KeyedBackoff[PartitionKey], rng: Rng) -> None:
        self._ledger = ports.ledger
        self._calls = ports.calls
        self._live = ports.live
        self._clock = ports.clock
        self._timing = ports.timing
        self._tails = tails
        self._rng = rng

    async def create(
        self,
        name: str,
        partitions: int,
        settings: SegmentSettings,
        delete_grace_ms: int,
        retention: Retention,
        tiering: Tiering = NOT_TIERED,
    ) -> TopicRecord:
        """Create a topic and wait until its partitions are open.

        Args:
            name: Of the topic.
            partitions: How many.
            settings: ``replication_factor`` and ``min_insync_replicas`` may be 0 = not given.
            delete_grace_ms: How long it is kept once it is deleted.
            retention: What it keeps.
            tiering: What of it moves into object storage.

        Raises what ``topic_changes.create_topic`` raises, and UnknownTopicError when it was
        deleted meanwhile.
        """
        topic_id = self._rng.bytes(16)
        await self._until_settled(settings.replication_factor or DEFAULT_REPLICATION_FACTOR)

        def decision(state: ClusterState) -> Change:
            nodes = len(eligible_nodes(state, self._live))
            pinned = topic_changes.completed(settings, nodes)
            return topic_changes.create_topic(
                state,
                self._live,
                name=name,
                topic_id=topic_id,
                partitions=partitions,
                settings=pinned,
                delete_grace_ms=delete_grace_ms,
                retention=retention,
                tiering=tiering,
            )

        await self._ledger.decide(decision)
        factor = self._ledger.state.topics[topic_id].settings.replication_factor
        event(
            _log,
            logging.INFO,
            "topic_created",
            topic=name,
            partitions=partitions,
            replication_factor=factor,
        )
        await self._open_partitions(topic_id)
        topic = self._ledger.state.topics.get(topic_id)
        if topic is None:
            raise UnknownTopicError(f"topic {name!r} was deleted", topic=name)
        return topic

    async def _until_settled(self, nodes: int) -> None:
        """Wait for so many nodes. A coordinator that has just begun has not heard of all of them:
        it would refuse a topic, or make one with fewer replicas for ever."""

        def is_settled(state: ClusterState) -> bool:
            return not self._live.is_settling or len(eligible_nodes(state, self._live)) >= nodes

        await self._ledger.until(is_settled, self._timing.lease_ms)

    async def alter(
        self,
        name: str,
        settings_of: Callable[[TopicRecord], SegmentSettings],
        grace_of: Callable[[TopicRecord], int],
        retention_of: Callable[[TopicRecord], Retention],
        tiering_of: Callable[[TopicRecord], Tiering],
    ) -> list[IcecoreError]:
        """New settings from the next segments on, which are asked for at once if they differ.

        Args:
            name: Of the topic.
            settings_of: The new settings, from the record as it is by then.
            grace_of: Likewise the new ``delete_grace_ms``.
            retention_of: Likewise what it keeps, from now on.
            tiering_of: Likewise what of it moves into object storage.

        Returns:
            Why segments are not rolled now. That one has no leader at the moment is no reason to
            say so: the settings hold, and it is asked for once it has one (``AlteredTopics``).

        Raises what ``topic_changes.alter_topic`` raises.
        """

        def decision(state: ClusterState) -> Change:
            topic = state.topic(name)
            return topic_changes.alter_topic(
                state,
                self._live,
                name,
                settings_of(topic),
                grace_of(topic),
                retention_of(topic),
                tiering_of(topic),
            )

        pinned = self._ledger.state.topic(name).settings
        change = await self._ledger.decide(decision)
        if change.puts:
            event(_log, logging.INFO, "topic_altered", topic=name)
        if any(isinstance(each, TopicRecord) and each.settings != pinned for each in change.puts):
            errors = await self.roll(name, "alter_topic")
            return [each for each in errors if each and not isinstance(each, NotLeaderError)]
        return []

    async def add_partitions(self, name: str, partitions: int) -> TopicRecord:
        """More partitions, open when this returns; those that exist stay as they are.

        Raises what ``topic_changes.add_partitions`` raises.
        """
        await self._ledger.decide(
            lambda state: topic_changes.add_partitions(state, name, partitions)
        )
        await self._open_partitions(self._ledger.state.topic(name).topic_id)
        return self._ledger.state.topic(name)

    async def delete(self, name: str, topic_id: bytes, *, is_now: bool) -> TopicRecord:
        """Hide a topic for its grace, or let it go for good: its record as it was marked.

        Raises what ``topic_deletion.delete_topic`` raises.
        """
        now_ms = self._clock.now_ms()
        change = await self._ledger.decide(
            lambda state: topic_deletion.delete_topic(state, name, topic_id, now_ms, is_now=is_now)
        )
        [topic] = (each for each in change.puts if isinstance(each, TopicRecord))
        event(
            _log,
            logging.INFO,
            "topic_deleted",
            topic=topic.name,
            topic_id=topic.topic_id,
            grace_ms=topic.grace_left_ms,
        )
        if topic.is_deleting:
            await self._ledger.until(
                lambda state: topic.topic_id not in state.topics,
                self._timing.topic_delete_wait_ms,
            )
        return topic

    async def undelete(self, name: str, topic_id: bytes, new_name: str) -> TopicRecord:
        """Bring a deleted topic back, under its name or another, and open its partitions.

        Raises what ``topic_deletion.undelete_topic`` raises, and UnknownTopicError when it was
        deleted again meanwhile.
        """
        found_id = b""

        def decision(state: ClusterState) -> Change:
            nonlocal found_id
            change, found_id = topic_deletion.undelete_topic(state, name, topic_id, new_name)
            return change

        await self._ledger.decide(decision)
        topic = await self._opened(found_id)
        event(_log, logging.INFO, "topic_undeleted", topic=topic.name, topic_id=found_id)
        return topic

    async def show_imported(self, topic_id: bytes) -> TopicRecord:
        """Show a topic whose segments have all been imported, and open its partitions.

        Raises what ``tier_import.show`` raises, and UnknownTopicError when it was deleted
        meanwhile.
        """
        await self._ledger.decide(lambda state: tier_import.show(state, topic_id))
        return await self._opened(topic_id)

    async def _opened(self, topic_id: bytes) -> TopicRecord:
        """A topic that is back, once its partitions are open. Raises UnknownTopicError."""
        await self._open_partitions(topic_id)
        topic = self._ledger.state.topics.get(topic_id)
        if topic is None or not topic.is_live:
            raise UnknownTopicError(f"topic {topic_id.hex()} was deleted again")
        return topic

    async def _open_partitions(self, topic_id: bytes) -> None:
        """Write missing partition records and wait, within reason, until all have a segment.

        Raises UnavailableError when this coordinator ends: the topic is stored already, so that
        nothing is definite, and who asks the next one may find its own work.
        """
        missing = topic_changes.missing_partitions(self._ledger.state)
        try:
            await self._ledger.decide_each(missing, _absent_only)
        except NotCoordinatorError as error:
            raise UnavailableError(f"{error.message}; the next one opens partitions") from error
        with self._tails.awaited(_without_tail(self._ledger.state, topic_id)):
            await self._ledger.until(
                lambda state: not _without_tail(state, topic_id), self._timing.topic_open_wait_ms
            )

    async def roll(self, name: str, why: str) -> list[IcecoreError | None]:
        """Have leaders seal a topic's active segments now: per partition None, or why its segment
        is not rolled. Raises UnknownTopicError.

        A node that does not lead a segment yet, for it was opened just now, is asked again.
        """
        state = self._ledger.state
        outcomes: list[IcecoreError | None] = []
        active: list[Segment] = []
        for partition in state.partitions_of(state.topic(name)):
            tail = state.tail(partition)
            if tail is not None and tail.segment.state == SegmentState.ACTIVE:
                active.append(tail.segment)
            else:
                error = NotLeaderError("no leader at the moment", partition=partition.partition)
                outcomes.append(error)
        until_ms = self._clock.monotonic_ms() + self._timing.node_call_ms
        answers = await self._ask_to_roll(active, why)
        while self._clock.monotonic_ms() < until_ms:
            again = _still_to_roll(self._ledger.state, answers)
            if not again:
                break
            await asyncio.sleep(self._timing.retry_ms / 1000)
            answers |= await self._ask_to_roll(again, why)
        unsealed = self._ledger.state.unsealed
        for segment_id, answer in answers.items():
            is_over = isinstance(answer, NotLeaderError) and segment_id not in unsealed
            outcomes.append(None if is_over else answer)  # its leader has sealed it by itself
        return outcomes

    async def _ask_to_roll(
        self, segments: Sequence[Segment], why: str
    ) -> dict[SegmentId, IcecoreError | None]:
        """Ask the leader of each of these once."""
        grouped = by_node((each.leader, each) for each in segments)
        answers = await fan_out(
            self._clock,
            {
                node_id: self._calls.roll(node_id, mine, why, self._timing.node_call_ms / 1000)
                for node_id, mine in grouped.items()
            },
            required=list(grouped),
            patience_ms=2 * self._timing.node_call_ms,
            is_enough=lambda _: False,
        )
        outcomes: dict[SegmentId, IcecoreError | None] = {}
        for node_id, mine in grouped.items():
            answer = answers[node_id]
            if isinstance(answer, IcecoreError):
                outcomes |= dict.fromkeys((each.segment_id for each in mine), answer)
                continue
            for segment, rolling in zip(mine, answer, strict=True):
                if rolling.error is not None:
                    rolling.error.metadata.setdefault("partition", str(segment.partition))
                outcomes[segment.segment_id] = rolling.error
        return outcomes


def _still_to_roll(
    state: ClusterState, answers: Mapping[SegmentId, IcecoreError | None]
) -> list[Segment]:
    """Segments whose leader does not know yet that it leads them."""
    records = [
        state.segments.get(segment_id)
        for segment_id, error in answers.items()
        if isinstance(error, NotLeaderError)
    ]
    return [
        each.segment
        for each in records
        if each is not None and each.segment.state == SegmentState.ACTIVE
    ]


def _without_tail(state: ClusterState, topic_id: bytes) -> list[PartitionKey]:
    """Partitions of a live topic that have no segment to append to."""
    topic = state.topics.get(topic_id)
    if topic is None or not topic.is_live:
        return []
    return [each.partition_key for each in state.partitions_of(topic) if not each.tail_segment_id]


def _absent_only(state: ClusterState, change: Change) -> Change:
    """The part of a change that creates what still does not exist."""
    return replace(
        change,
        puts=tuple(
            each
            for each in change.puts
            if getattr(each, "partition_key", None) not in state.partitions
        ),
    )
