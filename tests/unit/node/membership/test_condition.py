"""Probes tell a node that is alive from one that is ready, with the reasons."""

from types import SimpleNamespace
from typing import Any

import pytest

from icecore_node.identity.identity import Lease
from icecore_node.identity.node_report import NodeReport
from icecore_node.membership.condition import Condition


class Clock:
    """Moved by hand."""

    now = 0.0

    def now_ms(self) -> int:
        return int(self.now)

    def monotonic_ms(self) -> float:
        return self.now


class World:
    """A node as far as its condition sees it."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.busy = 0.0
        self.report = NodeReport()
        self.pool = SimpleNamespace(busy_ms=lambda now_ms: self.busy)
        self.lease = Lease(self.clock)
        context: Any = self
        self.condition = Condition(context, self.lease, self.report)
        self.condition.is_recovered = True

    def heartbeat(self) -> None:
        self.lease.renew(self.lease.heartbeat())


@pytest.fixture
def world() -> World:
    world = World()
    world.heartbeat()
    return world


def test_ready(world: World) -> None:
    assert (world.condition.why_not_live(), world.condition.why_not_ready()) == ("", "")


def test_a_loop_that_hangs_is_not_alive(world: World) -> None:
    world.clock.now = 10_001
    assert world.condition.why_not_live() == "the event loop has not turned for 10 s"
    assert world.condition.why_not_ready() == world.condition.why_not_live()
    world.condition.turned()
    assert world.condition.why_not_live() == ""


def test_a_disk_that_hangs_is_not_alive(world: World) -> None:
    world.busy = 29_000
    assert world.condition.why_not_live() == ""
    world.busy = 31_000
    assert "a write to a disk has not returned for 31 s" in world.condition.why_not_live()


def test_without_a_lease_it_is_alive_but_not_ready(world: World) -> None:
    world.clock.now = 6_001
    world.condition.turned()
    assert world.condition.why_not_live() == ""
    assert "has not heard of it" in world.condition.why_not_ready()
    world.heartbeat()
    assert world.condition.why_not_ready() == ""
    assert "has not heard of it" in World().condition.why_not_ready()  # not registered yet


def test_a_node_that_recovers_has_not_started_but_is_alive(world: World) -> None:
    world.condition.is_recovered = False
    assert world.condition.why_not_started() == "it is recovering its disks"
    assert world.condition.why_not_live() == ""
    assert world.condition.why_not_ready() == world.condition.why_not_started()
    world.condition.is_recovered = True
    assert world.condition.why_not_started() == world.condition.why_not_ready() == ""


def test_a_start_does_not_wait_for_the_coordinator() -> None:
    assert World().condition.why_not_started() == ""


def test_full_and_stopping(world: World) -> None:
    world.report.is_full = True
    assert world.condition.why_not_ready() == "its disks are full"
    world.report.is_full = False
    assert world.condition.why_not_ready() == ""
    world.condition.is_leaving = True
    assert world.condition.why_not_ready() == "it is stopping"
    assert world.condition.why_not_live() == ""
