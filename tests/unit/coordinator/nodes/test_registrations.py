"""Anybody may register: who is not proved to be a node is kept in a bounded number."""

from types import SimpleNamespace
from typing import Any

import pytest

from icecore.model import NodeId
from icecore_coordinator.nodes import registrations
from icecore_coordinator.nodes.registrations import UNPROVED_MAX, Registrations


def note(kept: Registrations[Any], number: int, segments: int = 0, **proof: bool) -> Any:
    registered = SimpleNamespace(held=range(segments))
    kept.note(NodeId(number), registered, **{"is_proved": False, **proof})
    return registered


def test_strangers_push_each_other_out_and_no_node() -> None:
    kept = Registrations[Any]()
    note(kept, 1, is_proved=True)
    for node_id in range(10, 10 + UNPROVED_MAX + 5):
        note(kept, node_id)
    assert kept.of(1) is not None
    found = [each for each in range(10, 10 + UNPROVED_MAX + 5) if kept.of(each)]
    assert found == list(range(15, 10 + UNPROVED_MAX + 5))


def test_who_is_proved_is_not_pushed_out() -> None:
    kept = Registrations[Any]()
    note(kept, 2)
    kept.note_proved(2)
    kept.note_proved(3)  # nobody registered
    for node_id in range(10, 10 + UNPROVED_MAX):
        note(kept, node_id)
    assert kept.of(2) is not None and kept.of(10) is not None


def test_long_inventories_of_strangers_are_bounded_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(registrations, "UNPROVED_SEGMENTS_MAX", 10)
    kept = Registrations[Any]()
    for node_id in (1, 2, 3):
        note(kept, node_id, 4)
    assert kept.of(1) is None and kept.of(2) is not None
    note(kept, 4, 50)
    assert kept.of(4) is not None and kept.of(3) is None, "a true node may be as large"
    note(kept, 4, 2)
    note(kept, 5, 8)
    assert kept.of(4) is not None


def test_the_last_one_counts_and_none_once_the_node_is_forgotten() -> None:
    kept = Registrations[Any]()
    note(kept, 1)
    second = note(kept, 1, is_proved=True)
    assert kept.of(1) is second
    kept.forget(1)
    assert kept.of(1) is None
