"""The invariants of the protocol cores, held by every core of a world at every step.

Simulated nodes check each core after each step (``Checked``), with the inputs that real shells,
disks and networks give it; a node that finds one broken ends, and here it is noted. What several
nodes must agree on is looked at as well: the stored in-sync set (I7, I8), and that no segment is
sealed below what somebody could read (I3).
"""

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any

from icecore.model import Segment, SegmentState
from icecore_node.replication.leader import Leader
from icecore_replication.checked import Checked
from icecore_replication.follower import FollowerCore
from icecore_replication.invariants import InvariantError, check_maximal
from icecore_replication.leader import LeaderCore

if TYPE_CHECKING:
    from tests.simulation.cluster import World

Note = Callable[[str], None]


class CoreInvariants:
    """The facts that the cores of one world showed so far.

    Args:
        world: Whose nodes are looked at.
        note: Told of what must not be.
        waits_for_all: No record is acknowledged by a quorum, which I8 says nothing about.
    """

    def __init__(self, world: "World", note: Note, *, waits_for_all: bool) -> None:
        self._waits_for_all = waits_for_all
        self._world = world
        self._note = note
        self._visible: dict[int, int] = {}
        """The highest watermark that any core ever had, by segment."""

    def on_broken(self, broken: InvariantError) -> None:
        """The check after a step failed."""
        self._note(str(broken))

    def on_stepped(self, core: LeaderCore | FollowerCore) -> None:
        """A core took its inputs, and is as it should be."""
        segment_id, watermark = core.segment.segment_id, core.high_watermark
        if watermark > self._visible.get(segment_id, -1):
            self._visible[segment_id] = watermark

    def on_acked(self, core: LeaderCore) -> None:
        """I8: whoever is stored as in sync has all that was acknowledged, durably."""
        segment_id, acked = core.segment.segment_id, core.acked_end
        stored = self._world.stored_segment(segment_id)
        is_led = stored is not None and stored.state is SegmentState.ACTIVE
        if stored is None or not is_led or not self._waits_for_all:
            return
        for node_id in stored.isr:
            end = self._durable_end(node_id, segment_id)
            if end is not None and end < acked:
                self._note(
                    f"I8: node {node_id} is stored in sync with {end} of segment {segment_id},"
                    f" acked is {acked}"
                )

    def _durable_end(self, node_id: int, segment_id: int) -> int | None:
        """As an undamaged node that runs knows it; None of others."""
        name = f"node-{node_id}"
        node = self._world.shells.get(name)
        if node is None or self._world.is_suspect(name):
            return None
        replica = node.replicas.get(segment_id)
        if replica is None or not replica.life.is_intact or replica.base_offset < 0:
            return None
        end: int = replica.log.durable_tail.end_offset
        return end

    def on_stored(self, segment: Segment) -> None:
        """A segment record was stored: I7 while it is led, I3 once it is sealed."""
        if segment.state is SegmentState.SEALED and not segment.lossy:
            visible = self._visible.get(segment.segment_id, -1)
            if visible > segment.end_offset:
                self._note(
                    f"I3: segment {segment.segment_id} is sealed at {segment.end_offset},"
                    f" {visible} was visible"
                )
        if segment.state is SegmentState.ACTIVE:
            self._check_leader(segment)

    def _check_leader(self, segment: Segment) -> None:
        node = self._world.shells.get(f"node-{segment.leader}")
        if node is None:
            return
        replica = node.replicas.get(segment.segment_id)
        leader = replica.role if replica is not None else None
        if not isinstance(leader, Leader):
            return
        core = leader.core
        if core.stopped or node.context.identity.incarnation != segment.leader_incarnation:
            return
        try:
            check_maximal(core, segment.isr)
        except AssertionError as broken:
            self._note(str(broken))


def stepping(seen: CoreInvariants) -> Callable[[Any], Any]:
    """Return the wrapper that replaces ``Checked.step``."""

    def replace(original: Callable[..., list[Any]]) -> Callable[..., list[Any]]:
        @wraps(original)
        def step(self: Checked[Any], *given: Any) -> list[Any]:
            core = self.core
            leader = core if isinstance(core, LeaderCore) else None
            acked_end = leader.acked_end if leader is not None else 0
            try:
                effects = original(self, *given)
            except InvariantError as broken:
                seen.on_broken(broken)
                raise
            seen.on_stepped(core)
            if leader is not None and leader.acked_end > acked_end:
                seen.on_acked(leader)
            return effects

        return step

    return replace
