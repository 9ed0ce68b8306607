"""A standby refuses each call, and says whom to ask instead."""

from typing import Any, cast

import pytest

from icecore.errors import NotCoordinatorError
from icecore.rpc.methods import ADMIN, COORDINATOR, MIRROR
from icecore.rpc.ports import CallContext, Handlers
from icecore_coordinator.standby import StandbyCoordinator

CALL = CallContext("peer", "anonymous", None)


class Net:
    """As a net: what is served where."""

    def __init__(self) -> None:
        self.served: dict[str, Handlers] = {}
        self.stopped = 0

    async def serve(self, address: str, handlers: Handlers) -> Any:
        self.served[address] = handlers
        return self

    @property
    def address(self) -> str:
        return "bound:1"

    async def stop(self, grace_s: float) -> None:
        self.stopped += 1


@pytest.mark.parametrize(
    ("active", "trouble", "said"),
    [
        ("a:1", "", "ask the one at a:1"),
        ("", "", "none acts yet: ask again"),
        ("a:1", "etcd is away", "no coordinator can act: etcd is away"),
    ],
)
async def test_each_call_is_refused(active: str, trouble: str, said: str) -> None:
    net = Net()
    standby = StandbyCoordinator(cast(Any, net), lambda: active, lambda: trouble)
    await standby.start("c:1", "c:2")
    assert list(net.served) == ["c:1", "native://c:2"]
    for handlers in net.served.values():
        everything = {*handlers.unary, *handlers.streams}
        assert everything == {*COORDINATOR, *ADMIN, *MIRROR}
        for unary in handlers.unary.values():
            with pytest.raises(NotCoordinatorError, match=said) as refused:
                await unary(b"", CALL)
            assert refused.value.metadata.get("address", "") == ("" if trouble else active)
        for stream in handlers.streams.values():
            with pytest.raises(NotCoordinatorError, match=said):
                await stream(cast(Any, None), CALL)
    assert standby.address == "bound:1"
    await standby.stop()
    await standby.stop()
    assert (standby.address, net.stopped) == ("", 2)
