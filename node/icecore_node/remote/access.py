"""Access of this node to its object store, or the reason why it has none.

A node serves even when its store is away or refuses. The store is tried again in the background,
and until then callers get the store's own error. Before anything else the cluster leaves its id
there, and another cluster's id is respected: two of them never share a prefix. The node remembers
what it found: where that is missing later, it writes nothing (``marker.py``).
"""

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from typing import Final

from icecore.errors import (
    IcecoreError,
    UnavailableError,
    UnsupportedError,
)
from icecore.process.log import event
from icecore.rpc.ports import Rng
from icecore_node.metrics import NodeMetrics
from icecore_node.ports import Executor
from icecore_node.remote.marker import (
    MARKER_KEY,
    STORE_ID_BYTES,
    BucketLostError,
    ClusterStore,
    Marker,
    find_marker,
    is_first_use,
)
from icecore_node.remote.ports import StoreUser, Table, TierPorts
from icecore_node.remote.store.object_store import (
    ByteRange,
    ObjectExistsError,
    ObjectInfo,
    ObjectStore,
    ObjectStoreError,
    check_store,
)
from icecore_node.storage.control.known_buckets import KnownBucket
from icecore_node.timing import NodeTiming

_log = logging.getLogger(__name__)

RETRY_MS_MAX: Final = 60_000
NEWS_MS: Final = 1_000
REFUSAL_MAX: Final = 500


