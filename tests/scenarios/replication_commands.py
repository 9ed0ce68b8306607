"""Commands of the stories about a leader and its followers: each becomes inputs of the cores.

Only this file makes inputs of ``replication/``; what the cores answer is printed in the words of
``effect_lines``. A follower's report reaches the leader at once while they are connected; whatever
else takes time (data on its way, a sync, the coordinator's answer) happens when a story says so.
Times are in milliseconds, ends are exclusive.
"""

from icecore.errors import ConflictError, IcecoreError, OutOfSpaceError, UnavailableError
from icecore.model import Acks, NodeState, SegmentState
from icecore.topic_settings import SegmentSettings
from icecore_replication import inputs as into
from icecore_replication.isr import IsrProposal, accept_isr_change
from icecore_replication.leader import LeaderLimits
from tests.scenarios.effect_lines import nodes
from tests.scenarios.replica_set import INCARNATION_STEP, LEADER, ReplicaSet
from tests.scenarios.vocabulary import Vocabulary

REPLICATION = Vocabulary(ReplicaSet)
SUCCESSOR = 8
SAME, OTHER = (b"s" * 32, b"p" * 32), (b"x" * 32, b"p" * 32)


@REPLICATION.command
def segment(
    world: ReplicaSet,
    *,
    replicas: tuple[int, ...] = (1, 2, 3),
    isr: tuple[int, ...] = (),
    replication_factor: int = 3,
    min_insync_replicas: int = 2,
    base: int = 100,
    segment_bytes: int = 1 << 30,
    lag_ms_max: int = 10_000,
    pending_requests_max: int = 4_096,
    rejoin_wait_ms: int = 0,
) -> list[str]:
    """Begin: an ACTIVE segment that node 1 leads; those in sync have attached, others connect."""
    settings = SegmentSettings(
        replication_factor=replication_factor,
        min_insync_replicas=min_insync_replicas,
        segment_bytes=segment_bytes,
    )
    world.open(settings, replicas, isr or replicas, base)
    world.start(
        LeaderLimits(
            replica_lag_ms_max=lag_ms_max,
            pending_requests_max=pending_requests_max,
            rejoin_wait_ms=rejoin_wait_ms,
        )
    )
    for node_id, follower in world.followers.items():
        follower.is_connected = node_id in world.record.isr
        if follower.is_connected:
            world.follow(node_id, into.StreamOpened())
            world.lead(_report(world, node_id, base, attach=True))
    world.printed()
    return []


def _deliver(
    world: ReplicaSet,
    node_id: int,
    epoch: int,
    base: int,
    end: int,
    watermark: int,
    *,
    chained: bool = True,
) -> None:
    world.deliveries += 1
    _follow(
        world,
        node_id,
        into.DataReceived(
            delivery_id=world.deliveries,
            epoch=epoch,
            base_offset=base,
            end_offset=end,
            prev_header_crc32c=base if chained else base + 1,
            last_header_crc32c=end,
            high_watermark=watermark,
        ),
    )


def _follow(world: ReplicaSet, node_id: int, *inputs: into.FollowerInput) -> None:
    """One step of a follower; the leader hears at once what it reports."""
    for told in world.follow(node_id, *inputs):
        world.lead(_report(world, node_id, told.durable_end_offset, attach=told.attach))


def _report(
    world: ReplicaSet, node_id: int, end: int, *, incarnation: int = 0, attach: bool = False
) -> into.FollowerProgress:
    """From the process that runs there, unless another incarnation is named."""
    return into.FollowerProgress(
        node_id=node_id,
        incarnation=incarnation or world.followers[node_id].incarnation,
        durable_end_offset=end,
        attach=attach,
    )


# --- producers ------------------------------------------------------------------------------------


@REPLICATION.command
def produce(
    world: ReplicaSet,
    *,
    acks: Acks = Acks.ALL,
    records: int = 10,
    length_bytes: int = 1_000,
    producer: int = 0,
    epoch: int = 0,
    sequence: int = 0,
) -> list[str]:
    """A batch arrives at the leader. Requests are numbered from 1."""
    world.requests += 1
    world.lead(
        into.ProduceReceived(
            request_id=world.requests,
            acks=acks,
            record_count=records,
            length_bytes=length_bytes,
            producer_id=producer,
            producer_epoch=epoch,
            base_sequence=sequence,
        )
    )
    return world.printed()


@REPLICATION.command
def lease(world: ReplicaSet, *, valid: bool) -> list[str]:
    """The leader's lease from the coordinator ends, or is renewed."""
    world.lead(into.LeaseChanged(valid))
    return world.printed()


