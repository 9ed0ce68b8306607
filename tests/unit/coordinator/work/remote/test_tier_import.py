"""Calls of an import: numbers first, the topic last."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from icecore_coordinator.decisions.remote import tier_import
from icecore_coordinator.state.cluster_state import ClusterState, next_of
from icecore_coordinator.state.records import Change, TopicRecord
from icecore_coordinator.work.remote import tier_import as work
from icecore_coordinator.work.remote.tier_import import TierImport
from tests.unit.coordinator.decisions.remote.test_tier_import import TOPIC, segment


class OneLedger:
    """A ledger that has only a state."""

    def __init__(self) -> None:
        self.state = ClusterState()

    async def decide(self, decision: Callable[[ClusterState], Change]) -> Change:
        change = decision(self.state)
        self.state.apply(change)
        return change


async def test_numbers_are_raised_in_every_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "eligible_nodes", lambda *_: [1])
    ledger = OneLedger()
    state = ledger.state
    at_opening: list[int] = []

    async def show(topic_id: bytes) -> TopicRecord:
        at_opening.append(next_of(state, "segment_id").next_value)
        await ledger.decide(lambda state: tier_import.show(state, topic_id))
        return state.topics[topic_id]

    ports: Any = SimpleNamespace(ledger=ledger, live=None)
    imports = TierImport(ports, show)
    await imports.take(TOPIC, [segment(3, 10, 30)], 50, 200)
    await imports.finish(TOPIC, ())
    assert at_opening == [52], "before any segment is opened, and one keeps offsets"
    await imports.take(TOPIC, [segment(3, 10, 30)], 70, 300)
    await imports.finish(TOPIC, ())
    numbers = (next_of(state, each).next_value for each in ("segment_id", "tier_attempt"))
    assert (*numbers,) == (71, 301), "also of a topic that is back"
    assert at_opening == [52]
