"""Sealed segments whose copies were all in memory: declared lost, or a person hears who is silent
(R98)."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from icecore.errors import IcecoreError
from icecore.model import NodeId, SegmentId
from icecore.topic_settings import MEMORY_ENGINE, RESTART_EMPTY, UNAVAILABLE_ON_LOSS
from icecore.v1 import coordinator_pb2 as pb
from icecore_coordinator.decisions.node_changes import HeldReplica, Registration
from icecore_coordinator.nodes.node_sessions import Registered
from icecore_coordinator.state.cluster_state import ClusterState, next_of
from icecore_coordinator.state.records import Change, updated_segment
from icecore_coordinator.timing import Timing
from icecore_coordinator.work.copies.repairing import Repairer
from icecore_coordinator.work.recovery.vanished_segments import VanishedSegments
from icecore_coordinator.work.worker_ports import WorkerPorts
from tests.support.cluster_states import ALL, commit, roll, segment
from tests.unit.coordinator.nodes.test_node_sessions import Watch

LOST = "every copy was in memory"
WAIT_MS = Timing().return_wait_ms


class Vanishing(Watch):
    """Segment 1 was sealed in the memory of nodes 1 to 3. Also the ledger."""

    def __init__(self, on_total_loss: str = RESTART_EMPTY) -> None:
        super().__init__()
        chosen = {"engine": MEMORY_ENGINE, "on_total_loss": on_total_loss}
        settings = replace(segment(self.state).settings, **chosen)
        commit(
            self.state, Change((updated_segment(self.state.segments[1], {"settings": settings}),))
        )
        self.streams = {node_id: self.connect(node_id) for node_id in ALL}
        assert roll(cast(Any, self.state)) == 1
        self.copying: set[tuple[NodeId, SegmentId]] = set()
        ports = WorkerPorts(
            ledger=cast(Any, self),
            calls=cast(Any, None),
            live=self.live,
            heard=self.heard,
            copies=self.copies,
            alerts=self.alerts,
            clock=self.clock,
            timing=Timing(),
        )
        self.repairer = Repairer(ports)
        self.worker = VanishedSegments(
            ports, self.sessions.registered, lambda *copy: copy in self.copying
        )

    async def decide_each(
        self, items: Sequence[Any], decision: Callable[[ClusterState, Any], Change]
    ) -> list[Change | IcecoreError]:
        found: list[Change | IcecoreError] = []
        for each in items:
            try:
                found.append(commit(self.state, decision(self.state, each)))
            except IcecoreError as error:
                found.append(error)
        return found

    def tell(self, *nodes: int, vanished: Sequence[int] = (1,)) -> None:
        for node_id in nodes:
            heartbeat = pb.HeartbeatRequest(unknown_segment_ids=[1], vanished_segment_ids=vanished)
            self.sessions.heartbeat(self.streams[node_id], heartbeat)

    def register(self, node_id: int, **changes: Any) -> None:
        """A node has registered with an inventory in which the segment is not."""
        next_id = next_of(self.state, "segment_id").next_value
        known = Registered(
            registration=Registration(b"", NodeId(node_id), b"", ALL[node_id], "n:1", ""),
            held={},
            is_disk_unknown=False,
            incarnation=self.state.incarnation(NodeId(node_id)),
            next_segment_id=next_id,
        )
        self.sessions.note_registered(replace(known, **changes))

    async def audit(self) -> list[str]:
        """One look as the coordinator does it. Return all alerts so far."""
        await self.worker.look()
        await self.repairer.drop_damaged()
        return [each.why for each in self.alerts]

    async def pass_and_audit(self, duration_ms: float) -> list[str]:
        self.pass_ms(int(duration_ms), *self.streams.values())
        return await self.audit()


@pytest.fixture
def cluster() -> Vanishing:
    return Vanishing()


async def test_it_is_declared_lost_with_one_alert(cluster: Vanishing) -> None:
    cluster.tell(1)
    assert await cluster.audit() == []
    assert segment(cluster.state).replicas == (2, 3)
    cluster.tell(2, 3)
    [why] = await cluster.audit()
    assert LOST in why and segment(cluster.state).is_lost
    cluster.tell(1, 2, 3)  # nodes say so with each stream, for ever
    assert await cluster.pass_and_audit(2 * WAIT_MS) == [why]


async def test_a_silent_node_is_named_and_nothing_is_given_up(cluster: Vanishing) -> None:
    cluster.tell(1, 2)
    for _ in range(3):
        assert await cluster.audit() == []
    assert await cluster.pass_and_audit(WAIT_MS) == [], "it is up, and believed to have it"
    cluster.sessions.disconnected(cluster.streams.pop(3))
    cluster.pass_ms(1_000, *cluster.streams.values())
    [why] = await cluster.audit()
    assert "nodes 3 have not said" in why
    assert segment(cluster.state).replicas == (3,) and not segment(cluster.state).lossy
    cluster.streams[3] = cluster.connect(3)
    cluster.tell(3)
    assert any(LOST in each for each in await cluster.audit())


async def test_a_new_stream_takes_back_what_was_said(cluster: Vanishing) -> None:
    cluster.tell(1, 2, 3)
    cluster.streams[2] = cluster.connect(2)
    await cluster.audit()
    assert not segment(cluster.state).is_lost
    cluster.tell(2)
    await cluster.audit()
    assert segment(cluster.state).is_lost


async def test_a_copy_that_is_begun_takes_back_what_was_said(cluster: Vanishing) -> None:
    cluster.tell(1, 2, 3)
    cluster.copies.copied(2, 1)
    await cluster.audit()
    assert not segment(cluster.state).is_lost


async def test_a_copy_that_was_on_a_disk_waits_for_a_person(cluster: Vanishing) -> None:
    """The disk may be away; nobody says that nothing is left."""
    cluster.tell(1, 2)
    cluster.tell(3, vanished=[])
    assert await cluster.audit() == ["node 3: last copy is damaged"]
    found = await cluster.pass_and_audit(WAIT_MS)
    assert len(found) == 2 and "nodes 3 have not said" in found[1]
    assert not segment(cluster.state).is_lost


async def test_vanished_alone_is_not_believed(cluster: Vanishing) -> None:
    for node_id in ALL:
        heartbeat = pb.HeartbeatRequest(vanished_segment_ids=[1, 77])
        cluster.sessions.heartbeat(cluster.streams[node_id], heartbeat)
    await cluster.audit()
    assert segment(cluster.state).replicas == (1, 2, 3)


async def test_where_a_person_is_to_decide_the_last_copy_stays_listed() -> None:
    cluster = Vanishing(UNAVAILABLE_ON_LOSS)
    cluster.tell(1, 2, 3)
    [why] = await cluster.pass_and_audit(WAIT_MS)
    assert "last copy is damaged" in why and len(segment(cluster.state).replicas) == 1


async def test_a_node_that_shows_that_it_has_none_need_not_say_more(cluster: Vanishing) -> None:
    """It was asked to open the segment, and did not in time."""
    cluster.register(3)
    cluster.tell(1, 2)
    await cluster.audit()
    assert segment(cluster.state).is_lost


@pytest.mark.parametrize(
    "changes",
    [
        {"is_disk_unknown": True},
        {"incarnation": 99},
        {"next_segment_id": 1},
        {"held": {1: HeldReplica(SegmentId(1), 10, is_sealed=True, is_intact=True)}},
    ],
    ids=lambda each: next(iter(each)),
)
async def test_an_inventory_that_proves_nothing(
    cluster: Vanishing, changes: dict[str, object]
) -> None:
    cluster.register(3, **changes)
    cluster.tell(1, 2)
    await cluster.audit()
    assert not segment(cluster.state).is_lost


async def test_a_copy_that_is_being_made_is_not_in_the_inventory(cluster: Vanishing) -> None:
    cluster.register(3)
    cluster.copying.add((NodeId(3), SegmentId(1)))
    cluster.tell(1, 2)
    await cluster.audit()
    assert not segment(cluster.state).is_lost
