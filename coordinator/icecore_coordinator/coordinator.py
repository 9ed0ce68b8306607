"""A coordinator, composed: ledger, sessions, workers, services, and the table of its jobs.

The table says what is done again and again, how often, and what begins a turn before its time.
Nothing is remembered between turns that could not be found again by looking, so that a restarted
coordinator goes on where the last one stopped.
"""

import asyncio
import logging
from collections.abc import Callable

from icecore.errors import NotCoordinatorError
from icecore.model import NO_SEGMENT, SegmentId, SegmentState
from icecore.process.log import event
from icecore.rpc.addresses import native
from icecore.rpc.ports import (
    Body,
    CallContext,
    Clock,
    Handlers,
    Net,
    Received,
    Rng,
    Server,
    UnaryHandler,
)
from icecore.v1.admin_pb2 import DescribeClusterResponse
from icecore_coordinator.config import RECLAIM_SLACK_BYTES, TopicDefaults
from icecore_coordinator.decisions.node_removal import forget_unproved
from icecore_coordinator.decisions.topic_changes import missing_partitions
from icecore_coordinator.ledger import Ledger
from icecore_coordinator.nodes.alerts import AlertKind, Alerts
from icecore_coordinator.nodes.broken_streams import BrokenStreams
from icecore_coordinator.nodes.copy_reports import CopyReports
from icecore_coordinator.nodes.node_calls import NodeCalls
from icecore_coordinator.nodes.node_pushes import Pushes
from icecore_coordinator.nodes.node_sessions import NodeSessions
from icecore_coordinator.nodes.reported_state import ReportedState
from icecore_coordinator.nodes.topic_versions import TopicVersions
from icecore_coordinator.services.admin_messages import Describer
from icecore_coordinator.services.admin_service import AdminService
from icecore_coordinator.services.backup_admin import BackupAdmin
from icecore_coordinator.services.coordinator_service import CoordinatorService
from icecore_coordinator.services.position_admin import PositionAdmin
from icecore_coordinator.services.producer_admin import ProducerAdmin
from icecore_coordinator.services.snapshot_admin import SnapshotAdmin
from icecore_coordinator.services.tier_admin import TierAdmin, TieredCopies
from icecore_coordinator.services.topic_mirroring import TopicMirroring
from icecore_coordinator.state.cluster_state import ClusterState
from icecore_coordinator.state.liveness import Liveness
from icecore_coordinator.state.records import (
    Change,
    NodeRecord,
    PartitionRecord,
    Record,
    SegmentRecord,
    TopicRecord,
)
from icecore_coordinator.stores.metadata_store import MetadataStore
from icecore_coordinator.timing import Timing
from icecore_coordinator.work.admission import NodeAdmission
from icecore_coordinator.work.copies.altered_topics import AlteredTopics
from icecore_coordinator.work.copies.auditor import Auditor
from icecore_coordinator.work.copies.balancing import Balancer
from icecore_coordinator.work.copies.leaving import LeadershipHandOver
from icecore_coordinator.work.copies.repairing import Repairer
from icecore_coordinator.work.copies.surplus import SurplusCopies
from icecore_coordinator.work.counted_time import CountedTime
from icecore_coordinator.work.healing import Healing
from icecore_coordinator.work.jobs import Job, Jobs
from icecore_coordinator.work.node_removal import NodeRemoval
from icecore_coordinator.work.position_saving import PositionSaving
from icecore_coordinator.work.producer_naming import ProducerNaming
from icecore_coordinator.work.reclaiming import Reclaimer
from icecore_coordinator.work.record_deletion import RecordDeletion
from icecore_coordinator.work.recovery.lossy_acts import LossyActs
from icecore_coordinator.work.recovery.recovery import Recovery
from icecore_coordinator.work.recovery.start_states import StartStates
from icecore_coordinator.work.recovery.vanished_segments import VanishedSegments
from icecore_coordinator.work.remote.tier_import import TierImport
from icecore_coordinator.work.remote.tiering import TieringScheduler
from icecore_coordinator.work.retention import RetentionScheduler
from icecore_coordinator.work.segments.gains import ExpectedGains
from icecore_coordinator.work.segments.rolls import TailRolls
from icecore_coordinator.work.segments.seal_checking import SealChecker
from icecore_coordinator.work.segments.sealing import LiveSealing
from icecore_coordinator.work.segments.segment_opening import SegmentOpening
from icecore_coordinator.work.segments.tail_opening import TailOpener
from icecore_coordinator.work.topic_deletion import TopicDeletions
from icecore_coordinator.work.topics import TopicActs
from icecore_coordinator.work.worker_ports import WorkerPorts

