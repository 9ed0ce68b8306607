"""Model values and errors survive the way to protobuf and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icecore import errors
from icecore.errors import IcecoreError, InvalidRequestError
from icecore.model import FlushMode, NodeInfo, NodeState, Segment, SegmentSettings, SegmentState
from icecore.rpc import convert
from icecore.v1 import common_pb2, coordinator_pb2

U32 = st.integers(1, 2**32 - 1)
I63 = st.integers(-1, 2**63 - 1)
SETTINGS = st.builds(
    SegmentSettings,
    replication_factor=U32,
    min_insync=U32,
    flush_mode=st.sampled_from(FlushMode),
    segment_bytes=U32,
    segment_age_ms=U32,
    record_bytes_max=U32,
    batch_bytes_max=U32,
    uncompressed_bytes_max=U32,
)
SEGMENTS = st.builds(
    Segment,
    segment_id=U32,
    topic_id=st.binary(min_size=16, max_size=16),
    topic=st.text(max_size=5),
    partition=U32,
    state=st.sampled_from(SegmentState),
    epoch=U32,
    settings=SETTINGS,
    generation=U32,
    base_offset=I63,
    end_offset=I63,
    seal_digest=st.binary(max_size=3),
    full_digest=st.binary(max_size=3),
    leader=U32,
    leader_incarnation=U32,
    replicas=st.lists(U32, max_size=3).map(tuple),
    isr=st.lists(U32, max_size=3).map(tuple),
    version=U32,
    log_start_offset=I63,
)


@given(SEGMENTS)
def test_segments(segment: Segment) -> None:
    body = convert.segment_to_proto(segment).SerializeToString()
    message = coordinator_pb2.SegmentAssignment.FromString(body)
    assert convert.segment_from_proto(message) == segment


def test_absent_settings_get_defaults() -> None:
    assert convert.settings_from_proto(coordinator_pb2.SegmentSettings()) == SegmentSettings()


@pytest.mark.parametrize("state", NodeState)
def test_nodes(state: NodeState) -> None:
    node = NodeInfo(3, "127.0.0.1:7401", 17, state, "rack-a")
    assert convert.node_from_proto(convert.node_to_proto(node)) == node


def test_unknown_state_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="SegmentState"):
        convert.segment_from_proto(coordinator_pb2.SegmentAssignment(segment_id=1))


def all_errors(cls: type[IcecoreError] = IcecoreError) -> list[type[IcecoreError]]:
    """Those with a reason of their own; a server's private ones travel as what they derive from."""
    found = [child for sub in cls.__subclasses__() for child in (sub, *all_errors(sub))]
    return [each for each in found if each.__module__ == IcecoreError.__module__]


@pytest.mark.parametrize("cls", all_errors())
def test_errors(cls: type[IcecoreError]) -> None:
    error = convert.error_from_proto(convert.error_to_proto(cls("why", leader_node_id=2)))
    assert type(error) is cls
    assert error.message == "why"
    assert error.metadata == {"leader_node_id": "2"}


def test_no_error() -> None:
    assert convert.error_from_proto(convert.error_to_proto(None)) is None
    unknown = convert.error_from_proto(common_pb2.Error(reason="FROM_THE_FUTURE"))
    assert type(unknown) is errors.InternalError
