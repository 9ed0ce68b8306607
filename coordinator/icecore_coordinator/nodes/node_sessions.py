"""Heartbeat streams: who is up, and how much room each node has.

A node is DOWN when its stream broke and its host refuses connections (``broken_streams``), or when
the same incarnation did not resume it within 500 ms, or when it was silent for a lease. The 500 ms
count only for a stream that this process held: after
its start every known node has a full lease to come, and again after it was late itself, for a
paused coordinator has learnt nothing about its nodes. Safety needs none of this; it only decides
when recovery starts.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from icecore.model import Incarnation, NodeId, NodeState, SegmentId, SegmentState
from icecore.process.log import event
from icecore.rpc import convert
from icecore.rpc.ports import Clock
from icecore.v1 import coordinator_pb2 as pb
from icecore.v1.common_pb2 import DiskUsage
from icecore_coordinator.decisions.node_changes import HeldReplica, Registration, unborn_segments
from icecore_coordinator.nodes.alerts import AlertKind, Alerts
from icecore_coordinator.nodes.copy_reports import CopyReports
from icecore_coordinator.nodes.node_pushes import Outbox, Pushes
from icecore_coordinator.nodes.registrations import Registrations
from icecore_coordinator.nodes.reported_state import ReportedState
from icecore_coordinator.state.cluster_state import ClusterState
from icecore_coordinator.state.liveness import Liveness
from icecore_coordinator.state.records import (
    Change,
    DeletionRecord,
    NodeRecord,
    SegmentRecord,
    is_prepared,
)
from icecore_coordinator.state.tier_index import STORE_ID_BYTES

_log = logging.getLogger(__name__)

DISKS_KEPT_MAX = 64
"""Most disks kept per node."""
TEXT_BYTES_MAX = 255
"""Most bytes kept of a disk's path, and of its problem: whoever describes the cluster gets all."""
PROBLEM_BYTES_MAX = 500
"""The same of the problem of an object store."""
BROKEN_STREAM_MS = 500.0
CLOCK_OFF_MS = 5_000
"""A node whose wall clock differs more from ours is not asked to lead, if others can."""
LATE_TICK_MS = 600.0
"""500 ms more than the interval of ticks."""


@dataclass(kw_only=True)
class Registered:
    """The last Register of a node, kept for when the heartbeat activates it."""

    registration: Registration
    held: dict[SegmentId, HeldReplica]
    is_disk_unknown: bool
    incarnation: Incarnation
    next_segment_id: int = 0
    """No segment with this id, or a higher one, was there yet when the node said what it holds."""


@dataclass
class Session:
    """One heartbeat stream."""

    node_id: NodeId
    incarnation: Incarnation
    last_heartbeat_ms: float
    outbox: Outbox
    number: int = 0
    """How many streams began before it, of all nodes."""

    @property
    def is_closed(self) -> bool:
        """Return whether it ended, or a newer one of the node took its place."""
        return self.outbox.is_closed


@dataclass
class Usage:
    """The disk usage that a node reported last."""

    free_bytes: int = 0
    used_bytes: int = 0
    reclaim_bytes: int = 0
    """Bytes to be freed before the disk has enough room again."""
    disks: tuple[DiskUsage, ...] = ()
    stream: int = 0
    """Number of the heartbeat stream that said so, since this coordinator started."""
    heartbeat: int = 0
    """Sequence number of the heartbeat."""


