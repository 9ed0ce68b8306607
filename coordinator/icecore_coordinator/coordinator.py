"""A coordinator, composed: ledger, sessions, recovery, sealing, auditing, and the loop that looks.

The loop wakes when a node or a tail was lost and every second anyway, asks each part what is
needed, and starts it as a task. Nothing is remembered between turns that could not be found again
by looking, so that a restarted coordinator goes on where the last one stopped.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from icecore.errors import NotCoordinatorError
from icecore.model import SegmentId, SegmentState
from icecore.process.log import event
from icecore.rpc.addresses import native
from icecore.rpc.ports import Clock, Handlers, Net, Rng, Server
from icecore.v1.admin_pb2 import DescribeClusterResponse
from icecore_coordinator.config import RECLAIM_SLACK_BYTES, TopicDefaults
from icecore_coordinator.decisions.node_removal import forget_unproved
from icecore_coordinator.decisions.topic_changes import missing_partitions
from icecore_coordinator.ledger import Ledger
from icecore_coordinator.nodes.alerts import Alerts
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
from icecore_coordinator.work.copies.auditor import Auditor
from icecore_coordinator.work.copies.leaving import LeadershipHandOver
from icecore_coordinator.work.copies.repairing import Repairer
from icecore_coordinator.work.copies.surplus import SurplusCopies
from icecore_coordinator.work.counted_time import CountedTime
from icecore_coordinator.work.deletions import Deletions
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
from icecore_coordinator.work.topics import TopicActs
from icecore_coordinator.work.worker_ports import WorkerPorts

_log = logging.getLogger(__name__)

K = TypeVar("K")

SEGMENTS_PER_ROUND = 128
"""Most segments of one recovery round, or partitions of one opening round."""
ROUNDS_AT_ONCE = 4
"""Most rounds of each kind at once. The rest waits here, where its turn can be chosen, instead of
at nodes and disks."""
LOOPS = frozenset(
    ["tick", "heal", "audit", "roll", "repair", "retain", "confirm", "upload", "follow_tiers"]
)
"""Tasks without which this process would only look alive."""
ROUNDS = frozenset(["recover", "recover_unclean", "open_tails"])
"""Tasks after which there may be room for another."""
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
    ) -> None:
        timing = timing or Timing()
        self.ledger = Ledger(store, rng)
        self.live = Liveness()
        self.heard = ReportedState(self.ledger.state)
        self.alerts = Alerts(clock)
        self._net, self._store, self._poke = net, store, asyncio.Event()
        self._clock, self._timing = clock, timing
        ports = WorkerPorts(
            ledger=self.ledger,
            calls=NodeCalls(net, self.ledger.state),
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
        self._deletions = Deletions(self.ledger, ports.copies, clock, timing)
        self._counted, rolls = CountedTime(self.ledger, self.live, clock), TailRolls(ports)
        self._naming = ProducerNaming(self.ledger, ports.calls, self.live, clock, timing)
        self.tiering = TieringScheduler(ports, self._spawn)
        self._retention = RetentionScheduler(ports, rolls)
        self._reclaimer = Reclaimer(
            ports, rolls, self._sessions.usage, self.tiering.local.free, reclaim_slack_bytes
        )
        self._admission = NodeAdmission(ports, self._sessions)
        nodes = CoordinatorService(
            ports,
            admission=self._admission,
            sessions=self._sessions,
            broken=BrokenStreams(self._sessions, ports.calls, self._spawn),
            pushes=self._pushes,
            sealing=LiveSealing(ports, opening, _seal_checker(ports), gains),
            naming=self._naming,
            describe_tiered=TieredCopies(self.ledger.state).describe,
            is_new_cluster=is_new_cluster,
        )
        self._removal = NodeRemoval(ports)
        self._describer = self._make_describer()
        admin = self._admin(ports, rng, topic_defaults or TopicDefaults())
        self._handlers = _merged(nodes.handlers(), admin)
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._servers: list[Server] = []

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

    def _make_describer(self) -> Describer:
        return Describer(
            state=self.ledger.state,
            live=self.live,
            heard=self.heard,
            alerts=self.alerts,
            sessions=self._sessions,
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
        self._retention.start()
        self.tiering.local.start()
        self._sessions.start()
        for address in (listen, *([native(native_listen)] if native_listen else [])):
            self._servers.append(await self._net.serve(address, self._handlers))
        self._spawn(self._tick(), "tick")
        self._spawn(self._heal(), "heal")
        self._spawn(self._audit(), "audit")
        self._spawn(self._roll(), "roll")
        self._spawn(self._repair(), "repair")
        self._spawn(self._retain(), "retain")
        self._spawn(self._drop_local_copies(), "local_copies")
        self._spawn(self._confirm(), "confirm")
        self._spawn(self._begin_uploads(), "upload")
        self._spawn(self._follow_tiers(), "follow_tiers")
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
        await self._cancel_tasks()
        await asyncio.gather(*(server.stop(grace_s=0.5) for server in self._servers))
        self._servers.clear()
        await self._cancel_tasks()  # what streams started that ended meanwhile
        await self._store.close()

    async def _cancel_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _on_change(self, change: Change) -> None:
        self._versions.on_change(change)  # before it is told what is the newest
        self._sessions.on_change(change)
        self._pushes.on_change(change)
        if any(_means_work(record) for record in change.puts):
            self._poke.set()

    def _on_status(self) -> None:
        self.ledger.note_news()
        self._poke.set()

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if task.get_name() in ROUNDS:
            self._poke.set()
        if task.cancelled() or (error := task.exception()) is None:
            return
        event(_log, logging.ERROR, "task_failed", task=task.get_name(), exc_info=error)
        if task.get_name() in LOOPS:
            self.ledger.lose()

    async def _tick(self) -> None:
        while True:
            self._sessions.tick()
            await asyncio.sleep(self._timing.tick_ms / 1000)

    async def _heal(self) -> None:
        """Start whatever is needed; look when something changed, and now and then anyway."""
        looked = -math.inf
        while True:
            now = self._clock.monotonic_ms()
            if self._poke.is_set() or now - looked >= self._timing.look_ms or self._has_waiting():
                self._poke.clear()
                looked = now
                self._start_needed()
                # What was started takes its keys meanwhile; and where very many segments are looked
                # at, that must not be all that happens while each of them changes.
                took_ms = self._clock.monotonic_ms() - now
                await asyncio.sleep(LOOK_RESTS * took_ms / 1000)
            try:
                async with asyncio.timeout(self._timing.tick_ms / 1000):
                    await self._poke.wait()
            except TimeoutError:
                continue

    def _request(self, segment_id: SegmentId) -> None:
        """Recover a segment whose leader is well, at once."""
        self.recovery.request(segment_id)
        self._poke.set()

    def _has_waiting(self) -> bool:
        return (
            self.recovery.backoff.is_waiting
            or self._opener.backoff.is_waiting
            or self._hand_over.is_busy
        )

    def _start_needed(self) -> None:
        usual: list[SegmentId] = []
        unclean: list[SegmentId] = []  # apart: nodes may have to read whole logs for them (R46)
        for segment_id in self.recovery.needed():
            is_unclean = self.ledger.state.segments[segment_id].is_unclean_allowed
            (unclean if is_unclean else usual).append(segment_id)
        self._start_rounds("recover", self.recovery.recover, usual)
        self._start_rounds("recover_unclean", self.recovery.recover, unclean)
        self._start_rounds("open_tails", self._opener.open, self._opener.needed())
        if leaving := self._hand_over.needed():
            self._spawn(self._hand_over.hand_over(leaving), "hand_over")
        if topic_ids := self._deletions.needed():
            self._spawn(self._deletions.finish(topic_ids), "delete_topics")

    def _start_rounds(
        self,
        name: str,
        work: Callable[[Sequence[K]], Coroutine[Any, Any, None]],
        keys: Sequence[K],
    ) -> None:
        """As many rounds of a kind as may be under way; the rest is found again when one ends."""
        room = ROUNDS_AT_ONCE - sum(task.get_name() == name for task in self._tasks)
        for at in range(0, min(len(keys), room * SEGMENTS_PER_ROUND), SEGMENTS_PER_ROUND):
            self._spawn(work(keys[at : at + SEGMENTS_PER_ROUND]), name)

    async def _confirm(self) -> None:
        """One transaction a second: it stores what was heard, or shows that it still could."""
        while True:
            await asyncio.sleep(self._timing.audit_ms / 1000)
            if heard := self.heard.to_store():
                await self.ledger.decide_all(heard)
            else:
                await self.ledger.confirm()

    async def _repair(self) -> None:
        while True:
            await asyncio.sleep(self._timing.audit_ms / 1000)
            await self._repairer.repair()

    async def _retain(self) -> None:
        while True:
            await asyncio.sleep(self._timing.audit_ms / 1000)
            await self._counted.store()
            await self._retention.look()
            await self._surplus.look()
            await self._reclaimer.look()

    async def _drop_local_copies(self) -> None:
        while True:
            await asyncio.sleep(self._timing.audit_ms / 1000)
            await self.tiering.local.look()

    async def _begin_uploads(self) -> None:
        while True:
            await self.tiering.wait_for_room(self._timing.audit_ms)
            await self.tiering.begin()

    async def _follow_tiers(self) -> None:
        while True:
            await asyncio.sleep(self._timing.audit_ms / 1000)
            await self.tiering.follow()

    async def _audit(self) -> None:
        while True:
            await asyncio.sleep(self._timing.audit_ms / 1000)
            await self._vanished.look()  # first: of these there is nothing to repair
            await self._repairer.drop_damaged()
            await self._auditor.audit()
            await self._deletions.look()

    async def _roll(self) -> None:
        while True:
            looks = ROLL_LOOKS if self._auditor.is_rolling else 1
            await asyncio.sleep(self._timing.audit_ms / looks / 1000)
            await self._auditor.roll()


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


def _merged(*handlers: Handlers) -> Handlers:
    unary = {name: handler for each in handlers for name, handler in each.unary.items()}
    streams = {name: handler for each in handlers for name, handler in each.streams.items()}
    return Handlers(unary, streams)
