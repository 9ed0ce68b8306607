"""Orders on segments: one task works on a segment at a time, and a waiting order may be overtaken.

An order takes many awaits. Meanwhile the same order may arrive again, another coordinator may
appear, or a fence may fix the end of the log. So code that changes a replica from outside of its
role holds the segment's lock (``alone``). An order of the coordinator checks after each await
whether it still holds (``Order.check``). Segments that are not here have locks, too: two copies of
one segment must not be begun at once. Rules R60 and R61 of docs/design/protocol.md.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from icecore.errors import FencedError
from icecore.model import CoordinatorEpoch, SegmentId
from icecore_node.identity.identity import Identity

T = TypeVar("T")

DELETED_KEPT_MAX = 10_000


@dataclass(slots=True)
class _Turn:
    """The lock of one segment, kept while somebody holds it or waits for it."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    wanted_by: int = 0


class Order:
    """An order of the coordinator on one segment, from its arrival to its end."""

    def __init__(
        self, identity: Identity, segment_id: SegmentId, coordinator_epoch: CoordinatorEpoch
    ) -> None:
        self._identity = identity
        self._segment_id = segment_id
        self._coordinator_epoch = coordinator_epoch
        self._overtaken: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def overtake(self, why: str) -> None:
        """It must change nothing more."""
        if not self._overtaken.done():
            self._overtaken.set_result(why)

    def check(self) -> None:
        """Raises FencedError when the order holds no longer; to be asked after each await."""
        if self._coordinator_epoch < self._identity.coordinator_epoch:
            self.overtake(f"coordinator epoch {self._identity.coordinator_epoch} was heard")
        if self._overtaken.done():
            raise FencedError(
                f"segment {self._segment_id}: the order was overtaken: {self._overtaken.result()}"
            )

    async def unless_overtaken(self, work: Coroutine[object, object, T]) -> T:
        """The result of something that may take long and may be given up at any time.

        Raises FencedError when the order holds no longer, else what ``work`` raises.
        """
        task = asyncio.ensure_future(work)
        try:
            await asyncio.wait((task, self._overtaken), return_when=asyncio.FIRST_COMPLETED)
            self.check()
            return await task
        finally:
            if not task.cancel() and not task.cancelled():
                task.exception()  # it ended at the same moment, and nobody asks


class Orders:
    """All segments that are worked on. Loop only."""

    def __init__(self, identity: Identity) -> None:
        self._identity = identity
        self._turns: dict[SegmentId, _Turn] = {}
        self._under_way: dict[SegmentId, dict[Order, None]] = {}
        self._deleted: dict[SegmentId, None] = {}
        """Newest last."""
        self._dropped: dict[SegmentId, int] = {}
        """And by which version of the record; newest last."""
        self._copied: dict[SegmentId, int] = {}
        """The same of copies that were made, or found whole."""

    @asynccontextmanager
    async def alone(self, *segment_ids: SegmentId) -> AsyncIterator[None]:
        """Work on these segments while nobody else does.

        Always in ascending order, so that two who want the same ones don't wait for each other.
        """
        held: list[tuple[SegmentId, _Turn]] = []
        try:
            for segment_id in sorted(set(segment_ids)):
                turn = self._turns.setdefault(segment_id, _Turn())
                turn.wanted_by += 1
                try:
                    await turn.lock.acquire()
                except BaseException:
                    self._leave(segment_id, turn)
                    raise
                held.append((segment_id, turn))
            yield
        finally:
            for segment_id, turn in held:
                turn.lock.release()
                self._leave(segment_id, turn)

    def _leave(self, segment_id: SegmentId, turn: _Turn) -> None:
        turn.wanted_by -= 1
        if not turn.wanted_by:
            del self._turns[segment_id]

    @asynccontextmanager
    async def carry_out(
        self, segment_id: SegmentId, coordinator_epoch: CoordinatorEpoch
    ) -> AsyncIterator[Order]:
        """An order of the coordinator with this epoch; nobody else works on the segment.

        Raises FencedError when it holds no longer by the time that its turn comes.
        """
        order = Order(self._identity, segment_id, coordinator_epoch)
        mine = self._under_way.setdefault(segment_id, {})
        mine[order] = None
        try:
            async with self.alone(segment_id):
                order.check()
                yield order
        finally:
            del mine[order]
            if not mine and self._under_way.get(segment_id) is mine:
                del self._under_way[segment_id]

    def overtake(self, segment_id: SegmentId, why: str) -> None:
        """Orders on this segment that arrived until now must change nothing more."""
        for order in self._under_way.get(segment_id, ()):
            order.overtake(why)

    def note_deleted(self, segment_id: SegmentId) -> None:
        """The segment is to be deleted: orders on it may still be on their way."""
        self._deleted.pop(segment_id, None)
        self._deleted[segment_id] = None
        if len(self._deleted) > DELETED_KEPT_MAX:
            del self._deleted[next(iter(self._deleted))]

    def was_deleted(self, segment_id: SegmentId) -> bool:
        """Return whether this process was told to delete it."""
        return segment_id in self._deleted

    def note_dropped(self, segment_id: SegmentId, version: int) -> None:
        """The copy here was one too many by this version of the record (R93): what was ordered by
        an older one may still be on its way."""
        self._dropped.pop(segment_id, None)
        self._dropped[segment_id] = version
        if len(self._dropped) > DELETED_KEPT_MAX:
            del self._dropped[next(iter(self._dropped))]

    def note_copied(self, segment_id: SegmentId, version: int) -> None:
        """A copy is here by this version of the record, and counts from now on: an older one that
        has it dropped holds no longer (R93)."""
        self._copied.pop(segment_id, None)
        self._copied[segment_id] = version
        if len(self._copied) > DELETED_KEPT_MAX:
            del self._copied[next(iter(self._copied))]

    def was_copied(self, segment_id: SegmentId, version: int) -> bool:
        """Return whether this process was to have a copy since the record had this version."""
        return version < self._copied.get(segment_id, -1)

    def was_dropped(self, segment_id: SegmentId, version: int) -> bool:
        """Return whether this process has dropped its copy since the record had this version."""
        return version <= self._dropped.get(segment_id, -1)
