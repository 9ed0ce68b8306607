"""A call of a client that waits for its turn is no task yet: a flood makes no round long."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from icecore.errors import RequestTimeoutError
from icecore.rpc.methods import DATA
from icecore.rpc.native.frame import FrameKind, pack_call, pack_head
from icecore.rpc.native.net import NativeNet
from icecore.rpc.native.server import NativeServer
from icecore.rpc.ports import CallContext, Handlers, Received
from icecore.rpc.turns import AT_ONCE_MAX, FairTurns
from tests.support.native_peer import RawPeer
from tests.support.waiting import until

READ, CHANGE = DATA["ListOffsets"], DATA["InitProducer"]


class House:
    """A server of which it is nobody's turn until the test says so."""

    def __init__(self, net: NativeNet) -> None:
        self.net = net
        self.begun: list[bytes] = []
        self.at_once = 0
        self.timeouts_s: list[float] = []
        self.server: NativeServer

    async def handle(self, body: Received, call: CallContext) -> bytes:
        self.begun.append(bytes(body))
        assert call.timeout_s is not None
        self.timeouts_s.append(call.timeout_s)
        self.at_once = max(self.at_once, len(self.server._tasks))
        return b"done"

    async def serve(self) -> None:
        handlers = Handlers(dict.fromkeys((READ, CHANGE), self.handle), {})
        self.server = await self.net.serve("127.0.0.1:0", handlers)

    def in_line(self) -> int:
        return sum(map(len, self.server._slots._turns._lines.values()))

    def next_round(self) -> None:
        self.server._slots._turns._round()


@pytest_asyncio.fixture
async def house() -> AsyncIterator[House]:
    house = House(NativeNet())
    await house.serve()
    yield house
    await house.server.stop(0)
    await house.net.close()


@pytest.fixture
def nobodys_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FairTurns, "_is_free", lambda self: False)


def call(call_id: int, method: str = READ, timeout_s: float = 60) -> bytes:
    body = b"%d" % call_id
    return (
        pack_head(FrameKind.CALL, call_id, pack_call(timeout_s, method.encode()), len(body)) + body
    )


async def test_a_flood_is_begun_a_few_at_a_time_and_in_its_order(house: House) -> None:
    peers = [await RawPeer.connect(house.server.address) for _ in range(4)]
    for peer in peers:
        await peer.greet()
        await peer.send(b"".join(call(each) for each in range(1, 101)))
    for peer in peers:
        for _ in range(100):
            frame = await peer.frame()
            assert frame is not None and frame.kind == FrameKind.ANSWER
    assert len(house.begun) == 400
    assert house.at_once <= 2 * AT_ONCE_MAX  # one round's begin while another one's end
    for peer in peers:
        peer.reset()


async def test_calls_of_a_connection_begin_in_their_order(house: House) -> None:
    peer = await RawPeer.connect(house.server.address)
    await peer.greet()
    await peer.send(b"".join(call(each) for each in range(1, 101)))
    await until(lambda: len(house.begun) == 100)
    assert house.begun == [b"%d" % each for each in range(1, 101)]
    peer.reset()


@pytest.mark.usefixtures("nobodys_turn")
async def test_who_gives_up_in_the_line_costs_no_handler(house: House) -> None:
    peer = await RawPeer.connect(house.server.address)
    await peer.greet()
    await peer.send(call(1) + call(2, timeout_s=0.02) + call(3))
    await until(lambda: house.in_line() == 3)
    await asyncio.sleep(0.05)
    house.next_round()
    answers = [await peer.frame() for _ in range(3)]
    assert sorted(each.call_id for each in answers if each and each.kind == FrameKind.ANSWER) == [
        1,
        3,
    ]
    [late] = [each for each in answers if each and each.kind == FrameKind.ERROR]
    assert late.call_id == 2 and RequestTimeoutError.reason.encode() in bytes(late.body)
    assert house.begun == [b"1", b"3"]
    assert all(each < 59.96 for each in house.timeouts_s)  # the time in the line counts
    peer.reset()


@pytest.mark.usefixtures("nobodys_turn")
@pytest.mark.parametrize("method", [READ, CHANGE])
async def test_who_is_gone_before_his_turn_leaves_nothing(house: House, method: str) -> None:
    peer = await RawPeer.connect(house.server.address)
    await peer.greet()
    await peer.send(call(1, method))
    await until(lambda: house.in_line() == 1)
    peer.reset()
    await until(lambda: not house.server._peers)
    house.next_round()
    assert house.begun == [] and house.server._running == 0
    assert house.server._slots._running(method).count == 0


@pytest.mark.usefixtures("nobodys_turn")
async def test_what_waits_when_the_server_stops_does_not_begin(house: House) -> None:
    peer = await RawPeer.connect(house.server.address)
    await peer.greet()
    await peer.send(call(1, CHANGE))
    await until(lambda: house.in_line() == 1)
    await house.server.stop(0)
    house.next_round()
    assert house.begun == [] and house.server._running == 0
    peer.reset()
