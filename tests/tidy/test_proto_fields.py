"""Every field on the wire is written by somebody and read by somebody, or says here why not.

A field that nobody fills looks like a fact and is 0; one that nobody reads costs its bytes and
promises a check that is not made. ``proto_usage`` finds both in the syntax of production code.
"""

import ast
import dataclasses
from functools import cache

import pytest

from icecore.topic_settings import SETTINGS, Retention, SegmentSettings, Tiering, TopicFields
from icecore.v1 import (
    admin_pb2,
    common_pb2,
    coordinator_pb2,
    data_pb2,
    mirror_pb2,
    replication_pb2,
)
from tests.tidy.proto_usage import Field, Schema, Usage, usage
from tests.tidy.tree import FOLDERS, all_modules

FILES = (admin_pb2, common_pb2, coordinator_pb2, data_pb2, mirror_pb2, replication_pb2)
PRODUCTION = tuple(FOLDERS)

BY_ROWS = ("TopicSettings", "SegmentSettings")
FRAMED = "icecore/rpc/framing.py puts header and batches together, and apart, by hand"
CLEAR = "for clients without the batch codec, which send and get plain records"
BY_NAME = "for clients that do not ask for the topic's id first"
RANGES = "for clients that ask a node for all its pages; ours says by offsets where to go on"
QUOTAS = "clients obey it; no node has quotas yet"
ANSWERS = "a fact for the client's program; ours has no use for it"

NOT_WRITTEN: dict[Field, str] = {
    **{
        (message, name): FRAMED
        for message in ("ProduceRequest", "FetchResponse", "ReplicaData", "ReadSegmentResponse")
        for name in ("header", "batches")
    },
    **{
        ("ProducePartition", name): CLEAR
        for name in ("records", "producer_id", "producer_epoch", "base_sequence")
    },
    ("FetchHeader", "as_records"): CLEAR,
    ("ProducePartition", "topic"): BY_NAME,
    ("FetchPartition", "topic"): BY_NAME,
    ("ListOffsetsPartition", "topic"): BY_NAME,
    ("ProducePartition", "epoch"): "for clients that want no other leader than the one they know",
    (
        "FetchHeader",
        "min_bytes",
    ): "for clients that want few large answers; ours takes what is there",
    ("QueryRequest", "topic"): BY_NAME,
    ("QueryRequest", "continuation"): RANGES,
    ("ProduceResponse", "throttle_ms"): QUOTAS,
    ("FetchResponseHeader", "throttle_ms"): QUOTAS,
}
"""Why production code does not write it."""
NOT_READ: dict[Field, str] = {
    **{each: why for each, why in NOT_WRITTEN.items() if why == FRAMED},
    ("ProducePartitionResult", "epoch"): ANSWERS,
    ("ProducePartitionResult", "flush_mode"): ANSWERS,
    ("FetchPartitionResult", "epoch"): ANSWERS,
    ("FetchPartitionResult", "segment_id"): ANSWERS,
    ("InitProducerResponse", "positions"): "for clients that number batches across restarts",
    ("ProducerPosition", "next_sequence"): "for clients that number batches across restarts",
}
"""Why production code does not read it."""


@cache
def schema() -> Schema:
    found = Schema()
    for file in FILES:
        found.add(file.DESCRIPTOR)
    return found


@cache
def production() -> Usage:
    return usage(schema(), {m.path: m.tree for m in all_modules() if m.package in PRODUCTION})


def written_out() -> set[Field]:
    """All fields but those of settings, which production code converts by their names."""
    return {each for each in schema().all_fields() if each[0] not in BY_ROWS}


def test_every_field_has_a_writer_or_a_reason() -> None:
    missing = {each for each in written_out() if each not in production().written}
    assert missing == NOT_WRITTEN.keys()


def test_every_field_has_a_reader_or_a_reason() -> None:
    missing = {each for each in written_out() if each not in production().read}
    assert missing == NOT_READ.keys()


def test_every_setting_of_a_topic_has_one_name_everywhere() -> None:
    names = set(SETTINGS)
    assert {each.name for each in admin_pb2.TopicSettings.DESCRIPTOR.fields} == names
    assert TopicFields.__optional_keys__ == names
    held = {each.name for value in (Retention, Tiering) for each in dataclasses.fields(value)}
    assert held - {"is_on"} <= names  # "tier" is on or off
    pinned = {each.name for each in dataclasses.fields(SegmentSettings)}
    assert {each.name for each in coordinator_pb2.SegmentSettings.DESCRIPTOR.fields} == pinned
    assert pinned - {"recovery_rule"} <= names  # no topic chooses it yet
    assert names - pinned - held == {"partitions", "delete_grace_ms", "tier"}


