"""Sends batches to one follower node: from memory at once, else after a read from disk.

Newest batches are in memory, older ones in the file; many segments travel in one message. The
follower's credit bounds the bytes under way, so a slow follower costs no memory here. Its segments
wait in the ``_unsent`` set, and it catches up from the file.

Batches in memory go out in the next turn of the loop (``_send_cached``), without a task. Segments
whose next batches are on disk only wait in ``_behind`` for the task that reads them, one after the
other; meanwhile nothing else is sent of such a segment, so its batches keep their order.
"""

import asyncio
import logging
from dataclasses import dataclass

from icecore.errors import SHORTAGES, IcecoreError
from icecore.model import SegmentId
from icecore.process.log import event
from icecore.rpc import framing
from icecore.rpc.ports import Body, ServerStream
from icecore.v1 import replication_pb2
from icecore_node.context import NodeContext
from icecore_node.ports import Buffer
from icecore_node.replica.reading import ReplicaReading
from icecore_node.replication.leader import Leader

_log = logging.getLogger(__name__)

MESSAGE_BYTES_MAX = 2 << 20
WATERMARK_DELAY_S = 0.025
"""A watermark that moved alone waits this long for data or other watermarks to travel with.

Only readers at a follower notice. With single records a message for each watermark would be a
third of all messages between nodes.
"""
_TIMER_EARLY_S = 0.001
"""Seconds by which a timer may fire too early: it has a resolution."""


@dataclass(slots=True)
class _Sent:
    """One attached segment."""

    leader: Leader
    sent_offset: int


@dataclass(frozen=True, slots=True)
class Outgoing:
    """Contents of one message."""

    header: replication_pb2.ReplicaDataHeader
    starts: list[int]
    """First offset of each entry that has batches. It is not sent, because the batches contain
    it."""
    buffers: list[Buffer]


class Framer:
    """Puts messages together, once for all followers that keep pace and need the same one.

    The header tells segments, epochs and lengths; together with the offsets where they start that
    is everything, for what a leader's log holds never changes under the same epoch. The header
    alone is not enough: two batches of the same length often travel under the same watermark.
    """

    def __init__(self) -> None:
        self._header = b""
        self._message: Body = b""
        self._starts: list[int] = []

    def frame(self, outgoing: Outgoing) -> Body:
        """The whole message."""
        header, starts = outgoing.header.SerializeToString(), outgoing.starts
        if header != self._header or starts != self._starts:
            self._header, self._starts = header, starts
            self._message = framing.frame_bulk(header, outgoing.buffers)
        return self._message


