"""The follower's side of a Replicate stream: one leader node, all segments we follow from it.

A ``LeaderLink`` keeps one stream open while there is something to follow: it attaches segments,
hands received batches to their ``Follower`` and reports progress as soon as a group of appends is
durable, all changed segments in one message. The leader may send ahead as many bytes as it has
credit; a message's credit goes back when all of it is durable here, which bounds this node's
memory.
"""

import asyncio
import logging
from functools import partial

from icecore.errors import CorruptBatchError, IcecoreError, InvalidRequestError
from icecore.model import (
    Epoch,
    Incarnation,
    NodeId,
    NodeState,
    SegmentId,
)
from icecore.process.log import (
    event,
)
from icecore.rpc import framing
from icecore.rpc.methods import REPLICATION
from icecore.rpc.ports import ClientStream, Received
from icecore.v1 import replication_pb2
from icecore_node.context import NodeContext
from icecore_node.replication.follower import Follower, FollowerDelivery

_log = logging.getLogger(__name__)


class LeaderLink:
    """The stream to one leader node."""

    def __init__(self, context: NodeContext, leader_id: NodeId) -> None:
        self._context = context
        self._leader_id = leader_id
        self._followers: dict[SegmentId, Follower] = {}
        self._progress: dict[SegmentId, replication_pb2.ProgressEntry] = {}
        self._credit_bytes = 0
        self._wanted = asyncio.Event()
        """There is something to follow."""
        self._stream: ClientStream | None = None
        """While it is open."""
        self._is_due = False
        """Progress is told in the next turn of the loop."""
        self._is_full = False
        """The leader does not take what we tell it: progress is collected until it does."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    # --- called by followers --------------------------------------------------------------------

    def attach(self, follower: Follower) -> None:
        """Start following one more segment."""
        self._followers[follower.replica.segment_id] = follower
        self._wanted.set()
        if self._stream is not None:
            # The follower is still being built when it calls us: attach in the next turn.
            asyncio.get_running_loop().call_soon(self._attach_later, follower)

    def _attach_later(self, follower: Follower) -> None:
        segment_id = follower.replica.segment_id
        if self._stream is not None and self._followers.get(segment_id) is follower:
            follower.on_stream_opened()

    def detach(self, follower: Follower) -> None:
        """Stop following a segment."""
        segment_id = follower.replica.segment_id
        if self._followers.get(segment_id) is follower:
            del self._followers[segment_id]
            self._progress.pop(segment_id, None)

    def leave(self, follower: Follower) -> None:
        """Stop following a segment, and tell the leader not to wait for us."""
        segment_id = follower.replica.segment_id
        is_ours = self._followers.get(segment_id) is follower
        self.detach(follower)
        if is_ours and self._stream is not None:
            self._progress[segment_id] = replication_pb2.ProgressEntry(
                segment_id=segment_id,
                epoch=follower.segment.epoch,
                durable_end_offset=follower.core.durable_end_offset,
                leaving=True,
            )
            self._changed()

    def report(
        self,
        segment_id: SegmentId,
        epoch: Epoch,
        durable_end_offset: int,
        header_crc32c: int,
        attach: bool,
    ) -> None:
        """Tell the leader in the next message; a newer report replaces an older one."""
        if self._stream is None or segment_id not in self._followers:
            return
        earlier = self._progress.get(segment_id)
        self._progress[segment_id] = replication_pb2.ProgressEntry(
            segment_id=segment_id,
            epoch=epoch,
            durable_end_offset=durable_end_offset,
            last_header_crc32c=header_crc32c,
            attach=attach or (earlier is not None and earlier.attach),
        )
        self._changed()

    def _return_credit(self, stream: ClientStream | None, length_bytes: int) -> None:
        """Return credit for these bytes to the leader. A newer stream began with all its credit."""
        if stream is self._stream:
            self._credit_bytes += length_bytes
            self._changed()

    async def close(self) -> None:
        """Break the stream."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    # --- the stream -----------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            if not self._followers:
                self._wanted.clear()
                await self._wanted.wait()
                continue
            peer = self._context.peers.get(self._leader_id)
            if peer is not None and peer.state is not NodeState.DOWN:
                try:
                    address = self._context.peers.address(self._leader_id)
                    await self._converse(address, peer.incarnation)
                except IcecoreError as error:
                    event(
                        _log, logging.DEBUG, "stream_broken", node_id=self._leader_id, error=error
                    )
                except Exception:  # one segment's trouble must not end all that come from there
                    event(
                        _log, logging.ERROR, "stream_failed", node_id=self._leader_id, exc_info=True
                    )
            await asyncio.sleep(self._context.settings.timing.reconnect_ms / 1000)

    async def _converse(self, address: str, leader_incarnation: Incarnation) -> None:
        stream = self._context.net.open_stream(address, REPLICATION["Replicate"])
        try:
            self._progress.clear()
            self._credit_bytes = 0
            first = replication_pb2.ReplicaProgress(
                cluster_id=self._context.identity.cluster_id,
                node_id=self._context.identity.node_id,
                incarnation=self._context.identity.incarnation,
                leader_node_id=self._leader_id,
                leader_incarnation=leader_incarnation,
                credit_bytes=self._context.settings.replication_credit_bytes,
            )
            await stream.write(first.SerializeToString())
            self._stream, self._is_full = stream, False
            for follower in list(self._followers.values()):
                follower.on_stream_opened()
            await stream.consume(self._receive)
        finally:
            self._stream = None
            stream.cancel()

    def _changed(self) -> None:
        """Tell the leader in the next turn of the loop, with what else changes until then."""
        if self._stream is not None and not self._is_due and not self._is_full:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._tell)

    def _tell(self) -> None:
        self._is_due = False
        stream = self._stream
        if stream is None or self._is_full or not (self._progress or self._credit_bytes):
            return
        message = replication_pb2.ReplicaProgress(
            credit_bytes=self._credit_bytes, entries=self._progress.values()
        )
        self._credit_bytes = 0
        self._progress = {}
        try:
            if not stream.write_now(message.SerializeToString()):
                self._is_full = True
                self._context.tasks.start(self._wait_for_room(stream))
        except IcecoreError:
            stream.cancel()  # who reads sees the same break

    async def _wait_for_room(self, stream: ClientStream) -> None:
        try:
            await stream.flush()
        except IcecoreError:
            return
        if self._stream is stream:
            self._is_full = False
            self._changed()

    def _receive(self, body: Received) -> bool:
        """A message; False when it can't be read, which ends the stream."""
        try:
            self._take(body)
        except (InvalidRequestError, CorruptBatchError) as error:
            event(_log, logging.ERROR, "message_unreadable", node_id=self._leader_id, error=error)
            return False
        return True

    def _take(self, body: Received) -> None:
        header_bytes, data = framing.split_bulk(body, replication_pb2.ReplicaData)
        self._context.metrics.replicated_bytes_in.inc(len(data))
        header = framing.parse(replication_pb2.ReplicaDataHeader, header_bytes)
        size_bytes = sum(entry.batches_length for entry in header.entries)
        _check_lengths(size_bytes, data)
        delivery = FollowerDelivery(size_bytes, partial(self._return_credit, self._stream))
        position = 0
        for entry in header.entries:
            end = position + entry.batches_length
            follower = self._followers.get(SegmentId(entry.segment_id))
            if follower is None:
                delivery.release(entry.batches_length)
            elif entry.rejected:
                delivery.release(entry.batches_length)
                self._rejected(follower, entry.rejected)
            else:
                follower.on_data(entry, data[position:end], delivery)
            position = end

    def _rejected(self, follower: Follower, reason: str) -> None:
        event(
            _log,
            logging.INFO,
            "rejected_by_leader",
            node_id=self._leader_id,
            segment_id=follower.replica.segment_id,
            why=reason,
        )
        follower.on_rejected(reason)


def _check_lengths(told_bytes: int, data: memoryview) -> None:
    """Raises CorruptBatchError when a message has less than it says."""
    if told_bytes > len(data):
        raise CorruptBatchError("lengths exceed the data")


class LeaderLinks:
    """All links of this node."""

    def __init__(self, context: NodeContext) -> None:
        self._context = context
        self._links: dict[NodeId, LeaderLink] = {}

    def to(self, leader_id: NodeId) -> LeaderLink:
        """The link to a leader node, made when needed."""
        link = self._links.get(leader_id)
        if link is None:
            link = self._links[leader_id] = LeaderLink(self._context, leader_id)
        return link

    async def close(self) -> None:
        """Break all streams, also those that an assignment asks for meanwhile."""
        while self._links:
            _, link = self._links.popitem()
            await link.close()
