"""One storage node, put together: start-up, serving, the background work, and the way down.

``Node`` gets its ports from outside (``icecore_node/__main__.py`` gives real ones, the simulator
its own) and starts in this order: recover the data folder, listen (so the address is known),
register, persist the new incarnation, beat. Only then do assignments give replicas their roles. A
node that is told of a newer incarnation of itself, or of another cluster, ends.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine

from icecore.codec.batch import parse_header
from icecore.errors import IcecoreError, UnavailableError
from icecore.model import NodeState, SegmentState
from icecore.rpc import convert
from icecore.rpc.methods import REPLICATION
from icecore.rpc.ports import Clock, Handlers, Net, Rng, Server
from icecore.v1 import coordinator_pb2
from icecore_node.config import NodeSettings
from icecore_node.context import NodeContext
from icecore_node.io.io_pool import IoPool
from icecore_node.io.tail_cache import TailCache
from icecore_node.link.coordinator_link import CoordinatorLink
from icecore_node.metrics import NodeMetrics
from icecore_node.ports import Executor, FileSystem, Folder
from icecore_node.registry.replicas import Replicas
from icecore_node.replica.replica import Replica
from icecore_node.roles.receiver import LeaderLinks
from icecore_node.serving.data_service import DataService
from icecore_node.serving.disk_report import DiskReport
from icecore_node.serving.node_service import NodeCommands
from icecore_node.serving.registration import Gate, Registration, inventory_of
from icecore_node.serving.sender import ReplicateService
from icecore_node.storage.replica_catalog import FoundReplica
from icecore_node.storage.replica_store import ReplicaStore
from icecore_node.upkeep.copying import SegmentCopier
from icecore_node.upkeep.deletions import Deletions
from icecore_node.upkeep.digests import DigestReporter
from icecore_node.upkeep.disk_watermarks import DiskWatch
from icecore_node.upkeep.scrub import Scrubber
from icecore_replication import inputs
from icecore_replication.producers import ProducerTable

_log = logging.getLogger(__name__)

TICK_S = 0.1
INDEX_SYNC_S = 1.0
STOP_GRACE_S = 0.5
SHRINK_WAIT_MS = 1_000.0
"""Of a leave: leaders need a few round trips to the coordinator."""


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
        files: FileSystem,
        store: ReplicaStore,
        folder: Folder,
        metrics: NodeMetrics,
    ) -> None:
        self._folder = folder
        pool = IoPool(
            store,
            executor,
            clock,
            metrics,
            workers=settings.io_workers,
            group_items_max=settings.group_items_max,
        )
        self.context = context = NodeContext(
            node_id=settings.node_id,
            settings=settings,
            clock=clock,
            rng=rng,
            net=net,
            executor=executor,
            files=files,
            store=store,
            pool=pool,
            cache=TailCache(settings.tail_cache_bytes),
            metrics=metrics,
        )
        self._coordinator = CoordinatorLink(
            context, self._on_update, lambda: self.replicas.standing()
        )
        self._links = LeaderLinks(context)
        self.replicas = Replicas(context, self._coordinator, self._links)
        self._coordinator.disk_report = DiskReport(context, folder, self.replicas)
        self._replicate = ReplicateService(context, self.replicas)
        self.replicas.on_leader_created = self._replicate.leader_created
        self._copier = SegmentCopier(context, self.replicas)
        self._deletions = Deletions(context, self.replicas)
        self._commands = NodeCommands(context, self.replicas, self._copier)
        self._registration = Registration(
            context, folder, self._coordinator, self.replicas, self._deletions.order
        )
        self.data = DataService(context, self._coordinator, self.replicas)
        self._digests = DigestReporter(context, self._coordinator, self.replicas)
        self.replicas.on_sealed = self._digests.sealed
        self.replicas.on_digest_open = self._digests.open_again
        self._scrubber = Scrubber(context, self.replicas)
        self._server: Server | None = None
        self._is_stopping = False
        context.on_unexpected = self._give_up
        self._background: list[asyncio.Task[None]] = []
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Set with an exception when the node can't go on."""

    # --- up -------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Recover, listen, register and begin to beat.

        Raises ConfigurationError (port taken), WrongClusterError, StorageError.
        """
        context = self.context
        recovered = await context.executor.run(context.store.start_up)
        context.cluster_id = self._folder.cluster_id
        for found in recovered:
            self._adopt(found)
        self._server = await context.net.serve(context.settings.listen, self._handlers())
        context.address = context.settings.advertise or self._server.address
        inventory = [inventory_of(found) for found in recovered]
        await self._registration.register(inventory)
        self._begin(self._registration.stay(inventory))
        self._begin(self._tick())
        self._begin(self._sync_index())
        self._begin(self._digests.run())
        self._begin(self._scrubber.run())
        self._begin(DiskWatch(context, self._coordinator, self.replicas).run())

    async def until_counted_on(self) -> None:
        """Return when the coordinator answered a beat: from now on it gives this node work.

        Raises what ended the node instead.
        """
        coordinator = self._coordinator
        self.ended.add_done_callback(lambda _: coordinator.heard.set())
        while not coordinator.was_heard and not self.ended.done():
            coordinator.heard.clear()
            await coordinator.heard.wait()
        if self.ended.done():
            self.ended.result()

    def _handlers(self) -> Handlers:
        gate = Gate(self.context)
        return Handlers(
            unary={
                **gate.for_clients(self.data.handlers()),
                **gate.for_coordinator(self._commands.handlers()),
                **gate.for_peers(self._copier.handlers()),
            },
            streams={REPLICATION["Replicate"]: gate.for_followers(self._replicate.replicate)},
        )

    def _adopt(self, found: FoundReplica) -> None:
        """A replica of an earlier process: it may follow or serve, never lead."""
        table = None
        if found.sealed_end_offset is None:
            try:
                table = ProducerTable(found.producer_snapshot)
                for raw in found.headers:
                    table.apply_header(parse_header(raw))
            except IcecoreError as error:  # costs this replica alone (R55)
                found.intact, found.why = False, f"its producers are not known: {error}"
                table = ProducerTable()
        replica = Replica(self.context, found.identity, found.tail, table, intact=found.intact)
        replica.promised_epoch = max(
            found.identity.epoch, self.context.store.promises.epoch_of(found.identity.segment_id)
        )
        replica.sealed_end_offset = found.sealed_end_offset
        replica.full_digest = found.full_digest
        self.replicas.add(replica)
        if replica.sealed and replica.intact and not found.full_digest:
            self._digests.sealed(replica)
        if not found.intact:
            _log.warning("replica UNKNOWN segment_id=%d why=%s", replica.segment_id, found.why)

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
        """What is half done is only known to start-up: the node ends, loudly (R63)."""
        if self.ended.done():
            return
        _log.critical("node can't go on error=%s", error, exc_info=error)
        if not self._is_stopping:
            self.ended.set_exception(error)

    def _on_update(self, update: coordinator_pb2.HeartbeatResponse) -> None:
        """Assignments, peers and delete intents from the coordinator."""
        context = self.context
        context.token = max(context.token, update.token)
        for fence in update.producer_fences:  # before we lead anything more (R48)
            context.fence_producer(fence.producer_id, fence.min_epoch)
        for message in update.nodes:
            node = convert.node_from_proto(message)
            if context.peers.get(node.node_id) != node:
                context.peers[node.node_id] = node
                for leader in self.replicas.leaders():
                    leader.feed(inputs.NodeChanged(node))
        for assignment in update.assignments:
            self.replicas.apply(convert.segment_from_proto(assignment))
        for progress in update.partitions:
            self.replicas.note_topic(
                progress.topic_id,
                progress.partition,
                progress.topic,
                is_deleted=progress.deleted,
            )
            self.replicas.note_partition(
                progress.topic_id,
                progress.partition,
                progress.log_start_offset,
                progress.tail_segment_id,
                tuple(progress.tail_replicas),
                progress.tail_base_offset,
            )
        for segment_id in update.delete_segment_ids:
            self._deletions.order(segment_id)

    async def _tick(self) -> None:
        """Time for the cores; and the lease, when it changed."""
        context = self.context
        lease_valid = False
        while True:
            before_ms = context.clock.monotonic_ms()
            await asyncio.sleep(TICK_S)
            late_ms = context.clock.monotonic_ms() - before_ms - TICK_S * 1000
            context.metrics.event_loop_lag_seconds.observe(max(0.0, late_ms / 1000))
            happened: list[inputs.LeaderInput] = [inputs.Tick()]
            if self._coordinator.lease_valid != lease_valid:
                lease_valid = self._coordinator.lease_valid
                happened.append(inputs.LeaseChanged(lease_valid))
                if not lease_valid:
                    context.metrics.leases_lost.inc()
            for leader in self.replicas.leaders():
                leader.feed(*happened)

    async def _sync_index(self) -> None:
        while True:
            await asyncio.sleep(INDEX_SYNC_S)
            await self.context.executor.run(self.context.store.sync_index)

    # --- down -----------------------------------------------------------------------------------

    async def leave(self) -> None:
        """Go on serving until others do without us, for ``leave_wait_ms`` at most; then ``stop``.

        First leadership moves, then leaders take us out of their in-sync sets: so nobody who
        produces has to wait for us after we are gone. Returns soon when nobody stays who could
        take over, or there is no coordinator to see to it.
        """
        context, link = self.context, self._coordinator
        began_ms = context.clock.monotonic_ms()
        link.announce()
        await self._wait_while(lambda: not link.may_leave, context.settings.leave_wait_ms)
        if not self._others_stay():
            _log.info("nobody takes over leads=%d", len(self.replicas.leaders()))
            return
        link.announce(leaving=True)
        await self._wait_while(self._is_waited_for, SHRINK_WAIT_MS)
        _log.info(
            "handed over leads=%d took_ms=%d",
            len(self.replicas.leaders()),
            context.clock.monotonic_ms() - began_ms,
        )

    async def _wait_while(self, is_waiting: Callable[[], bool], at_most_ms: float) -> None:
        """Look again whenever the coordinator was heard; only it changes what we wait for."""
        heard = self._coordinator.heard
        self.ended.add_done_callback(lambda _: heard.set())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(at_most_ms / 1000):
                while is_waiting() and self._others_stay():
                    heard.clear()
                    await heard.wait()

    def _others_stay(self) -> bool:
        """Whether there are a node that could take over and a coordinator to see to it."""
        context = self.context
        return (
            not self.ended.done()
            and self._coordinator.is_connected
            and any(
                peer.state is NodeState.UP and node_id != context.node_id
                for node_id, peer in context.peers.items()
            )
        )

    def _is_waited_for(self) -> bool:
        """Whether some leader still counts on what we store."""
        return any(
            replica.segment is not None
            and replica.segment.state is SegmentState.ACTIVE
            and self.context.node_id in replica.segment.isr
            for replica in self.replicas
        )

    async def stop(self) -> None:
        """Answer what is in flight, finish the logs."""
        self._is_stopping = True
        if self._server is not None:
            await self._server.stop(STOP_GRACE_S)
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self._links.close()
        await self.replicas.close()
        try:
            await self.context.pool.probe()
        except IcecoreError as error:
            _log.error("unfinished appends error=%s", error)
        self._deletions.close()
        self.context.pool.close()
        await self.context.executor.run(self.context.store.close)
        await self.context.net.close()
        self.context.executor.close()

    def segment_counts(self) -> dict[str, int]:
        """How many replicas there are by state, for the metrics."""
        counts: dict[str, int] = {}
        for replica in self.replicas:
            if not replica.intact:
                state = "unknown"
            elif replica.sealed:
                state = SegmentState.SEALED.name.lower()
            elif replica.leader is not None or replica.follower is not None:
                state = SegmentState.ACTIVE.name.lower()
            else:
                state = "idle"
            counts[state] = counts.get(state, 0) + 1
        return counts
