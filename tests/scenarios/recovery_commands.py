"""Commands of the stories about the end of a segment: recovery, what it decides, and the seal.

Each calls the decisions of the coordinator on what the story says that nodes have answered. Segment
1 is the one that ends. Ends are exclusive offsets.
"""

from icecore.model import NodeState
from icecore.topic_settings import UNAVAILABLE_ON_LOSS, SegmentSettings
from icecore_coordinator.decisions.lossy_changes import (
    allow_total_loss,
    allow_unclean,
    begin_unclean,
    declare_lost,
)
from icecore_coordinator.decisions.segment_changes import (
    DecidedSeal,
    alter_isr,
    check_leader,
    seal,
    start_recovery,
)
from icecore_coordinator.nodes.node_calls import WrittenReplica
from icecore_coordinator.work.recovery.recovery_case import Case
from icecore_replication.isr import IsrProposal
from icecore_replication.producers import ProducerTable, snapshot_digest
from icecore_replication.recovery import FenceReply, Undecidable, may_decide
from icecore_replication.seal_check import MemberWord, SealClaim, agreed_replicas
from tests.scenarios.effect_lines import nodes
from tests.scenarios.recovery_room import FIRST, RecoveryRoom, segment_line
from tests.scenarios.vocabulary import Vocabulary

RECOVERY = Vocabulary(RecoveryRoom)
NOW_MS = 0
LENGTH_BYTES = 4096


@RECOVERY.command
def cluster(
    room: RecoveryRoom,
    *,
    count: int = 3,
    replicas: tuple[int, ...] = (1, 2, 3),
    leader: int = 1,
    replication_factor: int = 3,
    min_insync_replicas: int = 2,
    on_total_loss: str = UNAVAILABLE_ON_LOSS,
) -> list[str]:
    """Begin: nodes 1, 2, … are up, and segment 1 is ACTIVE."""
    settings = SegmentSettings(
        replication_factor=replication_factor,
        min_insync_replicas=min_insync_replicas,
        on_total_loss=on_total_loss,
    )
    room.open(count, replicas, leader, settings)
    return [segment_line(room.segment())]


@RECOVERY.command
def isr(room: RecoveryRoom, *, members: tuple[int, ...]) -> list[str]:
    """The leader of segment 1 proposes another in-sync set."""
    segment = room.segment()
    proposal = IsrProposal(
        node_id=segment.leader,
        incarnation=segment.leader_incarnation,
        epoch=segment.epoch,
        version=segment.version,
        isr=members,
        isr_incarnations=tuple(room.state.incarnation(each) for each in members),
    )
    return room.commit(alter_isr(room.state, room.live, FIRST, proposal))


# --- nodes ----------------------------------------------------------------------------------------


@RECOVERY.command
def node(room: RecoveryRoom, *, node: int, state: NodeState) -> list[str]:
    """A node is heard of no more, or again."""
    room.live.note(node, state=state, is_connected=state is not NodeState.DOWN)
    return []


@RECOVERY.command
def restart(room: RecoveryRoom, *, node: int) -> list[str]:
    """A node has started again and is registered."""
    return [f"node {node}: incarnation {room.restart(node)}"]


@RECOVERY.command
def is_recovery_needed(room: RecoveryRoom) -> list[str]:
    """Return whether segment 1 is led by a registered incarnation that is up."""
    is_led = room.state.leader_is_live(room.segment(), room.live)
    return ["no: it is led" if is_led else "yes: nobody leads it"]


# --- the end --------------------------------------------------------------------------------------


@RECOVERY.command
def freeze(room: RecoveryRoom) -> list[str]:
    """The record moves to RECOVERING; a round of a recovery begins."""
    record = room.record()
    lines = room.commit(start_recovery(room.state, FIRST, record.version))
    return [*lines, *next_round(room)]


@RECOVERY.command
def next_round(room: RecoveryRoom) -> list[str]:
    """A recovery begins again, perhaps by another coordinator: nothing is known but the record."""
    record = room.record()
    room.case = Case(record.segment, record.is_unclean_allowed, is_lossy=record.is_unclean_begun)
    room.decided = None
    return [f"ask {nodes(record.segment.replicas)} to promise epoch {room.case.promise}"]


@RECOVERY.command
def reply(
    room: RecoveryRoom,
    *,
    node: int,
    end: int,
    intact: bool = True,
    salvageable: bool = False,
    watermark: int = 0,
    log: str = "a",
) -> list[str]:
    """A node has promised, synced its log and tells where it ends.

    Logs with the same end and name are equal, such with different names are not.
    """
    case = room.open_case
    case.replies[node] = FenceReply(
        intact=intact,
        durable_end_offset=end,
        last_header_crc32c=end,
        digest=log.encode(),
        incarnation=room.state.incarnation(node),
        max_known_high_watermark=watermark,
        salvageable=salvageable,
    )
    decision = may_decide(case.replies, case.segment)
    if decision is None:
        return ["not enough to decide"]
    return [f"may be decided by {decision.rule}, from {nodes(decision.members)}"]


@RECOVERY.command
def decide(room: RecoveryRoom, *, watermark: int = 0) -> list[str]:
    """The end, where the coordinator was told of this high watermark at most."""
    case = room.open_case
    if not case.may_decide():
        return ["undecided: the segment stays unavailable"]
    decided = case.decide(watermark)
    if isinstance(decided, Undecidable):
        return [f"call a person: {decided.why}"]
    room.decided = decided
    return [f"end {decided.end.end_offset}, as node {decided.end.donor} has it"]


