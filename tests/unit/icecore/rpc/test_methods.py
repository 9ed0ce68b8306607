"""Names of methods come from the .proto files, and a service offers all of its own."""

import pytest

from icecore.rpc.methods import COORDINATOR, DATA
from icecore.rpc.ports import CallContext, ServerStream


async def answer(body: bytes, _: CallContext) -> bytes:
    return body


async def converse(_: ServerStream, __: CallContext) -> None:
    return None


def test_names_are_those_of_the_proto() -> None:
    assert DATA["Fetch"] == "/icecore.v1.DataService/Fetch"
    assert COORDINATOR["Heartbeat"] == "/icecore.v1.CoordinatorService/Heartbeat"
    with pytest.raises(KeyError):
        DATA["Fetsh"]


def test_a_service_offers_each_of_its_methods() -> None:
    names = ("Produce", "Fetch", "ListOffsets", "InitProducer", "Query", "DescribeSettings")
    offered = DATA.handlers(dict.fromkeys(names, answer))
    assert list(offered.unary) == [f"/icecore.v1.DataService/{name}" for name in names]
    with pytest.raises(AssertionError):
        DATA.handlers({"Fetch": answer}, {"Produce": converse})
    with pytest.raises(KeyError):
        DATA.handlers({"Register": answer})
