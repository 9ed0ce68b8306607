"""R122: A standby that follows a real etcd has at each take-over all that a read would find."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any

import pytest

from icecore.model import ProducerId
from icecore.process.system import SystemRng
from icecore_coordinator.config import EtcdSettings
from icecore_coordinator.state.cluster_state import ClusterState
from icecore_coordinator.state.record_json import encode
from icecore_coordinator.state.records import ProducerRecord
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
    """A store that changes, and one that follows. The records are producers, by name."""

    def __init__(self, etcd: EtcdMembers) -> None:
        prefix = f"following/{next(_numbers)}/"
        self.settings = EtcdSettings(
            endpoints=etcd.endpoints[0], prefix=prefix, session_ms=2_000, attempt_ms=500
        )
        self.active = EtcdStore(self.settings, SystemRng())
        self.state = ClusterState()
        self.follower = EtcdFollower(self.settings, self.state)
        self.opened: list[EtcdStore] = [self.active]
        self._versions: dict[str, int] = {}

    async def put(self, names: Iterable[str], value: int, gone: Iterable[str] = ()) -> None:
        """One change of metadata by the active one."""
        puts = [self.record(name, value) for name in names]
        await self.active.txn([], [(each.key, each.value) for each in puts], [*map(key_of, gone)])

    def record(self, name: str, value: int, version: int = 0) -> Stored:
        """As it is stored next."""
        version = self._versions[name] = version or self._versions.get(name, 0) + 1
        return stored(ProducerRecord(name, ProducerId(value), version=version))

    async def take_over(self) -> tuple[EtcdStore, list[Stored], bool]:
        """Become the writer: all records, and whether that took no read of them."""
        store = EtcdStore(self.settings, SystemRng(), follower=self.follower)
        self.opened.append(store)
        await store.acquire_coordinator_epoch()
        is_followed = store.is_followed
        found = map(stored, self.state.producers.values()) if is_followed else await store.scan("")
        await self.follower.stop()
        return store, sorted(found), is_followed

    async def truth(self) -> list[Stored]:
        store = EtcdStore(self.settings, SystemRng())
        self.opened.append(store)
        return await store.scan("")

    async def close(self) -> None:
        await self.follower.stop()
        for store in self.opened:
            await store.close()


def key_of(name: str) -> str:
    return f"producer/{name}"


def stored(record: ProducerRecord) -> Stored:
    return Stored(record.key, encode(record), record.version)


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


def many(count: int) -> list[str]:
    return [f"{number:05d}" for number in range(count)]


async def test_what_was_there_and_what_came_since_is_handed_over(world: World) -> None:
    """Also a change that is larger than a transaction of etcd, deletions, and what is adopted."""
    await world.put(many(1_500), 1)
    world.follower.start()
    await until(lambda: len(world.follower._records) == 1_500)
    await world.put(["00001"], 2)
    await world.put(many(300), 3, ["00400"])
    await world.put([], 0, ["00002"])
    store, adopted = world.active, world.record("a", 4, version=70)
    await store.adopt([adopted], [key_of("00003")], 9, store.revision + 50)
    await world.put(["a"], 5)
    after, found, was_followed = await world.take_over()
    assert found == await world.truth()
    assert was_followed
    assert [each.version for each in found if each.key == key_of("a")] == [71]
    again = world.record("a", 6)
    assert await after.txn([Compare(again.key, 71)], [(again.key, again.value)])
    assert world.state.coordinator_epoch == 0  # that is the ledger's to say


async def test_a_change_in_the_middle_of_the_first_read_is_not_missed(world: World) -> None:
    await world.put(many(1_200), 1)
    world.follower.start()
    for number in range(30):
        await world.put([f"{number * 40:05d}", f"x/{number}"], 2)
    _, found, _ = await world.take_over()
    assert found == await world.truth()


async def test_a_history_that_was_shortened_is_read_anew(
    world: World, etcd: EtcdMembers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The standby stands still while its next revision is compacted."""
    store = world.active
    await world.put(many(10), 1)
    world.follower.start()
    await until(lambda: len(world.follower._records) == 10)
    assert world.follower._task is not None
    world.follower._task.cancel()
    for number in range(5):
        await world.put([f"y/{number}"], 2)
    answer = await store._client.range(b"x")
    body = {"revision": answer.header.revision, "physical": True}
    await asyncio.to_thread(etcd.post, "/v3/kv/compaction", body)
    world.follower.start()
    await until(lambda: len(world.follower._records) == 15)
    _, found, was_followed = await world.take_over()
    assert (found, was_followed) == (await world.truth(), True)


async def test_a_watch_that_breaks_goes_on_where_it_was(world: World, etcd: EtcdMembers) -> None:
    await world.put(many(10), 1)
    world.follower.start()
    await until(lambda: len(world.follower._records) == 10)
    etcd.kill(0)
    etcd.start_member(0)
    await asyncio.to_thread(etcd.wait_ready, 0)
    await world.put(["z"], 2)
    _, found, was_followed = await world.take_over()
    assert found == await world.truth()
    assert was_followed


async def test_many_changes_that_are_told_at_once_are_no_hole(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A standby that was away for a while reads nothing again."""
    await world.put(many(10), 1)
    world.follower.start()
    await until(lambda: len(world.follower._records) == 10)
    assert world.follower._task is not None
    world.follower._task.cancel()
    for number in range(20):
        await world.put([f"y/{number}", "00001"], number)
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
    real = EtcdClient.watch
    record = world.settings.prefix.encode() + b"record/producer/lost"

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
    await world.put([first], 1)
    world.follower.start()
    await until(lambda: len(world.follower._records) == 1)
    await world.put(["lost"], 2)
    _, found, was_followed = await world.take_over()
    assert found == await world.truth()
    assert not was_followed


async def test_nobody_waits_for_a_follower_that_hears_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_follower, "_BARRIER_S", 0.1)
    await world.put(many(3), 1)
    _, found, was_followed = await world.take_over()  # it was never started
    assert (found, was_followed) == (await world.truth(), False)
