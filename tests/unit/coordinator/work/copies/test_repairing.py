"""A pass makes copies by their bytes, and in turns where some can't be helped."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from icecore.errors import UnavailableError
from icecore.model import NodeId, SegmentId
from icecore_coordinator.decisions.segment_changes import DecidedSeal, Opening, seal
from icecore_coordinator.nodes.node_calls import WriteBackItem
from icecore_coordinator.state.records import Change
from icecore_coordinator.timing import Timing
from icecore_coordinator.work.copies import repairing
from icecore_coordinator.work.copies.repairing import Repair
from tests.support.cluster_states import (
    ALL,
    DIGEST,
    KEY,
    commit,
    prepared_successor,
    registered,
    segment,
)
from tests.unit.coordinator.work.copies.test_auditor import Audited


def thin(audited: Audited, *lengths_bytes: int) -> list[int]:
    """Sealed segments of these lengths, of which node 3 has no copy."""
    state, made = audited.state, []
    for length_bytes in lengths_bytes:
        tail = segment(state, state.partitions[KEY].tail_segment_id)
        successor = prepared_successor(state)
        end = tail.base_offset + 10
        sealed = DecidedSeal(
            tail.segment_id, tail.version, end, DIGEST, (1, 2), length_bytes=length_bytes
        )
        commit(state, seal(state, state.live, sealed, Opening(successor, ALL), 0))
        made.append(tail.segment_id)
    return made


def ids(audited: Audited) -> list[int]:
    return [segment_id for segment_id, _, _ in audited.repairs()]


def test_a_pass_has_many_small_copies_or_one_large_one(monkeypatch: pytest.MonkeyPatch) -> None:
    audited = Audited()
    monkeypatch.setattr(repairing, "REPAIR_BYTES_PER_PASS", 1_000)
    small = thin(audited, *[100] * 30)
    assert ids(audited) == small[:10]
    monkeypatch.setattr(repairing, "REPAIR_BYTES_PER_PASS", 50)
    assert ids(audited) == small[:1]
    monkeypatch.setattr(repairing, "REPAIR_BYTES_PER_PASS", 1 << 30)
    assert ids(audited) == small
    monkeypatch.setattr(repairing, "REPAIRS_PER_PASS", 7)
    assert ids(audited) == small[:7]


def test_those_that_cannot_be_helped_keep_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    audited = Audited()
    monkeypatch.setattr(repairing, "LOOKED_AT_PER_PASS", 4)
    made = thin(audited, *[100] * 10)
    for segment_id in made[:8]:
        audited.damage(1, segment_id)
        audited.damage(2, segment_id)
    assert [ids(audited) for _ in range(4)] == [[], [], made[8:], []]


def test_nobody_is_looked_at_twice_when_there_is_nowhere_to_copy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    audited = Audited()
    monkeypatch.setattr(repairing, "LOOKED_AT_PER_PASS", 4)
    thin(audited, *[100] * 6)
    audited.kill(3)
    assert [ids(audited) for _ in range(3)] == [[], [], []]


class NobodyCopies:
    """Calls that fail, and who was asked to copy from whom."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []

    async def write_back(self, target: int, items: Sequence[WriteBackItem], _: float) -> list[Any]:
        self.asked += [(each.donor_address, target) for each in items]
        raise UnavailableError("it can't be copied there")


class Refuses(NobodyCopies):
    """Calls of a node that refuses each copy."""

    async def write_back(self, target: int, items: Sequence[WriteBackItem], _: float) -> list[Any]:
        return [UnavailableError("its own stream has not said that it is sealed")] * len(items)


async def test_a_node_that_refuses_a_copy_is_told_of_the_record() -> None:
    """R111: it may have an older copy, of which nobody knew, and which waits for that."""
    audited = Audited()
    commit(audited.state, Change((registered(4, 14),)))
    [segment_id] = thin(audited, 100)

    async def decide_each(items: Sequence[Any], decision: Any) -> list[Change]:
        return [commit(audited.state, decision(audited.state, each)) for each in items]

    repairer: Any = audited.repairer
    repairer._ledger = SimpleNamespace(state=audited.state, decide_each=decide_each)
    repairer._calls = Refuses()
    before = audited.state.segments[SegmentId(segment_id)]
    assert 4 not in before.holders
    for _ in range(2):  # and once is enough
        await repairer._copy(NodeId(4), [Repair(before.segment, NodeId(1), NodeId(4))])
        record = audited.state.segments[SegmentId(segment_id)]
        assert record.holders == (*before.holders, 4)
        assert record.version == before.version + 1
        assert record.segment.replicas == before.segment.replicas


async def test_what_can_t_be_copied_from_one_to_another_is_copied_otherwise() -> None:
    """A donor that the target can't reach, or a target that refuses, may stay so for ever."""
    audited, calls = Audited(), NobodyCopies()
    commit(audited.state, Change((registered(4, 14),)))
    audited.streams[4] = audited.connect(4)
    audited.repairer._calls = cast(Any, calls)
    thin(audited, 100)
    for _ in range(5):
        await audited.repairer.repair()
        audited.clock.now += Timing().retry_max_ms
    nodes = audited.state.nodes
    one, other = (nodes[NodeId(each)].address for each in (1, 2))
    assert sorted(calls.asked[:4]) == sorted([(one, 3), (other, 3), (one, 4), (other, 4)])
    assert calls.asked[4] == calls.asked[0], "from the beginning"
