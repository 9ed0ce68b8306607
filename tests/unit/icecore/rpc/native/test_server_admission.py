"""Over the native transport a direct handler sees the header first: no memory for what it refuses,
and nothing stays counted of what never arrives.
"""

import asyncio
import tracemalloc

import pytest

from icecore.errors import (
    IcecoreError,
    InternalError,
    ThrottledError,
    UnavailableError,
    UnsupportedError,
)
from icecore.rpc.native.frame import (
    BULK_META_BYTES_MAX,
    HEADER_BYTES_MAX,
    FrameKind,
    pack_call,
    pack_head,
)
from icecore.rpc.native.net import NativeNet
from icecore.rpc.native.server import ServerLimits
from icecore.rpc.ports import Handlers
from tests.conformance.net_bulk_suite import PUT, FakeStore, request
from tests.support.native_peer import IMPATIENT, MIB, RawPeer, tormented
from tests.support.waiting import until


def bulk_head(call_id: int, header: bytes, body_bytes: int, method: str = PUT) -> bytes:
    """Return the head of a request whose batches are still to come."""
    return pack_head(FrameKind.BULK, call_id, pack_call(60, method.encode(), header), body_bytes)


async def test_the_handler_is_asked_before_the_body_comes() -> None:
    store = FakeStore()
    async with tormented(more=store.handlers) as house:
        peer = await RawPeer.connect(house.address)
        await peer.greet()
        tracemalloc.start()
        try:
            await peer.send(bulk_head(1, b"refuse", 64 * MIB))
            call_id, error = await peer.error()
            assert (call_id, type(error)) == (1, ThrottledError)
            for _ in range(64):
                await peer.send(bytes(MIB))
            await peer.send(bulk_head(2, b"answer", 0))
            frame = await peer.frame()
            peak_bytes = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert frame is not None and (frame.call_id, frame.body) == (2, b"without it")
        assert peak_bytes < 16 * MIB  # of which the test itself has some
        assert store.asked == [(b"refuse", 64 * MIB), (b"answer", 0)]
        peer.socket.close()


@pytest.mark.parametrize("how", ["reset", "close", "silence", "nonsense"])
async def test_a_body_that_never_comes_is_abandoned(how: str) -> None:
    store = FakeStore()
    async with tormented(timeouts=IMPATIENT, more=store.handlers) as house:
        peer = await RawPeer.connect(house.address)
        await peer.greet()
        await peer.send(bulk_head(1, b"h", 3 * MIB), bytes(MIB))
        await until(lambda: store.admitted == 1)
        assert house.held()["receiving_bytes"] == 3 * MIB and not store.abandoned
        if how == "reset":
            peer.reset()
        elif how == "close":
            peer.socket.close()
        elif how == "nonsense":
            await peer.send(bytes(2 * MIB), b"\xff" * 16)
        await until(lambda: not house.held())
        assert store.is_settled and (how == "nonsense" or not store.run)
        peer.socket.close()


async def test_several_on_one_connection_run_in_their_order() -> None:
    store = FakeStore()
    async with tormented(more=store.handlers) as house:
        peer = await RawPeer.connect(house.address)
        await peer.greet()
        bodies = [bytes([number]) * size for number, size in enumerate((MIB, 10, 20_000, 0, MIB))]
        frames = [bulk_head(1 + at, b"h", len(body)) + body for at, body in enumerate(bodies)]
        refused = bulk_head(9, b"refuse", MIB) + bytes(MIB)
        await peer.send(frames[0], refused, *frames[1:3], refused, *frames[3:])
        found = [await peer.frame() for _ in range(7)]
        assert sorted(each.call_id for each in found if each is not None) == [1, 2, 3, 4, 5, 9, 9]
        assert store.run == bodies and store.is_settled
        peer.socket.close()


