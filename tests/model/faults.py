"""The faults: crashes, power cuts, lost disks, and an admin who changes the settings."""

from tests.model.model import Model, Steps, stopped
from tests.model.rules import LEADER
from tests.model.state import ACTIVE, Leader, Peer, Record, Replica, View, World, with_peer


def crash(model: Model, world: World) -> Steps:
    """Process or power goes: any part of what was not synced may survive; perhaps the disk dies.

    A replica that is not synced is UNKNOWN then (R80); one whose process alone was killed is as
    after a clean stop, for the start syncs what it finds in the page cache.

    The restart is in the same step: a node that is down, for a while or for ever, is one that
    nothing happens to. Once the leader is gone, nobody can tell a synced follower that was started
    again on its disk from one that was not: left out.
    """
    record = world.record
    if not record.crashes:
        return
    once = record._replace(crashes=record.crashes - 1)
    lost = once._replace(losses=record.losses - 1)
    for i in model.everyone:
        replica = world.peers[i].replica
        gone = replica._replace(promised=replica.promised * model.rules.promise_is_durable)
        if i and model.hides_unsynced and not world.leader.leads and not record.losses:
            continue
        is_trusted = model.config.synced or replica.clean or replica.kept
        if is_trusted or not model.rules.doubts_unsynced:
            for end in range(replica.durable, len(replica.log) + 1):
                yield i, restart(model, world, once, i, gone._replace(log=replica.log[:end]))
        else:
            unknown = gone._replace(log="", durable=0, intact=0)
            yield i, restart(model, world, once, i, unknown)
        if record.losses:
            intact = int(not model.rules.missing_is_unknown)
            empty = gone._replace(log="", durable=0, intact=intact, promised=0, clean=0, kept=0)
            yield i, restart(model, world, lost, i, empty)


def clean_stop(model: Model, world: World) -> Steps:
    """A not-synced replica that shuts down cleanly syncs everything and leaves a marker."""
    record = world.record
    if record.crashes:
        once = record._replace(crashes=record.crashes - 1)
        for i in model.everyone if world.leader.leads else ():  # else nobody can tell
            replica = world.peers[i].replica
            synced = replica._replace(durable=len(replica.log), clean=1)
            yield i, restart(model, world, once, i, synced)


def restart(model: Model, world: World, record: Record, i: int, disk: Replica) -> World:
    """A process starts on what the disk holds, syncs it (R11) and registers a new incarnation.

    What the old process reported last may still be under way. (Where this log can't shrink, a
    report that says what the leader knows already is left out.)
    """
    before, member, view = world.peers[i]
    may_shrink = (
        not disk.intact
        or len(disk.log) < before.says
        or record.losses
        or (record.crashes and not model.config.synced)
    )
    if world.leader.leads and i and before.says > (0 if may_shrink else view.end):
        view = view._replace(late=(before.incarnation, before.says))
    told = model.rules.promise_is_told_again and not disk.intact and record.state != ACTIVE
    after = disk._replace(
        incarnation=disk.incarnation + 1,
        durable=len(disk.log) if model.rules.scan_is_synced else disk.durable,
        says=len(disk.log),
        promised=int(disk.promised or told),
        clean=disk.clean * (not model.rules.marker_is_removed),
    )
    member = member._replace(verified=0)
    following = with_peer(World(record, world.leader, world.peers), i, Peer(after, member, view))
    if i:
        return following
    segment = model.ask.segment(record.state, (LEADER,), 0)
    if model.rules.may_lead(segment, LEADER, after.incarnation) and not after.promised:
        return resumed(following)
    return stopped(following)


def resumed(world: World) -> World:
    """Return the world as a restarted process sees it that leads again (a mutant)."""
    peers = [
        Peer(p.replica, p.member, View(p.member.stored, 0, p.replica.incarnation, 0, 0))
        for p in world.peers
    ]
    return World(world.record, Leader(), tuple(peers))


def alter_topic(model: Model, world: World) -> Steps:
    """An admin raises min_insync_replicas of the topic; the segment keeps what is pinned in it."""
    if world.record.state == ACTIVE and not world.record.altered:
        yield 0, world._replace(record=world.record._replace(altered=1))
