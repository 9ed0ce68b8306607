"""The coordinator probes a node whose stream broke, and concludes from the result if it is gone."""

import asyncio
from collections.abc import Coroutine
from typing import Any, cast

import pytest

from icecore_coordinator.nodes import broken_streams
from icecore_coordinator.nodes.broken_streams import BrokenStreams
from tests.support.waiting import until


class FakeSessions:
    """One node; it is missing from ``disconnected`` until somebody says otherwise."""

    def __init__(self) -> None:
        self.missing: set[int] = set()
        self.gone: list[int] = []

    def disconnected(self, session: Any) -> None:
        self.missing.add(session.node_id)

    def is_missing(self, node_id: int) -> bool:
        return node_id in self.missing

    def note_gone(self, node_id: int) -> None:
        self.missing.discard(node_id)
        self.gone.append(node_id)


class FakeCalls:
    """Refuses from the time it is told to."""

    def __init__(self) -> None:
        self.knocks = 0
        self.is_refusing = False

    async def refuses(self, node_id: int, within_s: float) -> bool:
        self.knocks += 1
        await asyncio.sleep(0)
        return self.is_refusing


class Setup:
    def __init__(self) -> None:
        self.sessions, self.calls = FakeSessions(), FakeCalls()
        self.tasks: list[asyncio.Task[None]] = []
        self.broken = BrokenStreams(cast(Any, self.sessions), cast(Any, self.calls), self.spawn)

    def spawn(self, work: Coroutine[Any, Any, None], _: str) -> None:
        self.tasks.append(asyncio.ensure_future(work))

    def end_stream(self, node_id: int = 1) -> None:
        self.broken.ended(cast(Any, type("Session", (), {"node_id": node_id})))


@pytest.fixture
def setup(monkeypatch: pytest.MonkeyPatch) -> Setup:
    monkeypatch.setattr(broken_streams, "KNOCK_EVERY_S", 0.001)
    return Setup()


async def test_a_node_that_refuses_is_gone(setup: Setup) -> None:
    setup.calls.is_refusing = True
    setup.end_stream()
    await asyncio.gather(*setup.tasks)
    assert setup.sessions.gone == [1] and setup.calls.knocks == 1


async def test_a_node_that_lets_us_in_first_is_asked_again(setup: Setup) -> None:
    setup.end_stream()
    await until(lambda: setup.calls.knocks >= 3)
    assert setup.sessions.gone == []
    setup.calls.is_refusing = True
    await asyncio.gather(*setup.tasks)
    assert setup.sessions.gone == [1]


async def test_a_node_that_comes_back_is_left_alone(setup: Setup) -> None:
    setup.end_stream()
    await until(lambda: setup.calls.knocks >= 1)
    setup.sessions.missing.clear()
    await asyncio.gather(*setup.tasks)
    assert setup.sessions.gone == []


async def test_one_knocks_at_a_time_and_again_at_the_next_break(setup: Setup) -> None:
    for _ in range(3):
        setup.end_stream()
    setup.end_stream(2)
    assert len(setup.tasks) == 2
    setup.calls.is_refusing = True
    await asyncio.gather(*setup.tasks)
    setup.end_stream()
    await asyncio.gather(*setup.tasks)
    assert sorted(setup.sessions.gone) == [1, 1, 2]


async def test_a_stream_of_a_node_that_left_is_not_asked_about(setup: Setup) -> None:
    setup.sessions.disconnected = lambda session: None  # type: ignore[method-assign]
    setup.end_stream()
    assert setup.tasks == []
