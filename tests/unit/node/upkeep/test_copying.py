"""A copy is made of what was asked for, and by orders that still hold."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from icecore.errors import NotReplicaError, UnavailableError
from icecore.model import Epoch, Segment, SegmentId, SegmentState, Token
from icecore_node.context import Identity
from icecore_node.replica.orders import Orders
from icecore_node.upkeep.copying import Copying, SegmentCopier


class Node:
    """It has no replica, and its donor does not answer."""

    def __init__(self) -> None:
        identity = Identity(1)
        identity.register(b"c" * 16, incarnation=11, token=7)
        self.orders = Orders(identity)
        self.asked: list[str] = []
        context = SimpleNamespace(identity=identity, net=self)
        damage = SimpleNamespace(report_missing=lambda _: None)
        self.copier = SegmentCopier(
            context=cast(Any, context),
            table=cast(Any, {}),
            orders=self.orders,
            damage=cast(Any, damage),
            reading=cast(Any, None),
            seals=cast(Any, None),
            aside=cast(Any, None),
        )

    async def call(self, address: str, *_: object, **__: object) -> bytes:
        self.asked.append(address)
        raise UnavailableError("nobody is there")

    async def copy(self, version: int) -> None:
        segment = Segment(SegmentId(7), b"t" * 16, "t", 0, SegmentState.SEALED, Epoch(1))
        asked = Copying(
            segment=segment.changed(base_offset=0, end_offset=10, version=version),
            end_offset=10,
            donor_address="donor",
            expected_digest=b"d" * 32,
            seal=True,
        )
        await self.copier.bring_to(asked, Token(7))


async def test_an_order_that_is_older_than_the_drop_of_its_copy_makes_none() -> None:
    """Nobody would ever hear of that copy, so nobody would have it removed."""
    node = Node()
    node.orders.note_dropped(SegmentId(7), 5)
    for version in (4, 5):
        with pytest.raises(NotReplicaError):
            await node.copy(version)
    assert node.asked == []
    with pytest.raises(UnavailableError):
        await node.copy(6)
    assert node.asked == ["donor"]
