"""AdminService: what clients and operators ask about topics, metadata and the cluster."""

import asyncio
import logging
from dataclasses import replace

from icecore.errors import (
    IcecoreError,
    InvalidRequestError,
    NotLeaderError,
    UnknownTopicError,
)
from icecore.model import Segment, SegmentState, check_topic_name
from icecore.rpc.convert import error_to_proto, node_to_proto
from icecore.rpc.framing import parse
from icecore.rpc.ports import CallContext, Clock, Handlers, Rng
from icecore.v1 import admin_pb2 as pb
from icecore_coordinator.config import Timing
from icecore_coordinator.decisions import topic_changes, topic_deletion
from icecore_coordinator.ledger import Ledger
from icecore_coordinator.nodes.node_calls import NodeCalls, by_node, fan_out
from icecore_coordinator.services.admin_messages import Describer, grace_of, settings_of
from icecore_coordinator.state.cluster_state import ClusterState
from icecore_coordinator.state.records import Change, TopicRecord
from icecore_coordinator.work.deletions import Deletions
from icecore_coordinator.work.segment_opening import TailOpener

log = logging.getLogger(__name__)

SERVICE = "/icecore.v1.AdminService/"
OPEN_WAIT_MS = 10_000.0
"""How long a creation waits for its first segments; they open later all the same."""


