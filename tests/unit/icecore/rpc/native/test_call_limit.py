"""A connection with many calls that run is read no more; parked ones do not count."""

import asyncio

from icecore.rpc.methods import DATA, NODE
from icecore.rpc.native.frame import FrameKind
from icecore.rpc.native.net import NativeNet
from icecore.rpc.native.server import ServerLimits
from icecore.rpc.ports import CallContext, Handlers, Received
from tests.support.native_peer import RawPeer
from tests.support.waiting import until

LIMITS = ServerLimits(calls_per_connection_max=3)


class House:
    """A server whose fetches wait until they are told to go on."""

    def __init__(self) -> None:
        self.begun = self.stopped = 0
        self.may_end = asyncio.Event()
        self.is_parking = False

    async def fetch(self, _: Received, call: CallContext) -> bytes:
        self.begun += 1
        try:
            if self.is_parking:
                call.slot.park()
            await self.may_end.wait()
            if self.is_parking:
                await call.slot.resume()
        except asyncio.CancelledError:
            self.stopped += 1
            raise
        return b"done"

    async def fence(self, _: Received, __: CallContext) -> bytes:
        return b"fenced"

    def handlers(self) -> Handlers:
        return Handlers({DATA["Fetch"]: self.fetch, NODE["Fence"]: self.fence}, {})


async def ask(peer: RawPeer, calls: int) -> None:
    await peer.greet()
    for call_id in range(1, calls + 1):
        await peer.call(call_id, DATA["Fetch"])


async def test_the_rest_waits_in_the_memory_of_the_caller() -> None:
    house, net = House(), NativeNet(limits=LIMITS)
    server = await net.serve("127.0.0.1:0", house.handlers())
    peer = await RawPeer.connect(server.address)
    await ask(peer, 1)
    for call_id in range(2, 11):  # one by one, because what arrives together is begun together
        await peer.call(call_id, DATA["Fetch"])
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    assert house.begun == 3
    other = await net.call(server.address, NODE["Fence"], b"", timeout_s=5)
    assert bytes(other) == b"fenced"
    house.may_end.set()
    answers = [await peer.frame() for _ in range(10)]
    assert {each.call_id for each in answers if each and each.kind == FrameKind.ANSWER} == {
        *range(1, 11)
    }
    peer.socket.close()
    await server.stop(0)
    await net.close()


async def test_parked_calls_do_not_count_until_they_go_on() -> None:
    house, net = House(), NativeNet(limits=LIMITS)
    house.is_parking = True
    server = await net.serve("127.0.0.1:0", house.handlers())
    peer = await RawPeer.connect(server.address)
    await ask(peer, 10)
    await until(lambda: house.begun == 10)
    house.may_end.set()
    answers = [await peer.frame() for _ in range(10)]
    assert all(each and each.kind == FrameKind.ANSWER for each in answers)
    peer.socket.close()
    await server.stop(0)
    await net.close()


async def test_reads_end_with_their_connection_and_with_their_time() -> None:
    house, net = House(), NativeNet()
    server = await net.serve("127.0.0.1:0", house.handlers())
    peer = await RawPeer.connect(server.address)
    await ask(peer, 2)
    await until(lambda: house.begun == 2)
    peer.socket.close()
    await until(lambda: house.stopped == 2)
    impatient = asyncio.ensure_future(net.call(server.address, DATA["Fetch"], b"", timeout_s=0.2))
    await until(lambda: house.stopped == 3)
    await asyncio.gather(impatient, return_exceptions=True)
    await server.stop(0)
    await net.close()
