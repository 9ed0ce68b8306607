"""The roll of a segment as its leader lives it: from the wish to seal to the seal that was sent.

A part of ``LeaderCore``; it owns the state of the roll (``sealing.py``: the states, and who agrees
on the bytes). Each method is one thing that happened; what to send comes back. An attempt that was
given up sets ``given_up``: changes of the in-sync set that had to wait for it may go on. Rules
R25-R29 of docs/design/protocol.md.

    Idle --start--> Preparing --prepared--> Draining --drained--> Collecting --agree--> Sealing
      ^                 |                      |                      |
      +------ give up: wait, then again -------+----------------------+
"""

from dataclasses import dataclass, replace

from icecore.model import NodeId, Segment, SegmentId, SegmentState
from icecore_replication import sealing
from icecore_replication.effects import (
    CollectSealDigests,
    LeaderEffect,
    PrepareSuccessor,
    ReportDivergence,
    SendSeal,
)
from icecore_replication.inputs import SealDigests
from icecore_replication.isr import CommittedIsr, IsrState
from icecore_replication.log import LeaderLog
from icecore_replication.sealing import Collecting, Draining, Idle, Preparing, Roll, Sealing


@dataclass(frozen=True, slots=True)
class DropLaggards:
    """The roll waits no longer for the others: propose these as the in-sync set."""

    members: set[NodeId]


class Rolling:
    """The progress of a leader's roll.

    Args:
        leader: The node that leads.
        seal_wait_ms: How long one step may take.
    """

    def __init__(self, leader: NodeId, seal_wait_ms: float) -> None:
        self._leader = leader
        self._seal_wait_ms = seal_wait_ms
        self.state: Roll = Idle()
        """Invariant: never anything else again once it is ``Sealing`` (R29)."""
        self._wanted = ""
        self._given_up = False

    def take_given_up(self) -> bool:
        """Return whether an attempt was given up since the last call."""
        given_up, self._given_up = self._given_up, False
        return given_up

    @property
    def is_wanted(self) -> bool:
        """Return whether somebody has asked for a roll."""
        return bool(self._wanted)

    def want(self, why: str) -> None:
        """Somebody asks for a roll; it begins as soon as it may."""
        self._wanted = self._wanted or why

    def start(
        self, idle: Idle, log: LeaderLog, segment: Segment, isr: IsrState, now_ms: float
    ) -> PrepareSuccessor | None:
        """Begin if it is time: never an empty segment, never with too few members in sync."""
        why = self._wanted or log.why_to_roll(segment.settings, now_ms)
        if (
            not why
            or log.is_empty
            or now_ms < idle.not_before_ms
            or len(isr.isr) < segment.settings.min_insync_replicas
        ):
            return None
        self.state = Preparing(idle.backoff_ms)
        return PrepareSuccessor(why)

    def prepared(self, successor: SegmentId, now_ms: float) -> None:
        """The successor's files exist: no offset is given out from here on."""
        if isinstance(self.state, Preparing):
            deadline_ms = now_ms + self._seal_wait_ms
            self.state = Draining(successor, deadline_ms, self.state.backoff_ms)

    def not_prepared(self, now_ms: float) -> None:
        """No successor can be had now."""
        if isinstance(self.state, Preparing):
            self.give_up(self.state, now_ms)

    def drain(
        self,
        roll: Draining,
        isr: IsrState,
        stay: set[NodeId],
        *,
        log_end: int,
        min_insync_replicas: int,
        now_ms: float,
    ) -> CollectSealDigests | DropLaggards | None:
        """Ask for digests once the set has everything; drop laggards once, then give up.

        Args:
            roll: The state now.
            isr: The in-sync set; nothing is asked while a change of it is in flight.
            stay: Its members that have everything.
            log_end: Where the segment is to end.
            min_insync_replicas: Pinned in the segment.
            now_ms: Monotonic.
        """
        late, deadline_ms = now_ms >= roll.deadline_ms, now_ms + self._seal_wait_ms
        if not isinstance(isr, CommittedIsr):
            if late:
                self.give_up(roll, now_ms)
            return None
        if len(stay) == len(isr.isr) >= min_insync_replicas:
            self.state = Collecting(roll.successor, log_end, deadline_ms, roll.backoff_ms)
            return CollectSealDigests(log_end, isr.isr)
        if not late and len(isr.isr) >= min_insync_replicas:
            return None
        if roll.dropped_laggards or self._leader not in stay or len(stay) < min_insync_replicas:
            self.give_up(roll, now_ms)
            return None
        self.state = replace(roll, deadline_ms=deadline_ms, dropped_laggards=True)
        return DropLaggards(stay)

    def agree(
        self, item: SealDigests, isr: IsrState, min_insync_replicas: int, now_ms: float
    ) -> list[LeaderEffect]:
        """Digests came: send the seal if enough members equal the leader, and none differs.

        Nobody may choose between replicas that differ: a person is told (R28, R50).
        """
        roll = self.state
        if not isinstance(roll, Collecting) or item.end_offset != roll.end_offset:
            return []
        agreeing = sealing.agreeing_nodes(self._leader, isr.isr, item.digests)
        diverging = sealing.diverging_nodes(self._leader, isr.isr, item.digests)
        if diverging or len(agreeing) < min_insync_replicas or not agreeing:
            self.give_up(roll, now_ms)
            return [ReportDivergence(roll.end_offset, diverging)] if diverging else []
        seal_digest, producer_digest = item.digests[self._leader]
        self.state = Sealing(roll.end_offset, seal_digest)
        return [
            SendSeal(
                end_offset=roll.end_offset,
                version=isr.version,
                seal_digest=seal_digest,
                producer_digest=producer_digest,
                replicas=agreeing,
                successor_segment_id=roll.successor,
            )
        ]

    def give_up(self, roll: Preparing | Draining | Collecting, now_ms: float) -> None:
        """Go on appending at the same end, and try again later."""
        self.state = sealing.roll_failed(roll, now_ms)
        self._given_up = True

    def is_ours(self, segment: Segment) -> bool:
        """Return whether this record is the seal that was sent."""
        roll = self.state
        return (
            isinstance(roll, Sealing)
            and segment.state is SegmentState.SEALED
            and (segment.end_offset, segment.seal_digest) == (roll.end_offset, roll.seal_digest)
        )
