"""How many copies a pass makes: by their bytes, and in turns where some can't be helped."""

import pytest

from icecore_coordinator.decisions.segment_changes import Opening, Sealing, seal
from icecore_coordinator.work import repairing
from tests.support.cluster_states import ALL, DIGEST, KEY, commit, prepared_successor, segment
from tests.unit.coordinator.work.test_auditor import Audited


def thin(audited: Audited, *lengths_bytes: int) -> list[int]:
    """Sealed segments of these lengths, of which node 3 has no copy."""
    state, made = audited.state, []
    for length_bytes in lengths_bytes:
        tail = segment(state, state.partitions[KEY].tail_segment_id)
        successor = prepared_successor(state)
        end = tail.base_offset + 10
        sealed = Sealing(
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
