"""Stored records: what they share in memory, and what is refused."""

import json
from dataclasses import replace

import pytest

from icecore.errors import InternalError
from icecore.model import Epoch, NodeId, Segment, SegmentId, SegmentState
from icecore.topic_settings import SegmentSettings
from icecore_coordinator.state.record_json import decode, encode
from icecore_coordinator.state.records import SegmentRecord


def a_record(segment_id: int, indexed_headers: tuple[str, ...] = ("kind",)) -> SegmentRecord:
    nodes = (NodeId(1), NodeId(2), NodeId(3))
    segment = Segment(
        SegmentId(segment_id),
        b"t" * 16,
        "orders",
        3,
        SegmentState.SEALED,
        Epoch(7),
        SegmentSettings(indexed_headers=indexed_headers),
        seal_digest=bytes([segment_id]) * 32,
        replicas=nodes,
        isr=nodes,
    )
    return SegmentRecord(segment, nodes, b"p" * 32, 1_000)


def test_what_many_records_have_in_common_is_one_object() -> None:
    one, other = (decode(SegmentRecord, encode(a_record(number))) for number in (1, 2))
    assert one == a_record(1)
    assert other == a_record(2)
    assert one.segment.settings is other.segment.settings
    assert one.segment.topic_id is other.segment.topic_id
    assert one.segment.topic is other.segment.topic
    assert one.segment.replicas is one.segment.isr is other.holders


def test_a_segment_begins_at_the_number_where_the_one_before_it_ends() -> None:
    one, other = a_record(1), a_record(2)
    one = replace(one, segment=one.segment.changed(end_offset=10**9))
    other = replace(other, segment=other.segment.changed(base_offset=10**9, epoch=Epoch(10**6)))
    first, second = (decode(SegmentRecord, encode(each)) for each in (one, other))
    assert (first, second) == (one, other)
    assert first.segment.end_offset is second.segment.base_offset


def test_what_differs_in_one_value_is_not_shared() -> None:
    one = decode(SegmentRecord, encode(a_record(1)))
    other = decode(SegmentRecord, encode(a_record(2, indexed_headers=("kind", "size"))))
    assert other == a_record(2, indexed_headers=("kind", "size"))
    assert one.segment.settings != other.segment.settings


def test_a_record_of_an_older_version_gets_defaults_for_what_it_lacks() -> None:
    stored = json.loads(encode(a_record(1)))
    del stored["segment"]["settings"]["file_model"]
    assert "surplus" not in stored["segment"] and "since_ms" not in stored  # they are empty
    assert decode(SegmentRecord, json.dumps(stored)) == a_record(1)


def test_what_is_empty_is_left_out_and_what_a_version_before_stored_is_read() -> None:
    """A version before stored each field, and takes the same defaults for what it does not find."""
    record = a_record(1)
    stored = json.loads(encode(record))
    for name in ("readers", "lossy", "surplus", "log_start_offset"):
        assert name not in stored["segment"]
    assert "base_offset" in stored["segment"]  # it is -1 unless it is said
    full = json.loads(json.dumps(stored))
    full["segment"] |= {"readers": [], "lossy": False, "surplus": [], "log_start_offset": 0}
    full |= {"digests": [], "since_ms": 0, "is_unclean_begun": False}
    assert decode(SegmentRecord, json.dumps(full)) == decode(SegmentRecord, json.dumps(stored))
    assert decode(SegmentRecord, json.dumps(stored)) == record


def test_what_a_later_version_added_is_left_out() -> None:
    stored = json.loads(encode(a_record(1)))
    stored["segment"]["colour"] = "blue"
    assert decode(SegmentRecord, json.dumps(stored)) == a_record(1)


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("settings", {"engine": {}}),
        ("settings", 3),
        ("topic_id", "xyz"),
        ("state", "NEW"),
        ("segment_id", "1"),
        ("base_offset", 1.5),
        ("lossy", 1),
        ("replicas", 7),
        ("replicas", [1, "2"]),
        ("isr", {"1": 2}),
    ],
)
def test_a_damaged_record_is_named(part: str, value: object) -> None:
    stored = json.loads(encode(a_record(1)))
    stored["segment"][part] = value
    with pytest.raises(InternalError, match="is damaged"):
        decode(SegmentRecord, json.dumps(stored))


def test_a_record_that_is_cut_off_or_goes_on_is_damaged() -> None:
    stored = encode(a_record(1))
    for text in (stored[:-1], stored + "}", stored + stored, " " + stored, "", "[1]"):
        with pytest.raises(InternalError, match="is damaged"):
            decode(SegmentRecord, text)
