"""The leader's side of a Replicate stream: one follower node, all segments it follows from us.

The follower attaches segments and reports what is durable there; ``FollowerSender`` sends what it
lacks. A follower that attaches is compared with our log first, which may mean reading the disk;
progress alone is taken in the callback that received it.
"""

import asyncio
import logging
from dataclasses import dataclass

from icecore.errors import NotReplicaError
from icecore.model import Incarnation, NodeId, SegmentId
from icecore.process.log import event
from icecore.rpc import framing
from icecore.rpc.ports import Received, ServerStream
from icecore.v1 import replication_pb2
from icecore_node.context import NodeContext
from icecore_node.registry.leaders import Leaders
from icecore_node.registry.table import ReplicaTable
from icecore_node.replica.reading import ReplicaReading
from icecore_node.replication.leader import Leader
from icecore_node.serving.replication.sender import FollowerSender, Framer
from icecore_node.storage.engine import LogTail
from icecore_replication import inputs

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamParts:
    """Parts that all streams to followers share."""

    context: NodeContext
    table: ReplicaTable
    leaders: Leaders
    reading: ReplicaReading
    framer: Framer


class FollowerStream:
    """One open stream."""

    def __init__(
        self, parts: StreamParts, stream: ServerStream, node_id: NodeId, incarnation: Incarnation
    ) -> None:
        self._table = parts.table
        self._leaders = parts.leaders
        self._reading = parts.reading
        self._stream = stream
        self.node_id = node_id
        self.incarnation = incarnation
        self._sender = FollowerSender(parts.context, parts.reading, parts.framer, stream)
        self._early: dict[SegmentId, replication_pb2.ProgressEntry] = {}
        """Attach requests for segments that we are not known to lead yet."""
        self._superseded = asyncio.Event()

    def supersede(self) -> None:
        """The follower has a newer stream: what still arrives on this one is stale."""
        self._superseded.set()

    def _is_stale(self) -> bool:
        return self._superseded.is_set()

    def leader_created(self, leader: Leader) -> None:
        """We now lead a segment; the follower may have asked for it already."""
        entry = self._early.pop(leader.replica.segment_id, None)
        if entry is not None:
            self._attach(leader, entry)

    async def run(self, first: replication_pb2.ReplicaProgress) -> None:
        """Serve until the follower goes away (UnavailableError) or has a newer stream."""
        loop = asyncio.get_running_loop()
        tasks = [
            loop.create_task(self._read(first)),
            loop.create_task(self._sender.run()),
            loop.create_task(self._until_superseded()),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            self._superseded.set()
            for task in tasks:
                task.cancel()
            for leader in self._sender.close():
                if leader.streams.get(self.node_id) is self._sender:
                    del leader.streams[self.node_id]

    async def _until_superseded(self) -> None:
        await self._superseded.wait()

    # --- what the follower says -----------------------------------------------------------------

    async def _read(self, first: replication_pb2.ReplicaProgress) -> None:
        await self._take_slowly(first)
        while not self._is_stale():
            body = await self._stream.consume(self._take)
            if body is None:
                return
            await self._take_slowly(framing.parse(replication_pb2.ReplicaProgress, body))

    def _take(self, body: Received) -> bool:
        """Take in a message with progress alone. Return False when a segment is to be attached:
        that may need a read from disk."""
        if self._is_stale():
            return False
        message = framing.parse(replication_pb2.ReplicaProgress, body)
        if any(entry.attach for entry in message.entries):
            return False
        self._sender.add_credit(message.credit_bytes)
        for entry in message.entries:
            if (leader := self._leader_for(entry)) is not None:
                self._progress(leader, entry)
        return True

    async def _take_slowly(self, message: replication_pb2.ReplicaProgress) -> None:
        self._sender.add_credit(message.credit_bytes)
        for entry in message.entries:
            if self._is_stale():
                return
            leader = self._leader_for(entry)
            if leader is None:
                continue
            if entry.leaving or not entry.attach:
                self._progress(leader, entry)
                continue
            agrees = await self._chain_agrees(leader, entry)
            still_leads = self._leaders.of(leader.replica) is leader
            if agrees and still_leads and not self._is_stale():
                self._attach(leader, entry)

    def _leader_for(self, entry: replication_pb2.ProgressEntry) -> Leader | None:
        """The leader that an entry is meant for; None when it is refused, or has to wait."""
        segment_id = SegmentId(entry.segment_id)
        replica = self._table.get(segment_id)
        leader = self._leaders.of(replica) if replica is not None else None
        if leader is None:
            if entry.attach:
                if replica is not None and replica.promised_epoch > entry.epoch:
                    self._sender.reject(segment_id, "FENCED")
                else:
                    self._early[segment_id] = entry
            return None
        if entry.epoch != leader.segment.epoch:
            self._sender.reject(segment_id, "FENCED")
            return None
        return leader

    def _progress(self, leader: Leader, entry: replication_pb2.ProgressEntry) -> None:
        segment_id = leader.replica.segment_id
        if entry.leaving:
            if self._sender.detach(segment_id):
                leader.streams.pop(self.node_id, None)
                leader.feed(inputs.FollowerLeft(self.node_id))
        elif self._sender.is_attached(segment_id):
            leader.feed(
                inputs.FollowerProgress(self.node_id, self.incarnation, entry.durable_end_offset)
            )

    # --- who attaches ---------------------------------------------------------------------------

    async def _chain_agrees(self, leader: Leader, entry: replication_pb2.ProgressEntry) -> bool:
        """Return whether the follower's log is a prefix of ours, by the header CRC at its end."""
        log_end_offset = leader.replica.log.tail.end_offset
        if entry.durable_end_offset > log_end_offset:
            # The core will notice that a follower holds more than its leader, and self-fence.
            return True
        tail: LogTail | None = leader.replica.log.tail
        if entry.durable_end_offset != log_end_offset:
            try:
                tail = await self._reading.tail_at(leader.replica, entry.durable_end_offset)
            except NotReplicaError:
                return False  # it is we who are damaged
        if tail is not None and tail.last_header_crc32c == entry.last_header_crc32c:
            return True
        event(
            _log,
            logging.ERROR,
            "follower_diverged",
            segment_id=entry.segment_id,
            node_id=self.node_id,
            durable_end_offset=entry.durable_end_offset,
        )
        leader.feed(inputs.FollowerDiverged(self.node_id, entry.durable_end_offset))
        self._sender.reject(leader.replica.segment_id, "DIVERGED")
        return False

    def _attach(self, leader: Leader, entry: replication_pb2.ProgressEntry) -> None:
        if self.node_id not in leader.segment.replicas:
            self._sender.reject(leader.replica.segment_id, "NOT_REPLICA")
            return
        leader.streams[self.node_id] = self._sender
        self._sender.attach(leader, entry.durable_end_offset)
        leader.feed(
            inputs.FollowerProgress(
                self.node_id, self.incarnation, entry.durable_end_offset, attach=True
            )
        )
