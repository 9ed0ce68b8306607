"""A node listens twice, with the same handlers, and counts what comes in over which transport."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from icecore.rpc.ports import CallContext, DirectHandler, Handlers, Received
from icecore.v1.data_pb2 import ProduceRequest
from icecore_node.config import NodeSettings
from icecore_node.metrics import NodeMetrics
from icecore_node.serving.listeners import Listeners

CALLER = CallContext("test", "anonymous", None)


class FakeNet:
    """Remembers what is served where; every port that is left to it is 7777."""

    def __init__(self) -> None:
        self.served: dict[str, Handlers] = {}
        self.stopped: list[str] = []

    async def serve(self, address: str, handlers: Handlers) -> Any:
        self.served[address] = handlers

        async def stop(grace_s: float) -> None:
            self.stopped.append(address)

        bound = address.removeprefix("native://").removesuffix(":0") + ":7777"
        return SimpleNamespace(address=bound, stop=stop)


def listeners(net: FakeNet, metrics: NodeMetrics, **values: object) -> Listeners:
    settings = NodeSettings.model_validate({"data": "unused", "node_id": 1, **values})
    return Listeners(cast(Any, SimpleNamespace(settings=settings, net=net, metrics=metrics)))


async def test_both_serve_the_same_and_are_counted_apart() -> None:
    async def echo(body: Received, _: CallContext) -> bytes:
        return bytes(body)

    net, metrics = FakeNet(), NodeMetrics()
    made = listeners(net, metrics, advertise="n1:7401")
    await made.start(Handlers({"/Echo": echo}, {}))
    assert (made.address, made.native_address) == ("n1:7401", "n1:7777")
    assert list(net.served) == ["127.0.0.1:0", "native://127.0.0.1:0"]
    for handlers in net.served.values():
        assert await handlers.unary["/Echo"](b"a", CALLER) == b"a"
    assert await net.served["native://127.0.0.1:0"].unary["/Echo"](b"b", CALLER) == b"b"
    counts = {name: each._value.get() for name, each in metrics.calls.items()}
    assert counts == {"grpc": 1, "native": 2}
    await made.stop(0)
    assert net.stopped == list(net.served)


async def test_direct_calls_are_counted_when_they_are_admitted() -> None:
    def admit(header: bytes, body_bytes: int, _: CallContext) -> bytes:
        return header

    net, metrics = FakeNet(), NodeMetrics()
    direct = DirectHandler(ProduceRequest, admit)
    await listeners(net, metrics).start(Handlers({}, {}, {"/Put": direct}))
    served = net.served["native://127.0.0.1:0"].direct["/Put"]
    assert served.request is ProduceRequest
    assert served.admit(b"h", 5, CALLER) == b"h"
    assert metrics.calls["native"]._value.get() == 1


@pytest.mark.parametrize("values", [{"native_listen": ""}, {"transport": "grpc"}])
async def test_without_the_native_transport(values: dict[str, object]) -> None:
    net = FakeNet()
    made = listeners(net, NodeMetrics(), **values)
    await made.start(Handlers({}, {}))
    assert (list(net.served), made.native_address) == (["127.0.0.1:0"], "")