async def test_a_call_id_that_comes_twice_is_two_calls() -> None:
    store = FakeStore()
    async with tormented(more=store.handlers) as house:
        peer = await RawPeer.connect(house.address)
        await peer.greet()
        await peer.send(*[bulk_head(5, b"h", MIB) + bytes(MIB)] * 3)
        for _ in range(3):
            frame = await peer.frame()
            assert frame is not None and frame.call_id == 5
        assert store.is_settled and len(store.run) == 3
        peer.socket.close()


async def test_a_header_for_an_unknown_method() -> None:
    async with tormented() as house:
        peer = await RawPeer.connect(house.address)
        await peer.greet()
        for call_id, size_bytes in enumerate((0, 3, MIB), 1):
            await peer.send(bulk_head(call_id, b"h", size_bytes, "/t.T/no"), bytes(size_bytes))
            told: tuple[int, IcecoreError] = await peer.error()
            assert told[0] == call_id and isinstance(told[1], UnsupportedError)
        peer.socket.close()


@pytest.mark.parametrize("header_bytes", [HEADER_BYTES_MAX, HEADER_BYTES_MAX + 1])
async def test_headers_of_any_size(header_bytes: int) -> None:
    store = FakeStore()
    async with tormented(more=store.handlers) as house:
        header, body = b"x" * header_bytes, bytes(MIB)
        for size_bytes in (0, 10, MIB):
            sent = request(header, body[:size_bytes])
            await house.neighbour.call(house.address, PUT, sent, timeout_s=5)
        assert store.asked == [(header, 0), (header, 10), (header, MIB)]


async def test_the_largest_meta_there_can_be() -> None:
    store = FakeStore()
    async with tormented(more=store.handlers) as house:
        peer = await RawPeer.connect(house.address)
        await peer.greet()
        header = bytes(BULK_META_BYTES_MAX - len(pack_call(60, PUT.encode())))
        for call_id in (1, 2):
            await peer.send(bulk_head(call_id, header, MIB), bytes(MIB))
            frame = await peer.frame()
            assert frame is not None and frame.call_id == call_id
        assert store.asked == [(header, MIB)] * 2
        peer.socket.close()


async def test_what_a_server_refuses_the_handler_is_not_asked() -> None:
    store = FakeStore()
    limits = ServerLimits(receiving_bytes_max=2 * MIB, calls_max=1)
    async with tormented(limits, more=store.handlers) as house:
        with pytest.raises(ThrottledError, match="being received"):
            sent = request(b"h", bytes(3 * MIB))
            await house.neighbour.call(house.address, PUT, sent, timeout_s=5)
        waits = asyncio.ensure_future(
            house.neighbour.call(house.address, PUT, request(b"wait", b"1"), timeout_s=5)
        )
        await until(lambda: len(store.waiting) == 1)
        with pytest.raises(ThrottledError, match="calls are running"):
            await house.neighbour.call(house.address, PUT, request(b"h", bytes(MIB)), timeout_s=5)
        store.waiting[0](InternalError("done"))
        with pytest.raises(InternalError, match="done"):
            await waits
        assert store.asked == [(b"wait", 1)]


async def test_a_body_that_comes_when_the_server_stops_is_abandoned() -> None:
    store = FakeStore()
    net = NativeNet()
    server = await net.serve("127.0.0.1:0", Handlers({}, {}, store.handlers.direct))
    peer = await RawPeer.connect(server.address)
    await peer.greet()
    await peer.send(bulk_head(1, b"h", MIB), bytes(1000))
    await until(lambda: store.admitted == 1)
    stopping = asyncio.ensure_future(server.stop(5))
    await asyncio.sleep(0)
    await peer.send(bytes(MIB - 1000))
    errors = [await peer.error() for _ in range(2)]  # one of the call, one of the connection
    assert {call_id for call_id, _ in errors} == {0, 1}
    assert all(isinstance(error, UnavailableError) for _, error in errors)
    peer.socket.close()
    await stopping
    await net.close()
    assert (store.admitted, store.abandoned, store.run) == (1, 1, [])
