"""Messages of a leader at the link that receives them: whose batches they are, and their credit."""

from types import SimpleNamespace
from typing import Any, cast

from icecore.rpc import framing
from icecore.rpc.ports import join
from icecore.v1 import replication_pb2
from icecore_node.metrics import NodeMetrics
from icecore_node.replication.follower import FollowerDelivery
from icecore_node.replication.receiver import LeaderLink
from tests.support.role_setup import Worker, context

STREAM = cast(Any, object())


class Taker:
    """A follower that keeps what it is given until the test lets go."""

    def __init__(self) -> None:
        self.taken: list[tuple[bytes, FollowerDelivery]] = []
        self.replica = SimpleNamespace(segment_id=1)

    def on_data(self, entry: object, data: memoryview, delivery: FollowerDelivery) -> None:
        self.taken.append((bytes(data), delivery))

    def on_rejected(self, reason: str) -> None:
        pass


class Linked:
    """A link with an open stream and two followers; told credit is counted."""

    def __init__(self) -> None:
        self.link = LeaderLink(context(Worker(), metrics=NodeMetrics()), cast(Any, 2))
        self.link._stream = STREAM
        self.link._is_full = True  # nothing is told, it is only counted
        self.quick, self.slow = Taker(), Taker()
        self.link._followers = cast(Any, {1: self.quick, 2: self.slow})

    @property
    def credit(self) -> int:
        return self.link._credit_bytes

    def receive(self, *entries: tuple[int, bytes, str]) -> bool:
        header = replication_pb2.ReplicaDataHeader()
        for segment_id, data, rejected in entries:
            header.entries.add(segment_id=segment_id, batches_length=len(data), rejected=rejected)
        data = b"".join(data for _, data, _ in entries)
        return self.link._receive(join(framing.frame_bulk(header.SerializeToString(), [data])))


async def test_a_message_that_is_held_by_one_segment_holds_its_credit() -> None:
    """Many messages, of each of which a stalled segment has a little: all of them are in memory."""
    linked = Linked()
    for _ in range(10):
        assert linked.receive((1, bytes(1000), ""), (2, bytes(8), ""), (3, bytes(50), ""))
    for data, delivery in linked.quick.taken:
        delivery.release(len(data))
    assert linked.credit == 0
    for data, delivery in linked.slow.taken[:4]:
        delivery.release(len(data))
    assert linked.credit == 4 * 1058
    await linked.link.close()


async def test_what_nobody_wants_is_given_back_at_once() -> None:
    linked = Linked()
    assert linked.receive((3, bytes(1000), ""), (1, bytes(7), "NOT_LEADER"))
    assert linked.credit == 1007 and not linked.quick.taken
    await linked.link.close()


async def test_credit_of_an_older_stream_is_not_given_to_a_newer_one() -> None:
    linked = Linked()
    assert linked.receive((1, bytes(1000), ""))
    linked.link._stream = cast(Any, object())
    linked.quick.taken[0][1].release(1000)
    assert linked.credit == 0
    await linked.link.close()


async def test_lengths_beyond_the_message_reach_no_segment() -> None:
    linked = Linked()
    header = replication_pb2.ReplicaDataHeader()
    header.entries.add(segment_id=1, batches_length=10)
    header.entries.add(segment_id=2, batches_length=11)
    body = join(framing.frame_bulk(header.SerializeToString(), [bytes(20)]))
    assert not linked.link._receive(body)
    assert not linked.quick.taken and linked.credit == 0
    await linked.link.close()
