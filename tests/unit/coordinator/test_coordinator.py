"""A coordinator looks for work at once, but not all the time."""

import asyncio
from typing import Any, cast

import pytest

from icecore.process.system import SystemRng
from icecore_coordinator.coordinator import LOOK_RESTS, Coordinator
from icecore_coordinator.stores.sqlite_store import SqliteStore
from icecore_coordinator.timing import Timing
from icecore_coordinator.work.jobs import Job
from tests.unit.coordinator.nodes.test_node_sessions import FakeClock


class LookedTwice(Exception):
    """Ends the loop."""


def job_of(coordinator: Coordinator, name: str) -> Job:
    [job] = [each for each in coordinator._table() if each.name == name]
    return job


@pytest.mark.parametrize("look_ms", [0, 25])
async def test_a_long_look_is_followed_by_a_rest(
    monkeypatch: pytest.MonkeyPatch, look_ms: int
) -> None:
    """Each change of one of very many segments asks for a look at all of them."""
    clock, looks, rests_s = FakeClock(), list[float](), list[float]()
    coordinator = Coordinator(cast(Any, None), SqliteStore(":memory:"), clock, SystemRng())

    def look() -> None:
        looks.append(clock.now)
        if len(looks) == 2:
            raise LookedTwice
        clock.now += look_ms
        coordinator._healing.poke()

    async def rest(seconds: float) -> None:
        rests_s.append(seconds)
        clock.now += 1000 * seconds

    monkeypatch.setattr(coordinator._healing, "_start_needed", look)
    monkeypatch.setattr(asyncio, "sleep", rest)
    with pytest.raises(LookedTwice):
        await coordinator._jobs.run(job_of(coordinator, "heal"))
    monkeypatch.undo()
    assert rests_s == [LOOK_RESTS * look_ms / 1000]
    assert looks[1] - looks[0] == (1 + LOOK_RESTS) * look_ms
    await coordinator._store.close()


JOBS = (
    *("tick", "heal", "audit", "roll", "balance", "repair", "retain", "confirm", "local_copies"),
    *("upload", "follow_tiers"),
)


@pytest.mark.parametrize("name", JOBS)
async def test_no_job_dies_in_silence(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """R63: a coordinator without one of its jobs would only look alive."""
    coordinator = Coordinator(
        cast(Any, None),
        SqliteStore(":memory:"),
        FakeClock(),
        SystemRng(),
        Timing(audit_ms=10, balance_ms=10),
    )
    assert tuple(each.name for each in coordinator._table()) == JOBS

    async def fail(self: Job, clock: object) -> None:
        raise RuntimeError("out of luck")

    monkeypatch.setattr(Job, "turn", fail)
    coordinator._jobs.start([job_of(coordinator, name)])
    async with asyncio.timeout(5):
        await coordinator.ledger.lost.wait()
    await coordinator._store.close()
