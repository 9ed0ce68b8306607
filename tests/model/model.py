"""Parts shared by all steps of the model: the configuration, the rules, the end of a leader's
step."""

from collections.abc import Callable, Iterator
from typing import TypeAlias

from tests.model.configs import Config
from tests.model.rules import LEADER, Decisions, Rules
from tests.model.state import Replica, World, node_ids

Steps: TypeAlias = Iterator[tuple[int, World]]
"""(node, what follows)"""
Action: TypeAlias = Callable[["Model", World], Steps]


class Model:
    """One configuration under one set of rules."""

    def __init__(self, config: Config, rules: Rules) -> None:
        self.config = config
        self.rules = rules
        self.ask = Decisions(rules, config)
        self.followers = range(1, config.nodes)
        self.everyone = range(config.nodes)
        self.hides_unsynced = config.synced and rules.reports_only_durable and rules.scan_is_synced

    def says(self, log: str, before: int) -> int:
        """Return the end that a process takes for durable after an append, before any fsync."""
        return before if self.config.synced and self.rules.reports_only_durable else len(log)

    def settled(self, replica: Replica, end: int) -> Replica:
        """Before where it ends is told to anybody (R30, R28, R33, R81)."""
        if self.config.synced:
            return replica._replace(durable=end)
        return replica._replace(durable=end, kept=1) if self.rules.settles else replica

    def may_follow(self, replica: Replica) -> bool:
        """UNKNOWN replicas take no part, unless they are being rebuilt; fenced ones neither."""
        return not replica.promised and bool(replica.intact or self.config.rebuild)

    # --- the leader's sets ------------------------------------------------------------------------

    def ends(self, world: World) -> tuple[int, ...]:
        """Durable ends as the leader knows them, its own first."""
        own, *others = world.peers
        return (own.replica.says, *[peer.view.end for peer in others])

    def advance(self, world: World) -> tuple[int, int, int, int]:
        """High watermark and acks that the leader may give now (R4-R6)."""
        committed = committed_set(world)
        change = world.leader.change
        maximal = self.ask.maximal(change, committed, proposal(world) if change else ())
        return self.ask.advance(self.ends(world), committed, maximal, len(world.record.seen))

    def settle(self, world: World) -> World:
        """End of each step of the leader: what may be shown is shown, what may be acked is."""
        record, leader, peers = world
        if not leader.leads:
            return world
        high, all_end, quorum_end, _ = self.advance(world)
        if (
            high <= len(record.seen)
            and all_end <= record.acked_all
            and quorum_end <= record.acked_quorum
        ):
            return world
        log, broken = peers[0].replica.log, record.broken
        if not log.startswith(record.seen):
            broken = "I2: an offset is shown with two values"
        if quorum_end > record.acked_quorum:
            copies = sum([end >= quorum_end for end in self.ends(world)])
            if copies <= self.config.replication_factor // 2:
                broken = "I1: acked at quorum on too few replicas to survive a minority"
        record = record._replace(
            seen=record.seen + log[len(record.seen) : high],
            acked_all=max(all_end, record.acked_all),
            acked_quorum=max(quorum_end, record.acked_quorum),
            broken=broken,
        )
        return World(record, leader, peers)


def committed_set(world: World) -> tuple[int, ...]:
    """As the leader knows it."""
    return node_ids([1, *[peer.view.committed for peer in world.peers[1:]]])


def stored_set(world: World) -> tuple[int, ...]:
    """As the metadata store holds it."""
    return node_ids([peer.member.stored for peer in world.peers])


def proposal(world: World) -> tuple[tuple[int, int], ...]:
    """(node, incarnation) of each member of the proposal in flight."""
    followers = enumerate(world.peers[1:], LEADER + 1)
    return ((LEADER, 1), *[(n, p.view.proposed) for n, p in followers if p.view.proposed])


def stopped(world: World) -> World:
    """The leader leaves; what it acked stays acked, what it showed stays seen."""
    return World(world.record, world.leader._replace(leads=0), world.peers)
