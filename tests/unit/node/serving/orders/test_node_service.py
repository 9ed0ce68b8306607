"""Orders of a coordinator on older metadata are refused, and orders teach no revision (R94)."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from icecore.errors import FencedError, UnavailableError
from icecore.model import CoordinatorEpoch, Incarnation, NodeId
from icecore.rpc.methods import NODE
from icecore.v1 import coordinator_pb2 as pb
from icecore_node.identity.identity import Identity
from icecore_node.serving.orders.node_service import NodeService

CLUSTER, INCARNATION = b"c" * 16, 5
HEARD = 10
ORDERS = (
    *(pb.FenceRequest, pb.OpenRequest, pb.WriteBackRequest, pb.RollRequest),
    *(pb.FenceProducersRequest, pb.CheckSealRequest, pb.UploadRequest),
    *(pb.CommitTablesRequest, pb.SweepRequest, pb.VerifyCopiesRequest),
)


class Reached(Exception):
    """An order went past the check."""


class Work:
    """Any part that carries out orders."""

    def __getattr__(self, name: str) -> Any:
        raise Reached(name)


def node() -> tuple[Identity, NodeService]:
    """A node that has heard the first coordinator tell revision 10."""
    identity = Identity(NodeId(1))
    identity.register(CLUSTER, Incarnation(INCARNATION), CoordinatorEpoch(1), HEARD)
    work = cast(Any, Work())
    service = NodeService(
        cast(Any, SimpleNamespace(identity=identity)),
        fencing=work,
        opening=work,
        write_backs=work,
        leader_orders=work,
        tier_orders=work,
    )
    return identity, service


async def give(service: NodeService, order: Any, epoch: int, revision: int) -> None:
    request = order(
        cluster_id=CLUSTER,
        incarnation=INCARNATION,
        coordinator_epoch=epoch,
        metadata_revision=revision,
    )
    method = order.DESCRIPTOR.name.removesuffix("Request")
    await service.handlers()[NODE[method]](request.SerializeToString(), cast(Any, None))


def test_all_orders_are_here() -> None:
    _, service = node()
    assert {NODE[each.DESCRIPTOR.name.removesuffix("Request")] for each in ORDERS} == (
        service.handlers().keys()
    )


@pytest.mark.parametrize("order", ORDERS, ids=lambda each: each.DESCRIPTOR.name)
async def test_an_order_on_older_metadata_is_refused(order: Any) -> None:
    identity, service = node()
    with pytest.raises(FencedError, match="it has revision 9, node 1 heard of 10"):
        await give(service, order, epoch=2, revision=HEARD - 1)
    assert identity.coordinator_epoch == 1


@pytest.mark.parametrize("revision", [HEARD - 1, HEARD, 0, 1 << 60])
async def test_an_order_of_the_coordinator_is_taken_and_teaches_nothing(revision: int) -> None:
    identity, service = node()
    with pytest.raises(Reached):
        await give(service, pb.FenceRequest, 1, revision)
    assert (identity.coordinator_epoch, identity.metadata_revision) == (1, HEARD)


@pytest.mark.parametrize("order", ORDERS, ids=lambda each: each.DESCRIPTOR.name)
@pytest.mark.parametrize("revision", [HEARD, 0, 1 << 60])
async def test_an_order_of_a_coordinator_that_nobody_told_of_waits(
    order: Any, revision: int
) -> None:
    identity, service = node()
    for epoch in (2, 1 << 40):
        with pytest.raises(UnavailableError, match="has not heard of coordinator epoch"):
            await give(service, order, epoch, revision)
    assert (identity.coordinator_epoch, identity.metadata_revision) == (1, HEARD)
