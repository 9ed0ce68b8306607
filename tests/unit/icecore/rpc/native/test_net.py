"""Behaviour of the native transport's client alone: connections by class, and how they are made."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from icecore.errors import (
    ConfigurationError,
    ForkedError,
    InternalError,
    InvalidRequestError,
    RequestTimeoutError,
    UnavailableError,
)
from icecore.rpc.methods import DATA, NODE, REPLICATION
from icecore.rpc.native.frame import MESSAGE_BYTES_MAX, FrameKind, pack_head
from icecore.rpc.native.net import NativeNet
from icecore.rpc.ports import Body, CallContext, Handlers, Received
from tests.support.native_peer import MIB, RawListener, tormented
from tests.support.waiting import until

FENCE = NODE["Fence"]


@contextmanager
def nobody_accepts() -> Iterator[str]:
    """An address whose machine does not answer: its queue of connections is full."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(0)
    address = listener.getsockname()
    fillers = [socket.socket() for _ in range(4)]
    for each in fillers:
        each.setblocking(False)
        each.connect_ex(address)
    yield f"127.0.0.1:{address[1]}"
    for each in (*fillers, listener):
        each.close()


async def test_small_calls_pass_bulk_answers_that_wait_unread() -> None:
    async def bulk(body: Received, context: CallContext) -> Body:
        return bytes(4 * MIB)

    async def small(body: Received, context: CallContext) -> Body:
        return body

    net = NativeNet()
    paths = {DATA["Produce"]: small, DATA["Fetch"]: bulk, REPLICATION["ReadSegment"]: bulk}
    server = await net.serve("127.0.0.1:0", Handlers({**paths, FENCE: small}, {}))
    for method in (*paths, FENCE):
        await net.call(server.address, method, b"", timeout_s=5)
    assert len(net._keys) == 4
    for kind in ("fetch", "copy"):
        net._calls[server.address, kind].connection.pause()
    fetches = [
        asyncio.ensure_future(net.call(server.address, method, b"", timeout_s=30))
        for method in (DATA["Fetch"], REPLICATION["ReadSegment"])
        for _ in range(8)
    ]
    await until(lambda: server._unsent_bytes[DATA["Fetch"]] > 4 * MIB)
    await until(lambda: server._unsent_bytes[REPLICATION["ReadSegment"]] > 4 * MIB)
    for method in (FENCE, DATA["Produce"]):
        assert await net.call(server.address, method, b"now", timeout_s=5) == b"now"
    assert not any(each.done() for each in fetches)
    for kind in ("fetch", "copy"):
        net._calls[server.address, kind].connection.resume()
    assert {len(each) for each in await asyncio.gather(*fetches)} == {4 * MIB}
    await server.stop(0)
    await net.close()


async def test_produce_requests_stay_in_order() -> None:
    seen: list[int] = []

    async def produce(body: Received, context: CallContext) -> Body:
        seen.append(int(bytes(body[:5])))
        return b""

    net = NativeNet()
    server = await net.serve("127.0.0.1:0", Handlers({DATA["Produce"]: produce}, {}))
    await net.call(server.address, DATA["Produce"], b"00000", timeout_s=5)
    await asyncio.gather(
        *(
            net.call(
                server.address, DATA["Produce"], b"%05d" % n + bytes(n * 997 % 50_000), timeout_s=30
            )
            for n in range(1, 200)
        )
    )
    assert seen == list(range(200))
    await server.stop(0)
    await net.close()


async def test_callers_share_one_connection() -> None:
    async with tormented() as house:
        net = NativeNet()
        calls = (net.call(house.address, "/t.T/echo", b"x", timeout_s=5) for _ in range(50))
        assert await asyncio.gather(*calls) == [b"x"] * 50
        assert len(net._keys) == 1
        await net.close()


