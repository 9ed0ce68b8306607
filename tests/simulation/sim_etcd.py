"""An etcd in memory for simulated coordinators, and the calls of one process to it.

It keeps what the store, the election and the follower need: keys with versions and revisions,
leases by its own clock, transactions, watches from a revision on, compaction. Calls take time, are
lost before or after they count, and watches break or pass a change over. A watch tells whole
revisions in their order, some at once, and the keys of one in any order.

It looks at each change of the first row of metadata: no older writer may follow a newer one (I18).
"""

import asyncio
import copy
import random
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from icecore.errors import StorageError
from icecore_coordinator.stores.etcd_client import CompactedError, EtcdAnswer
from icecore_coordinator.stores.etcd_layout import HEAD, EtcdHead
from icecore_coordinator.stores.etcd_messages import (
    DELETED,
    KeyValue,
    RangeResponse,
    TxnResponse,
    WatchResponse,
)
from tests.simulation.process import SimProcess

_BY_VALUE = 3
LATENCY_S = 0.005
_LEASE_LOOK_S = 0.5
"""etcd looks for ended leases this often."""


@dataclass
class Links:
    """The troubles of one process's calls; the world changes them."""

    latency_s: float = LATENCY_S
    is_cut: bool = False
    loss: float = 0.0
    """The probability that a request is lost, and that an answer is."""
    answer_loss: float = 0.0
    """The probability that only an answer is lost."""
    slow_answers_s: float = 0.0
    gaps: float = 0.0
    """A watch passes a change over."""

    def cut(self) -> None:
        """Nothing comes through, but for what is on its way."""
        self.is_cut = True

    def heal(self) -> None:
        """All is well."""
        self.is_cut, self.latency_s = False, LATENCY_S
        self.loss = self.answer_loss = self.slow_answers_s = self.gaps = 0.0


