"""The leader's side of a Replicate stream: one follower node, all segments it follows from us.

The follower attaches segments and reports what is durable there; we send what it lacks, newest
batches from memory, older ones from the file, many segments per message. What may be under way is
bounded by the follower's credit in bytes, so a slow follower costs no memory here: its segments
just wait in the ``_unsent`` set, and it catches up from the file.
"""

import asyncio
import logging
from dataclasses import dataclass

from icecore.errors import SHORTAGES, IcecoreError, NotReplicaError
from icecore.model import (
    Incarnation,
    NodeId,
    SegmentId,
)
from icecore.process.log import (
    event,
)
from icecore.rpc import framing
from icecore.rpc.ports import ServerStream
from icecore.v1 import replication_pb2
from icecore_node.context import NodeContext
from icecore_node.ports import Buffer
from icecore_node.registry.leaders import Leaders
from icecore_node.registry.table import ReplicaTable
from icecore_node.replica.reading import ReplicaReading
from icecore_node.roles.leader import Leader
from icecore_node.storage.engine import LogTail
from icecore_replication import inputs

_log = logging.getLogger(__name__)

MESSAGE_BYTES_MAX = 2 << 20
READ_AGAIN_S = 1.0
WATERMARK_DELAY_S = 0.025
"""A watermark that moved alone waits this long for data or other watermarks to travel with.

Only readers at a follower notice. With single records a message for each watermark would be a
third of all messages between nodes.
"""


@dataclass(slots=True)
class _Sent:
    """One attached segment."""

    leader: Leader
    sent_offset: int


@dataclass(frozen=True, slots=True)
class Outgoing:
    """What one message will carry."""

    header: replication_pb2.ReplicaDataHeader
    starts: list[int]
    """First offset of each entry that has batches. Not sent: the batches say it themselves."""
    buffers: list[Buffer]


class Framer:
    """Puts messages together, once for all followers that keep pace and need the same one.

    The header tells segments, epochs and lengths; together with the offsets where they start that
    is everything, for what a leader's log holds never changes under the same epoch. The header
    alone is not enough: two batches of the same length often travel under the same watermark.
    """

    def __init__(self) -> None:
        self._header, self._message = b"", b""
        self._starts: list[int] = []

    def frame(self, outgoing: Outgoing) -> bytes:
        """The whole message."""
        header, starts = outgoing.header.SerializeToString(), outgoing.starts
        if header != self._header or starts != self._starts:
            self._header, self._starts = header, starts
            self._message = framing.frame_bulk(header, outgoing.buffers)
        return self._message


@dataclass(frozen=True, slots=True, kw_only=True)
class SenderParts:
    """What all streams to followers share."""

    context: NodeContext
    table: ReplicaTable
    leaders: Leaders
    reading: ReplicaReading
    framer: Framer


