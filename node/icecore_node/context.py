"""What all parts of one running node share: its identity, its ports, its peers and its bounds.

Built once by ``icecore_node/node.py``. The lowest of the parts that run on the loop: it knows none
of the others, which are handed to who needs them. Only the loop touches it.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from icecore.errors import IcecoreError, UnavailableError, WrongClusterError
from icecore.model import NodeInfo
from icecore.rpc.ports import Clock, Net, Rng
from icecore_node.config import NodeSettings
from icecore_node.io.io_pool import IoPool
from icecore_node.io.tail_cache import TailCache
from icecore_node.metrics import NodeMetrics
from icecore_node.ports import Executor, FileSystem
from icecore_node.storage.replica_store import ReplicaStore
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


def _only_logged(error: BaseException) -> None:
    _log.critical("unexpected error=%r", error, exc_info=error)


@dataclass(slots=True)
class NodeContext:
    """One node process."""

    node_id: int
    settings: NodeSettings
    clock: Clock
    rng: Rng
    net: Net
    executor: Executor
    files: FileSystem
    store: ReplicaStore
    pool: IoPool
    cache: TailCache
    metrics: NodeMetrics
    cluster_id: bytes = b""
    incarnation: int = 0
    """0 until registered."""
    token: int = 0
    """Highest coordinator token seen; commands with a lower one are refused."""
    address: str = ""
    peers: dict[int, NodeInfo] = field(default_factory=dict)
    """All nodes as last pushed by the coordinator, ourselves included."""
    producer_fences: dict[int, int] = field(default_factory=dict)
    """Lowest epochs of named producers that may append to what we lead (R48)."""
    on_unexpected: Callable[[BaseException], None] = _only_logged
    """Told of errors that nobody expects: the node ends (R63)."""

    def start(self, work: Coroutine[object, object, None]) -> "asyncio.Task[None]":
        """Do something beside all else; nobody awaits it, so an error there must not be silent."""
        task = asyncio.get_running_loop().create_task(work)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: "asyncio.Task[None]") -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.on_unexpected(error)

    def checked(self, core: CoreT) -> Checked[CoreT]:
        """How a role steps its core; every core of this node comes through here.

        Raises InvariantError when the core is wrong from the start.
        """
        return Checked(core, check_every_steps=self.settings.check_every_steps)

    def fail_stop(self, checked: Checked[Any], broken: AssertionError) -> None:
        """What a role knows is wrong, or it did something that its core did not ask for.

        It does nothing more, so nobody is told anything that rests on it, and the node ends (R63).
        Whoever leads segments here is replaced (R35), and start-up looks at all logs again.
        """
        checked.close()
        what = str(broken).partition("\n")[0]
        segment_id = checked.core.segment.segment_id
        _log.critical("event=invariant_broken segment_id=%d what=%r", segment_id, what)
        self.on_unexpected(broken)

    async def has_space(self) -> bool:
        """Whether the disk has room for logs to grow; False as well while that is unknown."""
        try:
            _, free_bytes = await self.executor.run(self.files.space)
        except IcecoreError as error:
            _log.warning("how much space is left is unknown error=%s", error)
            return False
        return free_bytes >= 2 * self.settings.preallocate_bytes

    def peer_address(self, node_id: int) -> str:
        """Where a peer listens. Raises UnavailableError when it is not known."""
        peer = self.peers.get(node_id)
        if peer is None:
            raise UnavailableError(f"node {node_id} is not known here yet")
        return peer.address

    def fence_producer(self, producer_id: int, min_epoch: int) -> None:
        """Refuse older epochs of a named producer from now on."""
        known = self.producer_fences.get(producer_id, 0)
        self.producer_fences[producer_id] = max(known, min_epoch)

    def check_cluster(self, cluster_id: bytes, *, is_needed: bool = False) -> None:
        """Raises WrongClusterError when a request names another cluster (empty = any, unless one
        ``is_needed``), and UnavailableError while this node, new or with a new disk, belongs to
        none."""
        if is_needed and not cluster_id:
            raise WrongClusterError("the request names no cluster")
        if cluster_id and not self.cluster_id:
            raise UnavailableError("this node has not joined its cluster yet")
        if cluster_id and cluster_id != self.cluster_id:
            raise WrongClusterError(
                f"this node belongs to cluster {self.cluster_id.hex()}, "
                f"the request is for {cluster_id.hex()}"
            )
