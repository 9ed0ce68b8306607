"""CoordinatorService: what nodes ask. Messages to values, decisions to messages, nothing else."""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final, TypeAlias

from icecore.errors import (
    ConflictError,
    FencedError,
    IcecoreError,
    InvalidRequestError,
    UnavailableError,
    UnsupportedError,
    WrongClusterError,
)
from icecore.model import PROTOCOL_VERSION, Epoch, Generation, Incarnation, NodeId, SegmentId
from icecore.process.log import event
from icecore.rpc.bounds import check_items
from icecore.rpc.convert import error_to_proto, node_ids, segment_to_proto
from icecore.rpc.framing import parse
from icecore.rpc.messages import value_of
from icecore.rpc.methods import COORDINATOR
from icecore.rpc.ports import CallContext, Handlers, Received, ServerStream, UnaryHandler
from icecore.v1 import coordinator_pb2 as pb
from icecore_coordinator.decisions.node_changes import (
    HeardRevision,
    HeldReplica,
    Registration,
    check_blank,
    check_heard_revision,
    is_known_disk,
)
from icecore_coordinator.decisions.sealed_copies import disagreeing, set_full_digest
from icecore_coordinator.decisions.segment_changes import (
    DecidedSeal,
    alter_isr,
    check_leader,
    start_recovery,
)
from icecore_coordinator.nodes.alerts import AlertKind
from icecore_coordinator.nodes.broken_streams import BrokenStreams
from icecore_coordinator.nodes.node_pushes import Pushes
from icecore_coordinator.nodes.node_sessions import NodeSessions, Session
from icecore_coordinator.state.cluster_state import ClusterState, next_of
from icecore_coordinator.state.records import Change, updated
from icecore_coordinator.work.admission import NodeAdmission
from icecore_coordinator.work.producer_naming import ProducerNaming
from icecore_coordinator.work.segments.sealing import Asker, LiveSealing, SealOutcome, SealReport
from icecore_coordinator.work.worker_ports import WorkerPorts
from icecore_replication.isr import IsrProposal

_log = logging.getLogger(__name__)

_FromNode: TypeAlias = (
    pb.AlterIsrRequest
    | pb.PrepareSuccessorRequest
    | pb.ReportDigestsRequest
    | pb.RequestRecoveryRequest
    | pb.SealRequest
)

PRODUCER_IDS_MAX = 1_000_000
UNHEARD_SEGMENTS_MAX = 100_000
WHY_MAX = 200
_TOLD: Final = tuple(
    f"HeartbeatRequest.{each.name}"
    for each in pb.HeartbeatRequest.DESCRIPTOR.fields
    if each.is_repeated
)
"""All lists of a heartbeat."""


