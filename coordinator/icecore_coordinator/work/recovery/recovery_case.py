"""One segment's case in a recovery, up to its end: who promised, and where the log ends by that.

``recovery`` asks the nodes and writes their replies to the fence down here. A case answers from
these alone whether the end may be decided and where it is; then it becomes a ``DecidedCase``. It
calls nobody and commits nothing. Rules in docs/design/protocol.md.
"""

from dataclasses import dataclass, field

from icecore.model import (
    EPOCH_STEP,
    NO_EPOCH,
    NO_INCARNATION,
    NO_NODE,
    OFFSETS_LEFT_OUT,
    Epoch,
    NodeId,
    Segment,
    SegmentId,
)
from icecore_coordinator.nodes.node_calls import (
    WrittenReplica,
)
from icecore_coordinator.work.recovery.decided_case import (
    DecidedCase,
)
from icecore_replication.recovery import (
    EndDecision,
    FenceReply,
    Undecidable,
    decide_end,
    decide_unclean,
    may_decide,
)


@dataclass
class Case:
    """One segment whose replicas are asked where it ends."""

    segment: Segment
    """As RECOVERING: frozen."""
    is_unclean_allowed: bool = False
    known_promise: Epoch = NO_EPOCH
    """The highest one that a replica refused ours for."""
    is_lossy: bool = False
    """The end is not proved, or was not in an earlier round, but chosen with an admin's word."""
    replies: dict[NodeId, FenceReply] = field(default_factory=dict)

    @property
    def segment_id(self) -> SegmentId:
        """The id of the case's segment."""
        return self.segment.segment_id

    @property
    def promise(self) -> Epoch:
        """The epoch that shuts the old leader out; below the successor's, unless somebody else had
        a higher one promised: what counts is that no leader of this segment has it."""
        return max(Epoch(self.segment.epoch + EPOCH_STEP - 1), self.known_promise)

    def may_decide(self) -> bool:
        """Return whether enough replicas have answered to know the end."""
        return may_decide(self.replies, self.segment) is not None

    def decide(self, known_high_watermark: int) -> DecidedCase | Undecidable:
        """The end that the replies prove, or why they prove none."""
        end = decide_end(self.replies, known_high_watermark)
        return end if isinstance(end, Undecidable) else self._decided(end, known_high_watermark)

    def decide_unclean(
        self, known_high_watermark: int, log_start_offset: int, now_ms: int
    ) -> DecidedCase:
        """An admin accepted the loss: the end is that of the longest log there is, or of none. One
        that ends below the log start has nothing that anybody may read."""
        end = decide_unclean(self.replies)
        if end is None or end.end_offset < log_start_offset:
            return self._lost(known_high_watermark, now_ms)
        return self._decided(end, known_high_watermark)

    def _seen(self, known_high_watermark: int) -> int:
        """Return how far anybody is known to have read: replicas were told of it, too. Whoever says
        more than a segment can have is wrong, and its word must not use up offsets."""
        told = (
            each.max_known_high_watermark
            for each in self.replies.values()
            if each.intact or each.salvageable
        )
        seen, base = max([known_high_watermark, *told]), self.segment.base_offset
        return max(base, min(seen, base + OFFSETS_LEFT_OUT))

    def _decided(self, end: EndDecision, known_high_watermark: int) -> DecidedCase:
        return DecidedCase(
            segment=self.segment,
            end=end,
            is_lossy=self.is_lossy,
            is_donor_unknown=not self.replies[end.donor].intact,
            seen_end_offset=self._seen(known_high_watermark),
        )

    def _lost(self, known_high_watermark: int, now_ms: int) -> DecidedCase:
        seen_end_offset = self._seen(known_high_watermark)
        nothing = WrittenReplica(
            incarnation=NO_INCARNATION,
            seal_digest=b"",
            producer_snapshot=b"",
            producer_digest=b"",
            max_append_timestamp_ms=now_ms,
            length_bytes=0,
        )
        return DecidedCase(
            segment=self.segment,
            end=EndDecision(seen_end_offset, donor=NO_NODE, last_header_crc32c=0),
            is_lossy=self.is_lossy,
            is_lost=True,
            seen_end_offset=seen_end_offset,
            donor=nothing,
        )