# --- data and disks -------------------------------------------------------------------------------


@REPLICATION.command
def replicate(world: ReplicaSet, *, to: tuple[int, ...]) -> list[str]:
    """Deliver to these followers the batches they lack, with the leader's watermark."""
    leader = world.leader
    epoch, watermark = leader.segment.epoch, leader.high_watermark
    for node_id in to:
        assert world.followers[node_id].is_connected, f"node {node_id} is not connected"
        base, end = world.followers[node_id].core.log_end_offset, leader.log_end_offset
        if base < end:
            _deliver(world, node_id, epoch, base, end, watermark)
        else:
            _follow(world, node_id, into.WatermarkReceived(epoch, watermark))
    return world.printed()


@REPLICATION.command
def data(
    world: ReplicaSet,
    *,
    to: int,
    base: int,
    end: int,
    watermark: int = 0,
    epoch: int = 5,
    chained: bool = True,
) -> list[str]:
    """Certain batches arrive at a follower, in whatever order; none, only the watermark."""
    if base < end:
        _deliver(world, to, epoch, base, end, watermark, chained=chained)
    else:
        _follow(world, to, into.WatermarkReceived(epoch, watermark))
    return world.printed()


@REPLICATION.command
def sync(world: ReplicaSet, *, on: tuple[int, ...], to: int | None = None) -> list[str]:
    """Make durable what these nodes have appended, all of it or below an offset."""
    for node_id in on:
        core = world.leader if node_id == LEADER else world.followers[node_id].core
        durable = into.LocalDurable(core.log_end_offset if to is None else to)
        if node_id == LEADER:
            world.lead(durable)
        else:
            _follow(world, node_id, durable)
    return world.printed()


@REPLICATION.command
def disk_full(world: ReplicaSet, *, on: int) -> list[str]:
    """An append fails."""
    failed = into.LocalFailed(OutOfSpaceError("no space left"))
    if on == LEADER:
        world.lead(failed)
    else:
        _follow(world, on, failed)
    return world.printed()


# --- followers ------------------------------------------------------------------------------------


@REPLICATION.command
def disconnect(world: ReplicaSet, *, node: int) -> list[str]:
    """The stream between a follower and the leader breaks."""
    world.followers[node].is_connected = False
    return []


@REPLICATION.command
def connect(world: ReplicaSet, *, node: int) -> list[str]:
    """A new stream between a follower and the leader stands."""
    world.followers[node].is_connected = True
    _follow(world, node, into.StreamOpened())
    return world.printed()


@REPLICATION.command
def restart(world: ReplicaSet, *, node: int, keeps: int | None = None) -> list[str]:
    """A follower's process ends and begins again, with what was durable or less; not connected."""
    old = world.followers[node]
    end = old.core.durable_end_offset if keeps is None else keeps
    watermark = min(end, old.core.max_known_high_watermark)
    old.core = world.core(end, watermark)
    old.incarnation += INCARNATION_STEP
    old.is_connected = False
    return [f"{node}: incarnation {old.incarnation}, log end {end}"]


@REPLICATION.command
def report(
    world: ReplicaSet, *, node: int, end: int, incarnation: int = 0, attach: bool = False
) -> list[str]:
    """A follower's report that arrives at the leader, from wherever."""
    world.lead(_report(world, node, end, incarnation=incarnation, attach=attach))
    return world.printed()


@REPLICATION.command
def diverged(world: ReplicaSet, *, node: int) -> list[str]:
    """The leader's shell sees at an attach that the chains differ, and refuses the follower."""
    world.lead(into.FollowerDiverged(node, world.followers[node].core.durable_end_offset))
    _follow(world, node, into.LeaderRejected("DIVERGED"))
    return world.printed()


# --- the coordinator ------------------------------------------------------------------------------


@REPLICATION.command
def announce(world: ReplicaSet, *, node: int, state: NodeState) -> list[str]:
    """The coordinator tells the leader of a node: its state and its registered incarnation."""
    follower = world.followers.get(node)
    if follower is not None and state is not NodeState.DOWN:
        world.registered[node] = follower.incarnation
    world.lead(into.NodeChanged(world.info(node, state)))
    return world.printed()