@RECOVERY.command
def admin_accepts_loss(room: RecoveryRoom) -> list[str]:
    """A person says that the segment may end without a proof."""
    lines = room.commit(allow_unclean(room.record()))
    return lines and ["the record says that it may end unclean"]


@RECOVERY.command
def allow_loss(room: RecoveryRoom) -> list[str]:
    """The coordinator looks whether the segment may end without a proof, as it was opened."""
    lines = room.commit(allow_total_loss(room.state, FIRST, room.open_case.replies))
    return lines and ["the record says that it may end unclean"]


@RECOVERY.command
def decide_unclean(room: RecoveryRoom, *, watermark: int = 0) -> list[str]:
    """The end with a person's word: of the longest log left, or of none."""
    case = room.open_case
    room.commit(begin_unclean(room.state, FIRST))
    case.segment, case.is_lossy = room.segment(), True
    room.decided = case.decide_unclean(watermark, 0, NOW_MS)
    end = room.decided.end
    if room.decided.is_lost:
        return [f"end {end.end_offset}, and nobody has anything"]
    unknown = ", which is UNKNOWN" if room.decided.is_donor_unknown else ""
    return [f"end {end.end_offset}, as node {end.donor} has it{unknown}"]


# --- copies and seal ------------------------------------------------------------------------------


@RECOVERY.command
def orders(room: RecoveryRoom) -> list[str]:
    """Print which node is asked to do what, so that enough copies reach the end."""
    case = room.decided_case
    donor, end = case.end.donor, case.end.end_offset
    targets = [
        f"node {each}: copy from node {donor} up to {end}"
        for each in case.targets(room.state, room.live)
    ]
    return [f"node {donor}: verify the log up to {end}", *targets]


@RECOVERY.command
def written(
    room: RecoveryRoom, *, node: int, log: str = "a", producers_fit: bool = True
) -> list[str]:
    """A node holds everything up to the end, durably, and tells its digests."""
    case = room.decided_case
    snapshot = ProducerTable().snapshot()
    told = WrittenReplica(
        incarnation=room.state.incarnation(node),
        seal_digest=log.encode(),
        producer_snapshot=snapshot,
        producer_digest=snapshot_digest(snapshot) if producers_fit else b"other",
        max_append_timestamp_ms=0,
        length_bytes=1_000,
    )
    if node == case.end.donor:
        if not case.take_donor(told):
            return ["refused: its producers do not fit their digest"]
    elif not case.agrees_with_donor(told):
        return [f"call a person: node {node} has other digests"]
    case.verified[node] = told.incarnation
    enough = "enough" if case.is_written() else "not enough"
    return [f"verified on {nodes(sorted(case.verified))}, {enough}"]


@RECOVERY.command
def prepare(room: RecoveryRoom, *, on: tuple[int, ...], leader: int) -> list[str]:
    """The successor's record, before any file of it exists."""
    return room.prepare(on, leader)


@RECOVERY.command
def confirm(room: RecoveryRoom, *, segment: int, nodes: tuple[int, ...]) -> list[str]:
    """These nodes have made the files of a prepared segment, in the incarnation they have now."""
    room.opening(segment, nodes)
    return []


@RECOVERY.command
def seal_recovered(room: RecoveryRoom, *, successor: int = 0) -> list[str]:
    """One transaction ends the recovery."""
    opening = room.opening(successor) if successor else None
    sealing = room.decided_case.sealing(room.state)
    return room.commit(seal(room.state, room.live, sealing, opening, NOW_MS))


@RECOVERY.command
def leader_seals(
    room: RecoveryRoom, *, end: int, replicas: tuple[int, ...], successor: int = 0, version: int = 0
) -> list[str]:
    """The transaction of a live seal, based on the record as it is or as it was at a version."""
    segment = room.segment()
    check_leader(room.state, FIRST, segment.epoch, segment.leader, segment.leader_incarnation)
    sealing = DecidedSeal(
        segment_id=FIRST,
        version=version or segment.version,
        end_offset=end,
        seal_digest=b"a",
        replicas=replicas,
    )
    opening = room.opening(successor) if successor else None
    return room.commit(seal(room.state, room.live, sealing, opening, NOW_MS))


@RECOVERY.command
def admin_declares_lost(
    room: RecoveryRoom, *, segment: int = FIRST, damaged: tuple[int, ...] = ()
) -> list[str]:
    """A person says that no copy of a sealed segment will come back."""
    record = room.record(segment)
    return room.commit(declare_lost(record, room.live, lambda node_id: node_id not in damaged))


@RECOVERY.command
def check_seal(
    room: RecoveryRoom,
    *,
    end: int,
    listed: tuple[int, ...],
    confirming: tuple[int, ...],
    different: tuple[int, ...] = (),
    leader_sent_it: bool = True,
    watermark: int = 0,
) -> list[str]:
    """The coordinator asks the members that a live seal lists what they hold themselves (R64).

    Those that are neither ``confirming`` nor ``different`` do not answer.
    """
    segment = room.segment()
    claim = SealClaim(
        segment_id=FIRST,
        leader=segment.leader,
        end_offset=end,
        seal_digest=b"a",
        producer_digest=b"p",
        length_bytes=LENGTH_BYTES,
        replicas=listed,
        min_insync_replicas=segment.settings.min_insync_replicas,
    )
    words = {
        each: MemberWord(
            durable_end_offset=end,
            seal_digest=b"a" if each in confirming else b"b",
            producer_digest=b"p",
            length_bytes=LENGTH_BYTES,
            high_watermark=watermark,
            is_sealing=leader_sent_it and each == segment.leader,
        )
        for each in (*confirming, *different)
    }
    return [f"sealed with replicas {nodes(agreed_replicas(claim, words))}"]
