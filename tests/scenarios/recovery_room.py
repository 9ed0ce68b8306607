"""The coordinator of a story about recovery: its records, and the case of one segment.

The decisions are production's, and each change is committed the way the ledger does, under its
versions. Nobody calls nodes: what they answer is told by the commands of the story.
"""

from collections.abc import Sequence

from icecore.errors import ConflictError
from icecore.model import NodeState, Segment, SegmentState
from icecore.topic_settings import SegmentSettings
from icecore_coordinator.decisions.segment_changes import Opening, open_tail, prepare
from icecore_coordinator.decisions.topic_changes import create_topic, missing_partitions
from icecore_coordinator.state.cluster_state import ClusterState, Placement
from icecore_coordinator.state.liveness import Liveness
from icecore_coordinator.state.records import (
    Change,
    ClusterRecord,
    DeletionRecord,
    NodeRecord,
    PartitionKey,
    PartitionRecord,
    SegmentRecord,
    updated,
)
from icecore_coordinator.work.recovery.decided_case import DecidedCase
from icecore_coordinator.work.recovery.recovery_case import Case
from tests.scenarios.effect_lines import nodes
from tests.support.cluster_states import commit

TOPIC = b"t" * 16
KEY: PartitionKey = (TOPIC, 0)
INCARNATION_STEP = 10
FIRST = 1
"""The id of the first segment."""


class RecoveryRoom:
    """A cluster with one partition; ``open`` begins."""

    def __init__(self) -> None:
        self.state = ClusterState()
        self.live = Liveness()
        self.case: Case | None = None
        self.decided: DecidedCase | None = None
        self.confirmed: dict[int, dict[int, int]] = {}
        """Incarnations by node, by prepared segment, as they were when they confirmed it."""

    def open(
        self, count: int, replicas: tuple[int, ...], leader: int, settings: SegmentSettings
    ) -> None:
        """Bring ``count`` nodes up, and make the first segment ACTIVE."""
        self.commit(Change((ClusterRecord(b"c" * 16, version=1),)))
        for node_id in range(1, count + 1):
            incarnation = INCARNATION_STEP + node_id
            node = NodeRecord(
                node_id=node_id,
                disk_id=bytes([node_id]),
                address=f"node-{node_id}:7401",
                issued_incarnation=incarnation,
                incarnation=incarnation,
                version=1,
            )
            self.commit(Change((node,)))
            self.live.note(node_id, state=NodeState.UP, is_connected=True)
        self.commit(create_topic(self.state, self.live, "flights", TOPIC, 1, settings))
        for change in missing_partitions(self.state):
            self.commit(change)
        self.prepare(replicas, leader)
        self.commit(open_tail(self.state, self.live, self.opening(FIRST, replicas)))

    # --- records ---------------------------------------------------------------------------------

    def segment(self, segment_id: int = FIRST) -> Segment:
        """As it is stored. Raises ConflictError: there is none."""
        return self.record(segment_id).segment

    def record(self, segment_id: int = FIRST) -> SegmentRecord:
        """As it is stored. Raises ConflictError: there is none."""
        record = self.state.segments.get(segment_id)
        if record is None:
            raise ConflictError(f"there is no segment {segment_id}")
        return record

    def commit(self, change: Change) -> list[str]:
        """Apply a transaction, and say what it changed."""
        commit(self.state, change)
        return [line for record in change.puts if (line := _line(record))]

    def prepare(self, candidates: Sequence[int], leader: int) -> list[str]:
        """A PREPARED segment on these nodes."""
        return self.commit(prepare(self.state, [(KEY, Placement(tuple(candidates), leader))]))

    def opening(self, segment_id: int, confirmed_by: Sequence[int] = ()) -> Opening:
        """The prepared segment with all confirmations of its files so far, and these."""
        confirmed = self.confirmed.setdefault(segment_id, {})
        confirmed.update({each: self.state.incarnation(each) for each in confirmed_by})
        return Opening(segment_id, dict(confirmed))

    def restart(self, node_id: int) -> int:
        """The node is registered again; returns its new incarnation."""
        node = self.state.nodes[node_id]
        incarnation = node.incarnation + INCARNATION_STEP
        again = updated(node, incarnation=incarnation, issued_incarnation=incarnation)
        self.commit(Change((again,)))
        return incarnation

    @property
    def open_case(self) -> Case:
        """The recovery that is under way."""
        assert self.case is not None, "no recovery is under way"
        return self.case

    @property
    def decided_case(self) -> DecidedCase:
        """The same, once its end is decided."""
        assert self.decided is not None, "the end is not decided"
        return self.decided


def _line(record: object) -> str:
    """A record that changed, empty for those that no story is about."""
    match record:
        case SegmentRecord():
            return segment_line(record.segment)
        case PartitionRecord(tail_segment_id=tail, next_base_offset=base):
            return f"partition: {f'tail {tail}' if tail else 'no tail'}, from {base}"
        case DeletionRecord(segment_id=segment_id, holders=holders):
            return f"segment {segment_id}: deleted, holders {nodes(holders)}"
    return ""


def segment_line(segment: Segment) -> str:
    """Return the line that shows a segment's record in a scenario file."""
    name = f"segment {segment.segment_id}: {segment.state.name}"
    replicas = f"replicas {nodes(segment.replicas)}"
    if segment.state is SegmentState.PREPARED:
        return f"{name}, epoch {segment.epoch}, leader {segment.leader}, {replicas}"
    if segment.state is SegmentState.SEALED:
        lossy = ", lossy" if segment.lossy else ""
        return f"{name}, [{segment.base_offset}, {segment.end_offset}), {replicas}{lossy}"
    return (
        f"{name} from {segment.base_offset}, epoch {segment.epoch}, leader {segment.leader}, "
        f"{replicas}, isr {nodes(segment.isr)}"
    )
