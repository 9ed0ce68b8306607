"""R121: Candidates of a real etcd: one at a time is sure, whatever etcd and they go through."""

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Callable, Iterator

import pytest

from icecore.errors import StorageError
from icecore.process.system import SystemClock
from icecore_coordinator.config import EtcdSettings
from icecore_coordinator.election.elector import Elector
from icecore_coordinator.election.etcd_ballot import EtcdBallot
from icecore_coordinator.stores.etcd_client import EtcdClient
from tests.support.etcd import NEEDS_MEMBERS, EtcdMembers, running_members

pytestmark = NEEDS_MEMBERS
SESSION_MS = 2_000
_numbers = itertools.count()


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdMembers]:
    with running_members(tmp_path_factory.mktemp("etcd"), 1) as members:
        yield members


class EtcdsClock(SystemClock):
    """The clock by which etcd ends sessions. That of the tests' loop stands still while others
    compute, so an elector would be sure of a session that etcd has ended."""

    def monotonic_ms(self) -> float:
        return time.monotonic_ns() / 1_000_000


class Candidates:
    """Some electors of one cluster, and whether two of them were ever sure at once."""

    def __init__(self, etcd: EtcdMembers, count: int, session_ms: int = SESSION_MS) -> None:
        self.settings = EtcdSettings(
            endpoints=etcd.endpoints[0],
            prefix=f"election/{next(_numbers)}/",
            session_ms=session_ms,
        )
        self.electors = [self.make(f"m{number}") for number in range(count)]

    def make(self, member: str) -> Elector:
        ballot = EtcdBallot(self.settings, member)
        session_ms = self.settings.session_ms
        return Elector(ballot, EtcdsClock(), member, f"{member}:1", session_ms)

    async def start(self) -> None:
        """They stand in the order of their numbers."""
        for each in self.electors:
            each.start()
            await asyncio.wait_for(each.placed.wait(), 10)

    async def stop(self) -> None:
        await asyncio.gather(*(each.stop() for each in self.electors))

    def sure(self) -> list[Elector]:
        found = [each for each in self.electors if each.is_sure()]
        assert len(found) <= 1
        return found

    async def until(self, holds: Callable[[], bool], within_s: float = 15) -> float:
        """Look all the time: the seconds until it held."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        while not holds():
            self.sure()
            assert loop.time() - began < within_s
            await asyncio.sleep(0.01)
        return loop.time() - began

    async def new_one(self, old: Elector, within_s: float = 15) -> float:
        return await self.until(lambda: self.sure() not in ([], [old]), within_s)


@pytest.fixture
async def three(etcd: EtcdMembers) -> AsyncIterator[Candidates]:
    found = Candidates(etcd, 3)
    await found.start()
    yield found
    await found.stop()


async def test_the_first_acts_and_the_others_name_it(three: Candidates) -> None:
    [active] = three.sure()
    assert active is three.electors[0]
    await three.until(lambda: all(each.active_address == "m0:1" for each in three.electors[1:]))


async def test_whoever_leaves_is_followed_at_once_and_comes_back_last(three: Candidates) -> None:
    first = three.electors[0]
    first.resign()
    assert not first.is_sure()
    assert await three.new_one(first) < 1
    [second] = three.sure()
    await second.stop()
    assert await three.new_one(second) < 1
    assert three.sure() == [three.electors[2]]


async def test_whoever_is_killed_is_followed_when_its_session_has_ended(three: Candidates) -> None:
    first = three.electors[0]
    for task in first._tasks:
        task.cancel()
    assert SESSION_MS / 2_000 < await three.new_one(first) < SESSION_MS / 1000 + 2


async def test_whoever_starts_again_stands_last_and_nobody_waits_for_the_dead_one(
    three: Candidates,
) -> None:
    first = three.electors[0]
    for task in first._tasks:
        task.cancel()
    again = three.electors[0] = three.make("m0")
    again.start()
    assert await three.new_one(first) < 1.5
    assert three.sure() == [three.electors[1]]
    await first.stop()


async def test_one_alone_that_starts_again_acts_at_once(etcd: EtcdMembers) -> None:
    alone = Candidates(etcd, 1)
    [first] = alone.electors
    first.start()
    await alone.until(first.is_sure)
    for task in first._tasks:
        task.cancel()
    again = alone.make("m0")
    alone.electors = [again]
    again.start()
    assert await alone.until(again.is_sure) < 0.75 * SESSION_MS / 1000
    for each in (first, again):
        await each.stop()


@contextlib.contextmanager
def away(etcd: EtcdMembers, how: str) -> Iterator[None]:
    """etcd answers nobody."""
    if how == "paused":
        etcd.pause(0)
    else:
        etcd.kill(0)
    try:
        yield
    finally:
        if how == "paused":
            etcd.resume(0)
        else:
            etcd.start_member(0)
            etcd.wait_ready(0)


@pytest.mark.parametrize(
    "how",
    [
        pytest.param("paused", marks=pytest.mark.every(2)),
        pytest.param("killed", marks=pytest.mark.every(2, turn=1)),
    ],
)
async def test_a_short_absence_of_etcd_deposes_nobody(etcd: EtcdMembers, how: str) -> None:
    session_ms = 8_000  # a busy machine needs seconds to start etcd
    three = Candidates(etcd, 3, session_ms)
    await three.start()
    [first] = three.sure()
    with away(etcd, how):
        await asyncio.sleep(0.5)
    await asyncio.sleep(session_ms / 1000)
    assert three.sure() == [first]
    await three.stop()


@pytest.mark.parametrize(
    "how",
    [
        pytest.param("paused", marks=pytest.mark.every(2)),
        pytest.param("killed", marks=pytest.mark.every(2, turn=1)),
    ],
)
async def test_a_long_absence_of_etcd_deposes_all_until_it_is_back(
    three: Candidates, etcd: EtcdMembers, how: str
) -> None:
    with away(etcd, how):
        assert await three.until(lambda: not three.sure()) < SESSION_MS / 1000
        await three.until(lambda: all(each.trouble for each in three.electors))
    await three.until(lambda: bool(three.sure()))
    await three.until(lambda: not any(each.trouble for each in three.electors))


async def test_a_lease_that_somebody_ends_makes_way(three: Candidates) -> None:
    await three.until(lambda: bool(three.sure()))
    [first] = three.sure()
    client = EtcdClient(three.settings)
    await client.revoke(first._state.session)
    await client.revoke(first._state.session)  # it is gone, and that is what was wanted
    await client.close()
    # A session that a person ends has not run out, so two are sure until both have heard of it.
    # What the older one stores by then is refused by its coordinator epoch (R120).
    loop = asyncio.get_running_loop()
    began = loop.time()
    found = [first]
    while len(found) != 1 or found == [first]:
        found = [each for each in three.electors if each.is_sure()]
        assert loop.time() - began < 15
        await asyncio.sleep(0.01)
    until_s = loop.time() + SESSION_MS / 1000
    await three.until(lambda: loop.time() > until_s and bool(three.sure()))  # never two again


async def test_a_call_is_not_cancelled_because_another_one_gives_its_connection_up(
    etcd: EtcdMembers,
) -> None:
    """gRPC cancels whoever waits on a connection that is closed: a renewal would just vanish."""
    settings = EtcdSettings(endpoints=etcd.endpoints[0], attempt_ms=300, timeout_ms=1_000)
    client = EtcdClient(settings)
    await client.range(b"a")

    async def later(wait_s: float) -> None:
        await asyncio.sleep(wait_s)
        await client.range(b"a")

    with away(etcd, "paused"):
        calls = (later(number / 20) for number in range(6))
        found = await asyncio.gather(*calls, return_exceptions=True)
    assert [type(each) for each in found] == [StorageError] * 6
    await client.close()