@REPLICATION.command
def coordinator_answers(world: ReplicaSet, *, heard: bool = True) -> list[str]:
    """It decides on the oldest proposal; the leader hears of it, or gets no answer."""
    asked = world.proposals.popleft()
    proposal = IsrProposal(
        node_id=LEADER,
        incarnation=world.leader.incarnation,
        epoch=world.leader.segment.epoch,
        version=asked.version,
        isr=asked.isr,
        isr_incarnations=asked.incarnations,
    )
    decided = accept_isr_change(world.record, proposal, world.registered)
    answer: into.LeaderInput
    if isinstance(decided, IcecoreError):
        world.tell(f"coordinator: refuses, {decided.reason}: {decided.message}")
        answer = into.IsrChangeFailed(asked.version)
    else:
        world.store(decided)
        answer = into.SegmentUpdated(decided)
    world.lead(answer if heard else into.IsrChangeUnknown(asked.version))
    return world.printed()


@REPLICATION.command
def no_answer(world: ReplicaSet) -> list[str]:
    """The leader waits in vain; the proposal is still on its way, and may arrive later."""
    world.lead(into.IsrChangeUnknown(world.proposals[0].version))
    return world.printed()


@REPLICATION.command
def coordinator_tells(world: ReplicaSet) -> list[str]:
    """The leader hears of the record as it is stored."""
    world.lead(into.SegmentUpdated(world.record))
    return world.printed()


@REPLICATION.command
def coordinator_recovers(world: ReplicaSet) -> list[str]:
    """The record moves to RECOVERING; the leader has not heard of it."""
    record = world.record
    world.store(record.changed(state=SegmentState.RECOVERING, version=record.version + 1))
    return world.printed()


@REPLICATION.command
def fence(world: ReplicaSet, *, on: int, epoch: int) -> list[str]:
    """A node has promised an epoch, durably."""
    if on == LEADER:
        world.lead(into.Fenced(epoch))
    else:
        _follow(world, on, into.Fenced(epoch))
    return world.printed()


# --- roll and seal --------------------------------------------------------------------------------


@REPLICATION.command
def roll(world: ReplicaSet, *, why: str) -> list[str]:
    """Ask the leader to seal the segment."""
    world.lead(into.RollRequested(why))
    return world.printed()


@REPLICATION.command
def successor_ready(world: ReplicaSet) -> list[str]:
    """The files of the next segment, 8, exist on its candidates."""
    world.lead(into.SuccessorPrepared(SUCCESSOR))
    return world.printed()


@REPLICATION.command
def no_successor(world: ReplicaSet) -> list[str]:
    """No files of a next segment can be had now."""
    world.lead(into.SuccessorFailed(UnavailableError("no nodes")))
    return world.printed()


@REPLICATION.command
def digests(
    world: ReplicaSet, *, missing: tuple[int, ...] = (), different: tuple[int, ...] = ()
) -> list[str]:
    """Those that were asked tell their digests; some do not answer, or tell others."""
    asked = world.digests_asked
    assert asked is not None, "nobody was asked for digests"
    answers = {
        each: OTHER if each in different else SAME for each in asked.nodes if each not in missing
    }
    world.lead(into.SealDigests(asked.end_offset, answers))
    return world.printed()


@REPLICATION.command
def seal_stored(world: ReplicaSet) -> list[str]:
    """The coordinator has stored the seal."""
    world.lead(into.SealCommitted())
    return world.printed()


@REPLICATION.command
def seal_refused(world: ReplicaSet) -> list[str]:
    """The coordinator says that the seal was not stored."""
    world.lead(into.SealRejected(ConflictError("the record has changed")))
    return world.printed()


@REPLICATION.command
def seal_unanswered(world: ReplicaSet) -> list[str]:
    """Leave it unknown whether the seal was stored."""
    world.lead(into.SealUnknown())
    return world.printed()


# --- time, and a look at all of it ----------------------------------------------------------------


@REPLICATION.command
def wait(world: ReplicaSet, *, ms: int) -> list[str]:
    """Time passes, and the leader looks at its clock."""
    world.now_ms += ms
    world.lead(into.Tick())
    return world.printed()


@REPLICATION.command
def show(world: ReplicaSet) -> list[str]:
    """Print the state of the leader's and the followers' cores."""
    core = world.leader
    maximal = "" if core.maximal_isr == core.isr else f", counting {nodes(core.maximal_isr)}"
    role = "stopped" if core.stopped else "leads"
    lines = [
        f"{LEADER}: {role}, log end {core.log_end_offset}, durable {core.durable_end_offset}, "
        f"high watermark {core.high_watermark}, isr {nodes(core.isr)}{maximal}"
    ]
    for node_id, follower in world.followers.items():
        replica = follower.core
        role = "stopped" if replica.stopped else "follows"
        lines.append(
            f"{node_id}: {role}, log end {replica.log_end_offset}, "
            f"durable {replica.durable_end_offset}, high watermark {replica.high_watermark}"
        )
    return lines