class CoordinatorService:
    """Each method as bytes to bytes."""

    def __init__(
        self,
        ports: WorkerPorts,
        *,
        admission: NodeAdmission,
        sessions: NodeSessions,
        broken: BrokenStreams,
        pushes: Pushes,
        sealing: LiveSealing,
        naming: ProducerNaming,
        describe_tiered: UnaryHandler,
        is_new_cluster: bool = False,
    ) -> None:
        """``is_new_cluster``: a person said that an empty store is to be a new cluster."""
        self._ledger = ports.ledger
        self._live = ports.live
        self._heard = ports.heard
        self._alerts = ports.alerts
        self._timing = ports.timing
        self._admission = admission
        self._sessions = sessions
        self._broken = broken
        self._pushes = pushes
        self._sealing = sealing
        self._naming = naming
        self._describe_tiered = describe_tiered
        self._is_new_cluster = is_new_cluster

    def handlers(self) -> Handlers:
        """By full method name."""
        return COORDINATOR.handlers(
            {
                "Register": self.register,
                "AlterIsr": self.alter_isr,
                "PrepareSuccessor": self.prepare_successor,
                "Seal": self.seal,
                "RequestRecovery": self.request_recovery,
                "ReportDigests": self.report_digests,
                "AllocateProducerIds": self.allocate_producer_ids,
                "NameProducer": self.name_producer,
                "DescribeTiered": self._describe_tiered,
                "TellInventory": self._tell_inventory,
            },
            {"Heartbeat": self.heartbeat},
        )

    def _check_cluster(self, cluster_id: bytes) -> None:
        if cluster_id != self._ledger.state.cluster_id:
            raise WrongClusterError(
                f"this is cluster {self._ledger.state.cluster_id.hex()}, not {cluster_id.hex()}"
            )

    def _check_caller(self, request: _FromNode) -> Asker:
        """Raises FencedError unless the caller is the registered incarnation of the node."""
        self._check_cluster(request.cluster_id)
        asker = Asker(NodeId(request.node_id), Incarnation(request.incarnation))
        self._check_registered(asker)
        return asker

    def _check_registered(self, asker: Asker) -> None:
        """Raises FencedError when another process of the node is registered, or none."""
        registered = self._ledger.state.incarnation(asker.node_id)
        if not registered or asker.incarnation != registered:
            raise FencedError(
                f"node {asker.node_id}: incarnation {asker.incarnation} is not the registered "
                f"{registered}"
            )

    def _check_revision(self, request: pb.RegisterRequest | pb.HeartbeatRequest) -> None:
        """Refuse a node that heard of newer metadata than these: before it is told anything, and
        before its incarnation is judged. A node that proves who it is ends this coordinator.

        Raises as ``check_heard_revision``.
        """
        state = self._ledger.state
        told = HeardRevision(NodeId(request.node_id), request.disk_id, request.metadata_revision)
        try:
            check_heard_revision(state, told)
        except UnavailableError as error:
            if is_known_disk(state, told, is_new_cluster=self._is_new_cluster):
                self._ledger.suspend(error)
            else:
                event(
                    _log, logging.CRITICAL, "revision_unproved", node_id=told.node_id, error=error
                )
            raise

    def _check_blank(self, request: pb.RegisterRequest | pb.HeartbeatRequest) -> None:
        """Raises as ``check_blank``, and then this coordinator stops."""
        try:
            check_blank(
                self._ledger.state,
                request.cluster_id,
                NodeId(request.node_id),
                is_new_cluster=self._is_new_cluster,
            )
        except UnavailableError as error:
            self._ledger.suspend(error)
            raise

    def _inventory_max(self) -> int:
        """Segments that a node may say it holds: no folder has many more than metadata know, be
        they those of an older day."""
        state = self._ledger.state
        return UNHEARD_SEGMENTS_MAX + 2 * (len(state.segments) + len(state.deleted))

    async def register(self, body: Received, _: CallContext) -> bytes:
        """Hand out the next incarnation."""
        limits = {"RegisterRequest.segments": self._inventory_max()}
        await check_items(body, pb.RegisterRequest.DESCRIPTOR, limits)
        request = parse(pb.RegisterRequest, body)
        if request.protocol_version > PROTOCOL_VERSION:
            raise UnsupportedError(
                f"protocol version {request.protocol_version}; this coordinator speaks "
                f"{PROTOCOL_VERSION}: update coordinators before nodes"
            )
        self._check_blank(request)
        # A revision that a node heard of another cluster says nothing of this one.
        if request.cluster_id == self._ledger.state.cluster_id:
            self._check_revision(request)
        asked = Registration(
            cluster_id=request.cluster_id,
            node_id=NodeId(request.node_id),
            disk_id=request.disk_id,
            incarnation=Incarnation(request.incarnation),
            address=request.address,
            rack=request.rack,
            host=request.host,
            disk_counter=request.disk_counter,
            native_address=request.native_address,
            protocol_version=request.protocol_version,
            tier_url=request.tier_url,
        )
        known, shrunk = await self._admission.register(asked, map(_held, request.segments))
        state = self._ledger.state
        return pb.RegisterResponse(
            cluster_id=state.cluster_id,
            incarnation=known.incarnation,
            coordinator_epoch=state.coordinator_epoch,
            heartbeat_ms=self._timing.heartbeat_ms,
            lease_ms=self._timing.lease_ms,
            protocol_version=PROTOCOL_VERSION,
            delete_segment_ids=[each for each in known.held if each in state.deleted],
            disk_unknown=known.is_disk_unknown,
            disk_counter=max(self._heard.disk_counter(asked.node_id), asked.disk_counter),
            unknown_segment_ids=shrunk,
            metadata_revision=state.metadata_revision,
            store_id=state.tiers.store_id,
            forgotten_store_id=state.tiers.forgotten_store_id,
        ).SerializeToString()

    async def heartbeat(self, stream: ServerStream, _: CallContext) -> None:
        """One node's stream, until it breaks or a newer one replaces it."""
        body = await stream.read()
        if body is None:
            return
        request = await self._heartbeat_of(body)
        self._check_blank(request)
        self._check_cluster(request.cluster_id)
        self._check_revision(request)
        session = await self._admission.connect(
            NodeId(request.node_id), Incarnation(request.incarnation), request.disk_id
        )
        reader = asyncio.ensure_future(self._read_heartbeats(session, stream, request))
        writer = asyncio.ensure_future(self._pushes.write(session.outbox, stream))
        try:
            await asyncio.wait((reader, writer), return_when=asyncio.FIRST_COMPLETED)
            for task in (reader, writer):
                if task.done():
                    task.result()
            if session.is_closed:
                # This incarnation was not superseded: it may come back.
                raise UnavailableError("the session has ended: a newer stream, or lease expired")
        except UnavailableError as error:
            event(_log, logging.INFO, "stream_ended", node_id=session.node_id, error=error)
            raise
        finally:
            self._broken.ended(session)
            for task in (reader, writer):
                task.cancel()
            await asyncio.gather(reader, writer, return_exceptions=True)

    async def _read_heartbeats(
        self, session: Session, stream: ServerStream, first: pb.HeartbeatRequest
    ) -> None:
        self._sessions.heartbeat(session, first)
        while (body := await stream.read()) is not None:
            self._sessions.heartbeat(session, await self._heartbeat_of(body))

    async def _heartbeat_of(self, body: Received) -> pb.HeartbeatRequest:
        """Raises InvalidRequestError for one that tells more than a node can have, and
        NotCoordinatorError when this coordinator may not act any more."""
        self._ledger.tenure.check()
        await check_items(
            body, pb.HeartbeatRequest.DESCRIPTOR, dict.fromkeys(_TOLD, self._inventory_max())
        )
        return parse(pb.HeartbeatRequest, body)

    async def alter_isr(self, body: Received, _: CallContext) -> bytes:
        """Compare-and-set of in-sync sets."""
        request = parse(pb.AlterIsrRequest, body)
        asker = self._check_caller(request)

        def decision(state: ClusterState, change: pb.IsrChange) -> Change:
            proposal = IsrProposal(
                node_id=asker.node_id,
                incarnation=asker.incarnation,
                epoch=Epoch(change.epoch),
                version=change.version,
                isr=node_ids(change.isr),
                isr_incarnations=tuple(map(Incarnation, change.isr_incarnations)),
            )
            return alter_isr(state, self._live, SegmentId(change.segment_id), proposal)

        results = await self._ledger.decide_each(request.changes, decision)
        response = pb.AlterIsrResponse()
        for change, result in zip(request.changes, results, strict=True):
            error = result if isinstance(result, IcecoreError) else None
            item = response.results.add(error=error_to_proto(error))
            record = self._ledger.state.segments.get(SegmentId(change.segment_id))
            if record is not None:
                item.assignment.CopyFrom(segment_to_proto(self._ledger.state.assignment(record)))
            event(
                _log,
                logging.INFO,
                "isr_change",
                segment_id=change.segment_id,
                isr=change.isr,
                error=error,
            )
        return response.SerializeToString()

    async def prepare_successor(self, body: Received, _: CallContext) -> bytes:
        """Prepared and confirmed successors for leaders about to seal."""
        request = parse(pb.PrepareSuccessorRequest, body)
        asker = self._check_caller(request)
        asked = [(SegmentId(each.segment_id), Epoch(each.epoch)) for each in request.segments]
        response = pb.PrepareSuccessorResponse()
        for result in await self._sealing.prepare(asker, asked):
            if isinstance(result, IcecoreError):
                response.results.add(error=error_to_proto(result))
            else:
                response.results.add(successor_segment_id=result)
        return response.SerializeToString()

    async def seal(self, body: Received, _: CallContext) -> bytes:
        """Seal segments and open their successors."""
        request = parse(pb.SealRequest, body)
        asker = self._check_caller(request)
        reports = [
            SealReport(
                epoch=Epoch(each.epoch),
                sealing=DecidedSeal(
                    segment_id=SegmentId(each.segment_id),
                    version=each.version,
                    end_offset=each.end_offset,
                    seal_digest=each.seal_digest,
                    replicas=node_ids(each.replicas),
                    length_bytes=each.length_bytes,
                    producer_digest=each.producer_digest,
                    max_append_timestamp_ms=each.max_append_timestamp_ms,
                ),
                successor_segment_id=SegmentId(each.successor_segment_id),
                producer_snapshot=each.producer_snapshot,
            )
            for each in request.seals
        ]
        results = await self._sealing.seal(asker, reports)
        return _seal_response(results).SerializeToString()

    async def _tell_inventory(self, _: Received, __: CallContext) -> bytes:
        raise InvalidRequestError("the metadata of this coordinator are not suspended: register")

    async def request_recovery(self, body: Received, _: CallContext) -> bytes:
        """A leader that can't go on asks for a recovery. It asks until it is answered and has no
        other way to say so, so the records say RECOVERING before they are: a coordinator that
        only remembered it might be overtaken, or die, and the next one would wait for a leader."""
        request = parse(pb.RequestRecoveryRequest, body)
        asker = self._check_caller(request)

        def decision(state: ClusterState, asked: pb.SegmentRef) -> Change:
            segment_id = SegmentId(asked.segment_id)
            record = check_leader(
                state, segment_id, Epoch(asked.epoch), asker.node_id, asker.incarnation
            )
            return start_recovery(state, segment_id, record.version)

        results = await self._ledger.decide_each(request.segments, decision)
        for each, result in zip(request.segments, results, strict=True):
            if isinstance(result, IcecoreError):
                event(
                    _log, logging.INFO, "request_ignored", segment_id=each.segment_id, error=result
                )
                continue
            event(
                _log,
                logging.INFO,
                "recovery_requested",
                segment_id=each.segment_id,
                node_id=asker.node_id,
                why=request.why[:WHY_MAX],
            )
        return pb.RequestRecoveryResponse().SerializeToString()

    async def report_digests(self, body: Received, _: CallContext) -> bytes:
        """Two replicas that report the same full digest of a segment set it."""
        request = parse(pb.ReportDigestsRequest, body)
        asker = self._check_caller(request)

        def decision(state: ClusterState, each: pb.FullDigest) -> Change:
            return set_full_digest(
                state,
                SegmentId(each.segment_id),
                Generation(each.generation),
                each.full_digest,
                asker.node_id,
            )

        results = await self._ledger.decide_each(request.digests, decision)
        errors = [
            result
            if isinstance(result, IcecoreError)
            else self._digest_divergence(SegmentId(each.segment_id))
            for each, result in zip(request.digests, results, strict=True)
        ]
        return pb.ReportDigestsResponse(
            errors=[error_to_proto(each) for each in errors]
        ).SerializeToString()

    def _digest_divergence(self, segment_id: SegmentId) -> ConflictError | None:
        """Replicas report different digests and no two the same one: each is to look again."""
        record = self._ledger.state.segments.get(segment_id)
        nodes = disagreeing(record) if record else ()
        if not nodes:
            return None
        why = f"nodes {list(nodes)} report different full digests"
        self._alerts.raise_alert(AlertKind.DIGESTS, segment_id, why)
        return ConflictError(why)

    async def allocate_producer_ids(self, body: Received, _: CallContext) -> bytes:
        """A range of ids that nobody gets again."""
        request = parse(pb.AllocateProducerIdsRequest, body)
        self._check_cluster(request.cluster_id)
        if not 1 <= request.count <= PRODUCER_IDS_MAX:
            raise InvalidRequestError(f"1 to {PRODUCER_IDS_MAX} producer ids at a time")
        first = 0

        def decision(state: ClusterState) -> Change:
            nonlocal first
            counter = next_of(state, "producer_id")
            first = counter.next_value
            return Change((updated(counter, next_value=first + request.count),))

        await self._ledger.decide(decision)
        return pb.AllocateProducerIdsResponse(
            first_producer_id=first, count=request.count
        ).SerializeToString()

    async def name_producer(self, body: Received, _: CallContext) -> bytes:
        """The next epoch of a producer's name; leaders of the topics refuse the older ones."""
        request = parse(pb.NameProducerRequest, body)
        self._check_cluster(request.cluster_id)
        named = await self._naming.take(
            request.producer_name, request.topics, request.instance, is_renewal=request.renew
        )
        event(
            _log,
            logging.INFO,
            "producer_named",
            name=request.producer_name,
            producer_id=named.producer_id,
            epoch=named.producer_epoch,
        )
        return pb.NameProducerResponse(
            producer_id=named.producer_id,
            producer_epoch=named.producer_epoch,
            positions=named.positions,
        ).SerializeToString()


def _held(message: pb.SegmentInventory) -> HeldReplica:
    return value_of(HeldReplica, message)


def _seal_response(results: Sequence[SealOutcome | IcecoreError]) -> pb.SealResponse:
    response = pb.SealResponse()
    for result in results:
        item = response.results.add()
        if isinstance(result, IcecoreError):
            item.error.CopyFrom(error_to_proto(result))
            continue
        if result.sealed is not None:
            item.sealed.CopyFrom(segment_to_proto(result.sealed))
        if result.successor is not None:
            item.successor.CopyFrom(segment_to_proto(result.successor))
    return response
