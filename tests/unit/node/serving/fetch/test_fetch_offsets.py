"""Only a leader says where a partition ends; what a replica has found, any node says."""

from typing import Any

import pytest

from icecore.v1 import data_pb2
from icecore_node.replica import life as lives
from icecore_node.replica.life import Event
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
