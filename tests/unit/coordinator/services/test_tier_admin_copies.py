"""Nodes hear of published copies, and clients hear which nodes can read them."""

from collections.abc import Callable
from typing import Any, cast

import pytest

from icecore.errors import InvalidRequestError, WrongClusterError
from icecore.model import NodeState, SegmentId
from icecore.rpc.convert import error_from_proto
from icecore.v1 import admin_pb2
from icecore.v1 import coordinator_pb2 as pb
from icecore_coordinator.decisions.retention import move_log_start
from icecore_coordinator.services.admin_messages import Describer
from icecore_coordinator.services.tier_admin import SEGMENTS_MAX, TieredCopies
from icecore_coordinator.work.remote.tier_nodes import readers_of
from tests.support.cluster_states import KEY, Cluster, commit
from tests.support.tier_states import COPY, published, remote, sealed, tier_of, tiered_topic


async def described(
    state: Cluster,
    *segment_ids: int,
    cluster_id: bytes = b"c" * 16,
    refuted: tuple[int, ...] = (),
    doubt: Callable[[SegmentId], None] = lambda _: None,
) -> list[pb.DescribedCopy]:
    request = pb.DescribeTieredRequest(
        cluster_id=cluster_id, segment_ids=segment_ids, refuted_attempts=refuted
    )
    body = await TieredCopies(state, doubt).describe(request.SerializeToString(), None)  # type: ignore[arg-type]
    return list(pb.DescribeTieredResponse.FromString(body).segments)


async def test_each_segment_is_answered_by_itself() -> None:
    state = tiered_topic()
    tiered, local = published(state), sealed(state)
    commit(state, move_log_start(state, KEY, 5, 0))
    found = await described(state, local, tiered, 999, tiered)
    errors = [error_from_proto(each.error) for each in found]
    assert [each is None for each in errors] == [False, True, False, True]
    assert "is published" in errors[0].message and "no segment 999" in errors[2].message  # type: ignore[union-attr]
    copy = found[1].copy
    assert (copy.attempt, copy.manifest_sha256) == (
        tier_of(state, tiered).attempt,
        COPY.manifest_sha256,
    )
    assert found[1].segment.log_start_offset == 5 and found[1].segment.tiered


async def test_too_many_at_once_and_another_cluster_are_refused() -> None:
    state = tiered_topic()
    assert len(await described(state, *range(SEGMENTS_MAX))) == SEGMENTS_MAX
    with pytest.raises(InvalidRequestError):
        await described(state, *range(SEGMENTS_MAX + 1))
    with pytest.raises(WrongClusterError):
        await described(state, 1, cluster_id=b"x" * 16)


def test_readers_are_live_nodes_with_the_object_store_and_stay_the_same() -> None:
    state = tiered_topic()
    first = readers_of(state, state.live, 1)
    assert sorted(first) == [1, 2, 3]
    assert {readers_of(state, state.live, each)[0] for each in range(100)} == {1, 2, 3}
    state.live.note(first[0], state=NodeState.DOWN, is_connected=False)
    assert readers_of(state, state.live, 1) == first[1:]


def test_readers_are_listed_of_segments_that_no_node_has() -> None:
    state = tiered_topic()
    tiered, both = remote(state), published(state)
    nobody = cast(Any, None)
    describer = Describer(
        state=state,
        live=state.live,
        heard=nobody,
        alerts=nobody,
        sessions=nobody,
        clock=nobody,
        recoveries=lambda: 0,
        refused_streams=lambda: 0,
    )
    listed = describer.segments(admin_pb2.ListSegmentsRequest(topic="events"))
    readers = {each.segment_id: list(each.readers) for each in listed.segments}
    assert readers[tiered] == readers_of(state, state.live, tiered)
    assert readers[both] == []


async def test_a_copy_that_a_node_could_not_read_is_doubted() -> None:
    state = tiered_topic()
    first, second = published(state), published(state)
    attempt, doubted = tier_of(state, second).attempt, list[int]()
    await described(state, first, second, refuted=(attempt,), doubt=doubted.append)
    assert doubted == [second]
    await described(state, first, second, refuted=(attempt + 9,), doubt=doubted.append)
    assert doubted == [second], "another attempt is published by now"
