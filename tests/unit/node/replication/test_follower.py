"""The shell of a follower: what comes from the stream goes into the log or is given back."""

from typing import Any, cast

from icecore.errors import OutOfSpaceError
from icecore.v1 import replication_pb2
from icecore_node.replica import life
from icecore_node.replica.replica import Replica
from icecore_node.replication.follower import Follower, FollowerDelivery, FollowerParts
from tests.conformance.log_builder import LogBuilder
from tests.support.replication_setup import segment
from tests.support.role_setup import Calls, Worker, context, replica


class Followed:
    """A follower of segment 7 in epoch 1, whose leader has three batches of one record."""

    def __init__(self) -> None:
        self.worker, self.link = Worker(), Calls()
        self.damage, self.readers = Calls(), Calls()
        self.short: list[Replica] = []
        self.log = LogBuilder(7)
        self.batches = [self.log.make(1) for _ in range(3)]
        shared = context(self.worker)
        self.replica = replica(shared, self.log)
        damage, readers = cast(Any, self.damage), cast(Any, self.readers)
        parts = FollowerParts(context=shared, damage=damage, readers=readers)
        record = segment(segment_id=7, epoch=1, base_offset=0, leader=2)
        self.follower = Follower(
            parts, self.replica, record, cast(Any, self.link), self.short.append
        )
        self.replica.move(life.Followed(self.follower))
        self.follower.on_stream_opened()

    def send(self, *numbers: int, high_watermark: int = 0, damage: bool = False) -> int:
        """These batches in one message; returns its length in bytes."""
        data = bytearray(b"".join(self.batches[number] for number in numbers))
        if damage:
            data[-1] ^= 1
        entry = replication_pb2.ReplicaDataEntry(epoch=1, high_watermark=high_watermark)
        delivery = FollowerDelivery(len(data), self.link.return_credit)
        self.follower.on_data(entry, memoryview(bytes(data)), delivery)
        return len(data)

    @property
    def credit(self) -> int:
        """Bytes that the leader may send again."""
        return sum(length for (length,) in self.link.of("return_credit"))

    def attaches(self) -> list[int]:
        """At which ends it asked to be sent what follows."""
        return [end for _, _, end, _, attach in self.link.of("report") if attach]


def test_appended_in_order_and_credited_when_durable() -> None:
    f = Followed()
    sent = f.send(0, 1)
    ((request, _),) = f.worker.queue
    assert [mark.base_offset for mark in request.marks] == [0, 1]
    assert request.tail.end_offset == 2
    assert f.credit == 0
    f.worker.sync()
    assert f.credit == sent
    assert f.replica.log.durable_tail == f.log.tails[2]
    assert f.link.of("report")[-1] == [7, 1, 2, f.log.tails[2].last_header_crc32c, False]


def test_what_was_damaged_on_the_way_costs_no_credit() -> None:
    """Nor does what was in flight behind it: the leader sends all of it again."""
    f = Followed()
    sent = f.send(0)
    sent += f.send(1, damage=True)
    assert f.attaches() == [0]
    sent += f.send(2)
    f.worker.sync()
    assert f.attaches() == [0, 1]
    assert f.credit == sent
    sent += f.send(1, 2)
    f.worker.sync()
    assert f.credit == sent
    assert f.replica.log.tail == f.log.tail


def test_what_is_here_already_is_credited_at_once() -> None:
    f = Followed()
    sent = f.send(0, 1)
    f.worker.sync()
    sent += f.send(0)
    assert f.credit == sent
    again = f.send(1, 2)  # straddles our end: only what is beyond counts
    f.worker.sync()
    assert f.credit == sent + again
    assert f.replica.log.tail == f.log.tail


def test_a_mere_watermark_wakes_readers() -> None:
    f = Followed()
    f.send(0)
    f.worker.sync()
    f.send(high_watermark=1)
    assert len(f.readers.of("wake")) == 1
    assert f.replica.log.tail.max_known_high_watermark == 1


def test_a_broken_chain_is_told_as_what_it_is() -> None:
    f = Followed()
    f.send(0)
    other = LogBuilder(7)
    other.make(1, 50)
    f.batches[1] = other.make(1)
    sent = f.send(1)
    ((_, why),) = f.damage.of("condemn")
    assert why == "the chain breaks at offset 1"
    assert f.credit == sent


def test_a_full_disk_leaves_and_waits() -> None:
    f = Followed()
    f.send(0)
    f.worker.fail(OutOfSpaceError("full"))
    assert len(f.link.of("leave")) == 1 and f.short == [f.replica]
    assert f.follower.core.stopped


def test_a_message_is_credited_when_the_last_of_it_is_done_with() -> None:
    """As long as one of its batches is under way all of the message is in memory."""
    f = Followed()
    two = b"".join(f.batches[:2])
    delivery = FollowerDelivery(len(two) + 1_000_000, f.link.return_credit)
    entry = replication_pb2.ReplicaDataEntry(epoch=1)
    delivery.release(1_000_000)  # another segment's batches were quick
    f.follower.on_data(entry, memoryview(two), delivery)
    assert f.credit == 0
    f.worker.sync()
    assert f.credit == len(two) + 1_000_000
    assert len(f.link.of("return_credit")) == 1


def test_what_could_not_be_appended_is_credited_once() -> None:
    f = Followed()
    sent = f.send(0, 1)
    f.follower.on_appended(None, OutOfSpaceError("full"))
    assert f.credit == sent
    f.follower.on_appended(None, OutOfSpaceError("full"))
    assert f.credit == sent
