"""State that all parts of one running node share: its identity, its ports, its peers and its
settings.

Built once by ``icecore_node/node.py`` and never changed; what does change is in parts that change
themselves: ``Identity``, ``Peers``, ``ProducerFences``. A component that needs one part alone is
given that one. This module is the lowest of those that run on the loop: it imports none of the
others.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any

from icecore.errors import UnavailableError
from icecore.model import (
    FIRST_PRODUCER_EPOCH,
    NodeId,
    NodeInfo,
    ProducerEpoch,
    ProducerId,
    SegmentId,
    is_named_id,
)
from icecore.process.log import (
    event,
)
from icecore.rpc.addresses import (
    Transport,
    peer_address,
)
from icecore.rpc.ports import Clock, Net, Rng
from icecore_node.config import NodeSettings
from icecore_node.identity.identity import Identity
from icecore_node.io.io_pool import IoPool, LogIo
from icecore_node.io.tail_cache import TailCache
from icecore_node.metrics import NodeMetrics
from icecore_node.ports import Executor
from icecore_node.storage.port import Store, StoredDisks
from icecore_replication.checked import Checked, CoreT

_log = logging.getLogger(__name__)


async def end_task(task: "asyncio.Task[None]") -> None:
    """Cancel a task of ours and wait for its end; for ``finally`` blocks.

    Raises what the task has failed with, but never in the place of our own cancellation, and it
    swallows none: a loop that goes on after it was cancelled keeps its node from stopping.
    """
    task.cancel()
    await asyncio.wait([task])
    ours = asyncio.current_task()
    if not task.cancelled() and not (ours is not None and ours.cancelling()):
        task.result()


class Peers:
    """All nodes as last pushed by the coordinator, ourselves included.

    Args:
        transport: How they may be called.
    """

    def __init__(self, transport: Transport = "auto") -> None:
        self._transport: Transport = transport
        self.nodes: dict[NodeId, NodeInfo] = {}

    def learn(self, node: NodeInfo) -> bool:
        """Take in a node as it is now. Return whether anything changed."""
        is_new = self.nodes.get(node.node_id) != node
        self.nodes[node.node_id] = node
        return is_new

    def forget_others(self, node_ids: Iterable[NodeId]) -> None:
        """These are all that there are: an operator has forgotten the others (R106)."""
        for node_id in self.nodes.keys() - frozenset(node_ids):
            del self.nodes[node_id]

    def get(self, node_id: NodeId) -> NodeInfo | None:
        """Return a node; None when it is not known here."""
        return self.nodes.get(node_id)

    def address(self, node_id: NodeId) -> str:
        """Return the address at which a peer is called. Raises UnavailableError when it is not
        known."""
        peer = self.nodes.get(node_id)
        if peer is None:
            raise UnavailableError(f"node {node_id} is not known here yet")
        return peer_address(peer, self._transport)


class ProducerFences:
    """Lowest epochs of named producers that may append to segments led here (R48)."""

    def __init__(self) -> None:
        self.min_epochs: dict[ProducerId, ProducerEpoch] = {}
        """Lowest allowed epoch by producer id."""

    def fence(self, producer_id: ProducerId, min_epoch: ProducerEpoch) -> None:
        """Refuse older epochs of a named producer from now on."""
        self.min_epochs[producer_id] = max(self.min_epoch(producer_id), min_epoch)

    def forget(self, producer_ids: Iterable[ProducerId]) -> None:
        """These names were deleted: an id that only names have is refused as unknown then."""
        for each in producer_ids:
            if is_named_id(each):
                self.min_epochs.pop(each, None)

    def min_epoch(self, producer_id: ProducerId) -> ProducerEpoch:
        """The lowest epoch that may append."""
        return self.min_epochs.get(producer_id, FIRST_PRODUCER_EPOCH)


class Tasks:
    """Background tasks that no caller awaits."""

    def __init__(self, on_unexpected: Callable[[BaseException], None]) -> None:
        """``on_unexpected`` is called with unexpected errors: the node ends (R63)."""
        self.on_unexpected = on_unexpected

    def start(self, work: Coroutine[object, object, None]) -> "asyncio.Task[None]":
        """Do something beside all else; an error there must not be silent."""
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.on_unexpected(error)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeContext:
    """One node process: its ports, and what changes by itself."""

    settings: NodeSettings
    clock: Clock
    rng: Rng
    net: Net
    executor: Executor
    disks: StoredDisks
    store: Store
    pool: IoPool
    cache: TailCache
    metrics: NodeMetrics
    identity: Identity
    peers: Peers
    producer_fences: ProducerFences
    tasks: Tasks
    changed: dict[SegmentId, None] = field(default_factory=dict)
    """See ``LogIo``."""

    def checked(self, core: CoreT) -> Checked[CoreT]:
        """Return how a role steps its core; every core of this node comes through here.

        Raises InvariantError when the core is wrong from the start.
        """
        return Checked(core, check_every_steps=self.settings.check_every_steps)

    def fail_stop(self, checked: Checked[Any], broken: AssertionError) -> None:
        """End the node: a role's state is wrong, or the role did something that its core did not
        ask for.

        The role does nothing more, so no answer rests on the wrong state, and the node ends (R63).
        The leaders here are replaced (R35), and start-up checks all logs again.
        """
        checked.close()
        what = str(broken).partition("\n")[0]
        segment_id = checked.core.segment.segment_id
        event(_log, logging.CRITICAL, "invariant_broken", segment_id=segment_id, what=what)
        self.tasks.on_unexpected(broken)

    @property
    def log_io(self) -> LogIo:
        """The store, workers and cache that logs use."""
        return LogIo(self.store, self.pool, self.cache, self.changed)
