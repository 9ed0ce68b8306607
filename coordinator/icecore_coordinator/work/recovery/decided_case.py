"""One segment's case in a recovery, from its end on: who holds all of it, and what is sealed.

``recovery`` asks the nodes for copies up to the end and writes down here what they told: the
digests of the donor, and the nodes that hold everything durably. A case answers from these alone
who is to copy what from whom, where the successor begins and what is sealed. It calls nobody and
commits nothing. Rules in docs/design/protocol.md.
"""

from dataclasses import dataclass, field

from icecore.model import Incarnation, NodeId, Segment, SegmentId
from icecore_coordinator.decisions.segment_changes import DecidedSeal
from icecore_coordinator.nodes.node_calls import OpenItem, WriteBackItem, WrittenReplica
from icecore_coordinator.state.cluster_state import ClusterState, eligible_nodes
from icecore_coordinator.state.left_out import base_behind
from icecore_coordinator.state.liveness import Liveness
from icecore_coordinator.state.records import PartitionKey
from icecore_replication.producers import snapshot_digest
from icecore_replication.recovery import EndDecision


@dataclass(kw_only=True)
class DecidedCase:
    """One segment on its way from its end to its seal."""

    segment: Segment
    """As RECOVERING: frozen."""
    end: EndDecision
    is_lossy: bool
    """The end is not proved, or was not in an earlier round, but chosen with an admin's word."""
    is_lost: bool = False
    """And nobody has a copy."""
    is_donor_unknown: bool = False
    """The end is that of a log which is not intact: it counts by an admin's word only."""
    seen_end_offset: int = 0
    """Readers are known to have come so far."""
    donor: WrittenReplica | None = None
    """The donor's report about its whole log; None before it has answered."""
    verified: dict[NodeId, Incarnation] = field(default_factory=dict)
    """Nodes that hold everything to the end durably, with their incarnation."""

    @property
    def segment_id(self) -> SegmentId:
        """The id of the case's segment."""
        return self.segment.segment_id

    @property
    def key(self) -> PartitionKey:
        """The topic id and number of the segment's partition."""
        return (self.segment.topic_id, self.segment.partition)

    @property
    def is_empty(self) -> bool:
        """Return whether there is nothing in it."""
        return self.end.end_offset == self.segment.base_offset

    # --- the copies -------------------------------------------------------------------------------

    def order_to_donor(self) -> WriteBackItem:
        """Return the order to the donor: verify its own log to the end."""
        return WriteBackItem(self.segment, self.end.end_offset, salvage=self.is_donor_unknown)

    def order_to_target(self, donor_address: str) -> WriteBackItem:
        """Return the order to each other node: copy from the donor the records that it lacks."""
        return WriteBackItem(
            self.segment,
            self.end.end_offset,
            donor_address=donor_address,
            seal_digest=self.written.seal_digest,
        )

    @property
    def written(self) -> WrittenReplica:
        """The donor's report, for the steps that come after it."""
        assert self.donor is not None
        return self.donor

    def take_donor(self, written: WrittenReplica) -> bool:
        """Take it for the donor's answer, and say whether: its producers must fit their digest."""
        is_good = snapshot_digest(written.producer_snapshot) == written.producer_digest
        if is_good:
            self.donor = written
        return is_good

    def agrees_with_donor(self, written: WrittenReplica) -> bool:
        """Return whether another replica told the same digests and length."""
        donor = self.written
        told = (written.seal_digest, written.producer_digest, written.length_bytes)
        return told == (donor.seal_digest, donor.producer_digest, donor.length_bytes)

    def is_written(self) -> bool:
        """Return whether enough copies hold all of it to seal it."""
        return (
            self.is_empty
            or self.is_lost
            or len(self.verified) >= self.segment.settings.min_insync_replicas
        )

    def targets(self, state: ClusterState, live: Liveness) -> list[NodeId]:
        """Live replicas besides the donor; fresh nodes too when there are fewer than
        min_insync_replicas."""
        if self.is_empty:
            return []
        up = [n for n in self.segment.replicas if n != self.end.donor and live.is_live(n)]
        missing = self.segment.settings.min_insync_replicas - 1 - len(up)
        fresh = [
            each.node_id
            for each in eligible_nodes(state, live)
            if each.node_id not in self.segment.replicas
        ]
        return up + fresh[: max(0, missing)]

    # --- the seal ---------------------------------------------------------------------------------

    def successor_to_open(self, successor: Segment) -> OpenItem:
        """It begins where this segment ends, or above all that was seen where the end is not
        proved, with the producers as they are at the end."""
        base = self.end.end_offset
        if self.is_lossy:
            base = base_behind(base, self.seen_end_offset)
        return OpenItem(
            successor,
            base,
            self.written.producer_snapshot,
            self.written.max_append_timestamp_ms,
        )

    def sealing(self, state: ClusterState) -> DecidedSeal:
        """The end with the copies that are still of the incarnations that verified them."""
        replicas = [n for n, known in self.verified.items() if state.incarnation(n) == known]
        return DecidedSeal(
            segment_id=self.segment_id,
            version=self.segment.version,
            end_offset=self.end.end_offset,
            seal_digest=self.written.seal_digest,
            replicas=tuple(sorted(replicas)),
            length_bytes=self.written.length_bytes,
            producer_digest=self.written.producer_digest,
            max_append_timestamp_ms=self.written.max_append_timestamp_ms,
            is_lossy=self.is_lossy,
            seen_end_offset=self.seen_end_offset,
        )