# --- the inference --------------------------------------------------------------------------------

WRITERS = """
from icecore.v1 import coordinator_pb2 as pb

def make() -> bytes:
    heartbeat = pb.HeartbeatRequest(incarnation=1)
    heartbeat.sequence = 2
    heartbeat.unknown_segment_ids.extend([3])
    heartbeat.led.add(segment_id=4)
    plain.draining = True
    return heartbeat.SerializeToString()
"""
READERS = """
from icecore.v1 import coordinator_pb2 as pb
from icecore.rpc.framing import parse

def take(body: bytes, plain: Plain) -> None:
    heartbeat = parse(pb.HeartbeatRequest, body)
    print(heartbeat.incarnation, plain.draining)
    print([each.segment_id for each in heartbeat.led], plain.node_id)
    tell(heartbeat, lambda led: led.high_watermark)

def tell(heartbeat: pb.HeartbeatRequest, of: Any) -> int:
    return heartbeat.sequence
"""

COPIES = """
from icecore.v1 import coordinator_pb2 as pb
from icecore.rpc.framing import parse
from icecore.rpc.messages import message_of, value_of

@dataclass
class Led:
    segment_id: int
    length_bytes: int = 0

@dataclass
class Beat:
    is_draining: bool
    led: tuple[Led, ...]

def take(body: bytes) -> Beat:
    return value_of(Beat, parse(pb.HeartbeatRequest, body), sequence=1)

def make(each: Any) -> bytes:
    return message_of(pb.LedHighWatermark, each, high_watermark=3).SerializeToString()
"""


def fields_of(found: set[Field]) -> set[str]:
    return {f"{message}.{name}" for message, name in found}


def test_writers_are_found() -> None:
    assert fields_of(usage(schema(), {"a.py": ast.parse(WRITERS)}).written) == {
        "HeartbeatRequest.incarnation",
        "HeartbeatRequest.sequence",
        "HeartbeatRequest.unknown_segment_ids",
        "HeartbeatRequest.led",
        "LedHighWatermark.segment_id",
    }


def test_readers_are_found() -> None:
    assert fields_of(usage(schema(), {"a.py": ast.parse(READERS)}).read) == {
        "HeartbeatRequest.incarnation",
        "HeartbeatRequest.led",
        "LedHighWatermark.segment_id",
        "LedHighWatermark.high_watermark",
        "HeartbeatRequest.sequence",
    }


def test_fields_that_are_copied_by_name_are_found() -> None:
    found = usage(schema(), {"a.py": ast.parse(COPIES)})
    led = {"LedHighWatermark.segment_id", "LedHighWatermark.length_bytes"}
    assert fields_of(found.read) == led | {"HeartbeatRequest.draining", "HeartbeatRequest.led"}
    assert fields_of(found.written) == led | {"LedHighWatermark.high_watermark"}


@pytest.mark.parametrize("message", ["SegmentSeal", "WrittenBack", "HeartbeatRequest", "Record"])
def test_a_made_up_field_is_missed(message: str) -> None:
    longer = Schema({**schema().fields}, schema().choices)
    longer.fields[message] = {**longer.fields[message], "made_up": ""}
    found = usage(longer, {m.path: m.tree for m in all_modules() if m.package == "icecore_node"})
    assert (message, "made_up") not in found.written | found.read


def test_a_field_that_loses_its_writer_is_missed() -> None:
    """As the lengths once were: told to the coordinator by nobody."""
    [path] = [
        m.path
        for m in all_modules()
        if m.path.endswith("replication/leader.py") and m.package == "icecore_node"
    ]
    text = next(m.text for m in all_modules() if m.path == path)
    assert "length_bytes=replica.log.tail.length_bytes" in text
    shorter = ast.parse(text.replace("length_bytes=replica.log.tail.length_bytes,", ""))
    assert ("SegmentSeal", "length_bytes") in production().written
    assert ("SegmentSeal", "length_bytes") not in usage(schema(), {path: shorter}).written
