"""The protocol: everything that can happen to a segment, one small function per step.

Each function looks at a world and yields the worlds that may follow, with the number of the node
that it happens to. Whether a step is allowed and what it leads to is decided by the functions in
``rules.py``, which are production's. Steps may come in any order or never: that is the network, the
scheduler and every timeout; crashes are in ``faults.py``. Rule numbers R… are those of
docs/design/protocol.md.
"""

from itertools import combinations

from tests.model.model import Action, Model, Steps, committed_set, proposal, stopped, stored_set
from tests.model.rules import LEADER, ROLLS
from tests.model.state import (
    ACTIVE,
    DRAINING,
    IDLE,
    NEUTRAL,
    PENDING,
    RECOVERING,
    SEAL_SENT,
    SEALED,
    SETTLED,
    UNCERTAIN,
    Peer,
    World,
    node_ids,
    with_peer,
    with_replica,
)

# --- append and replicate -------------------------------------------------------------------------


def append(model: Model, world: World) -> Steps:
    """The leader gives an offset to a record and writes it; nothing is synced yet."""
    own, leader = world.peers[0].replica, world.leader
    if not leader.leads or len(own.log) >= model.config.records:
        return
    if model.rules.gives_out_offsets(ROLLS[leader.roll]):
        log = own.log + ("a" if own.incarnation == 1 else "b")
        says, durable = model.says(log, own.says), len(log) if own.kept else own.durable
        after = with_replica(world, 0, log=log, says=says, durable=durable)
        yield 0, model.settle(after)


def fetch(model: Model, world: World) -> Steps:
    """A follower gets the next record and writes it (R10); the leader may not have synced it.

    By the rules a follower's bytes that are not synced cannot be told from bytes it never got:
    then writing and syncing are one step.
    """
    if not world.leader.leads:
        return
    sent = world.peers[0].replica.log
    for i in model.followers:
        replica = world.peers[i].replica
        log = sent[: len(replica.log) + 1]
        is_chained = sent.startswith(replica.log)  # the batch headers show where logs part
        if model.may_follow(replica) and is_chained and log != replica.log:
            if model.hides_unsynced or replica.kept:
                yield i, with_replica(world, i, log=log, durable=len(log), says=len(log))
            else:
                yield i, with_replica(world, i, log=log, says=model.says(log, replica.says))


def fsync(model: Model, world: World) -> Steps:
    """A group becomes durable. (Of replicas that are not synced nobody asks what is.)"""
    for i in model.everyone:
        replica = world.peers[i].replica
        end = len(replica.log)
        if replica.durable < end:
            after = with_replica(world, i, durable=end, says=end)
            yield i, after if i else model.settle(after)


def local_failure(model: Model, world: World) -> Steps:
    """The leader's disk refuses what the leader has already sent: it leaves for ever (R3)."""
    own = world.peers[0].replica
    if world.leader.leads and own.durable < len(own.log):
        after = with_replica(world, 0, log=own.log[: own.durable], says=own.durable)
        yield 0, stopped(after)


def report(model: Model, world: World) -> Steps:
    """A follower tells the leader how far it is durable (R7, R8, R12)."""
    if not world.leader.leads:
        return
    for i in model.followers:
        replica, _, view = world.peers[i]
        if model.may_follow(replica):
            attach = not view.attached or view.registered != replica.incarnation
            message = (replica.incarnation, replica.says, attach)
            yield from deliver(model, world, i, message)


def late_report(model: Model, world: World) -> Steps:
    """Deliver the report that was still under way when a follower's stream ended."""
    if not world.leader.leads:
        return
    for i in model.followers:
        peer = world.peers[i]
        if peer.view.late:
            rest = with_peer(world, i, peer._replace(view=peer.view._replace(late=())))
            yield from deliver(model, rest, i, (*peer.view.late, False))


