"""Seeded mistakes: the rules with one of them broken, and the smallest world that shows it.

A model that finds nothing proves little until it is seen to find something: each mutant must be
killed. Every mutant replaces one decision function or switches off one guard of ``rules.Rules``.
The numbers R… are those of the rules in docs/design/protocol.md that are broken.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from icecore.model import NodeInfo, Segment
from icecore_coordinator.decisions.segment_changes import DecidedSeal, Opening, seal
from icecore_coordinator.state.cluster_state import ClusterState
from icecore_coordinator.state.liveness import Liveness
from icecore_coordinator.state.records import Change
from icecore_replication import isr, recovery, sealing, watermark
from icecore_replication.inputs import FollowerProgress
from icecore_replication.progress import Followers
from icecore_replication.recovery import Decision, EndDecision, FenceReply
from tests.model.configs import Config
from tests.model.rules import Rules


@dataclass(frozen=True)
class Mutant:
    """One mistake."""

    name: str
    rule: str
    """The rule that it breaks."""
    change: Mapping[str, Any]
    """Fields of ``Rules`` that are replaced."""
    config: Config

    @property
    def rules(self) -> Rules:
        """All rules, this one broken."""
        return replace(Rules(), **self.change)


# --- worlds ---------------------------------------------------------------------------------------

CALM = Config("calm", crashes=0, isr_changes=False)
CRASH = Config("one crash", isr_changes=False)
ISR = Config("in-sync set changes", crashes=0)
ISR_M1 = Config("in-sync set changes, m=1", crashes=0, min_insync_replicas=1)
SEAL = Config("live seal", crashes=0, isr_changes=False, live_seal=True)
REBUILD = Config("disk loss and rebuild", losses=1, rebuild=True, isr_changes=False)

# --- broken decisions -----------------------------------------------------------------------------


def quorum_without_leader(
    durable: Mapping[int, int], replicas: Sequence[int], quorum: int, leader_end: int
) -> int:
    """Any q of R, also when the leader's own disk is not among them."""
    return watermark.quorum_end(durable, replicas, quorum, max(durable.values()))


def majority_of_isr(segment: Segment) -> tuple[tuple[int, ...], int]:
    """Majority of the in-sync set."""
    return segment.isr, len(segment.isr) // 2 + 1


def majority_of_opened(segment: Segment) -> tuple[tuple[int, ...], int]:
    """Majority of the replicas the segment could be opened on."""
    return segment.replicas, len(segment.replicas) // 2 + 1


def recover_by_opened(segment: Segment, topic_min_insync_replicas: int) -> Segment:
    """Recovery takes the number of opened replicas for the replication factor."""
    settings = replace(segment.settings, replication_factor=len(segment.replicas))
    return segment.changed(settings=settings)


def recover_by_topic(segment: Segment, topic_min_insync_replicas: int) -> Segment:
    """Recovery takes the topic's settings of today."""
    return segment.changed(
        settings=replace(segment.settings, min_insync_replicas=topic_min_insync_replicas)
    )


def watermark_not_frozen(
    current: int, isr_end: int, quorum_end: int, committed_count: int, min_insync_replicas: int
) -> int:
    """The in-sync set moves the high watermark however small it is."""
    return watermark.high_watermark(current, isr_end, quorum_end, committed_count, 0)


def shrink_before_cas(state: isr.IsrState) -> tuple[int, ...]:
    """A member proposed for removal no longer counts."""
    if isinstance(state, isr.PendingShrink):
        return state.proposal.isr
    return isr.maximal_isr(state)


def expand_only_after_cas(state: isr.IsrState) -> tuple[int, ...]:
    """A member counts once the coordinator has answered."""
    return state.isr


def floor_is_quorum_end(high_watermark: int, acked_end: int, quorum_end: int) -> int:
    """A follower joins at the quorum's end, although more was acked by a smaller set."""
    return max(quorum_end, 0)


def accept_while_recovering(
    segment: Segment, proposal: isr.IsrProposal, registered: Mapping[int, int]
) -> Any:
    """Recovery reads the in-sync set, and a change is still let through afterwards."""
    return isr.accept_isr_change(
        segment.changed(state=isr.SegmentState.ACTIVE), proposal, registered
    )


def doubt_forgotten(state: isr.IsrState, version: int) -> isr.IsrState:
    """No answer is taken for a refusal."""
    return isr.CommittedIsr(state.isr, state.version)


def one_isr_member(replies: Mapping[int, FenceReply], segment: Segment) -> Decision | None:
    """Any member of the in-sync set decides."""
    members = tuple(n for n, reply in replies.items() if reply.intact)
    return Decision("S3", members) if set(members) & set(segment.isr) else None


def without_isr_clause(replies: Mapping[int, FenceReply], segment: Segment) -> Decision | None:
    """Decide with replicas that every quorum meets. Records acked by a set smaller than a quorum
    are forgotten."""
    settings = replace(segment.settings, min_insync_replicas=segment.settings.quorum)
    return recovery.may_decide(replies, segment.changed(settings=settings))


def one_reply(replies: Mapping[int, FenceReply], segment: Segment) -> Decision | None:
    """Let the first replica that answers decide."""
    return Decision("S3", tuple(replies)) if replies else None


def shortest_log(replies: Mapping[int, FenceReply], _: int = 0) -> EndDecision:
    """Only what all of them have."""
    end = min(reply.durable_end_offset for reply in replies.values())
    return EndDecision(end, min(replies), 0)


def lost_by_who_answered(replies: Mapping[int, FenceReply], segment: Segment) -> bool:
    """Take a segment for lost although a replica that did not answer may be intact."""
    return bool(replies) and not any(reply.intact for reply in replies.values())


