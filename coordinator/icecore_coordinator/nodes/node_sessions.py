"""Heartbeat streams: who is up, and what each node has to be told.

A node is DOWN when its stream broke and was not resumed by the same incarnation within 500 ms, or
when it was silent for a lease. The 500 ms count only for a stream that this process held: after
its start every known node has a full lease to come, and again after it was late itself, for a
paused coordinator has learnt nothing about its nodes. Safety needs none of this; it only decides
when recovery starts.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from icecore.model import NodeState, SegmentState
from icecore.rpc.convert import node_to_proto, segment_to_proto
from icecore.rpc.ports import Clock, ServerStream
from icecore.v1 import coordinator_pb2 as pb
from icecore_coordinator.decisions.node_changes import HeldReplica, Registration, unborn_segments
from icecore_coordinator.nodes.heard import Heard
from icecore_coordinator.nodes.pages import Pages
from icecore_coordinator.state.cluster_state import ClusterState
from icecore_coordinator.state.records import (
    Change,
    DeletedRecord,
    NodeRecord,
    PartitionKey,
    PartitionRecord,
    ProducerRecord,
    SegmentRecord,
    TopicRecord,
    is_prepared,
)

log = logging.getLogger(__name__)

BROKEN_STREAM_MS = 500.0
CLOCK_OFF_MS = 5_000
"""A node whose wall clock differs more from ours is not asked to lead, if others can."""
UNKNOWN_KEPT_MAX = 1_000_000
"""Of one node: more than it can have segments."""
LATE_TICK_MS = 600.0
"""500 ms more than the interval of ticks."""
ASSIGNMENTS_PER_PUSH = 2_000
"""About 600 KiB; gRPC refuses messages above 4 MiB."""


@dataclass
class Registered:
    """The last Register of a node, kept for when the heartbeat activates it."""

    registration: Registration
    held: dict[int, HeldReplica]
    is_disk_unknown: bool
    incarnation: int


@dataclass
class Session:
    """One heartbeat stream and what is yet to be sent down."""

    node_id: int
    incarnation: int
    last_beat_ms: float
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    is_closed: bool = False
    answer: int = 0
    """Sequence of the newest beat that was not answered yet."""
    is_full: bool = True
    nodes: bool = True
    may_leave: bool = False
    segments: dict[int, None] = field(default_factory=dict)
    deletes: dict[int, None] = field(default_factory=dict)
    partitions: dict[PartitionKey, None] = field(default_factory=dict)
    fences: dict[str, None] = field(default_factory=dict)
    """Names of producers whose epoch rose."""


@dataclass
class Usage:
    """What a node last said about its disk."""

    free_bytes: int = 0
    used_bytes: int = 0


class NodeSessions:
    """All heartbeat sessions; keeps ``ClusterState.status`` up to date.

    Args:
        state: The cluster.
        clock: Monotonic time of leases.
        lease_ms: How long a silent node stays up.
        on_status: Called after a node changed between up and down.
    """

    def __init__(
        self,
        state: ClusterState,
        clock: Clock,
        lease_ms: float,
        on_status: Callable[[], None],
    ) -> None:
        self.registered: dict[int, Registered] = {}
        self.usage: dict[int, Usage] = {}
        self.heard = Heard(state)
        self.unknown: dict[int, dict[int, None]] = {}
        """By node: segments whose copy there is damaged or missing, as it said itself."""
        self.shut_out: dict[int, None] = {}
        """ACTIVE segments that some member can't append to, for it promised a higher epoch."""
        self.pages = Pages(clock)
        self.up_since_ms: dict[int, float] = {}
        self.down_since_ms: dict[int, float] = {}
        self._state = state
        self._clock = clock
        self._lease_ms = lease_ms
        self._on_status = on_status
        self._sessions: dict[int, Session] = {}
        self._deadlines: dict[int, float] = {}
        """When nodes without a stream become DOWN."""
        self._grace_until_ms = 0.0
        """Until then a missing node may just not have had the time to come."""
        self._late_until_ms = 0.0
        """Until then a stream may have broken because of our own pause."""
        self._last_tick_ms = 0.0
        self.token = 0

    def start(self) -> None:
        """Know what was heard before, and give every known node a lease to come back."""
        self.heard.load()
        now = self._clock.monotonic_ms()
        self._last_tick_ms = now
        self._grace_until_ms = now + self._lease_ms
        for node_id in sorted(self._state.nodes):
            if self._state.incarnation(node_id):
                self._state.status[node_id].state = NodeState.UP
                self._deadlines[node_id] = self._grace_until_ms

    @property
    def in_grace(self) -> bool:
        """Whether nodes that are missing may just not have had the time to come back."""
        return bool(self._deadlines) and self._clock.monotonic_ms() < self._grace_until_ms

    def tick(self) -> None:
        """Look at the clock; to be called every 100 ms or so."""
        now = self._clock.monotonic_ms()
        if now - self._last_tick_ms > LATE_TICK_MS:
            log.warning("event=late_tick late_ms=%d", now - self._last_tick_ms)
            self._grace_until_ms = self._late_until_ms = now + self._lease_ms
            for session in self._sessions.values():
                session.last_beat_ms = now
            for node_id in self._deadlines:
                self._deadlines[node_id] = self._grace_until_ms
        self._last_tick_ms = now
        for session in list(self._sessions.values()):
            if now - session.last_beat_ms > self._lease_ms:
                self._close(session)
                self._set_down(session.node_id, "lease expired")
        for node_id, deadline in list(self._deadlines.items()):
            if now >= deadline:
                self._set_down(node_id, "no stream")

    def is_unknown(self, node_id: int, segment_id: int) -> bool:
        """Whether the node has said that its copy counts for nothing."""
        return segment_id in self.unknown.get(node_id, ())

    def copied(self, node_id: int, segment_id: int) -> None:
        """The node holds the segment again, or is about to; it says so when it does not."""
        self.unknown.get(node_id, {}).pop(segment_id, None)

    # --- streams --------------------------------------------------------------------------------

    def connect(self, node_id: int, incarnation: int) -> Session:
        """A stream of a registered incarnation begins; it replaces an older one of the node."""
        old = self._sessions.get(node_id)
        if old is not None:
            self._close(old)
        session = Session(node_id, incarnation, self._clock.monotonic_ms())
        self._sessions[node_id] = session
        self._deadlines.pop(node_id, None)
        self.down_since_ms.pop(node_id, None)
        self.up_since_ms[node_id] = session.last_beat_ms
        self.unknown[node_id] = {}  # its first beat says all of it
        status = self._state.status[node_id]
        status.is_connected = True
        if status.state == NodeState.DOWN:
            status.state = NodeState.UP
        session.wake.set()
        log.info("event=node_up node=%d incarnation=%d", node_id, incarnation)
        self._nodes_changed()
        return session

    def beat(self, session: Session, request: pb.HeartbeatRequest) -> None:
        """Take in one heartbeat and answer it soon."""
        session.last_beat_ms = self._clock.monotonic_ms()
        session.answer = request.sequence
        session.wake.set()
        self.usage[session.node_id] = Usage(request.disk_free_bytes, request.disk_used_bytes)
        unknown = self.unknown[session.node_id]
        room = max(0, UNKNOWN_KEPT_MAX - len(unknown))
        unknown.update(dict.fromkeys(request.unknown_segment_ids[:room]))
        for segment_id in request.disputed_segment_ids:
            self.pages.page(segment_id, f"node {session.node_id}: a replica differs from another")
        self._note_fenced(session.node_id, request.fenced_segment_ids)
        self._note_clock(session.node_id, request.wall_clock_ms)
        self.heard.beat(session.node_id, request)
        self.note_told(session.node_id, [each.segment_id for each in request.led])
        state = NodeState.UP
        if request.leaving:
            state = NodeState.DOWN
        elif request.draining:
            state = NodeState.DRAINING
        elif request.read_only:
            state = NodeState.READ_ONLY
        status = self._state.status[session.node_id]
        if session.is_closed or status.state == state:
            return
        if state == NodeState.DOWN:
            self._set_down(session.node_id, "it leaves")
        else:
            log.info("event=node_state node=%d state=%s", session.node_id, state.name)
            status.state = state
            self._nodes_changed()

    def note_told(self, node_id: int, segment_ids: Collection[int]) -> None:
        """A node holds or leads these. What this metadata store has not given out yet is paged."""
        if unborn := unborn_segments(self._state, segment_ids):
            why = (
                f"node {node_id} has it, and this metadata store has not given it out yet: is the "
                "store an old copy? then stop the coordinator and put back the newest"
            )
            self.pages.page(max(unborn), why)

    def _note_fenced(self, node_id: int, segment_ids: Iterable[int]) -> None:
        """Promises keep the node out of ACTIVE segments: nobody but a recovery may have asked for
        them, and that changes the record first. So there was none, and one is needed (R65)."""
        for segment_id in segment_ids:
            record = self._state.segments.get(segment_id)
            if record is None or record.segment.state != SegmentState.ACTIVE:
                continue
            if node_id in record.segment.replicas:
                log.warning("event=fenced_by_others node=%d segment=%d", node_id, segment_id)
                self.shut_out[segment_id] = None
                self._on_status()

    def _note_clock(self, node_id: int, wall_clock_ms: int) -> None:
        """Append times come from leaders: one that is off would move them for good."""
        status = self._state.status[node_id]
        off_ms = wall_clock_ms - self._clock.now_ms() if wall_clock_ms else 0
        is_off = abs(off_ms) > CLOCK_OFF_MS
        if is_off != status.is_clock_off:
            log.warning("event=clock node=%d off_ms=%d is_off=%s", node_id, off_ms, is_off)
        status.is_clock_off = is_off

    def disconnected(self, session: Session) -> None:
        """The stream ended, for whatever reason."""
        session.is_closed = True
        if self._sessions.get(session.node_id) is not session:
            return
        del self._sessions[session.node_id]
        status = self._state.status[session.node_id]
        status.is_connected = False
        if status.state == NodeState.DOWN:
            return  # it had said that it leaves
        now = self._clock.monotonic_ms()
        self._deadlines[session.node_id] = max(now + BROKEN_STREAM_MS, self._late_until_ms)

    def let_leave(self, node_id: int) -> None:
        """Tell a draining node that nobody needs it any more."""
        session = self._sessions.get(node_id)
        if session is not None and not session.may_leave:
            log.info("event=node_may_leave node=%d", node_id)
            session.may_leave = True
            session.wake.set()

    def _close(self, session: Session) -> None:
        session.is_closed = True
        session.wake.set()
        if self._sessions.get(session.node_id) is session:
            del self._sessions[session.node_id]
            self._state.status[session.node_id].is_connected = False

    def _set_down(self, node_id: int, why: str) -> None:
        self._deadlines.pop(node_id, None)
        self._state.status[node_id].state = NodeState.DOWN
        self.up_since_ms.pop(node_id, None)
        self.down_since_ms.setdefault(node_id, self._clock.monotonic_ms())
        incarnation = self._state.incarnation(node_id)
        log.warning("event=node_down node=%d incarnation=%d why=%r", node_id, incarnation, why)
        self._nodes_changed()

    # --- what nodes are told --------------------------------------------------------------------

    def _nodes_changed(self) -> None:
        for session in self._sessions.values():
            session.nodes = True
            session.wake.set()
        self._on_status()

    def on_change(self, change: Change) -> None:
        """Queue for each node what concerns it in a committed change."""
        for record in change.puts:
            match record:
                case SegmentRecord() if not is_prepared(record):
                    self._queue(record.holders, segment_id=record.segment.segment_id)
                    if record.segment.state != SegmentState.ACTIVE:
                        self.shut_out.pop(record.segment.segment_id, None)
                    if record.segment.state == SegmentState.SEALED:
                        self.heard.forget(record.segment.segment_id)
                case DeletedRecord():
                    self.shut_out.pop(record.segment_id, None)
                    self.heard.forget(record.segment_id)
                    self._queue(record.holders, deleted_id=record.segment_id)
                case PartitionRecord():
                    self._queue_partition(record.partition_key)
                case TopicRecord():  # another name, deleted, or back
                    for partition in self._state.partitions_of(record):
                        self._queue_partition(partition.partition_key)
                case NodeRecord():
                    self._nodes_changed()
                case ProducerRecord():
                    for session in self._sessions.values():
                        session.fences[record.name] = None
                        session.wake.set()
                case _:
                    pass

    def _queue_partition(self, key: PartitionKey) -> None:
        holders = (each.segment.replicas for each in self._state.segments_in(key))
        nodes = dict.fromkeys(node_id for each in holders for node_id in each)
        self._queue(nodes, partition=key)

    def _queue(
        self,
        nodes: Iterable[int],
        *,
        segment_id: int = 0,
        deleted_id: int = 0,
        partition: PartitionKey | None = None,
    ) -> None:
        for node_id in nodes:
            session = self._sessions.get(node_id)
            if session is None:
                continue
            if segment_id:
                session.segments[segment_id] = None
            if deleted_id:
                session.deletes[deleted_id] = None
            if partition is not None:
                session.partitions[partition] = None
            session.wake.set()

    async def write_pushes(self, session: Session, stream: ServerStream) -> None:
        """Send beats' answers and pushes until the session is replaced or given up."""
        while True:
            await session.wake.wait()
            session.wake.clear()
            if session.is_closed:
                return
            while True:
                message = self._next_message(session)
                await stream.write(message.SerializeToString())
                if not session.segments or session.is_closed:
                    break

    def _next_message(self, session: Session) -> pb.HeartbeatResponse:
        message = pb.HeartbeatResponse(token=self.token, sequence=session.answer)
        session.answer = 0
        message.may_leave = session.may_leave
        if session.is_full:
            session.is_full = False
            message.full = True
            self._queue_everything(session)
            session.fences = {
                each.name: None for each in self._state.producers.values() if each.producer_epoch
            }
        if session.nodes:
            session.nodes = False
            message.nodes.extend(node_to_proto(each) for each in self._state.node_infos())
        for name in session.fences:
            producer = self._state.producers[name]
            message.producer_fences.add(
                producer_id=producer.producer_id, min_epoch=producer.producer_epoch
            )
        session.fences.clear()
        limit = None if message.full else ASSIGNMENTS_PER_PUSH
        for segment_id in list(session.segments)[:limit]:
            del session.segments[segment_id]
            record = self._state.segments.get(segment_id)
            if record is not None:
                message.assignments.append(segment_to_proto(self._state.assignment(record)))
        message.delete_segment_ids.extend(session.deletes)
        session.deletes.clear()
        for key in session.partitions:
            partition = self._state.partitions.get(key)
            if partition is not None:
                message.partitions.append(self._progress(partition))
        session.partitions.clear()
        return message

    def _queue_everything(self, session: Session) -> None:
        state, node_id = self._state, session.node_id
        registered = self.registered.get(node_id)
        mine = dict.fromkeys(state.segments_of_node.get(node_id, ()))
        # Also what others sealed without it while it was away: it may still believe to lead that.
        mine.update((id_, None) for id_, each in state.segments.items() if node_id in each.holders)
        mine.update(dict.fromkeys(registered.held if registered else ()))
        for segment_id in mine:
            record = state.segments.get(segment_id)
            if record is not None and not is_prepared(record):
                session.segments[segment_id] = None
                session.partitions[record.partition_key] = None
        for deleted in state.deleted.values():
            if node_id in deleted.holders:
                session.deletes[deleted.segment_id] = None

    def _progress(self, partition: PartitionRecord) -> pb.PartitionProgress:
        tail = self._state.tail(partition)
        nodes: list[int] = []
        if tail is not None:
            followers = [each for each in tail.segment.replicas if each != tail.segment.leader]
            nodes = [tail.segment.leader, *followers]
        return pb.PartitionProgress(
            topic_id=partition.topic_id,
            partition=partition.partition,
            log_start_offset=partition.log_start_offset,
            tail_segment_id=partition.tail_segment_id,
            tail_replicas=nodes,
            tail_base_offset=partition.next_base_offset,
            topic=self._state.name_of(partition.topic_id),
            deleted=not self._state.is_live_topic(partition.topic_id),
        )
