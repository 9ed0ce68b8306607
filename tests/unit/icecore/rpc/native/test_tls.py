"""TLS under the native transport: who speaks it with whom, who they are, who gives up when."""

import asyncio
import logging
import random
import socket
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from icecore.errors import ConfigurationError, UnavailableError
from icecore.rpc.native.connection import Timeouts
from icecore.rpc.native.net import NativeNet
from icecore.rpc.native.server import NativeServer
from icecore.rpc.native.tls import TlsSocket, TransportSecurity, offer_ktls, shake_hands
from icecore.rpc.ports import Body, CallContext, Handlers, Received, ServerStream
from tests.support.certificates import (
    CLIENT_NAME,
    client_context,
    security,
    server_context,
)
from tests.support.waiting import until

QUICK = Timeouts(check_every_s=0.05, hello_within_s=0.3)


async def name(body: Received, context: CallContext) -> Body:
    return context.principal.encode()


async def name_on_stream(stream: ServerStream, context: CallContext) -> None:
    await stream.write(context.principal.encode())


HANDLERS = Handlers({"/t.T/name": name}, {"/t.T/names": name_on_stream})


@asynccontextmanager
async def served(secure: TransportSecurity | None) -> AsyncIterator[NativeServer]:
    net = NativeNet(security=secure, timeouts=QUICK)
    server = await net.serve("127.0.0.1:0", HANDLERS)
    yield server
    await server.stop(0)
    await net.close()
    assert not server.acceptor._shaking and not server._peers


async def ask(server: NativeServer, secure: TransportSecurity | None) -> str:
    net = NativeNet(security=secure, timeouts=QUICK)
    try:
        return bytes(await net.call(server.address, "/t.T/name", b"", timeout_s=5)).decode()
    finally:
        await net.close()


async def test_the_certificate_says_who_calls() -> None:
    async with served(security()) as server:
        assert await ask(server, security()) == CLIENT_NAME
        net = NativeNet(security=security())
        stream = net.open_stream(server.address, "/t.T/names")
        assert await stream.read() == CLIENT_NAME.encode()
        await net.close()


async def test_who_shows_no_certificate_is_anonymous() -> None:
    async with served(TransportSecurity(server=server_context(asks=False))) as server:
        assert await ask(server, TransportSecurity(client=client_context(None))) == "anonymous"
        assert await ask(server, TransportSecurity(client=client_context())) == "anonymous"


@pytest.mark.parametrize("who", [None, "stranger"])
async def test_callers_that_the_authority_does_not_know(who: str | None) -> None:
    async with served(security()) as server:
        with pytest.raises(UnavailableError, match=r"(?i)certificate|alert|broke|closed"):
            await ask(server, TransportSecurity(client=client_context(who)))
        assert await ask(server, security()) == CLIENT_NAME


async def test_a_server_that_the_authority_does_not_know() -> None:
    async with served(TransportSecurity(server=server_context("stranger"))) as server:
        with pytest.raises(UnavailableError, match="certificate is not good: self"):
            await ask(server, security())


async def test_a_server_with_another_name() -> None:
    async with served(TransportSecurity(server=server_context("client"))) as server:
        with pytest.raises(UnavailableError, match="certificate is not good"):
            await ask(server, security())


