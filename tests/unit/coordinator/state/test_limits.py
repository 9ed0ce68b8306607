"""Whatever may fill up is in one table, with what makes room; operators read the same table."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from icecore.process.system import SystemClock
from icecore_coordinator.decisions.retention import hold
from icecore_coordinator.nodes.node_sessions import Usage
from icecore_coordinator.services.admin_messages import Describer
from icecore_coordinator.state.limits import HOLDS_MAX, LIMITS, Limit, UsedLimit, limits_in_use
from icecore_coordinator.state.records import (
    Change,
    PositionRecord,
    ProducerRecord,
    StoredHold,
    StoredPosition,
)
from tests.support.cluster_states import TOPIC, Cluster, commit, started
from tests.tidy.tree import ROOT


@pytest.fixture
def state() -> Cluster:
    return started()


def used(state: Cluster) -> dict[str, int]:
    return {each.limit.name: each.used for each in limits_in_use(state)}


def test_each_limit_counts_what_fills_it(state: Cluster) -> None:
    before = used(state)
    assert (before["nodes"], before["segment_ids"], before["producer_names"]) == (3, 1, 0)
    positions = tuple(StoredPosition(each, 7, 1, 1, 0) for each in range(5))
    commit(
        state,
        Change(
            (
                ProducerRecord("name", 1, version=1),  # type: ignore[arg-type]
                PositionRecord(TOPIC, "reader", 0, positions, version=1),
            )
        ),
    )
    for number in range(3):
        commit(state, hold(state, "events", StoredHold(b"%016d" % number, 1000), is_renewal=False))
    after = used(state)
    assert [after[each] for each in ("producer_names", "position_names", "positions")] == [1, 1, 5]
    assert after["holds_of_a_topic"] == 3
    state.counted_ms = 2_000
    assert used(state)["holds_of_a_topic"] == 0, "they have ended"


@pytest.mark.parametrize(("used", "is_nearly_full"), [(79, False), (80, True), (100, True)])
def test_an_operator_is_warned_in_time(used: int, is_nearly_full: bool) -> None:
    limit = Limit("things", 100, lambda _: used, "throw some away")
    assert UsedLimit(limit, used).is_nearly_full is is_nearly_full


def test_the_way_out_is_told_when_it_is_needed(state: Cluster) -> None:
    def told() -> dict[str, str]:
        describer = Describer(
            state=state,
            live=state.live,
            heard=cast(Any, None),
            alerts=cast(Any, ()),
            sessions=cast(Any, SimpleNamespace(usage=lambda _: Usage())),
            clock=SystemClock(),
            recoveries=lambda: 0,
            refused_streams=lambda: 0,
        )
        return {each.name: each.way_out for each in describer.cluster().limits}

    assert not any(told().values())
    count = int(0.8 * HOLDS_MAX) + 1
    holds = tuple(StoredHold(b"%016d" % each, 10**9) for each in range(count))
    topic = state.topics[TOPIC]
    commit(state, Change((replace(topic, holds=holds, version=topic.version + 1),)))
    full = {name: way_out for name, way_out in told().items() if way_out}
    assert list(full) == ["holds_of_a_topic"] and "end the Spark jobs" in full["holds_of_a_topic"]


def test_the_table_of_the_documents_has_all_of_them() -> None:
    text = (ROOT / "docs" / "operate" / "monitor.md").read_text()
    rows = [f"| {each.name.replace('_', ' ')} | {each.most:,} |" for each in LIMITS]
    assert [each for each in rows if each not in text] == []
