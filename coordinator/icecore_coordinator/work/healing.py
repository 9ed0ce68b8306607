"""Starts what the cluster needs at once: recoveries, openings of tails, moves away from nodes that
leave, and deletions of topics.

A look finds all of it in the records, so a restarted coordinator goes on where the last one
stopped. It looks when something changed, while anything waits for another try, and now and then
anyway. What it finds goes on as tasks of its own, a bounded number of each kind; the rest is found
again when one of them ends.
"""

import asyncio
import math
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from icecore.model import SegmentId
from icecore_coordinator.work.backoff import KeyedBackoff
from icecore_coordinator.work.copies.leaving import LeadershipHandOver
from icecore_coordinator.work.jobs import Jobs
from icecore_coordinator.work.segments.tail_opening import TailOpener
from icecore_coordinator.work.topic_deletion import TopicDeletions
from icecore_coordinator.work.worker_ports import WorkerPorts

K = TypeVar("K")

SEGMENTS_PER_ROUND = 128
"""Most segments of one recovery round, or partitions of one opening round."""
ROUNDS_AT_ONCE = 4
"""Most rounds of each kind at once. The rest waits here, where its turn can be chosen, instead of
at nodes and disks."""


class Recoveries(Protocol):
    """Recovery of segments; see ``Recovery``."""

    @property
    def backoff(self) -> KeyedBackoff[SegmentId]:
        """Segments that are being recovered, and those that wait for another try."""
        ...

    def needed(self) -> Sequence[SegmentId]:
        """Return the segments to recover now."""
        ...

    async def recover(self, segment_ids: Sequence[SegmentId]) -> None:
        """Recover them, as one round."""
        ...


class Healing:
    """Keeps only whether somebody asked for a look, and when it looked last.

    Args:
        ports: The cluster.
        jobs: Carries out what is started.
        recovery: Of segments without a leader.
        opener: Of partitions without a tail.
        hand_over: Away from nodes that leave.
        deletions: Of topics.
    """

    def __init__(
        self,
        ports: WorkerPorts,
        jobs: Jobs,
        recovery: Recoveries,
        opener: TailOpener,
        hand_over: LeadershipHandOver,
        deletions: TopicDeletions,
    ) -> None:
        self._ledger = ports.ledger
        self._clock = ports.clock
        self._timing = ports.timing
        self._jobs = jobs
        self._recovery = recovery
        self._opener = opener
        self._hand_over = hand_over
        self._deletions = deletions
        self.wake = asyncio.Event()
        """Set when there may be something to start; see ``poke``."""
        self._is_poked = False
        self._looked_ms = -math.inf

    def poke(self) -> None:
        """Something changed: look at once."""
        self._is_poked = True
        self.wake.set()

    def look(self) -> None:
        """Start whatever is needed, if it is time to look."""
        now_ms = self._clock.monotonic_ms()
        is_late = now_ms - self._looked_ms >= self._timing.look_ms
        if self._is_poked or is_late or self._has_waiting():
            self._is_poked = False
            self._looked_ms = now_ms
            self._start_needed()

    def _has_waiting(self) -> bool:
        return (
            self._recovery.backoff.is_waiting
            or self._opener.backoff.is_waiting
            or self._hand_over.is_busy
        )

    def _start_needed(self) -> None:
        usual: list[SegmentId] = []
        unclean: list[SegmentId] = []  # apart: nodes may have to read whole logs for them (R46)
        for segment_id in self._recovery.needed():
            is_unclean = self._ledger.state.segments[segment_id].is_unclean_allowed
            (unclean if is_unclean else usual).append(segment_id)
        self._start_rounds("recover", self._recovery.recover, usual)
        self._start_rounds("recover_unclean", self._recovery.recover, unclean)
        self._start_rounds("open_tails", self._opener.open, self._opener.needed())
        if leaving := self._hand_over.needed():
            self._jobs.spawn(self._hand_over.hand_over(leaving), "hand_over")
        if topic_ids := self._deletions.needed():
            self._jobs.spawn(self._deletions.finish(topic_ids), "delete_topics")

    def _start_rounds(
        self,
        name: str,
        work: Callable[[Sequence[K]], Coroutine[Any, Any, None]],
        keys: Sequence[K],
    ) -> None:
        """As many rounds of a kind as may be under way; the rest is found again when one ends."""
        room = ROUNDS_AT_ONCE - self._jobs.count(name)
        for at in range(0, min(len(keys), room * SEGMENTS_PER_ROUND), SEGMENTS_PER_ROUND):
            self._jobs.spawn(work(keys[at : at + SEGMENTS_PER_ROUND]), name, self.poke)
