"""What a leader knows, and how far that acknowledges: the lowest layer of ``LeaderCore``.

Three layers make the leader, each a subclass of the one before because they share one state:
this one counts acknowledgements, ``membership.py`` keeps the in-sync set, ``leader.py`` takes
inputs, appends and rolls. Rule numbers R… are those of docs/PROTOCOL.md.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from icecore.errors import InvalidRequestError
from icecore.model import Acks, NodeInfo, Segment, SegmentState
from icecore_replication import effects as out
from icecore_replication import inputs as into
from icecore_replication import isr as isr_rules
from icecore_replication import sealing
from icecore_replication.acks import PendingAcks
from icecore_replication.isr import CommittedIsr, IsrState
from icecore_replication.producers import ProducerTable
from icecore_replication.progress import Followers
from icecore_replication.sealing import Collecting, Draining, Idle, Preparing, Roll, Sealing
from icecore_replication.watermark import all_end, high_watermark, quorum_end


@dataclass(frozen=True, slots=True)
class LeaderLimits:
    """Bounds of one leader; times in milliseconds."""

    replica_lag_ms_max: float = 10_000.0
    """A member that has not had everything for so long leaves the in-sync set."""
    pending_bytes_max: int = 64 << 20
    """Appended and not yet fsynced here."""
    pending_requests_max: int = 4096
    """Unanswered produce requests."""
    seal_wait_ms: float = 1_000.0
    """How long one step of a roll may keep producers waiting."""
    throttle_ms: int = 50
    """``retry_after_ms`` of ThrottledError."""
    rejoin_wait_ms: float = 200.0
    """How long acks wait for a follower that is about to join the in-sync set (R17)."""


def may_lead(segment: Segment, node_id: int, incarnation: int) -> bool:
    """Leadership belongs to an incarnation: a process that was started again never resumes it."""
    return (segment.leader, segment.leader_incarnation) == (node_id, incarnation)


class LeaderState:
    """Fields, what others may see of them, and the moves every layer needs."""

    def __init__(
        self,
        segment: Segment,
        node_id: int,
        incarnation: int,
        producers: ProducerTable,
        nodes: Mapping[int, NodeInfo],
        now_ms: float,
        limits: LeaderLimits | None = None,
        producer_fences: Mapping[int, int] | None = None,
    ) -> None:
        if not may_lead(segment, node_id, incarnation):
            raise InvalidRequestError(f"node {node_id} incarnation {incarnation} is not the leader")
        if segment.state is not SegmentState.ACTIVE or segment.base_offset < 0:
            raise InvalidRequestError(f"segment {segment.segment_id} is {segment.state.name}")
        self.segment = segment
        self.node_id = node_id
        self.incarnation = incarnation
        self.producers = producers
        self.limits = limits or LeaderLimits()
        self._producer_fences = {} if producer_fences is None else producer_fences
        self.stopped = False
        self._now_ms = now_ms
        self._base = segment.base_offset
        self._log_end = self._base
        self._high_watermark = self._base
        self._followers = Followers(segment.replicas, node_id, nodes, self._base, now_ms)
        self._durable = self._followers.durable
        self._acks = PendingAcks()
        self._ends = dict.fromkeys(Acks, self._base)
        self._lease_valid = True
        self._bytes = 0
        self._unsynced: deque[tuple[int, int]] = deque()  # (end_offset, length_bytes) in order
        self._unsynced_bytes = 0
        self._isr: IsrState = CommittedIsr(segment.isr, segment.version)
        self._maximal = segment.isr
        self._isr_due = True
        self._isr_wait_until_ms = 0.0
        self._hold: tuple[int, float] | None = None  # (node about to join, deadline)
        self._roll: Roll = Idle()
        self._roll_wanted = ""
        self._age_due_ms = inf
        self._dirty = True
        self._effects: list[out.LeaderEffect] = []
        self._recent: deque[into.LeaderInput] = deque(maxlen=into.RECENT_INPUTS)

    # --- what others may see ---------------------------------------------------------------------

    @property
    def log_end_offset(self) -> int:
        """The next offset to be given out."""
        return self._log_end

    @property
    def durable_end_offset(self) -> int:
        """Everything below is fsynced here."""
        return self._durable[self.node_id]

    @property
    def high_watermark(self) -> int:
        """Readers may see everything below."""
        return self._high_watermark

    @property
    def isr(self) -> tuple[int, ...]:
        """The committed in-sync set."""
        return self._isr.isr

    @property
    def maximal_isr(self) -> tuple[int, ...]:
        """Whom acks wait for: committed members and those of an expansion in flight."""
        return self._maximal

    @property
    def isr_state(self) -> IsrState:
        """Committed, or with which change in flight."""
        return self._isr

    @property
    def roll(self) -> Roll:
        """How far the seal has come."""
        return self._roll

    @property
    def rolling(self) -> bool:
        """True from the choice of an end offset on: produce is refused with ROLLING."""
        return not sealing.gives_out_offsets(self._roll)

    @property
    def pending_count(self) -> int:
        """Unanswered produce requests."""
        return len(self._acks)

    @property
    def acked_end(self) -> int:
        """End of everything acked at ``all`` or ``quorum``."""
        return max(self._acks.acked_end, self._base)

    @property
    def durable_by_node(self) -> Mapping[int, int]:
        """Durable end of each replica, as reported in its registered incarnation."""
        return self._durable

    def story(self) -> str:
        """The last inputs, for error messages."""
        return "\n".join(map(repr, self._recent))

    # --- moves ------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Move the high watermark and answer what is durable where it must be."""
        durable, settings, own = self._durable, self.segment.settings, self.durable_end_offset
        isr_end = all_end(durable, self._maximal)
        majority_end = quorum_end(durable, self.segment.replicas, settings.quorum, own)
        if self._hold is not None:
            limit = self._hold_limit(self._hold)
            isr_end, majority_end = min(isr_end, limit), min(majority_end, limit)
        committed = len(self._isr.isr)
        watermark = high_watermark(
            self._high_watermark, isr_end, majority_end, committed, settings.min_insync
        )
        if watermark > self._high_watermark:
            self._high_watermark = watermark
            self._effects.append(out.AdvanceHighWatermark(watermark))
        ends = self._ends
        ends[Acks.ALL], ends[Acks.QUORUM] = isr_end, majority_end
        if self._lease_valid:
            ends[Acks.LEADER] = own
        self._acks.complete(ends, committed >= settings.min_insync, durable, self._effects)

    def _hold_limit(self, hold: tuple[int, float]) -> int:
        node_id, deadline_ms = hold
        if (
            self._now_ms >= deadline_ms
            or node_id in self._maximal
            or not self._followers.by_node[node_id].attached
        ):
            self._hold = None
            return self._log_end
        return self._durable[node_id]

    def _set_isr(self, state: IsrState) -> None:
        self._isr = state
        self._maximal = isr_rules.maximal_isr(state)
        self._dirty = self._isr_due = True

    def _abort_roll(self, roll: Preparing | Draining | Collecting) -> None:
        self._roll = sealing.roll_failed(roll, self._now_ms)
        self._isr_due = True

    def _is_our_seal(self, segment: Segment) -> bool:
        roll = self._roll
        return (
            isinstance(roll, Sealing)
            and segment.state is SegmentState.SEALED
            and (segment.end_offset, segment.seal_digest) == (roll.end_offset, roll.seal_digest)
        )

    def _finish_sealed(self) -> None:
        """The seal is stored: all of it is visible and nobody's batch can be lost any more."""
        roll = self._roll
        if not isinstance(roll, Sealing):
            return
        if roll.end_offset > self._high_watermark:
            self._high_watermark = roll.end_offset
            self._effects.append(out.AdvanceHighWatermark(roll.end_offset))
        self._acks.complete_all(self._durable, self._effects)
        self._stop("sealed")

    def _stop(self, why: str, recover: bool = False) -> None:
        """Answer everybody, then leave for ever."""
        self._acks.fail_all(why, self._effects)
        if recover:
            self._effects.append(out.RequestRecovery(why))
        self._effects.append(out.StepDown(why))
        self.stopped = True
