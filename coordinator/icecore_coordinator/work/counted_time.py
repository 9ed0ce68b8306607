"""Time as coordinators count it: the monotonic clocks of those that ran, one after the other (R73).

What was counted is stored every minute while a node is connected. A coordinator that dies takes
less than a minute of it along, and time without a coordinator does not count: what waits for it
comes late, never early. No wall clock has a part in it. Without nodes nothing is stored: the
revision of an older copy, which nobody calls, must not come to pass the newest one (R94).
"""

from icecore.rpc.ports import Clock
from icecore_coordinator.ledger import Ledger
from icecore_coordinator.state.cluster_state import ClusterState, next_of
from icecore_coordinator.state.liveness import Liveness
from icecore_coordinator.state.records import Change, updated

STORE_EVERY_MS = 60_000
COUNTER = "counted_ms"


class CountedTime:
    """Moves ``ClusterState.counted_ms``."""

    def __init__(self, ledger: Ledger, live: Liveness, clock: Clock) -> None:
        self._ledger = ledger
        self._live = live
        self._clock = clock
        self._base_ms = 0.0
        """Counted milliseconds at the moment when this coordinator's clock was at 0."""

    def start(self) -> None:
        """Go on from what is stored. The ledger is open."""
        self._base_ms = _stored_ms(self._ledger.state) - self._clock.monotonic_ms()
        self._ledger.count_by(self.count)
        self.count()

    def count(self) -> None:
        """Note how late it is."""
        now_ms = int(self._base_ms + self._clock.monotonic_ms())
        self._ledger.state.counted_ms = max(self._ledger.state.counted_ms, now_ms)

    async def store(self) -> None:
        """Store what was counted, when that is long ago and a node is connected."""
        self.count()
        state = self._ledger.state
        if not any(self._live.of(each).is_connected for each in self._live):
            return
        if state.counted_ms - _stored_ms(state) >= STORE_EVERY_MS:
            await self._ledger.decide(_stored)


def _stored_ms(state: ClusterState) -> int:
    return state.counters[COUNTER].next_value if COUNTER in state.counters else 0


def _stored(state: ClusterState) -> Change:
    return Change((updated(next_of(state, COUNTER), next_value=state.counted_ms),))
