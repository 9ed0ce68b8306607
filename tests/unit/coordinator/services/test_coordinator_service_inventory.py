"""A node that registers says what it holds: no more than the cluster could have, by the wire."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from icecore.errors import InvalidRequestError
from icecore.v1 import coordinator_pb2 as pb
from icecore_coordinator.services import coordinator_service
from icecore_coordinator.services.coordinator_service import CoordinatorService
from tests.support.cluster_states import Cluster, roll, started

CALL = cast(Any, None)


class Ports:
    """The ports of a service that only registers."""

    def __init__(self, state: Cluster) -> None:
        self.ledger, self.state = self, state
        self.parsed: list[int] = []

    def __getattr__(self, name: str) -> Any:
        return self if name in ("timing", "heard") else None

    heartbeat_ms = lease_ms = 1

    def disk_counter(self, _: int) -> int:
        return 0

    async def register(self, _: object, inventory: Any) -> tuple[Any, list[int]]:
        self.parsed.append(len([*inventory]))
        return SimpleNamespace(incarnation=1, held={}, is_disk_unknown=False), []


def service(ports: Ports) -> CoordinatorService:
    nothing = cast(Any, None)
    return CoordinatorService(
        cast(Any, ports),
        admission=cast(Any, ports),
        sessions=nothing,
        broken=nothing,
        pushes=nothing,
        sealing=nothing,
        naming=nothing,
        describe_tiered=nothing,
    )


async def test_an_inventory_is_counted_before_it_is_parsed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(coordinator_service, "UNHEARD_SEGMENTS_MAX", 10)
    state = started()
    state.coordinator_epoch = 1
    for _ in range(4):
        roll(state)
    allowed = 10 + 2 * (len(state.segments) + len(state.deleted))
    ports = Ports(state)
    for count in (0, 1, allowed):
        body = pb.RegisterRequest(segments=[{"segment_id": 1}] * count).SerializeToString()
        await service(ports).register(body, CALL)
    assert ports.parsed == [0, 1, allowed]
    for body in (
        pb.RegisterRequest(segments=[{}] * (allowed + 1)).SerializeToString(),
        b"\x42\x00" * 1_000_000,
    ):
        with pytest.raises(InvalidRequestError, match=f"more than {allowed} segments"):
            await service(ports).register(body, CALL)
    assert len(ports.parsed) == 3
