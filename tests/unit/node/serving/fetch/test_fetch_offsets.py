"""Only a leader says where a partition ends; what a replica has found, any node says."""

from typing import Any

import pytest

from icecore.v1 import data_pb2
from icecore_node.replica import life as lives
from icecore_node.replica.life import Event
from icecore_node.serving.fetch import producer_states
from tests.support.query_setup import CALL, TOPIC, QueryNode, Stored, StubRole

ENDED = [lives.RoleEnded("started anew"), lives.Promised(9), lives.Condemned("damaged")]
LATE_MS = 1 << 40
"""No record is so late."""


@pytest.fixture
def node() -> QueryNode:
    """One sealed segment, with the records 0 and 1, and one that the node leads, with 2."""
    node = QueryNode()
    node.begin(1)
    node.append(1, [Stored(b"v"), Stored(b"v")])
    node.seal(1)
    node.begin(2)
    node.append(2, [Stored(b"v")])
    return node


async def asked(node: QueryNode, **target: Any) -> data_pb2.ListOffsetsResult:
    entry = data_pb2.ListOffsetsPartition(topic_id=TOPIC, **target)
    request = data_pb2.ListOffsetsRequest(partitions=[entry])
    body = await node.fetches.list_offsets(request.SerializeToString(), CALL)
    (found,) = data_pb2.ListOffsetsResponse.FromString(body).partitions
    return found


async def test_a_leader_says_where_the_log_ends(node: QueryNode) -> None:
    latest = await asked(node, latest=True)
    assert (latest.offset, latest.segment_id) == (3, 2)
    assert (await asked(node, timestamp_ms=LATE_MS)).offset == 3


@pytest.mark.parametrize("event", ENDED, ids=lambda each: type(each).__name__)
async def test_who_leads_no_more_does_not(node: QueryNode, event: Event) -> None:
    """Neither of the log that it led, nor of the one before."""
    node.replicas[2].move(event)
    assert (await asked(node, latest=True)).error.reason == "NOT_LEADER"
    late = await asked(node, timestamp_ms=LATE_MS)
    assert late.error.reason == "NOT_LEADER"
    assert (await asked(node, timestamp_ms=LATE_MS, segment_id=1)).offset == 2
    found = await asked(node, timestamp_ms=0)
    assert found.found and found.offset == 0


async def test_a_follower_does_not(node: QueryNode) -> None:
    replica = node.replicas[2]
    replica.move(lives.RoleEnded("started anew"))
    replica.life = lives.Life.IDLE  # as the new process finds it
    replica.move(lives.Followed(StubRole(2)))
    assert (await asked(node, latest=True)).error.reason == "NOT_LEADER"


FAMILY = 1 << 63
"""The first of some ids that a client gave out by itself."""


def filled(node: QueryNode) -> None:
    producers = node.replicas[2].log.producers
    for producer_id, epoch, records in (
        (FAMILY - 1, 7, 5),
        (FAMILY, 7, 3),
        (FAMILY + 2, 7, 4),
        (FAMILY + 3, 6, 8),
        (FAMILY + 4, 7, 9),
    ):
        producers.apply(producer_id, epoch, 0, records, 0, 0)
    for number in range(40):
        producers.apply(FAMILY + 2, 7, 4 + number, 1, 0, 0)


async def test_a_leader_says_how_far_producers_have_got(node: QueryNode) -> None:
    """Those of a range and an epoch; what is older than remembered batches is told, too."""
    filled(node)
    asked_for = data_pb2.ProducerRange(first_id=FAMILY, last_id=FAMILY + 3, epoch=7)
    answer = await asked(node, producers=asked_for)
    assert answer.segment_id == 2
    found = answer.producers
    assert [(each.producer_id - FAMILY, each.next_sequence) for each in found] == [(0, 3), (2, 44)]
    kept = node.replicas[2].log.producers.batches_kept
    assert [each.oldest_sequence for each in found] == [0, 44 - kept]


async def test_only_a_leader_says_how_far_producers_have_got(node: QueryNode) -> None:
    filled(node)
    node.replicas[2].move(lives.RoleEnded("started anew"))
    found = await asked(node, producers=data_pb2.ProducerRange(last_id=(1 << 64) - 1, epoch=7))
    assert found.error.reason == "NOT_LEADER"
    assert not found.producers


async def test_a_request_asks_for_few_producers(
    node: QueryNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each question walks over all producers of a partition, and each answer has its size."""
    filled(node)
    wanted = data_pb2.ProducerRange(last_id=(1 << 64) - 1, epoch=7)
    entry = data_pb2.ListOffsetsPartition(topic_id=TOPIC, producers=wanted)

    async def reasons(count: int) -> list[str]:
        request = data_pb2.ListOffsetsRequest(partitions=[entry] * count)
        body = await node.fetches.list_offsets(request.SerializeToString(), CALL)
        found = data_pb2.ListOffsetsResponse.FromString(body).partitions
        return [each.error.reason or str(len(each.producers)) for each in found]

    assert await reasons(17) == ["4"] * 16 + ["INVALID_REQUEST"]
    monkeypatch.setattr(producer_states, "PRODUCERS_MAX", 7)
    assert await reasons(3) == ["4", "INVALID_REQUEST", "INVALID_REQUEST"]
