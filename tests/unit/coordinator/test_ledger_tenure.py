"""R121: A coordinator looks at the clock before each act."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from icecore.errors import NotCoordinatorError
from icecore.model import Incarnation, NodeId
from icecore.process.system import SystemRng
from icecore.v1 import coordinator_pb2 as pb
from icecore_coordinator.ledger import Ledger
from icecore_coordinator.nodes.node_calls import NodeCalls
from icecore_coordinator.state.records import Change, CounterRecord
from icecore_coordinator.stores.sqlite_store import SqliteStore


async def test_nothing_is_stored_any_more() -> None:
    is_sure = True
    store = SqliteStore(":memory:")
    ledger = Ledger(store, SystemRng(), lambda: is_sure)
    await ledger.open()
    is_sure = False
    with pytest.raises(NotCoordinatorError):
        await ledger.decide(lambda _: Change((CounterRecord("x", 1, version=1),)))
    assert await store.get("counter/x") is None
    assert ledger.lost.is_set() and ledger.is_replaceable


async def test_no_node_is_called_any_more() -> None:
    """The order would carry an old coordinator epoch, which a node may not have heard of yet."""
    called: list[str] = []

    class Net:
        async def call(self, address: str, *_: object, **__: object) -> bytes:
            called.append(address)
            return pb.FenceResponse(incarnation=1).SerializeToString()

    ledger = Ledger(SqliteStore(":memory:"), SystemRng(), lambda: False)
    node = SimpleNamespace(address="n:1", native_address="")
    state = SimpleNamespace(nodes={1: node}, incarnation=lambda _: 1)
    calls = NodeCalls(cast(Any, Net()), cast(Any, state), ledger.tenure.check)
    with pytest.raises(NotCoordinatorError):
        await calls._call(
            NodeId(1), pb.FenceRequest(), pb.FenceResponse.FromString, Incarnation(1), 1
        )
    assert called == []