def deliver(model: Model, world: World, i: int, message: tuple[int, int, bool]) -> Steps:
    """The leader takes a report, ignores it, or sees that its own log is the shorter one (R9)."""
    replica, member, view = world.peers[i]
    known = (view.registered, view.attached, view.end)
    after = model.ask.report(known, message, len(world.peers[0].replica.log))
    if after is None:
        yield i, stopped(world)
    elif after != known[1:]:
        view = view._replace(attached=after[0], end=after[1])
        yield i, model.settle(with_peer(world, i, Peer(replica, member, view)))


def registration(model: Model, world: World) -> Steps:
    """The leader hears that a follower was started again (R7)."""
    if not world.leader.leads:
        return
    for i in model.followers:
        replica, member, view = world.peers[i]
        if view.registered < replica.incarnation:
            known = (view.registered, view.attached, view.end)
            attached, end = model.ask.registered(known, replica.incarnation)
            view = view._replace(registered=replica.incarnation, attached=attached, end=end)
            if view.late and model.ask.report(
                (view.registered, attached, end), (*view.late, False), model.config.records
            ) == (attached, end):
                view = view._replace(late=())  # it will be ignored whenever it comes
            yield i, model.settle(with_peer(world, i, Peer(replica, member, view)))


def certify(model: Model, world: World) -> Steps:
    """A replica that lost its data and copied it again may call itself intact: it holds
    everything for which its earlier life may have been counted."""
    if not world.leader.leads:
        return
    for i in model.followers:
        replica, _, view = world.peers[i]
        if (
            model.may_follow(replica)
            and not replica.intact
            and view.registered == replica.incarnation
            and may_join(model, world, i, model.rules.certifies)
        ):
            yield i, with_replica(world, i, intact=1)


# --- the in-sync set ------------------------------------------------------------------------------


def may_join(model: Model, world: World, i: int, above_floor: bool = True) -> bool:
    """A follower that has everything that recovery may have to find on it (R16)."""
    record, view = world.record, world.peers[i].view
    acked = max(record.acked_all, record.acked_quorum)
    floor = (len(record.seen), acked, model.advance(world)[3]) if above_floor else (0, 0, 0)
    return model.ask.can_join(i + 1, view.registered, view.attached, view.end, floor)


def propose(model: Model, world: World) -> Steps:
    """The leader asks for a smaller or larger in-sync set, one change at a time (R14-R16).

    Not after the record was frozen: then no proposal is accepted, and one in flight only makes the
    leader wait for more (that it does is checked while the record is ACTIVE).
    """
    leader = world.leader
    if not leader.leads or leader.change != SETTLED or leader.stale or leader.roll == SEAL_SENT:
        return
    if world.record.state != ACTIVE:
        return
    inside = [i for i in model.followers if world.peers[i].view.committed]
    yield from proposals(model, world, inside, inside, remove=True)
    if leader.roll == IDLE:
        joining = [
            i
            for i in model.followers
            if i not in inside and world.peers[i].replica.intact and may_join(model, world, i)
        ]
        yield from proposals(model, world, inside, joining, remove=False)


def proposals(
    model: Model, world: World, inside: list[int], moving: list[int], remove: bool
) -> Steps:
    """One world for each choice of who leaves or joins."""
    for size in range(1, len(moving) + 1):
        for some in combinations(moving, size):
            members = set(inside) - set(some) if remove else {*inside, *some}
            peers = list(world.peers)
            for i in members:
                view = peers[i].view
                peers[i] = peers[i]._replace(view=view._replace(proposed=view.registered))
            leader = world.leader._replace(change=PENDING)
            yield some[0], model.settle(World(world.record, leader, tuple(peers)))


