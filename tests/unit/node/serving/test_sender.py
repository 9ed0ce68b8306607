"""The leader's side of a Replicate stream, as far as it needs no stream."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from icecore.codec import batch
from icecore.model import Acks
from icecore.rpc import framing
from icecore.rpc.ports import Body, join
from icecore.v1 import replication_pb2
from icecore_node.replica.life import Led
from icecore_node.roles.leader import Leader, LeaderParts, Offered
from icecore_node.serving.sender import FollowerSender, Framer, Outgoing
from tests.conformance.log_builder import LogBuilder, produced
from tests.support.replication_setup import nodes, segment
from tests.support.role_setup import Calls, Worker, context, replica


def outgoing(start: int, *buffers: bytes) -> Outgoing:
    length = sum(map(len, buffers))
    entry = replication_pb2.ReplicaDataEntry(segment_id=7, epoch=1, batches_length=length)
    return Outgoing(replication_pb2.ReplicaDataHeader(entries=[entry]), [start], list(buffers))


def test_followers_that_need_the_same_message_share_it() -> None:
    """And it is what a message of one's own would be."""
    framer = Framer()
    both, last = outgoing(0, b"batch-1", b"batch-2"), outgoing(1, b"batch-2")
    first = framer.frame(both)
    assert first == framing.frame_bulk(both.header.SerializeToString(), both.buffers)
    assert framer.frame(outgoing(0, b"batch-1", b"batch-2")) is first
    header, data = framing.split_bulk(join(framer.frame(last)), replication_pb2.ReplicaData)
    assert (header, data) == (last.header.SerializeToString(), b"batch-2")
    assert framer.frame(both) == first


def test_equal_headers_of_other_offsets_are_other_messages() -> None:
    framer = Framer()
    first, second = outgoing(0, b"batch-1"), outgoing(1, b"batch-2")
    assert first.header == second.header
    assert framer.frame(first) != framer.frame(second)
    assert join(framer.frame(second)).endswith(b"batch-2")


async def test_each_batch_of_equal_length_is_sent() -> None:
    """A follower that keeps pace gets one message for each, all under one watermark."""
    metrics = SimpleNamespace(replicated_bytes_out=SimpleNamespace(inc=lambda _: None))
    shared = context(Worker(), metrics=metrics)
    for node in nodes().values():
        shared.peers.learn(node)
    log = replica(shared, LogBuilder(7))
    record = segment(segment_id=7, epoch=1, base_offset=0)
    others: dict[str, Any] = {
        each: Calls() for each in ("coordinator", "news", "damage", "readers", "ticks")
    }
    lease: Any = SimpleNamespace(is_valid=True)
    leader = Leader(LeaderParts(context=shared, lease=lease, **others), log, record, lambda _: None)
    log.move(Led(leader))
    messages: list[Body] = []
    stream: Any = SimpleNamespace(write_now=lambda body: messages.append(body) or True)
    sender = FollowerSender(shared, cast(Any, None), Framer(), stream)
    leader.streams[3] = sender
    sender.attach(leader, 0)
    sender.add_credit(1 << 20)
    bases: list[int] = []
    for slot in range(3):
        raw = produced([b"same length"])
        offered = Offered(slot, memoryview(raw), batch.parse_header(raw))
        leader.produce(cast(Any, Calls()), Acks.ALL, [offered])
        await asyncio.sleep(0)
        message = join(messages.pop())
        _, data = framing.split_bulk(message, replication_pb2.ReplicaData)
        bases += [header.base_offset for _, header in batch.iter_batches(data)]
    sender.close()
    assert bases == [0, 1, 2]
