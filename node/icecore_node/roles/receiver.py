"""The follower's side of a Replicate stream: one leader node, all segments we follow from it.

A ``LeaderLink`` keeps one stream open while there is something to follow: it attaches segments,
hands received batches to their ``Follower`` and reports progress as soon as a group of appends is
durable, all changed segments in one message. The leader may send ahead as many bytes as it has
credit; credit goes back when the bytes are durable here, which bounds this node's memory.
"""

import asyncio
import logging

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
from icecore.rpc.ports import ClientStream
from icecore.v1 import replication_pb2
from icecore_node.context import NodeContext, end_task
from icecore_node.roles.follower import Follower

_log = logging.getLogger(__name__)

RECONNECT_S = 0.1


class LeaderLink:
    """The stream to one leader node."""

    def __init__(self, context: NodeContext, leader_id: NodeId) -> None:
        self._context = context
        self._leader_id = leader_id
        self._followers: dict[SegmentId, Follower] = {}
        self._progress: dict[SegmentId, replication_pb2.ProgressEntry] = {}
        self._credit_bytes = 0
        self._wake = asyncio.Event()
        self._connected = False
        self._task = asyncio.get_running_loop().create_task(self._run())

    # --- called by followers --------------------------------------------------------------------

    def attach(self, follower: Follower) -> None:
        """Start following one more segment."""
        self._followers[follower.replica.segment_id] = follower
        if self._connected:
            # The follower is still being built when it calls us: attach in the next turn.
            asyncio.get_running_loop().call_soon(self._attach_later, follower)
        else:
            self._wake.set()

    def _attach_later(self, follower: Follower) -> None:
        if self._connected and self._followers.get(follower.replica.segment_id) is follower:
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
        if is_ours and self._connected:
            self._progress[segment_id] = replication_pb2.ProgressEntry(
                segment_id=segment_id,
                epoch=follower.segment.epoch,
                durable_end_offset=follower.core.durable_end_offset,
                leaving=True,
            )
            self._wake.set()

    def report(
        self,
        segment_id: SegmentId,
        epoch: Epoch,
        durable_end_offset: int,
        header_crc32c: int,
        attach: bool,
    ) -> None:
        """Tell the leader in the next message; a newer report replaces an older one."""
        if not self._connected or segment_id not in self._followers:
            return
        earlier = self._progress.get(segment_id)
        self._progress[segment_id] = replication_pb2.ProgressEntry(
            segment_id=segment_id,
            epoch=epoch,
            durable_end_offset=durable_end_offset,
            last_header_crc32c=header_crc32c,
            attach=attach or (earlier is not None and earlier.attach),
        )
        self._wake.set()

    def return_credit(self, length_bytes: int) -> None:
        """The leader may send so many bytes more."""
        if length_bytes:
            self._credit_bytes += length_bytes
            self._wake.set()

    async def close(self) -> None:
        """Break the stream."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    # --- the stream -----------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            if not self._followers:
                self._wake.clear()
                await self._wake.wait()
                continue
            peer = self._context.peers.get(self._leader_id)
            if peer is not None and peer.state is not NodeState.DOWN:
                try:
                    await self._converse(peer.address, peer.incarnation)
                except IcecoreError as error:
                    event(
                        _log, logging.DEBUG, "stream_broken", node_id=self._leader_id, error=error
                    )
                except Exception:  # one segment's trouble must not end all that come from there
                    event(
                        _log, logging.ERROR, "stream_failed", node_id=self._leader_id, exc_info=True
                    )
            await asyncio.sleep(RECONNECT_S)

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
            self._connected = True
            for follower in list(self._followers.values()):
                follower.on_stream_opened()
            writer = asyncio.get_running_loop().create_task(self._write(stream))
            writer.add_done_callback(lambda _: stream.cancel())
            try:
                await self._read(stream)
            finally:
                await end_task(writer)
        finally:
            self._connected = False
            stream.cancel()

    async def _write(self, stream: ClientStream) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            if not self._progress and not self._credit_bytes:
                continue
            message = replication_pb2.ReplicaProgress(
                credit_bytes=self._credit_bytes, entries=self._progress.values()
            )
            self._credit_bytes = 0
            self._progress = {}
            try:
                await stream.write(message.SerializeToString())
            except IcecoreError:
                return  # the reader sees the same break and ends the conversation

    async def _read(self, stream: ClientStream) -> None:
        while (body := await stream.read()) is not None:
            try:
                self._receive(body)
            except (InvalidRequestError, CorruptBatchError) as error:
                event(
                    _log, logging.ERROR, "message_unreadable", node_id=self._leader_id, error=error
                )
                return

    def _receive(self, body: bytes) -> None:
        header_bytes, data = framing.split_bulk(body, replication_pb2.ReplicaData)
        self._context.metrics.replicated_bytes_in.inc(len(data))
        header = framing.parse(replication_pb2.ReplicaDataHeader, header_bytes)
        position = 0
        for entry in header.entries:
            end = position + entry.batches_length
            if end > len(data):
                raise CorruptBatchError("lengths exceed the data")
            follower = self._followers.get(SegmentId(entry.segment_id))
            if follower is None:
                self.return_credit(entry.batches_length)
            elif entry.rejected:
                self._rejected(follower, entry.rejected)
            else:
                follower.on_data(entry, data[position:end])
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
