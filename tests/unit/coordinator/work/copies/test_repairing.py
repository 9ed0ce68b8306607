"""How many copies a pass makes: by their bytes, and in turns where some can't be helped."""

from collections.abc import Sequence
from typing import Any, cast

import pytest

from icecore.errors import UnavailableError
from icecore.model import NodeId
from icecore_coordinator.decisions.segment_changes import DecidedSeal, Opening, seal
from icecore_coordinator.nodes.node_calls import WriteBackItem
from icecore_coordinator.state.records import Change
from icecore_coordinator.timing import Timing
from icecore_coordinator.work.copies import repairing
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
