"""Heads and metas of frames: what is packed is read again, and what is wrong is refused."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from icecore.rpc.native.frame import (
    BULK_META_BYTES_MAX,
    HEAD_BYTES,
    MESSAGE_BYTES_MAX,
    META_BYTES_MAX,
    Call,
    FrameError,
    FrameKind,
    Head,
    check_hello,
    pack_call,
    pack_head,
    pack_hello,
    read_call,
    read_head,
    read_meta,
)

FULL_KINDS = [FrameKind.CALL, FrameKind.ANSWER, FrameKind.ERROR, FrameKind.DATA]


@given(
    kind=st.sampled_from(FULL_KINDS),
    call_id=st.integers(0, 2**32 - 1),
    meta=st.binary(max_size=META_BYTES_MAX),
    body_bytes=st.integers(0, MESSAGE_BYTES_MAX),
    before=st.binary(max_size=20),
)
def test_heads(kind: FrameKind, call_id: int, meta: bytes, body_bytes: int, before: bytes) -> None:
    view = memoryview(before + pack_head(kind, call_id, meta, body_bytes))
    head = read_head(view, len(before))
    assert head == Head(body_bytes, call_id, len(meta), kind)
    assert read_meta(view, len(before), head) == meta


@pytest.mark.parametrize(
    ("kind", "meta_bytes", "body_bytes", "why"),
    [
        (FrameKind.CALL, 0, MESSAGE_BYTES_MAX + 1, "larger than max"),
        (FrameKind.DATA, 0, 2**32 - 1, "larger than max"),
        (FrameKind.CALL, META_BYTES_MAX + 1, 0, "larger than max"),
        (0, 0, 0, "kind 0"),
        (max(FrameKind) + 1, 0, 0, "kind 11"),
        (FrameKind.HELLO, 10, 1, "no body"),
        (FrameKind.OPEN, 5, 1, "no body"),
        (FrameKind.PING, 0, 1, "no body"),
    ],
)
def test_heads_that_no_frame_has(kind: int, meta_bytes: int, body_bytes: int, why: str) -> None:
    packed = struct.pack("<IIHBBI", body_bytes, 1, meta_bytes, kind, 0, 0)
    with pytest.raises(FrameError, match=why):
        read_head(memoryview(packed), 0)


@given(bit=st.integers(0, (HEAD_BYTES + 10) * 8 - 1))
def test_any_flipped_bit_is_noticed(bit: int) -> None:
    packed = bytearray(pack_head(FrameKind.CALL, 7, b"0123456789", 5000))
    packed[bit // 8] ^= 1 << bit % 8
    view = memoryview(bytes(packed) + bytes(META_BYTES_MAX))
    with pytest.raises(FrameError):
        read_meta(view, 0, read_head(view, 0))


def test_hello() -> None:
    for features in (0, 0xFFFFFFFF):  # what this side does not know is none of its business
        packed = pack_hello(features)
        check_hello(packed[HEAD_BYTES:])
    for wrong in (b"", packed[HEAD_BYTES:-1], b"ICEC" + packed[HEAD_BYTES + 4 :]):
        with pytest.raises(FrameError):
            check_hello(wrong)
    with pytest.raises(FrameError, match="version 1"):
        check_hello(struct.pack("<4sHI", b"icec", 1, 0))


@given(timeout_s=st.floats(0.001, allow_infinity=True), method=st.binary(max_size=100))
def test_calls(timeout_s: float, method: bytes) -> None:
    read_s, path, header = read_call(FrameKind.CALL, pack_call(timeout_s, method))
    assert path == method and header is None
    assert read_s <= timeout_s
    assert read_s == pytest.approx(min(timeout_s, (2**32 - 1) / 1000), abs=0.0011)


@given(method=st.binary(max_size=255), header=st.binary(max_size=1000))
def test_headers_in_metas(method: bytes, header: bytes) -> None:
    assert read_call(FrameKind.BULK, pack_call(1.5, method, header)) == Call(1.5, method, header)


@pytest.mark.parametrize("kind", [FrameKind.CALL, FrameKind.BULK])
def test_metas_that_no_call_has(kind: FrameKind) -> None:
    packed = pack_call(1, b"method")
    for wrong in (b"", b"1234", packed[:-1], packed[:4] + b"\xff" + packed[5:]):
        with pytest.raises(FrameError):
            read_call(kind, wrong)


def test_only_a_bulk_call_has_a_header_and_a_large_meta() -> None:
    with pytest.raises(FrameError, match="length of a call's method"):
        read_call(FrameKind.CALL, pack_call(1, b"method", b"header"))
    packed = pack_head(FrameKind.BULK, 1, bytes(BULK_META_BYTES_MAX), 5)
    assert read_head(memoryview(packed), 0).meta_bytes == BULK_META_BYTES_MAX
