"""The one place where metadata changes: decide on the newest state, commit, apply, tell others.

All decisions run under one lock, so each sees every change before it. Decisions of one call that
touch different records share a transaction (one fsync for many partitions). Whoever waited for a
node in between must decide again from here, which is why decisions are functions of the state.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import TypeAlias

from icecore.errors import FencedError, IcecoreError, NotCoordinatorError
from icecore.rpc.ports import Rng
from icecore_coordinator.state.cluster_state import ClusterState
from icecore_coordinator.state.record_json import encode
from icecore_coordinator.state.records import RECORD_TYPES, Change, ClusterRecord
from icecore_coordinator.stores.metadata_store import Compare, MetadataStore

log = logging.getLogger(__name__)

Decision: TypeAlias = Callable[[ClusterState], Change]
OPERATIONS_PER_TXN = 100
"""etcd allows 128 operations in a transaction; a change of its own may be larger than this."""


class Ledger:
    """The committed state of the cluster and the only way to change it."""

    def __init__(self, store: MetadataStore, rng: Rng) -> None:
        self.state = ClusterState()
        self.token = 0
        self.lost: asyncio.Event = asyncio.Event()
        """Set when a write failed: this process is no coordinator any more and must end."""
        self._store = store
        self._rng = rng
        self._lock = asyncio.Lock()
        self._listeners: list[Callable[[Change], None]] = []

    async def open(self) -> None:
        """Become the writer, read everything, name the cluster if it is new."""
        self.token = await self._store.acquire_token()
        for cls in RECORD_TYPES:
            stored = await self._store.scan(cls.prefix)
            self.state.load((cls, each.value, each.version) for each in stored)
        if self.state.cluster is None:
            cluster = ClusterRecord(self._rng.bytes(16), version=1)
            await self.decide(lambda state: Change((cluster,)))

    def subscribe(self, listener: Callable[[Change], None]) -> None:
        """Call ``listener`` after each change, in order of the changes. It must not wait."""
        self._listeners.append(listener)

    async def decide(self, decision: Decision) -> Change:
        """Commit what ``decision`` makes of the newest state; an empty change commits nothing.

        Raises:
            NotCoordinatorError: another coordinator took over, or the store failed.
            IcecoreError: whatever the decision raised.
        """
        [result] = await self.decide_all([decision])
        if isinstance(result, IcecoreError):
            raise result
        return result

    async def decide_all(self, decisions: Sequence[Decision]) -> list[Change | IcecoreError]:
        """Many independent decisions, each committed or refused on its own; same order.

        Raises NotCoordinatorError as ``decide``; earlier ones of the list may be committed then.
        """
        results: list[Change | IcecoreError] = []
        async with self._lock:
            pending = Change()
            keys: set[str] = set()
            for decision in decisions:
                change = self._try(decision)
                if isinstance(change, Change) and (
                    len(keys) + len(change.keys()) > OPERATIONS_PER_TXN
                    or not keys.isdisjoint(change.keys())
                ):
                    await self._commit(pending)
                    pending, keys = Change(), set()
                    change = self._try(decision)
                if isinstance(change, Change):
                    pending = pending + change
                    keys.update(change.keys())
                results.append(change)
            await self._commit(pending)
        return results

    def _try(self, decision: Decision) -> Change | IcecoreError:
        try:
            return decision(self.state)
        except IcecoreError as error:
            return error

    async def confirm(self) -> None:
        """Ask the store whether this is still the newest coordinator (R36), having nothing to
        change: one that decides nothing would go on to hold nodes that the newest waits for.

        Raises NotCoordinatorError as ``decide``.
        """
        async with self._lock:
            await self._write(Change())

    async def _commit(self, change: Change) -> None:
        if change.puts or change.deletes:
            await self._write(change)

    async def _write(self, change: Change) -> None:
        if self.lost.is_set():
            raise NotCoordinatorError("this coordinator has stopped")
        compares = [Compare(each.key, each.version - 1) for each in change.puts]
        compares += [Compare(each.key, each.version) for each in change.deletes]
        try:
            is_done = await self._store.txn(
                compares,
                [(each.key, encode(each)) for each in change.puts],
                [each.key for each in change.deletes],
            )
            if not is_done:
                raise FencedError("the metadata store holds other versions than expected")
        except IcecoreError as error:
            self.lost.set()
            log.critical("event=coordinator_lost token=%d why=%r", self.token, error.message)
            raise NotCoordinatorError(f"this coordinator has stopped: {error.message}") from error
        self.state.apply(change)
        for listener in self._listeners:
            listener(change)
        await asyncio.sleep(0)  # a long list must not keep heartbeats waiting