class FollowerSender:
    """The sending half of one stream; leaders tell it what there is.

    Args:
        context: Context of this node.
        reading: Reads the disk.
        framer: Shared with the other streams.
        stream: The stream to the follower.
    """

    def __init__(
        self, context: NodeContext, reading: ReplicaReading, framer: Framer, stream: ServerStream
    ) -> None:
        self._context = context
        self._reading = reading
        self._framer = framer
        self._stream = stream
        self._credit_bytes = 0
        self._sent: dict[SegmentId, _Sent] = {}
        self._unsent: dict[SegmentId, None] = {}
        self._behind: dict[SegmentId, None] = {}
        """Segments whose next batches are read from disk, the first of them perhaps now."""
        self._evicted: set[SegmentId] = set()
        """Segments whose next batches left the cache before they were on disk."""
        self._watermarks: dict[SegmentId, None] = {}
        self._rejected: dict[SegmentId, replication_pb2.ReplicaDataEntry] = {}
        self._is_turn_due = False
        self._is_full = False
        """The follower's transport is full: what is sent waits until it is not."""
        self._must_wait = asyncio.Event()
        """There is work for ``run``."""
        self._is_closed = False
        self._watermarks_since_s = 0.0
        """Loop time, in seconds, at which the first waiting watermark moved."""
        self._watermarks_due = False
        self._watermark_timer: asyncio.TimerHandle | None = None

    # --- called by leaders ----------------------------------------------------------------------

    def mark_data(self, segment_id: SegmentId) -> None:
        """A led segment has a new batch."""
        self._unsent[segment_id] = None
        self._changed()

    def on_durable(self, segment_id: SegmentId) -> None:
        """A group of a led segment is on disk."""
        if segment_id in self._evicted:
            self._evicted.discard(segment_id)
            self.mark_data(segment_id)

    def mark_watermark(self, segment_id: SegmentId) -> None:
        """A led segment's high watermark moved."""
        if not self._watermarks:
            loop = asyncio.get_running_loop()
            self._watermarks_since_s = loop.time()
            if self._watermark_timer is None:
                self._set_watermark_timer(loop, WATERMARK_DELAY_S)
        self._watermarks[segment_id] = None

    def _set_watermark_timer(self, loop: asyncio.AbstractEventLoop, wait_s: float) -> None:
        self._watermark_timer = loop.call_later(wait_s, self._watermark_delay_over)

    def _watermark_delay_over(self) -> None:
        """Send the waiting watermarks, or set the timer again when they are younger. The watermark
        for which it was set may have travelled with data."""
        self._watermark_timer = None
        if not self._watermarks:
            return
        loop = asyncio.get_running_loop()
        left_s = self._watermarks_since_s + WATERMARK_DELAY_S - loop.time()
        if left_s > _TIMER_EARLY_S:
            self._set_watermark_timer(loop, left_s)
            return
        self._watermarks_due = True
        self._changed()

    def drop(self, segment_id: SegmentId) -> None:
        """We lead this segment no longer."""
        self.detach(segment_id)
        self.reject(segment_id, "NOT_LEADER")

    # --- called by the stream -------------------------------------------------------------------

    def add_credit(self, length_bytes: int) -> None:
        """Add credit: the follower can take this many bytes more."""
        self._credit_bytes += length_bytes
        if self._unsent:
            self._changed()
        if self._behind:
            self._must_wait.set()

    def attach(self, leader: Leader, start_offset: int) -> None:
        """Send a led segment from an offset on."""
        segment_id = leader.replica.segment_id
        self._sent[segment_id] = _Sent(leader, start_offset)
        self.mark_watermark(segment_id)
        self.mark_data(segment_id)

    def detach(self, segment_id: SegmentId) -> bool:
        """Stop sending a segment. Return whether it was sent before."""
        self._unsent.pop(segment_id, None)
        self._watermarks.pop(segment_id, None)
        return self._sent.pop(segment_id, None) is not None

    def is_attached(self, segment_id: SegmentId) -> bool:
        """Return whether a segment is being sent on this stream."""
        return segment_id in self._sent

    def reject(self, segment_id: SegmentId, reason: str) -> None:
        """Tell the follower why a segment is not sent."""
        self._rejected[segment_id] = replication_pb2.ReplicaDataEntry(
            segment_id=segment_id, rejected=reason
        )
        self._changed()

    def close(self) -> list[Leader]:
        """Send nothing more. Return the leaders of the segments that were sent."""
        self._is_closed = True
        if self._watermark_timer is not None:
            self._watermark_timer.cancel()
        return [sent.leader for sent in self._sent.values()]

    # --- sending --------------------------------------------------------------------------------

    def _changed(self) -> None:
        """Send in the next turn of the loop, with what else there is by then."""
        if not self._is_turn_due and not self._is_full:
            self._is_turn_due = True
            asyncio.get_running_loop().call_soon(self._send_cached)

    def _send_cached(self) -> None:
        """Send one message from memory; the rest follows in the next turn."""
        self._is_turn_due = False
        if self._is_full or self._is_closed or not self._is_due():
            return
        outgoing = self._gather()
        if outgoing.header.entries:
            self._write(outgoing)
        if self._is_due():
            self._changed()

    def _write(self, outgoing: Outgoing) -> None:
        try:
            keeps_pace = self._stream.write_now(self._framer.frame(outgoing))
        except IcecoreError:
            return  # who reads sees the same break
        if not keeps_pace:
            self._is_full = True
            self._must_wait.set()

    def _is_due(self) -> bool:
        return (
            bool(self._rejected)
            or self._watermarks_due
            or (bool(self._unsent) and self._credit_bytes > 0)
        )

    def _gather(self) -> Outgoing:
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
            if sent is not None and segment_id not in self._behind:
                room -= self._add_cached(outgoing, sent, room)
        if header.entries or self._watermarks_due:
            self._add_watermarks(header)
        return outgoing

    def _add_cached(self, outgoing: Outgoing, sent: _Sent, room: int) -> int:
        """Add a segment's batches from memory; else leave the segment to ``run``, which reads from
        disk.

        Returns:
            Number of bytes added.
        """
        leader, start = sent.leader, sent.sent_offset
        segment_id = leader.replica.segment_id
        log_end_offset = leader.core.log_end_offset
        if start >= log_end_offset:
            return 0
        data, length, end = self._context.cache.read(segment_id, start, room, log_end_offset)
        if data:
            self._add(outgoing, sent, data, length, end)
            return length
        if start >= leader.core.durable_end_offset:
            self._evicted.add(segment_id)  # before it was written: sent when it is on disk
        else:
            self._behind[segment_id] = None
            self._must_wait.set()
        return 0

    def _add(
        self, outgoing: Outgoing, sent: _Sent, data: list[Buffer], length: int, end: int
    ) -> None:
        leader, start = sent.leader, sent.sent_offset
        segment_id = leader.replica.segment_id
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

    # --- what has to wait -----------------------------------------------------------------------

    async def run(self) -> None:
        """Wait for the follower's transport, and read from disk what memory has lost; for ever."""
        while True:
            await self._must_wait.wait()
            self._must_wait.clear()
            if self._is_full:
                await self._stream.flush()
                self._is_full = False
                self._changed()
            while self._behind and self._credit_bytes > 0 and not self._is_full:
                segment_id = next(iter(self._behind))
                goes_on = await self._send_from_disk(segment_id)
                del self._behind[segment_id]
                if goes_on and segment_id in self._sent:
                    self.mark_data(segment_id)

    async def _send_from_disk(self, segment_id: SegmentId) -> bool:
        """Send one message of one segment from disk. Return whether there is more to send of it
        now."""
        sent = self._sent.get(segment_id)
        if sent is None:
            return False
        leader, start = sent.leader, sent.sent_offset
        room = min(MESSAGE_BYTES_MAX, self._credit_bytes)
        try:
            body, end = await self._reading.read(
                leader.replica, start, room, leader.core.durable_end_offset
            )
        except IcecoreError as error:
            event(_log, logging.ERROR, "follower_read_failed", segment_id=segment_id, error=error)
            if isinstance(error, SHORTAGES):
                again_s = self._context.settings.timing.read_again_ms / 1000
                loop = asyncio.get_running_loop()
                loop.call_later(again_s, self._read_again, segment_id)
            return self._sent.get(segment_id) is not sent  # who attached again has a try of its own
        if self._is_closed or not body:
            return False
        if self._sent.get(segment_id) is sent and sent.sent_offset == start:
            outgoing = Outgoing(replication_pb2.ReplicaDataHeader(), [], [])
            self._add(outgoing, sent, [body], len(body), end)
            self._write(outgoing)
        return True

    def _read_again(self, segment_id: SegmentId) -> None:
        """Mark a segment for sending again after a shortage. Nothing else wakes the sender for
        batches that are on disk already."""
        if segment_id in self._sent:
            self.mark_data(segment_id)

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