async def test_who_waits_for_a_connection_keeps_its_own_deadline() -> None:
    with nobody_accepts() as address:
        net = NativeNet()
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        patient = asyncio.ensure_future(net.call(address, "/t.T/echo", b"", timeout_s=30))
        with pytest.raises(RequestTimeoutError):
            await net.call(address, "/t.T/echo", b"", timeout_s=0.1)
        assert not patient.done() and loop.time() - began_s < 0.9
        with pytest.raises(UnavailableError, match="no answer"):
            await patient
        impatient = asyncio.ensure_future(net.call(address, "/t.T/echo", b"", timeout_s=0.1))
        patient = asyncio.ensure_future(net.call(address, "/t.T/echo", b"", timeout_s=30))
        with pytest.raises(RequestTimeoutError):
            await impatient
        assert not patient.done()
        patient.cancel()
        with pytest.raises(asyncio.CancelledError):
            await patient
        await net.close()


async def test_a_net_that_is_closed_while_it_connects() -> None:
    with nobody_accepts() as address:
        net = NativeNet()
        call = asyncio.ensure_future(net.call(address, "/t.T/echo", b"", timeout_s=30))
        stream = net.open_stream(address, "/t.T/idle")
        cancelled = net.open_stream(address, "/t.T/idle")
        await asyncio.sleep(0.05)
        cancelled.cancel()
        await net.close()
        with pytest.raises(UnavailableError):
            await call
        for each in (stream, cancelled):
            with pytest.raises(UnavailableError):
                await each.read()


async def test_answers_that_nobody_asked_for() -> None:
    """One that comes late is dropped; what is no answer breaks the connection."""
    listener = RawListener()
    net = NativeNet()
    call = asyncio.ensure_future(net.call(listener.address, "/t.T/echo", b"", timeout_s=30))
    peer = await listener.accept()
    await peer.greet()
    request = await peer.frame()
    assert request is not None and request.kind == FrameKind.CALL
    await peer.send(pack_head(FrameKind.ANSWER, request.call_id + 7, b"", 1), b"?")
    await peer.send(pack_head(FrameKind.ERROR, request.call_id + 8, b"", 0))
    await peer.send(pack_head(FrameKind.ANSWER, request.call_id, b"", 1), b"!")
    assert await call == b"!"
    call = asyncio.ensure_future(net.call(listener.address, "/t.T/echo", b"", timeout_s=30))
    assert await peer.frame() is not None
    await peer.send(pack_head(FrameKind.DATA, 0, b"", 0))
    with pytest.raises(UnavailableError, match="native protocol"):
        await call
    await net.close()
    listener.close()


async def test_an_answer_that_comes_as_its_call_is_given_up() -> None:
    """Both in one turn of the loop: nobody is told, and nothing is raised behind anybody's back."""
    listener = RawListener()
    net = NativeNet()
    loop = asyncio.get_running_loop()
    raised: list[dict[str, object]] = []
    loop.set_exception_handler(lambda _, what: raised.append(what))
    outcomes: list[object] = []
    give_up = net.start_call(listener.address, "/t.T/echo", b"", timeout_s=30, done=outcomes.append)
    peer = await listener.accept()
    await peer.greet()
    request = await peer.frame()
    assert request is not None
    peer.socket.send(pack_head(FrameKind.ANSWER, request.call_id, b"", 1) + b"!")  # not yet read
    loop.call_soon(give_up)  # runs before what the sockets bring
    await asyncio.sleep(0.05)
    assert not raised and not outcomes
    await net.close()
    listener.close()


@pytest.mark.parametrize("body", [b"", b"\xff\xff\xff"])
async def test_an_error_that_cannot_be_read(body: bytes) -> None:
    listener = RawListener()
    net = NativeNet()
    call = asyncio.ensure_future(net.call(listener.address, "/t.T/echo", b"", timeout_s=30))
    peer = await listener.accept()
    await peer.greet()
    assert await peer.frame() is not None
    await peer.send(pack_head(FrameKind.ERROR, 1, b"", len(body)), body)
    with pytest.raises(InternalError):
        await call
    await net.close()
    listener.close()