def proposal_times_out(model: Model, world: World) -> Steps:
    """No answer: the proposal may yet be applied (R18).

    By the rules the leader goes on counting as before, so that this is no new state; what a later
    refusal means after a timeout is in ``coordinator_takes_proposal``.
    """
    if world.leader.leads and world.leader.change == PENDING:
        known = (committed_set(world), proposal(world))
        if model.ask.maximal(UNCERTAIN, *known) != model.ask.maximal(PENDING, *known):
            later = world._replace(leader=world.leader._replace(change=UNCERTAIN))
            yield 0, model.settle(later)


def coordinator_takes_proposal(model: Model, world: World) -> Steps:
    """The coordinator compares and sets (R19), whether or not the leader still lives."""
    record, leader, peers = world
    if leader.change == SETTLED or leader.stale:
        return
    stored = stored_set(world)
    registered = tuple([(i + 1, peer.replica.incarnation) for i, peer in enumerate(peers)])
    offers = [proposal(world)]
    if leader.change == NEUTRAL:
        offers.append(tuple((node_id, 0) for node_id in stored))
    for offer in offers:
        after = model.ask.stored_after(record.state, stored, 0, offer, registered)
        if after is not None:
            members = [
                Peer(p.replica, p.member._replace(stored=int(i + 1 in after)), p.view)
                for i, p in enumerate(peers)
            ]
            yield 0, World(record, leader._replace(stale=1), tuple(members))
        elif leader.leads and record.state == ACTIVE:
            for change in {leader.change, max(leader.change, UNCERTAIN)}:
                heard = model.ask.after_refusal(change, stored, proposal(world))
                yield 0, settled_as(model, world, heard)


def settled_as(model: Model, world: World, change: int) -> World:
    """The leader has heard of a refusal."""
    peers = world.peers
    if change == SETTLED:
        peers = tuple([Peer(p.replica, p.member, p.view._replace(proposed=0)) for p in peers])
    leader = world.leader._replace(change=change)
    return model.settle(World(world.record, leader, peers))


def leader_hears_record(model: Model, world: World) -> Steps:
    """A newer version of the record settles whatever was in doubt."""
    if world.leader.leads and world.leader.stale:
        peers = tuple(
            [
                Peer(p.replica, p.member, p.view._replace(committed=p.member.stored, proposed=0))
                for p in world.peers
            ]
        )
        leader = world.leader._replace(stale=0, change=SETTLED)
        yield 0, model.settle(World(world.record, leader, peers))


# --- seal by the leader ---------------------------------------------------------------------------


def drain(model: Model, world: World) -> Steps:
    """The leader stops giving out offsets (R25-R27); the successor has been prepared.

    Not once the record is frozen: then the seal is refused, and a leader that drains does less.
    """
    leader = world.leader
    if world.record.state != ACTIVE:
        return
    enough = len(committed_set(world)) >= model.config.min_insync_replicas
    if leader.leads and leader.roll == IDLE and world.peers[0].replica.log and enough:
        yield 0, world._replace(leader=leader._replace(roll=DRAINING))


def abort_seal(model: Model, world: World) -> Steps:
    """Before the seal is sent the leader may give up and go on at the same end (R27)."""
    if world.leader.leads and world.leader.roll == DRAINING:
        yield 0, world._replace(leader=world.leader._replace(roll=IDLE))


def send_seal(model: Model, world: World) -> Steps:
    """Everybody in sync has everything and agrees on the bytes: the seal goes out (R28)."""
    record, leader, peers = world
    if not leader.leads or leader.roll != DRAINING or leader.change != SETTLED or leader.stale:
        return
    log, in_sync = peers[0].replica.log, committed_set(world)
    agreeing = in_sync
    if model.rules.seal_waits:
        durable = dict(enumerate(model.ends(world), LEADER))
        if model.rules.members_at_end(in_sync, durable, len(log)) != set(in_sync):
            return
        digests = {
            i + 1: (peer.replica.log.encode(), b"")
            for i, peer in enumerate(peers)
            if (i == 0 or model.may_follow(peer.replica))
            and peer.replica.intact
            and peer.replica.says == len(log)
        }
        agreeing = model.rules.agreeing_nodes(LEADER, in_sync, digests)
        peers = tuple(  # SealPrepare syncs what a not-synced replica holds
            [
                Peer(model.settled(p.replica, len(p.replica.log)), p.member, p.view)
                if i + 1 in agreeing
                else p
                for i, p in enumerate(peers)
            ]
        )
    for size in range(max(model.config.min_insync_replicas, 1), len(agreeing) + 1):
        for listed in combinations(agreeing, size):
            members = [
                Peer(p.replica, p.member._replace(listed=int(i + 1 in listed)), p.view)
                for i, p in enumerate(peers)
            ]
            yield (
                0,
                World(
                    record._replace(seal_sent=log),
                    leader._replace(roll=SEAL_SENT),
                    tuple(members),
                ),
            )


