"""R121: Several coordinators on one etcd: the active one dies, stops, stands still, or loses etcd,
all under load. Another one takes over, and producers notice nothing."""

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from icecore import Admin
from icecore.errors import IcecoreError
from tests.cluster.test_etcd import topic_names
from tests.cluster.traffic import Log, create, merged, numbered, produce, read_all
from tests.support.etcd import NEEDS_MEMBERS, EtcdMembers, running_members
from tests.support.standbys import SESSION_MS, Coordinators, running_coordinators

pytestmark = NEEDS_MEMBERS
_CHANGE_WITHIN_S = 60.0


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdMembers]:
    with running_members(tmp_path_factory.mktemp("etcd"), 1) as members:
        yield members


@pytest.fixture(scope="module")
def three(etcd: EtcdMembers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Coordinators]:
    with running_coordinators(etcd, tmp_path_factory.mktemp("c"), 3) as coordinators:
        yield coordinators


async def next_change(coordinators: Coordinators, names: Iterator[str]) -> float:
    """Make topics until one could be made: the seconds until then."""
    began = time.monotonic()
    while True:
        try:
            async with Admin(coordinators.bootstrap, timeout_s=10) as admin:
                await admin.create_topic(next(names), partitions=1)
            return time.monotonic() - began
        except IcecoreError:
            assert time.monotonic() - began < _CHANGE_WITHIN_S


@contextlib.asynccontextmanager
async def load(bootstrap: str, topic: str) -> AsyncIterator[Log]:
    """Produce until the block ends, with a new producer again and again: none may fail."""
    log: Log = {}
    is_over = asyncio.Event()

    async def work() -> None:
        start = 0
        while not is_over.is_set():
            log.update(merged(log, await produce(bootstrap, topic, numbered(start, 100))))
            start += 100
            await asyncio.sleep(0.02)

    task = asyncio.create_task(work())
    try:
        yield log
    finally:
        is_over.set()
        await task


async def test_kill_stop_and_pause_of_the_active_one(three: Coordinators) -> None:
    names = topic_names()
    await create(three.bootstrap, "t", partitions=3, segment_bytes=64 << 10)
    took: dict[str, float] = {}
    async with load(three.bootstrap, "t") as log:
        for word, number in (
            ("kill", signal.SIGKILL),
            ("stop", signal.SIGTERM),
            ("pause", signal.SIGSTOP),
        ):
            active = three.active
            await asyncio.to_thread(three.send, active, number)
            took[word] = await next_change(three, names)
            assert three.active != active
            if word == "pause":
                three.send(active, signal.SIGCONT)
                await asyncio.to_thread(three.wait, active, ("standby",))
            else:
                await asyncio.to_thread(three.start, active)
    print(took)
    assert await read_all(three.bootstrap, "t") == log
    assert took["kill"] < SESSION_MS / 1000 + 1
    assert took["stop"] < 1.5