async def test_a_stream_message_that_is_too_large() -> None:
    async with tormented() as house:
        net = NativeNet()
        stream = net.open_stream(house.address, "/t.T/idle")
        await stream.write(b"x")
        with pytest.raises(InvalidRequestError, match="larger than max"):
            await stream.write([bytes(MESSAGE_BYTES_MAX), b"1"])
        await stream.write(b"x")  # nothing of the other was sent
        await until(lambda: house.streams)
        assert [await house.streams[0].read() for _ in range(2)] == [b"x", b"x"]
        stream.cancel()
        await net.close()


async def test_addresses() -> None:
    net = NativeNet()
    nothing = Handlers({}, {})
    server = await net.serve("127.0.0.1:0", nothing)
    with pytest.raises(ConfigurationError, match=f"port {server.address[10:]} is in use"):
        await net.serve(server.address, nothing)
    with pytest.raises(ConfigurationError, match="insecure-bind"):
        await net.serve("0.0.0.0:0", nothing)
    with pytest.raises(ConfigurationError, match="host:port"):
        await net.serve("localhost", nothing)
    open_net = NativeNet(insecure_bind=True)
    with pytest.raises(ConfigurationError, match="cannot listen"):
        await open_net.serve("no.such.host.invalid:0", nothing)
    for address in ("localhost", "127.0.0.1:x", "127.0.0.1:70000"):
        with pytest.raises(UnavailableError):
            await net.call(address, "/t.T/echo", b"", timeout_s=5)
    for name in ("localhost:0", "[::1]:0"):
        if name[0] == "[" and not socket.has_ipv6:
            continue
        named = await net.serve(name, Handlers({"/t.T/peer": _peer}, {}))
        peer = await net.call(named.address, "/t.T/peer", b"", timeout_s=5)
        assert bytes(peer).startswith((b"ipv4:127.0.0.1:", b"ipv6:::1"))
        await named.stop(0)
    await server.stop(0)
    await server.stop(0)
    await net.close()
    await open_net.close()


async def _peer(body: Received, context: CallContext) -> Body:
    return context.peer.encode()


async def test_a_fork_cannot_use_it() -> None:
    net = NativeNet()
    net._pid += 1  # as in a child
    with pytest.raises(ForkedError):
        await net.call("127.0.0.1:1", "/t.T/echo", b"", timeout_s=1)
    with pytest.raises(ForkedError):
        net.open_stream("127.0.0.1:1", "/t.T/echo")
    await net.close()


async def test_calls_begin_in_their_order_also_while_a_connection_is_made() -> None:
    arrived: list[int] = []

    async def note(body: Received, context: CallContext) -> Body:
        arrived.append(int(bytes(body)))
        return b""

    server_net = NativeNet()
    server = await server_net.serve("127.0.0.1:0", Handlers({FENCE: note}, {}))
    for turns in range(12):
        arrived.clear()
        net, answers = NativeNet(), list[object]()
        assert net.keeps_order(server.address)
        for number in range(40):
            body = str(number).encode()
            net.start_call(server.address, FENCE, body, timeout_s=5, done=answers.append)
            if number % 12 == turns:  # others begin in another turn of the loop
                await asyncio.sleep(0)
            if number == 20 + turns:
                given_up = net.start_call(server.address, FENCE, b"99", timeout_s=5, done=print)
                given_up()
        while len(answers) < 40:  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        assert [each for each in arrived if each != 99] == list(range(40))
        assert not net._ahead and not net._connecting
        await net.close()
    await server.stop(1.0)
    await server_net.close()


async def test_calls_that_begin_while_a_connection_is_made_share_it() -> None:
    async def small(body: Received, context: CallContext) -> Body:
        return body

    server_net = NativeNet()
    server = await server_net.serve("127.0.0.1:0", Handlers({FENCE: small}, {}))
    for _ in range(20):
        net, calls = NativeNet(), []
        for number in range(40):  # over the turns of the loop in which it is made
            call = net.call(server.address, FENCE, str(number).encode(), timeout_s=5)
            calls.append(asyncio.ensure_future(call))
            await asyncio.sleep(0)
        assert await asyncio.gather(*calls) == [str(number).encode() for number in range(40)]
        assert len(net._keys) == 1
        await net.close()
    await server.stop(1.0)
    await server_net.close()
