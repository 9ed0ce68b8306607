"""The calls that a coordinator answers whose metadata are suspended.

Nodes tell what they hold, and a person says that the metadata go on by that. Every other call is
refused, by an error that says why and asks nodes for their word. Messages to values, outcomes to
messages: ``decisions/adoption`` decides.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from icecore.errors import InvalidRequestError, UnavailableError, WrongClusterError
from icecore.model import (
    GENERATION_MAX,
    INVENTORY_WANTED,
    CoordinatorEpoch,
    Epoch,
    Generation,
    Incarnation,
    NodeId,
    SegmentId,
)
from icecore.process.log import event
from icecore.rpc.convert import node_ids, segment_from_proto
from icecore.rpc.framing import parse
from icecore.rpc.messages import message_of
from icecore.rpc.methods import ADMIN, COORDINATOR, MIRROR
from icecore.rpc.ports import CallContext, Handlers, Received, ServerStream
from icecore.topic_settings import SETTINGS
from icecore.v1 import admin_pb2
from icecore.v1 import coordinator_pb2 as pb
from icecore_coordinator.config import TopicDefaults
from icecore_coordinator.decisions.adoption.adopt import (
    COUNTERS,
    Adoption,
    AdoptionWish,
    adopt,
    is_blank,
    missing_nodes,
)
from icecore_coordinator.decisions.adoption.told import (
    ToldBucket,
    ToldNode,
    ToldReplica,
    ToldTopic,
)
from icecore_coordinator.decisions.node_changes import (
    INCARNATIONS,
    REVISION_JUMP_MAX,
    Registration,
    check_registration,
)
from icecore_coordinator.decisions.remote.imported import OFFSET_MAX
from icecore_coordinator.services.import_messages import BucketTelling
from icecore_coordinator.state.cluster_state import ClusterState, next_of
from icecore_coordinator.state.limits import NODES_MAX
from icecore_coordinator.state.records import NodeRecord, ReportedStateRecord

_log = logging.getLogger(__name__)

PAGES_MAX: Final = 1_000
"""Pages of one node: a million segments."""
PROBLEM_MAX: Final = 500
"""Most characters of the reason why a node could not read its object store."""
_HEARTBEAT: Final = COORDINATOR["Heartbeat"]
_TELL: Final = COORDINATOR["TellInventory"]
_ADOPT: Final = ADMIN["AdoptMetadata"]


class AdoptionService:
    """All calls of a suspended coordinator. Loop only."""

    def __init__(
        self,
        state: ClusterState,
        why: str,
        name: str,
        commit: Callable[[Adoption], Awaitable[None]],
        defaults: TopicDefaults,
    ) -> None:
        """
        Args:
            state: The metadata as they are stored.
            why: Why they are suspended, and what a person can do.
            name: Of this process, for nodes: each process is told anew.
            commit: Stores an adoption.
            defaults: Of topics that come back from object storage, and say nothing.
        """
        self._state = state
        self._why = why
        self._name = name
        self._commit = commit
        self._telling: dict[NodeId, _Telling] = {}
        self._told: dict[NodeId, ToldNode] = {}
        self._adopting = asyncio.Lock()
        self._done: Adoption | None = None
        self._bucket = BucketTelling(defaults)

    def handlers(self) -> Handlers:
        """By full method name."""
        refused = dict.fromkeys((*COORDINATOR, *ADMIN, *MIRROR), self._refuse)
        del refused[_HEARTBEAT]
        unary = {**refused, _TELL: self._tell, _ADOPT: self._adopt}
        return Handlers(unary, {_HEARTBEAT: self._refuse_stream})

    def _refusal(self) -> UnavailableError:
        return UnavailableError(self._why, **{INVENTORY_WANTED: self._name})

    async def _refuse(self, _: Received, __: CallContext) -> bytes:
        raise self._refusal()

    async def _refuse_stream(self, stream: ServerStream, _: CallContext) -> None:
        await stream.read()
        raise self._refusal()

    # --- what nodes tell ------------------------------------------------------------------------

    async def _tell(self, body: Received, _: CallContext) -> bytes:
        """Take one page in. The last one makes the word of the node count."""
        page = parse(pb.TellInventoryRequest, body)
        registration = _registration(page.node)
        self._check(registration)
        self._check_numbers(page)
        node_id = registration.node_id
        telling = self._telling.setdefault(node_id, _Telling())
        if page.page == 0:
            telling = self._telling[node_id] = _Telling()
        telling.check_follows(node_id, page.page)
        telling.take(node_id, page)
        if not page.more:
            del self._telling[node_id]
            told = telling.told(registration, page)
            self._told[node_id] = told
            event(
                _log,
                logging.WARNING,
                "inventory_told",
                node_id=node_id,
                segments=len(told.copies),
                revision=told.metadata_revision,
            )
        return pb.TellInventoryResponse().SerializeToString()

    def _check(self, asked: Registration) -> None:
        """Raises InvalidRequestError, WrongClusterError."""
        if asked.node_id < 1 or not asked.disk_id:
            raise InvalidRequestError("a node needs an id of at least 1 and a disk id")
        check_registration(asked)
        self._check_cluster(asked.cluster_id)
        if not asked.cluster_id:
            raise UnavailableError(f"node {asked.node_id} is new, and waits: {self._why}")
        if asked.node_id not in self._told and len(self._told) >= NODES_MAX:
            raise InvalidRequestError(f"more than {NODES_MAX} nodes tell what they hold")

    def _check_cluster(self, cluster_id: bytes) -> None:
        """Raises WrongClusterError, unless this store was empty a moment ago."""
        if cluster_id != self._state.cluster_id and not is_blank(self._state):
            raise WrongClusterError(
                f"this is cluster {self._state.cluster_id.hex()}, not {cluster_id.hex()}"
            )

    def _check_numbers(self, page: pb.TellInventoryRequest) -> None:
        """Raises InvalidRequestError for numbers that no cluster has come to: metadata would go
        above them, and leave no room for others."""
        revision_max = self._state.metadata_revision + REVISION_JUMP_MAX
        epoch_max = self._state.coordinator_epoch + REVISION_JUMP_MAX
        if page.node.metadata_revision > revision_max or page.coordinator_epoch > epoch_max:
            raise InvalidRequestError(
                f"node {page.node.node_id}: no metadata store has revision "
                f"{page.node.metadata_revision} and coordinator epoch {page.coordinator_epoch}"
            )
        if (
            page.node.incarnation
            > next_of(self._state, INCARNATIONS).next_value + REVISION_JUMP_MAX
        ):
            raise InvalidRequestError(
                f"node {page.node.node_id}: no cluster has given out incarnation "
                f"{page.node.incarnation}"
            )
        heard = dict(self._state.heard.get(COUNTERS, ReportedStateRecord(COUNTERS)).disk_counters)
        counter_max = heard.get(NodeId(page.node.node_id), 0) + REVISION_JUMP_MAX
        if page.node.disk_counter > counter_max:
            raise InvalidRequestError(
                f"node {page.node.node_id}: no disk has been told of {page.node.disk_counter} times"
            )
        for topic in page.topics:
            _check_partitions(page.node.node_id, topic.topic_id, topic.partitions)
        for copy in page.node.segments:
            self._check_copy(page.node.node_id, copy)

    def _check_copy(self, node_id: int, copy: pb.SegmentInventory) -> None:
        where = f"node {node_id}: segment {copy.segment_id}"
        _check_partitions(node_id, copy.topic_id, copy.partition + 1)
        partition = self._state.partitions.get((copy.topic_id, copy.partition))
        epoch_max = REVISION_JUMP_MAX + (partition.last_epoch if partition else 0)
        if max(copy.epoch, copy.promised_epoch) > epoch_max:
            raise InvalidRequestError(
                f"{where} has epoch {copy.epoch}, promised {copy.promised_epoch}: no partition has "
                "come to such a number"
            )
        if max(copy.base_offset, copy.durable_end_offset) > OFFSET_MAX:
            raise InvalidRequestError(
                f"{where} is of offsets {copy.base_offset} to {copy.durable_end_offset}: no log is "
                "so long"
            )
        if copy.generation > GENERATION_MAX:
            raise InvalidRequestError(f"{where} has generation {copy.generation}: there is none")
        known = self._state.segments.get(SegmentId(copy.segment_id))
        version_max = REVISION_JUMP_MAX + (known.version if known else 0)
        record = copy.record
        if (
            record.version > version_max
            or max(record.end_offset, record.log_start_offset) > OFFSET_MAX
            or record.settings.replication_factor > SETTINGS["replication_factor"].high
        ):
            raise InvalidRequestError(
                f"{where} has a record with numbers that no segment has come to: version "
                f"{record.version}, end {record.end_offset}, log start {record.log_start_offset}, "
                f"replication factor {record.settings.replication_factor}"
            )

    # --- what a person says ---------------------------------------------------------------------

    async def _adopt(self, body: Received, _: CallContext) -> bytes:
        request = parse(admin_pb2.AdoptMetadataRequest, body)
        wish = AdoptionWish(frozenset(node_ids(request.without_nodes)), may_skip=request.skip_gaps)
        if request.HasField("bucket"):
            self._bucket.take(request.page, request.bucket)
        if request.more:
            return admin_pb2.AdoptMetadataResponse().SerializeToString()
        async with self._adopting:
            if self._done is not None:  # the answer was lost, and the command came again
                return self._answer(self._done, [], is_done=True)
            nodes = [each for each in self._told.values() if each.node_id not in wish.without_nodes]
            missing = missing_nodes(self._state, nodes, wish)
            in_bucket = self._bucket.topics(len(nodes)) if request.HasField("bucket") else None
            adoption = adopt(self._state, nodes, wish, in_bucket)
            is_allowed = not missing and (wish.may_skip or not adoption.has_gaps)
            if is_allowed and not request.dry_run:
                await asyncio.sleep(0)  # probes have their turn
                await self._commit(adoption)
                self._done = adoption
            return self._answer(adoption, missing, is_done=self._done is not None)

    def _answer(self, adoption: Adoption, missing: Iterable[NodeId], *, is_done: bool) -> bytes:
        return admin_pb2.AdoptMetadataResponse(
            cluster_id=adoption.cluster_id,
            told_nodes=sorted(self._told),
            missing_nodes=missing,
            segments_found=adoption.segments_found,
            topics_found=adoption.topics_found,
            findings=[message_of(admin_pb2.AdoptFinding, each) for each in adoption.findings],
            done=is_done,
        ).SerializeToString()


def _check_partitions(node_id: int, topic_id: bytes, count: int) -> None:
    """Raises InvalidRequestError for more than a topic may have: each of them would be made."""
    most = SETTINGS["partitions"].high
    if count > most:
        raise InvalidRequestError(
            f"node {node_id}: topic {topic_id.hex()} has {count} partitions: {most} is the most"
        )


def _registration(message: pb.RegisterRequest) -> Registration:
    return Registration(
        cluster_id=message.cluster_id,
        node_id=NodeId(message.node_id),
        disk_id=message.disk_id,
        incarnation=Incarnation(message.incarnation),
        address=message.address,
        rack=message.rack,
        host=message.host,
        disk_counter=message.disk_counter,
        native_address=message.native_address,
        protocol_version=message.protocol_version,
        tier_url=message.tier_url,
    )


class _Telling:
    """The pages of one node that have come."""

    def __init__(self) -> None:
        self.pages = 0
        self._copies: list[ToldReplica] = []
        self._topics: list[ToldTopic] = []

    def check_follows(self, node_id: NodeId, number: int) -> None:
        """Raises InvalidRequestError for a page that is not the next one."""
        if number != self.pages or number >= PAGES_MAX:
            raise InvalidRequestError(
                f"page {number} of node {node_id} does not follow on page {self.pages - 1}: "
                "begin anew"
            )

    def take(self, node_id: NodeId, page: pb.TellInventoryRequest) -> None:
        """Take in the next one."""
        self.pages += 1
        self._copies += [_copy(node_id, each) for each in page.node.segments]
        self._topics += [
            ToldTopic(each.topic_id, each.name, each.partitions) for each in page.topics
        ]

    def told(self, registration: Registration, last: pb.TellInventoryRequest) -> ToldNode:
        """All that the node has told."""
        return ToldNode(
            node=NodeRecord(
                registration.node_id,
                disk_id=registration.disk_id,
                address=registration.address,
                rack=registration.rack,
                host=registration.host,
                incarnation=registration.incarnation,
                native_address=registration.native_address,
                protocol_version=registration.protocol_version,
                tier_url=registration.tier_url,
            ),
            cluster_id=registration.cluster_id,
            disk_counter=registration.disk_counter,
            coordinator_epoch=CoordinatorEpoch(last.coordinator_epoch),
            metadata_revision=last.node.metadata_revision,
            peers=node_ids(last.peers),
            copies=tuple(self._copies),
            topics=tuple(self._topics),
            bucket=_bucket(last.bucket) if last.HasField("bucket") else None,
        )


def _bucket(told: pb.ToldBucket) -> ToldBucket:
    return ToldBucket(told.segment_ids_max, told.attempts_max, told.problem[:PROBLEM_MAX])


def _copy(node_id: NodeId, told: pb.SegmentInventory) -> ToldReplica:
    return ToldReplica(
        node_id=node_id,
        segment_id=SegmentId(told.segment_id),
        topic_id=told.topic_id,
        partition=told.partition,
        generation=Generation(told.generation),
        base_offset=told.base_offset,
        epoch=Epoch(told.epoch),
        promised_epoch=Epoch(told.promised_epoch),
        durable_end_offset=told.durable_end_offset,
        is_sealed=told.sealed,
        is_intact=told.intact,
        digest=told.digest,
        length_bytes=told.length_bytes,
        max_append_timestamp_ms=told.max_append_timestamp_ms,
        record=segment_from_proto(told.record) if told.HasField("record") else None,
    )
