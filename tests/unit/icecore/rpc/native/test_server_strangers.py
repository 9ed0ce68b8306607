"""Peers that speak another language, or ours with bad manners: each is shown out, nobody else."""

import asyncio
import random
import socket
import struct

import pytest

from icecore.errors import UnsupportedError
from icecore.rpc.native.connection import Timeouts
from icecore.rpc.native.frame import FrameKind, pack_head, pack_hello
from tests.support.native_peer import IMPATIENT, MIB, RawPeer, call_head, tormented
from tests.support.waiting import until

TLS_HELLO = bytes.fromhex("1603010200010001fc0303") + bytes(60)
NO_TIMEOUTS = Timeouts(hello_within_s=60, message_within_s=60)
OTHER_VERSION = pack_head(FrameKind.HELLO, 0, struct.pack("<4sHI", b"icec", 1, 0), 0)
OTHER_MAGIC = pack_head(FrameKind.HELLO, 0, struct.pack("<4sHI", b"iced", 1, 0), 0)
OPEN = pack_head(FrameKind.OPEN, 0, b"/t.T/idle", 0)
CALL = call_head(1, "/t.T/wait", 0)


@pytest.mark.parametrize(
    "said",
    [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        TLS_HELLO,
        bytes(100),
        random.Random(1).randbytes(500),
        OTHER_VERSION,
        OTHER_MAGIC,
        CALL,
        call_head(1, "/t.T/echo", 64 * MIB),
        pack_hello() + pack_hello(),
        pack_hello() + CALL + pack_hello(),
        pack_hello() + random.Random(2).randbytes(500),
        pack_hello() + pack_head(FrameKind.CALL, 1, b"123", 0),
        pack_hello() + pack_head(FrameKind.ANSWER, 1, b"", 0),
        pack_hello() + pack_head(FrameKind.ERROR, 1, b"", 20_000) + bytes(20_000),
        pack_hello() + pack_head(FrameKind.DATA, 0, b"", 0),
        pack_hello() + pack_head(FrameKind.END, 0, b"", 0),
        pack_hello() + struct.pack("<IIHBBI", 64 * MIB + 1, 1, 0, FrameKind.CALL, 0, 0),
        pack_hello() + OPEN + OPEN,
        pack_hello() + OPEN + CALL,
        pack_hello() + OPEN + pack_head(FrameKind.END, 0, b"", 0),
    ],
)
async def test_strangers(said: bytes) -> None:
    async with tormented(timeouts=NO_TIMEOUTS) as house:
        peer = await RawPeer.connect(house.address)
        await peer.send(said)
        assert await peer.is_closed()  # at once, not when some time is over
        assert house.server._receiving_bytes == 0
        house.go.set()
        await house.nothing_is_held()


async def test_noise_after_a_hello() -> None:
    """Whatever it is, it ends: in a broken connection or in a message that never ends."""
    async with tormented(timeouts=IMPATIENT) as house:
        for seed in range(20):
            peer = await RawPeer.connect(house.address)
            rng = random.Random(seed)
            await peer.send(pack_hello(), CALL, rng.randbytes(rng.randrange(1, 3000)))
            assert await peer.is_closed()
        house.go.set()


async def test_nobody_says_hello() -> None:
    async with tormented(timeouts=IMPATIENT) as house:
        peers = [await RawPeer.connect(house.address) for _ in range(20)]
        await peers[0].send(pack_hello()[:-1])
        await house.neighbour_is_served()
        for peer in peers:
            assert await peer.is_closed()


async def test_a_message_byte_by_byte() -> None:
    """It is never silent, and still the message has to end."""
    async with tormented(timeouts=IMPATIENT) as house:
        peer = await RawPeer.connect(house.address)
        await peer.greet()
        head = call_head(1, "/t.T/echo", 100)
        sent = 0
        try:
            async with asyncio.timeout(5):
                while True:
                    await peer.send((head + bytes(100))[sent : sent + 1])
                    sent += 1
                    await asyncio.sleep(0.02)
        except ConnectionError:
            peer.socket.close()
        assert 15 < sent < 100


@pytest.mark.parametrize("body_bytes", [1000, 3 * MIB])
async def test_a_message_that_never_ends(body_bytes: int) -> None:
    async with tormented(timeouts=IMPATIENT) as house:
        peer = await RawPeer.connect(house.address)
        await peer.greet()
        await peer.send(call_head(1, "/t.T/echo", body_bytes), bytes(body_bytes - 1))
        assert await peer.is_closed()
        assert house.started == 1  # the neighbour's


async def test_half_closed() -> None:
    """A peer that has finished sending counts as gone: its handlers run on, their answers are
    dropped."""
    async with tormented() as house:
        peer = await RawPeer.connect(house.address)
        await peer.greet()
        await peer.call(1, "/t.T/wait", bytes(MIB))
        peer.socket.shutdown(socket.SHUT_WR)
        assert await peer.is_closed()
        assert house.server._running == 1
        house.go.set()
        await house.nothing_is_held()
        assert house.finished == 1


async def test_reset_in_the_middle_of_a_body() -> None:
    async with tormented() as house:
        for size_bytes in (0, 1, 100_000, 2 * MIB):
            peer = await RawPeer.connect(house.address)
            await peer.greet()
            await peer.send(call_head(1, "/t.T/echo", 3 * MIB), bytes(size_bytes))
            if size_bytes:
                await until(lambda: house.server._receiving_bytes)
            peer.reset()
            await house.nothing_is_held()
        assert house.started == 1


async def test_reset_under_a_call_and_a_stream() -> None:
    async with tormented() as house:
        caller, streamer = [await RawPeer.connect(house.address) for _ in range(2)]
        await caller.greet()
        await caller.call(1, "/t.T/wait")
        await streamer.greet()
        await streamer.send(OPEN, pack_head(FrameKind.DATA, 0, b"", 5), b"hello")
        await until(lambda: house.started == 2 and house.streams)
        caller.reset()
        streamer.reset()
        await until(lambda: "connections" not in house.held())
        house.go.set()


async def test_a_stream_that_nobody_serves() -> None:
    """Messages that are written to it meanwhile do not drown the reason."""
    async with tormented() as house:
        peer = await RawPeer.connect(house.address)
        await peer.greet()
        await peer.send(pack_head(FrameKind.OPEN, 0, b"/t.T/unheard_of", 0))
        for _ in range(20):
            await peer.send(pack_head(FrameKind.DATA, 0, b"", MIB), bytes(MIB))
        call_id, error = await peer.error()
        assert call_id == 0 and isinstance(error, UnsupportedError)
        peer.socket.close()


async def test_a_handler_that_answers_nonsense(caplog: pytest.LogCaptureFixture) -> None:
    async with tormented() as house:
        peer = await RawPeer.connect(house.address)
        await peer.greet()
        await peer.call(1, "/t.T/nonsense")
        call_id, error = await peer.error()
        assert call_id == 1 and error.reason == "INTERNAL"
        assert "TypeError" in caplog.text
        peer.socket.close()