async def test_a_plain_client_at_a_port_with_tls(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with served(security()) as server:
        with pytest.raises(UnavailableError, match="does it expect TLS"):
            await ask(server, None)
        await until(lambda: "does not speak TLS" in caplog.text)
        assert "handshake_failed" in caplog.text
        assert await ask(server, security()) == CLIENT_NAME


async def test_a_client_with_tls_at_a_plain_port() -> None:
    async with served(None) as server:
        with pytest.raises(UnavailableError, match="does not speak TLS"):
            await ask(server, security())
        assert await ask(server, None) == "anonymous"


async def test_a_handshake_that_never_ends(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with served(security()) as server:
        host, _, port = server.address.rpartition(":")
        silent = socket.create_connection((host, int(port)))
        await until(lambda: len(server.acceptor._shaking) == 1)
        assert await ask(server, security()) == CLIENT_NAME
        await until(lambda: "in time" in caplog.text)
        await until(lambda: not server.acceptor._shaking)
        silent.setblocking(False)
        assert await asyncio.get_running_loop().sock_recv(silent, 10) == b""
        silent.close()


async def test_a_server_that_never_answers_the_handshake() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        host, port = listener.getsockname()
        net = NativeNet(security=security(), timeouts=QUICK)
        with pytest.raises(UnavailableError, match="handshake in time"):
            await net.call(f"{host}:{port}", "/t.T/name", b"", timeout_s=5)
        await net.close()


async def test_a_stop_gives_up_handshakes() -> None:
    async with served(security()) as server:
        host, _, port = server.address.rpartition(":")
        with socket.create_connection((host, int(port))):
            await until(lambda: len(server.acceptor._shaking) == 1)
            async with asyncio.timeout(0.2):
                await server.stop(5)


async def test_only_the_newest_tls() -> None:
    old = client_context()
    old.minimum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ConfigurationError, match=r"TLS 1\.3"):
        TransportSecurity(client=old)
    async with served(security()) as server:
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        host, _, port = server.address.rpartition(":")
        loop, sock = asyncio.get_running_loop(), socket.socket()
        sock.setblocking(False)
        await loop.sock_connect(sock, (host, int(port)))
        with pytest.raises(OSError, match="TLS"):
            await shake_hands(sock, old, 5, host)


async def test_beyond_loopback_with_tls_only() -> None:
    with pytest.raises(ConfigurationError):
        await NativeNet().serve("0.0.0.0:0", HANDLERS)
    net = NativeNet(security=security())
    server = await net.serve("0.0.0.0:0", HANDLERS)
    await server.stop(0)
    await net.close()


def test_ktls_is_asked_for_where_python_can() -> None:
    context = client_context()
    assert offer_ktls(context) == (sys.version_info >= (3, 12))


async def pair(buffer_bytes: int) -> tuple[TlsSocket, TlsSocket]:
    """Both ends of a connection whose kernel buffers are small."""
    one, other = socket.socketpair()
    for each in (one, other):
        each.setblocking(False)
        each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer_bytes)
    client, server = await asyncio.gather(
        shake_hands(one, client_context(), 5, "127.0.0.1"),
        shake_hands(other, server_context(), 5),
    )
    return client, server


@pytest.mark.parametrize("seed", range(20))
async def test_any_pieces_arrive_in_order(seed: int) -> None:
    rng = random.Random(seed)
    client, server = await pair(1 << 12)
    sizes = [rng.choice((0, 1, 100, 5_000, 16_384, 40_000, 300_000)) for _ in range(20)]
    whole = rng.randbytes(sum(sizes))
    received, sent = bytearray(), 0
    while len(received) < len(whole):
        left = memoryview(whole)[sent:]
        buffers, at, most = [], 0, rng.choice((1, 2, 50))
        while at < len(left) and len(buffers) < most:  # cut anew each time, as an outbox is
            size = rng.choice((1, 152, 4_000, 60_000))
            buffers.append(left[at : at + size])
            at += size
        if buffers:
            with suppress(BlockingIOError):
                sent += client.sendmsg(buffers)
        targets = [memoryview(bytearray(rng.choice((1, 7, 20_000)))) for _ in range(2)]
        try:
            count, _ = server.recvmsg_into(targets)
        except BlockingIOError:
            continue
        received += b"".join(targets)[:count]
    assert received == whole
    client.close()
    with suppress(ConnectionResetError):  # Python 3.13 says that a session ticket was not read
        assert server.recv_into(memoryview(bytearray(1))) == 0
    server.close()
