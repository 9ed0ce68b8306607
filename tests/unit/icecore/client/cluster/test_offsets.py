"""The first record of a time: a leader is asked, and believed when what lies before is older."""

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from icecore import Consumer, Lookup
from icecore.client.cluster.offsets import OffsetLookup
from icecore.errors import IcecoreError, InternalError, InvalidRequestError, NotLeaderError
from icecore.model import Segment, SegmentState
from icecore.v1 import data_pb2
from tests.support.fake_cluster import FakeCluster
from tests.support.replication_setup import segment

TIMES = range(0, 1000, 10)
"""Append time of each offset; a segment has ten."""


class Cluster(OffsetLookup):
    """Answers for ten segments; the leader has some of them."""

    def __init__(self, leader_has: Callable[[int], bool]) -> None:
        connection, metadata = SimpleNamespace(rng=random.Random(1)), cast(Any, None)
        super().__init__(cast(Any, connection), metadata, "flights")
        self.leader_has, self.asked = leader_has, list[str]()
        self.leader_error: IcecoreError | None = None

    def _search(self, numbers: list[int], timestamp_ms: int) -> data_pb2.ListOffsetsResult:
        for number in numbers:
            for offset in range(number * 10, number * 10 + 10):
                if TIMES[offset] >= timestamp_ms:
                    return data_pb2.ListOffsetsResult(
                        offset=offset,
                        append_timestamp_ms=TIMES[offset],
                        segment_id=number + 1,
                        found=True,
                    )
        return data_pb2.ListOffsetsResult(offset=100, append_timestamp_ms=-1)

    async def _ask_leader(
        self, partition: int, target: data_pb2.ListOffsetsPartition
    ) -> data_pb2.ListOffsetsResult:
        self.asked.append("leader")
        if self.leader_error is not None:
            error, self.leader_error = self.leader_error, None
            raise error
        return self._search(list(filter(self.leader_has, range(10))), target.timestamp_ms)

    async def _ask_replica(
        self, partition: int, segment: Segment, target: data_pb2.ListOffsetsPartition
    ) -> data_pb2.ListOffsetsResult:
        self.asked.append("replica")
        return self._search([segment.segment_id - 1], target.timestamp_ms)

    async def _segments(
        self, partition: int, from_offset: int = 0, *, limit: int = 0
    ) -> list[Segment]:
        self.asked.append(f"segments {limit}")
        found = [
            segment(
                segment_id=number + 1,
                state=SegmentState.ACTIVE if number == 9 else SegmentState.SEALED,
                base_offset=number * 10,
                end_offset=-1 if number == 9 else number * 10 + 10,
            )
            for number in range(from_offset // 10, 10)
        ]
        return found[: limit or None]


@pytest.mark.parametrize("timestamp_ms", [0, 5, 100, 455, 500, 990, 991])
async def test_the_leader_and_what_lies_before_are_enough(timestamp_ms: int) -> None:
    cluster = Cluster(lambda _: True)
    expected = -(-timestamp_ms // 10)
    found = await cluster.first_since(0, timestamp_ms)
    assert (found.offset, found.append_timestamp_ms) == (
        expected,
        TIMES[expected] if expected < 100 else -1,
    )
    assert "segments 0" not in cluster.asked and len(cluster.asked) <= 3


@pytest.mark.parametrize("timestamp_ms", range(0, 1000, 35))
async def test_a_leader_that_lacks_segments_is_not_believed(timestamp_ms: int) -> None:
    cluster = Cluster(lambda number: number in (2, 7, 9))
    assert (await cluster.first_since(0, timestamp_ms)).offset == -(-timestamp_ms // 10)


async def test_without_a_leader_others_are_asked() -> None:
    cluster = Cluster(lambda _: True)
    cluster.leader_error = NotLeaderError("none at the moment")
    assert (await cluster.first_since(0, 455)).offset == 46
    assert "segments 0" in cluster.asked
    cluster.leader_error = InvalidRequestError("no such time")
    with pytest.raises(InvalidRequestError):
        await cluster.first_since(0, 455)


@pytest.mark.parametrize("count", [0, 2])
async def test_a_forged_number_of_results_is_an_error_of_ours(count: int) -> None:
    def forge(answer: data_pb2.ListOffsetsResponse) -> None:
        (found,) = answer.partitions
        del answer.partitions[:]
        answer.partitions.extend([found] * count)

    async with FakeCluster() as cluster:
        cluster.add_topic("t")
        cluster.on_offsets = forge
        async with Lookup(cluster.bootstrap, "t", net=cluster.net) as search:
            with pytest.raises(InternalError, match=f"{count} partitions"):
                await search.offset_at(1000)
            cluster.on_offsets = lambda _: None
            assert (await search.offset_at(1000))[0].offset == 0
        cluster.on_offsets = forge
        with pytest.raises(InternalError, match=f"{count} partitions"):
            async with Consumer(cluster.bootstrap, "t", start=-1, net=cluster.net) as consumer:
                await consumer.poll(5)
