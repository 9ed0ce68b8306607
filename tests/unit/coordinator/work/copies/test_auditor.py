"""The auditor repairs copies that their nodes call damaged or missing."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import pytest

from icecore.errors import UnavailableError
from icecore.model import Segment
from icecore.v1 import coordinator_pb2 as pb
from icecore_coordinator.decisions.segment_changes import (
    DecidedSeal,
    Opening,
    alter_isr,
    open_tail,
    prepare,
    seal,
)
from icecore_coordinator.decisions.topic_changes import add_partitions, missing_partitions
from icecore_coordinator.nodes.node_calls import RollAnswer
from icecore_coordinator.state.cluster_state import ClusterState, Placement
from icecore_coordinator.state.records import Change, NodeRecord, SegmentRecord, updated
from icecore_coordinator.timing import Timing
from icecore_coordinator.work.copies.auditor import Auditor
from icecore_coordinator.work.copies.repairing import Repairer
from icecore_coordinator.work.segments.gains import ExpectedGains
from icecore_coordinator.work.worker_ports import WorkerPorts
from icecore_replication.isr import IsrProposal
from tests.support.cluster_states import (
    ALL,
    DIGEST,
    TOPIC,
    Cluster,
    commit,
    prepared_successor,
    registered,
    sealing,
    segment,
)
from tests.unit.coordinator.nodes.test_node_sessions import Watch


@dataclass
class StateOnly:
    """The part of a ledger that decisions read."""

    state: ClusterState


class Audited(Watch):
    """Three connected nodes and an auditor; calls to leaders are only kept."""

    def __init__(self) -> None:
        super().__init__()
        self.streams = {node_id: self.connect(node_id) for node_id in ALL}
        self.asked: list[tuple[int, list[int], str]] = []
        self.recovered: list[int] = []
        ports = WorkerPorts(
            ledger=cast(Any, StateOnly(self.state)),
            calls=cast(Any, self),
            live=self.live,
            heard=self.heard,
            copies=self.copies,
            alerts=self.alerts,
            clock=self.clock,
            timing=Timing(roll_up_wait_ms=0),
        )
        self.auditor = Auditor(
            ports, cast(Any, None), ExpectedGains(self.clock, 4_000), self.recovered.append
        )
        self.repairer = Repairer(ports)

    async def roll(
        self, leader: int, segments: Sequence[Segment], why: str, _: float
    ) -> list[RollAnswer]:
        self.asked.append((leader, [each.segment_id for each in segments], why))
        if leader == 2:
            raise UnavailableError("this leader can't be reached")
        return [RollAnswer() for _ in segments]

    def damage(self, node_id: int, segment_id: int) -> None:
        heartbeat = pb.HeartbeatRequest(unknown_segment_ids=[segment_id])
        self.sessions.heartbeat(self.streams[node_id], heartbeat)

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
    audited.sessions.heartbeat(audited.streams[2], pb.HeartbeatRequest(crowded_segment_ids=[1, 99]))
    [(found, why)] = audited.auditor.rolls()
    assert (found.segment_id, why) == (1, "crowded_disk")
    assert not audited.auditor.must_recover(found)
    audited.sessions.heartbeat(audited.streams[2], pb.HeartbeatRequest())
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


def two_replicas_each(state: Cluster, partitions: int) -> None:
    """Give the topic so many partitions; the new ones have segments on nodes 1 and 2 alone, and are
    led by these in turn."""
    commit(state, add_partitions(state, "events", partitions))
    for change in missing_partitions(state):
        commit(state, change)
    places = [((TOPIC, each), Placement((1, 2), 1 + each % 2)) for each in range(1, partitions)]
    prepared = commit(state, prepare(state, places))
    for record in prepared.puts:
        if isinstance(record, SegmentRecord):
            opening = Opening(record.segment.segment_id, {1: ALL[1], 2: ALL[2]})
            commit(state, open_tail(state, state.live, opening))


def seal_and_open(state: Cluster, segment_id: int) -> None:
    """Seal a segment that rolls, and open its successor."""
    before = segment(state, segment_id)
    key = (TOPIC, before.partition)
    [successor] = [
        each.segment.segment_id
        for each in commit(state, prepare(state, [(key, Placement((1, 2, 3), 1))])).puts
        if isinstance(each, SegmentRecord)
    ]
    sealed = DecidedSeal(segment_id, before.version, 10, DIGEST, before.replicas)
    commit(state, seal(state, state.live, sealed, Opening(successor, ALL), 0))


async def test_rolls_are_asked_for_by_leader_and_no_more_of_them_than_are_done(
    audited: Audited,
) -> None:
    state = cast(Cluster, audited.state)
    two_replicas_each(state, 40)
    await audited.auditor.roll()
    assert [(leader, len(ids), why) for leader, ids, why in audited.asked] == [
        (2, 2, "roll_up"),
        (1, 2, "roll_up"),
    ], "one leader that can't be reached keeps no other from being asked"
    await audited.auditor.roll()
    assert len(audited.asked) == 2, "none is done yet"
    for segment_id in audited.asked[1][1]:
        seal_and_open(state, segment_id)
    await audited.auditor.roll()
    assert sum(len(ids) for _, ids, _ in audited.asked[2:]) == 2, "as many as were done"
    assert not {each for _, ids, _ in audited.asked[:2] for each in ids}.intersection(
        each for _, ids, _ in audited.asked[2:] for each in ids
    )
    assert not audited.recovered


async def test_leaders_that_never_roll_keep_no_others_waiting(audited: Audited) -> None:
    """Nor do those that refused once wait for ever behind those that always do."""
    state = cast(Cluster, audited.state)
    two_replicas_each(state, 61)
    reluctant = {each for each in state.short if segment(state, each).leader == 1 and not each % 4}
    for _ in range(120):
        audited.asked.clear()
        await audited.auditor.roll()
        for leader, segment_ids, _ in audited.asked:
            for segment_id in segment_ids if leader == 1 else ():
                if segment_id in reluctant:
                    reluctant.remove(segment_id)
                else:
                    seal_and_open(state, segment_id)
        audited.clock.now += 1_000
    assert {segment(state, each).leader for each in state.short} == {2}


# --- nodes that are to be empty -------------------------------------------------------------------


def drain(audited: Audited, node_id: int) -> None:
    record = audited.state.nodes[node_id]
    commit(audited.state, Change((updated(record, is_drained=True),)))


def join_fourth(audited: Audited) -> None:
    commit(audited.state, Change((registered(4, 14),)))
    audited.streams[4] = audited.connect(4)


@pytest.mark.parametrize("node_id", ALL)
def test_active_segment_leaves_a_drained_node(audited: Audited, node_id: int) -> None:
    drain(audited, node_id)
    leader = segment(audited.state).leader
    assert [why for _, why in audited.auditor.rolls()] == ["drained_node"] * (node_id == leader)
    join_fourth(audited)
    [(found, why)] = audited.auditor.rolls()
    assert (found.segment_id, why) == (1, "drained_node")
    assert not audited.auditor.must_recover(found)


def test_drained_copies_are_made_elsewhere_before_they_go(audited: Audited) -> None:
    seal_and_open(audited.state, 1)
    drain(audited, 2)
    assert audited.repairs() == []
    join_fourth(audited)
    [(segment_id, _, target)] = audited.repairs()
    assert (segment_id, target) == (1, 4)


def test_a_repair_goes_to_a_rack_and_a_machine_without_a_copy(audited: Audited) -> None:
    seal_and_open(audited.state, 1)
    for node_id, rack, host in ((4, "b", "h1"), (5, "a", "h9"), (6, "b", "h9")):
        commit(audited.state, Change((registered(node_id, 10 + node_id),)))
        audited.streams[node_id] = audited.connect(node_id)
        move(audited, node_id, rack, host)
    for node_id in ALL:
        move(audited, node_id, "a", f"h{node_id}")
    drain(audited, 2)
    [(segment_id, _, target)] = audited.repairs()
    assert (segment_id, target) == (1, 6)


def move(audited: Audited, node_id: int, rack: str, host: str) -> None:
    record = audited.state.nodes[node_id]
    commit(audited.state, Change((updated(record, rack=rack, host=host),)))
