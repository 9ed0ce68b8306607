"""A coordinator, composed: ledger, sessions, recovery, sealing, auditing, and the loop that looks.

The loop wakes when a node or a tail was lost and every second anyway, asks each part what is
needed, and starts it as a task. Nothing is remembered between turns that could not be found again
by looking, so that a restarted coordinator goes on where the last one stopped.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

from icecore.errors import NotCoordinatorError
from icecore.rpc.ports import Clock, Handlers, Net, Rng, Server
from icecore_coordinator.config import Timing
from icecore_coordinator.decisions.topic_changes import missing_partitions
from icecore_coordinator.ledger import Ledger
from icecore_coordinator.nodes.node_calls import NodeCalls
from icecore_coordinator.nodes.node_sessions import NodeSessions
from icecore_coordinator.services.admin_handlers import AdminHandlers
from icecore_coordinator.services.admin_messages import Describer
from icecore_coordinator.services.lossy_handlers import LossyHandlers
from icecore_coordinator.services.node_handlers import NodeHandlers
from icecore_coordinator.state.records import Change, NodeRecord, PartitionRecord, TopicRecord
from icecore_coordinator.stores.metadata_store import MetadataStore
from icecore_coordinator.work.auditor import Auditor
from icecore_coordinator.work.deletions import Deletions
from icecore_coordinator.work.leaving import HandOver
from icecore_coordinator.work.producer_naming import ProducerNaming
from icecore_coordinator.work.recovery import Recovery
from icecore_coordinator.work.seal_checking import SealChecker
from icecore_coordinator.work.sealing import LiveSealing
from icecore_coordinator.work.segment_opening import SegmentOpening, TailOpener
from icecore_coordinator.work.start_states import StartStates

log = logging.getLogger(__name__)

SEGMENTS_PER_RECOVERY = 512
LOOK_AGAIN_MS = 1_000.0
"""Everything is looked at this often even when nothing seems to have changed."""


class Coordinator:
    """The control plane of one cluster. ``start``, then ``stop``; not to be started again.

    Args:
        net: To nodes and from everyone.
        store: Exclusive to this object; closed by ``stop``.
        clock: Of leases and time stamps.
        rng: Of identifiers.
        timing: How long to wait for what.
    """

    def __init__(
        self, net: Net, store: MetadataStore, clock: Clock, rng: Rng, timing: Timing | None = None
    ) -> None:
        self.timing = timing or Timing()
        self.ledger = Ledger(store, rng)
        self._net = net
        self._store = store
        self._clock = clock
        self._poke = asyncio.Event()
        timing, ledger = self.timing, self.ledger
        calls = NodeCalls(net, ledger)
        self.sessions = NodeSessions(ledger.state, clock, timing.lease_ms, self._poke.set)
        opening = SegmentOpening(ledger, calls, self.sessions, clock, timing)
        starts = StartStates(ledger, calls, self.sessions, clock, timing)
        self._opener = TailOpener(ledger, starts, opening, clock, timing)
        self.recovery = Recovery(ledger, calls, self.sessions, opening, clock, timing)
        checker = SealChecker(ledger, calls, self.sessions, clock)
        sealing = LiveSealing(ledger, opening, checker, clock, timing)
        request = self.recovery.request
        self._auditor = Auditor(
            ledger, calls, self.sessions, opening, sealing, request, clock, timing
        )
        self._hand_over = HandOver(ledger, calls, self.sessions, sealing, request, clock, timing)
        self._deletions = Deletions(ledger, clock)
        describer = Describer(ledger, self.sessions, self.recovery)
        naming = ProducerNaming(ledger, calls, clock)
        nodes = NodeHandlers(ledger, self.sessions, sealing, naming, timing, self._poke)
        admin = AdminHandlers(
            ledger, calls, self._opener, self._deletions, describer, clock, rng, timing
        )
        lossy = LossyHandlers(ledger, self.sessions, self.recovery, clock)
        self._handlers = _merged(nodes.handlers(), admin.handlers(), lossy.handlers())
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._server: Server | None = None

    @property
    def address(self) -> str:
        """``host:port`` really bound; empty before ``start``."""
        return self._server.address if self._server else ""

    async def start(self, listen: str) -> None:
        """Take over the cluster and serve.

        Raises:
            ConfigurationError: the address can't be bound, or must not be without TLS.
            StorageError: the metadata store failed.
        """
        await self.ledger.open()
        self.sessions.token = self.ledger.token
        for change in missing_partitions(self.ledger.state):
            await self.ledger.decide(lambda state, each=change: each)  # type: ignore[misc]
        self.ledger.subscribe(self._on_change)
        self.sessions.start()
        self._server = await self._net.serve(listen, self._handlers)
        self._spawn(self._tick(), "tick")
        self._spawn(self._heal(), "heal")
        self._spawn(self._audit(), "audit")
        self._spawn(self._repair(), "repair")
        self._spawn(self._confirm(), "confirm")
        log.info(
            "event=started cluster=%s token=%d address=%s segments=%d",
            *(self.ledger.state.cluster_id.hex(), self.ledger.token, self.address),
            len(self.ledger.state.segments),
        )

    async def run(self) -> None:
        """Wait until this coordinator is one no more. Raises NotCoordinatorError then."""
        await self.ledger.lost.wait()
        raise NotCoordinatorError("another coordinator took over, or the metadata store failed")

    async def stop(self) -> None:
        """Stop serving and release the store. Idempotent."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._server is not None:
            await self._server.stop(grace_s=0.5)
            self._server = None
        await self._store.close()

    def _on_change(self, change: Change) -> None:
        self.sessions.on_change(change)
        for record in change.puts:
            is_open = isinstance(record, PartitionRecord) and not record.tail_segment_id
            if is_open or isinstance(record, NodeRecord | TopicRecord):
                self._poke.set()

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks[task] = None
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if task.cancelled() or (error := task.exception()) is None:
            return
        log.error("event=task_failed task=%s", task.get_name(), exc_info=error)
        if task.get_name() in ("tick", "heal", "audit", "repair", "confirm"):
            # Without its loops this process would only look alive.
            self.ledger.lost.set()

    async def _tick(self) -> None:
        while True:
            self.sessions.tick()
            await asyncio.sleep(self.timing.tick_ms / 1000)

    async def _heal(self) -> None:
        """Start whatever is needed; look when something changed, and now and then anyway."""
        looked = -LOOK_AGAIN_MS
        while True:
            now = self._clock.monotonic_ms()
            if self._poke.is_set() or now - looked >= LOOK_AGAIN_MS or self._has_waiting():
                self._poke.clear()
                looked = now
                self._start_needed()
                await asyncio.sleep(0)  # let what was started take its keys before the next look
            try:
                async with asyncio.timeout(self.timing.tick_ms / 1000):
                    await self._poke.wait()
            except TimeoutError:
                continue

    def _has_waiting(self) -> bool:
        return self.recovery.is_waiting or self._opener.is_waiting or self._hand_over.is_busy

    def _start_needed(self) -> None:
        usual: list[int] = []
        unclean: list[int] = []  # apart: nodes may have to read whole logs for them (R46)
        for segment_id in self.recovery.needed():
            is_unclean = self.ledger.state.segments[segment_id].is_unclean_allowed
            (unclean if is_unclean else usual).append(segment_id)
        for segment_ids in (usual, unclean):
            for at in range(0, len(segment_ids), SEGMENTS_PER_RECOVERY):
                batch = segment_ids[at : at + SEGMENTS_PER_RECOVERY]
                self._spawn(self.recovery.recover(batch), "recover")
        keys = self._opener.needed()
        for at in range(0, len(keys), SEGMENTS_PER_RECOVERY):
            batch_of_keys = keys[at : at + SEGMENTS_PER_RECOVERY]
            self._spawn(self._opener.open(batch_of_keys), "open_tails")
        if leaving := self._hand_over.needed():
            self._spawn(self._hand_over.hand_over(leaving), "hand_over")

    async def _confirm(self) -> None:
        """One transaction a second: it stores what was heard, or shows that it still could."""
        while True:
            await asyncio.sleep(self.timing.audit_ms / 1000)
            if heard := self.sessions.heard.to_store():
                await self.ledger.decide_all(heard)
            else:
                await self.ledger.confirm()

    async def _repair(self) -> None:
        while True:
            await asyncio.sleep(self.timing.audit_ms / 1000)
            await self._auditor.repair()

    async def _audit(self) -> None:
        while True:
            await asyncio.sleep(self.timing.audit_ms / 1000)
            await self._auditor.audit()
            await self._deletions.look()


def _merged(*handlers: Handlers) -> Handlers:
    unary = {name: handler for each in handlers for name, handler in each.unary.items()}
    streams = {name: handler for each in handlers for name, handler in each.streams.items()}
    return Handlers(unary, streams)
