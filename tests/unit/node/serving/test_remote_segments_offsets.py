"""A client that names no segment is answered for history that no node has any more."""

from typing import Any, cast

import pytest

from icecore.errors import UnavailableError
from icecore.model import Segment
from icecore_node.serving.remote_segments import RemoteSegments
from tests.support.query_setup import QueryNode
from tests.support.remote_setup import RemoteNode
from tests.unit.node.remote.read.test_reading import source_of

TOPIC = "t"


class Coordinator:
    """Knows which segment holds an offset, and counts the questions."""

    def __init__(self, remote: RemoteNode) -> None:
        self._remote = remote
        self.asked = 0
        self.replicas: tuple[Any, ...] = ()
        self.is_away = False

    async def segment_at(self, topic: str, partition: int, offset: int) -> Segment | None:
        self.asked += 1
        if self.is_away:
            raise UnavailableError("nobody answers")
        found = await self._remote.metadata.segment_at(topic, partition, offset)
        return found and found.changed(replicas=self.replicas)


@pytest.fixture
def stage() -> tuple[RemoteSegments, Coordinator, RemoteNode]:
    remote = RemoteNode()
    remote.publish(source_of(), 1)
    coordinator, node = Coordinator(remote), QueryNode()
    segments = RemoteSegments(
        remote.reading, node.table, cast(Any, node.clock), coordinator.segment_at
    )
    return segments, coordinator, remote


async def at(segments: RemoteSegments, remote: RemoteNode, offset: int) -> Segment | None:
    record = remote.metadata.record(1)
    return await segments.at(b"", record.topic, record.partition, 0, offset)


async def test_the_segment_is_asked_for_once(
    stage: tuple[RemoteSegments, Coordinator, RemoteNode],
) -> None:
    segments, coordinator, remote = stage
    for offset in (0, 3, 1):
        found = await at(segments, remote, offset)
        assert found is not None and found.segment_id == 1
    assert coordinator.asked == 1
    assert await at(segments, remote, 1 << 40) is None


@pytest.mark.parametrize("why", ["held", "away"])
async def test_what_nodes_have_and_what_nobody_knows_is_not_answered_here(
    stage: tuple[RemoteSegments, Coordinator, RemoteNode], why: str
) -> None:
    segments, coordinator, remote = stage
    coordinator.replicas = (2,) if why == "held" else ()
    coordinator.is_away = why == "away"
    for _ in range(3):
        assert await at(segments, remote, 0) is None
    assert coordinator.asked == 1, "it is asked again a second later"
