"""Hand framing of bulk messages agrees with the generated parser, whatever the peer sends."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icecore.errors import InvalidRequestError
from icecore.rpc import framing
from icecore.rpc.ports import join
from icecore.v1 import data_pb2

HEADERS = st.builds(
    data_pb2.ProduceHeader,
    cluster_id=st.binary(max_size=16),
    timeout_ms=st.integers(0, 2**32 - 1),
    partitions=st.lists(
        st.builds(data_pb2.ProducePartition, partition=st.integers(0, 300)), max_size=40
    ),
)


def parsed(body: bytes) -> tuple[data_pb2.ProduceHeader, bytes]:
    header, batches = framing.split_bulk(body, data_pb2.ProduceRequest)
    return framing.parse(data_pb2.ProduceHeader, header), bytes(batches)


@given(HEADERS, st.lists(st.binary(max_size=300), max_size=4))
def test_frame_is_what_protobuf_reads(header: data_pb2.ProduceHeader, buffers: list[bytes]) -> None:
    views = [memoryview(each) for each in buffers]
    body = join(framing.frame_bulk(header.SerializeToString(), views))
    message = data_pb2.ProduceRequest.FromString(body)
    assert message.header == header
    assert message.batches == b"".join(buffers)
    assert parsed(body) == (header, b"".join(buffers))


@given(HEADERS, st.binary(max_size=300))
def test_split_reads_what_protobuf_writes(header: data_pb2.ProduceHeader, batches: bytes) -> None:
    message = data_pb2.ProduceRequest(header=header, batches=batches)
    assert parsed(message.SerializeToString()) == (header, batches)


FIELDS = st.one_of(
    HEADERS.map(lambda header: join(framing.frame_bulk(header.SerializeToString(), []))[:-2]),
    st.binary(max_size=200).map(lambda b: join(framing.frame_bulk(b"", [b]))[2:]),
    st.just(b"\x10\x05"),  # an unknown field
    st.just(b"\x7a\x80\x00"),  # an overlong length
)


@given(st.lists(FIELDS, max_size=5), st.integers(0, 3))
def test_any_order_duplicates_and_cuts_agree_with_protobuf(fields: list[bytes], cut: int) -> None:
    body = b"".join(fields)
    body = body[: len(body) - cut]
    try:
        message = data_pb2.ProduceRequest.FromString(body)
    except Exception:
        with pytest.raises(InvalidRequestError):
            parsed(body)
    else:
        assert parsed(body) == (message.header, message.batches)


@given(st.binary(max_size=60))
def test_noise_is_refused_or_read_alike(body: bytes) -> None:
    try:
        found = parsed(body)
    except InvalidRequestError:
        return
    message = data_pb2.ProduceRequest.FromString(body)
    assert found == (message.header, message.batches)


def test_batches_are_not_copied() -> None:
    buffer = bytes(1000)
    assert framing.frame_bulk(b"", [buffer])[-1] is buffer
    body = join(framing.frame_bulk(b"", [buffer]))
    _, batches = framing.split_bulk(body, data_pb2.ProduceRequest)
    assert batches.obj is body


def test_a_bulk_request_is_the_same_message_in_parts() -> None:
    header = data_pb2.ProduceHeader(timeout_ms=5).SerializeToString()
    buffers = [b"abc", memoryview(b"de")]
    made = framing.bulk_request(header, buffers)
    assert made.header == header and made.batches is buffers
    assert join(made) == join(framing.frame_bulk(header, buffers))
