"""One copy of one segment on this node: its life, its log, and what is known of its segment.

What a replica may do follows from its ``Life`` (``replica/life.py``), and ``move`` is the only way
to change that. Where its log ends and which producers are in it, its ``log`` knows. Its role, if it
has one, is a ``Leader`` or a ``Follower``, which own the protocol core and know the replica; the
replica knows of them only how to end them.

Nobody but this file writes the fields of a replica (a test sees to it); all of it runs on the loop.
"""

from collections import deque

from icecore.model import NO_EPOCH, Epoch, Incarnation, NodeId, Segment, SegmentId
from icecore_node.io.io_pool import LogIo
from icecore_node.replica import life as lives
from icecore_node.replica.life import MOVES, Event, IllegalMove, Life, ReplicaRole
from icecore_node.replica.replica_log import ReplicaLog
from icecore_node.storage.engine import LogTail, SegmentIdentity
from icecore_replication.leading import ReplicaFacts
from icecore_replication.producers import ProducerTable

_STORY_MAX = 12


class Replica:
    """State common to all roles. Loop only."""

    def __init__(
        self,
        io: LogIo,
        identity: SegmentIdentity,
        tail: LogTail,
        producers: ProducerTable | None,
        *,
        life: Life,
        promised_epoch: Epoch = NO_EPOCH,
        sealed_end_offset: int | None = None,
        full_digest: bytes = b"",
    ) -> None:
        """
        Args:
            io: Where its log is kept.
            identity: What is fixed about it.
            tail: Of its log, all of it durable.
            producers: Through the end of the log; None where no table is kept.
            life: What it is. One that made a promise is FENCED at once.
            promised_epoch: The highest epoch promised; not below its own in any case.
            sealed_end_offset: Where it was sealed, if it was.
            full_digest: Over its bytes when it was sealed; empty while not known.
        """
        self.identity = identity
        self.log = ReplicaLog(io, identity, tail, producers)
        self.life = life
        self.role: ReplicaRole | None = None
        self.promised_epoch = max(identity.epoch, promised_epoch)
        self.sealed_end_offset = sealed_end_offset
        self.full_digest = full_digest
        self.segment: Segment | None = None
        """The newest record pushed by the coordinator."""
        self.led_in_this_process = False
        self._story: deque[str] = deque(maxlen=_STORY_MAX)
        self._keep_promise()
        self._check()

    # --- what it is -----------------------------------------------------------------------------

    @property
    def segment_id(self) -> SegmentId:
        """Id of the segment that this is a copy of."""
        return self.identity.segment_id

    @property
    def partition_key(self) -> tuple[bytes, int]:
        """Topic id and partition."""
        return self.identity.topic_id, self.identity.partition

    @property
    def base_offset(self) -> int:
        """First offset of the segment; -1 while it is not known."""
        return self.identity.base_offset

    @property
    def sealed(self) -> bool:
        """Return whether the bytes are final here; also of one that was found damaged since."""
        return self.sealed_end_offset is not None

    @property
    def high_watermark(self) -> int:
        """Readers of this replica stop here."""
        if self.sealed_end_offset is not None:
            return self.sealed_end_offset
        if self.role is not None:
            return self.role.high_watermark
        log = self.log
        durable_end_offset = log.durable_tail.end_offset  # appends of an ended role may still fail
        return max(self.base_offset, min(log.tail.max_known_high_watermark, durable_end_offset))

    def facts(self, node_id: NodeId, incarnation: Incarnation) -> ReplicaFacts:
        """Return the facts that decide which role a record gives this replica in this process."""
        return ReplicaFacts(
            node_id=node_id,
            incarnation=incarnation,
            base_offset=self.base_offset,
            promised_epoch=self.promised_epoch,
            is_intact=self.life.is_intact,
            is_sealed=self.sealed,
            is_all_durable=self.log.tail.end_offset == self.log.durable_tail.end_offset,
            has_led=self.led_in_this_process,
        )

    def covers(self, offset: int) -> bool:
        """Return whether a reader at ``offset`` belongs to this replica (the end of a sealed
        segment belongs to its successor)."""
        if not self.life.is_intact or self.base_offset < 0 or offset < self.base_offset:
            return False
        return self.sealed_end_offset is None or offset < self.sealed_end_offset

    # --- what happens to it ---------------------------------------------------------------------

    def move(self, event: Event) -> None:
        """Something happened: change the life, what belongs to it, and end the role if it is over.

        Raises IllegalMove for what can't happen in this life.
        """
        before = self.life
        after = MOVES.get((before, type(event)))
        if after is None:
            raise IllegalMove(self.segment_id, before, event, self._story)
        self._story.append(f"{before.name}-{type(event).__name__}->{after.name}")
        self._take(event)
        ended: ReplicaRole | None = None
        if after not in lives.WITH_ROLE:
            ended, self.role = self.role, None
        self.life = after
        self._keep_promise()
        self.log.note_change()
        self._check()
        if ended is not None:
            _end(ended, event)

    def _take(self, event: Event) -> None:
        match event:
            case lives.Begun(identity, tail, producers):
                assert self.base_offset < 0 and self.segment_id == identity.segment_id
                self.identity = identity
                self.log.begin(tail, producers)
            case lives.Led(leader):
                self.role = leader
                self.led_in_this_process = True
            case lives.Followed(follower):
                self.role = follower
            case lives.Promised(epoch):
                self.promised_epoch = max(self.promised_epoch, epoch)
            case lives.Sealed(tail):
                self.log.freeze(tail)
                self.sealed_end_offset = tail.end_offset
            case _:
                """The others change the life alone."""

    def _keep_promise(self) -> None:
        """Fence an IDLE replica that promised a higher epoch, perhaps before its log existed."""
        if self.life is Life.IDLE and self.promised_epoch > self.identity.epoch:
            self.life = MOVES[self.life, lives.Promised]

    def end_role(self, why: str) -> None:
        """Be led or followed no longer, if it is; whoever still waits for a leader hears why."""
        if self.role is not None:
            self.move(lives.RoleEnded(why))

    def _check(self) -> None:
        life, tail = self.life, self.log.tail
        assert self.log.durable_tail.end_offset <= tail.end_offset
        assert (self.role is not None) == (life in lives.WITH_ROLE), life
        assert life is not Life.PREPARED or self.base_offset < 0, self.base_offset
        assert life not in lives.DONORS or self.base_offset >= 0, life
        assert life is not Life.SEALED or self.sealed_end_offset == tail.end_offset, tail
        assert life is not Life.FENCED or self.promised_epoch > self.identity.epoch
        assert life not in lives.WITH_ROLE or self.promised_epoch == self.identity.epoch

    # --- what is known of it --------------------------------------------------------------------

    def learn(self, record: Segment) -> None:
        """The newest record of the segment."""
        self.segment = record

    def note_digest(self, full_digest: bytes) -> None:
        """The full digest of what is on disk."""
        self.full_digest = full_digest


def _end(role: ReplicaRole, event: Event) -> None:
    match event:
        case lives.Promised(epoch):
            role.fence(epoch)
        case lives.Condemned(why):
            role.give_up(why)
        case lives.RoleEnded(why) | lives.Removed(why):
            role.stop(why)
        case _:
            raise AssertionError(f"{type(event).__name__} ends no role")