def progress_kept(followers: Followers, node: NodeInfo) -> None:
    """Go on counting progress that an earlier incarnation of the follower reported."""
    follower = followers.by_node[node.node_id]
    follower.node, follower.incarnation = node, node.incarnation


def any_incarnation(followers: Followers, report: FollowerProgress, log_end: int) -> bool:
    """A report counts whichever incarnation sent it."""
    followers.record(followers.by_node[report.node_id], report, log_end, 0.0)
    return True


def append_while_sealing(roll: sealing.Roll) -> bool:
    """The seal is on its way, and the leader goes on."""
    return sealing.gives_out_offsets(roll) or isinstance(roll, sealing.Sealing)


def leads_again(segment: Segment, node_id: int, incarnation: int) -> bool:
    """Leadership belongs to a node."""
    return segment.leader == node_id


def seal_on_old_confirmations(
    cluster: ClusterState, live: Liveness, order: DecidedSeal, successor: Opening, now_ms: int
) -> Change:
    """Count confirmations of the successor's files by nodes that were started again since."""
    now = {node_id: cluster.incarnation(node_id) for node_id in successor.confirmed}
    return seal(cluster, live, order, replace(successor, confirmed=now), now_ms)


MUTANTS: tuple[Mutant, ...] = (
    Mutant("report_leo_before_fence", "R30", {"fence_before_report": False}, CALM),
    Mutant("fenced_leader_goes_on", "R30", {"fence_stops_leader": False}, CALM),
    Mutant("fence_lost_on_crash", "R30", {"promise_is_durable": False}, CRASH),
    Mutant("ack_before_fsync", "R12", {"reports_only_durable": False}, CRASH),
    Mutant(
        "leader_resumes_after_restart",
        "principle",
        {"may_lead": leads_again, "restart_ends_leadership": False},
        replace(CRASH, records=2),
    ),
    Mutant("quorum_over_isr", "R5", {"voters_of": majority_of_isr}, ISR),
    Mutant("quorum_without_leader", "R5", {"quorum_end": quorum_without_leader}, CALM),
    Mutant(
        "q_of_opened_replicas",
        "R5, R31",
        {"voters_of": majority_of_opened, "settings_of": recover_by_opened},
        replace(CALM, replication_factor=5),
    ),
    Mutant("watermark_not_frozen", "R6", {"high_watermark": watermark_not_frozen}, ISR),
    Mutant("all_below_min_insync_replicas", "R3", {"all_needs_min_insync_replicas": False}, ISR),
    Mutant("one_isr_member_suffices", "R31", {"may_decide": one_isr_member}, CALM),
    Mutant("one_reply_suffices", "R31", {"may_decide": one_reply}, CALM),
    Mutant("s3_without_isr_clause", "R31", {"may_decide": without_isr_clause}, ISR_M1),
    Mutant("shortest_log_decides", "R32", {"decide_end": shortest_log}, CALM),
    Mutant(
        "decide_with_current_m",
        "R31",
        {"settings_of": recover_by_topic},
        replace(ISR_M1, altered_to=2),
    ),
    Mutant("shrink_before_cas", "R14", {"maximal_isr": shrink_before_cas}, ISR_M1),
    Mutant("expand_only_after_cas", "R14", {"maximal_isr": expand_only_after_cas}, ISR_M1),
    Mutant("expand_at_hw_q", "R16", {"floor_of": floor_is_quorum_end}, ISR_M1),
    Mutant("doubt_forgotten", "R18", {"unanswered": doubt_forgotten}, ISR_M1),
    Mutant("isr_read_stale", "R19", {"accept_isr_change": accept_while_recovering}, ISR_M1),
    Mutant("missing_as_empty", "R30", {"missing_is_unknown": False}, replace(CRASH, losses=1)),
    Mutant("certify_without_floor", "R16", {"certifies": False}, REBUILD),
    Mutant("stale_progress", "R7", {"node_changed": progress_kept}, REBUILD),
    Mutant("old_incarnation_accepted", "R7", {"report_accepted": any_incarnation}, REBUILD),
    Mutant("promise_lost_with_disk", "R30", {"promise_is_told_again": False}, REBUILD),
    Mutant(
        "append_while_sealing",
        "R29",
        {"gives_out_offsets": append_while_sealing},
        replace(SEAL, records=2),
    ),
    Mutant(
        "resume_after_unanswered_seal", "R29", {"seal_is_final": False}, replace(SEAL, records=2)
    ),
    Mutant("seal_without_catch_up", "R27, R28", {"seal_waits": False}, SEAL),
    Mutant("seal_without_write_back", "R33", {"writes_back": False}, CALM),
    Mutant("opened_on_old_confirmations", "R34", {"seal": seal_on_old_confirmations}, CALM),
    Mutant(
        "stale_clean_marker",
        "principle",
        {"marker_is_removed": False},
        replace(CRASH, synced=False, crashes=2),
    ),
    Mutant(
        "async_replica_counts_after_crash",
        "R80",
        {"doubts_unsynced": False},
        replace(CRASH, synced=False),
    ),
    Mutant("late_seal_not_synced", "R81", {"settles": False}, replace(SEAL, synced=False)),
    Mutant(
        "restart_empty_too_early",
        "R82",
        {"is_total_loss": lost_by_who_answered},
        replace(CRASH, synced=False, restart_empty=True),
    ),
    Mutant("scan_counts_as_synced", "R11", {"scan_is_synced": False}, replace(CRASH, crashes=2)),
)
