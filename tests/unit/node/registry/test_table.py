"""A node finds its segments of a partition by offset and by time, however many it has."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from icecore.errors import (
    NotLeaderError,
    NotReplicaError,
    OffsetOutOfRangeError,
    UnknownTopicError,
)
from icecore.model import NodeId, NodeInfo, SegmentId
from icecore.v1 import admin_pb2, mirror_pb2
from icecore_node.context import Peers
from icecore_node.identity.readers import Readers
from icecore_node.registry.leaders import Leaders
from icecore_node.registry.table import Nowhere, PartitionReplicas, ReplicaTable
from icecore_node.registry.topic_mirror import TopicMirror
from icecore_node.replica.life import Life, Removed
from icecore_node.replica.replica import Replica

RECORDS = 10
MS = 1_000


class Counted(SimpleNamespace):
    """A replica that counts how often it was looked at."""

    looks = 0
    segment_id: SegmentId
    base_offset: int
    sealed_end_offset: int | None
    life: Life
    log: Any
    watermark: int

    @property
    def sealed(self) -> bool:
        return self.sealed_end_offset is not None

    @property
    def high_watermark(self) -> int:
        Counted.looks += 1
        return self.watermark

    @property
    def partition_key(self) -> tuple[bytes, int]:
        return b"t", 0

    def covers(self, offset: int) -> bool:
        Counted.looks += 1
        is_below = self.sealed_end_offset is None or offset < self.sealed_end_offset
        return self.life.is_intact and self.base_offset <= offset and is_below

    def move(self, event: object) -> None:
        assert isinstance(event, Removed)
        self.life = Life.GONE


def a_replica(number: int, life: Life = Life.SEALED) -> Replica:
    """The numbered segment of ten records, appended in the numbered second."""
    base, end = number * RECORDS, (number + 1) * RECORDS
    tail = SimpleNamespace(max_append_timestamp_ms=number * MS + RECORDS - 1)
    is_open = life in (Life.IDLE, Life.LED)
    made = Counted(
        segment_id=SegmentId(number + 1),
        base_offset=base,
        sealed_end_offset=None if is_open else end,
        life=life,
        log=SimpleNamespace(tail=tail, note_change=lambda: None),
        watermark=end,
    )
    return cast(Replica, made)


def held(*replicas: Replica) -> PartitionReplicas:
    found = PartitionReplicas(b"t", 0)
    for replica in replicas:
        found.place(replica)
    Counted.looks = 0
    return found


def test_the_order_is_that_of_offsets_however_they_come() -> None:
    some = [a_replica(number) for number in (3, 0, 2, 1)]
    found = held(*some, some[0])
    assert [each.base_offset for each in found.replicas] == [0, 10, 20, 30]


def replica_at(held: PartitionReplicas, offset: int, *segment_id: SegmentId) -> Replica:
    """Return the replica that serves an offset."""
    found = held.find(offset, *segment_id)
    assert not isinstance(found, Nowhere)
    return found


def test_a_look_up_does_not_walk_over_all_segments() -> None:
    found = held(*(a_replica(number) for number in range(5_000)))
    for offset in (0, 25_005, 49_999):
        assert replica_at(found, offset).base_offset == offset - offset % RECORDS
    assert found.high_watermark == 50_000
    assert found.since(2_500 * MS)[0].base_offset == 25_000
    assert isinstance(found.find(50_000), Nowhere)
    assert Counted.looks < 100


def test_times_between_and_beyond() -> None:
    found = held(*(a_replica(number) for number in range(9)), a_replica(9, Life.LED))
    assert [each.base_offset for each in found.since(8 * MS + RECORDS)] == [90]
    assert [each.base_offset for each in found.since(8 * MS)] == [80, 90]
    assert len(found.since(0)) == 10
    assert [each.base_offset for each in found.since(100 * MS)] == [90]


def test_what_is_damaged_says_nothing_about_times() -> None:
    lives = [Life.UNKNOWN if number in (2, 3, 4) else Life.SEALED for number in range(8)]
    found = held(*(a_replica(number, life) for number, life in enumerate(lives)))
    for replica in found.replicas[2:5]:
        cast(Any, replica).log.tail.max_append_timestamp_ms = 0
    for second in range(8):
        numbers = [each.base_offset // RECORDS for each in found.since(second * MS)]
        assert second in numbers
        assert numbers == sorted(numbers)
    assert [each.base_offset for each in held(a_replica(0, Life.UNKNOWN)).since(9 * MS)] == [0]


def test_a_gap_is_no_reason_to_walk_to_the_start() -> None:
    found = held(a_replica(0, Life.IDLE), *(a_replica(number) for number in (1, 2, 8)))
    nowhere = found.find(55)
    assert isinstance(nowhere, Nowhere) and isinstance(nowhere.reason, NotReplicaError)
    assert replica_at(found, 5).base_offset == 0
    assert replica_at(found, 25, SegmentId(3)).base_offset == 20
    for wrong in (SegmentId(2), SegmentId(77)):
        assert isinstance(found.find(25, wrong), Nowhere)


def test_below_the_start_and_beyond_a_leader() -> None:
    found = held(a_replica(0), a_replica(1, Life.LED))
    found.note_start(5)
    with pytest.raises(OffsetOutOfRangeError, match=r"\[5, 20\]"):
        found.find(4)
    with pytest.raises(OffsetOutOfRangeError, match=r"\[5, 20\]"):
        found.find(21)
    assert replica_at(found, 20).base_offset == 10


def test_what_is_removed_is_found_no_more_and_may_come_back() -> None:
    table = ReplicaTable(Readers())
    one, two = a_replica(0), a_replica(1)
    table.add(one)
    table.add(two)
    table.remove(one)
    partition = table.of(b"t", 0)
    assert partition.replicas == [two]
    again = a_replica(0)
    table.add(again)
    assert partition.replicas == [again, two]
    partition.displace(one)
    assert partition.replicas == [again, two]
    assert partition.only(SegmentId(1)) == [again]


def heard_of() -> TopicMirror:
    mirror = TopicMirror()
    partitions = [
        admin_pb2.PartitionMetadata(partition=0, leader=3, replicas=(2, 3, 4)),
        admin_pb2.PartitionMetadata(partition=1, replicas=(5,)),
    ]
    topic = admin_pb2.TopicMetadata(name="t", topic_id=b"t" * 16, partitions=partitions)
    mirror.take(mirror_pb2.FollowTopicsResponse(coordinator_epoch=3, version=9, topics=[topic]))
    return mirror


def test_what_others_hold_is_told_from_what_does_not_exist() -> None:
    table = ReplicaTable(Readers(), heard_of())
    for topic_id, name in ((b"", "t"), (b"t" * 16, ""), (b"t" * 16, "t")):
        with pytest.raises(NotReplicaError, match="is on other nodes") as caught:
            table.partition(topic_id, name, 0)
        assert caught.value.metadata["tail_replicas"] == "3,2,4"
    for topic_id, name, number in ((b"", "u", 0), (b"", "t", 2), (b"u" * 16, "t", 0)):
        with pytest.raises(UnknownTopicError, match="has heard of no partition"):
            table.partition(topic_id, name, number)
    peers = Peers()
    peers.nodes[NodeId(3)] = NodeInfo(NodeId(3), "n3:1", cast(Any, 1))
    leaders = Leaders(table, NodeId(1), peers)
    with pytest.raises(NotLeaderError) as told:
        leaders.leader(b"", "t", 0, 0)
    assert told.value.metadata["leader_node_id"] == "3"
    assert told.value.metadata["leader_address"] == "n3:1"
    with pytest.raises(NotLeaderError):
        leaders.leader(b"", "t", 1, 0)
    with pytest.raises(UnknownTopicError):
        leaders.leader(b"", "u", 0, 0)


def test_whoever_reads_a_partition_is_told_of() -> None:
    """Also who does not wait: what is put off for it goes on then."""
    readers, seen = Readers(), list[tuple[bytes, int]]()
    readers.on_read = seen.append
    table = ReplicaTable(readers, TopicMirror())
    table.of(b"topic", 3)
    assert table.partition(b"topic", "", 3) is table.of(b"topic", 3)
    with pytest.raises(UnknownTopicError):
        table.partition(b"topic", "", 4)
    assert seen == [(b"topic", 3)]
