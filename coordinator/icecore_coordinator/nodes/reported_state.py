"""The last reports of nodes about disks and logs, kept so that a restarted coordinator knows them.

High watermarks are the tripwire of R32; disk counters and durable ends tell a disk that went back
from the one that was there before (R58, R59). All of it comes with heartbeats and only grows, so
what is stored may lag: a little at a time goes into the metadata store, in one transaction, a
slot of many segments per row. It is forgotten when its segment is sealed or deleted.
"""

from collections import defaultdict
from dataclasses import dataclass, field

from icecore.model import NodeId, SegmentId
from icecore.v1 import coordinator_pb2 as pb
from icecore_coordinator.state.cluster_state import ClusterState, Decision
from icecore_coordinator.state.records import NUMBER_JUMP_MAX, Change, ReportedStateRecord, updated

LENGTH_BYTES_MAX = 1 << 50
"""No log is longer, and sums of any number of them can be shown."""
SLOTS = 256
COUNTERS = SLOTS
"""The slot of all disk counters, which is always stored first."""
SLOTS_PER_STORE = 64
"""A store writes no more rows, so about a quarter of what is known, however much changed."""


@dataclass
class Slot:
    """Values that share a row: the disk counters, or unsealed segments with the same id modulo
    ``SLOTS``."""

    disk_counters: dict[NodeId, int] = field(default_factory=dict)
    high_watermarks: dict[SegmentId, int] = field(default_factory=dict)
    durable_ends: dict[SegmentId, dict[NodeId, int]] = field(default_factory=dict)
    """By segment, by node."""


