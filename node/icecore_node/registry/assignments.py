"""The coordinator's records give replicas their roles: lead, follow, seal.

A record replaces what was known only when its version is not lower, so pushes and answers may
arrive in any order and any number of times. From here a record goes down only: to the table, to the
replica, and to a leader, a follower or the end of a seal; what those have to say later comes as
another record.
"""

import logging
from collections.abc import Callable

from icecore.model import Segment, SegmentState
from icecore.process.log import event
from icecore_node.registry.digest_queue import DigestQueue
from icecore_node.registry.finish_seal import SealFinisher
from icecore_node.registry.leaders import Leaders
from icecore_node.registry.space import FollowerSpace
from icecore_node.registry.table import ReplicaTable
from icecore_node.replica.life import Followed, Led, Life
from icecore_node.replica.order_checks import is_in_the_way, objection
from icecore_node.replica.orders import Orders
from icecore_node.replica.replica import Replica
from icecore_node.replication.follower import Follower, FollowerParts
from icecore_node.replication.leader import Leader, LeaderParts
from icecore_node.replication.receiver import LeaderLinks
from icecore_replication import inputs
from icecore_replication.leading import Role, role_of

_log = logging.getLogger(__name__)


class Assignments:
    """Carries out what the coordinator's records say. Loop only."""

    def __init__(
        self,
        *,
        leading: LeaderParts,
        table: ReplicaTable,
        leaders: Leaders,
        orders: Orders,
        links: LeaderLinks,
        seals: SealFinisher,
        digests: DigestQueue,
        on_leader: Callable[[Leader], None],
    ) -> None:
        """
        Args:
            leading: Parts that leaders need.
            table: All replicas.
            leaders: All leaders.
            orders: Lets one task at a time work on a segment.
            links: The streams to leaders' nodes.
            seals: Brings logs to their decided ends.
            digests: Told of sealed replicas whose full digest is open.
            on_leader: Told of each new leader.
        """
        context = leading.context
        self._identity = context.identity
        self._leading = leading
        self._following = FollowerParts(
            context=context, damage=leading.damage, readers=leading.readers
        )
        self._damage = leading.damage
        self._readers = leading.readers
        self._table = table
        self._leaders = leaders
        self._links = links
        self._seals = seals
        self._digests = digests
        self._on_leader = on_leader
        self.space = FollowerSpace(context, table, orders, self._damage, self._give_role_now)

    def apply(self, record: Segment) -> None:
        """Give the replica of a segment the role that a newer record says."""
        self._table.names.learn(record)
        replica = self._table.get(record.segment_id)
        if replica is None:
            self._check_missing(record)
            return
        known = replica.segment
        if known is not None and record.version < known.version:
            return
        if is_in_the_way(replica, record):
            self._damage.condemn(replica, "another segment was opened here under this id")
            return
        if why := objection(replica, record):
            self._damage.report_divergence(replica, f"its record is not obeyed: {why}")
            return
        replica.learn(record)
        is_open = replica.sealed and replica.full_digest not in (b"", record.full_digest)
        if is_open and self._identity.node_id in record.replicas:
            self._digests.put_again(replica)
        if record.state is SegmentState.ACTIVE:
            self._table.note_tail(record)
            self._give_role(replica, record)
        elif record.state is SegmentState.SEALED:
            self._seal(replica, record)

    def _check_missing(self, record: Segment) -> None:
        """Report a replica that its record lists on this node, but that is not here."""
        has_copy = record.state in (SegmentState.ACTIVE, SegmentState.SEALED)
        if has_copy and self._identity.node_id in record.replicas:
            event(_log, logging.ERROR, "replica_missing", segment_id=record.segment_id)
            self._damage.report_missing(record.segment_id)

    def _seal(self, replica: Replica, record: Segment) -> None:
        role = replica.role
        if isinstance(role, Leader):
            role.feed(inputs.SegmentUpdated(record))
        if self._role_of(record, replica) is Role.SEAL:
            self._seals.finish_later(replica, record)
        elif isinstance(replica.role, Follower):
            # Sealed without this copy: nobody sends the rest, and readers must go elsewhere.
            replica.end_role("the segment is sealed without this copy")
            self._readers.wake(replica.partition_key)

    def _give_role(self, replica: Replica, record: Segment) -> None:
        """Give a replica the role in its ACTIVE record, if the replica can have a role at all."""
        if isinstance(replica.role, Leader | Follower):
            replica.role.update(record)
            return
        self._damage.note_promise(replica)
        if replica.life is not Life.IDLE:
            return
        role = self._role_of(record, replica)
        if role is Role.LEAD:
            self._lead(replica, record)
        elif role is Role.FOLLOW and self.space.may_follow(replica.segment_id):
            self._follow(replica, record)

    def _role_of(self, record: Segment, replica: Replica) -> Role:
        identity = self._identity
        return role_of(record, replica.facts(identity.node_id, identity.incarnation))

    def _give_role_now(self, replica: Replica) -> None:
        """Give an idle replica the role in its newest record, after a wait."""
        record = replica.segment
        if replica.life.is_idle and record is not None and record.state is SegmentState.ACTIVE:
            self._give_role(replica, record)

    def _lead(self, replica: Replica, record: Segment) -> None:
        leader = Leader(self._leading, replica, record, self.apply)
        replica.move(Led(leader))
        self._leaders.put(leader)
        event(
            _log,
            logging.INFO,
            "leading",
            topic=record.topic,
            partition=record.partition,
            segment_id=record.segment_id,
            epoch=record.epoch,
            base_offset=record.base_offset,
            replicas=record.replicas,
        )
        self._on_leader(leader)
        self._readers.wake(replica.partition_key)

    def _follow(self, replica: Replica, record: Segment) -> None:
        link = self._links.to(record.leader)
        follower = Follower(self._following, replica, record, link, self.space.follow_again)
        replica.move(Followed(follower))
