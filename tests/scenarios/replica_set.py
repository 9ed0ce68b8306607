"""One segment of a story: its leader and followers, and the coordinator's record of it.

The cores are those of production, and production's invariants are checked after each of their
steps. What they want done is printed; what comes of it is up to the commands of the story.
"""

from collections import deque
from dataclasses import dataclass

from icecore.model import NodeInfo, NodeState, Segment, SegmentState
from icecore.topic_settings import SegmentSettings
from icecore_replication import effects as out
from icecore_replication.follower import FollowerCore
from icecore_replication.inputs import FollowerInput, LeaderInput
from icecore_replication.invariants import check_state, check_step, view
from icecore_replication.leader import LeaderCore, LeaderLimits, LeaderStart
from icecore_replication.producers import ProducerTable
from tests.scenarios.effect_lines import line, nodes

LEADER = 1
EPOCH = 5
INCARNATION_STEP = 10


@dataclass
class Follower:
    """A follower's core and what stands between it and the leader."""

    core: FollowerCore
    incarnation: int
    is_connected: bool = True


class ReplicaSet:
    """Node 1 leads; ``open`` and ``start`` begin."""

    leader: LeaderCore
    record: Segment
    """As the coordinator stores it."""

    def __init__(self) -> None:
        self.followers: dict[int, Follower] = {}
        self.registered: dict[int, int] = {}
        """Incarnations, by node, as the coordinator has them."""
        self.proposals: deque[out.ProposeIsr] = deque()
        """Proposals of the in-sync set that are on their way to the coordinator."""
        self.digests_asked: out.CollectSealDigests | None = None
        self.requests = 0
        self.deliveries = 0
        self.now_ms = 0.0
        self._lines: list[str] = []

    def open(
        self, settings: SegmentSettings, replicas: tuple[int, ...], isr: tuple[int, ...], base: int
    ) -> None:
        """The coordinator has an ACTIVE record."""
        self.registered = {each: INCARNATION_STEP + each for each in replicas}
        self.record = Segment(
            segment_id=7,
            topic_id=b"t" * 16,
            topic="flights",
            partition=0,
            state=SegmentState.ACTIVE,
            epoch=EPOCH,
            settings=settings,
            base_offset=base,
            leader=LEADER,
            leader_incarnation=self.registered[LEADER],
            replicas=replicas,
            isr=isr,
            version=1,
        )

    def start(self, limits: LeaderLimits) -> None:
        """The leader's core and the followers', on empty logs."""
        followers = [each for each in self.record.replicas if each != LEADER]
        start = LeaderStart(
            segment=self.record,
            node_id=LEADER,
            incarnation=self.record.leader_incarnation,
            producers=ProducerTable(),
            max_append_timestamp_ms=0,
            nodes={each: self.info(each) for each in followers},
            now_ms=self.now_ms,
        )
        self.leader = LeaderCore(start, limits)
        base = self.record.base_offset
        for node_id in followers:
            self.followers[node_id] = Follower(self.core(base, base), self.registered[node_id])

    def core(self, end_offset: int, high_watermark: int) -> FollowerCore:
        """A follower's, on a durable log. The header CRC of a batch is the offset behind it."""
        return FollowerCore(
            self.record, end_offset, end_offset, high_watermark, last_header_crc32c=end_offset
        )

    def info(self, node_id: int, state: NodeState = NodeState.UP) -> NodeInfo:
        """The node as the coordinator tells of it."""
        return NodeInfo(node_id, f"node-{node_id}:7401", self.registered[node_id], state)

    # --- steps of the cores ----------------------------------------------------------------------

    def lead(self, *inputs: LeaderInput) -> None:
        """One step of the leader, checked and printed."""
        core = self.leader
        before = view(core)
        effects = core.step(inputs, self.now_ms)
        check_state(core)
        check_step(before, core)
        for effect in effects:
            self.say(LEADER, line(effect))
            if isinstance(effect, out.ProposeIsr):
                self.proposals.append(effect)
            elif isinstance(effect, out.CollectSealDigests):
                self.digests_asked = effect

    def follow(self, node_id: int, *inputs: FollowerInput) -> list[out.ReportProgress]:
        """One step of a follower, checked and printed; returns the reports that arrive."""
        follower = self.followers[node_id]
        before = view(follower.core)
        effects = follower.core.step(inputs, self.now_ms)
        check_state(follower.core)
        check_step(before, follower.core)
        reports = [each for each in effects if isinstance(each, out.ReportProgress)]
        for effect in effects:
            is_lost = effect in reports and not follower.is_connected
            self.say(node_id, line(effect) + (", which is lost" if is_lost else ""))
        return reports if follower.is_connected else []

    # --- what is printed -------------------------------------------------------------------------

    def store(self, record: Segment) -> None:
        """The coordinator has a new record; nobody was told."""
        self.record = record
        self.tell(
            f"coordinator: stores version {record.version}, {record.state.name}, "
            f"isr {nodes(record.isr)}"
        )

    def say(self, node_id: int, text: str) -> None:
        """A line of a node."""
        self.tell(f"{node_id}: {text}")

    def tell(self, text: str) -> None:
        """A line of anybody."""
        self._lines.append(text)

    def printed(self) -> list[str]:
        """All since the last time."""
        lines, self._lines = self._lines, []
        return lines
