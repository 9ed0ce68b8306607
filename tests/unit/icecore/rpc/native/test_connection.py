"""Keep-alive: who is silent is asked and lost, who is slow or busy is not."""

import asyncio
import socket
from dataclasses import replace

import pytest

from icecore.errors import UnavailableError
from icecore.rpc.native.connection import Timeouts
from icecore.rpc.native.frame import FrameKind, pack_head
from icecore.rpc.native.net import NativeNet
from tests.support.native_peer import (
    IMPATIENT,
    MIB,
    RawListener,
    RawPeer,
    call_head,
    tormented,
)
from tests.support.waiting import until

PONG = pack_head(FrameKind.PONG, 0, b"", 0)
PING = pack_head(FrameKind.PING, 0, b"", 0)
SILENCE_S = IMPATIENT.ping_after_s + IMPATIENT.pong_within_s


def test_an_idle_peer_that_is_dead_is_noticed_within_twenty_seconds() -> None:
    usual = Timeouts()
    assert usual.ping_after_s + usual.pong_within_s + usual.check_every_s < 20


async def test_a_caller_that_falls_silent() -> None:
    """As one whose machine has lost its power, or that was stopped."""
    async with tormented(timeouts=IMPATIENT) as house:
        peer = await RawPeer.connect(house.address)
        await peer.greet()
        await peer.call(1, "/t.T/wait")
        frame = await peer.frame()
        assert frame is not None and frame.kind == FrameKind.PING
        assert await peer.is_closed()
        assert house.server._running == 1  # a handler runs to its end
        house.go.set()


async def test_a_caller_that_answers_pings() -> None:
    async with tormented(timeouts=IMPATIENT) as house:
        peer = await RawPeer.connect(house.address)
        await peer.greet()
        for _ in range(4):
            frame = await peer.frame()
            assert frame is not None and frame.kind == FrameKind.PING
            await peer.send(PONG)
        await peer.call(1, "/t.T/echo", b"x")
        frame = await peer.frame()
        assert frame is not None and frame.body == b"x"
        await peer.send(PING)
        frame = await peer.frame()
        assert frame is not None and frame.kind == FrameKind.PONG
        peer.socket.close()


async def test_a_caller_that_only_takes_a_large_answer() -> None:
    """It says nothing for long, and is not silent."""
    async with tormented(timeouts=IMPATIENT) as house:
        peer = await RawPeer.connect(house.address, receive_buffer_bytes=256 << 10)
        await peer.greet()
        for call_id in range(1, 25):
            await peer.call(call_id, "/t.T/bulk")
        loop = asyncio.get_running_loop()
        slept_s, received_bytes = 0.0, 0
        while received_bytes < 24 * MIB:
            received_bytes += len(await loop.sock_recv(peer.socket, 512 << 10))
            if slept_s < 4 * SILENCE_S:
                slept_s += 0.05
                await asyncio.sleep(0.05)
        assert slept_s >= 4 * SILENCE_S
        peer.socket.close()


async def test_a_message_that_arrives_slowly_but_does() -> None:
    """A second more is allowed for each MiB of it."""
    async with tormented(timeouts=replace(IMPATIENT, message_within_s=0.0)) as house:
        peer = await RawPeer.connect(house.address)
        await peer.greet()
        whole = call_head(1, "/t.T/echo", 3 * MIB) + bytes(3 * MIB)
        for part in range(10):
            await peer.send(whole[part * len(whole) // 10 : (part + 1) * len(whole) // 10])
            await asyncio.sleep(0.1)
        frame = await peer.frame()
        assert frame is not None and len(frame.body) == 3 * MIB
        peer.socket.close()


@pytest.mark.parametrize("greets", [False, True])
async def test_a_server_that_is_silent(greets: bool) -> None:
    """As one that was stopped: its kernel still accepts connections."""
    listener = RawListener()
    net = NativeNet(timeouts=IMPATIENT)
    call = asyncio.ensure_future(net.call(listener.address, "/t.T/echo", b"", timeout_s=30))
    stream = net.open_stream(listener.address, "/t.T/idle")
    reading = asyncio.ensure_future(stream.read())
    if greets:
        for _ in range(2):
            await (await listener.accept()).greet()
    for waiting in (call, reading):
        with pytest.raises(UnavailableError, match="silent"):
            async with asyncio.timeout(8 * SILENCE_S):
                await waiting
    assert not net._keys and not net._streams
    await net.close()
    listener.close()


async def test_a_server_of_another_kind() -> None:
    listener = RawListener()
    net = NativeNet(timeouts=IMPATIENT)
    call = asyncio.ensure_future(net.call(listener.address, "/t.T/echo", b"", timeout_s=30))
    peer = await listener.accept()
    await peer.send(b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n")
    with pytest.raises(UnavailableError, match="does not speak our native protocol"):
        await call
    await net.close()
    listener.close()


async def test_a_server_that_closes_at_once() -> None:
    listener = RawListener()
    net = NativeNet()
    for is_reset in (False, True):
        call = asyncio.ensure_future(net.call(listener.address, "/t.T/echo", b"", timeout_s=30))
        peer = await listener.accept()
        peer.reset() if is_reset else peer.socket.close()
        async with asyncio.timeout(5):
            with pytest.raises(UnavailableError):
                await call
    await net.close()
    listener.close()


async def test_a_paused_stream_whose_peer_has_gone() -> None:
    """It is not read, and still it is noticed soon."""
    async with tormented(timeouts=IMPATIENT) as house:
        peer = await RawPeer.connect(house.address)
        await peer.greet()
        await peer.send(pack_head(FrameKind.OPEN, 0, b"/t.T/idle", 0))

        async def write() -> None:
            for _ in range(40):
                await peer.send(pack_head(FrameKind.DATA, 0, b"", MIB), bytes(MIB))

        writing = asyncio.ensure_future(write())
        await until(lambda: house.streams and house.streams[0]._connection._is_paused)
        writing.cancel()
        peer.socket.shutdown(socket.SHUT_RDWR)
        peer.socket.close()
        await until(lambda: "connections" not in house.held())
        house.go.set()
