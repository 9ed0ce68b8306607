"""R122: A standby that follows a real etcd has at each take-over all that a read would find."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from icecore.process.system import SystemRng
from icecore_coordinator.config import EtcdSettings
from icecore_coordinator.stores import etcd_follower
from icecore_coordinator.stores.etcd_client import EtcdClient
from icecore_coordinator.stores.etcd_follower import EtcdFollower
from icecore_coordinator.stores.etcd_store import EtcdStore
from icecore_coordinator.stores.metadata_store import Compare, Stored
from tests.support.etcd import NEEDS_MEMBERS, EtcdMembers, running_members

pytestmark = NEEDS_MEMBERS
_numbers = itertools.count()


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdMembers]:
    with running_members(tmp_path_factory.mktemp("etcd"), 1) as members:
        yield members


class World:
    """A store that changes, and one that follows."""

    def __init__(self, etcd: EtcdMembers) -> None:
        prefix = f"following/{next(_numbers)}/"
        self.settings = EtcdSettings(
            endpoints=etcd.endpoints[0], prefix=prefix, session_ms=2_000, attempt_ms=500
        )
        self.active = EtcdStore(self.settings, SystemRng())
        self.follower = EtcdFollower(self.settings)
        self.opened: list[EtcdStore] = [self.active]

    async def take_over(self) -> tuple[EtcdStore, list[Stored], bool]:
        """Become the writer: all records, and whether that took no read of them."""
        store = EtcdStore(self.settings, SystemRng(), follower=self.follower)
        self.opened.append(store)
        await store.acquire_coordinator_epoch()
        found = await store.scan("")
        was_followed = store._followed is not None
        await self.follower.stop()
        return store, found, was_followed

    async def truth(self) -> list[Stored]:
        store = EtcdStore(self.settings, SystemRng())
        self.opened.append(store)
        return await store.scan("")

    async def close(self) -> None:
        await self.follower.stop()
        for store in self.opened:
            await store.close()


@pytest.fixture
async def world(etcd: EtcdMembers) -> AsyncIterator[World]:
    found = World(etcd)
    await found.active.acquire_coordinator_epoch()
    yield found
    await found.close()


async def until(holds: Callable[[], bool]) -> None:
    for _ in range(2_000):
        if holds():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it did not happen")


def many(count: int, value: str) -> list[tuple[str, str]]:
    return [(f"segment/{number:05d}", value) for number in range(count)]


async def test_what_was_there_and_what_came_since_is_handed_over(world: World) -> None:
    """Also a change that is larger than a transaction of etcd, deletions, and what is adopted."""
    store = world.active
    await store.txn([], many(1_500, "before"))
    world.follower.start()
    await until(lambda: len(world.follower._records) == 1_500)
    await store.txn([Compare("segment/00001", 1)], [("segment/00001", "changed")])
    await store.txn([], many(300, "staged"), ["segment/00400"])
    await store.txn([], [], ["segment/00002"])
    await store.adopt([Stored("a", "adopted", 70)], ["segment/00003"], 9, store.revision + 50)
    await store.txn([Compare("a", 70)], [("a", "after")])
    after, found, was_followed = await world.take_over()
    assert found == await world.truth()
    assert was_followed
    assert Stored("a", "after", 71) in found
    assert await after.txn([Compare("a", 71)], [("a", "mine")])  # versions that were adopted
    assert await after.scan("segment/", "segment/01490", 5) == [
        Stored(f"segment/{number:05d}", "before", 1) for number in range(1491, 1496)
    ]


async def test_a_change_in_the_middle_of_the_first_read_is_not_missed(world: World) -> None:
    store = world.active
    await store.txn([], many(1_200, "before"))
    world.follower.start()
    for number in range(30):
        await store.txn([], [(f"segment/{number * 40:05d}", "new"), (f"x/{number}", "x")])
    _, found, _ = await world.take_over()
    assert found == await world.truth()


async def test_a_history_that_was_shortened_is_read_anew(
    world: World, etcd: EtcdMembers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The standby stands still while its next revision is compacted."""
    store = world.active
    await store.txn([], many(10, "before"))
    world.follower.start()
    await until(lambda: len(world.follower._records) == 10)
    assert world.follower._task is not None
    world.follower._task.cancel()
    for number in range(5):
        await store.txn([], [(f"y/{number}", "y")])
    answer = await store._client.range(b"x")
    body = {"revision": answer.header.revision, "physical": True}
    await asyncio.to_thread(etcd.post, "/v3/kv/compaction", body)
    world.follower.start()
    await until(lambda: len(world.follower._records) == 15)
    _, found, was_followed = await world.take_over()
    assert (found, was_followed) == (await world.truth(), True)


async def test_a_watch_that_breaks_goes_on_where_it_was(world: World, etcd: EtcdMembers) -> None:
    store = world.active
    await store.txn([], many(10, "before"))
    world.follower.start()
    await until(lambda: len(world.follower._records) == 10)
    etcd.kill(0)
    etcd.start_member(0)
    await asyncio.to_thread(etcd.wait_ready, 0)
    await store.txn([], [("z", "z")])
    _, found, was_followed = await world.take_over()
    assert found == await world.truth()
    assert was_followed


async def test_many_changes_that_are_told_at_once_are_no_hole(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A standby that was away for a while reads nothing again."""
    store = world.active
    await store.txn([], many(10, "before"))
    world.follower.start()
    await until(lambda: len(world.follower._records) == 10)
    assert world.follower._task is not None
    world.follower._task.cancel()
    for number in range(20):
        await store.txn([], [(f"y/{number}", "y"), ("segment/00001", f"{number}")])
    reads: list[int] = []
    read_all = world.follower._read_all

    async def counted() -> None:
        reads.append(1)
        await read_all()

    monkeypatch.setattr(world.follower, "_read_all", counted)
    world.follower.start()
    await until(lambda: len(world.follower._records) == 30)
    _, found, was_followed = await world.take_over()
    assert (found, was_followed, reads) == (await world.truth(), True, [])


@pytest.mark.parametrize("lost", ["a change", "a record", "a value"])
async def test_what_is_missing_is_noticed_and_read(
    world: World, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    """etcd itself has lost events: a whole change, or one record of it."""
    store, real = world.active, EtcdClient.watch
    record = world.settings.prefix.encode() + b"record/lost"

    async def lossy(self: Any, *given: Any) -> Any:
        async for answer in real(self, *given):
            keys = [each.kv.key for each in answer.events]
            if record in keys:
                if lost != "a record":
                    continue
                kept = [each for each in answer.events if each.kv.key != record]
                del answer.events[:]
                answer.events.extend(kept)
            yield answer

    monkeypatch.setattr(EtcdClient, "watch", lossy)
    monkeypatch.setattr(etcd_follower, "_BARRIER_S", 0.3)
    first = "lost" if lost == "a value" else "before"
    await store.txn([], [(first, "b")])
    world.follower.start()
    await until(lambda: len(world.follower._records) == 1)
    await store.txn([], [("lost", "l")])
    _, found, was_followed = await world.take_over()
    assert found == await world.truth()
    assert not was_followed


async def test_nobody_waits_for_a_follower_that_hears_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_follower, "_BARRIER_S", 0.1)
    await world.active.txn([], many(3, "x"))
    _, found, was_followed = await world.take_over()  # it was never started
    assert (found, was_followed) == (await world.truth(), False)
