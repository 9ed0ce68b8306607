"""Peers whose host vanishes are noticed within seconds, and those that only read nothing stay."""

import asyncio
import ctypes
import errno
import socket
import struct
import sys
import time
from unittest import mock

import pytest

from icecore.errors import UnavailableError
from icecore.rpc.native.connection import Timeouts
from icecore.rpc.native.frame import FrameKind, pack_head
from icecore.rpc.native.net import NativeNet, _first_that_connects, _listener, _numeric
from icecore.rpc.native.sockets import is_host_silent, prepare, spare_pacing
from icecore.rpc.native.stream import UNREAD_HIGH_BYTES
from tests.support.native_peer import IMPATIENT, MIB, RawListener, RawPeer, tormented
from tests.support.waiting import until

SO_ATTACH_FILTER = 26
DROP_ALL = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0))
"""A socket filter of one instruction: whatever arrives is cut to nothing."""

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems tell less")


def vanish(sock: socket.socket) -> None:
    """Nothing reaches this socket any more, so nothing is acknowledged: its host seems gone."""
    program = struct.pack("HL", 1, ctypes.addressof(DROP_ALL))
    sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)


def connected() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        other, _ = listener.accept()
    prepare(one)
    return one, other


async def test_hosts_that_vanish_and_peers_that_stall() -> None:
    """Together, for each takes seconds."""
    idle, gone = connected()
    busy, gone_too = connected()
    patient, stalled = connected()
    late, gone_late = connected()
    late.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 0)
    vanish(gone)
    vanish(gone_too)
    busy.send(b"never acknowledged")
    for _ in range(100):
        try:
            patient.send(bytes(MIB))
        except BlockingIOError:
            break
    began_s = time.monotonic()
    with pytest.raises(OSError) as caught:
        await asyncio.get_running_loop().sock_recv(idle, 1)
    assert caught.value.errno == errno.ETIMEDOUT
    assert time.monotonic() - began_s < 4.5
    await until(lambda: is_host_silent(busy.fileno()), 3)
    assert not is_host_silent(patient.fileno())
    assert time.monotonic() - began_s > 2.9
    vanish(gone_late)
    late.send(b"the first word after a long silence")
    assert not is_host_silent(late.fileno())
    for each in (idle, gone, busy, gone_too, patient, stalled, late, gone_late):
        each.close()


async def test_a_stream_that_is_not_read_ends_when_its_host_vanishes() -> None:
    async with tormented(timeouts=IMPATIENT) as house:
        peer = await RawPeer.connect(house.address)
        await peer.greet()
        await peer.send(pack_head(FrameKind.OPEN, 0, b"/t.T/idle", 0))
        message = pack_head(FrameKind.DATA, 0, b"", MIB) + bytes(MIB)
        for _ in range(UNREAD_HIGH_BYTES // MIB + 1):
            await peer.send(message)
        connection = house.connection_of(peer)
        await until(lambda: connection._is_paused)
        await asyncio.sleep(1)  # longer than IMPATIENT allows a peer that is read
        assert not connection.is_lost
        vanish(peer.socket)
        await until(lambda: connection.is_lost, 8)
        assert "host does not answer" in connection.why_lost
        house.go.set()
        peer.socket.close()


async def test_who_is_waited_for_is_asked_soon() -> None:
    """And who is not costs nothing meanwhile."""
    listener, net, loop = RawListener(), NativeNet(), asyncio.get_running_loop()
    call = asyncio.ensure_future(net.call(listener.address, "/t.T/a", b"", timeout_s=30))
    idle = asyncio.ensure_future(
        net.call(listener.address, "/icecore.v1.DataService/Fetch", b"", timeout_s=30)
    )
    peers = [await listener.accept() for _ in range(2)]
    for peer in peers:
        await peer.greet()
    calls = [await peer.frame() for peer in peers]
    fetches = next(
        at for at, each in enumerate(calls) if each is not None and b"Fetch" in each.meta
    )
    await peers[fetches].send(pack_head(FrameKind.ANSWER, 1, b"", 0))
    assert await idle == b""
    began_s = loop.time()
    with pytest.raises(UnavailableError, match="silent"):
        await call
    assert loop.time() - began_s < 3.5
    asked = await peers[1 - fetches].frame()
    assert asked is not None and asked.kind == FrameKind.PING
    assert not peers[fetches].has_more()
    await net.close()
    listener.close()


def test_how_long_a_peer_may_be_silent() -> None:
    timeouts = Timeouts()
    asked_s = timeouts.awaited_ping_after_s + timeouts.check_every_s
    assert asked_s + timeouts.pong_within_s <= 3


async def test_an_address_in_numbers_is_looked_up_nowhere() -> None:
    """A name server, or a slow disk with its files, must not keep a connection waiting."""
    loop = asyncio.get_running_loop()
    async with tormented() as house:
        net = NativeNet()
        with mock.patch.object(loop, "getaddrinfo", side_effect=AssertionError("looked up")):
            assert await net.call(house.address, "/t.T/echo", b"x", timeout_s=5) == b"x"
        await net.close()
    assert _numeric("::1", 7) == [
        (socket.AF_INET6, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("::1", 7, 0, 0))
    ]
    assert _numeric("localhost", 7) == _numeric("1.2.3", 7) == []


def congestion_control(sock: socket.socket) -> bytes:
    name = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
    return name.partition(b"\0")[0]


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1"])
async def test_no_segment_waits_for_a_timer_within_a_host(host: str) -> None:
    with _listener(host, 0) as listener:
        where = listener.getsockname()
        family = listener.family
        one = await _first_that_connects([(family, socket.SOCK_STREAM, 0, "", where)])
        other, _ = listener.accept()
        with one, other:
            assert congestion_control(one) == congestion_control(other) == b"reno"


@pytest.mark.parametrize("host", ["192.0.2.1", "0.0.0.0", "2001:db8::1", "fe80::1%2"])
def test_what_crosses_a_network_is_as_the_system_has_it(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as sock:
        before = congestion_control(sock)
        with mock.patch.object(socket.socket, "setsockopt") as setsockopt:
            spare_pacing(sock, host)
        assert not setsockopt.called
        assert congestion_control(sock) == before


def test_a_kernel_without_that_control_does_with_its_own() -> None:
    with socket.socket() as sock:
        refusal = OSError(errno.ENOENT, "no such module")
        with mock.patch.object(socket.socket, "setsockopt", side_effect=refusal):
            spare_pacing(sock, "127.0.0.1")
