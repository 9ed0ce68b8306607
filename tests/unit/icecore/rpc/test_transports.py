"""Both transports behind one port: the address chooses, for servers as for calls."""

import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator

import pytest

from icecore.errors import ConfigurationError, UnavailableError
from icecore.rpc.ports import CallContext, Handlers, Received, ServerStream
from icecore.rpc.transports import Transports

ECHO, PIPE = "/test.Fake/Echo", "/test.Fake/Pipe"


async def echo(body: Received, _: CallContext) -> bytes:
    return bytes(body) + b"!"


async def pipe(stream: ServerStream, _: CallContext) -> None:
    while (body := await stream.read()) is not None:
        await stream.write(bytes(body) + b"?")


HANDLERS = Handlers({ECHO: echo}, {PIPE: pipe})


@pytest.fixture
async def net() -> AsyncIterator[Transports]:
    net = Transports()
    yield net
    await net.close()


@pytest.mark.parametrize("scheme", ["", "native://"])
async def test_calls_and_streams(net: Transports, scheme: str) -> None:
    server = await net.serve(f"{scheme}127.0.0.1:0", HANDLERS)
    host, _, port = server.address.rpartition(":")
    assert host == "127.0.0.1" and int(port) > 0
    address = scheme + server.address
    assert bytes(await net.call(address, ECHO, b"a", timeout_s=5)) == b"a!"
    stream = net.open_stream(address, PIPE)
    await stream.write(b"b")
    assert bytes(await stream.read() or b"") == b"b?"
    stream.cancel()
    await server.stop(0)
    with pytest.raises(UnavailableError):
        await net.call(address, ECHO, b"", timeout_s=5)


@pytest.mark.parametrize("scheme", ["", "native://"])
async def test_only_loopback_without_leave(net: Transports, scheme: str) -> None:
    with pytest.raises(ConfigurationError, match="insecure-bind"):
        await net.serve(f"{scheme}0.0.0.0:0", HANDLERS)


async def test_who_cannot_be_reached_is_named_with_the_way_out(net: Transports) -> None:
    with socket.socket() as silent:  # bound and not listening: refused, as by many firewalls
        silent.bind(("127.0.0.1", 0))
        address = f"native://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(UnavailableError, match=rf"{address}.*transport=grpc"):
            await net.call(address, ECHO, b"", timeout_s=30)
        stream = net.open_stream(address, PIPE)
        with pytest.raises(UnavailableError, match=address):
            await stream.read()


async def test_silence_is_given_up_after_a_second(net: Transports) -> None:
    with socket.socket() as full:  # further connections get no answer at all
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        where = full.getsockname()
        waiting = []
        try:
            for _ in range(3):
                waiting.append(socket.socket())
                waiting[-1].setblocking(False)
                waiting[-1].connect_ex(where)
            begin_s = time.monotonic()
            with pytest.raises(UnavailableError, match=r"native://.* no answer .*transport=grpc"):
                await net.call(f"native://127.0.0.1:{where[1]}", ECHO, b"", timeout_s=60)
            assert time.monotonic() - begin_s < 10
        finally:
            for each in waiting:
                each.close()


async def test_closed_is_closed_for_both() -> None:
    net = Transports()
    await net.close()
    for address in ("127.0.0.1:1", "native://127.0.0.1:1"):
        with pytest.raises(UnavailableError, match="closed"):
            await net.call(address, ECHO, b"", timeout_s=1)


def test_grpc_is_imported_when_it_is_needed() -> None:
    program = (
        "import sys; from icecore.rpc.transports import Transports; Transports();"
        "assert 'grpc' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
