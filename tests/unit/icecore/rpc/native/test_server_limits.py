"""A server bounds what it holds for its callers, and serves those within their share meanwhile."""

import asyncio
import errno
import logging
import os
import resource
import socket

import pytest

from icecore.errors import ThrottledError, UnavailableError, UnsupportedError
from icecore.rpc.native.connection import UNSENT_HIGH_BYTES, Timeouts
from icecore.rpc.native.frame import Call, FrameKind, pack_head
from icecore.rpc.native.net import NativeNet
from icecore.rpc.native.server import ServerLimits
from icecore.rpc.native.stream import UNREAD_HIGH_BYTES
from tests.support.native_peer import IMPATIENT, MIB, RawPeer, Tormented, call_head, tormented
from tests.support.waiting import until

KEEN = Timeouts(check_every_s=0.05, ping_after_s=0.3, pong_within_s=0.3)
"""To hear something, but not to have answers taken."""


async def ask_for_bulk(house: Tormented, peer: RawPeer, calls: int) -> None:
    """One by one, because what arrives together is begun together; until it is throttled."""
    await peer.greet()
    started = house.started

    def is_handled() -> bool:
        return house.connection_of(peer)._is_paused or house.started == started

    for call_id in range(1, calls + 1):
        if house.server._why_not(Call(1, b"/t.T/bulk", None)) is not None:
            return
        started += 1
        await peer.call(call_id, "/t.T/bulk")
        await until(is_handled)


async def test_a_caller_that_takes_no_answers_is_read_no_more() -> None:
    async with tormented(timeouts=KEEN) as house:
        peer = await RawPeer.connect(house.address)
        await ask_for_bulk(house, peer, 100)
        await until(lambda: house.held().get("unsent_bytes", 0) > UNSENT_HIGH_BYTES)
        await asyncio.sleep(1)  # twice as long as a peer may be silent
        held = house.held()
        assert held["connections"] == 1
        assert held["unsent_bytes"] <= UNSENT_HIGH_BYTES + 2 * MIB
        assert house.started < 40
        await house.neighbour_is_served()
        answered = set()
        for _ in range(100):  # when it reads after all, it is answered
            frame = await peer.frame()
            assert frame is not None and len(frame.body) == MIB
            answered.add(frame.call_id)
        assert answered == set(range(1, 101))
        await until(lambda: "unsent_bytes" not in house.held())
        peer.socket.close()


async def test_answers_that_nobody_takes_throttle_their_method() -> None:
    limits = ServerLimits(answers_bytes_max=8 * MIB)
    async with tormented(limits) as house:
        peers = [await RawPeer.connect(house.address) for _ in range(4)]
        for peer in peers:
            await ask_for_bulk(house, peer, 20)
        await until(lambda: house.held().get("unsent_bytes", 0) > 8 * MIB)
        with pytest.raises(ThrottledError):
            await house.neighbour.call(house.address, "/t.T/bulk", b"", timeout_s=5)
        await house.neighbour_is_served()
        for peer in peers:
            peer.reset()
        await until(lambda: not house.held())
        assert len(await house.neighbour.call(house.address, "/t.T/bulk", b"", timeout_s=5)) == MIB


async def test_small_answers_that_nobody_takes_count_as_well() -> None:
    """None of these connections has enough of them to be held up."""
    limits = ServerLimits(answers_bytes_max=2 * MIB)
    async with tormented(limits) as house:
        peers = [await RawPeer.connect(house.address) for _ in range(8)]
        for peer in peers:
            await ask_for_bulk(house, peer, 6)
        await until(lambda: house.held().get("unsent_bytes", 0) > 2 * MIB)
        with pytest.raises(ThrottledError):
            await house.neighbour.call(house.address, "/t.T/bulk", b"", timeout_s=5)
        for peer in peers:
            peer.socket.close()


async def test_who_takes_no_answers_for_long_is_lost() -> None:
    async with tormented(timeouts=IMPATIENT) as house:
        peer = await RawPeer.connect(house.address)
        await ask_for_bulk(house, peer, 30)
        await until(lambda: house.held().get("unsent_bytes", 0) > UNSENT_HIGH_BYTES)
        await house.nothing_is_held()
        peer.socket.close()


async def test_refusals_that_nobody_takes_do_not_grow() -> None:
    async with tormented() as house:
        peer = await RawPeer.connect(house.address, receive_buffer_bytes=4096)
        await peer.greet()
        call = call_head(1, "/t.T/" + "x" * 900, 0)

        async def flood() -> None:
            for _ in range(200):
                await peer.send(call * 100)

        flooding = asyncio.ensure_future(flood())
        await until(lambda: house.held().get("unsent_bytes", 0) > UNSENT_HIGH_BYTES, 20)
        await asyncio.sleep(0.3)
        assert house.held()["unsent_bytes"] < UNSENT_HIGH_BYTES + 2 * MIB
        assert not flooding.done()
        await house.neighbour_is_served()
        flooding.cancel()
        peer.reset()


async def test_pongs_that_nobody_takes_do_not_grow() -> None:
    async with tormented() as house:
        peer = await RawPeer.connect(house.address, receive_buffer_bytes=4096)
        await peer.greet()
        await house.neighbour_is_served()
        for _ in range(50):
            await peer.send(pack_head(FrameKind.PING, 0, b"", 0) * 5000)
            assert house.connection_of(peer).unsent_bytes <= 16
        peer.reset()


