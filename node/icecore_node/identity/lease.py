"""The lease of a node: whether the coordinator heard of it recently.

It counts from when a heartbeat was *sent*, on our monotonic clock, and only gates ``acks=leader``.
"""

from icecore.rpc.ports import Clock


class Lease:
    """Loop only."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._end_ms = 0.0
        self._sequence = 0
        self._sent_at_ms: dict[int, float] = {}
        self.length_ms = 6000
        """Length of the lease, as the coordinator sets it."""

    def heartbeat(self) -> int:
        """A heartbeat is sent now; the number that it carries."""
        self._sequence += 1
        self._sent_at_ms[self._sequence] = self._clock.monotonic_ms()
        return self._sequence

    def renew(self, sequence: int) -> None:
        """The coordinator answered the heartbeat with this number."""
        sent_at_ms = self._sent_at_ms.pop(sequence, None)
        if sent_at_ms is None:
            return
        for older in [each for each in self._sent_at_ms if each < sequence]:
            del self._sent_at_ms[older]
        self._end_ms = max(self._end_ms, sent_at_ms + self.length_ms)

    @property
    def is_valid(self) -> bool:
        """Return whether the coordinator heard of us recently enough to ack on the leader alone."""
        return self._clock.monotonic_ms() < self._end_ms
