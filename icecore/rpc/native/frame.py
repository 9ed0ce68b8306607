"""One frame: a head of 16 bytes, a little meta, a body. Little-endian.

    0         4         8         10     11     12         16
    | body    | call    | meta    | kind | zero | crc32c   | meta … | body …
      u32       u32       u16       u8     u8     u32

The checksum covers the bytes before it and the meta, so a reader that lost its place finds out
before it believes a length. Bodies have checksums of their own where it matters (batches).

    kind     call  meta                        body               sent by
    HELLO    0     magic, version, features    -                  both, first
    CALL     id    timeout in ms, method       request            client
    BULK     id    the same, header            batches            client: a request in two parts
    ANSWER   id    -                           answer             server
    ERROR    id    -                           common.Error       server; id 0 ends the connection
    OPEN     0     method                      -                  client: this is a stream now
    DATA     0     -                           message            both ends of a stream
    END      0     -                           -                  server: the handler has returned
    PING     0     -                           -                  who has heard nothing for a while
    PONG     0     -                           -                  who was asked
"""

import struct
from enum import IntEnum
from typing import Final, NamedTuple

from icecore.codec.checksum import crc32c

MESSAGE_BYTES_MAX: Final = 64 << 20
"""Maximum size of one body; gRPC's limit is the same."""
META_BYTES_MAX: Final = 1024
"""Maximum size of the meta of all frames but BULK."""
BULK_META_BYTES_MAX: Final = 0xFFFF
"""Maximum size of a BULK's meta, which holds the request's header: as much as a head can tell."""
HEADER_BYTES_MAX: Final = BULK_META_BYTES_MAX - META_BYTES_MAX
"""Maximum size of a header in a meta, which leaves room for the method. A larger header goes in a
CALL's body."""
HEAD_BYTES: Final = 16
VERSION: Final = 2

_HEAD = struct.Struct("<IIHBBI")
_CHECKED = struct.Struct("<IIHBB")
_CRC = struct.Struct("<I")
_HELLO = struct.Struct("<4sHI")
_CALL = struct.Struct("<IH")
_MAGIC: Final = b"icec"
_TIMEOUT_MAX_MS: Final = 0xFFFFFFFF


class FrameKind(IntEnum):
    """Kind of a frame; see the table above."""

    HELLO = 1
    CALL = 2
    ANSWER = 3
    ERROR = 4
    OPEN = 5
    DATA = 6
    END = 7
    PING = 8
    PONG = 9
    BULK = 10


_KINDS: Final = frozenset(map(int, FrameKind))
_EMPTY_KINDS: Final = frozenset(
    {FrameKind.HELLO, FrameKind.OPEN, FrameKind.END, FrameKind.PING, FrameKind.PONG}
)


class FrameError(Exception):
    """The bytes are no frames of ours; nothing behind them can be believed."""


class Call(NamedTuple):
    """Content of the meta of a CALL or a BULK."""

    timeout_s: float
    method: bytes
    header: bytes | None
    """Header of a BULK; None when the body is the whole request."""


class Frame(NamedTuple):
    """One that arrived whole."""

    kind: int
    call_id: int
    meta: bytes
    body: bytes | memoryview


class Head(NamedTuple):
    """Content of the first bytes of a frame."""

    body_bytes: int
    call_id: int
    meta_bytes: int
    kind: int


def pack_head(kind: int, call_id: int, meta: bytes, body_bytes: int) -> bytes:
    """Head and meta of a frame."""
    checked = _CHECKED.pack(body_bytes, call_id, len(meta), kind, 0)
    crc = crc32c(checked + meta if meta else checked)
    return checked + _CRC.pack(crc) + meta


def read_head(view: memoryview, position: int) -> Head:
    """The head at ``position`` of ``view``, which holds all of it. Its meta is not checked yet.

    Raises:
        FrameError: A length or kind that no frame has.
    """
    body_bytes, call_id, meta_bytes, kind, zero, _ = _HEAD.unpack_from(view, position)
    if kind not in _KINDS or zero:
        raise FrameError(f"kind {kind} is none of the native protocol's")
    if meta_bytes > META_BYTES_MAX and kind != FrameKind.BULK:
        raise FrameError(f"{meta_bytes} bytes of meta, larger than max {META_BYTES_MAX}")
    if body_bytes > MESSAGE_BYTES_MAX:
        raise FrameError(f"{body_bytes} bytes of body, larger than max {MESSAGE_BYTES_MAX}")
    if body_bytes and kind in _EMPTY_KINDS:
        raise FrameError(f"a frame of kind {kind} has no body")
    return Head(body_bytes, call_id, meta_bytes, kind)


def read_meta(view: memoryview, position: int, head: Head) -> bytes:
    """The meta of the head at ``position``.

    Raises:
        FrameError: Head and meta are not what was sent.
    """
    checked = position + _CHECKED.size
    start = position + HEAD_BYTES
    meta = bytes(view[start : start + head.meta_bytes]) if head.meta_bytes else b""
    crc = crc32c(bytes(view[position:checked]) + meta)
    if crc != _CRC.unpack_from(view, checked)[0]:
        raise FrameError("the checksum of a frame's head is wrong")
    return meta


def pack_hello(features: int = 0) -> bytes:
    """The first frame of each side."""
    return pack_head(FrameKind.HELLO, 0, _HELLO.pack(_MAGIC, VERSION, features), 0)


def is_hello(said: bytes) -> bool:
    """Return whether what a server has said first begins with a hello, of whatever version."""
    return said[HEAD_BYTES : HEAD_BYTES + len(_MAGIC)] == _MAGIC


def check_hello(meta: bytes) -> None:
    """Look at the other side's hello. Unknown features are ignored: nobody uses them unasked.

    Raises:
        FrameError: It is another protocol, or another version of it.
    """
    if len(meta) != _HELLO.size:
        raise FrameError("the hello is malformed")
    magic, version, _ = _HELLO.unpack(meta)
    if magic != _MAGIC or version != VERSION:
        raise FrameError(f"version {version} of the native protocol, this side has {VERSION}")


def pack_call(timeout_s: float, method: bytes, header: bytes | None = None) -> bytes:
    """The meta of a CALL; with a header, of a BULK."""
    timeout_ms = int(min(timeout_s * 1000, _TIMEOUT_MAX_MS))
    return _CALL.pack(timeout_ms, len(method)) + method + (header or b"")


def read_call(kind: int, meta: bytes) -> Call:
    """Parse the meta of a CALL or a BULK.

    Raises:
        FrameError: It is no such meta.
    """
    if len(meta) < _CALL.size:
        raise FrameError("a call without a timeout and a method")
    timeout_ms, method_bytes = _CALL.unpack_from(meta)
    end = _CALL.size + method_bytes
    if len(meta) < end or (len(meta) > end and kind != FrameKind.BULK):
        raise FrameError("the length of a call's method is wrong")
    header = meta[end:] if kind == FrameKind.BULK else None
    return Call(timeout_ms / 1000, meta[_CALL.size : end], header)
