"""What the auditor does about copies that their nodes call damaged or missing."""

from dataclasses import dataclass
from typing import Any, cast

import pytest

from icecore.v1 import coordinator_pb2 as pb
from icecore_coordinator.config import Timing
from icecore_coordinator.decisions.segment_changes import Opening, alter_isr, seal
from icecore_coordinator.state.cluster_state import ClusterState
from icecore_coordinator.state.records import Change, NodeRecord
from icecore_coordinator.work.auditor import Auditor
from icecore_coordinator.work.repairing import Repairer
from icecore_coordinator.work.worker_ports import WorkerPorts
from icecore_replication.isr import IsrProposal
from tests.support.cluster_states import ALL, commit, prepared_successor, sealing, segment
from tests.unit.coordinator.nodes.test_node_sessions import Watch


@dataclass
class StateOnly:
    """The part of a ledger that decisions read."""

    state: ClusterState


class Audited(Watch):
    """Three connected nodes and an auditor that is only asked."""

    def __init__(self) -> None:
        super().__init__()
        self.streams = {node_id: self.connect(node_id) for node_id in ALL}
        unused = cast(Any, None)
        ports = WorkerPorts(
            ledger=cast(Any, StateOnly(self.state)),
            calls=unused,
            live=self.live,
            heard=self.heard,
            copies=self.copies,
            pages=self.pages,
            clock=self.clock,
            timing=Timing(roll_up_wait_ms=0),
        )
        self.auditor = Auditor(ports, opening=unused, gains=unused, recover=unused)
        self.repairer = Repairer(ports)

    def damage(self, node_id: int, segment_id: int) -> None:
        beat = pb.HeartbeatRequest(unknown_segment_ids=[segment_id])
        self.sessions.beat(self.streams[node_id], beat)

    def kill(self, *nodes: int) -> None:
        for node_id in nodes:
            self.sessions.disconnected(self.streams.pop(node_id))
        self.pass_ms(1_000, *self.streams.values())

    def repairs(self) -> list[tuple[int, int, int]]:
        found = self.repairer.repairs()
        return [(each.segment.segment_id, each.donor, each.target) for each in found]


@pytest.fixture
def audited() -> Audited:
    return Audited()


def test_whole_segments_stay_where_they_are(audited: Audited) -> None:
    assert audited.auditor.rolls() == []
    assert audited.repairs() == []


def test_active_segment_moves_on_from_a_damaged_member(audited: Audited) -> None:
    audited.damage(2, 1)
    [(found, why)] = audited.auditor.rolls()
    assert (found.segment_id, why) == (1, "unknown_replica")


def test_damage_of_another_segment_or_node_moves_nothing(audited: Audited) -> None:
    audited.damage(2, 99)
    assert audited.auditor.rolls() == []


def test_active_segment_moves_off_a_disk_that_is_getting_full(audited: Audited) -> None:
    """To the same nodes: the one that said so has other disks."""
    audited.sessions.beat(audited.streams[2], pb.HeartbeatRequest(crowded_segment_ids=[1, 99]))
    [(found, why)] = audited.auditor.rolls()
    assert (found.segment_id, why) == (1, "crowded_disk")
    assert not audited.auditor.must_recover(found)
    audited.sessions.beat(audited.streams[2], pb.HeartbeatRequest())
    assert audited.auditor.rolls() == []


@pytest.mark.parametrize(
    ("isr", "damaged", "expected"),
    [((1, 2, 3), 2, False), ((1, 2), 2, True), ((1, 2), 3, False), ((1, 2, 3), 1, True)],
)
def test_leader_seals_only_what_it_can(
    audited: Audited, isr: tuple[int, ...], damaged: int, expected: bool
) -> None:
    state = audited.state
    if isr != segment(state).isr:
        before = segment(state)
        proposal = IsrProposal(
            *(1, ALL[1], before.epoch, before.version, isr), tuple(ALL[each] for each in isr)
        )
        commit(state, alter_isr(state, state.live, 1, proposal))
    audited.damage(damaged, 1)
    assert audited.auditor.must_recover(segment(state)) is expected


def test_leader_without_followers_moves_to_a_fresh_node(audited: Audited) -> None:
    state = audited.state
    commit(state, Change((NodeRecord(4, b"4", "n4:1", "", 14, 14, version=1),)))
    audited.streams[4] = audited.connect(4)
    audited.kill(2, 3)
    [(found, why)] = audited.auditor.rolls()
    assert (found.segment_id, why) == (1, "roll_up")
    assert audited.auditor.must_recover(found)


def test_node_that_is_down_has_some_seconds_to_return(audited: Audited) -> None:
    state = audited.state
    commit(state, Change((NodeRecord(4, b"4", "n4:1", "", 14, 14, version=1),)))
    audited.streams[4] = audited.connect(4)
    audited.kill(3)
    assert audited.auditor.rolls() == []
    audited.pass_ms(10_000, *audited.streams.values())
    [(found, why)] = audited.auditor.rolls()
    assert (found.segment_id, why) == (1, "roll_up")


def test_sealed_copy_of_a_node_that_may_return_is_not_made_elsewhere(audited: Audited) -> None:
    state = audited.state
    commit(state, Change((NodeRecord(4, b"4", "n4:1", "", 14, 14, version=1),)))
    audited.streams[4] = audited.connect(4)
    successor = prepared_successor(state)
    commit(
        state, seal(state, state.live, sealing(state, replicas=(1, 2)), Opening(successor, ALL), 0)
    )
    audited.kill(3)
    assert audited.repairs() == []
    audited.pass_ms(10_000, *audited.streams.values())
    assert [target for _, _, target in audited.repairs()] == [4]


def test_leader_without_followers_stays_when_there_is_nobody_else(audited: Audited) -> None:
    audited.kill(2, 3)
    assert audited.auditor.rolls() == []


def test_damaged_copy_is_no_donor_and_its_node_is_copied_to(audited: Audited) -> None:
    state = audited.state
    successor = prepared_successor(state)
    commit(
        state, seal(state, state.live, sealing(state, replicas=(1, 2)), Opening(successor, ALL), 0)
    )
    audited.damage(2, 1)
    audited.damage(3, 1)
    assert audited.repairs() == [(1, 1, 3)]
    audited.damage(1, 1)
    assert audited.repairs() == []  # nobody to copy from
