"""CoordinatorService: what nodes ask. Messages to values, decisions to messages, nothing else."""

import asyncio
import logging
from collections.abc import Sequence

from icecore.errors import (
    ConflictError,
    FencedError,
    IcecoreError,
    InvalidRequestError,
    UnavailableError,
    UnsupportedError,
    WrongClusterError,
)
from icecore.model import PROTOCOL_VERSION
from icecore.rpc.convert import error_to_proto, segment_to_proto
from icecore.rpc.framing import parse
from icecore.rpc.ports import CallContext, Handlers, ServerStream
from icecore.v1 import coordinator_pb2 as pb
from icecore_coordinator.config import Timing
from icecore_coordinator.decisions.digest_changes import disagreeing, set_full_digest
from icecore_coordinator.decisions.disk_changes import check_disk, with_new_disk
from icecore_coordinator.decisions.node_changes import (
    HeldReplica,
    Registration,
    activate,
    check_number,
    check_registration,
    confirm_deletion,
    deletions_confirmed,
    lost_copies,
    register,
    shrunk_logs,
)
from icecore_coordinator.decisions.segment_changes import (
    Sealing,
    alter_isr,
    check_leader,
    remove_sealed_replica,
    start_recovery,
)
from icecore_coordinator.ledger import Ledger
from icecore_coordinator.nodes.node_sessions import NodeSessions, Registered, Session
from icecore_coordinator.state.cluster_state import ClusterState
from icecore_coordinator.state.records import Change, NodeRecord, updated
from icecore_coordinator.work.producer_naming import ProducerNaming
from icecore_coordinator.work.sealing import Asker, LiveSealing, Sealed, SealReport, pair
from icecore_replication.isr import IsrProposal

log = logging.getLogger(__name__)

SERVICE = "/icecore.v1.CoordinatorService/"
PRODUCER_IDS_MAX = 1_000_000
WHY_MAX = 200