class AdminHandlers:
    """The methods of AdminService as bytes to bytes."""

    def __init__(
        self,
        ledger: Ledger,
        calls: NodeCalls,
        opener: TailOpener,
        deletions: Deletions,
        describer: Describer,
        clock: Clock,
        rng: Rng,
        timing: Timing,
    ) -> None:
        self._ledger = ledger
        self._calls = calls
        self._opener = opener
        self._deletions = deletions
        self._describer = describer
        self._clock = clock
        self._rng = rng
        self._timing = timing

    def handlers(self) -> Handlers:
        """By full method name."""
        unary = {
            "CreateTopic": self.create_topic,
            "DescribeTopics": self.describe_topics,
            "AlterTopic": self.alter_topic,
            "AddPartitions": self.add_partitions,
            "DeleteTopic": self.delete_topic,
            "UndeleteTopic": self.undelete_topic,
            "RollTopic": self.roll_topic,
            "DescribeCluster": self.describe_cluster,
            "GetMetadata": self.get_metadata,
            "ListSegments": self.list_segments,
        }
        return Handlers({SERVICE + name: handler for name, handler in unary.items()}, {})

    async def create_topic(self, body: bytes, _: CallContext) -> bytes:
        """Create a topic and open its partitions."""
        request = parse(pb.CreateTopicRequest, body)
        check_topic_name(request.name)
        state = self._ledger.state
        if request.if_not_exists and (known := self._live_topic(request.name)) is not None:
            return pb.CreateTopicResponse(topic=self._describer.topic(known)).SerializeToString()
        topic_id = self._rng.bytes(16)
        asked = request.settings

        def decision(state: ClusterState) -> Change:
            nodes = len(state.eligible_nodes())
            settings = topic_changes.completed(settings_of(asked), nodes)
            partitions = asked.partitions or 1
            return topic_changes.create_topic(
                state, request.name, topic_id, partitions, settings, grace_of(asked)
            )

        await self._ledger.decide(decision)
        log.info(
            "event=topic_created topic=%s partitions=%d replication_factor=%d",
            *(request.name, asked.partitions or 1),
            state.topics[topic_id].settings.replication_factor,
        )
        await self._open_partitions(topic_id)
        topic = state.topics.get(topic_id)
        if topic is None:
            raise UnknownTopicError(f"topic {request.name!r} was deleted", topic=request.name)
        return pb.CreateTopicResponse(topic=self._describer.topic(topic)).SerializeToString()

    def _live_topic(self, name: str) -> TopicRecord | None:
        try:
            return self._ledger.state.topic(name)
        except UnknownTopicError:
            return None

    async def _open_partitions(self, topic_id: bytes) -> None:
        """Write missing partition records and wait, within reason, until all have a segment."""
        for change in topic_changes.missing_partitions(self._ledger.state):
            await self._ledger.decide(lambda state, each=change: _absent_only(state, each))  # type: ignore[misc]
        deadline = self._clock.monotonic_ms() + OPEN_WAIT_MS
        while keys := self._without_tail(topic_id):
            await self._opener.open(keys)
            if not self._without_tail(topic_id) or self._clock.monotonic_ms() > deadline:
                return
            await asyncio.sleep(0.02)

    def _without_tail(self, topic_id: bytes) -> list[tuple[bytes, int]]:
        state = self._ledger.state
        topic = state.topics.get(topic_id)
        if topic is None or not topic.is_live:
            return []
        return [
            each.partition_key for each in state.partitions_of(topic) if not each.tail_segment_id
        ]

    async def describe_topics(self, body: bytes, _: CallContext) -> bytes:
        """Some topics or all; of those that are deleted and kept when asked so."""
        request = parse(pb.DescribeTopicsRequest, body)
        state = self._ledger.state
        if request.deleted:
            kept, names = topic_deletion.kept_topics(state), request.names
            topics = [each for each in kept if not names or each.name in names]
        else:
            topics = [state.topic(name) for name in request.names] or state.live_topics()
        return pb.DescribeTopicsResponse(
            topics=[self._describer.topic(each) for each in topics]
        ).SerializeToString()

    async def alter_topic(self, body: bytes, _: CallContext) -> bytes:
        """New settings from the next segments on, which are asked for at once if they differ."""
        request = parse(pb.AlterTopicRequest, body)
        if request.settings.partitions:
            raise InvalidRequestError("partitions are added by AddPartitions")

        def decision(state: ClusterState) -> Change:
            topic = state.topic(request.name)
            settings = settings_of(request.settings, topic.settings)
            grace_ms = grace_of(request.settings, topic.delete_grace_ms)
            return topic_changes.alter_topic(state, request.name, settings, grace_ms)

        pinned = self._ledger.state.topic(request.name).settings
        change = await self._ledger.decide(decision)
        errors = []
        if change.puts:
            log.info("event=topic_altered topic=%s", request.name)
        if any(isinstance(each, TopicRecord) and each.settings != pinned for each in change.puts):
            errors = [each for each in await self._roll(request.name, "alter_topic") if each]
        return pb.AlterTopicResponse(
            topic=self._describer.topic(self._ledger.state.topic(request.name)),
            roll_errors=[error_to_proto(each) for each in errors],
        ).SerializeToString()

    async def add_partitions(self, body: bytes, _: CallContext) -> bytes:
        """More partitions; existing ones and their keys stay where they are."""
        request = parse(pb.AddPartitionsRequest, body)
        await self._ledger.decide(
            lambda state: topic_changes.add_partitions(state, request.name, request.partitions)
        )
        topic_id = self._ledger.state.topic(request.name).topic_id
        await self._open_partitions(topic_id)
        return pb.AddPartitionsResponse(
            topic=self._describer.topic(self._ledger.state.topic(request.name))
        ).SerializeToString()

    async def delete_topic(self, body: bytes, _: CallContext) -> bytes:
        """Hide a topic for its grace, or delete it for good. Its name is free when this returns."""
        request = parse(pb.DeleteTopicRequest, body)
        now_ms = self._clock.now_ms()

        def decision(state: ClusterState) -> Change:
            return topic_deletion.delete_topic(
                state, request.name, request.topic_id, now_ms, is_now=request.now
            )

        topic = (await self._ledger.decide(decision)).puts[0]
        assert isinstance(topic, TopicRecord)
        log.info(
            "event=topic_deleted topic=%s topic_id=%s grace_ms=%d",
            *(topic.name, topic.topic_id.hex(), topic.grace_left_ms),
        )
        await self._deletions.finish(topic.topic_id)
        return pb.DeleteTopicResponse(
            topic_id=topic.topic_id, grace_ms=topic.grace_left_ms
        ).SerializeToString()

    async def undelete_topic(self, body: bytes, _: CallContext) -> bytes:
        """Bring a deleted topic back, under its name or another, and open its partitions."""
        request = parse(pb.UndeleteTopicRequest, body)
        topic_id = b""

        def decision(state: ClusterState) -> Change:
            nonlocal topic_id
            change, topic_id = topic_deletion.undelete_topic(
                state, request.name, request.topic_id, request.new_name
            )
            return change

        await self._ledger.decide(decision)
        await self._open_partitions(topic_id)
        topic = self._ledger.state.topics.get(topic_id)
        if topic is None or not topic.is_live:
            raise UnknownTopicError(f"topic {topic_id.hex()} was deleted again")
        log.info("event=topic_undeleted topic=%s topic_id=%s", topic.name, topic_id.hex())
        return pb.UndeleteTopicResponse(topic=self._describer.topic(topic)).SerializeToString()

    async def roll_topic(self, body: bytes, _: CallContext) -> bytes:
        """Have leaders seal a topic's active segments now."""
        request = parse(pb.RollTopicRequest, body)
        outcomes = await self._roll(request.name, "roll_topic")
        return pb.RollTopicResponse(
            rolled=sum(each is None for each in outcomes),
            errors=[error_to_proto(each) for each in outcomes if each],
        ).SerializeToString()

    async def _roll(self, name: str, why: str) -> list[IcecoreError | None]:
        """Per partition None, or why its segment is not rolled now."""
        state = self._ledger.state
        outcomes: list[IcecoreError | None] = []
        active: list[tuple[int, Segment]] = []
        for partition in state.partitions_of(state.topic(name)):
            tail = state.tail(partition)
            if tail is not None and tail.segment.state == SegmentState.ACTIVE:
                active.append((tail.segment.leader, tail.segment))
            else:
                outcomes.append(
                    NotLeaderError("no leader at the moment", partition=partition.partition)
                )
        grouped = by_node(active)
        answers = await fan_out(
            self._clock,
            {
                node_id: self._calls.roll(node_id, mine, why, self._timing.node_call_s)
                for node_id, mine in grouped.items()
            },
            required=list(grouped),
            patience_ms=2 * self._timing.node_call_s * 1000,
            is_enough=lambda _: False,
        )
        for node_id, mine in grouped.items():
            answer = answers[node_id]
            if isinstance(answer, IcecoreError):
                outcomes += [answer] * len(mine)
                continue
            for segment, rolling in zip(mine, answer, strict=True):
                if rolling.error is not None:
                    rolling.error.metadata.setdefault("partition", str(segment.partition))
                outcomes.append(rolling.error)
        return outcomes

    async def describe_cluster(self, _: bytes, __: CallContext) -> bytes:
        """Nodes and counts."""
        return self._describer.cluster().SerializeToString()

    async def get_metadata(self, body: bytes, _: CallContext) -> bytes:
        """What clients need to find leaders; unknown topics are errors of their own entry."""
        request = parse(pb.GetMetadataRequest, body)
        state = self._ledger.state
        response = pb.GetMetadataResponse(
            cluster_id=state.cluster_id,
            nodes=[node_to_proto(each) for each in state.node_infos()],
        )
        for name in request.topics:
            topic = self._live_topic(name)
            response.topics.append(self._describer.metadata(topic) if topic else _unknown(name))
        if not request.topics:
            response.topics.extend(self._describer.metadata(each) for each in state.live_topics())
        return response.SerializeToString()

    async def list_segments(self, body: bytes, _: CallContext) -> bytes:
        """Segments in order of topic, partition and base, in pages."""
        return self._describer.segments(parse(pb.ListSegmentsRequest, body)).SerializeToString()


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


def _unknown(name: str) -> pb.TopicMetadata:
    error = UnknownTopicError(f"no topic {name!r}", topic=name)
    return pb.TopicMetadata(error=error_to_proto(error), name=name)
