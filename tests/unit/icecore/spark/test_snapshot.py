"""Snapshots of topics that change, or are deleted, while calls ask about them."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from icecore.errors import TopicRecreatedError, UnknownTopicError
from icecore.model import Segment, SegmentState
from icecore.spark.plan import PartitionSnapshot, Snapshot
from icecore.spark.snapshot import offsets_since, take_snapshot


class Leaving:
    """An ``Admin`` whose topic is gone from a certain call on."""

    def __init__(self, calls: int) -> None:
        self.left = calls

    def __getattr__(self, name: str) -> Any:
        def call(*_: Any) -> Any:
            self.left -= 1
            if self.left < 0:
                raise UnknownTopicError("no topic 't'")
            return [None] if name == "describe_topics" else {}

        return call


@pytest.mark.parametrize("calls", range(4))
def test_it_says_the_same_whichever_call_hears_of_it(calls: int) -> None:
    with pytest.raises(UnknownTopicError, match="topic t does not exist, or was deleted"):
        take_snapshot(cast(Any, Leaving(calls)), "t")


class Growing:
    """An ``Admin`` of a topic with a sealed segment up to 10 and a tail."""

    def __init__(self, offset: int) -> None:
        self.offset = offset

    def list_offsets(self, _: str, position: object, *__: object) -> Any:
        offset = 0 if position == "earliest" else self.offset
        return {0: SimpleNamespace(offset=offset, topic_id=b"t" * 16)}

    def describe_topics(self, _: object) -> Any:
        partition = SimpleNamespace(partition=0, length_bytes=150, left_out=((3, 5),))
        return [SimpleNamespace(topic_id=b"t" * 16, partitions=[partition])]

    def list_segments(self, _: str) -> list[Segment]:
        sealed = Segment(
            1,
            b"t" * 16,
            "t",
            0,
            SegmentState.SEALED,
            1,
            base_offset=0,
            end_offset=10,
            length_bytes=100,
        )
        return [sealed, Segment(2, b"t" * 16, "t", 0, SegmentState.ACTIVE, 3, base_offset=10)]


def test_a_tail_ends_at_the_high_watermark_of_the_snapshot() -> None:
    found = take_snapshot(cast(Any, Growing(14)), "t").partitions[0]
    assert (found.log_start_offset, found.high_watermark) == (0, 14)
    assert [(each.base_offset, each.end_offset) for each in found.segments] == [(0, 10), (10, 14)]
    assert [each.length_bytes for each in found.segments] == [100, 50]
    assert found.spans(0, 14) == [(0, 3), (5, 14)] and found.records(0, 14) == 12


class MadeAgain(Growing):
    """An ``Admin`` of a topic that is made again from a certain call on."""

    def __init__(self, calls: int) -> None:
        super().__init__(14)
        self.left = calls

    def topic_id(self) -> bytes:
        self.left -= 1
        return (b"t" if self.left >= 0 else b"u") * 16

    def list_offsets(self, name: str, position: object, *others: object) -> Any:
        found = super().list_offsets(name, position, *others)
        return {0: SimpleNamespace(offset=found[0].offset, topic_id=self.topic_id())}

    def describe_topics(self, name: object) -> Any:
        (found,) = super().describe_topics(name)
        found.topic_id = self.topic_id()
        return [found]


@pytest.mark.parametrize("calls", [1, 2])
def test_offsets_of_an_earlier_topic_are_not_taken_for_those_of_the_next_one(calls: int) -> None:
    with pytest.raises(TopicRecreatedError, match="topic t was deleted and made again meanwhile"):
        take_snapshot(cast(Any, MadeAgain(calls)), "t", with_segments=False)
    snapshot = take_snapshot(cast(Any, MadeAgain(0)), "t", with_segments=False)
    assert snapshot.topic_id == b"u" * 16


def test_times_are_not_looked_up_in_another_topic() -> None:
    snapshot = Snapshot("t", b"t" * 16, {0: PartitionSnapshot(3, 14)})
    assert offsets_since(cast(Any, MadeAgain(1)), snapshot, 1_000) == {0: 14}
    with pytest.raises(TopicRecreatedError, match="topic t was deleted and made again meanwhile"):
        offsets_since(cast(Any, MadeAgain(0)), snapshot, 1_000)


def test_a_record_behind_the_snapshot_begins_no_read() -> None:
    """It was appended after the snapshot, and before the question about the time."""
    snapshot = Snapshot("t", b"t" * 16, {0: PartitionSnapshot(3, 14)})
    assert offsets_since(cast(Any, Growing(20)), snapshot, 1_000) == {0: 14}
    assert offsets_since(cast(Any, Growing(2)), snapshot, 1_000) == {0: 3}
