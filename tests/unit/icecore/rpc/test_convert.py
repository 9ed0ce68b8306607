"""Model values and errors survive the way to protobuf and back."""

from dataclasses import fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icecore import errors
from icecore.errors import IcecoreError, InvalidRequestError
from icecore.model import NodeInfo, NodeState, Segment, SegmentState
from icecore.rpc import convert
from icecore.topic_settings import (
    KEEP_ALL,
    NOT_TIERED,
    FlushMode,
    Retention,
    SegmentSettings,
    Tiering,
    TopicSettings,
)
from icecore.v1 import admin_pb2, common_pb2, coordinator_pb2

U32 = st.integers(1, 2**32 - 1)
I63 = st.integers(-1, 2**63 - 1)
SETTINGS = st.builds(
    SegmentSettings,
    replication_factor=U32,
    min_insync_replicas=U32,
    flush_mode=st.sampled_from(FlushMode),
    segment_bytes=U32,
    segment_age_ms=U32,
    record_bytes_max=U32,
    batch_bytes_max=U32,
    uncompressed_bytes_max=U32,
    engine=st.text(min_size=1, max_size=3),
    file_model=st.text(min_size=1, max_size=3),
    recovery_rule=st.text(min_size=1, max_size=3),
    partitioner=st.text(min_size=1, max_size=3),
    indexed_headers=st.lists(st.text(min_size=1, max_size=3), max_size=3).map(tuple),
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
    lossy=st.booleans(),
    length_bytes=U32,
)


@given(SEGMENTS)
def test_segments(segment: Segment) -> None:
    body = convert.segment_to_proto(segment).SerializeToString()
    message = coordinator_pb2.SegmentAssignment.FromString(body)
    assert convert.segment_from_proto(message) == segment


def test_absent_settings_get_defaults() -> None:
    assert convert.settings_from_proto(coordinator_pb2.SegmentSettings()) == SegmentSettings()


OF_NO_SEGMENT = {
    *("partitions", "delete_grace_ms", "tier", "tier_format", "tier_after_ms"),
    *("local_retention_ms", "local_retention_bytes"),
    *(each.name for each in fields(Retention)),
}


def test_what_a_message_does_not_say_of_retention_stays() -> None:
    assert convert.retention_with(KEPT, admin_pb2.TopicSettings()) == KEPT
    no_limit = admin_pb2.TopicSettings(retention_ms=-1)
    assert convert.retention_with(KEPT, no_limit) == replace(KEPT, retention_ms=-1)
    nothing = admin_pb2.TopicSettings(retention_ms=0)
    assert convert.retention_with(KEPT, nothing).retention_ms == 0, "0 is said, and refused later"


def test_settings_have_the_same_fields_everywhere() -> None:
    names = {each.name for each in fields(SegmentSettings)}
    assert names == set(coordinator_pb2.SegmentSettings.DESCRIPTOR.fields_by_name)
    of_topics = set(admin_pb2.TopicSettings.DESCRIPTOR.fields_by_name)
    assert names - of_topics == {"recovery_rule"}  # nobody can choose yet
    assert of_topics - names == OF_NO_SEGMENT
    assert {each.name for each in fields(TopicSettings)} == of_topics


KEPT = Retention(retention_ms=1, retention_bytes=2, on_full="delete_oldest")
TIERED = Tiering(True, "segment", 3, 4, 5)
OTHER = SegmentSettings(
    replication_factor=5,
    min_insync_replicas=4,
    flush_mode=FlushMode.ASYNC,
    segment_bytes=6,
    segment_age_ms=7,
    partitioner="custom",
    record_bytes_max=8,
    batch_bytes_max=9,
    uncompressed_bytes_max=10,
    indexed_headers=("h",),
    flush_interval_ms=11,
    flush_bytes=12,
    engine="memory",
    file_model="shared",
    on_total_loss="restart_empty",
)


def test_a_topics_message_carries_all_that_a_topic_can_choose() -> None:
    kept = replace(SegmentSettings(), recovery_rule="r")
    message = convert.settings_to_topic(
        OTHER, partitions=3, delete_grace_ms=0, retention=KEPT, tiering=TIERED
    )
    assert (message.partitions, message.delete_grace_ms) == (3, 0)
    assert message.HasField("delete_grace_ms")
    assert convert.retention_with(KEEP_ALL, message) == KEPT
    assert convert.tiering_with(NOT_TIERED, message) == TIERED
    found = convert.settings_with(kept, message)
    assert found == replace(OTHER, recovery_rule="r")
    for each in fields(SegmentSettings):
        default = getattr(SegmentSettings(), each.name)
        assert getattr(found, each.name) != default, f"{each.name} was not copied"


def test_a_topics_message_that_says_nothing_changes_nothing() -> None:
    assert convert.settings_with(OTHER, admin_pb2.TopicSettings()) == OTHER


@pytest.mark.parametrize("state", NodeState)
def test_nodes(state: NodeState) -> None:
    node = NodeInfo(3, "127.0.0.1:7401", 17, state, "rack-a", "127.0.0.1:7501")
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


def test_generated_code_has_all_reasons() -> None:
    names = common_pb2.DESCRIPTOR.enum_types_by_name["Reason"].values_by_name
    named = {each.removeprefix("REASON_") for each in names}
    assert named == {"UNSPECIFIED", *(cls.reason for cls in all_errors())}


def test_no_error() -> None:
    assert convert.error_from_proto(convert.error_to_proto(None)) is None
    unknown = convert.error_from_proto(common_pb2.Error(reason="FROM_THE_FUTURE"))
    assert type(unknown) is errors.InternalError


def test_what_a_message_does_not_say_of_tiering_stays() -> None:
    assert convert.tiering_with(TIERED, admin_pb2.TopicSettings()) == TIERED
    off = admin_pb2.TopicSettings(tier="off", tier_after_ms=0, local_retention_ms=-1)
    changed = replace(TIERED, is_on=False, tier_after_ms=0, local_retention_ms=-1)
    assert convert.tiering_with(TIERED, off) == changed
    with pytest.raises(InvalidRequestError, match="tier 'maybe' must be one of off, on"):
        convert.tiering_with(TIERED, admin_pb2.TopicSettings(tier="maybe"))
