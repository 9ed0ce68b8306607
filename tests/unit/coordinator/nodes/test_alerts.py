"""Each kind of alert has room of its own."""

import pytest

from icecore_coordinator.nodes.alerts import ALERTS_PER_KIND, AlertKind, Alerts
from tests.unit.coordinator.nodes.test_node_sessions import FakeClock


def whys(alerts: Alerts) -> list[str]:
    return [each.why for each in alerts]


@pytest.mark.parametrize("flood", AlertKind)
def test_a_flood_of_one_kind_pushes_out_no_other(flood: AlertKind) -> None:
    alerts = Alerts(FakeClock())
    others = [each for each in AlertKind if each != flood]
    for each in others:
        alerts.raise_alert(each, 1, each.value)
    for number in range(1_000):
        alerts.raise_alert(flood, number, f"node {number} says so")
    found = whys(alerts)
    assert {each.value for each in others} <= set(found)
    assert len(found) == len(others) + ALERTS_PER_KIND + 1


def test_the_newest_stay_and_the_others_are_counted() -> None:
    clock = FakeClock()
    alerts = Alerts(clock)
    for number in range(ALERTS_PER_KIND + 3):
        clock.now += 10
        alerts.raise_alert(AlertKind.SEAL, 7, f"claim {number}")
    others, *kept = alerts
    assert others.why.startswith("3 more alerts of seals that members contradict")
    assert others.last_at_ms - others.first_at_ms == 20 and others.segment_id == 0
    assert [each.why for each in kept] == [f"claim {at}" for at in range(3, ALERTS_PER_KIND + 3)]


def test_the_same_alert_again_only_moves_its_time() -> None:
    clock = FakeClock()
    alerts = Alerts(clock)
    for _ in range(ALERTS_PER_KIND + 3):
        clock.now += 10
        alerts.raise_alert(AlertKind.SEAL, 7, "the same")
    [alert] = alerts
    assert alert.last_at_ms - alert.first_at_ms == 10 * (ALERTS_PER_KIND + 2)


def test_an_alert_whose_end_can_be_seen_goes_by_itself() -> None:
    alerts, holds = Alerts(FakeClock()), [True]
    alerts.raise_alert(AlertKind.LOST, 7, "no copy", lambda: holds[0])
    alerts.raise_alert(AlertKind.LOST, 8, "another")
    assert whys(alerts) == ["no copy", "another"]
    holds[0] = False
    assert whys(alerts) == ["another"]


def test_alerts_of_all_kinds_are_in_the_order_of_their_times() -> None:
    clock = FakeClock()
    alerts = Alerts(clock)
    for kind, why in ((AlertKind.SEAL, "a"), (AlertKind.LOST, "b"), (AlertKind.SEAL, "c")):
        clock.now += 10
        alerts.raise_alert(kind, 1, why)
    assert whys(alerts) == ["a", "b", "c"]
