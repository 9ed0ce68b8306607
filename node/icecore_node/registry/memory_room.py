"""Room for logs in memory: the largest tails roll in time, and near the end producers wait.

The limits are in ``memory_budget.py``. A sealed log is written to disk and leaves memory
within seconds. A refused produce loses nothing. An append without room would cost its partition the
leader, and a follower without room would end its segment.
"""

import logging
from collections.abc import Mapping
from typing import Final
from weakref import WeakSet

from icecore.errors import ThrottledError
from icecore.model import SegmentId
from icecore.process.log import event
from icecore.rpc.ports import Clock
from icecore.topic_settings import MEMORY_ENGINE
from icecore_node.replication.leader import Leader
from icecore_node.storage.memory_engine.memory_budget import SPARE_SHARE, is_tight, tails_to_roll
from icecore_node.storage.port import HeldMemory
from icecore_replication import inputs

_log = logging.getLogger(__name__)

LOOK_MS: Final = 200.0
COUNT_MS: Final = 20.0
RETRY_AFTER_MS: Final = 50
WHY: Final = "memory"


class MemoryRoom:
    """Loop only.

    Args:
        clock: Says when to look again.
        memory: Memory that logs take.
    """

    def __init__(self, clock: Clock, memory: HeldMemory) -> None:
        self._clock = clock
        self._memory = memory
        self._led: WeakSet[Leader] = WeakSet()
        """Leaders whose logs are in memory: all that appended a batch, since a new leader's log is
        empty. The node may lead very many other segments."""
        self._asked: set[SegmentId] = set()
        self._looked_ms = -LOOK_MS
        self._counted_ms = -COUNT_MS
        self._promised_bytes = 0
        """Size of all copies of the logs led here, once replicated. Other nodes' logs arrive here
        as ours go to them. When many producers begin at once, the memory in use shows that too
        late."""

    def take(self, leader: Leader, length_bytes: int) -> None:
        """A batch is to be appended. Raises ThrottledError when it has to be sent again later."""
        settings, memory = leader.segment.settings, self._memory
        if settings.engine != MEMORY_ENGINE:
            return
        self._led.add(leader)
        if memory.used_bytes <= SPARE_SHARE * memory.bytes_max:
            return
        self._count()
        if is_tight(memory, self._promised_bytes):
            raise ThrottledError(
                f"active segments in memory take {memory.used_bytes} bytes of memory_engine_bytes "
                f"{memory.bytes_max}; they are being sealed to make room",
                retry_after_ms=RETRY_AFTER_MS,
            )
        self._promised_bytes += length_bytes * settings.replication_factor

    def _count(self) -> None:
        now_ms = self._clock.monotonic_ms()
        if now_ms - self._counted_ms >= COUNT_MS:
            self._counted_ms = now_ms
            self._promised_bytes = sum(map(_promised_bytes, self._tails()))

    def _tails(self) -> list[Leader]:
        return [each for each in self._led if each.replica.role is each]

    def tick(self) -> None:
        """Time has passed: roll what is too much."""
        memory, now_ms = self._memory, self._clock.monotonic_ms()
        is_roomy = memory.used_bytes <= SPARE_SHARE * memory.bytes_max
        if is_roomy or now_ms - self._looked_ms < LOOK_MS:
            return
        self._looked_ms = now_ms
        tails = {each.replica.segment_id: each for each in self._tails()}
        rolled = self._too_much(tails)
        if rolled:
            event(
                _log,
                logging.INFO,
                "memory_rolls",
                segments=len(rolled),
                used_bytes=memory.used_bytes,
                bytes_max=memory.bytes_max,
            )
        self._asked.update(rolled)
        for segment_id in rolled:
            tails[segment_id].feed(inputs.RollRequested(WHY))

    def _too_much(self, tails: Mapping[SegmentId, Leader]) -> list[SegmentId]:
        """Return the segments to roll; those that were asked to roll already count as gone."""
        self._asked &= tails.keys()
        lengths = {number: each.replica.log.tail.length_bytes for number, each in tails.items()}
        memory = self._memory
        followed_bytes = memory.used_bytes - memory.sealed_bytes() - sum(lengths.values())
        fresh = {
            number: length
            for number, length in lengths.items()
            if length and number not in self._asked
        }
        promised_bytes = sum(_promised_bytes(tails[number]) for number in fresh)
        return tails_to_roll(fresh, promised_bytes, max(0, followed_bytes), memory.bytes_max)


def _promised_bytes(leader: Leader) -> int:
    """Return the size of all copies of a leader's log, once all replicas have it."""
    log, settings = leader.replica.log, leader.segment.settings
    return log.tail.length_bytes * settings.replication_factor