class ReportedState:
    """The newest numbers of every node and every unsealed segment.

    Args:
        state: The cluster; ``load`` before anything is heard.
    """

    def __init__(self, state: ClusterState) -> None:
        self._state = state
        self._slots: defaultdict[int, Slot] = defaultdict(Slot)
        self._lengths: dict[SegmentId, int] = {}
        """Length in bytes of unsealed segments. It is not stored: each leader repeats it when its
        stream begins."""
        self._grown: dict[SegmentId, None] = {}
        self._changed: dict[int, None] = {}
        """Slots to store, the one that waits longest first."""

    def load(self) -> None:
        """Begin with what an earlier coordinator has stored."""
        for record in self._state.heard.values():
            counters = (each for each in record.disk_counters if each[0] in self._state.nodes)
            self._slots[COUNTERS].disk_counters.update(counters)
            for segment_id, high_watermark in record.high_watermarks:
                self._note_watermark(segment_id, high_watermark)
            for segment_id, node_id, end_offset in record.durable_ends:
                self._note_end(segment_id, node_id, end_offset)

    def heartbeat(self, node_id: NodeId, request: pb.HeartbeatRequest) -> None:
        """Take in what one heartbeat says."""
        self._note_counter(node_id, request.disk_counter)
        for led in request.led:
            segment_id = SegmentId(led.segment_id)
            if self._leads(node_id, segment_id):  # only leaders know
                self._note_watermark(segment_id, led.high_watermark)
                self._note_length(segment_id, led.length_bytes)
        for each in request.durable_ends:
            self._note_end(SegmentId(each.segment_id), node_id, each.durable_end_offset)

    def _leads(self, node_id: NodeId, segment_id: SegmentId) -> bool:
        record = self._state.segments.get(segment_id)
        return record is not None and record.segment.leader == node_id

    def _note_counter(self, node_id: NodeId, counter: int) -> None:
        known = self.disk_counter(node_id)
        if known < counter <= known + NUMBER_JUMP_MAX:  # no disk comes farther (R65)
            self._slots[COUNTERS].disk_counters[node_id] = counter
            self._changed[COUNTERS] = None

    def _note_watermark(self, segment_id: SegmentId, high_watermark: int) -> None:
        if segment_id not in self._state.unsealed:
            return  # said before its leader heard of the seal
        known = self.high_watermark(segment_id)
        if known is None or high_watermark > known:
            self._slot(segment_id).high_watermarks[segment_id] = high_watermark

    def _note_length(self, segment_id: SegmentId, length_bytes: int) -> None:
        if segment_id in self._state.unsealed and length_bytes <= LENGTH_BYTES_MAX:
            self._lengths[segment_id] = length_bytes
            self._grown[segment_id] = None

    def _note_end(self, segment_id: SegmentId, node_id: NodeId, end_offset: int) -> None:
        if segment_id not in self._state.unsealed:
            return
        ends = self._slots[segment_id % SLOTS].durable_ends.setdefault(segment_id, {})
        if end_offset > ends.get(node_id, -1):
            self._slot(segment_id).durable_ends[segment_id][node_id] = end_offset

    def _slot(self, segment_id: SegmentId) -> Slot:
        """The one of this segment, about to change."""
        self._changed[segment_id % SLOTS] = None
        return self._slots[segment_id % SLOTS]

    # --- questions ------------------------------------------------------------------------------

    def disk_counter(self, node_id: NodeId) -> int:
        """Return the highest disk counter in any heartbeat of the node; 0 = none."""
        return self._slots[COUNTERS].disk_counters.get(node_id, 0)

    def high_watermark(self, segment_id: SegmentId) -> int | None:
        """Return the highest watermark that a leader of an unsealed segment reported."""
        return self._slots[segment_id % SLOTS].high_watermarks.get(segment_id)

    def length_bytes(self, segment_id: SegmentId) -> int:
        """Return the bytes of an unsealed segment's batches, as its leader reported last; 0 = no
        report."""
        return self._lengths.get(segment_id, 0)

    def take_grown(self) -> list[SegmentId]:
        """Unsealed segments whose length was told since the last call."""
        grown, self._grown = self._grown, {}
        return list(grown)

    def ends_of_node(self, node_id: NodeId) -> dict[SegmentId, int]:
        """By unsealed segment: the farthest durable end that the node ever told."""
        return {
            segment_id: ends[node_id]
            for slot in self._slots.values()
            for segment_id, ends in slot.durable_ends.items()
            if node_id in ends
        }

    # --- forgetting and storing -----------------------------------------------------------------

    def forget_end(self, segment_id: SegmentId, node_id: NodeId) -> None:
        """The node is about to cut its log, rightly, for the end of the segment is decided."""
        self._slot(segment_id).durable_ends.get(segment_id, {}).pop(node_id, None)

    def remove_node(self, node_id: NodeId) -> None:
        """There is no such node any more; who comes with its id has a new disk, or none that
        counts."""
        if self._slots[COUNTERS].disk_counters.pop(node_id, None) is not None:
            self._changed[COUNTERS] = None

    def forget(self, segment_id: SegmentId) -> None:
        """The segment is sealed or deleted."""
        self._lengths.pop(segment_id, None)
        self._grown.pop(segment_id, None)
        slot = self._slot(segment_id)
        slot.high_watermarks.pop(segment_id, None)
        slot.durable_ends.pop(segment_id, None)

    def to_store(self) -> list[Decision]:
        """Return decisions that store the changed slots, at most ``SLOTS_PER_STORE``. The slots
        count as stored from now on: a coordinator ends when its write fails."""
        waiting = sorted(self._changed, key=lambda number: number != COUNTERS)  # else as it is
        numbers = waiting[:SLOTS_PER_STORE]
        for number in numbers:
            del self._changed[number]
        return [_storing(number, self._slots[number]) for number in numbers]


def _storing(number: int, slot: Slot) -> Decision:
    """The decision that puts a slot as it is by then."""

    def decision(state: ClusterState) -> Change:
        ends = slot.durable_ends.items()
        record = updated(
            state.heard.get(number, ReportedStateRecord(number)),
            disk_counters=tuple(slot.disk_counters.items()),
            high_watermarks=tuple(slot.high_watermarks.items()),
            durable_ends=tuple((id_, *end) for id_, by_node in ends for end in by_node.items()),
        )
        return Change((record,))

    return decision
