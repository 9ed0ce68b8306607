"""Every decision of the protocol that the model asks for, in one replaceable table.

``Rules`` holds the production functions themselves, and a few guards for what production does in
its shells (files, fsync, start-up). A mutant is this table with one entry replaced. ``Decisions``
turns pieces of a model state into the arguments of those functions; it remembers answers, because
a few hundred different questions are asked millions of times.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import combinations, product
from typing import Any

from icecore.errors import IcecoreError
from icecore.model import NodeInfo, Segment, SegmentState
from icecore.topic_settings import SegmentSettings
from icecore_coordinator.decisions import segment_changes
from icecore_coordinator.state.cluster_state import ClusterState
from icecore_coordinator.state.liveness import Liveness
from icecore_coordinator.state.records import (
    Change,
    NodeRecord,
    PartitionRecord,
    SegmentRecord,
    TopicRecord,
)
from icecore_replication import isr, leading, recovery, sealing, watermark
from icecore_replication.inputs import FollowerProgress
from icecore_replication.progress import Followers
from tests.model.configs import Config
from tests.model.state import ACTIVE, NEUTRAL, RECOVERING, SETTLED, UNCERTAIN

LEADER = 1
VERSION = 7
"""Version of the record as the leader knows it; the stored one is at most one ahead."""
STATES = (SegmentState.ACTIVE, SegmentState.RECOVERING, SegmentState.SEALED)
ROLLS: tuple[sealing.Roll, ...] = (
    sealing.Idle(),
    sealing.Draining(2, 0.0, 0.0),
    sealing.Sealing(1, b""),
)
"""A roll for each value of ``Leader.roll``. ``Preparing`` and ``Collecting`` allow what ``Idle``
and ``Draining`` do."""


def report_accepted(followers: Followers, report: FollowerProgress, log_end: int) -> bool:
    """A follower's report at the leader (R7, R8)."""
    follower = followers.accept(report)
    if follower is None:
        return False
    followers.record(follower, report, log_end, 0.0)
    return True


def node_changed(followers: Followers, node: NodeInfo) -> None:
    """The coordinator's word on a new incarnation at the leader (R7)."""
    followers.change_node(node)


def voters_of(segment: Segment) -> tuple[tuple[int, ...], int]:
    """Return the replicas whose durable ends count for ``quorum``, and the number of them it
    takes."""
    return segment.replicas, segment.settings.quorum


def settings_of(segment: Segment, topic_min_insync_replicas: int) -> Segment:
    """The record that recovery decides by: with its own settings, whatever the topic's are now."""
    return segment


def floor_of(high_watermark: int, acked_end: int, quorum_end: int) -> int:
    """Return the end that a follower must reach before it joins or is certified (R16)."""
    return isr.expand_floor(high_watermark, acked_end)