_log = logging.getLogger(__name__)

GAIN_SHARE = 0.8
"""A roll must gain replicas within this share of the wait before the next request to roll."""
ROLL_LOOKS = 4
"""Looks per audit interval while segments are rolled, so that each look rolls fewer of them."""
LOOK_RESTS = 4
"""Pause after a look, in multiples of the time that the look took."""


class Coordinator:
    """The control plane of one cluster. ``start``, then ``stop``; not to be started again.

    Args:
        net: To nodes and from everyone.
        store: Exclusive to this object; closed by ``stop``.
        clock: Of leases and time stamps.
        rng: Of identifiers.
        timing: How long to wait for what.
        topic_defaults: Settings of topics whose creation does not say them.
        reclaim_slack_bytes: Deleting less than this may show nothing on a full disk.
        is_new_cluster: Whether a person said that an empty store is to be a new cluster.
        state: By which this process has followed the store until now, if it has.
        may_act: Whether no other coordinator can have been elected by now; asked at each act.
    """

    def __init__(
        self,
        net: Net,
        store: MetadataStore,
        clock: Clock,
        rng: Rng,
        timing: Timing | None = None,
        topic_defaults: TopicDefaults | None = None,
        reclaim_slack_bytes: int = RECLAIM_SLACK_BYTES,
        *,
        is_new_cluster: bool = False,
        state: ClusterState | None = None,
        may_act: Callable[[], bool] = lambda: True,
    ) -> None:
        timing = timing or Timing()
        self.ledger = Ledger(store, rng, may_act, state)
        self.live = Liveness()
        self.heard = ReportedState(self.ledger.state)
        self.alerts = Alerts(clock)
        self._net, self._store, self._timing = net, store, timing
        self._jobs = Jobs(clock, self.ledger.lose)
        ports = WorkerPorts(
            ledger=self.ledger,
            calls=NodeCalls(net, self.ledger.state, self.ledger.tenure.check),
            live=self.live,
            heard=self.heard,
            copies=CopyReports(),
            alerts=self.alerts,
            clock=clock,
            timing=timing,
        )
        self._versions = TopicVersions(self.ledger.state)
        self._pushes = Pushes(self.ledger.state, self.live, lambda: self._versions.version)
        self._sessions = self._make_sessions(ports)
        opening = SegmentOpening(self.ledger, ports.calls, self.live, clock, timing)
        self._opener = TailOpener(ports, _start_states(ports), opening)
        self.recovery = Recovery(ports, opening)
        request, gains = self._request, ExpectedGains(clock, GAIN_SHARE * timing.roll_retry_ms)
        self._auditor = Auditor(ports, opening, gains, request)
        self._repairer = Repairer(ports)
        self._surplus = SurplusCopies(ports, self._repairer.is_copying)
        self._vanished = VanishedSegments(
            ports, self._sessions.registered, self._repairer.is_copying
        )
        self._hand_over = LeadershipHandOver(ports, gains, request, self._pushes.let_leave)
        self._deletions = TopicDeletions(self.ledger, ports.copies, clock, timing)
        self._healing = self._make_healing(ports)
        self._counted, rolls = CountedTime(self.ledger, self.live, clock), TailRolls(ports)
        self._naming = ProducerNaming(self.ledger, ports.calls, self.live, clock, timing)
        self.tiering = TieringScheduler(ports, self._jobs.spawn)
        self._retention = RetentionScheduler(ports, rolls)
        self._altered = AlteredTopics(ports, rolls)
        self._reclaimer = Reclaimer(
            ports, rolls, self._sessions.usage, self.tiering.local.free, reclaim_slack_bytes
        )
        self._admission = NodeAdmission(ports, self._sessions)
        sealing = LiveSealing(ports, opening, _seal_checker(ports), gains)
        nodes = self._node_service(ports, sealing, is_new_cluster=is_new_cluster)
        self._removal, self._balancer = NodeRemoval(ports), Balancer(ports)
        self._describer = self._make_describer(clock)
        admin = self._admin(ports, rng, topic_defaults or TopicDefaults())
        self._handlers = _checked(_merged(nodes.handlers(), admin), self.ledger.tenure.check)
        self._servers: list[Server] = []

    def _node_service(
        self, ports: WorkerPorts, sealing: LiveSealing, *, is_new_cluster: bool
    ) -> CoordinatorService:
        return CoordinatorService(
            ports,
            admission=self._admission,
            sessions=self._sessions,
            broken=BrokenStreams(self._sessions, ports.calls, self._jobs.spawn),
            pushes=self._pushes,
            sealing=sealing,
            naming=self._naming,
            describe_tiered=TieredCopies(self.ledger.state, self.tiering.doubt).describe,
            is_new_cluster=is_new_cluster,
        )

    def _make_sessions(self, ports: WorkerPorts) -> NodeSessions:
        return NodeSessions(
            state=self.ledger.state,
            live=self.live,
            pushes=self._pushes,
            heard=self.heard,
            copies=ports.copies,
            alerts=self.alerts,
            clock=ports.clock,
            lease_ms=ports.timing.lease_ms,
            on_status=self._on_status,
        )

    def _make_healing(self, ports: WorkerPorts) -> Healing:
        return Healing(
            ports, self._jobs, self.recovery, self._opener, self._hand_over, self._deletions
        )

    def _make_describer(self, clock: Clock) -> Describer:
        return Describer(
            state=self.ledger.state,
            live=self.live,
            heard=self.heard,
            alerts=self.alerts,
            sessions=self._sessions,
            clock=clock,
            recoveries=lambda: self.recovery.count,
            refused_streams=lambda: self._admission.refused,
        )

    def _admin(self, ports: WorkerPorts, rng: Rng, defaults: TopicDefaults) -> Handlers:
        topics = TopicActs(ports, self._opener.backoff, rng)
        lossy = LossyActs(ports, self.recovery.backoff)
        records = RecordDeletion(ports)
        imports, last_error = TierImport(ports, topics.show_imported), self.tiering.errors.of
        merging, describer = self.tiering.merging, self._describer
        tiers = TierAdmin(self.ledger, imports, describer, defaults, merging, last_error)
        saving = PositionSaving(self.ledger, ports.clock)
        others = {
            **tiers.handlers(),
            **SnapshotAdmin(self.ledger).handlers(),
            **BackupAdmin(self.ledger, ports.clock, rng).handlers(),
            **PositionAdmin(self.ledger.state, saving).handlers(),
            **ProducerAdmin(self.ledger.state, self._naming).handlers(),
        }
        service = AdminService(
            self.ledger,
            topics,
            records,
            lossy,
            self._removal,
            self._balancer.balance,
            self._describer,
            self._versions,
            defaults,
            others,
        )
        mirroring = TopicMirroring(self.ledger.state, self._versions, self._describer)
        return _merged(service.handlers(), mirroring.handlers())

    @property
    def address(self) -> str:
        """``host:port`` of gRPC, really bound; empty before ``start``."""
        return self._servers[0].address if self._servers else ""

    def describe(self) -> DescribeClusterResponse:
        """The cluster in numbers."""
        return self._describer.cluster()

    async def start(self, listen: str, native_listen: str = "") -> None:
        """Take over the cluster and serve, over the native transport, too, if it has an address.

        Raises:
            ConfigurationError: an address can't be bound, or must not be without TLS.
            StorageError: the metadata store failed.
        """
        await self.ledger.open()
        self._counted.start()
        while (await self.ledger.decide(forget_unproved)).deletes:
            continue
        missing = missing_partitions(self.ledger.state)
        await self.ledger.decide_each(missing, lambda _, change: change)
        self._versions.load()
        self.ledger.subscribe(self._on_change)
        self.ledger.on_full = self._on_full
        self._retention.start()
        self._altered.start()
        self.tiering.local.start()
        self._sessions.start()
        for address in (listen, *([native(native_listen)] if native_listen else [])):
            self._servers.append(await self._net.serve(address, self._handlers))
        self._jobs.start(self._table())
        state = self.ledger.state
        event(
            _log,
            logging.INFO,
            "started",
            cluster_id=state.cluster_id,
            coordinator_epoch=state.coordinator_epoch,
            address=self.address,
            segments=len(state.segments),
        )

    async def run(self) -> None:
        """Wait until this coordinator is one no more. Raises NotCoordinatorError then."""
        await self.ledger.lost.wait()
        raise NotCoordinatorError(self.ledger.why_lost)

    async def stop(self) -> None:
        """Stop serving and release the store. Idempotent."""
        await self._jobs.stop()
        await asyncio.gather(*(server.stop(grace_s=0.5) for server in self._servers))
        self._servers.clear()
        await self._jobs.stop()  # what streams started that ended meanwhile
        await self._store.close()

    def _on_change(self, change: Change) -> None:
        self._versions.on_change(change)  # before it is told what is the newest
        self._sessions.on_change(change)
        self._pushes.on_change(change)
        if any(_means_work(record) for record in change.puts):
            self._healing.poke()

    def _on_full(self, why: str) -> None:
        self.alerts.raise_alert(
            AlertKind.METADATA, NO_SEGMENT, why, waits=lambda: bool(self.ledger.full)
        )

    def _on_status(self) -> None:
        self.ledger.note_news()
        self._healing.poke()

    def _request(self, segment_id: SegmentId) -> None:
        """Recover a segment whose leader is well, at once."""
        self.recovery.request(segment_id)
        self._healing.poke()

    def _table(self) -> tuple[Job, ...]:
        """All that this coordinator does again and again. Each loop is its own, so that none waits
        for what another one waits for. One that fails ends the coordinator."""
        t, tiering = self._timing, self.tiering
        return (
            # leases that end; first of all, or nobody would be missed
            Job("tick", self._sessions.tick, every_ms=t.tick_ms, is_first_at_once=True),
            # recoveries, tails, moves and deletions that are needed. What was started takes its
            # keys during the rest; and where very many segments are looked at, that must not be all
            # that happens while each of them changes.
            Job(
                "heal",
                self._healing.look,
                every_ms=t.tick_ms,
                wake=self._healing.wake,
                is_first_at_once=True,
                rests=LOOK_RESTS,
            ),
            Job(
                "audit",
                self._vanished.look,  # first: of these there is nothing to repair
                self._repairer.drop_damaged,
                self._auditor.audit,
                self._deletions.look,
                every_ms=t.audit_ms,
            ),
            # fewer at each look while segments are rolled
            Job("roll", self._auditor.roll, every_ms=self._roll_wait_ms),
            Job(
                "balance",
                self._balancer.look,
                every_ms=self._balancer.wait_ms,
                wake=self._balancer.wake,
            ),
            Job("repair", self._repairer.repair, every_ms=t.audit_ms),
            Job(
                "retain",
                self._counted.store,
                self._retention.look,
                self._altered.look,
                self._surplus.look,
                self._reclaimer.look,
                every_ms=t.audit_ms,
            ),
            # one transaction a second: it stores what was heard, or shows that it still could
            Job("confirm", self._confirm, every_ms=t.audit_ms),
            Job("local_copies", tiering.local.look, every_ms=t.audit_ms),
            # the end of an upload begins the next one
            Job("upload", tiering.begin, every_ms=t.audit_ms, wake=tiering.room),
            # tables and objects; it may wait for the object store
            Job("follow_tiers", tiering.follow, every_ms=t.audit_ms),
        )

    def _roll_wait_ms(self) -> float:
        return self._timing.audit_ms / (ROLL_LOOKS if self._auditor.is_rolling else 1)

    async def _confirm(self) -> None:
        if heard := self.heard.to_store():
            await self.ledger.decide_all(heard)
        else:
            await self.ledger.confirm()


