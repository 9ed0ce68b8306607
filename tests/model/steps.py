"""The steps of a configuration, and the states that follow from one: the graph that is searched."""

from collections.abc import Iterator

from tests.model import actions, faults
from tests.model.configs import Config
from tests.model.model import Model
from tests.model.rules import Rules
from tests.model.state import (
    ACTIVE,
    GONE,
    NOBODY,
    PENDING,
    SEALED,
    SETTLED,
    Leader,
    Member,
    Peer,
    Record,
    World,
    canonical,
)


class Protocol(Model):
    """The steps of one configuration under one set of rules."""

    def __init__(self, config: Config, rules: Rules) -> None:
        super().__init__(config, rules)
        kinds = (
            (True, actions.ALWAYS),
            (config.synced, actions.SYNCED),
            (config.isr_changes, actions.IN_SYNC_SET),
            (config.live_seal, actions.LIVE_SEAL),
            (config.rebuild, (actions.certify,)),
            (config.crashes > 0, (faults.crash,)),
            (config.crashes > 0 and not config.synced, (faults.clean_stop,)),
            (config.restart_empty, (actions.give_up,)),
            (config.altered_to > 0, (faults.alter_topic,)),
        )
        self.actions = [each for is_wanted, kind in kinds if is_wanted for each in kind]

    def start(self) -> World:
        """A fresh segment, everybody in sync."""
        record = Record(crashes=self.config.crashes, losses=self.config.losses)
        return World(record, Leader(), (Peer(),) * self.config.nodes)

    def successors(self, world: World) -> Iterator[tuple[str, int, World]]:
        """(action, node, next world) of every step that is possible."""
        over = world.record.state == SEALED and not world.leader.leads
        if over and self.rules.restart_ends_leadership:
            return
        for action in self.actions:
            for node, following in action(self, world):
                yield action.__name__, node, canonical(_forget(following))


def _forget(world: World) -> World:
    """Drop what nothing can read any more, so that fewer states differ."""
    record, leader, peers = world
    if record.state == SEALED:
        # A leader that is behind has yet to hear which set was stored.
        peers = tuple(
            [Peer(p.replica, Member(p.member.stored * leader.stale), p.view) for p in peers]
        )
        record = record._replace(seal_sent="", altered=0)
    if leader.leads:
        return World(record, leader, peers)
    if leader.change == SETTLED or record.state != ACTIVE or leader.stale:
        if leader.stale:
            record = record._replace(seal_sent="")
        return World(record, GONE, (_alone(peers[0], 2), *[_alone(p, 1) for p in peers[1:]]))
    # Its proposal may yet arrive.
    views = [NOBODY._replace(proposed=peer.view.proposed) for peer in peers]
    peers = tuple([Peer(p.replica, p.member, view) for p, view in zip(peers, views, strict=True)])
    return World(record, GONE._replace(change=PENDING), peers)


def _alone(peer: Peer, incarnation_max: int) -> Peer:
    """A replica without a leader: only of the old leader one asks whether it was started again."""
    replica, member, view = peer
    if replica.incarnation > incarnation_max:
        replica = replica._replace(incarnation=incarnation_max)
    elif view is NOBODY:
        return peer
    return Peer(replica, member, NOBODY)