def coordinator_stores_seal(model: Model, world: World) -> Steps:
    """The seal that the leader has sent, if nothing has changed since (R29)."""
    record = world.record
    if record.seal_sent:
        listed = node_ids([peer.member.listed for peer in world.peers])
        # The move to RECOVERING is a change of the record, too.
        stale = int(world.leader.stale or record.state != ACTIVE)
        yield from sealed_as(model, world, record.seal_sent, listed, stale)


def sealed_as(
    model: Model, world: World, content: str, listed: tuple[int, ...], stale: int
) -> Steps:
    """One transaction: the seal, the successor, the tail; I11 holds at this moment.

    A listed copy that became UNKNOWN since it was verified is a fault, not a mistake.
    """
    record = world.record
    what = model.ask.seal_change(record.state, stored_set(world), stale, len(content), listed)
    if what is None:
        return
    copies = 0
    for node_id in listed:
        replica = world.peers[node_id - 1].replica
        is_copy = replica.durable >= len(content) and replica.log.startswith(content)
        copies += is_copy or not replica.intact
    if content and copies < model.config.min_insync_replicas:
        what = "I11: sealed with fewer than min_insync_replicas copies"
    if record.end and record.end != content:
        what = "I4: sealed twice"
    after = record._replace(state=SEALED, end=content, broken=what or record.broken)
    yield 0, world._replace(record=after)


def seal_unanswered(model: Model, world: World) -> Steps:
    """Leave the seal unanswered: the leader cannot know if it was stored, stops, and asks for
    recovery (R29)."""
    if world.leader.leads and world.leader.roll == SEAL_SENT:
        if model.rules.seal_is_final:
            yield 0, stopped(world)
        else:
            yield 0, world._replace(leader=world.leader._replace(roll=IDLE))


# --- recovery -------------------------------------------------------------------------------------


def start_recovery(model: Model, world: World) -> Steps:
    """ACTIVE to RECOVERING: the in-sync set is frozen (R30). No proof is needed: a leader that
    lives and is only silent must do no harm."""
    if world.record.state == ACTIVE and model.ask.can_recover(ACTIVE, stored_set(world)):
        peers = tuple(
            [
                Peer(p.replica, p.member._replace(frozen=p.member.stored), p.view)
                for p in world.peers
            ]
        )
        yield 0, World(world.record._replace(state=RECOVERING), world.leader, peers)


def fence(model: Model, world: World) -> Steps:
    """A replica ends its appends, persists the promise, then says where it ends (R30).

    An UNKNOWN replica says only that, which changes nothing: left out where nobody gives up.
    """
    if world.record.state != RECOVERING or any(p.member.verified for p in world.peers):
        return  # the end was decided by the replies there were
    for i in model.everyone:
        replica, member, view = world.peers[i]
        if member.reply or not (replica.intact or model.config.restart_empty):
            continue
        if not replica.intact:
            unknown = member._replace(reply=(0, "", 0))
            yield i, with_peer(world, i, Peer(replica, unknown, view))
            continue
        if model.rules.fence_before_report:
            end = len(replica.log)
            if world.leader.leads and replica.says > view.end:
                view = view._replace(late=(replica.incarnation, replica.says))
            after = model.settled(replica, end)._replace(promised=1, says=end)
        else:
            end, after = replica.says, replica
        stops = model.rules.fence_before_report and model.rules.fence_stops_leader
        # Of followers nobody asks for the incarnation.
        reply = (1, replica.log[:end], 0 if i else replica.incarnation)
        member = member._replace(reply=reply)
        following = with_peer(world, i, Peer(after, member, view))
        yield i, stopped(following) if i == 0 and stops else following