class NodeHandlers:
    """The methods of CoordinatorService as bytes to bytes."""

    def __init__(
        self,
        ledger: Ledger,
        sessions: NodeSessions,
        sealing: LiveSealing,
        naming: ProducerNaming,
        timing: Timing,
        poke: asyncio.Event,
    ) -> None:
        self._ledger = ledger
        self._sessions = sessions
        self._sealing = sealing
        self._naming = naming
        self._timing = timing
        self._poke = poke
        self._activating = asyncio.Lock()
        """One node after the other: what a disk costs depends on what was judged before."""

    def handlers(self) -> Handlers:
        """By full method name."""
        unary = {
            "Register": self.register,
            "AlterIsr": self.alter_isr,
            "PrepareSuccessor": self.prepare_successor,
            "Seal": self.seal,
            "RequestRecovery": self.request_recovery,
            "ReportDigests": self.report_digests,
            "AllocateProducerIds": self.allocate_producer_ids,
            "NameProducer": self.name_producer,
        }
        return Handlers(
            {SERVICE + name: handler for name, handler in unary.items()},
            {SERVICE + "Heartbeat": self.heartbeat},
        )

    def _check_cluster(self, cluster_id: bytes) -> None:
        if cluster_id != self._ledger.state.cluster_id:
            raise WrongClusterError(
                f"this is cluster {self._ledger.state.cluster_id.hex()}, not {cluster_id.hex()}"
            )

    def _check_caller(self, cluster_id: bytes, node_id: int, incarnation: int) -> Asker:
        """Raises FencedError unless the caller is the registered incarnation of the node."""
        self._check_cluster(cluster_id)
        registered = self._ledger.state.incarnation(node_id)
        if not registered or incarnation != registered:
            raise FencedError(
                f"node {node_id}: incarnation {incarnation} is not the registered {registered}"
            )
        return Asker(node_id, incarnation)

    async def register(self, body: bytes, _: CallContext) -> bytes:
        """Hand out the next incarnation."""
        request = parse(pb.RegisterRequest, body)
        if request.protocol_version > PROTOCOL_VERSION:
            raise UnsupportedError(
                f"protocol version {request.protocol_version}; this coordinator speaks "
                f"{PROTOCOL_VERSION}: update coordinators before nodes"
            )
        asked = Registration(
            request.cluster_id,
            request.node_id,
            request.disk_id,
            request.incarnation,
            request.address,
            request.rack,
            request.disk_counter,
        )
        heard = self._sessions.heard
        is_unknown = False

        check_registration(self._ledger.state, asked)

        def decision(state: ClusterState) -> Change:
            nonlocal is_unknown
            check_number("disk counter", asked.disk_counter, heard.disk_counter(asked.node_id))
            change, is_unknown = register(state, asked, heard.disk_counter(asked.node_id))
            if is_unknown:
                check_disk(state, asked.node_id, self._has_copy)
            return change

        try:
            change = await self._ledger.decide(decision)
        except IcecoreError as error:
            log.warning("event=not_registered node=%d why=%r", asked.node_id, error.message)
            raise
        node = change.puts[0]
        assert isinstance(node, NodeRecord)
        held = {
            each.segment_id: HeldReplica(
                each.segment_id, each.durable_end_offset, each.sealed, each.intact
            )
            for each in request.segments
        }
        self._sessions.note_told(asked.node_id, held)
        shrunk = shrunk_logs(
            self._ledger.state, asked.node_id, held, heard.ends_of_node(asked.node_id)
        )
        incarnation = node.issued_incarnation
        self._sessions.registered[asked.node_id] = Registered(asked, held, is_unknown, incarnation)
        log.info(
            "event=registered node=%d incarnation=%d address=%r segments=%d disk_unknown=%s "
            "shrunk=%s",
            *(asked.node_id, incarnation, asked.address, len(held), is_unknown, shrunk),
        )
        return pb.RegisterResponse(
            cluster_id=self._ledger.state.cluster_id,
            incarnation=incarnation,
            token=self._ledger.token,
            heartbeat_ms=self._timing.heartbeat_ms,
            lease_ms=self._timing.lease_ms,
            protocol_version=PROTOCOL_VERSION,
            delete_segment_ids=[each for each in held if each in self._ledger.state.deleted],
            disk_unknown=is_unknown,
            disk_counter=max(heard.disk_counter(asked.node_id), asked.disk_counter),
            unknown_segment_ids=shrunk,
        ).SerializeToString()

    async def heartbeat(self, stream: ServerStream, _: CallContext) -> None:
        """One node's stream, until it breaks or a newer one replaces it."""
        body = await stream.read()
        if body is None:
            return
        request = parse(pb.HeartbeatRequest, body)
        session = await self._connect(request)
        reader = asyncio.ensure_future(self._read_beats(session, stream, request))
        writer = asyncio.ensure_future(self._sessions.write_pushes(session, stream))
        try:
            await asyncio.wait((reader, writer), return_when=asyncio.FIRST_COMPLETED)
            for task in (reader, writer):
                if task.done():
                    task.result()
            if session.is_closed:
                # Not FencedError, which would end the process: this incarnation may come back.
                raise UnavailableError("the session has ended: a newer stream, or lease expired")
        except UnavailableError as error:
            log.info("event=stream_ended node=%d why=%r", session.node_id, error.message)
            raise
        finally:
            self._sessions.disconnected(session)
            for task in (reader, writer):
                task.cancel()
            await asyncio.gather(reader, writer, return_exceptions=True)

    async def _connect(self, request: pb.HeartbeatRequest) -> Session:
        self._check_cluster(request.cluster_id)
        node_id, incarnation = request.node_id, request.incarnation
        state = self._ledger.state
        if state.incarnation(node_id) != incarnation or incarnation == 0:
            known = self._sessions.registered.get(node_id)
            if known is None or known.incarnation != incarnation:
                raise FencedError(f"node {node_id}: register again, {incarnation} is not known")
            async with self._activating:
                await self._ledger.decide(lambda state: self._activation(state, known))
                await self._judge_inventory(node_id, known)
        session = self._sessions.connect(node_id, incarnation)
        self._poke.set()
        return session

    def _activation(self, state: ClusterState, known: Registered) -> Change:
        """Its disk is judged again: others may have come with new ones since it registered."""
        change = activate(state, known.registration, known.incarnation)
        if not (known.is_disk_unknown and change.puts):
            return change
        try:
            check_disk(state, known.registration.node_id, self._has_copy)
        except WrongClusterError as error:
            log.warning("event=disk_refused node=%d", known.registration.node_id)
            raise FencedError(error.message) from error  # register again, and hear why
        return with_new_disk(state, change)

    def _has_copy(self, node_id: int, segment_id: int) -> bool:
        return not self._sessions.is_unknown(node_id, segment_id)

    async def _judge_inventory(self, node_id: int, known: Registered) -> None:
        """Stop counting copies the node has lost, and remember the deletions it carried out."""
        state = self._ledger.state
        lost = lost_copies(state, node_id, known.held, is_disk_unknown=known.is_disk_unknown)
        gone = deletions_confirmed(state, node_id, known.held)
        for segment_id in lost:
            log.warning("event=copy_lost node=%d segment=%d", node_id, segment_id)
        await self._ledger.decide_all(
            [
                *(
                    lambda state, each=each: remove_sealed_replica(state, each, node_id)
                    for each in lost
                ),
                *(lambda state, each=each: confirm_deletion(state, node_id, each) for each in gone),
            ]
        )

    async def _read_beats(
        self, session: Session, stream: ServerStream, first: pb.HeartbeatRequest
    ) -> None:
        self._sessions.beat(session, first)
        while (body := await stream.read()) is not None:
            self._sessions.beat(session, parse(pb.HeartbeatRequest, body))

    async def alter_isr(self, body: bytes, _: CallContext) -> bytes:
        """Compare-and-set of in-sync sets."""
        request = parse(pb.AlterIsrRequest, body)
        asker = self._check_caller(request.cluster_id, request.node_id, request.incarnation)

        def decision(state: ClusterState, change: pb.IsrChange) -> Change:
            proposal = IsrProposal(
                node_id=asker.node_id,
                incarnation=asker.incarnation,
                epoch=change.epoch,
                version=change.version,
                isr=tuple(change.isr),
                isr_incarnations=tuple(change.isr_incarnations),
            )
            return alter_isr(state, change.segment_id, proposal)

        results = await self._ledger.decide_all(
            [lambda state, each=change: decision(state, each) for change in request.changes]  # type: ignore[misc]
        )
        response = pb.AlterIsrResponse()
        for change, result in zip(request.changes, results, strict=True):
            error = result if isinstance(result, IcecoreError) else None
            item = response.results.add(error=error_to_proto(error))
            record = self._ledger.state.segments.get(change.segment_id)
            if record is not None:
                item.assignment.CopyFrom(segment_to_proto(self._ledger.state.assignment(record)))
            log.info(
                "event=isr_change segment=%d isr=%s error=%r",
                *(change.segment_id, list(change.isr), error.message if error else ""),
            )
        return response.SerializeToString()

    async def prepare_successor(self, body: bytes, _: CallContext) -> bytes:
        """Prepared and confirmed successors for leaders about to seal."""
        request = parse(pb.PrepareSuccessorRequest, body)
        asker = self._check_caller(request.cluster_id, request.node_id, request.incarnation)
        asked = [(each.segment_id, each.epoch) for each in request.segments]
        response = pb.PrepareSuccessorResponse()
        for result in await self._sealing.prepare(asker, asked):
            if isinstance(result, IcecoreError):
                response.results.add(error=error_to_proto(result))
            else:
                response.results.add(successor_segment_id=result)
        return response.SerializeToString()

    async def seal(self, body: bytes, _: CallContext) -> bytes:
        """Seal segments and open their successors."""
        request = parse(pb.SealRequest, body)
        asker = self._check_caller(request.cluster_id, request.node_id, request.incarnation)
        reports = [
            SealReport(
                each.epoch,
                Sealing(
                    segment_id=each.segment_id,
                    version=each.version,
                    end_offset=each.end_offset,
                    seal_digest=each.seal_digest,
                    replicas=tuple(each.replicas),
                    length_bytes=each.length_bytes,
                    producer_digest=each.producer_digest,
                    max_append_timestamp_ms=each.max_append_timestamp_ms,
                ),
                each.successor_segment_id,
                each.producer_snapshot,
            )
            for each in request.seals
        ]
        results = await self._sealing.seal(asker, reports)
        self._poke.set()
        return _seal_response(results).SerializeToString()

    async def request_recovery(self, body: bytes, _: CallContext) -> bytes:
        """A leader that can't go on asks for a recovery. It asks until it is answered and has no
        other way to say so, so the records say RECOVERING before they are: a coordinator that
        only remembered it might be overtaken, or die, and the next one would wait for a leader."""
        request = parse(pb.RequestRecoveryRequest, body)
        asker = self._check_caller(request.cluster_id, request.node_id, request.incarnation)

        def decision(state: ClusterState, asked: pb.SegmentRef) -> Change:
            record = check_leader(state, asked.segment_id, asked.epoch, *pair(asker))
            return start_recovery(state, asked.segment_id, record.version)

        results = await self._ledger.decide_all(
            [lambda state, each=each: decision(state, each) for each in request.segments]  # type: ignore[misc]
        )
        for each, result in zip(request.segments, results, strict=True):
            if isinstance(result, IcecoreError):
                log.info("event=request_ignored segment=%d why=%r", each.segment_id, result.message)
                continue
            log.info(
                "event=recovery_requested segment=%d node=%d why=%r",
                *(each.segment_id, asker.node_id, request.why[:WHY_MAX]),
            )
        self._poke.set()
        return pb.RequestRecoveryResponse().SerializeToString()

    async def report_digests(self, body: bytes, _: CallContext) -> bytes:
        """Two replicas that report the same full digest of a segment set it."""
        request = parse(pb.ReportDigestsRequest, body)
        asker = self._check_caller(request.cluster_id, request.node_id, request.incarnation)

        def decision(state: ClusterState, each: pb.FullDigest) -> Change:
            reported = (each.segment_id, each.generation, each.full_digest)
            return set_full_digest(state, *reported, asker.node_id)

        results = await self._ledger.decide_all(
            [lambda state, each=digest: decision(state, each) for digest in request.digests]  # type: ignore[misc]
        )
        errors = [
            result if isinstance(result, IcecoreError) else self._digest_dispute(each.segment_id)
            for each, result in zip(request.digests, results, strict=True)
        ]
        return pb.ReportDigestsResponse(
            errors=[error_to_proto(each) for each in errors]
        ).SerializeToString()

    def _digest_dispute(self, segment_id: int) -> ConflictError | None:
        """Replicas report different digests and no two the same one: each is to look again."""
        record = self._ledger.state.segments.get(segment_id)
        nodes = disagreeing(record) if record else ()
        if not nodes:
            return None
        why = f"nodes {list(nodes)} report different full digests"
        self._sessions.pages.page(segment_id, why)
        return ConflictError(why)

    async def allocate_producer_ids(self, body: bytes, _: CallContext) -> bytes:
        """A range of ids that nobody gets again."""
        request = parse(pb.AllocateProducerIdsRequest, body)
        self._check_cluster(request.cluster_id)
        if not 1 <= request.count <= PRODUCER_IDS_MAX:
            raise InvalidRequestError(f"1 to {PRODUCER_IDS_MAX} producer ids at a time")
        first = 0

        def decision(state: ClusterState) -> Change:
            nonlocal first
            counter = state.next_of("producer_id")
            first = counter.next_value
            return Change((updated(counter, next_value=first + request.count),))

        await self._ledger.decide(decision)
        return pb.AllocateProducerIdsResponse(
            first_producer_id=first, count=request.count
        ).SerializeToString()

    async def name_producer(self, body: bytes, _: CallContext) -> bytes:
        """The next epoch of a producer's name; leaders of the topics refuse the older ones."""
        request = parse(pb.NameProducerRequest, body)
        self._check_cluster(request.cluster_id)
        named = await self._naming.take(
            request.producer_name, request.topics, request.instance, is_renewal=request.renew
        )
        log.info(
            "event=producer_named name=%r producer_id=%d epoch=%d",
            *(request.producer_name, named.producer_id, named.producer_epoch),
        )
        return pb.NameProducerResponse(
            producer_id=named.producer_id,
            producer_epoch=named.producer_epoch,
            positions=named.positions,
        ).SerializeToString()


def _seal_response(results: Sequence[Sealed | IcecoreError]) -> pb.SealResponse:
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