@dataclass(frozen=True)
class Rules:
    """Production's decisions; below, guards of the model for what production's shells do."""

    all_end: Callable[..., int] = watermark.all_end
    quorum_end: Callable[..., int] = watermark.quorum_end
    high_watermark: Callable[..., int] = watermark.high_watermark
    voters_of: Callable[..., tuple[tuple[int, ...], int]] = voters_of
    maximal_isr: Callable[..., tuple[int, ...]] = isr.maximal_isr
    propose: Callable[..., Any] = isr.propose
    unanswered: Callable[..., Any] = isr.unanswered
    refused: Callable[..., Any] = isr.refused
    can_expand: Callable[..., bool] = isr.can_expand
    floor_of: Callable[..., int] = floor_of
    accept_isr_change: Callable[..., Any] = isr.accept_isr_change
    report_accepted: Callable[..., bool] = report_accepted
    node_changed: Callable[..., None] = node_changed
    may_lead: Callable[..., bool] = leading.may_lead
    gives_out_offsets: Callable[..., bool] = sealing.gives_out_offsets
    members_at_end: Callable[..., set[int]] = sealing.members_at_end
    agreeing_nodes: Callable[..., tuple[int, ...]] = sealing.agreeing_nodes
    settings_of: Callable[..., Segment] = settings_of
    may_decide: Callable[..., Any] = recovery.may_decide
    decide_end: Callable[..., Any] = recovery.decide_end
    is_total_loss: Callable[..., bool] = recovery.is_total_loss
    start_recovery: Callable[..., Change] = segment_changes.start_recovery
    seal: Callable[..., Change] = segment_changes.seal

    fence_before_report: bool = True
    """A replica persists its promise before it tells where it ends (R30)."""
    promise_is_durable: bool = True
    """The promise survives a crash."""
    promise_is_told_again: bool = True
    """A node that lost its disk hears at registration that the segment is being recovered."""
    fence_stops_leader: bool = True
    """A fenced leader appends nothing and acks nothing."""
    reports_only_durable: bool = True
    """A node takes only fsynced records for durable (R12)."""
    scan_is_synced: bool = True
    """At start-up an unsealed log is fsynced before its end counts as durable."""
    missing_is_unknown: bool = True
    """A replica whose disk is gone says UNKNOWN, not "empty"."""
    marker_is_removed: bool = True
    """The marker of a clean shutdown is removed before the node registers."""
    doubts_unsynced: bool = True
    """A replica that was not synced is UNKNOWN after an unclean stop of its machine (R80)."""
    settles: bool = True
    """A replica that was not synced is, before its end is told to anybody (R81)."""
    restart_ends_leadership: bool = True
    """See ``may_lead``; False also lets the resumed leader use the stored in-sync set."""
    seal_waits: bool = True
    """A live seal waits for the in-sync set and asks its members for digests (R27, R28)."""
    seal_is_final: bool = True
    """Once a seal was sent the leader never appends again (R29)."""
    all_needs_min_insync_replicas: bool = True
    """A batch is not acked at ``all`` while the committed set is smaller than min_insync_replicas
    (R3)."""
    writes_back: bool = True
    """Recovery brings min_insync_replicas replicas to the end before it seals (R33)."""
    certifies: bool = True
    """A rebuilt replica counts as intact only once the leader has certified that it reached the
    floor (False: as soon as the leader hears of it)."""