@dataclass
class SimEtcd:
    """The server. Nothing of it ever fails but by ``Links``."""

    loop: asyncio.AbstractEventLoop
    complain: Callable[[str], None] = lambda _: None
    """Called with each change that must not be."""
    revision: int = 1
    compacted: int = 0
    rows: dict[bytes, Any] = field(default_factory=dict)
    base: list[Any] = field(default_factory=list)
    """All rows of when history was shortened, as events."""
    history: list[tuple[int, list[Any]]] = field(default_factory=list)
    leases: dict[int, tuple[float, float]] = field(default_factory=dict)
    """Length and end, by its own clock."""
    of_lease: dict[bytes, int] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def expire(self) -> None:
        """Remove the keys of leases that have ended."""
        now = self.loop.time()
        for lease in [each for each, (_, end) in self.leases.items() if end <= now]:
            self.end_lease(lease)

    def end_lease(self, lease: int) -> None:
        """Remove a lease with its keys."""
        self.leases.pop(lease, None)
        keys = [key for key, each in self.of_lease.items() if each == lease]
        if keys:
            self.apply([(key, None, 0) for key in keys])

    def apply(self, changes: Sequence[tuple[bytes, bytes | None, int]]) -> None:
        """One revision."""
        self.revision += 1
        events = []
        for key, value, lease in changes:
            self._look_at_head(key, value)
            old = self.rows.pop(key, None)
            self.of_lease.pop(key, None)
            if value is None:
                if old is not None:
                    events.append((DELETED, KeyValue(key=key, mod_revision=self.revision)))
                continue
            row = KeyValue(
                key=key,
                value=value,
                version=1 + (old.version if old else 0),
                create_revision=old.create_revision if old else self.revision,
                mod_revision=self.revision,
            )
            self.rows[key] = row
            if lease:
                self.of_lease[key] = lease
            events.append((0, row))
        self.history.append((self.revision, events))
        self.changed.set()
        self.changed = asyncio.Event()

    def _look_at_head(self, key: bytes, value: bytes | None) -> None:
        old = self.rows.get(key)
        if not key.endswith(HEAD) or old is None:
            return
        if value is None:
            self.complain("I18: the first row of metadata is removed")
            return
        before, after = EtcdHead.decode(old.value), EtcdHead.decode(value)
        is_same_holder = before.holder == after.holder
        if after.epoch < before.epoch or (after.epoch == before.epoch and not is_same_holder):
            self.complain(f"I18: coordinator epoch {after.epoch} writes after {before.epoch}")
        if after.revision < before.revision:
            self.complain(f"I18: revision {after.revision} is stored after {before.revision}")

    def records(self) -> dict[bytes, Any]:
        """A copy of all that is stored but for the election."""
        return {
            key: copy.deepcopy(row) for key, row in self.rows.items() if key not in self.of_lease
        }

    def restore(self, rows: dict[bytes, Any]) -> None:
        """A person puts a copy back; candidates and history are gone."""
        self.rows = dict(rows)
        self.of_lease.clear()
        self.leases.clear()
        self.compact()

    def below(self, key: bytes, end: bytes, revision: int = 0) -> list[Any]:
        """Rows of a key, or of a range, as of now or of a revision. Raises CompactedError."""
        rows = self.rows if revision in (0, self.revision) else self._rows_at(revision)
        if not end:
            return [rows[key]] if key in rows else []
        return [rows[each] for each in sorted(rows) if key <= each < end]

    def _rows_at(self, revision: int) -> dict[bytes, Any]:
        if revision < self.compacted:
            raise CompactedError("etcd has shortened its history")
        rows = dict(self.rows)
        changed = {row.key for at, events in self.history for _, row in events if at > revision}
        for key in changed:
            rows.pop(key, None)
        for at, events in [(self.compacted, self.base), *self.history]:
            for kind, row in events if at <= revision else ():
                if row.key in changed:
                    rows[row.key] = row
                    if kind == DELETED:
                        del rows[row.key]
        return rows

    def compact(self) -> None:
        """Forget all changes of before."""
        self.compacted = self.revision
        self.base = [(0, row) for row in self.rows.values()]
        self.history.clear()

    async def keep_leases(self) -> None:
        """End leases when their time is over, or a little later."""
        while True:
            await asyncio.sleep(_LEASE_LOOK_S)
            self.expire()