class TierAccess:
    """The object store of one node, once it was looked at. Loop only.

    Args:
        ports: The object store; None when the node has none.
        identity: The node, and the object store that its cluster uses.
        rng: Makes the id of a store that is used for the first time.
        executor: Reads and writes what is remembered.
        metrics: Show whether the store is up.
        timing: Says how often the store is checked: credentials may expire, or their rights may
            change.
    """

    def __init__(
        self,
        ports: TierPorts | None,
        identity: StoreUser,
        *,
        rng: Rng,
        executor: Executor,
        metrics: NodeMetrics,
        timing: NodeTiming,
    ) -> None:
        self._ports = ports
        self._identity = identity
        self._rng = rng
        self._executor = executor
        self._known: KnownBucket | None = None
        self._metrics = metrics
        self._timing = timing
        self._problem: IcecoreError | None = (
            UnsupportedError("this node has no object store: its setting tier_url is empty")
            if ports is None
            else UnavailableError("the object store was not looked at yet: try again")
        )

    @property
    def is_set_up(self) -> bool:
        """Return whether the settings name a store."""
        return self._ports is not None

    @property
    def store(self) -> ObjectStore:
        """Return the store for use. Raises the error that prevents its use."""
        return self._checked().store

    @property
    def unchecked_store(self) -> ObjectStore:
        """Return the store for a look, whether or not it may be used. Only where it is set up."""
        assert self._ports is not None, "only called with an object store"
        return self._ports.store

    @property
    def cluster_id(self) -> bytes:
        """Id of the cluster to which the store belongs."""
        return self._identity.cluster_id

    @property
    def store_id(self) -> bytes:
        """Identity of the store, as its marker said; empty when it has none or was not seen yet."""
        with contextlib.suppress(ValueError):  # remembered of a marker that nobody checked yet
            return bytes.fromhex(self._known.store_id) if self._known is not None else b""
        return b""

    @property
    def usable_id(self) -> bytes:
        """The same while the store may be used, and empty while it may not."""
        return b"" if self._problem is not None else self.store_id

    @property
    def refusal(self) -> str:
        """Return why the store may not be used, until a person acts; empty = nothing is wrong, or
        it may pass by itself.
        """
        problem = self._problem
        is_passing = problem is None or problem.retriable or not self.is_set_up
        return "" if problem is None or is_passing else problem.message[:REFUSAL_MAX]

    def table(self, topic_id: bytes, topic: str) -> Table:
        """Return the table of a topic. Raises the error that prevents the store's use."""
        return self._checked().table_of(self.cluster_id, topic_id, topic)

    def _checked(self) -> TierPorts:
        if self._problem is not None:
            raise self._problem.again()
        self._check_heard_store()
        assert self._ports is not None, "no problem says that there is one"
        return self._ports

    def _check_heard_store(self) -> None:
        """Raises BucketLostError when the coordinator said that the cluster uses another one."""
        if self._identity.store_id and self._identity.store_id != self.store_id:
            raise BucketLostError(
                f"the object store of this node has id {self.store_id.hex() or 'none'}, its "
                f"cluster uses {self._identity.store_id.hex()}: give all nodes the same tier_url "
                "and tier_endpoint"
            )

    async def run(self) -> None:
        """Check the store at intervals, until cancelled. Only for a registered node that has
        one."""
        assert self._ports is not None
        wait_ms = self._timing.store_retry_ms
        while True:
            try:
                await self.look(self._ports.store)
            except IcecoreError as error:
                self._note_refused(error)
                await self._rest(wait_ms)
                wait_ms = min(2 * wait_ms, RETRY_MS_MAX)
                continue
            if self._problem is not None:
                event(_log, logging.INFO, "object_store_ready")
            self._problem, wait_ms = None, self._timing.store_retry_ms
            self._metrics.tier_up.set(1)
            await self._rest(self._timing.store_look_ms)

    async def _rest(self, wait_ms: int) -> None:
        """Wait for the next look, which comes sooner when the coordinator speaks of another store
        than before."""
        heard = (self._identity.store_id, self._identity.forgotten_store_id)
        while wait_ms > 0 and heard == (
            self._identity.store_id,
            self._identity.forgotten_store_id,
        ):
            await asyncio.sleep(min(wait_ms, NEWS_MS) / 1000)
            wait_ms -= NEWS_MS

    def _note_refused(self, error: IcecoreError) -> None:
        """Nobody uses the store from now on. The log says it once."""
        if self._problem is None or self._problem.message != error.message:
            level = logging.CRITICAL if isinstance(error, BucketLostError) else logging.WARNING
            event(_log, level, "object_store_refused", error=error)
        self._problem = error
        self._metrics.tier_up.set(0)

    async def look(self, store: ObjectStore) -> None:
        """Prove that it can be used, and that it is ours. Repeated at each look: credentials may
        expire, and the way to a store may lead through another proxy.

        Raises:
            WrongClusterError: Another cluster was first here.
            BucketLostError: It is not the bucket that this node or its cluster has used.
            ObjectStoreError, ObjectStoreBusyError: As the store says it.
            StorageError, OutOfSpaceError: It can't be remembered.
        """
        assert self._ports is not None
        memory, run = self._ports.memory, self._executor.run
        self._known = known = await run(memory.recall)
        found = await find_marker(store, known)
        is_new = self._is_first_use(found)  # of another cluster: nothing is written there
        await check_store(store, f"{self.cluster_id.hex()}-{self._identity.node_id}")
        if is_new:
            mine = Marker(self.cluster_id.hex(), self._rng.bytes(STORE_ID_BYTES).hex())
            with contextlib.suppress(ObjectExistsError):
                await store.put_if_absent(MARKER_KEY, mine.encode())
            found = await find_marker(store, known)
            if self._is_first_use(found):
                raise ObjectStoreError(f"{MARKER_KEY} was put, and is not there: try again")
        assert found is not None, "a bucket without a marker is a new one or refused"
        seen = KnownBucket(found.cluster_id, found.store_id)
        if known != seen:
            await run(memory.keep, seen)
            self._known = seen

    async def confirm(self) -> None:
        """Prove that the bucket is still the one that was looked at, before anything is written.

        Raises as ``store`` and ``look``.
        """
        store = self.store
        self._is_first_use(await find_marker(store, self._known))

    def _is_first_use(self, found: Marker | None) -> bool:
        assert self._ports is not None
        identity = self._identity
        cluster = ClusterStore(
            identity.cluster_id.hex(),
            identity.store_id.hex(),
            identity.forgotten_store_id.hex(),
        )
        return is_first_use(self._ports.memory.url, cluster, self._known, found)


# --- readers that ask before each request ---------------------------------------------------------


class GuardedReader:
    """An ``ObjectReader`` that asks before each request whether the store may be used.

    Remote reads are put together when the node starts, before the store was checked. Every method
    also raises what ``TierAccess.store`` does: the store is away, or belongs to another cluster.
    """

    def __init__(self, access: TierAccess) -> None:
        self._access = access

    async def get_ranges(self, key: str, ranges: Sequence[ByteRange]) -> list[bytes]:
        """See ``RangeReader.get_ranges``."""
        return await self._access.store.get_ranges(key, ranges)

    async def get_whole(self, key: str, bytes_max: int) -> bytes:
        """See ``ObjectReader.get_whole``."""
        return await self._access.store.get_whole(key, bytes_max)

    async def head(self, key: str) -> ObjectInfo:
        """See ``RangeReader.head``."""
        return await self._access.store.head(key)