class Decisions:
    """The rules, asked in terms of the model's states."""

    def __init__(self, rules: Rules, config: Config) -> None:
        self.rules = rules
        self.config = config
        self.settings = SegmentSettings(
            replication_factor=config.replication_factor,
            min_insync_replicas=config.min_insync_replicas,
        )
        self.replicas = tuple(range(1, config.nodes + 1))
        for name in (
            *("segment", "isr_state", "maximal", "advance", "can_join", "stored_after"),
            *(
                "after_refusal",
                "report",
                "registered",
                "decision",
                "can_recover",
                "seal_change",
                "total_loss",
                "open_error",
            ),
        ):
            setattr(self, name, cache(getattr(self, name)))

    def segment(self, state: int, stored: tuple[int, ...], stale: int) -> Segment:
        """The stored record."""
        return Segment(
            segment_id=1,
            topic_id=b"t" * 16,
            topic="t",
            partition=0,
            state=STATES[state],
            epoch=1,
            settings=self.settings,
            base_offset=0,
            leader=LEADER,
            leader_incarnation=1,
            replicas=self.replicas,
            isr=stored,
            version=VERSION + stale,
        )

    # --- acks and visibility ----------------------------------------------------------------------

    def isr_state(
        self, change: int, committed: tuple[int, ...], proposed: tuple[tuple[int, int], ...]
    ) -> isr.IsrState:
        """The leader's in-sync set; ``proposed`` with incarnations, empty when settled."""
        state: Any = isr.CommittedIsr(committed, VERSION)
        if change == SETTLED:
            return state
        incarnations = dict(proposed)
        state = self.rules.propose(state, set(incarnations), incarnations)
        if change >= UNCERTAIN:
            state = self.rules.unanswered(state, VERSION)
        return self.rules.refused(state, VERSION) if change == NEUTRAL else state

    def maximal(
        self, change: int, committed: tuple[int, ...], proposed: tuple[tuple[int, int], ...]
    ) -> tuple[int, ...]:
        """Return the replicas that acks and the high watermark wait for."""
        return self.rules.maximal_isr(self.isr_state(change, committed, proposed))

    def advance(
        self,
        ends: tuple[int, ...],
        committed: tuple[int, ...],
        maximal: tuple[int, ...],
        watermark_before: int,
    ) -> tuple[int, int, int, int]:
        """High watermark, end of ``all``, end of ``quorum``, as ``LeaderCore`` does it.

        A batch waits at each acks level at once: what may be acked is acked, at every level. The
        last number is the quorum's end as such.
        """
        rules, min_insync_replicas = self.rules, self.config.min_insync_replicas
        durable = dict(zip(self.replicas, ends, strict=True))
        isr_end = rules.all_end(durable, maximal)
        voters, quorum = rules.voters_of(self.segment(ACTIVE, committed, 0))
        quorum_end = rules.quorum_end(durable, voters, quorum, ends[0])
        high = rules.high_watermark(
            watermark_before, isr_end, quorum_end, len(committed), min_insync_replicas
        )
        enough = len(committed) >= min_insync_replicas or not rules.all_needs_min_insync_replicas
        all_end = isr_end if enough else 0
        return high, all_end, max(quorum_end, 0), quorum_end

    # --- the in-sync set --------------------------------------------------------------------------

    def can_join(
        self,
        node_id: int,
        incarnation: int,
        attached: int,
        end: int,
        floor: tuple[int, int, int],
    ) -> bool:
        """May the leader propose this follower; ``floor`` = watermark, acked end, quorum's end."""
        return self.rules.can_expand(
            self.segment(ACTIVE, (LEADER,), 0),
            NodeInfo(node_id, "", incarnation),
            bool(attached),
            end,
            self.rules.floor_of(*floor),
        )

    def stored_after(
        self,
        state: int,
        stored: tuple[int, ...],
        stale: int,
        proposal: tuple[tuple[int, int], ...],
        registered: tuple[tuple[int, int], ...],
    ) -> tuple[int, ...] | None:
        """The in-sync set once the coordinator has taken this proposal; None = refused."""
        change = isr.IsrProposal(
            LEADER, 1, 1, VERSION, tuple(n for n, _ in proposal), tuple(i for _, i in proposal)
        )
        answer = self.rules.accept_isr_change(
            self.segment(state, stored, stale), change, dict(registered)
        )
        return None if isinstance(answer, IcecoreError) else answer.isr

    def after_refusal(
        self, change: int, committed: tuple[int, ...], proposed: tuple[tuple[int, int], ...]
    ) -> int:
        """``Leader.change`` once the leader has heard of a refusal."""
        state = self.rules.refused(self.isr_state(change, committed, proposed), VERSION)
        return SETTLED if isinstance(state, isr.CommittedIsr) else NEUTRAL

    # --- followers at the leader ------------------------------------------------------------------

    def report(
        self,
        view: tuple[int, int, int],
        message: tuple[int, int, bool],
        log_end: int,
    ) -> tuple[int, int] | None:
        """(attached, end) after a report of (incarnation, end, attach); None: the leader stops."""
        followers = self._followers(*view)
        incarnation, end, attach = message
        report = FollowerProgress(2, incarnation, end, attach)
        if followers.accept(report) is not None and end > log_end:
            return None  # R9
        self.rules.report_accepted(followers, report, log_end)
        return int(followers.by_node[2].attached), followers.durable[2]

    def registered(self, view: tuple[int, int, int], incarnation: int) -> tuple[int, int]:
        """(attached, end) after the coordinator's word on a new incarnation."""
        followers = self._followers(*view)
        self.rules.node_changed(followers, NodeInfo(2, "", incarnation))
        return int(followers.by_node[2].attached), followers.durable[2]

    @staticmethod
    def _followers(registered: int, attached: int, end: int) -> Followers:
        followers = Followers((1, 2), 1, {2: NodeInfo(2, "", registered)}, 0, 0.0)
        follower = followers.by_node[2]
        follower.attached = bool(attached)
        follower.reported_end = followers.durable[2] = end
        return followers

    # --- recovery and seal ------------------------------------------------------------------------

    def decision(
        self, replies: tuple[Any, ...], frozen: tuple[int, ...], altered: int
    ) -> tuple[int, str] | None:
        """Index of the donor and the content to seal; None = undecided, or stop and tell."""
        given = {
            index + 1: recovery.FenceReply(
                bool(reply[0]), len(reply[1]), len(reply[1]), reply[1].encode(), reply[2]
            )
            for index, reply in enumerate(replies)
            if reply
        }
        topic_min_insync_replicas = (
            self.config.altered_to if altered else self.config.min_insync_replicas
        )
        segment = self.rules.settings_of(
            self.segment(RECOVERING, frozen, 0), topic_min_insync_replicas
        )
        if self.rules.may_decide(given, segment) is None:
            return None
        end = self.rules.decide_end(given)
        if isinstance(end, recovery.Undecidable):
            return None
        return end.donor - 1, replies[end.donor - 1][1][: end.end_offset]

    def total_loss(self, replies: tuple[Any, ...], frozen: tuple[int, ...]) -> bool:
        """Return whether no copy can be whole, by the replies so far (R82)."""
        given = {
            index + 1: recovery.FenceReply(bool(reply[0]))
            for index, reply in enumerate(replies)
            if reply
        }
        return bool(self.rules.is_total_loss(given, self.segment(RECOVERING, frozen, 0)))

    def can_recover(self, state: int, stored: tuple[int, ...]) -> bool:
        """Return whether the coordinator may move the record to RECOVERING."""
        try:
            self.rules.start_recovery(self._cluster(state, stored, 0, set()), 1, VERSION)
        except IcecoreError:
            return False
        return True

    def seal_change(
        self, state: int, stored: tuple[int, ...], stale: int, end: int, copies: tuple[int, ...]
    ) -> str | None:
        """Return what is wrong with the records once the seal is stored; "" = nothing, None =
        refused."""
        order = segment_changes.DecidedSeal(1, VERSION, end, b"d" * 32, copies)
        cluster = self._sealed(state, stored, stale, order, set(self.replicas), set())
        if cluster is None:
            return None
        old, new = cluster.segments.get(1), cluster.segments[2].segment
        partition = cluster.partitions[b"t" * 16, 0]
        tiles = (
            new.base_offset == end == partition.next_base_offset
            and partition.tail_segment_id == 2
            and new.state is SegmentState.ACTIVE
            and (old is None if end == 0 else old is not None and old.segment.end_offset == end)
        )
        return self.open_error(state, stored, order) if tiles else "I4: the segments do not tile"

    def open_error(
        self, state: int, stored: tuple[int, ...], order: segment_changes.DecidedSeal
    ) -> str:
        """R34, for whoever confirmed the successor and whoever was started again since."""
        everyone = [set(some) for size in range(4) for some in combinations(self.replicas, size)]
        for confirmed, again in product(everyone, everyone):
            cluster = self._sealed(state, stored, 0, order, confirmed, again)
            if cluster is None:
                continue
            new = cluster.segments[2].segment
            isr = set(new.isr)
            if not set(new.replicas) <= confirmed - again:
                return "R34: the successor opened on a node that may lack its file"
            if not new.leader or new.leader not in isr or not isr <= set(new.replicas):
                return "R34: the successor opened with a wrong in-sync set"
            if len(isr) < self.config.min_insync_replicas:
                return "I11: the successor opened with fewer than min_insync_replicas nodes"
        return ""

    def _sealed(
        self,
        state: int,
        stored: tuple[int, ...],
        stale: int,
        order: segment_changes.DecidedSeal,
        confirmed: set[int],
        again: set[int],
    ) -> ClusterState | None:
        """The records after the transaction, None if it was refused."""
        cluster = self._cluster(state, stored, stale, again)
        opening = segment_changes.Opening(2, dict.fromkeys(sorted(confirmed), 1))
        try:
            cluster.apply(self.rules.seal(cluster, Liveness(), order, opening, 0))
        except IcecoreError:
            return None
        return cluster

    def _cluster(
        self, state: int, stored: tuple[int, ...], stale: int, again: set[int]
    ) -> ClusterState:
        """This segment, its prepared successor, and the nodes; some were started ``again``."""
        cluster = ClusterState()
        record = self.segment(state, stored, stale)
        successor = record.changed(
            segment_id=2, epoch=3, state=SegmentState.PREPARED, base_offset=-1, version=1
        )
        nodes = [NodeRecord(n, b"", "", incarnation=1 + (n in again)) for n in self.replicas]
        topic = TopicRecord(record.topic_id, "events", 1, self.settings, version=1)
        partition = PartitionRecord(record.topic_id, 0, tail_segment_id=1, version=1)
        records = [SegmentRecord(record), SegmentRecord(successor)]
        cluster.apply(Change((*nodes, topic, partition, *records)))
        return cluster
