"""One segment's case in a recovery: what is known of it so far, and what follows from that.

The steps of ``recovery`` ask the nodes and write the answers down here: the replies to the fence,
the end, the donor that told its digests, the nodes that hold everything durably. A case answers
from these alone whether the end may be decided and where it is, who is to copy what from whom, and
what is sealed. It calls nobody and commits nothing. Rules in docs/PROTOCOL.md.
"""

from dataclasses import dataclass, field

from icecore.model import (
    NO_EPOCH,
    NO_INCARNATION,
    NO_NODE,
    Epoch,
    Incarnation,
    NodeId,
    Segment,
    SegmentId,
)
from icecore_coordinator.decisions.segment_changes import EPOCH_STEP, Sealing
from icecore_coordinator.nodes.node_calls import OpenItem, WriteBackItem, Written
from icecore_coordinator.state.cluster_state import ClusterState, eligible_nodes
from icecore_coordinator.state.liveness import Liveness
from icecore_coordinator.state.records import PartitionKey
from icecore_replication.producers import snapshot_digest
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
    """One segment on its way through a recovery."""

    segment: Segment
    """As RECOVERING: frozen."""
    is_unclean_allowed: bool = False
    known_promise: Epoch = NO_EPOCH
    """The highest one that a replica refused ours for."""
    is_lossy: bool = False
    """The end is not proved, or was not in an earlier round, but chosen with an admin's word."""
    is_lost: bool = False
    """And nobody has a copy."""
    replies: dict[NodeId, FenceReply] = field(default_factory=dict)
    end: EndDecision | None = None
    donor: Written | None = None
    verified: dict[NodeId, Incarnation] = field(default_factory=dict)
    """Nodes that hold everything to the end durably, with their incarnation."""

    @property
    def segment_id(self) -> SegmentId:
        return self.segment.segment_id

    @property
    def key(self) -> PartitionKey:
        return (self.segment.topic_id, self.segment.partition)

    @property
    def promise(self) -> Epoch:
        """The epoch that shuts the old leader out; below the successor's, unless somebody else had
        a higher one promised: what counts is that no leader of this segment has it."""
        return max(Epoch(self.segment.epoch + EPOCH_STEP - 1), self.known_promise)

    # --- the end ----------------------------------------------------------------------------------

    def may_decide(self) -> bool:
        """Whether enough replicas have answered to know the end."""
        return may_decide(self.replies, self.segment) is not None

    def decide(self, known_high_watermark: int) -> Undecidable | None:
        """Set the end that the replies prove, or say why they prove none."""
        decided = decide_end(self.replies, known_high_watermark)
        if isinstance(decided, Undecidable):
            return decided
        self.end = decided
        return None

    def decide_unclean(self, known_high_watermark: int, now_ms: int) -> None:
        """An admin accepted the loss: the end is that of the longest log there is, or of none."""
        self.end = decide_unclean(self.replies)
        if self.end is None:
            self.is_lost = True
            # Offsets that somebody has seen must not be given out again.
            end_offset = max(self.segment.base_offset, known_high_watermark)
            self.end = EndDecision(end_offset, donor=NO_NODE, last_header_crc32c=0)
            self.donor = Written(
                incarnation=NO_INCARNATION,
                seal_digest=b"",
                producer_snapshot=b"",
                producer_digest=b"",
                max_append_timestamp_ms=now_ms,
                length_bytes=0,
            )

    @property
    def decided(self) -> EndDecision:
        """The end, for the steps that come after it."""
        assert self.end is not None
        return self.end

    @property
    def is_empty(self) -> bool:
        return self.end is not None and self.end.end_offset == self.segment.base_offset

    @property
    def is_donor_unknown(self) -> bool:
        """The end is that of a log which is not intact: it counts by an admin's word only."""
        return not self.is_lost and not self.replies[self.decided.donor].intact

    # --- the copies -------------------------------------------------------------------------------

    @property
    def segment_to_write(self) -> Segment:
        """As nodes see it: only with a person's word they cut off what readers have seen (R66)."""
        return self.segment.changed(lossy=self.is_lossy)

    def order_to_donor(self) -> WriteBackItem:
        """What the donor is asked: to verify its own log to the end."""
        return WriteBackItem(
            self.segment_to_write, self.decided.end_offset, salvage=self.is_donor_unknown
        )

    def order_to_target(self, donor_address: str) -> WriteBackItem:
        """What the others are asked: to copy from the donor what they lack."""
        return WriteBackItem(
            self.segment_to_write,
            self.decided.end_offset,
            donor_address=donor_address,
            seal_digest=self.written.seal_digest,
        )

    @property
    def written(self) -> Written:
        """What the donor told, for the steps that come after it."""
        assert self.donor is not None
        return self.donor

    def take_donor(self, written: Written) -> bool:
        """Take it for the donor's answer, and say whether: its producers must fit their digest."""
        is_good = snapshot_digest(written.producer_snapshot) == written.producer_digest
        if is_good:
            self.donor = written
        return is_good

    def agrees_with_donor(self, written: Written) -> bool:
        """Whether another replica told the same digests and length."""
        donor = self.written
        told = (written.seal_digest, written.producer_digest, written.length_bytes)
        return told == (donor.seal_digest, donor.producer_digest, donor.length_bytes)

    def is_written(self) -> bool:
        return (
            self.is_empty or self.is_lost or len(self.verified) >= self.segment.settings.min_insync
        )

    def targets(self, state: ClusterState, live: Liveness) -> list[NodeId]:
        """Live replicas besides the donor; fresh nodes too when there are fewer than min_insync."""
        donor = self.decided.donor
        if self.is_empty:
            return []
        up = [n for n in self.segment.replicas if n != donor and live.is_live(n)]
        missing = self.segment.settings.min_insync - 1 - len(up)
        fresh = [
            each.node_id
            for each in eligible_nodes(state, live)
            if each.node_id not in self.segment.replicas
        ]
        return up + fresh[: max(0, missing)]

    # --- the seal ---------------------------------------------------------------------------------

    def successor_to_open(self, successor: Segment) -> OpenItem:
        """It begins where this segment ends, with the producers as they are there."""
        return OpenItem(
            successor,
            self.decided.end_offset,
            self.written.producer_snapshot,
            self.written.max_append_timestamp_ms,
        )

    def sealing(self, state: ClusterState) -> Sealing:
        """The end with the copies that are still of the incarnations that verified them."""
        replicas = [n for n, known in self.verified.items() if state.incarnation(n) == known]
        return Sealing(
            segment_id=self.segment_id,
            version=self.segment.version,
            end_offset=self.decided.end_offset,
            seal_digest=self.written.seal_digest,
            replicas=tuple(sorted(replicas)),
            length_bytes=self.written.length_bytes,
            producer_digest=self.written.producer_digest,
            max_append_timestamp_ms=self.written.max_append_timestamp_ms,
            is_lossy=self.is_lossy,
        )