class NodeSessions:
    """All heartbeat sessions; the one writer of ``Liveness``.

    Args:
        state: The cluster.
        live: Kept up to date.
        pushes: What goes down each stream.
        heard: Takes in the numbers that heartbeats tell.
        copies: Takes in what heartbeats tell of damaged copies.
        alerts: For what a person must look at.
        clock: Monotonic time of leases.
        lease_ms: How long a silent node stays up.
        on_status: Called after a node changed between up and down.
    """

    def __init__(
        self,
        *,
        state: ClusterState,
        live: Liveness,
        pushes: Pushes,
        heard: ReportedState,
        copies: CopyReports,
        alerts: Alerts,
        clock: Clock,
        lease_ms: float,
        on_status: Callable[[], None],
    ) -> None:
        self._state = state
        self._live = live
        self._pushes = pushes
        self._heard = heard
        self._copies = copies
        self._alerts = alerts
        self._clock = clock
        self._lease_ms = lease_ms
        self._on_status = on_status
        self._registered: Registrations[Registered] = Registrations()
        self._usage: dict[NodeId, Usage] = {}
        self._sessions: dict[NodeId, Session] = {}
        self._streams = 0
        self._deadlines: dict[NodeId, float] = {}
        """When nodes without a stream become DOWN."""
        self._grace_until_ms = 0.0
        """Until then a missing node may just not have had the time to come."""
        self._late_until_ms = 0.0
        """Until then a stream may have broken because of our own pause."""
        self._last_tick_ms = 0.0

    def start(self) -> None:
        """Know what was heard before, and give every known node a lease to come back."""
        self._heard.load()
        now = self._clock.monotonic_ms()
        self._last_tick_ms = now
        self._grace_until_ms = now + self._lease_ms
        for node_id in sorted(self._state.nodes):
            if self._state.incarnation(node_id):
                self._live.note(node_id, state=NodeState.UP)
                self._deadlines[node_id] = self._grace_until_ms
        self._note_settling()

    def _note_settling(self) -> None:
        now = self._clock.monotonic_ms()
        self._live.is_settling = bool(self._deadlines) and now < self._grace_until_ms

    def tick(self) -> None:
        """Look at the clock; to be called every 100 ms or so."""
        now = self._clock.monotonic_ms()
        if now - self._last_tick_ms > LATE_TICK_MS:
            event(_log, logging.WARNING, "late_tick", late_ms=round(now - self._last_tick_ms))
            self._grace_until_ms = self._late_until_ms = now + self._lease_ms
            for session in self._sessions.values():
                session.last_heartbeat_ms = now
            for node_id in self._deadlines:
                self._deadlines[node_id] = self._grace_until_ms
        self._last_tick_ms = now
        for session in list(self._sessions.values()):
            if now - session.last_heartbeat_ms > self._lease_ms:
                self._close(session)
                self._set_down(session.node_id, "lease expired")
        for node_id, deadline in list(self._deadlines.items()):
            if now >= deadline:
                self._set_down(node_id, "no stream")
        self._note_settling()

    # --- registration ---------------------------------------------------------------------------

    def note_registered(self, known: Registered) -> None:
        """A node got an incarnation; its first heartbeat will activate it."""
        node_id = known.registration.node_id
        self._registered.note(node_id, known, is_proved=node_id in self._state.nodes)

    def registered(self, node_id: NodeId) -> Registered | None:
        """The last Register of the node with this process, None when there was none."""
        return self._registered.of(node_id)

    def usage(self, node_id: NodeId) -> Usage:
        """Return the disk usage that the node reported last; zeros while it has no stream."""
        return self._usage.get(node_id, Usage())

    # --- streams --------------------------------------------------------------------------------

    def connect(self, node_id: NodeId, incarnation: Incarnation) -> Session:
        """A stream of a registered incarnation begins; it replaces an older one of the node."""
        old = self._sessions.get(node_id)
        if old is not None:
            self._close(old)
        known = self._registered.of(node_id)
        outbox = self._pushes.open(node_id, known.held if known else ())
        now = self._clock.monotonic_ms()
        self._streams += 1
        session = Session(node_id, incarnation, now, outbox, self._streams)
        self._sessions[node_id] = session
        self._deadlines.pop(node_id, None)
        self._copies.begin(node_id)
        self._live.note(node_id, is_connected=True, up_since_ms=now, down_since_ms=None)
        if not self._live.is_live(node_id):
            self._live.note(node_id, state=NodeState.UP)
        event(_log, logging.INFO, "node_up", node_id=node_id, incarnation=incarnation)
        self._note_settling()
        self._nodes_changed()
        return session

    def heartbeat(self, session: Session, request: pb.HeartbeatRequest) -> None:
        """Take in one heartbeat and answer it soon."""
        node_id = session.node_id
        if node_id not in self._state.nodes:
            return  # forgotten, and this was on its way
        session.last_heartbeat_ms = self._clock.monotonic_ms()
        session.outbox.answer = request.sequence
        session.outbox.wake.set()
        if not session.is_closed:  # else a newer stream has said, or will say, what is true now
            self._usage[node_id] = Usage(
                request.disk_free_bytes,
                request.disk_used_bytes,
                request.reclaim_bytes,
                _kept_disks(request.disks),
                session.number,
                request.sequence,
            )
        self._copies.deleted.note(node_id, convert.segment_ids(request.deleted_segment_ids))
        self._copies.note_crowded(node_id, convert.segment_ids(request.crowded_segment_ids))
        self._copies.note_unknown(node_id, convert.segment_ids(request.unknown_segment_ids))
        vanished = convert.segment_ids(request.vanished_segment_ids)
        self._copies.vanished.note(
            node_id, [each for each in vanished if self._copies.is_unknown(node_id, each)]
        )
        for segment_id in convert.segment_ids(request.diverged_segment_ids):
            self._alerts.raise_alert(
                AlertKind.DIVERGED, segment_id, f"node {node_id}: a replica differs from another"
            )
        self._note_fenced(node_id, convert.segment_ids(request.fenced_segment_ids))
        self._note_clock(node_id, request.wall_clock_ms)
        status = self._live.of(node_id)
        problem = _kept_text(request.store_problem, PROBLEM_BYTES_MAX)
        store_id = request.store_id if len(request.store_id) == STORE_ID_BYTES else b""
        if (status.store_id, status.store_problem) != (store_id, problem):
            self._live.note(node_id, store_id=store_id, store_problem=problem)
        self._heard.heartbeat(node_id, request)
        self.note_told(node_id, [SegmentId(each.segment_id) for each in request.led])
        state = NodeState.UP
        if request.leaving:
            state = NodeState.DOWN
        elif request.draining:
            state = NodeState.DRAINING
        elif request.read_only:
            state = NodeState.READ_ONLY
        if session.is_closed or self._live.state_of(node_id) == state:
            return
        if state == NodeState.DOWN:
            self._set_down(node_id, "it leaves")
        else:
            event(_log, logging.INFO, "node_state", node_id=node_id, state=state)
            self._live.note(node_id, state=state)
            self._nodes_changed()

    def note_told(self, node_id: NodeId, segment_ids: Collection[SegmentId]) -> None:
        """A node holds or leads these. What this metadata store has not given out yet raises an
        alert."""
        if unborn := unborn_segments(self._state, segment_ids):
            why = (
                f"node {node_id} has it, and this metadata store has not given it out yet: is the "
                "store an old copy? then stop the coordinator and put back the newest"
            )
            self._alerts.raise_alert(AlertKind.UNBORN, max(unborn), why)

    def _note_fenced(self, node_id: NodeId, segment_ids: Iterable[SegmentId]) -> None:
        """Promises keep the node out of ACTIVE segments: nobody but a recovery may have asked for
        them, and that changes the record first. So there was none, and one is needed (R65)."""
        for segment_id in segment_ids:
            record = self._state.segments.get(segment_id)
            if record is None or record.segment.state != SegmentState.ACTIVE:
                continue
            if node_id in record.segment.replicas:
                event(
                    _log,
                    logging.WARNING,
                    "fenced_by_others",
                    node_id=node_id,
                    segment_id=segment_id,
                )
                self._copies.note_shut_out(segment_id)
                self._on_status()

    def _note_clock(self, node_id: NodeId, wall_clock_ms: int) -> None:
        """Append times come from leaders: one that is off would move them for good."""
        off_ms = wall_clock_ms - self._clock.now_ms() if wall_clock_ms else 0
        is_off = abs(off_ms) > CLOCK_OFF_MS
        if is_off != self._live.of(node_id).is_clock_off:
            event(_log, logging.WARNING, "clock", node_id=node_id, off_ms=off_ms, is_off=is_off)
            self._live.note(node_id, is_clock_off=is_off)

    def disconnected(self, session: Session) -> None:
        """The stream ended, for whatever reason."""
        node_id = session.node_id
        is_newest = self._sessions.get(node_id) is session
        self._close(session)
        if not is_newest or not self._live.is_live(node_id):
            return  # replaced, or it had said that it leaves
        now = self._clock.monotonic_ms()
        self._deadlines[node_id] = max(now + BROKEN_STREAM_MS, self._late_until_ms)
        self._note_settling()

    def is_missing(self, node_id: NodeId) -> bool:
        """Return whether the node counts as up, has no stream, and may come back with one."""
        return node_id in self._deadlines

    def note_gone(self, node_id: NodeId) -> None:
        """The node's host says that it does not run: nothing is to be waited for."""
        if self.is_missing(node_id):
            self._set_down(node_id, "it refuses connections")
            self._note_settling()

    def _close(self, session: Session) -> None:
        self._pushes.close(session.outbox)
        if self._sessions.get(session.node_id) is session:
            del self._sessions[session.node_id]
            self._usage.pop(session.node_id, None)
            self._live.note(session.node_id, is_connected=False)

    def _set_down(self, node_id: NodeId, why: str) -> None:
        self._deadlines.pop(node_id, None)
        since_ms = self._live.of(node_id).down_since_ms
        if since_ms is None:
            since_ms = self._clock.monotonic_ms()
        self._live.note(node_id, state=NodeState.DOWN, up_since_ms=None, down_since_ms=since_ms)
        incarnation = self._state.incarnation(node_id)
        event(_log, logging.WARNING, "node_down", node_id=node_id, incarnation=incarnation, why=why)
        self._nodes_changed()

    def _nodes_changed(self) -> None:
        self._pushes.nodes_changed()
        self._on_status()

    def on_change(self, change: Change) -> None:
        """Forget what was told of segments and nodes that a committed change has ended."""
        for gone in change.deletes:
            if isinstance(gone, NodeRecord):
                self._remove_node(gone.node_id)
        for record in change.puts:
            if isinstance(record, NodeRecord):
                self._registered.note_proved(record.node_id)
            elif isinstance(record, DeletionRecord):
                self._copies.forget_shut_out(record.segment_id)
                self._heard.forget(record.segment_id)
            elif isinstance(record, SegmentRecord) and not is_prepared(record):
                segment = record.segment
                if segment.state != SegmentState.ACTIVE:
                    self._copies.forget_shut_out(segment.segment_id)
                if segment.state == SegmentState.SEALED:
                    self._heard.forget(segment.segment_id)

    def _remove_node(self, node_id: NodeId) -> None:
        """There is no such node any more. A process of it that is there must register again."""
        session = self._sessions.get(node_id)
        if session is not None:
            self._close(session)
        self._deadlines.pop(node_id, None)
        self._registered.forget(node_id)
        self._copies.forget(node_id)
        self._heard.remove_node(node_id)
        self._live.forget(node_id)
        self._note_settling()
        event(_log, logging.WARNING, "node_forgotten", node_id=node_id)
        self._nodes_changed()


def _kept_disks(told: Sequence[DiskUsage]) -> tuple[DiskUsage, ...]:
    """Return what is kept of a node's disks."""
    return tuple(
        DiskUsage(
            path=_kept_text(each.path, TEXT_BYTES_MAX),
            used_bytes=each.used_bytes,
            free_bytes=each.free_bytes,
            problem=_kept_text(each.problem, TEXT_BYTES_MAX),
        )
        for each in told[:DISKS_KEPT_MAX]
    )


def _kept_text(told: str, bytes_max: int) -> str:
    """Return the beginning of a text, with control characters escaped."""
    shown = "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode()
        for each in told[:bytes_max]
    )
    return shown.encode()[:bytes_max].decode(errors="ignore")
