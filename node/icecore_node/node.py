"""One storage node, put together: start-up, serving, the background work, and the way down.

``Node`` gets its ports from outside (``icecore_node/__main__.py`` gives real ones, the simulator
its own) and starts in this order: recover the data folder, listen (so the address is known),
register, persist the new incarnation, send heartbeats. Only then do assignments give replicas their
roles. A node that is told of a newer incarnation of itself, or of another cluster, ends.

Each part is given the parts that it needs when it is made, lower ones first. The few that must
report to a higher one are given one of its functions.
"""

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING

from icecore.errors import IcecoreError, UnavailableError
from icecore.model import SegmentId
from icecore.process.log import event
from icecore.rpc.methods import REPLICATION
from icecore.rpc.ports import Clock, Handlers, Net, Rng
from icecore.v1.coordinator_pb2 import ToldBucket
from icecore_node.config import NodeSettings
from icecore_node.context import NodeContext, Peers, ProducerFences, Tasks
from icecore_node.identity.identity import Identity, Lease
from icecore_node.identity.node_report import NodeReport
from icecore_node.identity.readers import Readers
from icecore_node.io.heavy_work import HeavyWork
from icecore_node.io.io_pool import IoPool
from icecore_node.io.tail_cache import TailCache
from icecore_node.link.coordinator_link import CoordinatorLink, segment_at
from icecore_node.maintenance.copying import SegmentCopier
from icecore_node.maintenance.digests import DigestReporter
from icecore_node.maintenance.disk_watermarks import DiskWatch
from icecore_node.maintenance.file_deletions import FileDeletions
from icecore_node.maintenance.indexing import IndexMaintainer
from icecore_node.maintenance.salvage import Salvage
from icecore_node.maintenance.scrub import Scrubber
from icecore_node.membership.condition import Condition
from icecore_node.membership.disk_report import DiskReport
from icecore_node.membership.heartbeats import Heartbeats
from icecore_node.membership.inventory_telling import InventoryTelling
from icecore_node.membership.leaving import Leaving
from icecore_node.membership.registration import Gate, NodeRegistration, inventory_of
from icecore_node.membership.topic_following import TopicFollowing
from icecore_node.membership.updates import Updates
from icecore_node.metrics import NodeMetrics
from icecore_node.ports import Executor, Folder, RemotePorts
from icecore_node.registry.assignments import Assignments
from icecore_node.registry.digest_queue import DigestQueue
from icecore_node.registry.finish_seal import SealFinisher
from icecore_node.registry.found_replicas import take_in
from icecore_node.registry.leaders import Leaders
from icecore_node.registry.memory_room import MemoryRoom
from icecore_node.registry.set_aside import SettingAside
from icecore_node.registry.table import ReplicaTable
from icecore_node.registry.topic_mirror import TopicMirror
from icecore_node.remote.access import GuardedReader, TierAccess
from icecore_node.remote.ports import TierPorts
from icecore_node.replica.damage import Damage
from icecore_node.replica.orders import Orders
from icecore_node.replica.reading import ReplicaReading
from icecore_node.replication.leader import LeaderParts
from icecore_node.replication.receiver import LeaderLinks
from icecore_node.serving.data_service import DataService
from icecore_node.serving.fetch.fetch import FetchHandler
from icecore_node.serving.listeners import Listeners
from icecore_node.serving.metadata_service import MetadataService
from icecore_node.serving.orders.fencing import Fencing
from icecore_node.serving.orders.leader_orders import LeaderOrders
from icecore_node.serving.orders.node_service import NodeService
from icecore_node.serving.orders.opening import ReplicaOpening
from icecore_node.serving.orders.write_back import WriteBacks
from icecore_node.serving.produce import ProduceHandler
from icecore_node.serving.producer_ids import ProducerIds
from icecore_node.serving.query.query import QueryHandler
from icecore_node.serving.remote_segments import RemoteSegments
from icecore_node.serving.replication.replication_service import ReplicationService
from icecore_node.storage.port import Store, StoredDisks

if TYPE_CHECKING:
    from icecore_node.remote.read.reading import RemoteReading
    from icecore_node.serving.orders.tier_orders import TierOrders

_log = logging.getLogger(__name__)

TICK_S = 0.1
STOP_GRACE_S = 0.5


