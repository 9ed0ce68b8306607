"""The program behind a port is told from the first words, without waiting for an answer."""

import asyncio
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Thread

import pytest

from icecore.errors import UnavailableError, UnsupportedError
from icecore.rpc.addresses import NATIVE
from icecore.rpc.knocking import knock, stranger
from icecore.rpc.native.frame import pack_hello
from icecore.rpc.ports import Handlers
from icecore.rpc.transports import Transports

SETTINGS = bytes.fromhex("000018040000000000")
ALERT = bytes.fromhex("15030100020246")


@pytest.mark.parametrize(
    ("said", "of_grpc", "of_native"),
    [
        (SETTINGS, "", "write the address without native://"),
        (pack_hello(), "write native://", ""),
        (b"HTTP/1.1 400 Bad Request\r\n", "an HTTP server", "an HTTP server"),
        (b"<!DOCTYPE HTML>\n<html>", "an HTTP server", "an HTTP server"),
        (ALERT, "expects TLS", "expects TLS"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "SSH-2.0", "SSH-2.0"),
        (b"-ERR unknown command\r\n", "ERR unknown", "ERR unknown"),
        (b"\0", "no server of icecore", "no server of icecore"),
    ],
)
def test_first_words_tell_who_it_is(said: bytes, of_grpc: str, of_native: str) -> None:
    for is_native, words in ((False, of_grpc), (True, of_native)):
        found = stranger(said, is_native=is_native)
        assert words in found
        assert bool(found) == bool(words)


@contextmanager
def listening(serve: Callable[[socket.socket], object]) -> Iterator[str]:
    """One connection is served so."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def run() -> None:
            with listener.accept()[0] as sock:
                serve(sock)

        thread = Thread(target=run, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        thread.join(5)


def test_a_silent_port_is_told_soon() -> None:
    began_s = time.monotonic()
    with (
        listening(lambda sock: [sock.recv(99), sock.recv(99)]) as address,
        pytest.raises(UnavailableError, match=f"{address} takes connections and says nothing"),
    ):
        knock(address, 5, 0.1)
    assert time.monotonic() - began_s < 2


def test_who_hangs_up_and_who_is_not_there() -> None:
    with (
        listening(lambda sock: sock.close()) as address,
        pytest.raises(UnavailableError, match="closes each connection at once"),
    ):
        knock(address, 5, 5)
    with pytest.raises(UnavailableError, match=f"can't connect to {address}: Connection refused"):
        knock(address, 5, 5)


def test_words_that_come_in_pieces() -> None:
    def serve(sock: socket.socket) -> None:
        for each in (b"HT", b"TP/1.0 505"):
            sock.sendall(each)
            time.sleep(0.05)

    with listening(serve) as address, pytest.raises(UnsupportedError, match="an HTTP server"):
        knock(address, 5, 5)


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
@pytest.mark.parametrize("scheme", ["", NATIVE])
async def test_our_own_servers_greet(scheme: str, host: str) -> None:
    net = Transports()
    server = await net.serve(f"{scheme}{host}:0", Handlers({}, {}))
    try:
        await asyncio.to_thread(knock, scheme + server.address, 5, 5)
        other = NATIVE if not scheme else ""
        with pytest.raises(UnsupportedError, match="native://"):
            await asyncio.to_thread(knock, other + server.address, 5, 5)
    finally:
        await server.stop(0)
        await net.close()
