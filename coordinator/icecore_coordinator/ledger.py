"""The one place where metadata changes: decide on the newest state, commit, apply, tell others.

All decisions run under one lock, so each sees every change before it. Decisions of one call that
touch different records share a transaction (one fsync for many partitions). Whoever waited for a
node in between must decide again from here, which is why decisions are functions of the state.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, TypeVar

from icecore.errors import (
    IcecoreError,
    NotCoordinatorError,
    OutOfSpaceError,
    SupersededError,
    UnavailableError,
)
from icecore.process.garbage import without_collector
from icecore.process.log import event
from icecore.rpc.ports import Rng
from icecore_coordinator.state.cluster_state import ClusterState, Decision
from icecore_coordinator.state.record_json import encode
from icecore_coordinator.state.records import RECORD_TYPES, Change, ClusterRecord
from icecore_coordinator.stores.metadata_store import Compare, MetadataStore

_log = logging.getLogger(__name__)

T = TypeVar("T")

RECORDS_PER_PAGE = 10_000
"""Read at once by a start: what is stored takes as much room as what is made of it; and etcd counts
all that is behind a page, for each page."""
RECORDS_PER_TURN = 500
"""Decoded at once: the election must not wait for it."""
OPERATIONS_PER_TXN = 100
"""etcd allows 128 operations in a transaction; a change of its own may be larger than this."""


class Tenure:
    """The time for which this process may act as the coordinator (R121).

    Args:
        may_act: Whether no other coordinator can have been elected by now.
        ended: Called with the reason each time that it may not.
    """

    def __init__(self, may_act: Callable[[], bool], ended: Callable[[IcecoreError], None]) -> None:
        self._may_act, self._ended = may_act, ended

    def check(self) -> None:
        """Look at the clock before each act: a process that stood still acts no more.

        Raises:
            NotCoordinatorError: Another coordinator may act by now.
        """
        if not self._may_act():
            error = NotCoordinatorError("this coordinator has stopped: another one may act by now")
            self._ended(error)
            raise error


class Ledger:
    """The committed state of the cluster and the only way to change it."""

    def __init__(
        self,
        store: MetadataStore,
        rng: Rng,
        may_act: Callable[[], bool] = lambda: True,
        state: ClusterState | None = None,
    ) -> None:
        """
        Args:
            store: Of the metadata.
            rng: Of identities.
            may_act: Whether no other coordinator can have been elected by now.
            state: By which this process has followed the store until now, if it has.
        """
        self.state = ClusterState() if state is None else state
        self.lost: asyncio.Event = asyncio.Event()
        """Set when this process is no coordinator any more and must end."""
        self.why_lost = "another coordinator took over, or the metadata store failed"
        self.is_replaceable = False
        """True once the store or the election has ended this coordinator: its process may stand in
        the election again. One that failed by itself must end (R63)."""
        self.suspended = ""
        """Why these metadata may not go on by themselves, and what a person can do; empty = they
        may."""
        self.full = ""
        """Why the store takes no changes, and what a person can do; empty = it takes them."""
        self._store = store
        self._rng = rng
        self.tenure = Tenure(may_act, self._overtaken)
        self._lock = asyncio.Lock()
        self._news = asyncio.Event()
        self._listeners: list[Callable[[Change], None]] = []
        self._count: Callable[[], None] = _nothing
        self.on_full: Callable[[str], None] = _untold
        """Called with the reason whenever the store has no room for a change."""

    async def open(self) -> None:
        """Become the writer, know everything that is stored, name the cluster if it is new."""
        coordinator_epoch = await self._store.acquire_coordinator_epoch()
        if not self._store.is_followed:
            ClusterState.__init__(self.state)
            with without_collector():
                await self._read()
        self.state.coordinator_epoch = coordinator_epoch
        self.state.metadata_revision = self._store.revision
        if self.state.cluster is None:
            cluster = ClusterRecord(self._rng.bytes(16), version=1)
            await self.decide(lambda state: Change((cluster,)))

    async def _read(self) -> None:
        for cls in RECORD_TYPES:
            after = ""
            while stored := await self._store.scan(cls.prefix, after, RECORDS_PER_PAGE):
                for at in range(0, len(stored), RECORDS_PER_TURN):
                    part = stored[at : at + RECORDS_PER_TURN]
                    self.state.load((cls, each.value, each.version) for each in part)
                    await asyncio.sleep(0)
                after = stored[-1].key

    def subscribe(self, listener: Callable[[Change], None]) -> None:
        """Call ``listener`` after each change, in order of the changes. It must not wait."""
        self._listeners.append(listener)

    def count_by(self, count: Callable[[], None]) -> None:
        """Call ``count`` before each decision: it moves ``ClusterState.counted_ms``."""
        self._count = count

    async def decide(self, decision: Decision) -> Change:
        """Commit what ``decision`` makes of the newest state; an empty change commits nothing.

        Raises:
            NotCoordinatorError: another coordinator took over; nothing was committed.
            OutOfSpaceError: the store has no room; this change was not committed.
            UnavailableError: the store failed, now or before; nobody knows what was committed.
            IcecoreError: whatever the decision raised.
        """
        [result] = await self.decide_all([decision])
        if isinstance(result, IcecoreError):
            raise result
        return result

    async def decide_all(self, decisions: Sequence[Decision]) -> list[Change | IcecoreError]:
        """Many independent decisions, each committed or refused on its own; same order.

        Raises as ``decide``; of a list that is committed in parts no end is definite.
        """
        results: list[Change | IcecoreError] = []
        is_in_parts = False
        async with self._lock:
            pending = Change()
            keys: set[str] = set()
            for decision in decisions:
                change = self._try(decision)
                if isinstance(change, Change) and (
                    len(keys) + len(change.keys()) > OPERATIONS_PER_TXN
                    or not keys.isdisjoint(change.keys())
                ):
                    await self._commit_part(pending, is_in_parts)
                    is_in_parts = True
                    pending, keys = Change(), set()
                    change = self._try(decision)
                if isinstance(change, Change):
                    pending = pending + change
                    keys.update(change.keys())
                results.append(change)
            await self._commit_part(pending, is_in_parts)
        return results

    async def decide_each(
        self, items: Iterable[T], decision: Callable[[ClusterState, T], Change]
    ) -> list[Change | IcecoreError]:
        """One decision about each item; as ``decide_all``, in the same order.

        Args:
            items: What to decide on.
            decision: As any decision, of the newest state and one item.
        """
        return await self.decide_all([_about(decision, each) for each in items])

    def _try(self, decision: Decision) -> Change | IcecoreError:
        self._count()
        try:
            return decision(self.state)
        except IcecoreError as error:
            return error

    async def confirm(self) -> None:
        """Ask the store whether this is still the newest coordinator (R36), having nothing to
        change: one that decides nothing would go on to hold nodes that the newest waits for.

        Raises as ``decide``.
        """
        async with self._lock:
            await self._write(Change())

    def note_news(self) -> None:
        """Something happened that whoever waits in ``until`` must look at; each commit is such."""
        self._news.set()
        self._news = asyncio.Event()

    def lose(self) -> None:
        """This process is no coordinator any more: no further change, and nobody waits for one."""
        self.lost.set()
        self.note_news()

    async def until(self, holds: Callable[[ClusterState], bool], wait_ms: float) -> bool:
        """Wait until ``holds``; it is asked again after each commit and each ``note_news``.

        Args:
            holds: What to wait for, of the newest state; cheap, for it is asked often.
            wait_ms: For how long.

        Returns:
            Whether it held in time.

        Raises:
            UnavailableError: this coordinator stopped meanwhile. What is waited for follows from
                what was committed, so that it may happen all the same.
        """
        try:
            async with asyncio.timeout(wait_ms / 1000):
                while not holds(self.state):
                    if self.lost.is_set():
                        raise UnavailableError("this coordinator has stopped; the next one goes on")
                    await self._news.wait()
        except TimeoutError:
            return False
        return True

    async def _commit(self, change: Change) -> None:
        if change.puts or change.deletes:
            await self._write(change)

    async def _commit_part(self, change: Change, is_in_parts: bool) -> None:
        try:
            await self._commit(change)
        except NotCoordinatorError as error:
            if is_in_parts:
                raise UnavailableError(f"{error.message}, in the middle of a change") from error
            raise

    async def _write(self, change: Change) -> None:
        """As ``_store_and_apply``, for whoever is cancelled, too: the call of a client may end in
        the middle of it, but what is stored and what is applied must stay the same."""
        await to_its_end(self._store_and_apply(change))

    async def _store_and_apply(self, change: Change) -> None:
        if self.lost.is_set():
            # Not definite: who asks may have been part of a change that nobody knows the end of.
            raise UnavailableError("this coordinator has stopped")
        self.tenure.check()
        compares = [Compare(each.key, each.version - 1) for each in change.puts]
        compares += [Compare(each.key, each.version) for each in change.deletes]
        puts = [(each.key, encode(each)) for each in change.puts]
        deletes = [each.key for each in change.deletes]
        try:
            is_done = await self._store.txn(compares, puts, deletes)
            if not is_done:
                raise SupersededError("the metadata store holds other versions than expected")
        except SupersededError as error:
            self.end(error)
            raise NotCoordinatorError(f"this coordinator has stopped: {error.message}") from error
        except OutOfSpaceError as error:  # it takes no changes for now, and has changed nothing
            self.full = error.message
            self.on_full(error.message)
            raise
        except IcecoreError as error:
            self.end(error)
            # The leader that asked must not go on as if nothing had changed (R18).
            raise UnavailableError(
                f"this coordinator has stopped, and nobody knows what is stored: {error.message}"
            ) from error
        if puts or deletes:  # to ask the store for nothing needs no room
            self.full = ""
        self.state.metadata_revision = self._store.revision
        self.state.apply(change)
        for listener in self._listeners:
            listener(change)
        self.note_news()
        await asyncio.sleep(0)  # a long list must not keep heartbeats waiting

    def _overtaken(self, error: IcecoreError) -> None:
        if not self.lost.is_set():
            self.end(error)

    def suspend(self, error: IcecoreError) -> None:
        """Stop because these metadata are not the newest: a person says how they go on."""
        self.suspended = error.message
        self.end(error)

    def end(self, error: IcecoreError) -> None:
        """Stop for a reason that the process ends with."""
        self.why_lost = error.message
        self.is_replaceable = True
        self.lose()
        event(
            _log,
            logging.CRITICAL,
            "coordinator_lost",
            coordinator_epoch=self.state.coordinator_epoch,
            error=error,
        )


async def to_its_end(work: Coroutine[Any, Any, None]) -> None:
    """Wait for work that must not end in the middle, though who waits is cancelled meanwhile."""
    task = asyncio.ensure_future(work)
    is_cancelled = False
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            is_cancelled = True
    error = task.exception()
    if is_cancelled:
        raise asyncio.CancelledError
    if error is not None:
        raise error


def _nothing() -> None:
    """Nobody counts time: all ages stay what they are."""


def _untold(_: str) -> None:
    """Nobody is told that the store is full."""


def _about(decision: Callable[[ClusterState, T], Change], item: T) -> Decision:
    return lambda state: decision(state, item)