class SimEtcdClient:
    """As ``EtcdClient``, for one process."""

    def __init__(
        self,
        etcd: SimEtcd,
        links: Links,
        rng: random.Random,
        timeout_s: float,
        process: SimProcess | None = None,
    ) -> None:
        self._etcd, self._links, self._rng = etcd, links, rng
        self._timeout_s = timeout_s
        self._process = process

    async def check(self) -> list[str]:
        await self._there()
        return []

    async def close(self) -> None:
        """Nothing is open."""

    async def _there(self) -> None:
        await self._travel(self._links.latency_s, self._links.loss)

    async def _back(self) -> None:
        slow_s = self._links.slow_answers_s * self._rng.random()
        loss = max(self._links.loss, self._links.answer_loss)
        await self._travel(self._links.latency_s + slow_s, loss)

    async def _travel(self, latency_s: float, loss: float) -> None:
        if self._process is not None:
            self._process.check()
        if self._links.is_cut or self._rng.random() < loss:
            await asyncio.sleep(self._timeout_s)
            raise StorageError("no member of etcd has answered")
        await asyncio.sleep(latency_s * (0.5 + self._rng.random()))
        if self._process is not None:
            self._process.check()

    async def grant(self, ttl_s: int) -> tuple[int, int]:
        await self._there()
        lease = self._rng.getrandbits(62) | 1
        self._etcd.leases[lease] = float(ttl_s), self._etcd.loop.time() + ttl_s
        await self._back()
        return lease, ttl_s

    async def keep_alive(self, lease: int) -> int:
        await self._there()
        found = self._etcd.leases.get(lease)
        if found is not None:
            self._etcd.leases[lease] = found[0], self._etcd.loop.time() + found[0]
        await self._back()
        return int(found[0]) if found else 0

    async def revoke(self, lease: int) -> None:
        await self._there()
        self._etcd.end_lease(lease)
        await self._back()

    async def range(
        self, key: bytes, range_end: bytes = b"", limit: int = 0, revision: int = 0
    ) -> Any:
        await self._there()
        rows = self._etcd.below(key, range_end, revision)
        shown = rows[:limit] if limit else rows
        answer = RangeResponse(kvs=shown, count=len(rows), more=len(shown) < len(rows))
        answer.header.revision = self._etcd.revision
        await self._back()
        return answer

    async def count(self, key: bytes, range_end: bytes) -> int:
        return int((await self.range(key, range_end)).count)

    async def txn(
        self, conditions: Sequence[Any], success: Sequence[Any], failure: Sequence[Any]
    ) -> EtcdAnswer:
        """Repeated until an answer comes, as production's client does."""
        for attempt in range(4):
            try:
                await self._there()
                answer = self._carry_out(conditions, success, failure)
                await self._back()
            except StorageError:
                continue
            return EtcdAnswer(answer, attempt > 0)
        raise StorageError("no member of etcd has answered")

    def _carry_out(
        self, conditions: Sequence[Any], success: Sequence[Any], failure: Sequence[Any]
    ) -> Any:
        holds = all(map(self._holds, conditions))
        answer = TxnResponse(succeeded=holds)
        changes: list[tuple[bytes, bytes | None, int]] = []
        for each in success if holds else failure:
            added = answer.responses.add()
            kind = _kind(each)
            if kind == "put":
                put = each.request_put
                if put.lease and put.lease not in self._etcd.leases:
                    raise StorageError("requested lease not found")
                changes.append((put.key, put.value, put.lease))
            elif kind == "delete":
                gone = each.request_delete_range
                rows = self._etcd.below(gone.key, gone.range_end)
                changes += [(row.key, None, 0) for row in rows]
            else:
                asked = each.request_range
                added.response_range.kvs.extend(self._etcd.below(asked.key, asked.range_end))
        if changes:
            self._etcd.apply(changes)
        return answer

    def _holds(self, condition: Any) -> bool:
        row = self._etcd.rows.get(condition.key)
        if condition.target == _BY_VALUE:
            return row is not None and bool(row.value == condition.value)
        return bool((row.version if row else 0) == condition.version)

    async def watch(
        self, key: bytes, range_end: bytes, start_revision: int, silence_s: float
    ) -> AsyncGenerator[Any, None]:
        await self._there()
        etcd, at = self._etcd, start_revision
        while True:
            if at <= etcd.compacted:
                raise CompactedError("etcd has shortened its history")
            pending = [each for each in etcd.history if each[0] >= at]
            while pending:
                count = self._rng.choice([1, 1, 1, 2, 5])
                answer = self._told(key, range_end, pending[:count])
                at, pending = pending[:count][-1][0] + 1, pending[count:]
                if not answer.events:
                    continue
                await self._back()
                yield answer
            waiting = etcd.changed
            try:
                async with asyncio.timeout(silence_s):
                    await waiting.wait()
            except TimeoutError:
                if self._links.is_cut:
                    raise StorageError("a watch has heard nothing") from None

    def _told(self, key: bytes, range_end: bytes, changes: Sequence[tuple[int, list[Any]]]) -> Any:
        """Revisions of which some may be passed over, the keys of each in any order."""
        answer = WatchResponse()
        for _, events in changes:
            mine = [each for each in events if key <= each[1].key < range_end]
            if not mine or self._rng.random() < self._links.gaps:
                continue
            self._rng.shuffle(mine)
            for kind, row in mine:
                answer.events.add(type=kind, kv=row)
        return answer


def _kind(operation: Any) -> str:
    for kind in ("put", "delete_range"):
        if operation.HasField(f"request_{kind}"):
            return kind.removesuffix("_range")
    return "range"