def decision(model: Model, world: World) -> tuple[int, str] | None:
    """(Donor, content) if the replies given so far prove where the segment ends (R31, R32).

    The coordinator may act on that or wait for more replies, until the first write-back.
    """
    if world.record.state != RECOVERING:
        return None
    return model.ask.decision(
        tuple([peer.member.reply for peer in world.peers]),
        node_ids([peer.member.frozen for peer in world.peers]),
        world.record.altered,
    )


def write_back(model: Model, world: World) -> Steps:
    """A reachable replica is brought to the end and verified, the donor's equals first (R33).

    It need not have promised anything: that a follower may go on following afterwards does no harm.
    """
    decided = decision(model, world)
    if decided is None or not decided[1]:
        return
    content = decided[1]
    has_donor = any(
        p.member.verified and p.replica.intact and p.replica.log == content for p in world.peers
    )
    for i in model.everyone:
        replica, member, view = world.peers[i]
        if member.verified:
            continue
        is_donor = bool(member.reply) and replica.intact and replica.log == content
        if is_donor or has_donor:
            end = len(content)
            after = model.settled(replica._replace(log=content), end)
            after = after._replace(says=end, intact=1)
            member = member._replace(verified=1)
            following = with_peer(world, i, Peer(after, member, view))
            yield i, following if i else stopped(following)


def seal_recovered(model: Model, world: World) -> Steps:
    """The coordinator seals what it has decided and written back, and opens the successor."""
    decided = decision(model, world)
    if decided is not None:
        verified = node_ids([peer.member.verified for peer in world.peers])
        listed = verified if model.rules.writes_back else model.ask.replicas
        yield from sealed_as(model, world, decided[1], listed, 0)


def next_round(model: Model, world: World) -> Steps:
    """The coordinator, or the one that follows it, begins again: nothing of a round is stored.

    Before anything was written back a new round finds what the old one would have found.
    """
    if world.record.state == RECOVERING and any(peer.member.verified for peer in world.peers):
        peers = tuple(
            [Peer(p.replica, p.member._replace(reply=(), verified=0), p.view) for p in world.peers]
        )
        yield 0, World(world.record, world.leader, peers)


def give_up(model: Model, world: World) -> Steps:
    """No copy can be whole, and the segment was opened to go on without (R82)."""
    record = world.record
    replies = tuple([peer.member.reply for peer in world.peers])
    frozen = node_ids([peer.member.frozen for peer in world.peers])
    if record.state == RECOVERING and model.ask.total_loss(replies, frozen):
        is_early = any(peer.replica.intact for peer in world.peers)
        broken = "R82: given up although a copy is whole" if is_early else record.broken
        after = record._replace(state=SEALED, lossy=1, seal_sent="", broken=broken)
        yield 0, stopped(world._replace(record=after))


ALWAYS: tuple[Action, ...] = (
    *(append, fetch, report, late_report, registration),
    *(start_recovery, fence, write_back, seal_recovered, next_round),
)
SYNCED: tuple[Action, ...] = (fsync, local_failure)
IN_SYNC_SET: tuple[Action, ...] = (
    *(propose, proposal_times_out, coordinator_takes_proposal, leader_hears_record),
)
LIVE_SEAL: tuple[Action, ...] = (
    *(drain, abort_seal, send_seal, coordinator_stores_seal, seal_unanswered),
)
