"""A state of the model: one segment, its coordinator, its leader, its replicas, and the faults.

Everything is a tuple of small values, so that a state can be hashed and compared. A log is a string
with one letter per record ("a" is what the first leader writes, "b" what a leader writes that was
started again and must not); the base offset is 0, so an end is a length. Messages are not kept in
queues: what may be in flight is what a field says (a proposal that was sent, a seal that was sent,
one late report per follower); all else may happen at any time or never, which covers loss, delay
and partitions.
"""

from typing import NamedTuple

ACTIVE, RECOVERING, SEALED = 0, 1, 2
"""``Record.state``."""

SETTLED, PENDING, UNCERTAIN, NEUTRAL = 0, 1, 2, 3
"""``Leader.change``: no proposal; sent; sent and timed out; refused in doubt, so that the committed
set itself was proposed as well (rule R18)."""

IDLE, DRAINING, SEAL_SENT = 0, 1, 2
"""``Leader.roll``."""


class Record(NamedTuple):
    """The segment record in the metadata store, and what exists once for the whole segment."""

    state: int = ACTIVE
    altered: int = 0
    """1 = an admin has raised min_insync_replicas of the *topic* meanwhile."""
    seal_sent: str = ""
    """Content that the leader has asked to seal; in flight."""
    end: str = ""
    """Content of the segment as SEALED."""
    crashes: int = 0
    """Still allowed; ``losses`` likewise, of whole disks."""
    losses: int = 0
    seen: str = ""
    """Below the highest high watermark that anybody ever saw (ghost: no process keeps this)."""
    acked_all: int = 0
    """Highest end acked at ``all`` and at ``quorum`` (ghosts)."""
    acked_quorum: int = 0
    lossy: int = 0
    """1 = SEALED without a proof of its end, because no copy is whole (R82)."""
    broken: str = ""
    """An invariant that a step itself has violated."""


class Leader(NamedTuple):
    """The leader's own volatile state."""

    leads: int = 1
    change: int = SETTLED
    stale: int = 0
    """1 = the record has a newer version than the leader has heard of."""
    roll: int = IDLE


class Replica(NamedTuple):
    """One node and its disk."""

    incarnation: int = 1
    log: str = ""
    durable: int = 0
    """The end that would survive a power cut."""
    says: int = 0
    """The end that the process takes for durable, and reports. It differs from ``durable`` only if
    the replica is not synced."""
    intact: int = 1
    """0 = UNKNOWN."""
    promised: int = 0
    """1 = the epoch of the recovery is promised, durably."""
    clean: int = 0
    """The marker of a clean shutdown lies on the disk."""
    kept: int = 0
    """1 = a replica in an unsynced mode was synced, and each append is from now on (R81)."""


class Member(NamedTuple):
    """The coordinator's view of a replica."""

    stored: int = 1
    """In the stored in-sync set; ``frozen`` is that set as it was at the move to RECOVERING."""
    frozen: int = 0
    reply: tuple[int, str, int] | tuple[()] = ()
    """To the fence: intact, durable log, incarnation."""
    verified: int = 0
    """Written back in this round."""
    listed: int = 0
    """Named in the seal that the leader has sent."""


class View(NamedTuple):
    """The leader's view of a follower."""

    committed: int = 1
    proposed: int = 0
    """0 or the incarnation in which it is part of the proposal in flight."""
    registered: int = 1
    """Its incarnation, as heard from the coordinator."""
    attached: int = 1
    end: int = 0
    """Its durable end, as reported."""
    late: tuple[int, int] | tuple[()] = ()
    """A report (incarnation, end) that is still under way although its stream has ended."""


class Peer(NamedTuple):
    """Everything about one node; peer 0 is the leader's."""

    replica: Replica = Replica()
    member: Member = Member()
    view: View = View()


class World(NamedTuple):
    """One state."""

    record: Record
    leader: Leader
    peers: tuple[Peer, ...]


GONE, NOBODY = Leader(0), View(0, 0, 0, 0, 0)
"""A leader that has left, and its view of everybody."""


def with_peer(world: World, index: int, peer: Peer) -> World:
    """The world with one peer replaced."""
    peers = world.peers
    return World(world.record, world.leader, (*peers[:index], peer, *peers[index + 1 :]))


def with_replica(world: World, index: int, **changes: object) -> World:
    """The world with some fields of one replica replaced."""
    peer = world.peers[index]
    return with_peer(world, index, Peer(peer.replica._replace(**changes), peer.member, peer.view))


def node_ids(flags: list[int]) -> tuple[int, ...]:
    """Positions of what is set, as node ids from 1."""
    return tuple([index + 1 for index, flag in enumerate(flags) if flag])


def canonical(world: World) -> World:
    """The one state that stands for all that differ only in which follower is which.

    Sound because no rule of the model, and no production function but for the choice between
    equal donors, distinguishes followers by their ids.
    """
    peers = world.peers
    if len(peers) == 3:
        _, second, third = peers
        if third < second:
            return World(world.record, world.leader, (peers[0], third, second))
        return world
    return World(world.record, world.leader, (peers[0], *sorted(peers[1:])))