class FollowerStream:
    """One open stream."""

    def __init__(
        self, parts: SenderParts, stream: ServerStream, node_id: NodeId, incarnation: Incarnation
    ) -> None:
        self._context = parts.context
        self._table = parts.table
        self._leaders = parts.leaders
        self._reading = parts.reading
        self._framer = parts.framer
        self._stream = stream
        self.node_id = node_id
        self.incarnation = incarnation
        self._credit_bytes = 0
        self._sent: dict[SegmentId, _Sent] = {}
        self._unsent: dict[SegmentId, None] = {}
        self._evicted: set[SegmentId] = set()
        """Segments whose next batches left the cache before they were on disk."""
        self._watermarks: dict[SegmentId, None] = {}
        self._rejected: dict[SegmentId, replication_pb2.ReplicaDataEntry] = {}
        self._early: dict[SegmentId, replication_pb2.ProgressEntry] = {}
        """Attach requests for segments that we are not known to lead yet."""
        self._wake = asyncio.Event()
        self._superseded = False
        self._watermarks_due = False
        self._watermark_timer: asyncio.TimerHandle | None = None

    # --- called by leaders ----------------------------------------------------------------------

    def mark_data(self, segment_id: SegmentId) -> None:
        """A led segment has a new batch."""
        self._unsent[segment_id] = None
        self._wake.set()

    def on_durable(self, segment_id: SegmentId) -> None:
        """A group of a led segment is on disk."""
        if segment_id in self._evicted:
            self._evicted.discard(segment_id)
            self.mark_data(segment_id)

    def mark_watermark(self, segment_id: SegmentId) -> None:
        """A led segment's high watermark moved."""
        self._watermarks[segment_id] = None
        if self._watermark_timer is None:
            loop = asyncio.get_running_loop()
            self._watermark_timer = loop.call_later(WATERMARK_DELAY_S, self._watermark_delay_over)

    def _watermark_delay_over(self) -> None:
        self._watermark_timer = None
        self._watermarks_due = True
        self._wake.set()

    def drop(self, segment_id: SegmentId) -> None:
        """We lead this segment no longer."""
        self._sent.pop(segment_id, None)
        self._unsent.pop(segment_id, None)
        self._watermarks.pop(segment_id, None)
        self._reject(segment_id, "NOT_LEADER")

    def supersede(self) -> None:
        """The follower has a newer stream: what still arrives on this one is stale."""
        self._superseded = True
        self._wake.set()

    def _is_stale(self) -> bool:
        return self._superseded

    def leader_created(self, leader: Leader) -> None:
        """We now lead a segment; the follower may have asked for it already."""
        entry = self._early.pop(leader.replica.segment_id, None)
        if entry is not None:
            self._attach(leader, entry)

    # --- the stream -----------------------------------------------------------------------------

    async def run(self, first: replication_pb2.ReplicaProgress) -> None:
        """Serve until the follower goes away (UnavailableError) or we are stopped."""
        reader = asyncio.get_running_loop().create_task(self._read(first))
        try:
            sender = asyncio.get_running_loop().create_task(self._send())
            try:
                done, _ = await asyncio.wait((reader, sender), return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()
            finally:
                sender.cancel()
        finally:
            reader.cancel()
            if self._watermark_timer is not None:
                self._watermark_timer.cancel()
            for sent in self._sent.values():
                if sent.leader.streams.get(self.node_id) is self:
                    del sent.leader.streams[self.node_id]

    async def _read(self, first: replication_pb2.ReplicaProgress) -> None:
        message = first
        while not self._is_stale():
            self._credit_bytes += message.credit_bytes
            for entry in message.entries:
                await self._progress(entry)
                if self._is_stale():
                    return
            if self._unsent:  # what waits for credit; all else wakes the sender by itself
                self._wake.set()
            body = await self._stream.read()
            if body is None:
                return
            message = framing.parse(replication_pb2.ReplicaProgress, body)

    async def _progress(self, entry: replication_pb2.ProgressEntry) -> None:
        segment_id = SegmentId(entry.segment_id)
        replica = self._table.get(segment_id)
        leader = self._leaders.of(replica) if replica is not None else None
        if leader is None:
            if entry.attach:
                if replica is not None and replica.promised_epoch > entry.epoch:
                    self._reject(segment_id, "FENCED")
                else:
                    self._early[segment_id] = entry
            return
        if entry.epoch != leader.segment.epoch:
            self._reject(segment_id, "FENCED")
        elif entry.leaving:
            if self._sent.pop(segment_id, None) is not None:
                leader.streams.pop(self.node_id, None)
                leader.feed(inputs.FollowerLeft(self.node_id))
        elif entry.attach:
            agrees = await self._chain_agrees(leader, entry)
            still_leads = self._leaders.of(leader.replica) is leader
            if agrees and still_leads and not self._is_stale():
                self._attach(leader, entry)
        elif segment_id in self._sent:
            leader.feed(
                inputs.FollowerProgress(self.node_id, self.incarnation, entry.durable_end_offset)
            )

    async def _chain_agrees(self, leader: Leader, entry: replication_pb2.ProgressEntry) -> bool:
        """Whether the follower's log is a prefix of ours, by the header CRC at its end."""
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
        self._reject(leader.replica.segment_id, "DIVERGED")
        return False

    def _attach(self, leader: Leader, entry: replication_pb2.ProgressEntry) -> None:
        segment_id = leader.replica.segment_id
        if self.node_id not in leader.segment.replicas:
            self._reject(segment_id, "NOT_REPLICA")
            return
        self._sent[segment_id] = _Sent(leader, entry.durable_end_offset)
        leader.streams[self.node_id] = self
        self._unsent[segment_id] = None
        self.mark_watermark(segment_id)
        leader.feed(
            inputs.FollowerProgress(
                self.node_id, self.incarnation, entry.durable_end_offset, attach=True
            )
        )
        self._wake.set()

    def _reject(self, segment_id: SegmentId, reason: str) -> None:
        self._rejected[segment_id] = replication_pb2.ReplicaDataEntry(
            segment_id=segment_id, rejected=reason
        )
        self._wake.set()

    # --- sending --------------------------------------------------------------------------------

    async def _send(self) -> None:
        while not self._is_stale():
            await self._wake.wait()
            self._wake.clear()
            while self._is_due() and not self._is_stale():
                outgoing = await self._gather()
                if outgoing.header.entries:
                    await self._stream.write(self._framer.frame(outgoing))

    def _is_due(self) -> bool:
        return (
            bool(self._rejected)
            or self._watermarks_due
            or (bool(self._unsent) and self._credit_bytes > 0)
        )

    async def _gather(self) -> Outgoing:
        """Fill one message: rejections, then data as far as the credit goes, then watermarks."""
        outgoing = Outgoing(replication_pb2.ReplicaDataHeader(), [], [])
        header = outgoing.header
        header.entries.extend(self._rejected.values())
        self._rejected.clear()
        room = min(MESSAGE_BYTES_MAX, self._credit_bytes)
        while self._unsent and room > 0:
            segment_id = next(iter(self._unsent))
            del self._unsent[segment_id]
            sent = self._sent.get(segment_id)
            if sent is None:
                continue
            length = await self._add_data(outgoing, sent, room)
            room -= length
        if header.entries or self._watermarks_due:
            self._add_watermarks(header)
        return outgoing

    async def _add_data(self, outgoing: Outgoing, sent: _Sent, room: int) -> int:
        leader, start = sent.leader, sent.sent_offset
        segment_id = leader.replica.segment_id
        log_end_offset = leader.core.log_end_offset
        if start >= log_end_offset:
            return 0
        data, length, end = self._context.cache.read(segment_id, start, room, log_end_offset)
        if not data:
            durable_end_offset = leader.core.durable_end_offset
            if start >= durable_end_offset:
                # Evicted before it was written: sent when it can be read from disk.
                self._evicted.add(segment_id)
                return 0
            try:
                body, end = await self._reading.read(
                    leader.replica, start, room, durable_end_offset
                )
            except IcecoreError as error:
                event(
                    _log, logging.ERROR, "follower_read_failed", segment_id=segment_id, error=error
                )
                if isinstance(error, SHORTAGES):
                    loop = asyncio.get_running_loop()
                    loop.call_later(READ_AGAIN_S, self._read_again, segment_id)
                return 0
            data, length = [body], len(body)
            if self._sent.get(segment_id) is not sent or sent.sent_offset != start:
                return 0
        assert start < end <= leader.core.log_end_offset, "a follower is sent what is not led"
        outgoing.starts.append(start)
        outgoing.buffers.extend(data)
        sent.sent_offset = end
        self._credit_bytes -= length
        self._context.metrics.replicated_bytes_out.inc(length)
        self._watermarks.pop(segment_id, None)
        outgoing.header.entries.add(
            segment_id=segment_id,
            epoch=leader.segment.epoch,
            batches_length=length,
            high_watermark=leader.core.high_watermark,
        )
        if end < leader.core.log_end_offset:
            self._unsent[segment_id] = None
        return length

    def _read_again(self, segment_id: SegmentId) -> None:
        """A shortage may have ended; nobody else wakes the sender for what is on disk already."""
        if segment_id in self._sent:
            self._unsent[segment_id] = None
            self._wake.set()

    def _add_watermarks(self, header: replication_pb2.ReplicaDataHeader) -> None:
        self._watermarks_due = False
        for segment_id in self._watermarks:
            sent = self._sent.get(segment_id)
            if sent is not None:
                header.entries.add(
                    segment_id=segment_id,
                    epoch=sent.leader.segment.epoch,
                    high_watermark=sent.leader.core.high_watermark,
                )
        self._watermarks.clear()
