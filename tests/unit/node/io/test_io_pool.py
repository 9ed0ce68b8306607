"""I/O workers: what one owner makes of its result costs no other."""

import asyncio
import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from icecore.errors import IcecoreError
from icecore.model import SegmentId
from icecore_node.io.io_pool import IoWorker
from icecore_node.io.short_syncs import ShortSyncs
from icecore_node.metrics import NodeMetrics
from icecore_node.storage.engine import NO_TAIL, AppendRequest, LogTail
from icecore_node.storage.replica_store import ReplicaStore
from tests.simulation.executor import SimExecutor
from tests.simulation.loop import SimLoop
from tests.simulation.ports import SimClock

TAIL = replace(NO_TAIL, end_offset=1)


class Store:
    """Appends that always work."""

    @property
    def reader(self) -> "Store":
        return self

    def appends_block(self, segment_id: SegmentId) -> bool:
        return True

    def append_group(self, requests: list[AppendRequest]) -> list[AppendRequest]:
        return requests


class Owner:
    """Remembers what it was told."""

    def __init__(self, *, mistakes: int = 0) -> None:
        self._mistakes = mistakes
        self.told: list[str] = []

    def on_appended(self, durable_tail: LogTail | None, error: IcecoreError | None) -> None:
        self._tell("appended")

    def on_broken(self, why: str) -> None:
        self._tell("broken")

    def _tell(self, what: str) -> None:
        self.told.append(what)
        if len(self.told) <= self._mistakes:
            raise KeyError(what)


@pytest.fixture
def loop() -> Iterator[SimLoop]:
    loop = SimLoop(1)
    yield loop
    loop.close()


@pytest.mark.parametrize("mistakes", [1, 2])
def test_a_broken_owner_costs_no_other_its_result(loop: SimLoop, mistakes: int) -> None:
    first, broken, last = Owner(), Owner(mistakes=mistakes), Owner()

    async def main() -> int:
        store: ReplicaStore = Store()  # type: ignore[assignment]
        executor = SimExecutor(None, random.Random(1))
        worker = IoWorker(
            "io-0",
            store,
            executor,
            SimClock(loop),
            NodeMetrics(),
            group_items_max=100,
            syncs=ShortSyncs(0),
        )
        for owner in (first, broken, last):
            worker.append(AppendRequest(1, [], [], TAIL), owner)
        return await asyncio.wait_for(worker.run(lambda: 7), 10)

    assert loop.run_until_complete(main()) == 7
    assert (first.told, last.told) == (["appended"], ["appended"])
    assert broken.told == ["appended", "broken"]
    assert loop.failures == []
