"""Segments of an altered topic follow its settings, whatever was under way."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, cast

import pytest

from icecore.model import Segment
from icecore_coordinator.decisions.topic_changes import alter_topic
from icecore_coordinator.state.records import Change, updated
from icecore_coordinator.work.copies import altered_topics
from icecore_coordinator.work.copies.altered_topics import AlteredTopics
from tests.support.cluster_states import SETTINGS, Cluster, commit, roll, segment, started

OTHER = replace(SETTINGS, replication_factor=2)


class Altered:
    """One topic, and the leaders that were asked to roll."""

    def __init__(self) -> None:
        self.state: Cluster = started()
        self.asked: list[int] = []
        self._listeners: list[Any] = []
        ports = cast(Any, type("Ports", (), {"ledger": self}))
        self.topics = AlteredTopics(ports, cast(Any, self))

    def subscribe(self, listener: Any) -> None:
        self._listeners.append(listener)

    async def decide_each(self, items: Iterable[int], decision: Any) -> list[Change]:
        return [self.commit(decision(self.state, each)) for each in items]

    async def roll(self, tails: Iterable[Segment], why: str) -> None:
        assert why == "alter_topic"
        self.asked += [each.segment_id for each in tails]

    def commit(self, change: Change) -> Change:
        commit(self.state, change)
        for listener in self._listeners:
            listener(change)
        return change

    def alter(self) -> None:
        self.commit(alter_topic(self.state, self.state.live, "events", OTHER, None))

    def factors(self) -> list[int]:
        found = self.state.segments.values()
        return [each.segment.settings.replication_factor for each in found]


@pytest.fixture
def altered() -> Altered:
    made = Altered()
    roll(made.state)
    roll(made.state)
    return made


async def test_sealed_segments_take_the_factor_and_open_ones_roll(altered: Altered) -> None:
    altered.topics.start()
    await altered.topics.look()
    assert (altered.asked, altered.factors()) == ([], [3, 3, 3])
    altered.alter()
    await altered.topics.look()
    assert (altered.asked, altered.factors()) == ([3], [2, 2, 3])
    assert segment(altered.state).settings == replace(SETTINGS, replication_factor=2)
    await altered.topics.look()
    assert altered.asked == [3, 3]  # until it has rolled


async def test_a_coordinator_that_starts_goes_on(altered: Altered) -> None:
    altered.alter()
    altered.topics.start()
    await altered.topics.look()
    assert (altered.asked, altered.factors()) == ([3], [2, 2, 3])


async def test_what_opens_or_is_sealed_later_with_former_settings_is_found(
    altered: Altered,
) -> None:
    """A successor has the settings of when it was prepared."""
    altered.topics.start()
    altered.alter()
    await altered.topics.look()
    late = segment(altered.state, 3)
    record = altered.state.segments[3]
    altered.topics._growing.clear()
    altered.commit(Change((replace(record, segment=late.changed(version=late.version + 1)),)))
    await altered.topics.look()
    assert altered.asked == [3, 3]


async def test_a_bounded_number_at_a_time(
    altered: Altered, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(altered_topics, "CHANGES_PER_PASS", 1)
    altered.topics.start()
    altered.alter()
    seen = []
    for _ in range(4):
        await altered.topics.look()
        seen.append(altered.factors()[:2])
    assert seen == [[2, 3], [2, 2], [2, 2], [2, 2]]


async def test_a_topic_that_is_deleted_changes_nothing(altered: Altered) -> None:
    altered.topics.start()
    altered.alter()
    topic = altered.state.topics[segment(altered.state).topic_id]
    altered.commit(Change((updated(topic, is_deleted=True),)))
    await altered.topics.look()
    assert (altered.asked, altered.factors()) == ([], [3, 3, 3])
