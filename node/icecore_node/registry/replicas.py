"""All replicas of a node, and the router: from partition and offset to the serving replica.

The coordinator's records arrive here (``apply``) and give replicas their roles: lead, follow, seal.
A record replaces what was known only when its version is higher, so pushes and answers may arrive
in any order and any number of times. Readers that wait for new data register here and are woken
when a watermark moves or a partition's replicas change.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import TypeVar

from icecore.errors import (
    SHORTAGES,
    IcecoreError,
    NotLeaderError,
    NotReplicaError,
    StorageError,
    UnknownTopicError,
)
from icecore.model import Segment, SegmentState
from icecore_node.context import NodeContext
from icecore_node.link.coordinator_link import CoordinatorLink, Standing
from icecore_node.registry.partition import PartitionReplicas
from icecore_node.registry.topic_names import TopicNames
from icecore_node.replica.order_checks import is_shut_out, objection
from icecore_node.replica.orders import Orders
from icecore_node.replica.replica import Replica
from icecore_node.roles.follower import Follower
from icecore_node.roles.leader import Leader
from icecore_node.roles.receiver import LeaderLinks
from icecore_node.storage.engine import LogTail, NotAsSealed
from icecore_replication import inputs
from icecore_replication.leading import Role, role_of

_log = logging.getLogger(__name__)

T = TypeVar("T")
SPACE_RETRY_S = 1.0


class Replicas:
    """The map of all replicas and the application of coordinator records."""

    def __init__(
        self, context: NodeContext, coordinator: CoordinatorLink, links: LeaderLinks
    ) -> None:
        self.orders = Orders(context)
        """Who works on which segment."""
        self._context = context
        self._coordinator = coordinator
        self._links = links
        self._replicas: dict[int, Replica] = {}
        self._partitions: dict[tuple[bytes, int], PartitionReplicas] = {}
        self._names = TopicNames()
        self._sealing: dict[int, asyncio.Task[None]] = {}
        self._waiting_for_space: set[asyncio.Task[None]] = set()
        self._is_paused = False
        self._is_closing = False
        self._condemning: dict[Replica, asyncio.Task[None]] = {}
        self.on_leader_created: Callable[[Leader], None] = lambda _: None
        self.on_sealed: Callable[[Replica], None] = lambda _: None
        self.on_digest_open: Callable[[Replica], None] = lambda _: None
        """A newer record of a sealed replica knows no full digest, or another one than ours."""

    # --- look-up --------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Replica]:
        return iter(list(self._replicas.values()))

    def get(self, segment_id: int) -> Replica | None:
        """The replica of a segment, whatever its role."""
        return self._replicas.get(segment_id)

    def partition(self, topic_id: bytes, topic: str, partition: int) -> PartitionReplicas:
        """What we hold of a partition, by topic id or, when that is empty, by name; for clients.

        Raises UnknownTopicError when this node holds nothing of it, or the topic is deleted.
        """
        topic_id = self._names.id_for_client(topic_id, topic)
        found = self._partitions.get((topic_id, partition))
        if found is None:
            raise UnknownTopicError(
                f"topic {topic or topic_id.hex()!r} partition {partition} is not on this node"
            )
        return found

    def leader(self, topic_id: bytes, topic: str, partition: int, epoch: int) -> Leader:
        """The leader of a partition's active segment. ``epoch`` 0 = any.

        Raises NotLeaderError (with a hint) or UnknownTopicError.
        """
        found = self.partition(topic_id, topic, partition)
        leader = found.leader
        if leader is None:
            raise NotLeaderError(
                f"this node does not lead partition {partition}",
                leader_node_id=found.tail_replicas[0] if found.tail_replicas else 0,
            )
        self._names.check_current(leader.segment.topic_id)
        if epoch not in (0, leader.segment.epoch):
            raise NotLeaderError(
                f"the active segment has epoch {leader.segment.epoch}, not {epoch}",
                leader_node_id=self._context.node_id,
                epoch=leader.segment.epoch,
            )
        return leader

    def leader_of(self, replica: Replica) -> Leader | None:
        """Who leads with this replica, None when nobody does."""
        leader = self._of(replica).leader
        return leader if leader is not None and leader.replica is replica else None

    def leaders(self) -> list[Leader]:
        """Everything led at the moment."""
        return [found.leader for found in self._partitions.values() if found.leader is not None]

    # --- changes --------------------------------------------------------------------------------

    def add(self, replica: Replica) -> None:
        """A replica was created, confirmed, or found at start-up. One log has one owner."""
        known = self._replicas.setdefault(replica.segment_id, replica)
        assert known is replica, f"segment {replica.segment_id} is here already"
        if replica.base_offset >= 0:
            self._of(replica).place(replica)

    def retire(self, replica: Replica) -> None:
        """The replica is to be deleted: it plays no role and counts for nothing."""
        replica.end_role("the segment is deleted")
        replica.intact = False
        self._of(replica).wake()

    def remove(self, replica: Replica) -> None:
        """The replica's files are gone."""
        replica.end_role("its files are gone")
        if self._replicas.get(replica.segment_id) is replica:
            del self._replicas[replica.segment_id]
        found = self._of(replica)
        if replica in found.replicas:
            found.replicas.remove(replica)
        if not found.replicas:
            self._partitions.pop((found.topic_id, found.partition), None)

    def _of(self, replica: Replica) -> PartitionReplicas:
        identity = replica.identity
        return self._of_partition(identity.topic_id, identity.partition)

    def _of_partition(self, topic_id: bytes, partition: int) -> PartitionReplicas:
        key = (topic_id, partition)
        found = self._partitions.get(key)
        if found is None:
            found = self._partitions[key] = PartitionReplicas(topic_id, partition)
        return found

    def apply(self, segment: Segment) -> None:
        """Give the replica of a segment the role that a newer record says."""
        self._names.learn(segment)
        replica = self._replicas.get(segment.segment_id)
        if replica is None:
            has_copy = segment.state in (SegmentState.ACTIVE, SegmentState.SEALED)
            if has_copy and self._context.node_id in segment.replicas:
                _log.error("missing segment_id=%d", segment.segment_id)
                self._coordinator.report_unknown(segment.segment_id)
            return
        known = replica.segment
        if known is not None and segment.version < known.version:
            return
        if why := objection(replica, segment):
            self.report_dispute(replica, f"its record is not obeyed: {why}")
            return
        replica.segment = segment
        if replica.sealed and replica.full_digest not in (b"", segment.full_digest):
            self.on_digest_open(replica)
        if segment.state is SegmentState.ACTIVE:
            self._note_tail(segment)
            self._apply_active(replica, segment)
        elif segment.state is SegmentState.SEALED:
            if replica.leader is not None:
                replica.leader.feed(inputs.SegmentUpdated(segment))
            if role_of(segment, replica.facts) is Role.SEAL:
                self._seal_later(replica, segment)
            elif replica.follower is not None:
                # Sealed without this copy: nobody sends the rest, and readers must go elsewhere.
                replica.end_role("the segment is sealed without this copy")
                self._of(replica).wake()

    def _apply_active(self, replica: Replica, segment: Segment) -> None:
        if replica.leader is not None:
            replica.leader.segment = segment
            replica.leader.feed(inputs.SegmentUpdated(segment))
            return
        self.note_promise(replica)
        role = role_of(segment, replica.facts)
        if role is Role.LEAD:
            self._lead(replica, segment)
        elif role is Role.FOLLOW and replica.follower is not None:
            replica.follower.segment = segment
        elif role is Role.FOLLOW and not self._is_paused:
            link = self._links.to(segment.leader)
            replica.follower = Follower(self._context, self, replica, segment, link)

    def note_promise(self, replica: Replica) -> None:
        """A higher epoch was promised: if the coordinator knows nothing of it, let it recover."""
        if is_shut_out(replica, self._context.node_id):
            self._coordinator.report_fenced(replica.segment_id)

    def _lead(self, replica: Replica, segment: Segment) -> None:
        """Lead a fresh segment."""
        leader = Leader(self._context, self._coordinator, self, replica, segment)
        replica.leader = leader
        self._of(replica).leader = leader
        _log.info(
            "leading topic=%s partition=%d segment_id=%d epoch=%d base_offset=%d replicas=%s",
            segment.topic,
            segment.partition,
            segment.segment_id,
            segment.epoch,
            segment.base_offset,
            segment.replicas,
        )
        self.on_leader_created(leader)
        self._of(replica).wake()

    def follow_again(self, replica: Replica) -> None:
        """A follower ran out of something: cut what is not durable, rejoin when there is room."""
        task = self._context.start(self._follow_again(replica))
        self._waiting_for_space.add(task)
        task.add_done_callback(self._waiting_for_space.discard)

    async def _follow_again(self, replica: Replica) -> None:
        follower = replica.follower
        while replica.intact and (replica.follower is follower or replica.idle):
            await asyncio.sleep(SPACE_RETRY_S)
            if not await self._context.has_space():
                continue
            async with self.orders.alone(replica.segment_id):
                if replica.follower is not follower and not replica.idle:
                    return
                replica.end_role("room again")
                follower = None
                if not await self._settle(replica):
                    continue
                self._follow_if_active(replica)
            _log.info("room again, following segment_id=%d", replica.segment_id)
            return

    def _follow_if_active(self, replica: Replica) -> None:
        """What the newest record says now, after a wait."""
        is_here = self._replicas.get(replica.segment_id) is replica
        segment = replica.segment
        if is_here and replica.idle and segment and segment.state is SegmentState.ACTIVE:
            self._apply_active(replica, segment)

    def pause_following(self) -> None:
        """Follow nothing until told otherwise; leaders hear of it at once."""
        self._is_paused = True
        for replica in self:
            if replica.follower is not None:
                replica.follower.leave()
                replica.end_role("the disk is full")

    async def resume_following(self) -> None:
        """Follow again what the coordinator says, if that was paused."""
        if not self._is_paused:
            return
        waiting = [each for each in self if each.intact and each.idle and each.base_offset >= 0]
        for replica in waiting:
            async with self.orders.alone(replica.segment_id):
                is_here = self._replicas.get(replica.segment_id) is replica
                if replica.idle and is_here and not await self._settle(replica):
                    self.follow_again(replica)
        self._is_paused = False
        for replica in waiting:
            self._follow_if_active(replica)

    async def _settle(self, replica: Replica) -> bool:
        """As ``Replica.settle``; False while there is a shortage (R52), and for what can't ever be
        settled, which is UNKNOWN. The segment is held."""
        try:
            await replica.settle()
        except SHORTAGES as error:
            _log.warning("not settled yet segment_id=%d error=%s", replica.segment_id, error)
            return False
        except IcecoreError as error:
            self.condemn(replica, f"not usable after a failed append: {error}")
            return False
        return True

    # --- damage ---------------------------------------------------------------------------------

    async def read(self, replica: Replica, function: Callable[..., T], *args: object) -> T:
        """Run a store's read of this replica; damage that it meets makes the replica UNKNOWN.

        Raises what ``function`` raises, but NotReplicaError for damage: ask another node.
        """
        try:
            return await self._context.executor.run(function, *args)
        except SHORTAGES:  # nothing is known of the bytes (R52)
            raise
        except StorageError as error:
            _log.warning("unreadable segment_id=%d error=%s", replica.segment_id, error)
        try:
            # Again in line with the log's changes: damage, or did a cut get in the way?
            return await replica.worker.run(function, *args)
        except SHORTAGES:  # nothing is known of the bytes (R52)
            raise
        except StorageError as error:
            self.condemn(replica, str(error))
            raise NotReplicaError(f"segment {replica.segment_id} is damaged here") from error

    def report_dispute(self, replica: Replica, why: str) -> None:
        """Two replicas differ and neither is damaged: a person must look, we choose nothing."""
        _log.critical("page segment_id=%d why=%s", replica.segment_id, why)
        self._context.metrics.disputes.inc()
        self._coordinator.report_dispute(replica.segment_id)

    def condemn(self, replica: Replica, why: str) -> None:
        """The replica is UNKNOWN from now on: no role, no readers, and the coordinator hears of it.

        A leader gives up its segment; of a follower its leader is told at once. What was found of
        a replica that another one has replaced says nothing about that one.
        """
        if not replica.intact or self._replicas.get(replica.segment_id) is not replica:
            return
        replica.intact = False
        _log.critical("UNKNOWN segment_id=%d why=%s", replica.segment_id, why)
        self._context.metrics.replicas_damaged.inc()
        if replica.leader is not None:
            replica.leader.feed(inputs.Damaged(why))
        if replica.follower is not None:
            replica.follower.leave()
        replica.end_role(why)
        task = self._context.start(self._condemn(replica, why))
        self._condemning[replica] = task
        task.add_done_callback(lambda _: self._condemning.pop(replica, None))
        self._of(replica).wake()

    async def _condemn(self, replica: Replica, why: str) -> None:
        """Durable first: after a crash the damage must not be forgotten, for it may not show."""
        try:
            await self._context.executor.run(self._context.store.condemn, [replica.segment_id], why)
        except IcecoreError as error:
            _log.error("not remembered segment_id=%d error=%s", replica.segment_id, error)
        self._coordinator.report_unknown(replica.segment_id)

    async def set_aside(self, replica: Replica) -> None:
        """Quarantine an UNKNOWN replica, which is never patched, so that a copy can take its place.

        What is still to be stored or said of its damage must not hit the copy. The caller works on
        the segment alone; when no copy takes the place, it says so by ``report_missing``.
        """
        while replica in self._condemning:
            await asyncio.wait([self._condemning[replica]])
        replica.end_role("it is set aside")
        await replica.worker.run(
            self._context.store.quarantine, replica.segment_id, "replaced by a repair"
        )
        self.remove(replica)
        self._coordinator.forget_unknown(replica.segment_id)

    def report_missing(self, segment_id: int) -> None:
        """There is no whole replica here; whoever lists one must hear of it."""
        self._coordinator.report_unknown(segment_id)

    def report_whole(self, segment_id: int) -> None:
        """There is one now: what was to be said of an earlier try holds no longer."""
        self._coordinator.forget_unknown(segment_id)

    def standing(self) -> Standing:
        """What the coordinator is told at the start of a stream."""
        return Standing(
            [each.segment_id for each in self if not each.intact],
            {each.replica.segment_id: each.log for each in self.leaders()},
            [each.segment_id for each in self if is_shut_out(each, self._context.node_id)],
        )

    def leadership_ended(self, replica: Replica) -> None:
        """The leader of this replica stepped down."""
        found = self._of(replica)
        if found.leader is not None and found.leader.replica is replica:
            found.leader = None
        found.wake()

    def watermark_moved(self, replica: Replica) -> None:
        """Readers of this partition may have more to read."""
        found = self._of(replica)
        if found.watchers:
            found.wake()

    def _note_tail(self, segment: Segment) -> None:
        self.note_partition(
            segment.topic_id,
            segment.partition,
            segment.log_start_offset,
            segment.segment_id,
            (segment.leader, *(node for node in segment.replicas if node != segment.leader)),
            segment.base_offset,
        )

    def note_partition(
        self,
        topic_id: bytes,
        partition: int,
        log_start_offset: int,
        tail_segment_id: int,
        tail_replicas: tuple[int, ...],
        tail_base_offset: int,
    ) -> None:
        """Where a partition starts and who holds its tail, for hints to clients."""
        found = self._of_partition(topic_id, partition)
        found.log_start_offset = max(found.log_start_offset, log_start_offset)
        if tail_base_offset >= found.tail_base_offset:
            found.tail_segment_id = tail_segment_id
            found.tail_replicas = tail_replicas
            found.tail_base_offset = tail_base_offset

    def note_topic(self, topic_id: bytes, partition: int, topic: str, *, is_deleted: bool) -> None:
        """What the topic is called, or that it is deleted: then its readers wait for nothing."""
        self._names.note(topic_id, topic)
        self._names.note_deleted(topic_id, is_deleted=is_deleted)
        if is_deleted:
            self._of_partition(topic_id, partition).wake()

    # --- sealing --------------------------------------------------------------------------------

    def _seal_later(self, replica: Replica, segment: Segment) -> None:
        if replica.segment_id not in self._sealing:
            task = self._context.start(self._seal(replica, segment))
            self._sealing[replica.segment_id] = task
            task.add_done_callback(lambda _: self._sealing.pop(replica.segment_id, None))

    async def _seal(self, replica: Replica, segment: Segment) -> None:
        """Bring our log to the sealed end and mark it; what differs is repaired as a whole."""
        while not self._is_closing and self._replicas.get(replica.segment_id) is replica:
            async with self.orders.alone(replica.segment_id):
                if not replica.intact or self._replicas.get(replica.segment_id) is not replica:
                    return
                replica.end_role("the segment is sealed")
                try:
                    await self.finish_sealed(replica, segment)
                    break
                except SHORTAGES as error:
                    why = error
                except (NotAsSealed, StorageError) as error:
                    self.condemn(replica, f"not what was sealed: {error}")
                    break
            _log.warning("not sealed here yet segment_id=%d error=%s", replica.segment_id, why)
            await asyncio.sleep(SPACE_RETRY_S)
        self._of(replica).wake()

    async def finish_sealed(self, replica: Replica, segment: Segment) -> None:
        """Truncate a longer, equal log; mark it sealed. The caller works on the segment alone.

        Raises NotAsSealed when the log is short or its digest differs.
        """
        if replica.sealed:
            return
        await replica.settle()
        store, worker, end = self._context.store, replica.worker, segment.end_offset
        tail: LogTail | None = replica.tail
        if replica.tail.end_offset > end:
            tail = await worker.run(store.reader.tail_at, replica.segment_id, end)
        if tail is None or (tail.end_offset, tail.digest) != (end, segment.seal_digest):
            raise NotAsSealed(
                f"the log ends at {replica.tail.end_offset} or its digest differs from the "
                f"one sealed at {end}"
            )
        if replica.tail.end_offset > end:
            _log.info("cutting unacknowledged tail segment_id=%d at=%d", replica.segment_id, end)
            await replica.cut(end)
            tail = replica.tail
        await worker.run(store.seal, replica.segment_id, end, segment.seal_digest)
        replica.tail = tail
        replica.sealed_end_offset = end
        replica.is_partial = False
        replica.drop_producers()
        self.on_sealed(replica)

    async def close(self) -> None:
        """Wait for seals under way."""
        self._is_closing = True
        for task in list(self._waiting_for_space):
            task.cancel()
        await asyncio.gather(
            *self._sealing.values(), *self._condemning.values(), return_exceptions=True
        )