def _means_work(record: Record) -> bool:
    """Return whether a worker should look at once, not only with its next turn."""
    match record:
        case PartitionRecord():
            return not record.tail_segment_id
        case SegmentRecord():
            return record.segment.state == SegmentState.RECOVERING
        case _:
            return isinstance(record, NodeRecord | TopicRecord)


def _start_states(ports: WorkerPorts) -> StartStates:
    return StartStates(
        ledger=ports.ledger,
        calls=ports.calls,
        live=ports.live,
        copies=ports.copies,
        alerts=ports.alerts,
        clock=ports.clock,
        timing=ports.timing,
    )


def _seal_checker(ports: WorkerPorts) -> SealChecker:
    return SealChecker(
        calls=ports.calls,
        live=ports.live,
        heard=ports.heard,
        alerts=ports.alerts,
        clock=ports.clock,
        timing=ports.timing,
    )


def _checked(handlers: Handlers, check: Callable[[], None]) -> Handlers:
    """Handlers that answer nobody once another coordinator may act. A stream looks by itself, at
    each heartbeat."""

    def checked(handler: UnaryHandler) -> UnaryHandler:
        async def run(body: Received, context: CallContext) -> Body:
            check()
            return await handler(body, context)

        return run

    unary = {name: checked(handler) for name, handler in handlers.unary.items()}
    return Handlers(unary, handlers.streams)


def _merged(*handlers: Handlers) -> Handlers:
    unary = {name: handler for each in handlers for name, handler in each.unary.items()}
    streams = {name: handler for each in handlers for name, handler in each.streams.items()}
    return Handlers(unary, streams)
