"""A coordinator whose metadata are older than a node's news ends before it tells the node anything
(R94)."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from icecore.errors import IcecoreError, InvalidRequestError, UnavailableError, WrongClusterError
from icecore.v1 import coordinator_pb2 as pb
from icecore_coordinator.decisions.node_changes import Registration
from icecore_coordinator.decisions.placement import Placement
from icecore_coordinator.decisions.segment_changes import prepare
from icecore_coordinator.services.coordinator_service import CoordinatorService
from icecore_coordinator.state.records import Change
from tests.support.cluster_states import KEY, commit, registered, started

CALL = cast(Any, None)
REVISION = 100


class Ports:
    """Everything that the service calls before it answers; nothing of it may be reached."""

    def __init__(self) -> None:
        self.state = started()
        self.state.metadata_revision = REVISION
        self.ended: list[IcecoreError] = []
        self.connected = 0

    @property
    def ledger(self) -> Any:
        return SimpleNamespace(
            state=self.state, suspend=self.ended.append, tenure=SimpleNamespace(check=int)
        )

    def __getattr__(self, name: str) -> Any:
        return None

    async def register(self, asked: Registration, _: object) -> Any:
        raise WrongClusterError(f"judged by its cluster, {asked.cluster_id!r}")

    async def connect(self, *_: object) -> Any:
        self.connected += 1
        raise UnavailableError("enough was seen")


def service(ports: Ports, *, is_new_cluster: bool = False) -> CoordinatorService:
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
        is_new_cluster=is_new_cluster,
    )


class Stream:
    def __init__(self, request: pb.HeartbeatRequest) -> None:
        self._body = request.SerializeToString()

    async def read(self) -> bytes:
        return self._body


def registers(ports: Ports, revision: int, **others: Any) -> bytes:
    """The request of node 2, which the cluster knows, to register."""
    known = ports.state.nodes[2]
    told = {"cluster_id": ports.state.cluster_id, "node_id": 2, "disk_id": known.disk_id}
    request = pb.RegisterRequest(metadata_revision=revision, **{**told, **others})
    return request.SerializeToString()


async def test_it_ends_when_a_node_that_registers_heard_of_more() -> None:
    ports = Ports()
    with pytest.raises(
        UnavailableError, match="older copy: it has revision 100, node 2 heard of 101"
    ):
        await service(ports).register(registers(ports, REVISION + 1), CALL)
    assert len(ports.ended) == 1


@pytest.mark.parametrize("who", [{"disk_id": b"guessed"}, {"disk_id": b""}, {"node_id": 77}])
async def test_who_proves_nothing_is_refused_and_ends_nobody(who: dict[str, Any]) -> None:
    """A stranger may know the cluster's id and its nodes, but no disk."""
    ports = Ports()
    others = {"node_id": 2, **who}
    request = pb.RegisterRequest.FromString(registers(ports, REVISION + 1))
    for name, value in others.items():
        setattr(request, name, value)
    with pytest.raises(UnavailableError, match="older copy"):
        await service(ports).register(request.SerializeToString(), CALL)
    assert not ports.ended


@pytest.mark.parametrize("is_prepared", [False, True])
async def test_a_node_that_somebody_has_just_registered_ends_nobody(is_prepared: bool) -> None:
    """Its disk id is known, for whoever registered it has made it up."""
    ports = Ports()
    commit(ports.state, Change((registered(77, 1),)))
    if is_prepared:
        commit(ports.state, prepare(ports.state, [(KEY, Placement((77,), 77))]))
    body = registers(ports, REVISION + 1, node_id=77, disk_id=ports.state.nodes[77].disk_id)
    ports.state.metadata_revision = REVISION
    with pytest.raises(UnavailableError, match="older copy"):
        await service(ports).register(body, CALL)
    assert not ports.ended


async def test_a_node_of_another_cluster_ends_nobody() -> None:
    """One typing mistake in its ``coordinator`` must not cost this cluster its own."""
    ports = Ports()
    body = registers(ports, REVISION + 1, cluster_id=b"x" * 16)
    with pytest.raises(WrongClusterError, match="judged by its cluster"):
        await service(ports).register(body, CALL)
    assert not ports.ended


async def test_a_stream_of_another_cluster_is_refused() -> None:
    ports = Ports()
    request = pb.HeartbeatRequest(cluster_id=b"x" * 16, node_id=2, incarnation=9)
    with pytest.raises(WrongClusterError):
        await service(ports).heartbeat(cast(Any, Stream(request)), CALL)
    assert not ports.connected


@pytest.mark.parametrize(("heard", "ends"), [(0, False), (REVISION, False), (REVISION + 1, True)])
async def test_it_ends_at_the_first_heartbeat(heard: int, ends: bool) -> None:
    ports = Ports()
    request = pb.HeartbeatRequest(
        cluster_id=ports.state.cluster_id,
        node_id=2,
        incarnation=9,
        metadata_revision=heard,
        disk_id=ports.state.nodes[2].disk_id,
    )
    with pytest.raises(UnavailableError):
        await service(ports).heartbeat(cast(Any, Stream(request)), CALL)
    assert (len(ports.ended), ports.connected) == (int(ends), int(not ends))


async def test_a_number_that_no_store_can_have_ends_nobody() -> None:
    ports = Ports()
    with pytest.raises(InvalidRequestError, match="no metadata store has revision"):
        await service(ports).register(registers(ports, 1 << 60), CALL)
    assert not ports.ended


@pytest.mark.parametrize("is_new_cluster", [False, True])
async def test_a_person_says_that_metadata_without_segments_are_a_new_cluster(
    is_new_cluster: bool,
) -> None:
    """A stranger joined as a node, and claims more. Nothing is lost while it waits for a person."""
    ports = Ports()
    ports.state.segments.clear()
    with pytest.raises(UnavailableError, match="older copy"):
        await service(ports, is_new_cluster=is_new_cluster).register(
            registers(ports, REVISION + 1), CALL
        )
    assert bool(ports.ended) is not is_new_cluster


async def test_where_there_are_segments_the_newest_store_is_wanted_whatever_a_person_said() -> None:
    """The word was about an empty store; it may stay in the settings for ever."""
    ports = Ports()
    with pytest.raises(UnavailableError, match="older copy"):
        await service(ports, is_new_cluster=True).register(registers(ports, REVISION + 1), CALL)
    assert ports.ended