async def test_requests_that_are_being_received() -> None:
    limits = ServerLimits(receiving_bytes_max=4 * MIB)
    async with tormented(limits) as house:
        first, second = [await RawPeer.connect(house.address) for _ in range(2)]
        for peer in (first, second):
            await peer.greet()
        await first.send(call_head(1, "/t.T/echo", 3 * MIB), bytes(MIB))
        await until(lambda: house.server._receiving_bytes == 3 * MIB)
        await second.send(call_head(1, "/t.T/echo", 3 * MIB), bytes(MIB))
        call_id, error = await second.error()  # although most of the body is still to come
        assert call_id == 1 and isinstance(error, ThrottledError)
        assert error.metadata["retry_after_ms"] == "50"
        assert house.server._receiving_bytes == 3 * MIB
        await second.send(bytes(2 * MIB), call_head(2, "/t.T/echo", 1), b"x")
        frame = await second.frame()  # still in step
        assert frame is not None and (frame.call_id, frame.body) == (2, b"x")
        await first.send(bytes(2 * MIB))
        frame = await first.frame()
        assert frame is not None and len(frame.body) == 3 * MIB
        first.socket.close()
        second.socket.close()


async def test_requests_one_right_behind_the_other_are_all_counted() -> None:
    async with tormented() as house:
        peer = await RawPeer.connect(house.address)
        await peer.greet()
        whole = call_head(1, "/t.T/wait", MIB) + bytes(MIB)
        small = call_head(2, "/t.T/wait", 5) + bytes(5)
        await peer.send(whole, small, small, whole[: MIB // 2])
        await until(lambda: house.started == 4)
        await until(lambda: house.server._receiving_bytes == MIB)
        await peer.send(whole[MIB // 2 :], small)
        await until(lambda: house.server._receiving_bytes == 0 and house.started == 6)
        peer.socket.close()


@pytest.mark.parametrize("method", ["/t.T/echo", "/t.T/unheard_of"])
async def test_a_refused_call_takes_no_memory_for_its_body(method: str) -> None:
    async with tormented(ServerLimits(calls_max=1)) as house:
        peer = await RawPeer.connect(house.address)
        await peer.greet()
        await peer.call(1, "/t.T/wait")
        await until(lambda: house.started == 2)
        await peer.send(call_head(2, method, 5 * MIB), bytes(MIB))
        call_id, error = await peer.error()
        assert call_id == 2 and isinstance(error, ThrottledError | UnsupportedError)
        assert house.server._receiving_bytes == 0
        await peer.send(bytes(4 * MIB), pack_head(FrameKind.PING, 0, b"", 0))
        frame = await peer.frame()
        assert frame is not None and frame.kind == FrameKind.PONG
        peer.socket.close()
        house.go.set()
        await house.nothing_is_held()


async def test_a_stream_that_nobody_reads() -> None:
    async with tormented(timeouts=KEEN) as house:
        peer = await RawPeer.connect(house.address)
        await peer.greet()
        await peer.send(pack_head(FrameKind.OPEN, 0, b"/t.T/idle", 0))

        async def write() -> None:
            for _ in range(40):
                await peer.send(pack_head(FrameKind.DATA, 0, b"", MIB), bytes(MIB))

        writing = asyncio.ensure_future(write())
        await until(lambda: house.streams)
        stream = house.streams[0]
        await until(lambda: stream._unread_bytes > UNREAD_HIGH_BYTES)
        await asyncio.sleep(1)
        assert not writing.done()
        assert stream._unread_bytes <= UNREAD_HIGH_BYTES + MIB
        house.go.set()  # its handler returns: nobody will read the rest, which holds up nobody
        await writing
        assert stream._unread_bytes == 0
        kinds = []
        while (frame := await peer.frame()) is not None and frame.kind != FrameKind.END:
            kinds.append(frame.kind)
        assert frame is not None and set(kinds) <= {FrameKind.PONG}
        peer.socket.close()


async def test_connections_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    async with tormented(ServerLimits(connections_max=3)) as house:
        peers = [await RawPeer.connect(house.address) for _ in range(2)]
        for peer in peers:
            await peer.greet()
        late = NativeNet()
        for _ in range(3):
            with pytest.raises(UnavailableError):
                await late.call(house.address, "/t.T/echo", b"", timeout_s=5)
        assert "event=connection_refused" in caplog.text
        await house.neighbour_is_served()
        for peer in peers:
            peer.socket.close()
        await house.nothing_is_held()
        assert await late.call(house.address, "/t.T/echo", b"x", timeout_s=5) == b"x"
        await late.close()


async def test_no_descriptor_for_another_connection(caplog: pytest.LogCaptureFixture) -> None:
    """The server does not spin meanwhile, and accepts who waited when there is one again."""
    async with tormented() as house:
        waiting = RawPeer(socket.socket())
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 512), hard))
        held: list[int] = []
        try:
            while True:
                held.append(os.dup(waiting.socket.fileno()))
        except OSError as error:
            assert error.errno == errno.EMFILE
        try:
            with caplog.at_level(logging.WARNING):
                host, _, port = house.address.rpartition(":")
                loop = asyncio.get_running_loop()
                await loop.sock_connect(waiting.socket, (host, int(port)))
                await house.neighbour_is_served()
                await asyncio.sleep(0.35)
                await house.neighbour_is_served()
            failed = [each for each in caplog.messages if "accept_failed" in each]
            assert 1 <= len(failed) <= 5
        finally:
            for descriptor in held:
                os.close(descriptor)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        await waiting.greet()
        await waiting.call(1, "/t.T/echo", b"x")
        frame = await waiting.frame()
        assert frame is not None and frame.body == b"x"
        waiting.socket.close()


async def test_a_stop_while_there_is_no_descriptor() -> None:
    """As it is between two attempts to accept; the server is stopped on the way out."""
    async with tormented() as house:
        server = house.server
        server.acceptor.rest(60)