class Node:
    """A node process without the process."""

    def __init__(
        self,
        settings: NodeSettings,
        *,
        clock: Clock,
        rng: Rng,
        net: Net,
        executor: Executor,
        disks: StoredDisks,
        store: Store,
        folder: Folder,
        metrics: NodeMetrics,
        tier: TierPorts | None = None,
        remote: RemotePorts | None = None,
    ) -> None:
        self._folder = folder
        identity = Identity(settings.node_id)
        self.tier = TierAccess(
            tier,
            identity,
            rng=rng,
            executor=executor,
            metrics=metrics,
            timing=settings.timing,
        )
        self._remote_ports = remote
        self.context = NodeContext(
            settings=settings,
            clock=clock,
            rng=rng,
            net=net,
            executor=executor,
            disks=disks,
            store=store,
            pool=IoPool(
                store,
                executor,
                clock,
                metrics,
                workers=settings.io_workers,
                group_items_max=settings.group_items_max,
                sync_on_loop_ms_max=settings.sync_on_loop_ms_max,
            ),
            cache=TailCache(settings.tail_cache_bytes),
            metrics=metrics,
            identity=identity,
            peers=Peers(settings.transport),
            producer_fences=ProducerFences(),
            tasks=Tasks(self._give_up),
        )
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Set with an exception when the node can't go on."""
        self._is_stopping = False
        self._background: list[asyncio.Task[None]] = []
        self._make_registry()
        self._make_services()
        self._make_membership()

    # --- put together ---------------------------------------------------------------------------

    def _make_registry(self) -> None:
        """Make the parts that hold replicas, and those that give them roles by the coordinator's
        records."""
        context = self.context
        self._readers, self._digest_queue = Readers(), DigestQueue()
        self._report, self._lease = NodeReport(), Lease(context.clock)
        self._coordinator = CoordinatorLink(context)
        self._links = LeaderLinks(context)
        self.mirror = TopicMirror()
        self.replicas = ReplicaTable(self._readers, self.mirror)
        self.leaders = Leaders(self.replicas, context.identity.node_id, context.peers)
        self._memory_room = MemoryRoom(context.clock, context.disks.memory)
        self.orders = Orders(context.identity)
        self._damage = Damage(context, self._report, self._readers)
        self._reading = ReplicaReading(context, self._damage)
        self._deletions = FileDeletions(context, self.replicas, self.orders, self._report)
        self._seals = SealFinisher(
            context, self.orders, self._damage, self._readers, self._digest_queue
        )
        self._replication = ReplicationService(context, self.replicas, self.leaders, self._reading)
        self._assignments = Assignments(
            leading=LeaderParts(
                context=context,
                coordinator=self._coordinator,
                report=self._report,
                lease=self._lease,
                damage=self._damage,
                readers=self._readers,
                ticks=self.leaders.ticks,
            ),
            table=self.replicas,
            leaders=self.leaders,
            orders=self.orders,
            links=self._links,
            seals=self._seals,
            digests=self._digest_queue,
            on_leader=self._replication.leader_created,
        )

    def _make_services(self) -> None:
        """Make the services for clients and the coordinator. Producers and readers have a queue of
        heavy work each, so that readers keep no producer waiting."""
        context, table = self.context, self.replicas
        for_readers = HeavyWork(context.executor)
        self._remote = self._remote_reading() if self._remote_ports is not None else None
        remote = RemoteSegments(
            self._remote, table, context.clock, partial(segment_at, self._coordinator)
        )
        self._producer_ids = ProducerIds(context, self._coordinator)
        self.metadata = MetadataService(context, self._coordinator, self.mirror, table)
        self.data = DataService(
            context,
            self._coordinator,
            self._producer_ids,
            ProduceHandler(context, self.leaders, HeavyWork(context.executor), self._memory_room),
            FetchHandler(
                context,
                table,
                self._readers,
                self._reading,
                for_readers,
                remote,
                silent_ms=self._silent_ms,
            ),
            QueryHandler(context, table, self._reading, for_readers, remote),
        )
        aside = SettingAside(context.store, table, self._damage)
        salvage = Salvage(context, table, self.orders, aside)
        self._copier = SegmentCopier(
            context=context,
            table=table,
            orders=self.orders,
            damage=self._damage,
            reading=self._reading,
            seals=self._seals,
            aside=aside,
        )
        self._orders_service = NodeService(
            context,
            fencing=Fencing(context, table, self.orders, self._damage, salvage, self._seals),
            opening=ReplicaOpening(context, table, self.orders),
            write_backs=WriteBacks(context.peers, self._copier, salvage),
            leader_orders=LeaderOrders(context, table, self.leaders),
            tier_orders=self._tier_orders() if self.tier.is_set_up else None,
        )
        self._listeners = Listeners(context)

    def _silent_ms(self) -> int:
        """Return the milliseconds since the topics known here were the newest; 0 while the lease is
        valid."""
        if self._lease.is_valid:
            return 0
        return self.mirror.age_ms(self.context.clock.monotonic_ms())

    def _tier_orders(self) -> "TierOrders":
        # Its libraries are for nodes with an object store.
        from icecore_node.remote.write.copy_check import CopyCheck
        from icecore_node.remote.write.sweeping import Sweeper
        from icecore_node.remote.write.tier_evidence import TierEvidence
        from icecore_node.remote.write.tier_tables import TierTables
        from icecore_node.remote.write.uploads import Uploads
        from icecore_node.serving.orders.tier_orders import TierOrders

        context, access = self.context, self.tier
        ask = self._coordinator.describe_tiered
        evidence = TierEvidence(self.mirror, ask, context.metrics)
        return TierOrders(
            access,
            uploads=Uploads(
                context, access, self.replicas, self.orders, self._reading, self._damage
            ),
            tables=TierTables(context, access, evidence),
            sweeper=Sweeper(context, access, evidence),
            copies=CopyCheck(context, access),
        )

    def _remote_reading(self) -> "RemoteReading":
        # Its libraries are for nodes with an object store.
        from icecore_node.remote.read.reading import make_remote_reading

        assert self._remote_ports is not None, "only called with an object store"
        ask = self._coordinator.describe_tiered
        return make_remote_reading(self.context, GuardedReader(self.tier), self._remote_ports, ask)

    async def _bucket_numbers(self) -> ToldBucket:
        # Its libraries are for nodes with an object store.
        from icecore_node.remote.verify.bucket import read_numbers

        found = await read_numbers(self.tier.unchecked_store, self.context.identity.cluster_id)
        return ToldBucket(segment_ids_max=found.segment_ids_max, attempts_max=found.attempts_max)

    def _make_membership(self) -> None:
        """Make the parts for joining the cluster, heartbeats and leaving."""
        context, table = self.context, self.replicas
        delete, drop = self._deletions.order, self._deletions.drop_surplus
        self._following = TopicFollowing(context, self._coordinator, self.mirror)
        updates = Updates(
            context, table, self.leaders, self._assignments, delete, drop, self._following
        )
        telling = InventoryTelling(
            context,
            self._folder,
            self._coordinator,
            table,
            self.mirror,
            self._bucket_numbers if self.tier.is_set_up else None,
        )
        self._heartbeats = Heartbeats(
            context,
            self._coordinator,
            lease=self._lease,
            report=self._report,
            disk_report=DiskReport(
                context.executor,
                self._folder,
                table,
                context.changed,
                context.settings.disk_limits,
            ),
            standing=updates.standing,
            on_update=updates.take,
            on_refused=telling.heard,
            store=self.tier,
        )
        self._registration = NodeRegistration(
            context, self._folder, self._coordinator, self._heartbeats, table, delete, telling
        )
        self.condition = Condition(context, self._lease, self._report)
        self._leaving = Leaving(context, self._heartbeats, table, self.leaders, self.ended)

    # --- up -------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Recover, listen, register and begin to send heartbeats.

        Raises ConfigurationError (port taken), WrongClusterError, StorageError.
        """
        context, table = self.context, self.replicas
        loop = asyncio.get_running_loop()
        context.disks.tell(lambda lost, why: loop.call_soon_threadsafe(self._disk_lost, lost, why))
        recovered = await context.executor.run(context.store.start_up)
        for found in recovered:
            take_in(context, table, self._digest_queue, found)
            if found.is_vanished:
                self._report.report_vanished(found.identity.segment_id)
        self.condition.is_recovered = True
        listeners = self._listeners
        await listeners.start(self._handlers())
        context.identity.begin(self._folder, listeners.address, listeners.native_address)
        inventory = [inventory_of(found) for found in recovered]
        await self._registration.register(inventory)
        digests = DigestReporter(
            context, self._coordinator, self._digest_queue, self._damage, self._reading
        )
        self._begin(self._registration.stay(inventory))
        if self.tier.is_set_up:
            self._begin(self.tier.run())
        self._begin(self._following.run())
        self._begin(self._producer_ids.run())
        self._begin(self._tick())
        self._begin(self._sync_index())
        self._begin(IndexMaintainer(context).run())
        self._begin(digests.run())
        self._begin(Scrubber(context, table, self._reading).run())
        self._begin(DiskWatch(context, self._report, self._assignments.space).run())

    async def until_counted_on(self) -> None:
        """Return when the coordinator answered a heartbeat: from now on it gives this node work.

        Raises what ended the node instead.
        """
        heartbeats = self._heartbeats
        self.ended.add_done_callback(lambda _: heartbeats.heard.set())
        while not heartbeats.was_heard and not self.ended.done():
            heartbeats.heard.clear()
            await heartbeats.heard.wait()
        if self.ended.done():
            self.ended.result()

    def _handlers(self) -> Handlers:
        gate = Gate(self.context.identity)
        return Handlers(
            unary={
                **gate.for_clients(self.data.handlers()),
                **gate.for_peers(self.metadata.handlers()),
                **gate.for_coordinator(self._orders_service.handlers()),
                **gate.for_peers(self._replication.handlers()),
            },
            streams={REPLICATION["Replicate"]: gate.for_followers(self._replication.replicate)},
            direct=gate.for_producers(self.data.direct_handlers()),
            is_ready=lambda: not self.condition.why_not_ready(),
        )

    # --- what goes on ---------------------------------------------------------------------------

    def _begin(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._background.append(task)
        task.add_done_callback(self._background_ended)

    def _background_ended(self, task: "asyncio.Task[None]") -> None:
        """Background work never ends by itself."""
        if not task.cancelled():
            self._give_up(task.exception() or UnavailableError("background work ended"))

    def _give_up(self, error: BaseException) -> None:
        """End the node after an unexpected error, and log it (R63). Only start-up can tell what is
        half done."""
        if self.ended.done():
            return
        event(_log, logging.CRITICAL, "node_failed", error=error, exc_info=error)
        if not self._is_stopping:
            self.ended.set_exception(error)

    def _disk_lost(self, segment_ids: Sequence[SegmentId], why: str) -> None:
        """Mark the replicas of a lost disk UNKNOWN, durably, and report them (R83)."""
        for replica in filter(None, map(self.replicas.get, segment_ids)):
            self._damage.condemn(replica, why)

    async def _tick(self) -> None:
        """Tick the cores of leaders. They check the lease then."""
        context = self.context
        lease_valid = False
        while True:
            before_ms = context.clock.monotonic_ms()
            await asyncio.sleep(TICK_S)
            self.condition.turned()
            late_ms = context.clock.monotonic_ms() - before_ms - TICK_S * 1000
            context.metrics.event_loop_lag_seconds.observe(max(0.0, late_ms / 1000))
            due = self.leaders.due(context.clock.monotonic_ms())
            if self._lease.is_valid != lease_valid:
                lease_valid = not lease_valid
                if not lease_valid:
                    context.metrics.leases_lost.inc()
                    self._readers.wake_all()  # whoever waits may wait in vain
                due = self.leaders.all()  # also of those that rest the core must know it
            for leader in due:
                leader.tick()
            self._memory_room.tick()

    async def _sync_index(self) -> None:
        while True:
            await asyncio.sleep(self.context.settings.timing.index_sync_ms / 1000)
            await self.context.executor.run(self.context.store.index.flush)

    # --- down -----------------------------------------------------------------------------------

    async def leave(self) -> None:
        """Go on serving until others do without us, but not for ever; ``stop`` comes after it."""
        self.condition.is_leaving = True
        await self._leaving.leave()

    async def stop(self) -> None:
        """Answer what is in flight, finish the logs."""
        self._is_stopping = True
        await self._listeners.stop(STOP_GRACE_S)
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self._links.close()
        self._assignments.space.close()
        await self._seals.close()
        await self._damage.close()
        try:
            await self.context.pool.probe()
        except IcecoreError as error:
            event(_log, logging.ERROR, "appends_unfinished", error=error)
        self._deletions.close()
        if self._remote is not None:
            await self._remote.close()
        self.context.pool.close()
        await self.context.executor.run(self.context.store.close)
        await self.context.net.close()
        self.context.executor.close()
