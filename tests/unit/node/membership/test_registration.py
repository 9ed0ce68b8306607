"""A node answers no call before the coordinator has said which process it is and what its disk
is."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from icecore.errors import FencedError, IcecoreError, NotLeaderError, UnsupportedError
from icecore.model import PROTOCOL_VERSION
from icecore.rpc.ports import (
    Admitted,
    Answer,
    CallContext,
    DirectHandler,
    Received,
    UnaryHandler,
)
from icecore.rpc.waiting import as_unary
from icecore.v1 import coordinator_pb2 as pb
from icecore.v1.data_pb2 import ProduceRequest
from icecore_node.identity.identity import Identity
from icecore_node.membership.registration import Gate, NodeRegistration
from icecore_node.replica.life import Condemned

CALL = CallContext("peer", "anonymous", None)
FENCE = "/icecore.v1.NodeService/Fence"


class Executor:
    async def run(self, function: Any, *args: object) -> Any:
        return function(*args)

    run_first = run


class Folder:
    """Notes in which order things became durable."""

    cluster_id = b""
    disk_id = b"d" * 16

    def __init__(self, done: list[str], disk_counter: int = 5) -> None:
        self.done = done
        self.incarnation = 3
        self.disk_counter = disk_counter

    def join_cluster(self, cluster_id: bytes) -> None:
        self.cluster_id = cluster_id

    def keep_incarnation(self, incarnation: int, disk_counter: int) -> None:
        self.done.append(f"incarnation {incarnation} counter {disk_counter}")
        self.incarnation, self.disk_counter = incarnation, disk_counter

    def raise_disk_counter(self, metadata_revision: int) -> int:
        self.metadata_revision = metadata_revision
        self.disk_counter += 1
        return self.disk_counter


class Replicas(dict[int, Any]):
    def __iter__(self) -> Any:
        return iter(self.values())


def a_replica(segment_id: int, **known: Any) -> Any:
    facts: dict[str, Any] = {"intact": True, "sealed": False, "base_offset": 0, "end": 0} | known
    replica = SimpleNamespace(
        segment_id=segment_id,
        life=SimpleNamespace(is_intact=facts.pop("intact")),
        log=SimpleNamespace(durable_tail=SimpleNamespace(end_offset=facts.pop("end"))),
        **facts,
    )

    def move(event: object) -> None:
        assert isinstance(event, Condemned)
        replica.life.is_intact = False

    replica.move = move
    return replica


class World:
    """One node that registers with a scripted coordinator."""

    def __init__(self, answer: pb.RegisterResponse) -> None:
        self.done: list[str] = []
        self.folder = Folder(self.done)
        self.replicas = Replicas({each: a_replica(each) for each in (1, 2)})
        self.asked: list[pb.RegisterRequest] = []
        self.answer = answer
        self.on_register: Callable[[], None] = lambda: None
        store = SimpleNamespace(
            salvage=SimpleNamespace(
                condemn=lambda ids, why: self.done.append(f"condemned {list(ids)}")
            ),
        )
        self.context: Any = SimpleNamespace(
            identity=Identity(1),
            settings=SimpleNamespace(rack="", host="h", tier_url=""),
            executor=Executor(),
            store=store,
        )
        self.gate = Gate(self.context.identity)
        self.registration = NodeRegistration(
            self.context,
            cast(Any, self.folder),
            cast(Any, self),
            cast(Any, self),
            cast(Any, self.replicas),
            lambda _: None,
            cast(Any, self),
        )

    async def heard(self, error: IcecoreError) -> None:
        """Take a refusal that asks for the inventory, and ignore it."""

    def set_times(self, **_: int) -> None:
        """Take the times of heartbeats, and ignore them."""

    async def register(
        self,
        request: pb.RegisterRequest,
        on_refused: Callable[[IcecoreError], Awaitable[None]],
    ) -> pb.RegisterResponse:
        self.asked.append(request)
        self.on_register()
        return self.answer


def answered(**changes: Any) -> pb.RegisterResponse:
    fields: dict[str, Any] = {
        "cluster_id": b"c" * 16,
        "incarnation": 9,
        "protocol_version": PROTOCOL_VERSION,
    }
    return pb.RegisterResponse(**{**fields, **changes})


async def test_an_older_coordinator_is_refused_before_anything_is_kept() -> None:
    world = World(answered(protocol_version=PROTOCOL_VERSION - 1))
    with pytest.raises(UnsupportedError, match="update coordinators before nodes"):
        await world.registration.register([])
    assert world.context.identity.incarnation == 0


async def test_an_old_folder_is_unknown_before_it_looks_new() -> None:
    world = World(answered(disk_unknown=True, disk_counter=30))
    await world.registration.register([])
    assert world.asked[0].disk_counter == 5
    assert world.done == ["condemned [1, 2]", "incarnation 9 counter 31"]
    assert not any(each.life.is_intact for each in world.replicas.values())


async def test_a_log_that_went_back_is_unknown_alone() -> None:
    world = World(answered(unknown_segment_ids=[2], disk_counter=5))
    await world.registration.register([])
    assert world.done == ["condemned [2]", "incarnation 9 counter 6"]
    assert [each.life.is_intact for each in world.replicas.values()] == [True, False]


async def echo(body: bytes, _: CallContext) -> bytes:
    return body


def doors(world: World, handler: UnaryHandler = echo) -> list[tuple[UnaryHandler, bytes, str]]:
    """(Handler, a body that is right once registered, reason of the refusal before)."""
    gate = world.gate
    fetch, produce = (f"/icecore.v1.DataService/{name}" for name in ("Fetch", "Produce"))

    def admit(header: bytes, body_bytes: int, context: CallContext) -> Admitted:
        def run(body: Received, answer: Answer) -> None:
            task = asyncio.ensure_future(handler(body, context))
            task.add_done_callback(lambda done: answer(done.result()))

        return Admitted(run, lambda: None)

    direct = DirectHandler(ProduceRequest, admit)
    peer = "/icecore.v1.ReplicationService/ReadSegment"
    own = world.context.identity.node_id
    meant = pb.FenceRequest(node_id=own, incarnation=9).SerializeToString()
    return [
        (as_unary(gate.for_producers({produce: direct})[produce]), b"", "NOT_LEADER"),
        (gate.for_clients({fetch: handler})[fetch], b"", "NOT_REPLICA"),
        (gate.for_peers({peer: handler})[peer], b"", "UNAVAILABLE"),
        (gate.for_coordinator({FENCE: handler})[FENCE], meant, "UNAVAILABLE"),
    ]


async def refusal(handler: UnaryHandler, body: bytes) -> IcecoreError:
    with pytest.raises(IcecoreError) as caught:
        await handler(body, CALL)
    return caught.value


async def test_nobody_is_answered_before_registration_has_answered() -> None:
    world = World(answered())
    for handler, body, reason in doors(world):
        error = await refusal(handler, body)
        assert (error.reason, error.retriable) == (reason, True)
    follow = world.gate.for_followers(cast(Any, echo))
    with pytest.raises(IcecoreError):
        await follow(cast(Any, b""), CALL)
    await world.registration.register([])
    for handler, body, _ in doors(world):
        assert await handler(body, CALL) == body
    await follow(cast(Any, b""), CALL)


@pytest.mark.parametrize(("ahead", "incarnation"), [(0, 0), (0, 8), (0, 10), (1, 9)])
async def test_a_call_for_another_process_is_refused(ahead: int, incarnation: int) -> None:
    """The other process is an earlier one of this node, or a node that had this address before."""
    world = World(answered())
    await world.registration.register([])
    handler = world.gate.for_coordinator({FENCE: echo})[FENCE]
    meant = world.context.identity.node_id + ahead
    body = pb.FenceRequest(node_id=meant, incarnation=incarnation).SerializeToString()
    assert isinstance(await refusal(handler, body), FencedError)


async def test_nobody_is_answered_while_it_registers_again() -> None:
    """A call under way is held back too: it may be about a disk that is UNKNOWN by now."""
    world = World(answered())
    await world.registration.register([])
    entered, go_on = asyncio.Event(), asyncio.Event()

    async def slow(body: bytes, _: CallContext) -> bytes:
        entered.set()
        await go_on.wait()
        return body

    _, _, _, (handler, body, _) = doors(world, slow)
    under_way = asyncio.create_task(handler(body, CALL))
    await entered.wait()
    seen: list[int] = []
    world.on_register = lambda: seen.append(world.context.identity.incarnation)
    world.answer.incarnation = 10
    await world.registration.register([])
    assert seen == [0]
    go_on.set()
    with pytest.raises(IcecoreError, match="registered again"):
        await under_way


def test_a_produce_that_was_admitted_by_an_earlier_incarnation_never_runs() -> None:
    identity = Identity(1)
    identity.register(b"", incarnation=9, coordinator_epoch=1)
    told: list[str] = []

    def admit(header: bytes, body_bytes: int, context: CallContext) -> Admitted:
        told.append("admitted")
        return Admitted(lambda body, answer: told.append("ran"), lambda: told.append("abandoned"))

    gate = Gate(identity)
    guarded = gate.for_producers({"/p": DirectHandler(ProduceRequest, admit)})["/p"]
    admitted = guarded.admit(b"", 10, CALL)
    assert isinstance(admitted, Admitted)
    identity.register(b"", incarnation=10, coordinator_epoch=1)
    with pytest.raises(NotLeaderError):
        admitted.run(bytes(10), lambda _: told.append("answered"))
    assert told == ["admitted", "abandoned"]
    identity.lose()
    with pytest.raises(NotLeaderError):
        guarded.admit(b"", 10, CALL)
    assert told == ["admitted", "abandoned"]
