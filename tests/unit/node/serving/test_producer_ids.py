"""Ids are got ahead, each is given once, and who gets none hears why."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from icecore.errors import UnavailableError
from icecore.v1 import coordinator_pb2
from icecore_node.serving.producer_ids import AT_ONCE, ProducerIds
from tests.support.waiting import until


class Coordinator:
    """Gives ids while it is there."""

    address = "c:1"

    def __init__(self) -> None:
        self.is_away = False
        self.next_id = 1

    async def ask(self, method: str, body: bytes, _: float) -> bytes:
        assert method.endswith("/AllocateProducerIds")
        if self.is_away:
            raise UnavailableError("nobody there")
        count = coordinator_pb2.AllocateProducerIdsRequest.FromString(body).count
        first, self.next_id = self.next_id, self.next_id + count
        return coordinator_pb2.AllocateProducerIdsResponse(
            first_producer_id=first, count=count
        ).SerializeToString()


def made(coordinator: Coordinator) -> ProducerIds:
    context = SimpleNamespace(identity=SimpleNamespace(cluster_id=b"c" * 16, node_id=1))
    return ProducerIds(cast(Any, context), cast(Any, coordinator))


async def test_half_of_what_is_got_is_there_without_a_coordinator() -> None:
    coordinator = Coordinator()
    ids = made(coordinator)
    running = asyncio.ensure_future(ids.run())
    await until(lambda: coordinator.next_id > 1)
    given = [await ids.take() for _ in range(AT_ONCE // 2 + 1)]
    await until(lambda: coordinator.next_id > AT_ONCE + 1)
    coordinator.is_away = True
    given += [await ids.take() for _ in range(AT_ONCE // 2)]
    assert given == list(range(1, AT_ONCE + 2))
    running.cancel()


async def test_who_gets_none_hears_why_and_may_ask_again() -> None:
    coordinator = Coordinator()
    coordinator.is_away = True
    ids = made(coordinator)
    with pytest.raises(UnavailableError, match="coordinator at c:1 gave none: nobody there"):
        await ids.take()
    coordinator.is_away = False
    assert sorted(await asyncio.gather(ids.take(), ids.take())) == [1, 2]
    assert coordinator.next_id == AT_ONCE + 1
